'use strict';
// Takes leased operations that others left, and finishes them.
const { setTimeout: sleep } = require('node:timers/promises');
const { hook, reported, reporter, sqlstate } = require('./errors.js');
const { Lease, leased } = require('./lease.js');
const statements = require('./statements.js');
const { single } = require('./transaction.js');
const { filled, interval, only, tenantText, text, timer } = require('./values.js');

const DEFAULTS = {
  concurrency: 1,
  wait: 2_000, // milliseconds that a call waits for an operation to be due; stop() takes as long
  grace: 30_000, // milliseconds after stop() until the signals of running operations are aborted
  signals: ['SIGTERM', 'SIGINT'],
  onError: (error, lease) => { console.error(error); }, // also when the database is away
};
const OPTIONS = ['scope', 'lease', 'tenant', 'records', 'backoff', 'retry', 'onEvent',
  ...Object.keys(DEFAULTS)];
// What waiting does not cure: of the scope, the tenant and the arguments, of privileges, and of the
// role, the database or the schema.
const HOPELESS = /^(?:ID0(?:07|08|13)|22|28|3[DF]|42)/;
const LONGEST_PAUSE = 30_000; // milliseconds, after the server could not be asked
const STOPS = new WeakSet(); // the listeners of workers

class Worker {
  #pool; #options; #work;
  #stops = new Error('the worker stops');
  #running = new Map(); // leases, and their ends
  #stopping = new AbortController();
  #wake = () => {}; // when an operation ends, or the worker stops

  constructor(pool, options, work) {
    if ('tenant' in only(OPTIONS, options)) tenantText(options.tenant);
    const { wait, ...rest } = filled(DEFAULTS, options);
    text('scope', rest.scope);
    this.#options = { ...rest, ...leased(rest), wait: interval('wait', wait) };
    [this.#pool, this.#work] = [pool, work];
    let ends; // the signal that ends the process, unless the application handles it
    const stop = (signal) => {
      if (process.listeners(signal).every((listener) => STOPS.has(listener))) ends = signal;
      this.#stop();
    };
    STOPS.add(stop);
    // Before the listeners of process.once(), which are gone when they are called.
    for (const signal of this.#options.signals) process.prependListener(signal, stop);
    // Fulfilled when the worker has stopped; rejected if it cannot work, as in an unknown scope.
    this.finished = this.#loop().finally(() => {
      for (const signal of this.#options.signals) process.off(signal, stop);
      // Unless another worker still handles it.
      if (ends && process.listenerCount(ends) === 0) process.kill(process.pid, ends);
    });
  }

  // Takes no further operation, and ends when the running ones have ended.
  stop() {
    this.#stop();
    return this.finished;
  }

  #stop() {
    this.#stopping.abort();
    this.#wake();
  }

  async #loop() {
    const { concurrency, onError } = this.#options;
    const stopping = this.#stopping.signal;
    try {
      for (let failures = 0; !stopping.aborted;) {
        if (this.#running.size >= concurrency) {
          await new Promise((resolve) => { this.#wake = resolve; });
          continue;
        }
        try {
          await this.#take();
          failures = 0;
        } catch (error) {
          if (this.#pool.ending || HOPELESS.test(sqlstate(error))) throw error;
          hook(onError, error);
          await this.#pause(Math.min(LONGEST_PAUSE, 100 * 2 ** failures++));
        }
      }
    } finally {
      await this.#rest();
    }
  }

  // Until the time is over, or the worker stops.
  #pause(milliseconds) {
    return sleep(milliseconds, undefined, { signal: this.#stopping.signal }).catch(() => {});
  }

  async #take() {
    const { records } = this.#options;
    const sent = performance.now();
    const statement = statements.choose(records) + statements.take(this.#options);
    const taken = await single(this.#pool, { attempts: 1 }, statement);
    if (taken.token === null) return;
    const { key, request } = taken;
    const bound = { ...this.#options, key, request, tenant: taken.tenant || undefined };
    const lease = new Lease(this.#pool, bound, taken, sent);
    if (this.#stopping.signal.aborted) lease.cancel(this.#stops);
    const report = reporter(this.#options.onEvent, bound);
    report('claimed');
    const end = reported(report, () => lease.perform(this.#work))
      .catch((error) => { if (error !== this.#stops) hook(this.#options.onError, error, lease); })
      .finally(() => { this.#running.delete(lease); this.#wake(); });
    this.#running.set(lease, end);
  }

  async #rest() {
    const timeout = setTimeout(() => {
      for (const lease of this.#running.keys()) lease.cancel(this.#stops);
    }, timer(this.#options.grace));
    await Promise.all(this.#running.values());
    clearTimeout(timeout);
  }
}

// Calls work(lease) for each operation of the scope that is due, until stop() or a signal.
const worker = (pool, options, work) => new Worker(pool, options, work);

module.exports = { worker };
