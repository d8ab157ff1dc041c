import type { Event, Headers, Options } from './index';

export interface HttpOptions<Request> extends Omit<Options, 'scope' | 'tenant' | 'onEvent'> {
  /** Or a function that chooses it. */
  scope: string | ((request: Request) => string | Promise<string>);
  /**
   * The authenticated client, never a value that any client can set. It must be text. null: all
   * clients share their keys.
   */
  tenant: ((request: Request) => string | Promise<string>) | null;
  /**
   * Where the key is: the path of a member of the body, such as 'meta.idempotency_key', or a
   * function. By default, it is in the header Idempotency-Key.
   */
  keyFrom?: string | ((request: Request) => string | undefined | Promise<string | undefined>);
  /** Whether a request without a key is refused. true. Otherwise, it is run without protection. */
  keyRequired?: boolean;
  /** The statuses from 400 on that are stored, such as 402. Their effect is undone. */
  finalStatuses?: number[];
  /** Whether to store an answer below 400. Else it is sent, and its effect is rolled back. */
  storeIf?: (response: HttpResponse) => boolean | Promise<boolean>;
  /** More headers that must not be stored. */
  neverStored?: string[];
  /** The only headers that are stored, beside Content-Type. */
  includeHeaders?: string[];
  /** Whether to send until when the answer is kept, as Idempotency-Expires. false. */
  sendRetention?: boolean;
  /** The response to send instead of a problem document. It gets Retry-After all the same. */
  problem?: (document: Problem, request: Request) => HttpResponse | Promise<HttpResponse>;
  /** Where your clients read about errors: a URL to which these link. */
  documentation?: string;
  /** Called with each step of an operation: for logs, metrics and spans. */
  onEvent?: (event: Event & { request: Request }) => void;
  /** Where errors are logged that are answered with 503. console; request.log of Fastify. */
  log?: { error(error: unknown): void };
}

/** All but the body are required, although Node's own type leaves two of them open. */
export interface HttpRequest {
  method?: string;
  /** The path and the query. */
  url?: string;
  /** By their names in lower case, in an object: no Headers. */
  headers: Record<string, string | string[] | undefined>;
  /** As it was parsed. */
  body?: unknown;
}

export interface HttpResponse {
  /** 200 by default. From 400 on, the transaction is rolled back, and nothing is stored. */
  status?: number;
  headers?: Headers;
  /** Text and bytes are stored as they are, anything else as JSON. null is nothing. */
  body?: unknown;
}

/** A problem document (RFC 9457). */
export interface Problem {
  type: string;
  title: string;
  status: number;
  sqlstate: string;
  detail?: string;
}
