'use strict';
// The client that a function gets: all of it, except what would end the transaction it works in.
const { setImmediate: next, setTimeout: sleep } = require('node:timers/promises');

const NOT_YOURS = 'the operation and its answer are committed together: its function must not end, '
  + 'begin or prepare a transaction';
const NOT_ITS_CLIENT = 'the client belongs to the operation: its function must not release it';
const IGNORED = 'the transaction has ignored an error, and is rolled back';
const OVER = 'the operation has ended, and its client with it: what follows is not run';
const ONE = 'a query of the operation must be one statement';
const OPEN = 'a cursor, a stream or a COPY of the operation is still open';
const RUNNING = 'the function of the operation must wait for its queries: what follows one that is '
  + 'still running would not be part of the operation';
const NATIVE = 'the client has no connection, as that of pg.native: what its function does to the '
  + 'transaction could not be seen';
const GRACE = 1_000; // milliseconds in which such a thing may end that the function has not waited for
const TURNS = 10; // of the event loop

// Clients on which nothing can follow, not even ROLLBACK, because something is still open.
const blocked = new WeakSet();

// Between the words may be comments.
const ENDS = new RegExp('^(?:begin|start|commit|end|abort'
  + '|prepare(?:\\s|/\\*[^]*\\*/|--[^\\n\\r]*[\\n\\r])+transaction'
  + '|rollback(?!(?:\\s+(?:work|transaction))?\\s+to\\b))\\b', 'i');

// Whether the statement, after comments, ends or begins a transaction: a message has one.
function isEnd(statement) {
  const rest = statement.replace(/^(?:[\s;]|--[^\n\r]*)+/, '');
  return rest.startsWith('/*') ? isEnd(rest.slice(lengthOfComment(rest))) : ENDS.test(rest);
}

// Whether there is anything after the first statement. Quoted text is no statement.
const isMore = (text) => /;\s*[^\s;]/.test(text.replace(/'(?:[^']|'')*'|"(?:[^"]|"")*"/g, '-'));

function lengthOfComment(text) { // comments are nested
  let depth = 0;
  for (const { 0: mark, index } of text.matchAll(/\/\*|\*\//g)) {
    depth += mark === '/*' ? 1 : -1;
    if (depth === 0) return index + mark.length;
  }
  return text.length;
}

// Calls work() with the client, which can neither end the transaction nor be used after the call.
// Throws unless the transaction is whole afterwards: its effect and its record are committed
// together.
async function guarded(client, work) {
  let status = 'T'; // of the transaction, as the server reported it last
  let mistake; // also if the function has swallowed it
  let over = false;
  const { connection } = client;
  if (!connection) throw new Error(NATIVE);
  const notice = (message) => { status = message.status; };
  const open = new Map(); // cursors and the like, with their ends
  const running = new Map(); // other queries, likewise
  let isLate = false; // the function has gone on after its end
  const refuse = (message) => { mistake ??= new Error(message); return mistake; };
  let stop; // the work, which may not learn of its mistake: in a callback, nobody waits
  const stopped = new Promise((_, reject) => { stop = reject; });
  stopped.catch(() => {});
  const whole = () => {
    if (status === 'I') refuse(NOT_YOURS);
    if (mistake) throw mistake;
  };

  function begun(statement, among) {
    among.set(statement, new Promise((resolve) => {
      for (const name of ['handleReadyForQuery', 'handleError']) {
        const handle = statement[name];
        statement[name] = function end(...of) {
          among.delete(statement);
          resolve();
          return handle?.apply(this, of);
        };
      }
    }));
  }

  // Until what is open has ended. What the function does next, as after a loop over a stream, comes
  // a few turns later, and is refused.
  async function ended() {
    if (open.size === 0) return;
    await Promise.race([Promise.all(open.values()), sleep(GRACE, undefined, { ref: false })]);
    for (let turn = 0; turn < TURNS; turn++) await next();
    if (open.size === 0) return;
    blocked.add(client);
    for (const of of open.keys()) of.on?.('error', () => {}); // of the connection, which is closed
  }

  // As the client's, with the extended protocol, which takes one statement per message: "ROLLBACK;
  // INSERT ..." would commit the INSERT before a client could notice.
  function query(config, ...more) {
    const isSubmittable = typeof config?.submit === 'function'; // of COPY, or a cursor
    const statement = isSubmittable ? config : new client.constructor.Query(config, ...more);
    const ends = status === 'I' || isEnd(statement.text ?? statement.cursor?.text ?? '');
    const isSimple = isSubmittable && !('requiresPreparation' in config);
    const refused = over ? new Error(OVER) : (ends && refuse(NOT_YOURS))
      || (isSimple && isMore(statement.text ?? '') && refuse(ONE));
    const { callback } = statement;
    if (over && !isLate) process.emitWarning(OVER); // the answer may be out, and no error awaited
    isLate ||= over;
    if (refused) return rejected(refused, callback);
    if (!isSimple) {
      statement.requiresPreparation = () => true;
      statement.name ??= ''; // tracers pass a copy, which is none of this, where a name is missing
    }
    begun(statement, isSimple ? open : running);
    if (isSubmittable) return client.query(config, ...more);
    statement.query_timeout = config.query_timeout;
    if (callback) return client.query(statement);
    return new Promise((resolve, reject) => {
      statement.callback = (error, result) => (error ? reject(error) : resolve(result));
      client.query(statement);
    }).catch((error) => {
      Error.captureStackTrace(error); // as the client does it: where the function waits
      throw error;
    });
  }
  const release = () => stop(refuse(NOT_ITS_CLIENT)); // thrown in a callback, it ends the process
  const end = (callback) => { release(); return rejected(mistake, callback); };
  const own = { query, release, end };
  const lent = new Proxy(client, {
    get(_, name) {
      if (Object.hasOwn(own, name)) return own[name];
      const value = client[name];
      const isMethod = typeof value === 'function' && name !== 'constructor';
      return isMethod ? value.bind(client) : value;
    },
  });

  connection.prependListener('readyForQuery', notice); // before a callback goes on
  try {
    let result;
    try {
      result = await Promise.race([work(lent), stopped]);
    } finally {
      over = true;
      await ended();
    }
    whole();
    if (blocked.has(client)) throw new Error(OPEN);
    if (running.size > 0 || isLate) throw new Error(RUNNING);
    if (status === 'E') throw new Error(IGNORED);
    return result;
  } catch (error) {
    whole();
    throw error;
  } finally {
    connection.off('readyForQuery', notice);
  }
}

// A refusal that is not waited for does not end the process: the operation fails anyway.
function rejected(error, callback) {
  if (callback) return process.nextTick(callback, error);
  const refused = Promise.reject(error);
  refused.catch(() => {});
  return refused;
}

module.exports = { IGNORED, OPEN, blocked, guarded };
