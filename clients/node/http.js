'use strict';
// The Idempotency-Key header as the IETF draft has it, at the route, behind authentication. What
// the handler answers is stored, COMMIT follows, and then the answer is sent.
const { AsyncLocalStorage } = require('node:async_hooks');
const { STATUS_CODES } = require('node:http');
const { isDeepStrictEqual } = require('node:util');
const { boundRequest } = require('./bound.js');
const {
  Failure, NotStored, Refused, isTransient, errorOf, reporter, retryAfter, sqlstate, thrown,
} = require('./errors.js');
const { OPTIONS, run } = require('./operation.js');
const { transaction } = require('./transaction.js');
const {
  JsonText, decided, filled, headerFields, isNothing, json, known, only, plain, statusCode,
  tenantText, text,
} = require('./values.js');

// Headers that concern one connection, one moment or one client's session.
const NEVER_STORED = new Set([
  'age', 'alt-svc', 'authentication-info', 'authorization', 'connection', 'content-length',
  'cookie', 'date', 'idempotency-expires', 'idempotent-replayed', 'keep-alive',
  'proxy-authenticate',
  'proxy-authentication-info', 'proxy-authorization', 'proxy-connection', 'server', 'set-cookie',
  'te', 'trailer', 'transfer-encoding', 'upgrade', 'via', 'www-authenticate',
]);

// Whether the database could not do it now, as opposed to an error of the application.
const isUnavailable = (error) => isTransient(error) || errorOf(sqlstate(error)).status === 503;

const HTTP_OPTIONS = [...OPTIONS.filter((name) => !['key', 'request'].includes(name)), 'begin',
  'keyFrom', 'keyRequired', 'finalStatuses', 'storeIf', 'neverStored', 'includeHeaders',
  'sendRetention', 'problem', 'documentation', 'log', 'serialize'];
const WAIT = 1_000; // milliseconds: a waiting request occupies a connection
const RETRY = { attempts: 3, deadline: 5_000, refusals: false }; // the client has the key

// A string of RFC 8941 with its parameters, which have no meaning yet.
const STRING = String.raw`"(?:[ !#-[\]-~]|\\["\\])*"`;
const VALUE = [STRING, String.raw`-?(?:[0-9]{1,12}\.[0-9]{1,3}|[0-9]{1,15})`, ':[A-Za-z0-9+/=]*:',
  "[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]*", String.raw`\?[01]`].join('|');
const QUOTED = new RegExp(`^(${STRING})(?:; *[a-z*][a-z0-9_.*-]*(?:=(?:${VALUE}))?)*$`);
const TOKEN = /^[!#-+\--:<-~]+$/; // no space and none of " , ;

// The key in the header, as idem.parse_key() reads it: a string as in RFC 8941, or a bare token,
// which many clients send. undefined if there is no header, or an empty one. Node joins several
// headers with commas, which neither form allows.
function parseKey(header = '') {
  const value = header.trim();
  if (value === '' && /^[ \t]*$/.test(header)) return undefined;
  const quoted = QUOTED.exec(value);
  if ((!quoted && !TOKEN.test(value)) || /[^\t -~]/.test(header)) { // trim() takes more than blanks
    throw invalid('Idempotency-Key must be a string in double quotes, or a token');
  }
  const key = quoted ? quoted[1].slice(1, -1).replace(/\\(.)/g, '$1') : value;
  if (key === '' || key.length > 255) {
    throw invalid('Idempotency-Key must have 1 to 255 characters');
  }
  return key;
}

// The key of the request, from where the service has it: the header, a member of the body by its
// path, or a function. undefined if there is none and none is required.
async function keyOf(request, keyFrom, keyRequired) {
  const isFunction = typeof keyFrom === 'function';
  let key;
  if (keyFrom === undefined) {
    const header = request.headers['idempotency-key'] ?? undefined;
    key = parseKey(header && String(header)); // an array, where a framework does not join several
    if (key === undefined && header !== undefined) { // a client that has forgotten its key
      throw invalid('header Idempotency-Key is empty');
    }
  } else {
    key = (isFunction ? await keyFrom(request) : member(request.body, keyFrom)) ?? undefined;
  }
  if (key === undefined && keyRequired) {
    const missing = isFunction ? 'key' : keyFrom && `member ${keyFrom}`;
    throw invalid(`${missing ?? 'header Idempotency-Key'} is missing`);
  }
  if (key !== undefined && (typeof key !== 'string' || !/^[^\0\ud800-\udfff]{1,255}$/u.test(key))) {
    throw invalid('the key must be a string of 1 to 255 characters');
  }
  return key;
}

const member = (body, path) => path.split('.').reduce((value, name) =>
  (value !== null && typeof value === 'object' && Object.hasOwn(value, name)
    ? value[name] : undefined), body);

const invalid = (message) => new Refused('ID007', 'invalid_key', message);

// The response { status, headers, body } to a request of Express, Fastify or another framework.
// work(client) returns a response of the same form, or throws a Failure or NotStored. Throws the
// errors that do not concern the client.
// committed() is called when the effect of the last work is.
async function respond(pool, options, request, work, committed = () => {}) {
  checkOptions(options);
  checkRequest(request);
  const { scope, tenant, keyFrom, keyRequired = true, onEvent, retry, log = console } = options;
  const { begin, records, ttl, wait = WAIT, sendRetention } = options;
  const about = { scope };
  if (typeof scope === 'function') about.scope = text('scope', await scope(request));
  if (tenant) about.tenant = tenantText(await tenant(request));
  const tell = onEvent && ((event) => onEvent({ ...event, request }));
  const exchange = new Exchange(options, request);
  const operation = (client) => exchange.attempt(work, client);
  let ran = false; // then run() reports
  try {
    about.key = await keyOf(request, keyFrom, keyRequired);
    if (about.key === undefined) { // once, because its COMMIT cannot be repeated
      await transaction(pool, operation, { begin, retry: { attempts: 1 } });
      committed();
      return exchange.first({});
    }
    const bound = await boundRequest(request);
    const bindable = bindableText(bound);
    ran = true;
    const answer = await run(pool, {
      ...about, begin, records, ttl, wait, sendRetention, onEvent: tell, committed,
      parse: asJsonText, retry: filled(RETRY, retry),
      request: bindable, read: () => boundRequest(request, bound),
    }, operation);
    return answer.replayed ? responseOf(answer) : exchange.first(answer);
  } catch (error) {
    if (error instanceof NotStored) return exchange.first({});
    if (error instanceof Failure) return exchange.failed(error);
    if (error instanceof Refused) {
      if (!ran) reporter(tell, about)('refused', error);
      const { status } = errorOf(error.code);
      if (status >= 500) throw error; // the service's fault
      return exchange.problem(error, status);
    }
    // Without a key, the client must not be asked to repeat the request.
    if (about.key === undefined || !isUnavailable(error)) throw error;
    log.error(error);
    return exchange.problem(error, 503);
  }
}

// Where errors are explained.
const linkTo = (page) => (page === undefined ? {}
  : headerFields({ link: `<${page}>; rel="describedby"` }));

// The tenant must be said: one that was forgotten would put all clients into one namespace.
function checkOptions(options) {
  const { scope, tenant, documentation } = only(HTTP_OPTIONS, options);
  linkTo(documentation);
  if (typeof scope !== 'function') text('scope', scope);
  if (tenant !== null && typeof tenant !== 'function') {
    throw new TypeError('tenant must be a function, or null for keys that all clients share');
  }
}

// A request of another form, such as that of fetch(), would have neither a key nor a body.
function checkRequest({ method, originalUrl, url, headers }) {
  text('method of the request', method);
  text('url of the request', originalUrl ?? url);
  plain('headers of the request', headers);
}

// The mistake of the client, not of the service: 1e400, which is Infinity here, or JSON so deep
// that serialising it overflows the stack.
function bindableText(bound) {
  try {
    return new JsonText(json('request', bound));
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    throw new Refused('22032', undefined,
      'the request cannot be stored: it has a number that is too large, or is nested too deeply');
  }
}

const asJsonText = (text) => text && new JsonText(text); // a replay is not serialised again

// One request, and what becomes of it.
class Exchange {
  #options; #request;
  #given; // by the last attempt
  #stored; // those of some headers that may be stored

  constructor(options, request) {
    [this.#options, this.#request] = [options, request];
    this.#stored = storedOf(options.neverStored, options.includeHeaders);
  }

  // The answer to store. Throws what must not stay, so that its effect does not stay either.
  async attempt(work, client) {
    const { finalStatuses = [], storeIf = () => true, serialize = (made) => made } = this.#options;
    this.#given = undefined;
    let response;
    try {
      response = await work(client);
      this.#given = answerOf(serialize(response));
    } catch (error) {
      if (error instanceof NotStored) this.#given = answerOf(serialize(error.response));
      // The client knows nothing of an operation inside of its own.
      if (error instanceof Refused) throw new Error('an inner operation', { cause: error });
      if (error instanceof Failure) {
        thrown(error).headers = this.#stored(lowerCase(error.headers));
      }
      throw error instanceof NotStored ? new NotStored() : error;
    }
    const { status, headers } = this.#given;
    if (status >= 400 && finalStatuses.includes(status)) {
      const { body = Buffer.alloc(0), ...sent } = typed(this.#given);
      throw Object.assign(new Failure(STATUS_CODES[status] ?? 'failed'),
        { status, headers: this.#stored(sent.headers), body });
    }
    if (status >= 400 || !decided('storeIf', await storeIf(response))) throw new NotStored();
    return { ...this.#given, headers: this.#stored(headers) };
  }

  // The response to a first answer: as it is stored, with the headers that are only sent.
  first({ response = this.#given.response, expiresAt }) {
    return responseOf({ ...this.#given, response, expiresAt });
  }

  async failed(failure) {
    const { status = 409, body, replayed, expiresAt } = failure;
    if (this.#given && !replayed) return this.first({ expiresAt }); // it has one of finalStatuses
    return body ? responseOf({ ...failure, status }) : this.problem(failure, status);
  }

  // A problem document (RFC 9457), or what the application makes of it. The client does not get
  // messages of internal errors.
  async problem(error, status) {
    // A lost connection has no SQLSTATE.
    const code = error instanceof Failure ? 'ID003' : sqlstate(error) ?? '08006';
    const { name, title } = errorOf(code);
    const document = {
      type: name ? `urn:idem:problem:${name}` : 'about:blank', title: title ?? STATUS_CODES[status],
      status, sqlstate: code, ...(status < 500 && { detail: error.message }),
    };
    const after = retryAfter(error) ?? (status === 503 ? 1_000 : undefined);
    const headers = {
      ...lowerCase(error.headers), 'content-type': 'application/problem+json',
      ...linkTo(this.#options.documentation),
      ...(after !== undefined && { 'retry-after': String(Math.max(1, Math.ceil(after / 1000))) }),
    };
    const made = answerOf(await this.#options.problem?.(document, this.#request)
      ?? { status, body: document });
    const { replayed, expiresAt } = error;
    return responseOf({ ...made, headers: { ...headers, ...made.headers }, replayed, expiresAt });
  }
}

// The headers that are stored with an answer. The type belongs to the body.
function storedOf(neverStored = [], includeHeaders) {
  const lower = (names) => names.map((name) => name.toLowerCase());
  const denied = new Set([...NEVER_STORED, ...lower(neverStored)]);
  const allowed = includeHeaders && new Set(['content-type', ...lower(includeHeaders)]);
  return (headers) => Object.fromEntries(Object.entries(headers).filter(([name]) =>
    !denied.has(name) && (!allowed || allowed.has(name))));
}

// Text and bytes are stored as they are. Anything else is JSON, which the scope can redact.
function answerOf(response) {
  const { status = 200, headers, body } = known(response, 'status', 'headers', 'body');
  const sent = lowerCase(headerFields(headers));
  for (const name of ['content-length', 'transfer-encoding']) delete sent[name]; // the body's own
  if ([204, 304].includes(statusCode(status)) && !isNothing(body)) {
    throw new TypeError(`an answer with status ${status} has no body`);
  }
  if (typeof body !== 'string' && !(body instanceof Uint8Array)) {
    if (!isNothing(body)) json('body', body); // also of an answer that is only sent
    return { status, headers: sent, response: body };
  }
  const type = typeof body === 'string' ? 'text/plain; charset=utf-8' : 'application/octet-stream';
  return { status, headers: { 'content-type': type, ...sent }, body: Buffer.from(body) };
}

// With the type of its JSON.
function typed({ headers, response, body, ...rest }) {
  const sent = lowerCase(headers);
  if (body || isNothing(response)) return { ...rest, headers: sent, body };
  const type = { 'content-type': 'application/json; charset=utf-8' };
  return { ...rest, headers: { ...type, ...sent }, body: Buffer.from(json('body', response)) };
}

function responseOf({ replayed, expiresAt, ...answer }) {
  const { status = 200, headers, body } = typed(answer);
  if (replayed) headers['idempotent-replayed'] = 'true';
  if (expiresAt) headers['idempotency-expires'] = new Date(expiresAt).toUTCString();
  return { status, headers, body };
}

const lowerCase = (headers) => Object.fromEntries(
  Object.entries(headers ?? {}).map(([name, value]) => [name.toLowerCase(), value]));

// Fastify and Node add cookies to the same array.
const copy = (value) => (Array.isArray(value) ? [...value] : value);

const SENT = 'the answer is sent after COMMIT: the handler must return it, and not send it itself';
const ANSWERED = 'the request was answered before its operation could run';
const SENDERS = ['send', 'write', 'writeHead', 'writeContinue', 'end', 'flushHeaders', 'hijack'];
const SETTERS = ['status', 'code', 'header', 'setHeader', 'removeHeader'];

// The work that a call comes from. What the work has not waited for goes on after it.
const working = new AsyncLocalStorage();

// The work, during which nothing is sent: a client that has been told 201 must find the payment.
// What it does to the response itself, its status and headers, belongs to the answer. open() lets
// the route send it, without the functions that the last attempt has registered, unless committed()
// was called. undo() takes back all that an attempt that was rolled back has done.
function unsent(response, raw, work) {
  const own = {};
  let before;
  let isOpen = false;
  let misused; // of the attempt that works
  // COMMIT, an error handler or a hook may take a while. What is left of the work is not faster.
  const isOver = () => !misused && working.getStore() === own;
  const listeners = () => ['finish', 'close'].flatMap((event) =>
    raw.rawListeners(event).map((listener) => ({ event, listener })));
  const changed = () => Object.entries(response.getHeaders())
    .filter(([name, value]) => !isDeepStrictEqual(before.headers[name], value));
  const remove = (name) => { for (const of of [response, raw]) of.removeHeader(name); };
  const reset = () => {
    response.statusCode = before.status;
    for (const [name] of changed()) {
      remove(name);
      if (name in before.headers) raw.setHeader(name, copy(before.headers[name]));
    }
  };
  // What the work sends is noted. Nothing is thrown: in a stream or a callback of the work, which
  // may also send when the answer has been sent, an error would end the process.
  const guard = () => {
    let warned = false;
    const late = () => {
      if (!warned) process.emitWarning(SENT);
      warned = true;
    };
    const refuse = () => (misused ?? late)();
    const restrict = (names, isAllowed) => {
      for (const of of new Set([response, raw])) {
        for (const name of names.filter((method) => method in of)) {
          const call = of[name];
          of[name] = function guarded(...content) {
            if (isAllowed()) return call.apply(this, content);
            refuse();
            return this;
          };
        }
      }
    };
    restrict(SENDERS, () => isOpen && !isOver() && !raw.writableEnded);
    restrict(SETTERS, () => !isOver());
    raw.on('pipe', (source) => { // it would send its rest as soon as the route may send
      if (isOpen && !isOver()) return;
      source.unpipe(raw);
      refuse();
    });
  };
  const forget = () => {
    for (const { event, listener } of listeners()) {
      if (!before.listeners.some((of) => of.listener === listener)) raw.off(event, listener);
    }
    // Of the package on-finished, which has a listener of its own, also for the connection.
    const { finished, queued } = before;
    const queue = raw.__onFinished?.queue;
    if (queue) queue.length = raw.__onFinished === finished ? queued : 0;
    raw.__onFinished = finished;
  };
  const committed = () => { before = undefined; };
  const open = () => {
    isOpen = true;
    if (before) forget();
  };
  const undo = () => {
    open();
    if (!before || raw.headersSent) return; // no attempt has begun, or the route has failed to send
    reset();
    for (const [name, value] of Object.entries(before.headers)) {
      remove(name); // Fastify adds cookies to its own, but not to those of the response of Node
      (response === raw ? raw.setHeader : response.header).call(response, name, copy(value));
    }
  };
  async function attempt(client) {
    if (raw.headersSent) throw new Error(ANSWERED);
    if (!before) guard();
    undo();
    isOpen = false;
    before ??= {
      status: response.statusCode, listeners: listeners(),
      headers: Object.fromEntries(Object.entries(response.getHeaders())
        .map(([name, value]) => [name, copy(value)])),
      finished: raw.__onFinished, queued: raw.__onFinished?.queue?.length,
    };
    let mistake;
    const stopped = new Promise((_, reject) => { // a callback may never say that it has ended
      misused = () => { reject(mistake ??= new Error(SENT)); };
    });
    stopped.catch(() => {});
    try {
      const answer = known(await Promise.race([working.run(own, work, client), stopped]),
        'status', 'headers', 'body');
      if (mistake) throw mistake; // also one that was swallowed
      const text = (value) => (Array.isArray(value) ? value.map(String) : String(value));
      const set = changed().map(([name, value]) => [name, text(value)]);
      return { status: response.statusCode, ...answer,
        headers: { ...Object.fromEntries(set), ...headerFields(answer.headers) } };
    } catch (error) {
      throw mistake ?? error;
    } finally {
      misused = undefined;
      reset();
    }
  }
  return { attempt, committed, open, undo };
}

module.exports = { ANSWERED, checkOptions, parseKey, respond, unsent };
