'use strict';
// The Idempotency-Key header as the IETF draft has it, for both frameworks. The answer is sent
// after COMMIT.
const { STATUS_CODES } = require('node:http');
const { Failure, Refused, isTransient, retryAfter, sqlstate } = require('./errors.js');
const { observed, run } = require('./operation.js');
const { transaction } = require('./transaction.js');
const { headerFields, json, known, statusCode, tenantText } = require('./values.js');

// Headers that concern one connection, one moment or one client's session.
const NEVER_STORED = new Set([
  'age', 'alt-svc', 'authentication-info', 'authorization', 'connection', 'content-length',
  'cookie', 'date', 'idempotency-expires', 'idempotent-replayed', 'keep-alive',
  'proxy-authenticate',
  'proxy-authentication-info', 'proxy-authorization', 'proxy-connection', 'server', 'set-cookie',
  'te', 'trailer', 'transfer-encoding', 'upgrade', 'via', 'www-authenticate',
]);

// What idem.problem() says of idem's own errors, for when the database is away.
const PROBLEMS = {
  ID001: [409, 'in_progress', 'Operation in progress'],
  ID002: [422, 'key_conflict', 'Key used for a different request'],
  ID003: [409, 'key_failed', 'Operation failed permanently'],
  ID004: [409, 'lease_lost', 'Operation taken over by a newer attempt'],
  ID005: [409, 'not_claimed', 'Operation not claimed'],
  ID006: [500, 'claim_incomplete', 'Operation left incomplete'],
  ID007: [400, 'invalid_key', 'Idempotency key missing or invalid'],
  ID008: [500, 'unknown_scope', 'Unknown scope'],
  ID009: [429, 'limit_exceeded', 'Too many operations'],
  ID010: [412, 'stale_key', 'Idempotency key too old'],
  ID011: [428, 'claim_required', 'Idempotency key required'],
  ID012: [409, 'sequence_gap', 'Gap in the sequence'],
  ID013: [500, 'invalid_tenant', 'Tenant missing or invalid'],
  ID014: [409, 'attempts_exhausted', 'Operation undecided, no attempts left'],
};

// The status that idem.http_status() has for an error; undefined for 500, which the application
// logs and answers.
function statusOf(error) {
  const code = sqlstate(error) ?? '';
  if (PROBLEMS[code]) return PROBLEMS[code][0] === 500 ? undefined : PROBLEMS[code][0];
  if (error instanceof Failure) return 409;
  if (code.startsWith('22')) return 400;
  if (code === '42501') return 403;
  return isTransient(error) || /^(55|57|72)/.test(code) ? 503 : undefined;
}

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
function keyOf(request, keyFrom, keyRequired) {
  const isFunction = typeof keyFrom === 'function';
  let key;
  if (keyFrom === undefined) key = parseKey(request.headers['idempotency-key']);
  else key = (isFunction ? keyFrom(request) : member(request.body, keyFrom)) ?? undefined;
  if (key === undefined && keyRequired) {
    const missing = isFunction ? 'key' : keyFrom && `member ${keyFrom}`;
    throw invalid(`${missing ?? 'header Idempotency-Key'} is missing`);
  }
  if (key !== undefined && (typeof key !== 'string' || key === '' || key.length > 255)) {
    throw invalid('the key must be a string of 1 to 255 characters');
  }
  return key;
}

const member = (body, path) => path.split('.').reduce((value, name) =>
  (value !== null && typeof value === 'object' && Object.hasOwn(value, name)
    ? value[name] : undefined), body);

const invalid = (message) => new Refused('ID007', 'invalid_key', message);

// Thrown through the transaction, which is thereby rolled back.
class NotStored extends Error {
  constructor(answer) {
    super(`status ${answer.status}`);
    this.answer = answer;
  }
}

// The response { status, headers, body } to a request of Express or Fastify. work(client) returns a
// response of the same form, or throws a Failure. Throws the errors that do not concern the client.
async function respond(pool, options, request, work) {
  const { tenant, keyFrom, keyRequired = true, neverStored, includeHeaders, ...rest } = options;
  const { onEvent, retry, ...operationOptions } = rest;
  const stored = storedOf(neverStored, includeHeaders);
  let given; // by the last attempt
  async function operation(client) {
    try {
      given = answerOf(await work(client));
    } catch (error) {
      if (error instanceof Failure) error.headers = stored(lowerCase(error.headers));
      throw error;
    }
    if (given.status >= 400) throw new NotStored(given);
    return { ...given, headers: stored(given.headers) };
  }
  const about = { scope: options.scope };
  checkOptions(options);
  if (tenant) about.tenant = tenantText(await tenant(request));
  const tell = onEvent && ((event) => onEvent({ ...event, request }));
  try {
    const answer = await observed(tell, about, () => {
      about.key = keyOf(request, keyFrom, keyRequired);
      if (about.key === undefined) return unprotected(pool, rest, operation);
      return run(pool, {
        wait: WAIT, ...operationOptions, ...about, retry: { ...RETRY, ...retry },
        request: boundRequest(request),
      }, operation);
    });
    return responseOf(answer.replayed ? answer : { ...answer, headers: given.headers });
  } catch (error) {
    if (error instanceof NotStored) return responseOf(error.answer);
    // Without a key, the client must not be asked to repeat the request.
    const isAnswer = error instanceof Failure || error instanceof Refused;
    if (about.key === undefined && !isAnswer) throw error;
    const status = error instanceof Failure && error.status ? error.status : statusOf(error);
    if (!status) throw error;
    return responseOf(error.body ? { ...error, status } : problem(error, status));
  }
}

// The tenant must be said: one that was forgotten would put all clients into one namespace.
function checkOptions({ tenant }) {
  if (tenant !== null && typeof tenant !== 'function') {
    throw new TypeError('tenant must be a function, or null for keys that all clients share');
  }
}

// A request without a key: once, because its COMMIT cannot be repeated.
const unprotected = (pool, { begin }, operation) =>
  transaction(pool, operation, { begin, retry: { attempts: 1 } });

// The headers that are stored with an answer. The type belongs to the body.
function storedOf(neverStored = [], includeHeaders) {
  const lower = (names) => names.map((name) => name.toLowerCase());
  const denied = new Set([...NEVER_STORED, ...lower(neverStored)]);
  const allowed = includeHeaders && new Set(['content-type', ...lower(includeHeaders)]);
  return (headers) => Object.fromEntries(Object.entries(headers).filter(([name]) =>
    !denied.has(name) && (!allowed || allowed.has(name))));
}

// What is bound to the key.
function boundRequest({ method, originalUrl, headers, body }) {
  const hasBody = headers['transfer-encoding'] || Number(headers['content-length']) > 0;
  if (hasBody && body === undefined) {
    throw new Error('nothing has parsed the body of the request: use express.json(), for example');
  }
  return { method, url: originalUrl, body: Buffer.isBuffer(body) ? body.toString('base64') : body };
}

// Text and bytes are stored as they are. Anything else is JSON, which the scope can redact.
function answerOf(response) {
  const { status = 200, headers, body } = known(response, 'status', 'headers', 'body');
  const sent = lowerCase(headerFields(headers));
  if ([204, 304].includes(statusCode(status)) && body !== undefined) {
    throw new TypeError(`an answer with status ${status} has no body`);
  }
  if (typeof body !== 'string' && !(body instanceof Uint8Array)) {
    if (body !== undefined) json('body', body); // also of an answer that is only sent
    return { status, headers: sent, response: body };
  }
  const type = typeof body === 'string' ? 'text/plain; charset=utf-8' : 'application/octet-stream';
  return { status, headers: { 'content-type': type, ...sent }, body: Buffer.from(body) };
}

function responseOf({ status = 200, headers, response, body, replayed, expiresAt }) {
  const sent = lowerCase(headers);
  if (replayed) sent['idempotent-replayed'] = 'true';
  if (expiresAt) sent['idempotency-expires'] = new Date(expiresAt).toUTCString();
  if (body || response === null || response === undefined) return { status, headers: sent, body };
  const type = { 'content-type': 'application/json; charset=utf-8' };
  return { status, headers: { ...type, ...sent }, body: Buffer.from(JSON.stringify(response)) };
}

// A problem document (RFC 9457). The client does not get messages of internal errors.
function problem(error, status) {
  // A lost connection has no SQLSTATE.
  const code = error instanceof Failure ? 'ID003' : sqlstate(error) ?? '08006';
  const [, name, title] = PROBLEMS[code] ?? [];
  const after = retryAfter(error) ?? (status === 503 ? 1_000 : undefined);
  return {
    status,
    headers: {
      ...lowerCase(error.headers), 'content-type': 'application/problem+json',
      ...(after !== undefined && { 'retry-after': String(Math.max(1, Math.ceil(after / 1000))) }),
    },
    response: {
      type: name ? `urn:idem:problem:${name}` : 'about:blank', title: title ?? STATUS_CODES[status],
      status, sqlstate: code, ...(status < 500 && { detail: error.message }),
    },
    replayed: error.replayed,
    expiresAt: error.expiresAt,
  };
}

const lowerCase = (headers) => Object.fromEntries(
  Object.entries(headers ?? {}).map(([name, value]) => [name.toLowerCase(), value]));

module.exports = { checkOptions, parseKey, respond };
