import type { FastifyPluginAsync, FastifyReply, FastifyRequest } from 'fastify';
import type { PoolClient } from 'pg';
import type { HttpOptions, HttpResponse } from './http';
import type { Pool } from './index';

export type { HttpOptions, HttpResponse } from './http';

type Handler = (request: FastifyRequest, client: PoolClient) => Promise<HttpResponse>;
type Route = (request: FastifyRequest, reply: FastifyReply) => Promise<unknown>;

/** A route handler that runs handler(request, client) once for each Idempotency-Key. */
export function idempotent(
  pool: Pool,
  options: HttpOptions<FastifyRequest>,
  handler: Handler,
): Route;

/** Gives the application idempotent(options, handler), on the pool it is registered with. */
export const plugin: FastifyPluginAsync<{ pool: Pool }>;

declare module 'fastify' {
  interface FastifyInstance {
    idempotent(options: HttpOptions<FastifyRequest>, handler: Handler): Route;
  }
}
