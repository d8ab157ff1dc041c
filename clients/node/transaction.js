'use strict';
// Connections of the pool, and what is repeated on them.
const { setTimeout: sleep } = require('node:timers/promises');
const {
  hook, isTransient, rethrowAsLost, rethrowAsUnreachable, retryAfter, sqlstate,
} = require('./errors.js');
const { IGNORED, OPEN, blocked, guarded } = require('./guard.js');
const { send } = require('./statements.js');
const { filled, fromText, only, timer } = require('./values.js');

const RETRY = {
  attempts: 10,
  deadline: 30_000, // milliseconds: no attempt starts later than this after the first
  first: 100, // milliseconds of backoff, doubled with each attempt
  longest: 5_000,
  refusals: true, // also if idem refuses for now: ID001, ID009, ID014
  onRetry: (error, attempt, delay) => {}, // to log it
};

const NOT_IDLE = 'the client of the pool has an open transaction, which is now rolled back';

// The milliseconds to wait before the next attempt: what the error says, and backoff with jitter.
function pause(error, attempt, { first, longest }) {
  return (retryAfter(error) ?? 0) + Math.random() * Math.min(longest, first * 2 ** (attempt - 1));
}

// Calls attempt(client) on a connection of the pool, and again on another one after an error that
// this can cure. An attempt begins a transaction, and leaves none.
async function repeated(pool, retry, attempt, report = () => {}) {
  const policy = filled(RETRY, only(Object.keys(RETRY), retry));
  const latest = performance.now() + policy.deadline;
  for (let count = 1; ; count++) {
    try {
      return await connected(pool, attempt);
    } catch (error) {
      const refused = sqlstate(error)?.startsWith('ID') && !policy.refusals;
      if (count >= policy.attempts || refused || !isTransient(error)) throw error;
      const delay = pause(error, count, policy);
      if (performance.now() + delay > latest) throw error;
      hook(policy.onRetry, error, count, delay);
      report('retried', error);
      await sleep(timer(delay));
    }
  }
}

// attempt(client, conclude) may call conclude(statement) to end its transaction without waiting for
// it, or conclude() if none is open. The connection then goes back to the pool.
async function connected(pool, attempt) {
  let broken;
  let concluding;
  const notice = (error) => { broken = error; }; // without a listener, the process would end
  const conclude = (statement) => {
    const ended = statement ? send(client, statement) : Promise.resolve();
    concluding = ended.catch((error) => { broken ??= error; });
  };
  const client = await connection(pool, notice).catch(rethrowAsUnreachable);
  try {
    if (client.readyForQuery === false) await send(client, ''); // not waited for by another user
    if ((client.getTransactionStatus?.() ?? 'I') !== 'I') throw new Error(NOT_IDLE);
    return await attempt(client, conclude);
  } catch (error) {
    if (concluding) throw error;
    if (!broken && blocked.has(client)) {
      broken = new Error(OPEN);
      throw error;
    }
    if (isGivenUp(client, error)) broken ??= error;
    else await send(client, 'ROLLBACK').catch((failed) => { broken ??= failed; });
    return broken ? rethrowAsLost(error) : Promise.reject(error);
  } finally {
    const release = () => {
      client.off('error', notice);
      client.release(broken); // closes a broken one
    };
    if (concluding) concluding.then(release);
    else release();
  }
}

// With its listener from the beginning: the server may end a connection in the packet that says it
// is ready, before a promise is fulfilled. A pool of another kind may take no callback.
function connection(pool, notice) {
  return new Promise((resolve, reject) => {
    const taken = (error, client) => {
      client?.on('error', notice);
      return error ? reject(error) : resolve(client);
    };
    pool.connect(taken)?.then((client) => client && taken(undefined, client), reject);
  });
}

// Whether the driver has given up waiting for the server (query_timeout), and on this connection:
// the handler may have another one.
const isGivenUp = (client, error) => client.readyForQuery === false
  && error instanceof Error && !sqlstate(error) && error.message === 'Query read timeout';

// The results of a message that ends with COMMIT.
function committed(results) {
  const last = Array.isArray(results) ? results.at(-1) : results;
  if (last.command !== 'COMMIT') throw new Error(IGNORED);
  return results;
}

// Runs work(client) in a transaction, and again in a new one after an error that this can cure. So
// work may run more than once, and must have no effect outside the database.
function transaction(pool, work, options = {}) {
  const { begin = 'BEGIN', retry } = only(['begin', 'retry'], options);
  return repeated(pool, retry, async (client) => {
    await send(client, begin);
    const result = await guarded(client, work);
    committed(await send(client, 'COMMIT'));
    return result;
  });
}

// Runs the statements in a transaction, in one message. Returns the row of the last one.
function single(pool, retry, statements) {
  return repeated(pool, retry, async (client) => {
    const results = committed(await send(client, `BEGIN; ${statements}; COMMIT`));
    const [row] = results.at(-2).rows;
    return row && fromText(row);
  });
}

module.exports = { committed, repeated, single, transaction };
