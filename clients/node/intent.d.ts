export interface IntentOptions {
  /** The number of attempts, the first included. 10. */
  attempts?: number;
  /** Milliseconds. No attempt starts later than this after the first. 60000. */
  deadline?: number;
  /** Milliseconds that one attempt waits for an answer. 15000. */
  timeout?: number;
  /** Milliseconds of backoff after the first attempt, doubled with each. 100. */
  first?: number;
  /** Milliseconds. The longest backoff. 5000. */
  longest?: number;
  /** Called with the key before the first request, unless it was given. */
  store?: (key: string) => unknown;
  /**
   * Milliseconds for which the service keeps its answers: a key that is older is not sent, and a
   * Refused (ID010) is thrown. It must be a UUIDv7, which says how old it is.
   */
  retention?: number;
  /** Called before each pause, with its milliseconds: to log it. */
  onRetry?: (reason: Response | unknown, attempt: number, delay: number) => void;
}

/** One operation that the caller wants, with one key for all requests that ask for it. */
export class Intent {
  /** By default, a new UUIDv7. */
  constructor(key?: string, options?: IntentOptions);
  readonly key: string;
  /** The header of each request, for HTTP clients other than fetch(). */
  readonly headers: { 'idempotency-key': string };
  /**
   * As the global fetch(), repeated until there is a whole answer that a retry would not change. A
   * redirect that would turn POST into GET is such an answer.
   */
  fetch(url: string | URL, init?: RequestInit): Promise<Response>;
}

export function intent(key?: string, options?: IntentOptions): Intent;
