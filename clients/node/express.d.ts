import type { Request, RequestHandler } from 'express';
import type { PoolClient } from 'pg';
import type { HttpOptions, HttpResponse } from './http';
import type { Pool } from './index';

export type { HttpOptions, HttpResponse } from './http';

/**
 * A route handler that runs handler(req, client) once for each Idempotency-Key. The types of the
 * parameters, the body and the query are those of the request.
 */
export function idempotent<Parameters = any, ResponseBody = any, Body = any, Query = any>(
  pool: Pool,
  options: HttpOptions<Request<Parameters, ResponseBody, Body, Query>>,
  handler: (
    req: Request<Parameters, ResponseBody, Body, Query>, client: PoolClient,
  ) => Promise<HttpResponse>,
): RequestHandler<Parameters, ResponseBody, Body, Query>;
