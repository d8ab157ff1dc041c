'use strict';
// For the caller of an HTTP API with idempotency keys: one key for each intent, kept over retries.
const { randomBytes } = require('node:crypto');
const { setTimeout: sleep } = require('node:timers/promises');

const DEFAULTS = {
  attempts: 10,
  deadline: 60_000, // milliseconds: no attempt starts later than this after the first
  timeout: 15_000, // milliseconds: how long one attempt waits for an answer
  first: 100, // milliseconds of backoff, doubled with each attempt
  longest: 5_000,
  onRetry: (reason, attempt, delay) => {}, // a response or an error: to log it
};

// Statuses after which the same request may succeed. 409 is one of them if it says when.
const LATER = new Set([408, 425, 429, 500, 502, 503, 504]);

// One operation that the caller wants. Store its key before the first request: a caller that was
// restarted makes the intent of the stored key.
class Intent {
  #policy;

  constructor(key = newKey(), options = {}) {
    if (typeof key !== 'string' || !/^[ -~]{1,255}$/.test(key)) {
      throw new TypeError('the key must be a string of 1 to 255 ASCII characters');
    }
    this.key = key;
    this.#policy = { ...DEFAULTS, ...options };
  }

  // The header of each request.
  get headers() {
    return { 'idempotency-key': `"${this.key.replace(/["\\]/g, '\\$&')}"` };
  }

  // As the global fetch(), until there is an answer that a retry would not change. Returns the last
  // response, or throws the last error.
  async fetch(url, init = {}) {
    if (init.body?.getReader || init.body?.[Symbol.asyncIterator]) {
      throw new TypeError('the body of a request that may be repeated cannot be a stream');
    }
    const request = new Request(url, init); // throws if it is none
    const latest = performance.now() + this.#policy.deadline;
    for (let attempt = 1; ; attempt++) {
      const [response, error] = await this.#once(request.clone(), init.signal);
      const delay = this.#delay(response, attempt);
      const isLast = attempt >= this.#policy.attempts || performance.now() + delay > latest;
      if (isLast || delay === undefined || init.signal?.aborted) {
        if (error) throw error;
        return response;
      }
      this.#policy.onRetry(response ?? error, attempt, delay);
      await response?.body?.cancel();
      await sleep(delay, undefined, { signal: init.signal });
    }
  }

  // A response, or the error instead of one.
  async #once(request, signal) {
    const signals = [AbortSignal.timeout(this.#policy.timeout), ...(signal ? [signal] : [])];
    for (const [name, value] of Object.entries(this.headers)) request.headers.set(name, value);
    try {
      return [await fetch(request, { signal: AbortSignal.any(signals) })];
    } catch (error) {
      return [undefined, error];
    }
  }

  // The milliseconds until the next attempt; undefined if the answer is final.
  #delay(response, attempt) {
    const after = response?.headers.get('retry-after') ?? undefined;
    const isFinal = response && !LATER.has(response.status)
      && !(response.status === 409 && after !== undefined);
    if (isFinal) return undefined;
    const { first, longest } = this.#policy;
    return milliseconds(after) + Math.random() * Math.min(longest, first * 2 ** attempt);
  }
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
