'use strict';
// The examples that answer 202, and the place that they name.
const assert = require('node:assert/strict');
const { setTimeout: sleep } = require('node:timers/promises');
const { after, test } = require('node:test');
const { Failure, worker } = require('pg-idem');
const { effects, finish, operation, pay, pool, useUpAttempts } = require('./support.js');

const closing = [finish];
after(() => Promise.all(closing.map((close) => close())));

let gate; // the work waits for it
const work = async (held) => {
  await gate;
  if (held.request.then === 'failure') throw new Failure('card declined', { status: 402 });
  if (held.request.then === 'death' && held.attempt === 1) throw new Error('the process dies');
  return held.complete(async (client) => ({ status: 201, response: await pay(client, held.request) }));
};

const frameworks = {
  async express() {
    const app = require('../examples/accepted_express.js')(pool, work);
    const server = await new Promise((resolve) => { const s = app.listen(0, '127.0.0.1', () => resolve(s)); });
    closing.push(() => server.close());
    return server.address().port;
  },
  async fastify() {
    const app = require('../examples/accepted_fastify.js')(pool, work);
    closing.push(() => app.close());
    await app.listen({ host: '127.0.0.1', port: 0 });
    return app.server.address().port;
  },
};

for (const [name, listen] of Object.entries(frameworks)) {
  let installed = true;
  try { require(name); } catch { installed = false; }
  test(`${name}: 202, and a place to ask`, { skip: !installed && `${name} is not installed` }, async () => {
    const base = `http://127.0.0.1:${await listen()}`;
    async function ask(path, init) {
      const response = await fetch(base + path, init);
      const [place, later] = ['location', 'retry-after'].map((of) => response.headers.get(of));
      return { status: response.status, place, later, body: await response.json() };
    }
    const post = (key, request) => ask('/payments', {
      method: 'POST', body: JSON.stringify(request),
      headers: { 'content-type': 'application/json', ...(key && { 'idempotency-key': `"${key}"` }) },
    });
    async function settled(place) {
      for (;;) {
        const answer = await ask(place);
        if (answer.status !== 202) return answer;
        await sleep(20);
      }
    }

    let open;
    gate = new Promise((resolve) => { open = resolve; });
    const { key, request } = operation();
    const answers = [await post(key, request), await post(key, request)];
    answers.push(await ask(answers[0].place));
    assert.deepEqual(answers.map(({ status, place }) => [status, place]), Array(3).fill([202, `/payments/${key}`]));
    assert.equal(await effects(request), 0);
    assert.equal((await post(key, operation().request)).status, 422);
    open();
    const paid = await settled(answers[0].place);
    assert.equal(paid.status, 201);
    assert.deepEqual(await post(key, request), paid);
    assert.equal(await effects(request), 1);

    const declined = operation();
    const { place } = await post(declined.key, { ...declined.request, then: 'failure' });
    assert.deepEqual(await settled(place), { status: 402, place: null, later: null, body: { title: 'card declined' } });
    assert.equal((await post(declined.key, { ...declined.request, then: 'failure' })).status, 402);

    await pool.query("SELECT idem.erase('payments', $1)", [declined.key]);
    assert.deepEqual([(await ask(place)).status, (await post(declined.key, { ...declined.request, then: 'failure' })).status], [402, 402]);

    const dead = operation();
    const begun = await post(dead.key, { ...dead.request, then: 'death' });
    const finisher = worker(pool, { scope: 'payments' }, work);
    assert.equal((await settled(begun.place)).status, 201);
    await finisher.stop();
    assert.equal(await effects(dead.request), 1);

    const undecided = operation();
    const token = await useUpAttempts(undecided.key, undecided.request);
    for (const { status, later, body } of [
      await post(undecided.key, undecided.request), await ask(`/payments/${undecided.key}`)]) {
      assert.deepEqual([status, later, body.type], [409, '60', 'urn:idem:problem:attempts_exhausted']);
    }
    await pool.query(`SELECT idem.complete($1, '{"late": true}', 201)`, [token]);
    assert.equal((await ask(`/payments/${undecided.key}`)).status, 201);

    assert.deepEqual([(await ask('/payments/unknown')).status, (await post(undefined, request)).status], [404, 400]);
    assert.equal((await post('k'.repeat(256), request)).status, 400);
  });
}
