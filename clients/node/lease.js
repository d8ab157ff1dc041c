'use strict';
// Operations of several steps, which call other services and so cannot be one transaction.
const { setTimeout: sleep } = require('node:timers/promises');
const {
  Failure, LeaseLost, NotStored, reported, reporter, sqlstate, thrown,
} = require('./errors.js');
const { guarded } = require('./guard.js');
const { Heart } = require('./heart.js');
const {
  OPTIONS, answerOf, completed, grant, requestText, stored, unchanged, withDefaults,
} = require('./operation.js');
const statements = require('./statements.js');
const { repeated, single } = require('./transaction.js');
const { filled, interval, json, only, text, timer } = require('./values.js');

// Milliseconds.
const LEASE = 60_000;
const BACKOFF = { base: 1_000, cap: 300_000 }; // after a failed attempt
const LONGEST_MESSAGE = 1000; // characters
const TOO_LARGE = '54000'; // beyond the scope's max_answer_size
const SHORTEST_PAUSE = 20; // milliseconds between two renewals that fail

// At the end of a failed attempt. If it is in vain, the end of the lease does the same.
const RELEASE_RETRY = { attempts: 3, deadline: 5_000 };

// Of an error, as the server takes it: not empty, without NUL and without half a surrogate pair.
const messageOf = (error) => Buffer.from(String(error?.message || error?.name || error)
  .slice(0, LONGEST_MESSAGE).replaceAll('\0', '\ufffd')).toString();

// An attempt of a leased operation. Its lease is renewed from the beginning to the end.
class Lease {
  #pool; #bound; #token; #milliseconds; #ends; #results; #answer; #beating;
  #failed; // { error } that a call of this attempt has thrown, and that the work may swallow
  #names = new Set(); // of the steps that this attempt has begun
  #running = new Map(); // steps, and their names
  #completing = []; // calls of complete()
  #isCompleting = false;
  #client; // of the transaction of complete()
  #saving = Promise.resolve();
  #abort = new AbortController();

  // sent: when the call was sent that has got the lease.
  constructor(pool, bound, { token, attempt, steps }, sent) {
    const { scope, key, tenant, request, milliseconds } = bound;
    Object.assign(this, { scope, key, tenant, request, attempt, signal: this.#abort.signal });
    [this.#pool, this.#bound, this.#token] = [pool, bound, token];
    [this.#milliseconds, this.#ends] = [milliseconds, sent + milliseconds];
    this.#results = steps ?? {};
  }

  // The result of work(), which runs unless an earlier attempt has stored its result. A name is
  // used once: a second step of the same name would get the result of the first.
  step(name, work) {
    const step = this.#step(name, work).finally(() => this.#running.delete(step));
    this.#running.set(step, name);
    return step;
  }

  async #step(name, work) {
    if (this.#names.has(text('step', name))) {
      throw new Error(`step "${name}" was used before in this attempt`);
    }
    this.#names.add(name);
    if (Object.hasOwn(this.#results, name)) return this.#results[name];
    await this.#noted(async () => {
      this.signal.throwIfAborted();
      this.#requireOpen(`step "${name}"`);
      // The process has slept, or has been busy: the server knows whether the lease is its own.
      if (performance.now() >= this.#ends) await this.#renew();
    });
    const made = await work() ?? null;
    return this.#noted(() => this.#save(name, made));
  }

  async #save(name, made) {
    const result = JSON.parse(json(`result of step "${name}"`, made)); // as a later attempt gets it
    // One after the other: a recovery point holds the results of all steps.
    const saved = this.#saving.then(async () => {
      const results = { ...this.#results, [name]: result };
      await this.#ask(statements.checkpoint(this.#token, name, results));
      this.#results = results;
    });
    this.#saving = saved.catch(() => {});
    await saved;
    return result;
  }

  // A call whose error fails the attempt, even if the work swallows it: it would be completed with
  // an answer that says success.
  async #noted(call) {
    try {
      return await call();
    } catch (error) {
      this.#failed = { error };
      throw error;
    }
  }

  // What would wait for the transaction of complete(), and perhaps complete() for it, is an error.
  #requireOpen(what) {
    if (this.#answer) throw new LeaseLost();
    if (this.#isCompleting) throw new Error(`${what} must not begin while complete() runs`);
  }

  // The key to send to another service in this step: the same in every attempt. Within complete(),
  // the pool may have no other connection.
  async childKey(step) {
    const statement = statements.childKey(this.#token, text('step', step));
    const within = async (client) => (await statements.send(client, statement)).rows[0];
    const ask = () => (this.#client ? within(this.#client) : this.#ask(statement));
    return (await this.#noted(ask)).key;
  }

  // Completes the operation with the answer of effect(client), in one transaction with it. An error
  // that the work does not wait for fails the attempt, and ends no process.
  complete(effect) {
    const completing = this.#noted(() => this.#complete(effect));
    completing.catch(() => {});
    this.#completing.push(completing);
    return completing;
  }

  async #complete(effect) {
    const [step] = this.#running.values(); // its result would be lost
    if (step !== undefined) throw new Error(`step "${step}" is still running`);
    this.#requireOpen('complete()');
    this.#isCompleting = true;
    let tries = 0;
    const given = JSON.stringify(this.request); // the work, which runs once, may have changed it
    this.#stop(); // from now on, the transaction holds the key
    let answer;
    try {
      answer = await this.#asLost(repeated(this.#pool, this.#bound.retry, async (client) => {
        tries++;
        await statements.send(client, `BEGIN; ${statements.renew(this.#token, this.#bound.lease)}`);
        unchanged(given, JSON.stringify(this.request));
        this.#client = client;
        const made = await guarded(client, effect).finally(() => { this.#client = undefined; });
        return completed(client, this.#bound, this.#token, answerOf(made));
      }));
    } catch (error) {
      // An earlier try may have committed, and its answer may have been lost.
      if (error instanceof LeaseLost && tries > 1) answer = await this.#finished();
      if (!answer) {
        this.start();
        throw error;
      }
    } finally {
      this.#isCompleting = false;
    }
    this.#answer = answer;
    return answer;
  }

  // Calls work(lease), and completes the operation with its answer unless the work has done so, or
  // has failed to.
  async perform(work) {
    this.start();
    try {
      this.signal.throwIfAborted();
      if (typeof this.#results !== 'object' || Array.isArray(this.#results)) {
        throw new TypeError('the recovery point of the operation is not one of steps');
      }
      const answer = await this.#work(work);
      if (this.#answer) return this.#answer;
      if (this.#failed) throw this.#failed.error;
      return await this.complete(() => answer);
    } catch (error) {
      if (this.#answer) throw ofCompleted(error);
      throw await this.#fail(error);
    } finally {
      this.#stop();
    }
  }

  // To the end of what it may not have waited for: the operation must not end otherwise.
  async #work(work) {
    try {
      return await work(this);
    } finally {
      await Promise.allSettled(this.#completing);
    }
  }

  // Tells the work to end: as soon as it does, the operation is due for others.
  cancel(reason) {
    this.#abort.abort(reason);
  }

  async #renew() {
    const sent = performance.now();
    await this.#ask(statements.renew(this.#token, this.#bound.lease));
    this.#ends = sent + this.#milliseconds;
  }

  #ask(statement, retry = this.#bound.retry) {
    return this.#asLost(single(this.#pool, retry, statement));
  }

  async #asLost(asked) {
    try {
      return await asked;
    } catch (error) {
      throw isOfLost(error) ? this.#lose(error) : error;
    }
  }

  #lose(cause) {
    const lost = cause instanceof LeaseLost ? cause : new LeaseLost(cause);
    this.#abort.abort(lost); // does nothing if it is aborted
    return lost;
  }

  // What becomes of the operation: a Failure is stored, and after any other error it is released.
  async #fail(error) {
    this.#stop();
    const { aborted, reason } = this.signal;
    for (const step of this.#running.keys()) step.catch(() => {}); // its error ends no process
    this.#lose(); // what the work has not waited for must not go on beside the next attempt
    if (error instanceof LeaseLost) return error;
    if (error instanceof Failure) { // also when the lease has ended: the server knows who has it
      try {
        await this.#ask(statements.fail(this.#token, thrown(error)));
        return error;
      } catch (failed) { // it may be stored, and the answer may have been lost
        if (!(failed instanceof LeaseLost)) throw failed;
        const found = await this.#finished(); // by another attempt, it may be completed
        return found instanceof Failure ? found : failed;
      }
    }
    if (reason instanceof LeaseLost) return reason;
    const backoff = aborted ? backoffOf({ base: 0, cap: 0 }) : this.#bound.backoff;
    const why = aborted ? undefined
      : { sqlstate: sqlstate(error), message: messageOf(error) };
    const release = (of) =>
      this.#ask(statements.release(this.#token, this.attempt, backoff, of), RELEASE_RETRY);
    await release(why).catch((refused) => {
      if (sqlstate(refused) !== TOO_LARGE) throw refused;
      return release(undefined);
    }).catch(() => {});
    return error;
  }

  // The answer or Failure of the operation, if it has finished.
  async #finished() {
    const { records } = this.#bound;
    const row = await this.#ask(statements.choose(records) + statements.finished(this.#bound));
    return row && stored(row, this.#bound);
  }

  start() {
    this.#beating = new AbortController();
    this.#beat(this.#beating.signal);
  }

  #stop() {
    this.#beating?.abort();
  }

  // Renews the lease when a third of it has passed; if that fails, after a third of the rest.
  async #beat(stopped) {
    const heart = Heart.of(this.#pool);
    heart.join();
    const statement = statements.renew(this.#token, this.#bound.lease);
    const left = () => this.#ends - performance.now();
    const stop = () => stopped.aborted;
    let answered = true; // then a lease that is over means that the process has slept
    while (!stop()) {
      const pause = timer(Math.max(left() / 3, SHORTEST_PAUSE));
      await sleep(pause, undefined, { signal: stopped }).catch(stop);
      if (stop()) break;
      const sent = performance.now();
      try {
        if (left() <= 0 && !answered) throw new LeaseLost();
        await heart.ask(statement, left() > 0 ? left() / 2 : this.#milliseconds / 3);
        this.#ends = sent + this.#milliseconds;
        answered = true;
      } catch (error) {
        answered = false;
        if (!stop() && (isOfLost(error) || left() <= 0)) {
          this.#lose(error);
          break;
        }
      }
    }
    heart.leave();
  }
}

// What the caller gets for an error of the work after the operation was completed: a Failure or
// NotStored would deny that.
function ofCompleted(error) {
  if (!(error instanceof Failure || error instanceof NotStored)) return error;
  return new Error(`the operation was completed before its function threw a ${error.name}`,
    { cause: error });
}

const isOfLost = (error) => ['ID004', 'ID005'].includes(sqlstate(error));

const backoffOf = ({ base, cap }) =>
  ({ base: interval('backoff.base', base), cap: interval('backoff.cap', cap) });

// The times of a lease, in an operation or the options of a worker.
const leased = ({ lease: milliseconds = LEASE, backoff }) => ({
  milliseconds, lease: interval('lease', milliseconds),
  backoff: backoffOf(filled(BACKOFF, only(Object.keys(BACKOFF), backoff))),
});

// Claims the key with a lease, and runs work(lease) unless the operation has finished. Returns its
// answer, or the stored one with replayed: true.
function lease(pool, operation, work) {
  const { request, onEvent } = only([...OPTIONS, 'lease', 'backoff'], operation);
  const bound = { ...withDefaults(operation), ...leased(operation) };
  const statement = statements.choose(bound.records) + statements.claim(bound);
  const report = reporter(onEvent, bound);
  const begin = (held) => {
    unchanged(bound.request, requestText(request));
    return work(held);
  };
  return reported(report, async () => {
    const { held, answer } = await repeated(pool, bound.retry, async (client, conclude) => {
      const sent = performance.now();
      const granted = await grant(client, `BEGIN; ${statement}; COMMIT`);
      conclude();
      if (!granted.claimed) return { answer: stored(granted, bound) };
      report('claimed');
      return { held: new Lease(pool, { ...bound, request }, granted, sent) };
    }, report);
    return held ? held.perform(begin) : answer;
  });
}

module.exports = { Lease, lease, leased };
