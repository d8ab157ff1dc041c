'use strict';
// What can be thrown, and which of it a retry can cure.
const { isNothing, only, statusCode } = require('./values.js');

// HTTP status, name and title of SQLSTATEs and classes of them, and whether a retry can cure them,
// as tools/errors has written them.
const ERRORS = require('./sqlstates.json');
const errorOf = (code = '') => ERRORS[code] ?? ERRORS[code.slice(0, 2)] ?? { status: 500 };
// Errors of connecting that the server has not sent: of the system, the driver and the pool. A
// wrong password or certificate is none of them.
const UNREACHABLE = /^E(?!RR_)|timeout|terminated/;

const FAILURE = ['sqlstate', 'detail', 'hint', 'status', 'headers', 'body', 'replayed'];

// A final failure. Thrown by an operation: its effect is undone, and every retry gets the failure.
class Failure extends Error {
  constructor(message, options = {}) {
    super(message);
    const { sqlstate, status, ...rest } = only(FAILURE, options);
    // A client repeats a request that got 503, and takes one that got 200 for done.
    if (!isNothing(status) && !/^4/.test(statusCode(status))) {
      throw new RangeError(`the status of a Failure must be from 400 to 499, not ${status}`);
    }
    this.name = 'Failure';
    this.code = sqlstate ?? 'ID003';
    Object.assign(this, { status, replayed: false, ...rest });
  }
}

// What an operation has thrown. One that it got from an operation inside of it is no replay of its
// own, and expires with it.
const thrown = (failure) => Object.assign(failure, { replayed: false, expiresAt: undefined });

// idem did not run the operation. Has the fields of the error that idem.claim() would raise.
class Refused extends Error {
  constructor(code, constraint, message, retryAfter) {
    super(message);
    this.name = 'Refused';
    Object.assign(this, { code, schema: 'idem', constraint, dataType: retryAfter ?? undefined });
  }
}

// Thrown by an operation: all is rolled back and nothing stored, and the caller gets the response
// all the same. A retry runs again: for errors inside of an answer that says success.
class NotStored extends Error {
  constructor(response) {
    super('the answer is not stored');
    this.name = 'NotStored';
    this.response = response;
  }
}

// ID002. differs names the members that differ, if the scope stores requests.
class Conflict extends Refused {
  constructor(code, constraint, message, differs) {
    super(code, constraint, message);
    this.name = 'Conflict';
    this.differs = differs ?? undefined;
  }
}

// ID004: the lease has ended, and another attempt may have taken the operation over.
class LeaseLost extends Refused {
  constructor(cause) {
    super('ID004', 'lease_lost', 'lease of this attempt is lost');
    this.name = 'LeaseLost';
    this.cause = cause;
  }
}

const REFUSALS = {
  in_progress: (key) => ['ID001', 'in_progress', `operation "${key}" is in progress`],
  conflict: (key) => ['ID002', 'key_conflict', `key "${key}" was used for a different request`],
  limited: () => ['ID009', 'limit_exceeded', 'too many new operations'],
  stale_key: (key) => ['ID010', 'stale_key', `idempotency key "${key}" is stale`],
  // Undecided, not failed: the effect of an attempt may exist.
  exhausted: (key) => ['ID014', 'attempts_exhausted', `operation "${key}" has no attempts left: `
    + 'its outcome is undecided, so keep the key and ask again later'],
};

// The refusal of a claim that is neither granted nor answered.
function refusal({ outcome, retryAfter, differs }, key) {
  const fields = REFUSALS[outcome](key);
  return outcome === 'conflict'
    ? new Conflict(...fields, differs) : new Refused(...fields, retryAfter);
}

// An error of a claim that concerns the key or the request, as a refusal. An argument of the
// service that is out of range (22023) is none.
function asRefused(error) {
  if (!/^(ID|22(?!023))/.test(sqlstate(error) ?? '')) throw error;
  const { code, constraint, message, dataType } = error;
  throw Object.assign(new Refused(code, constraint, message, dataType), { cause: error });
}

// Events -----------------------------------------------------------------------------------------

// Calls a function of the application, if there is one, that is told something. Its own errors,
// also of a promise, decide no operation.
function hook(tell, ...what) {
  if (!tell) return;
  const warn = (mistake) => process.emitWarning(mistake instanceof Error ? mistake : `${mistake}`);
  try {
    Promise.resolve(tell(...what)).catch(warn);
  } catch (mistake) {
    warn(mistake);
  }
}

// A function that tells the hook what becomes of a call, and after how many seconds.
function reporter(onEvent, about) {
  const began = performance.now();
  return (type, error) => {
    const { scope, key, tenant } = about;
    const seconds = (performance.now() - began) / 1000;
    hook(onEvent, { type, scope, key, tenant, error, seconds });
  };
}

// Reports how the call ends. Throws a Failure that it returns.
async function reported(report, call) {
  try {
    const outcome = await call();
    if (outcome instanceof Failure) throw outcome;
    report(outcome.replayed ? 'replayed' : 'completed');
    return outcome;
  } catch (error) {
    report(endOf(error), error);
    throw error;
  }
}

function endOf(error) {
  if (error?.replayed) return 'replayed';
  const ends = { failed: Failure, not_stored: NotStored, conflict: Conflict, refused: Refused };
  return Object.keys(ends).find((type) => error instanceof ends[type]) ?? 'error';
}

// Retries ----------------------------------------------------------------------------------------

const lost = new WeakSet(); // errors that are due to a lost connection

function rethrowAsLost(error) {
  if (error instanceof Error) lost.add(error);
  throw error;
}

function rethrowAsUnreachable(error) {
  if (UNREACHABLE.test(error.code ?? error.message)) rethrowAsLost(error);
  throw error;
}

function sqlstate(error) {
  const known = error?.severity || error instanceof Failure || error instanceof Refused;
  return known && typeof error.code === 'string' ? error.code : undefined; // or one of Node
}

// Refusals that say when to come back.
const NOT_NOW = Object.keys(ERRORS).filter((code) => code.startsWith('ID') && ERRORS[code].retry);

// The milliseconds after which these refusals tell the caller to come back.
function retryAfter(error) {
  if (!NOT_NOW.includes(sqlstate(error))) return undefined;
  return /^\d+$/.test(error.dataType) ? Number(error.dataType) : undefined;
}

// Whether the same transaction may succeed later.
function isTransient(error) {
  const code = sqlstate(error);
  if (NOT_NOW.includes(code)) return retryAfter(error) !== undefined;
  // PgBouncer ends a connection with a code that else is for malformed messages.
  if (code === '08P01') return error.severity === 'FATAL';
  return code ? errorOf(code).retry === true : lost.has(error);
}

module.exports = {
  Conflict, Failure, LeaseLost, NotStored, Refused, asRefused, errorOf, hook, isTransient, refusal,
  reported, reporter, rethrowAsLost, rethrowAsUnreachable, retryAfter, sqlstate, thrown,
};
