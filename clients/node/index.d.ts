import type { PoolClient } from 'pg';
import type { HttpOptions, HttpRequest, HttpResponse } from './http';

export type { HttpOptions, HttpRequest, HttpResponse } from './http';

/** A pool of node-postgres, but not of pg.native, or anything that connects as one. */
export interface Pool {
  connect(): Promise<PoolClient>;
}

export type Headers = Record<string, string | string[]>;

export interface Retry {
  /** The number of attempts, the first included. 10 by default; 3 over HTTP. */
  attempts?: number;
  /** Milliseconds. No attempt starts later than this after the first. 30000; 5000 over HTTP. */
  deadline?: number;
  /** Milliseconds of backoff after the first attempt, doubled with each. 100. */
  first?: number;
  /** Milliseconds. The longest backoff. 5000. */
  longest?: number;
  /** Whether to retry too if idem refuses for now (ID001, ID009, ID014). true; false over HTTP. */
  refusals?: boolean;
  /** Called before each pause, with its milliseconds: to log it. */
  onRetry?: (error: unknown, attempt: number, delay: number) => void;
}

export interface Options {
  scope: string;
  /** If it is given, it must be text: undefined and null are errors. */
  tenant?: string;
  /** Milliseconds that the answer is kept. By default, the scope's ttl. */
  ttl?: number;
  /** Milliseconds to wait for another caller that holds the key. 2000; 1000 over HTTP. */
  wait?: number;
  /** How the transaction begins: 'BEGIN ISOLATION LEVEL SERIALIZABLE', for example. */
  begin?: string;
  retry?: Retry;
  /** The record table, for a scope that has its records elsewhere: see idem.use_records(). */
  records?: string;
  /** Called with each step of an operation: for logs, metrics and spans. */
  onEvent?: (event: Event) => void;
}

export interface Event {
  /** 'claimed' or 'retried', and at the end one of the others. */
  type: 'claimed' | 'retried' | 'completed' | 'failed' | 'replayed' | 'conflict' | 'refused'
    | 'not_stored' | 'error';
  scope: string;
  key?: string;
  tenant?: string;
  /** What is thrown, or the reason of a retry. */
  error?: unknown;
  /** Since the call began. */
  seconds: number;
}

export interface Operation extends Options {
  key: string;
  /**
   * JSON; null binds no request. The same key with another request is refused (ID002). It is bound
   * as it is at the call: if it has changed before an attempt, that is a TypeError.
   */
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
  /** Of HTTP, from 400 to 499. By default, 409. */
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

/**
 * idem did not run the operation. Has the fields of the error that idem.claim() would raise. After
 * ID014 the operation is undecided: keep the key, and ask again later.
 */
export class Refused extends Error {
  constructor(code: string, constraint: string, message: string, retryAfter?: string | null);
  readonly code: string;
  readonly schema: 'idem';
  readonly constraint: string;
  /** When to retry, in milliseconds. */
  readonly dataType?: string;
}

/**
 * Throw it in an operation to roll it back and to answer all the same. Nothing is stored, and a
 * retry runs again: for errors inside of an answer that says success.
 */
export class NotStored extends Error {
  constructor(response: unknown);
  readonly response: unknown;
}

/** ID002: the key was used for a different request. */
export class Conflict extends Refused {
  constructor(
    code: string, constraint: string, message: string, differs?: (string | null)[] | null);
  /** The members that differ, if the scope stores requests. */
  readonly differs?: (string | null)[];
}

/** ID004: the lease has ended, and another attempt may have taken the operation over. */
export class LeaseLost extends Refused {
  constructor(cause?: unknown);
}

/**
 * Runs handler(client, request) once for each key, and returns what it returned. The client refuses
 * to end the transaction, and is of no use after the handler has returned.
 */
export function idempotent<Request extends {} | null, Response>(
  pool: Pool,
  /**
   * The name is bound to the key, and unique within the scope: by default, that of the handler,
   * which a minifier may change. A TypeError if another function has this default in the pool, or
   * if the handler comes from bind(): the source of all of these is the same.
   */
  options: Options & { name?: string },
  handler: (client: PoolClient, request: Request) => Promise<Response>,
): (key: string, request: Request, more?: Partial<Options>) => Promise<Response>;

/** As idempotent, with everything that idem stores. */
export function run<T>(
  pool: Pool,
  operation: Operation,
  work: (client: PoolClient) => Promise<Answer<T> | void>,
): Promise<Outcome<T>>;

/** The pause after a failed attempt: that after the first, doubled with each, and the longest. */
export interface Backoff {
  /** Milliseconds. 1000. */
  base?: number;
  /** Milliseconds. 300000. */
  cap?: number;
}

export interface LeasedOperation extends Omit<Operation, 'begin'> {
  /** Milliseconds. 60000. Renewed while the work runs. */
  lease?: number;
  backoff?: Backoff;
}

/** An attempt of an operation under a lease. */
export interface Lease<Request = unknown> {
  readonly scope: string;
  readonly key: string;
  readonly tenant?: string;
  /** Of a worker: null, unless the scope stores requests. */
  readonly request: Request;
  readonly attempt: number;
  /**
   * Aborted when the lease is lost or the attempt has failed (the reason is LeaseLost), or when the
   * worker must stop.
   */
  readonly signal: AbortSignal;
  /**
   * The result of work(), which runs unless an earlier attempt has stored its result. JSON. A name
   * is used once. Wait for the step: no operation completes while one runs, and none begins within
   * complete().
   */
  step<T>(name: string, work: () => Promise<T>): Promise<T>;
  /** The key to send to another service in this step: the same in every attempt. */
  childKey(step: string): Promise<string>;
  /** Completes the operation with the answer of effect(client), in one transaction with it. */
  complete<T>(effect: (client: PoolClient) => Promise<Answer<T> | void>): Promise<Outcome<T>>;
}

/** Claims the key with a lease, and runs work(lease) unless the operation has finished. */
export function lease<T, Request extends {} | null>(
  pool: Pool,
  operation: LeasedOperation & { request: Request },
  work: (lease: Lease<Request>) => Promise<Answer<T> | void>,
): Promise<Outcome<T>>;

export interface WorkerOptions {
  scope: string;
  /** Milliseconds. 60000. Renewed while the work runs. */
  lease?: number;
  /** Only operations of this tenant. */
  tenant?: string;
  /** The record table to take from, for a scope that has its records elsewhere. */
  records?: string;
  /** How many operations run at a time. 1. */
  concurrency?: number;
  /** Milliseconds that a call waits for an operation to be due; stop() takes as long. 2000. */
  wait?: number;
  /** Milliseconds after stop() until the signals of running operations are aborted. 30000. */
  grace?: number;
  /** The signals that stop the worker. SIGTERM and SIGINT. */
  signals?: NodeJS.Signals[];
  backoff?: Backoff;
  retry?: Retry;
  onEvent?: (event: Event) => void;
  /** Called with the error of an attempt, or of the server. By default, console.error. */
  onError?: (error: unknown, lease?: Lease) => void;
}

export interface Worker {
  /** Takes no further operation. Fulfilled when the running ones have ended. */
  stop(): Promise<void>;
  /** Fulfilled when the worker has stopped; rejected if it cannot work. */
  readonly finished: Promise<void>;
}

/** Runs work(lease) for each operation of the scope that is due, until stop() or a signal. */
export function worker<Request = any>(
  pool: Pool,
  options: WorkerOptions,
  work: (lease: Lease<Request>) => Promise<Answer | void>,
): Worker;

/** Runs work(client) in a transaction, and again after an error that this can cure. */
export function transaction<T>(
  pool: Pool,
  work: (client: PoolClient) => Promise<T>,
  options?: { begin?: string; retry?: Retry },
): Promise<T>;

/**
 * The response to a request, for frameworks such as Koa, Hono and Nest: send it as it is. work()
 * returns the response to store. Throws what the framework's error handler must get.
 */
export function respond<Request extends HttpRequest>(
  pool: Pool,
  options: HttpOptions<Request>,
  request: Request,
  work: (client: PoolClient) => Promise<HttpResponse>,
): Promise<{ status: number; headers: Headers; body?: Buffer }>;

/**
 * The key in an Idempotency-Key header: a string in double quotes, or a token. undefined if there
 * is none; throws a Refused if it is malformed.
 */
export function parseKey(header?: string): string | undefined;

/** Whether the same transaction may succeed later. */
export function isTransient(error: unknown): boolean;

/** The milliseconds after which ID001, ID009 and ID014 tell the caller to come back. */
export function retryAfter(error: unknown): number | undefined;

/** The SQLSTATE of an error of the server or of this package. */
export function sqlstate(error: unknown): string | undefined;
