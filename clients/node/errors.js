'use strict';
// What can be thrown, and which of it a retry can cure.

// The server's errors that a retry can cure: lost connections (08), a standby (25006),
// lost races (40), a lack of resources (53), a lock timeout, a restart (57P), I/O (58).
const TRANSIENT = /^(08|25006|40|53|55P03|57P|58)/;

// A final failure. Thrown by an operation: its effect is undone, and every retry gets the failure.
class Failure extends Error {
  constructor(message, { sqlstate, detail, hint, status, headers, body, replayed = false } = {}) {
    super(message);
    this.name = 'Failure';
    this.code = sqlstate ?? 'ID003';
    Object.assign(this, { detail, hint, status, headers, body, replayed });
  }
}

// idem did not run the operation. Has the fields of the error that idem.claim() would raise.
class Refused extends Error {
  constructor(code, constraint, message, retryAfter) {
    super(message);
    this.name = 'Refused';
    Object.assign(this, { code, schema: 'idem', constraint, dataType: retryAfter ?? undefined });
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

const lost = new WeakSet(); // errors that are due to a lost connection

function rethrowAsLost(error) {
  if (error instanceof Error) lost.add(error);
  throw error;
}

function sqlstate(error) {
  const known = error?.severity || error instanceof Failure || error instanceof Refused;
  return known ? error.code : undefined; // the code of other errors is one of Node
}

// Refusals that say when to come back.
const NOT_NOW = ['ID001', 'ID009', 'ID014'];

// The milliseconds after which these refusals tell the caller to come back.
function retryAfter(error) {
  if (!NOT_NOW.includes(sqlstate(error))) return undefined;
  return /^\d+$/.test(error.dataType) ? Number(error.dataType) : undefined;
}

// Whether the same transaction may succeed later.
function isTransient(error) {
  const code = sqlstate(error);
  if (NOT_NOW.includes(code)) return retryAfter(error) !== undefined;
  return code ? TRANSIENT.test(code) : lost.has(error);
}

module.exports = {
  Conflict, Failure, LeaseLost, Refused, isTransient, refusal, rethrowAsLost, retryAfter, sqlstate,
};
