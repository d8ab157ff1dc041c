import type { Request, RequestHandler } from 'express';
import type { PoolClient } from 'pg';
import type { HttpOptions, HttpResponse } from './http';
import type { Pool } from './index';

export type { HttpOptions, HttpResponse } from './http';

/** A route handler that runs handler(req, client) once for each Idempotency-Key. */
export function idempotent(
  pool: Pool,
  options: HttpOptions<Request>,
  handler: (req: Request, client: PoolClient) => Promise<HttpResponse>,
): RequestHandler;
