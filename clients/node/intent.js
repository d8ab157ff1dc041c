'use strict';
// For the caller of an HTTP API with idempotency keys: one key for each intent, kept over retries.
const { randomBytes } = require('node:crypto');
const { setTimeout: sleep } = require('node:timers/promises');
const { Refused, hook } = require('./errors.js');
const { filled, only, timer } = require('./values.js');

const DEFAULTS = {
  attempts: 10,
  deadline: 60_000, // milliseconds: no attempt starts later than this after the first
  timeout: 15_000, // milliseconds: how long one attempt waits for an answer
  first: 100, // milliseconds of backoff, doubled with each attempt
  longest: 5_000,
  onRetry: (reason, attempt, delay) => {}, // a response or an error: to log it
  store: async (key) => {}, // before the first request, unless the key was given
  retention: undefined, // milliseconds for which the service keeps its answers
};

// Statuses after which the same request may succeed; those from 520 to 529 are of proxies. 409 is
// one of them if it says when.
const isLater = (status) => [408, 425, 429, 500, 502, 503, 504].includes(status)
  || (status >= 520 && status < 530);
const NO_BODY = [204, 205, 304];
const SECRETS = ['authorization', 'cookie', 'proxy-authorization'];
const REDIRECTS = 5; // that one attempt follows

// One operation that the caller wants. Store its key before the first request: a caller that was
// restarted makes the intent of the stored key.
class Intent {
  #policy; #stored;

  constructor(key, options = {}) {
    const { retention } = only(Object.keys(DEFAULTS), options);
    this.#stored = key !== undefined;
    this.key = key === undefined ? newKey() : key;
    if (typeof this.key !== 'string' || !/^[ -~]{1,255}$/.test(this.key)) {
      throw new TypeError('the key must be a string of 1 to 255 ASCII characters');
    }
    if (retention !== undefined) ageOf(this.key);
    this.#policy = filled(DEFAULTS, options);
  }

  // The header of each request.
  get headers() {
    return { 'idempotency-key': `"${this.key.replace(/["\\]/g, '\\$&')}"` };
  }

  // As the global fetch(), until there is a whole answer that a retry would not change. Returns the
  // last response, or throws the last error.
  async fetch(url, init = {}) {
    if (init.body?.getReader || init.body?.[Symbol.asyncIterator]) {
      throw new TypeError('the body of a request that may be repeated cannot be a stream');
    }
    const { attempts, deadline, retention, onRetry } = this.#policy;
    const request = new Request(url, init); // throws if it is none
    const { signal } = request; // of init, or of a request that is passed
    if (!this.#stored) await this.#policy.store(this.key);
    this.#stored = true;
    const latest = performance.now() + deadline;
    for (let attempt = 1; ; attempt++) {
      if (retention !== undefined && ageOf(this.key) > retention) {
        throw new Refused('ID010', 'stale_key', `key "${this.key}" is too old for the service`);
      }
      const [response, error] = await this.#once(request.clone(), signal, init);
      const delay = this.#delay(response, attempt);
      const isLast = attempt >= attempts || performance.now() + delay > latest;
      if (isLast || delay === undefined || signal.aborted) {
        if (error) throw error;
        return response;
      }
      hook(onRetry, response ?? error, attempt, delay);
      await sleep(timer(delay), undefined, { signal });
    }
  }

  // A response with its whole body, which may be cut or hang as well; or the error instead of one.
  async #once(request, signal, { redirect, dispatcher }) {
    const signals = [AbortSignal.timeout(timer(this.#policy.timeout)), signal];
    for (const [name, value] of Object.entries(this.headers)) request.headers.set(name, value);
    try {
      // Node 20 gives no dispatcher to the clone of a request.
      const options =
        { signal: AbortSignal.any(signals), redirect: redirect ?? 'manual', dispatcher };
      const response = await followed(request, options, redirect ? 0 : REDIRECTS);
      const body = await response.arrayBuffer();
      const whole = new Response(NO_BODY.includes(response.status) ? null : body, response);
      return [Object.defineProperty(whole, 'url', { value: response.url })];
    } catch (error) {
      return [undefined, error];
    }
  }

  // The milliseconds until the next attempt; undefined if the answer is final.
  #delay(response, attempt) {
    const after = response?.headers.get('retry-after') ?? undefined;
    const isFinal = response && !isLater(response.status)
      && !(response.status === 409 && after !== undefined);
    if (isFinal) return undefined;
    const { first, longest } = this.#policy;
    return milliseconds(after) + Math.random() * Math.min(longest, first * 2 ** (attempt - 1));
  }
}

// The response, after redirects that keep the method and the body. The others, which fetch() would
// follow with GET, are answers.
async function followed(request, options, times) {
  const again = request.clone();
  const response = await fetch(request, options);
  const place = response.headers.get('location');
  if (![307, 308].includes(response.status) || !place || times === 0) return response;
  await response.body?.cancel();
  const url = new URL(place, response.url);
  const next = new Request(url, again);
  if (url.origin !== new URL(response.url).origin) {
    for (const name of SECRETS) next.headers.delete(name); // another server's
  }
  return followed(next, options, times - 1);
}

// The milliseconds since a UUIDv7 was made.
function ageOf(key) {
  if (!/^[0-9a-f]{8}-[0-9a-f]{4}-7/i.test(key)) {
    throw new RangeError(`key "${key}" does not say how old it is: it is no UUIDv7`);
  }
  return Date.now() - parseInt(key.replace('-', '').slice(0, 12), 16);
}

// A Retry-After: seconds, or a date.
function milliseconds(after = '0') {
  const until = /^\d+$/.test(after) ? 1000 * Number(after) : Date.parse(after) - Date.now();
  return Math.max(0, until || 0);
}

// A UUIDv7: services can see how old it is.
function newKey() {
  const bytes = randomBytes(16);
  bytes.writeUIntBE(Date.now(), 0, 6);
  bytes[6] = (bytes[6] & 0x0f) | 0x70;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  return bytes.toString('hex').replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-');
}

const intent = (key, options) => new Intent(key, options);

module.exports = { Intent, intent };
