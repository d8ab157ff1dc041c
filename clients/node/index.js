'use strict';
// Runs an operation once per idempotency key: claim, effect and answer are one transaction, which
// is retried as a whole, with the same key.
const { setTimeout: sleep } = require('node:timers/promises');

// Of the server's errors, those that a retry can cure: lost connections (08), a standby (25006),
// lost races (40), a lack of resources (53), a lock timeout, a restart (57P), I/O (58).
const TRANSIENT = /^(08|25006|40|53|55P03|57P|58)/;

// A waiting claim occupies a connection. The server's default of 10 seconds is too long for a pool
// of ten connections, which as many impatient retries would block.
const WAIT = '2 seconds';

const RETRY = {
  attempts: 10,
  deadline: 30_000, // milliseconds: no attempt starts later than this after the first
  first: 50, // milliseconds of backoff, doubled with each attempt
  longest: 5_000,
  refusals: true, // also if idem refuses for now: ID001, ID009
  onRetry: (error, attempt, delay) => {}, // to log it
};

const CLAIM = `
  SELECT claimed, outcome, token, response::text, status, headers, body, error,
         ceil(1000 * extract(epoch FROM retry_after))::text AS "retryAfter", differs
    FROM idem.try_claim($1::text, $2::text, $3::jsonb, tenant => $4::text, ttl => $5::interval,
                        wait => $6::interval)`;
const COMPLETE = `SELECT idem.complete($1, $2::jsonb, $3, $4::jsonb, $5::bytea)::text AS response`;
const FAIL = `SELECT idem.fail($1, $2::jsonb, $3, $4::jsonb, $5::bytea)`;

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

const REFUSALS = {
  in_progress: (key) => ['ID001', 'in_progress', `operation "${key}" is in progress`],
  conflict: (key) => ['ID002', 'key_conflict', `key "${key}" was used for a different request`],
  limited: () => ['ID009', 'limit_exceeded', 'too many new operations'],
  stale_key: (key) => ['ID010', 'stale_key', `idempotency key "${key}" is stale`],
};

// Errors ------------------------------------------------------------------------------------------

const lost = new WeakSet(); // errors that are due to a lost connection

function sqlstate(error) {
  const known = error?.severity || error instanceof Failure || error instanceof Refused;
  return known ? error.code : undefined; // the code of other errors is one of Node
}

// The milliseconds after which ID001 and ID009 tell the caller to come back.
function retryAfter(error) {
  if (!['ID001', 'ID009'].includes(sqlstate(error))) return undefined;
  if (/^\d+$/.test(error.dataType)) return Number(error.dataType);
  const hint = /after ([\d.]+) seconds/.exec(error.hint); // idem before 0.3.0 has no field
  return hint ? 1000 * Number(hint[1]) : undefined;
}

// Whether the same transaction may succeed later.
function isTransient(error) {
  const code = sqlstate(error);
  if (code === 'ID001' || code === 'ID009') return retryAfter(error) !== undefined;
  return code ? TRANSIENT.test(code) : lost.has(error);
}

// The milliseconds to wait before the next attempt: what the error says, and backoff with jitter.
function pause(error, attempt, { first, longest }) {
  return (retryAfter(error) ?? 0) + Math.random() * Math.min(longest, first * 2 ** attempt);
}

// Transactions ------------------------------------------------------------------------------------

// Runs work(client) in a transaction, and again in a new one after an error that this can cure. So
// work may run more than once, and must have no effect outside the database.
async function transaction(pool, work, { begin = 'BEGIN', retry } = {}) {
  const policy = { ...RETRY, ...retry };
  const latest = performance.now() + policy.deadline;
  for (let attempt = 1; ; attempt++) {
    try {
      return await attemptOnce(pool, begin, work);
    } catch (error) {
      const refused = sqlstate(error)?.startsWith('ID') && !policy.refusals;
      if (attempt >= policy.attempts || refused || !isTransient(error)) throw error;
      const delay = pause(error, attempt, policy);
      if (performance.now() + delay > latest) throw error;
      policy.onRetry(error, attempt, delay);
      await sleep(delay);
    }
  }
}

async function attemptOnce(pool, begin, work) {
  const client = await pool.connect().catch(rethrowAsLost);
  let broken;
  const notice = (error) => { broken = error; }; // without a listener, the process would end
  client.on('error', notice);
  try {
    await client.query(begin);
    const result = await work(client);
    const { command } = await client.query('COMMIT');
    if (command !== 'COMMIT') throw new Error('an error was ignored, and all is rolled back');
    return result;
  } catch (error) {
    await client.query('ROLLBACK').catch((failed) => { broken ??= failed; });
    return broken ? rethrowAsLost(error) : Promise.reject(error);
  } finally {
    client.off('error', notice);
    client.release(broken); // closes a broken one
  }
}

function rethrowAsLost(error) {
  if (error instanceof Error) lost.add(error);
  throw error;
}

// Operations --------------------------------------------------------------------------------------

// Runs work(client) once for the key. Returns its answer, or the stored one with replayed: true. An
// answer has the members response, status, headers and body, all optional.
async function run(pool, { scope, key, request, tenant, ttl, wait = WAIT, begin, retry }, work) {
  if (typeof key !== 'string') throw new TypeError(`the key must be a string, not ${typeof key}`);
  const bound = json(request); // undefined for what is not JSON
  if (bound === undefined) throw new TypeError('the request must be JSON, or null to bind none');
  const outcome = await transaction(pool, async (client) => {
    const { rows: [claim] } =
      await client.query(CLAIM, [scope, key, bound, tenant, ttl, wait]);
    return claim.claimed ? operate(client, claim.token, work) : stored(claim, key);
  }, { begin, retry });
  if (outcome instanceof Failure) throw outcome;
  return outcome;
}

async function operate(client, token, work) {
  await client.query('SAVEPOINT idem');
  let answer;
  try {
    answer = await work(client) ?? {};
  } catch (failure) {
    if (!(failure instanceof Failure)) throw failure;
    const { code, message, detail, hint, status, body } = failure;
    const headers = storable(failure.headers);
    const error = { sqlstate: code === 'ID003' ? undefined : code, message, detail, hint };
    await client.query('ROLLBACK TO SAVEPOINT idem');
    await client.query(FAIL, [token, json(error), status, json(headers ?? null), body]);
    return failure;
  }
  const { response, status, body } = answer;
  const headers = storable(answer.headers);
  const { rows: [completed] } =
    await client.query(COMPLETE, [token, json(response ?? null), status, json(headers ?? null), body]);
  // As a retry will get it: JSON has no Date, for example.
  return { response: JSON.parse(completed.response), status, headers, body, replayed: false };
}

function stored({ outcome, response, status, headers, body, error, retryAfter, differs }, key) {
  checkHeaders(headers);
  const rest = {
    status: status ?? undefined, headers: headers ?? undefined, body: body ?? undefined,
  };
  if (outcome === 'completed') return { response: JSON.parse(response), ...rest, replayed: true };
  if (outcome === 'failed') {
    const message = error?.message ?? `operation "${key}" has failed permanently`;
    return new Failure(message, { ...error, ...rest, replayed: true });
  }
  if (outcome === 'conflict') throw new Conflict(...REFUSALS.conflict(key), differs);
  throw new Refused(...REFUSALS[outcome](key), retryAfter);
}

// idem.complete() checks headers, but a superuser or a publisher can write a record without it, and a
// line break would make one header two.
function checkHeaders(headers) {
  const isText = (value) => typeof value === 'string' && /^[^\x00-\x1f\x7f]*$/.test(value);
  const fits = ([name, value]) => /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/.test(name)
    && (Array.isArray(value) ? value.every(isText) : isText(value));
  const isList = headers !== null && (typeof headers !== 'object' || Array.isArray(headers));
  if (isList || !Object.entries(headers ?? {}).every(fits)) {
    throw new Error('the record has headers that cannot be sent');
  }
}

// Headers as idem stores them: a string, or an array of strings.
function storable(headers) {
  const text = (value) => (Array.isArray(value) ? value.map(String) : value?.toString());
  return headers && Object.fromEntries(
    Object.entries(headers).map(([name, value]) => [name, text(value)]));
}

const json = (value) => (value === null ? null : JSON.stringify(value));

// A function of (key, request) that runs handler(client, request) once for each key, and returns
// what it returned.
function idempotent(pool, options, handler) {
  return async (key, request, more) => {
    const { response } = await run(pool, { ...options, ...more, key, request },
      async (client) => ({ response: await handler(client, request) }));
    return response;
  };
}

module.exports = {
  idempotent, run, transaction, Conflict, Failure, Refused, isTransient, retryAfter, sqlstate,
};
