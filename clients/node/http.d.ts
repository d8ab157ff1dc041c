import type { Headers, Options } from './index';

export interface HttpOptions<Request> extends Omit<Options, 'tenant'> {
  /** The authenticated client, never a value that any client can set. */
  tenant?: (request: Request) => string | undefined;
  /** More headers that must not be stored. */
  neverStored?: string[];
}

export interface HttpResponse {
  /** 200 by default. From 400 on, the transaction is rolled back, and nothing is stored. */
  status?: number;
  headers?: Headers;
  /** Text and bytes are stored as they are, anything else as JSON. */
  body?: unknown;
}
