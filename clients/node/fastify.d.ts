import type {
  FastifyInstance, FastifyPluginAsync, FastifyReply, FastifyRequest, RouteGenericInterface,
} from 'fastify';
import type { PoolClient } from 'pg';
import type { HttpOptions, HttpResponse } from './http';
import type { Pool } from './index';

export type { HttpOptions, HttpResponse } from './http';

type Handler<Route extends RouteGenericInterface> = (
  this: FastifyInstance, request: FastifyRequest<Route>, client: PoolClient,
) => Promise<HttpResponse>;
type RouteHandler<Route extends RouteGenericInterface> = (
  this: FastifyInstance, request: FastifyRequest<Route>, reply: FastifyReply,
) => Promise<unknown>;

/**
 * A route handler that runs handler(request, client) once for each Idempotency-Key. The type of the
 * route is as that of fastify.post(): { Body: Payment }, for example.
 */
export function idempotent<Route extends RouteGenericInterface = RouteGenericInterface>(
  pool: Pool,
  options: HttpOptions<FastifyRequest<Route>>,
  handler: Handler<Route>,
): RouteHandler<Route>;

/** Gives the application idempotent(options, handler), on the pool it is registered with. */
export const plugin: FastifyPluginAsync<{ pool: Pool }>;

declare module 'fastify' {
  interface FastifyInstance {
    idempotent<Route extends RouteGenericInterface = RouteGenericInterface>(
      options: HttpOptions<FastifyRequest<Route>>, handler: Handler<Route>): RouteHandler<Route>;
  }
}
