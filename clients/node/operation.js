'use strict';
// Runs an operation once per idempotency key: claim, effect and answer are one transaction, which
// is retried as a whole, with the same key. BEGIN goes with the claim, and COMMIT with the answer.
const { randomUUID } = require('node:crypto');
const {
  Failure, NotStored, asRefused, refusal, reported, reporter, thrown,
} = require('./errors.js');
const { IGNORED, OPEN, blocked, guarded } = require('./guard.js');
const {
  choose, claim, complete, expiry, fail, milliseconds, send,
} = require('./statements.js');
const { committed, repeated } = require('./transaction.js');
const {
  JsonText, bodyBytes, composite, filled, fromText, headerFields, interval, isNothing, json, known,
  only, tenantText, text,
} = require('./values.js');

// A waiting claim occupies a connection. The server's default of 10 seconds is too long for a pool
// of ten connections, which as many impatient retries would block.
const WAIT = 2_000; // milliseconds

const OPTIONS = ['scope', 'key', 'request', 'tenant', 'ttl', 'wait', 'retry', 'records', 'onEvent'];

// Runs work(client) once for the key. Returns its answer, or the stored one with replayed: true. An
// answer has the members response, status, headers and body, all optional.
async function run(pool, operation, work) {
  only([...OPTIONS, 'begin', 'parse', 'read', 'sendRetention', 'committed'], operation);
  const { begin = 'BEGIN', records, retry, onEvent, committed = () => {} } = operation;
  const bound = withDefaults(operation);
  const report = reporter(onEvent, bound);
  // A name that the work cannot use for a savepoint of its own.
  bound.savepoint = `"pg_idem_${randomUUID()}"`;
  const first = `${begin}; ${choose(records)}${claim(bound)}; SAVEPOINT ${bound.savepoint}`;
  let began; // the last attempt: if its COMMIT was not answered, the next claim finds its record
  const call = () => repeated(pool, retry, async (client, conclude) => {
    const granted = await grant(client, first);
    const isOwn = granted.claimed || granted.createdAt === began;
    let outcome;
    if (granted.claimed) {
      began = granted.createdAt;
      report('claimed');
      outcome = await operate(client, granted.token, bound, work);
    } else {
      conclude('COMMIT'); // the caller need not wait for it: nothing was written
      outcome = stored(granted, bound);
    }
    if (isOwn && !(outcome instanceof Failure)) committed();
    return outcome;
  }, report);
  return reported(report, call).catch((error) => {
    if (error instanceof NotStored) return { response: error.response, replayed: false };
    throw error;
  });
}

// The operation as the statements need it, once it is known to be one.
function withDefaults(operation) {
  const { scope, key, request, read = () => request, ...rest } = operation;
  const { ttl, wait = WAIT } = rest;
  if ('tenant' in rest) tenantText(rest.tenant); // one that was forgotten is not left out
  return {
    ...rest, read, scope: text('scope', scope), key: text('key', key),
    wait: interval('wait', wait),
    request: requestText(request),
    ttl: ttl === undefined ? undefined : interval('ttl', ttl),
  };
}

const requestText = (request) => (request === null ? null : json('request', request));

// Nothing is copied, so the work reads what the caller, or an attempt before, has made of the
// request. With that, it would do something else than what is bound to the key.
function unchanged(bound, read) {
  if (read !== bound) throw new TypeError('the request has changed since it was bound to the key');
}

// The columns of idem.claim_result.
const COLUMNS = [
  'claimed', 'outcome', 'token', 'attempt', 'response', 'status', 'headers', 'body', 'error',
  'retryAfter', 'recoveryPoint', 'steps', 'createdAt', 'expiresAt', 'redacted', 'differs',
];

// Sends the message, and returns the row of the claim in it.
async function grant(client, message) {
  const results = await send(client, message).catch(asRefused);
  const { claim: row, encoding } = results.flatMap(({ rows }) => rows).find((of) => 'claim' in of);
  if (encoding !== 'UTF8') {
    throw new Error(`client_encoding is ${encoding}, but answers are read as UTF8`);
  }
  const fields = composite(row);
  const granted = fromText(Object.fromEntries(COLUMNS.map((name, n) => [name, fields[n]])));
  if (granted.retryAfter !== null) {
    const { rows: [after] } = await send(client, milliseconds(granted.retryAfter));
    granted.retryAfter = after.milliseconds;
  }
  return granted;
}

async function operate(client, token, bound, work) {
  let answer;
  unchanged(bound.request, requestText(await bound.read()));
  try {
    answer = answerOf(await guarded(client, work));
  } catch (failure) {
    if (!(failure instanceof Failure)) throw failure;
    if (blocked.has(client)) throw new Error(OPEN, { cause: failure });
    const statements = [`ROLLBACK TO SAVEPOINT ${bound.savepoint}`, fail(token, failure)];
    const kept = await finish(client, bound, statements);
    return Object.assign(thrown(failure), kept);
  }
  return completed(client, bound, token, answer);
}

const answerOf = (answer) => known(answer ?? {}, 'response', 'status', 'headers', 'body');

// Completes the operation with the answer of its work, and commits.
async function completed(client, bound, token, answer) {
  const { response, ...kept } = await finish(client, bound, [complete(token, answer)]);
  const { parse = JSON.parse } = bound;
  const { status, headers, body } = answer;
  // As a retry will get it: JSON has no Date, for example.
  return { response: parse(response), status, headers: headerFields(headers),
    body: bodyBytes(body), replayed: false, ...kept };
}

// Sends the statements with COMMIT, and returns the columns of their rows.
async function finish(client, bound, statements) {
  if (bound.sendRetention) statements.push(expiry(bound));
  const message = [...statements, 'COMMIT'].join('; ');
  const results = committed(await send(client, message).catch(explained));
  return fromText(Object.assign({}, ...results.flatMap(({ rows }) => rows)));
}

function explained(error) {
  // An error of a statement that the work has not waited for.
  if (error.code === '25P02') throw new Error(IGNORED, { cause: error });
  // The message is often all that is logged, and should name the limit of the scope.
  if (error.code === '54000') error.message += `: ${error.detail}`;
  throw error;
}

// The stored answer or Failure. Throws what a claim that is not answered is refused with.
function stored(claimed, { key, sendRetention, parse = JSON.parse }) {
  const { outcome, response, status, headers, body, error, expiresAt } = claimed;
  checkHeaders(headers);
  const rest = {
    status: status ?? undefined, headers: headers ?? undefined, body: body ?? undefined,
  };
  const kept = { replayed: true, ...(sendRetention && { expiresAt }) };
  if (outcome === 'completed') return { response: parse(response), ...rest, ...kept };
  if (outcome !== 'failed') throw refusal(claimed, key);
  const { message, sqlstate, detail, hint } = error ?? {};
  const shown = message ?? `operation "${key}" has failed permanently`;
  return Object.assign(new Failure(shown, { sqlstate, detail, hint }), rest, kept);
}

// idem.complete() checks headers, but a superuser or a publisher can write a record without it, and
// a line break would make one header two.
function checkHeaders(headers) {
  try {
    headerFields(headers);
  } catch (cause) {
    throw new Error('the record has headers that cannot be sent', { cause });
  }
}

// The source of every bound function, and of those of the engine.
const NATIVE = /\{\s*\[native code\]\s*\}$/;

// By pool: the source of each function, by the scope and the name that it was defined with first.
const functions = new WeakMap();

// One with the same source is the same function, made anew for a request.
function requireUnique(pool, scope, name, handler, isChosen) {
  if (!functions.has(pool)) functions.set(pool, new Map());
  const sources = functions.get(pool);
  const [place, source] = [JSON.stringify([scope, name]), `${handler}`];
  if (!sources.has(place)) sources.set(place, source);
  if (!isChosen && sources.get(place) !== source) {
    throw new TypeError(`"${name}" is the name of another function in scope "${scope}", whose `
      + 'answers this one would get: pass the option name');
  }
}

// A function of (key, request) that runs handler(client, request) once for each key, and returns
// what it returned. Its name is bound to the key, too, so that no other function gets its answer.
function idempotent(pool, { name, ...options }, handler) {
  only([...OPTIONS, 'begin'], options);
  const bound = text('name of the function', name ?? handler.name);
  if (isNothing(name) && NATIVE.test(handler)) {
    throw new TypeError(`"${bound}" is a bound function, and another one with this name would get `
      + 'its answers: pass the option name');
  }
  if (bound === '') throw new TypeError('the function has no name to bind: pass the option name');
  requireUnique(pool, options.scope, bound, handler, !isNothing(name));
  return async (key, request, more) => {
    const called = filled(options, only([...OPTIONS, 'begin'], more));
    if (more && 'tenant' in more) called.tenant = more.tenant; // also one that was forgotten
    const read = () => new JsonText(
      `{"function": ${JSON.stringify(bound)}, "request": ${requestText(request)}}`);
    const { response } = await run(pool, { ...called, key, request: read(), read },
      async (client) => ({ response: await handler(client, request) }));
    return response;
  };
}

module.exports = {
  OPTIONS, answerOf, completed, grant, idempotent, requestText, run, stored, unchanged,
  withDefaults,
};
