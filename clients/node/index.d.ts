import type { PoolClient } from 'pg';

/** A pool of node-postgres, or anything that connects as one. */
export interface Pool {
  connect(): Promise<PoolClient>;
}

/** An interval as PostgreSQL reads it, such as '2 seconds'. */
export type Interval = string;
export type Headers = Record<string, string | number | string[]>;

export interface Retry {
  /** The number of attempts, the first included. 10 by default; 3 over HTTP. */
  attempts?: number;
  /** Milliseconds. No attempt starts later than this after the first. 30000; 5000 over HTTP. */
  deadline?: number;
  /** Milliseconds of backoff, doubled with each attempt. 50. */
  first?: number;
  /** Milliseconds. The longest backoff. 5000. */
  longest?: number;
  /** Whether to retry too if idem refuses for now (ID001, ID009). true; false over HTTP. */
  refusals?: boolean;
  /** Called before each pause, with its milliseconds: to log it. */
  onRetry?: (error: unknown, attempt: number, delay: number) => void;
}

export interface Options {
  scope: string;
  tenant?: string;
  /** How long the answer is kept. By default, the scope's ttl. */
  ttl?: Interval;
  /** How long to wait for another caller that holds the key. '2 seconds'; '1 second' over HTTP. */
  wait?: Interval;
  /** How the transaction begins: 'BEGIN ISOLATION LEVEL SERIALIZABLE', for example. */
  begin?: string;
  retry?: Retry;
}

export interface Operation extends Options {
  key: string;
  /** JSON; null binds no request. The same key with another request is refused (ID002). */
  request: {} | null;
}

export interface Answer<T = unknown> {
  /** JSON. */
  response?: T;
  status?: number;
  headers?: Headers;
  /** Kept byte for byte. */
  body?: Buffer;
}

export interface Outcome<T = unknown> extends Answer<T> {
  response: T;
  replayed: boolean;
}

export interface FailureOptions {
  /** By default, the failure is ID003. */
  sqlstate?: string;
  detail?: string;
  hint?: string;
  /** Of HTTP. By default, 409. */
  status?: number;
  headers?: Headers;
  body?: Buffer;
}

/** A final failure. Throw it in an operation: the effect is undone, and every retry gets it. */
export class Failure extends Error implements FailureOptions {
  constructor(message: string, options?: FailureOptions & { replayed?: boolean });
  readonly code: string;
  detail?: string;
  hint?: string;
  status?: number;
  headers?: Headers;
  body?: Buffer;
  replayed: boolean;
}

/** idem did not run the operation. Has the fields of the error that idem.claim() would raise. */
export class Refused extends Error {
  constructor(code: string, constraint: string, message: string, retryAfter?: string | null);
  readonly code: string;
  readonly schema: 'idem';
  readonly constraint: string;
  /** When to retry, in milliseconds. */
  readonly dataType?: string;
}

/** ID002: the key was used for a different request. */
export class Conflict extends Refused {
  constructor(code: string, constraint: string, message: string, differs?: (string | null)[] | null);
  /** The members that differ, if the scope stores requests. */
  readonly differs?: (string | null)[];
}

/** Runs handler(client, request) once for each key, and returns what it returned. */
export function idempotent<Request extends {} | null, Response>(
  pool: Pool,
  options: Options,
  handler: (client: PoolClient, request: Request) => Promise<Response>,
): (key: string, request: Request, more?: Partial<Options>) => Promise<Response>;

/** As idempotent, with everything that idem stores. */
export function run<T>(
  pool: Pool,
  operation: Operation,
  work: (client: PoolClient) => Promise<Answer<T> | void>,
): Promise<Outcome<T>>;

/** Runs work(client) in a transaction, and again after an error that this can cure. */
export function transaction<T>(
  pool: Pool,
  work: (client: PoolClient) => Promise<T>,
  options?: { begin?: string; retry?: Retry },
): Promise<T>;

/** Whether the same transaction may succeed later. */
export function isTransient(error: unknown): boolean;

/** The milliseconds after which ID001 and ID009 tell the caller to come back. */
export function retryAfter(error: unknown): number | undefined;

/** The SQLSTATE of an error of the server or of this package. */
export function sqlstate(error: unknown): string | undefined;
