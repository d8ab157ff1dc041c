import type { Event, Headers, Options } from './index';

export interface HttpOptions<Request> extends Omit<Options, 'tenant' | 'onEvent'> {
  /**
   * The authenticated client, never a value that any client can set. It must be text. null: all
   * clients share their keys.
   */
  tenant: ((request: Request) => string | Promise<string>) | null;
  /**
   * Where the key is: the path of a member of the body, such as 'meta.idempotency_key', or a
   * function. By default, it is in the header Idempotency-Key.
   */
  keyFrom?: string | ((request: Request) => string | undefined);
  /** Whether a request without a key is refused. true. Otherwise, it is run without protection. */
  keyRequired?: boolean;
  /** Whether to send until when the answer is kept, as Idempotency-Expires. false. */
  sendRetention?: boolean;
  /** More headers that must not be stored. */
  neverStored?: string[];
  /** The only headers that are stored, beside Content-Type. */
  includeHeaders?: string[];
  /** Called with each replay, conflict and refusal: for logs and metrics. */
  onEvent?: (event: Event & { request: Request }) => void;
}

export interface HttpResponse {
  /** 200 by default. From 400 on, the transaction is rolled back, and nothing is stored. */
  status?: number;
  headers?: Headers;
  /** Text and bytes are stored as they are, anything else as JSON. */
  body?: unknown;
}
