'use strict';
const assert = require('node:assert/strict');
const { spawn, spawnSync } = require('node:child_process');
const { setTimeout: sleep } = require('node:timers/promises');
const { after, test } = require('node:test');
const { Pool } = require('pg');
const { Failure, LeaseLost, NotStored, lease, retryAfter, run, transaction, worker } = require('pg-idem');
const { effects, finish, one, operation, pay, pool, settled, state } = require('./support.js');
const { Wire } = require('./wire.js');

const closing = [finish];
after(() => Promise.all(closing.map((close) => close())));

const begun = (more) => ({ scope: 'charges', lease: 10_000, ...operation(), ...more });
const impatient = { wait: 0, retry: { attempts: 1 } };
const unfinished = (key) => one('SELECT to_jsonb(f) FROM idem.in_flight AS f WHERE f.key = $1', [key]);
const until = async (condition) => { while (!await condition()) await sleep(20); };
const payment = (held) => held.complete(async (client) => ({ response: await pay(client, held.request) }));

// Takes the operation over, as when its lease has ended. Gives it back at once.
async function takeOver({ key }) {
  await pool.query(`SELECT idem.revoke('charges', $1)`, [key]);
  return one(`SELECT idem.release(token) FROM idem.take('charges', lease => '10 seconds')`);
}

test('an operation under a lease: one effect, and the stored answer for a retry', async () => {
  const called = begun();
  const work = async (held) => {
    assert.deepEqual([held.scope, held.key, held.request, held.attempt],
      ['charges', called.key, called.request, 1]);
    return payment(held);
  };
  const first = await lease(pool, called, work);
  assert.deepEqual(await lease(pool, called, () => assert.fail('runs')), { ...first, replayed: true });
  assert.deepEqual([first.replayed, await effects(called.request)], [false, 1]);
  const without = begun();
  const answer = { response: { done: 1 }, status: 201, headers: { 'x-a': '1' }, body: Buffer.from('x') };
  assert.deepEqual(await lease(pool, without, async () => answer), { ...answer, replayed: false });
  assert.deepEqual(await lease(pool, without, () => {}), { ...answer, replayed: true });
});

test('another caller is refused while the lease runs, and so is another request', async () => {
  const called = begun();
  const { scope, key } = called;
  await lease(pool, called, async () => {
    await assert.rejects(lease(pool, { ...called, ...impatient }, () => assert.fail('runs')), { code: 'ID001' });
    await assert.rejects(run(pool, { scope, key, request: {}, ...impatient }, () => {}), { code: 'ID002' });
  });
});

test('a step runs once per operation, and its result is what every attempt gets', async () => {
  const called = begun();
  let calls = 0;
  const steps = (held) => Promise.all(['one', 'two'].map((name) =>
    held.step(name, async () => ({ name, at: new Date(0), call: ++calls }))));
  await assert.rejects(lease(pool, { ...called, backoff: { base: 0 } }, async (held) => {
    await steps(held);
    throw new Error('down');
  }), /down/);
  const { response } = await lease(pool, called, async (held) => {
    assert.equal(held.attempt, 2);
    await held.step('nothing', async () => { calls++; });
    return { response: await steps(held) };
  });
  const results = ['one', 'two'].map((name, n) => ({ name, at: '1970-01-01T00:00:00.000Z', call: n + 1 }));
  assert.deepEqual([response, calls], [results, 3]);
});

test('a step name is used once per attempt, also after an error', async () => {
  const called = { ...begun(), backoff: { base: 0 } };
  const sent = [];
  const ship = (held, item) => held.step('ship', async () => { sent.push(item); return item; });
  for (const work of [
    async (held) => { await ship(held, 'pen'); await ship(held, 'ink'); },
    async (held) => { await ship(held, 'pen'); await ship(held, 'ink'); }, // the first has a result
    async (held) => Promise.all([held.step('a', async () => 1), held.step('a', async () => 2)]),
    async (held) => {
      await held.step('b', async () => { throw new Error('busy'); }).catch(() => {});
      await held.step('b', async () => 1);
    },
  ]) await assert.rejects(lease(pool, called, work), /step "\w+" was used before in this attempt/);
  assert.deepEqual(sent, ['pen']);
});

test('the key for another service is the same in every attempt, and another one for each step', async () => {
  const called = { ...begun(), backoff: { base: 0 } };
  const keys = [];
  const work = async (held) => {
    for (const step of ['charge', 'mail']) keys.push(await held.childKey(step));
    if (held.attempt === 1) throw new Error('down');
  };
  await assert.rejects(lease(pool, called, work), /down/);
  await lease(pool, called, work);
  assert.deepEqual([keys[0], keys[1]], [keys[2], keys[3]]);
  assert.match(keys[0], /^[0-9a-f]{64}$/);
  assert.notEqual(keys[0], keys[1]);
});

test('a Failure is stored; any other error gives the operation back for later', async () => {
  const declined = begun();
  const decline = () => lease(pool, declined, () => { throw new Failure('declined', { status: 402 }); });
  for (const replayed of [false, true]) await assert.rejects(decline, { message: 'declined', status: 402, replayed });
  const undone = begun();
  const undo = () => lease(pool, undone, (held) => held.complete(async (client) => {
    await pay(client, held.request);
    throw new Failure('declined');
  }));
  await assert.rejects(undo, { message: 'declined' });
  assert.deepEqual([await effects(undone.request), await state(undone.key, 'charges')], [0, 'failed']);

  const down = begun();
  const fail = (more) => lease(pool, { ...down, ...more }, async () => {
    throw Object.assign(new Error('the service is down'), { code: 'ECONNREFUSED' });
  });
  await assert.rejects(fail({ backoff: { base: 3_600_000, cap: 7_200_000 } }), /down/);
  assert.deepEqual((await unfinished(down.key)).last_error, { message: 'the service is down' });
  const error = await lease(pool, { ...down, ...impatient }, () => {}).catch((refused) => refused);
  assert.equal(error.code, 'ID001');
  assert.ok(Number(error.dataType) > 1000 * 60 * 29);

  for (const [broken, message] of [[new AggregateError([]), 'AggregateError'],
    [new Error(`\0 ${'\u{1f600}'.repeat(500)}`), `\ufffd ${'\u{1f600}'.repeat(499)}`], ['text', 'text']]) {
    const called = begun();
    await assert.rejects(lease(pool, called, async () => { throw broken; }));
    assert.ok((await unfinished(called.key)).last_error.message.startsWith(message));
  }
});

test('an error that the scope does not have the room for gives the operation back without it', async () => {
  const scope = `narrow ${Date.now()}`;
  await pool.query('SELECT idem.create_scope($1, max_answer_size => 1024)', [scope]);
  const called = begun({ scope, backoff: { base: 0 } });
  await assert.rejects(lease(pool, called, () => { throw new Error('ä'.repeat(1_000)); }), /äää/);
  assert.equal((await lease(pool, { ...called, ...impatient }, async (held) => ({ response: held.attempt }))).response, 2);
});

test('an error of a call of the lease fails the attempt, even if the work swallows it', async () => {
  const swallow = (promise) => promise.catch((error) => { assert.ok(error); });
  const ends = {
    'an effect': (held) => swallow(held.complete(async (client) => { await pay(client, held.request); await client.query('SELECT 1 / 0'); })),
    'an error of an effect': (held) => swallow(held.complete(() => { throw new Error('division by zero'); })),
    'a step that is no JSON': (held) => swallow(held.step('charge', async () => new Map())),
    'a step that is too large': (held) => swallow(held.step('charge', async () => 'a'.repeat(1e6))),
  };
  for (const [name, end] of Object.entries(ends)) {
    const called = begun({ backoff: { base: 3_600_000, cap: 7_200_000 } });
    const events = [];
    const onEvent = ({ type }) => events.push(type);
    await assert.rejects(lease(pool, { ...called, onEvent }, async (held) => { await end(held); return { response: { paid: true } }; }),
      /division by zero|which has no Map|answer|size|large/, name);
    assert.deepEqual([await effects(called.request), await state(called.key, 'charges'), events], [0, 'in_progress', ['claimed', 'error']], name);
    assert.ok(retryAfter(await lease(pool, { ...called, ...impatient }, () => {}).catch((error) => error)) > 1000 * 60 * 29, name);
    assert.ok((await unfinished(called.key)).last_error.message, name);
  }
  const declined = begun();
  await assert.rejects(lease(pool, declined, async (held) => { await swallow(held.complete(() => { throw new Failure('declined'); })); }), { message: 'declined', replayed: false });
  assert.equal(await state(declined.key, 'charges'), 'failed');
  for (const lost of [(held) => held.step('late', async () => 1), (held) => held.childKey('late'), payment]) {
    const called = begun();
    await assert.rejects(lease(pool, called, async (held) => { await takeOver(called); await swallow(lost(held)); }), LeaseLost);
    assert.equal(await state(called.key, 'charges'), 'in_progress');
  }
});

test('an error of a call of the lease is forgotten when the operation is completed; one of a step is its own', async () => {
  const called = begun();
  const { response } = await lease(pool, called, async (held) => {
    await held.complete(async (client) => client.query('SELECT 1 / 0')).catch(() => {});
    await payment(held);
    await assert.rejects(held.complete(async (client) => ({ response: await pay(client, held.request) })), LeaseLost); // it is over
  });
  assert.deepEqual([await effects(called.request), typeof response.payment], [1, 'string']);
  const optional = begun();
  await lease(pool, optional, async (held) => {
    await held.step('mail', async () => { throw new Error('no mail today'); }).catch(() => {});
    return { response: 'paid' };
  });
  assert.equal(await state(optional.key, 'charges'), 'completed');
});

test('neither a step nor complete() begins within complete(): each would wait for the other', async () => {
  let runs = 0;
  const inner = {
    'step "late"': (held) => held.step('late', async () => { runs++; }),
    'complete\\(\\)': (held) => held.complete(async () => ({})),
  };
  for (const [what, begin] of Object.entries(inner)) {
    const called = begun({ backoff: { base: 0 } });
    await assert.rejects(lease(pool, called, (held) => held.complete(async (client) => { await pay(client, held.request); await begin(held); })),
      new RegExp(`${what} must not begin while complete\\(\\) runs`));
    assert.deepEqual([await effects(called.request), await state(called.key, 'charges')], [0, 'in_progress']);
    const { response } = await lease(pool, called, async (held) => {
      await payment(held);
      await assert.rejects(begin(held), LeaseLost); // the operation is over
    });
    assert.equal(typeof response.payment, 'string');
  }
  assert.equal(runs, 0);
});

test('childKey() within complete() waits for no other connection', async () => {
  const single = new Pool({ max: 1, connectionTimeoutMillis: 2_000 });
  const { key, request } = operation();
  const answer = await lease(single, { scope: 'charges', key, request }, async (held) => {
    const before = await held.childKey('mail');
    return held.complete(async () => ({ response: await held.childKey('mail') === before }));
  });
  assert.equal(answer.response, true);
  await single.end();
});

test('the operation ends as a call of complete() does that nothing waits for', async () => {
  const slow = () => { // a connection for the second transaction, which is that of complete()
    let count = 0;
    return { connect: async () => { if (++count === 2) await sleep(100); return pool.connect(); } };
  };
  for (const from of [pool, slow()]) {
    const called = begun();
    const { response } = await lease(from, called, async (held) => { payment(held); });
    assert.deepEqual([await effects(called.request), typeof response.payment], [1, 'string']);
  }
  const fail = (held) => { held.complete(async (client) => { await pay(client, held.request); await client.query('SELECT 1 / 0'); }); };
  for (const work of [async (held) => { fail(held); return { response: 'paid' }; }, async (held) => { fail(held); await sleep(100); }]) {
    const called = begun();
    await assert.rejects(lease(pool, called, work), /division by zero/);
    assert.deepEqual([await effects(called.request), await state(called.key, 'charges')], [0, 'in_progress']);
  }
  const called = begun();
  await assert.rejects(lease(slow(), called, async (held) => { payment(held); throw new Failure('no'); }), /was completed before/);
  assert.deepEqual([await effects(called.request), await state(called.key, 'charges')], [1, 'completed']);
});

test('an error that the work of a worker swallows does not complete the operation', async () => {
  const [left] = await abandon(1);
  const errors = [];
  const finisher = worker(pool, { scope: 'left', backoff: { base: 0 }, onError: (error) => errors.push(error.message) }, async (held) => {
    if (held.attempt > 2) return payment(held);
    await held.complete((client) => client.query('SELECT 1 / 0')).catch(() => {});
    return { response: { paid: true } };
  });
  await until(() => finished([left]));
  await finisher.stop();
  assert.deepEqual([errors, await effects(left.request)], [['division by zero'], 1]);
});

// The heartbeat ------------------------------------------------------------------------------------

test('the lease is renewed on a connection beside the pool while the work runs', async () => {
  const busy = new Pool({ max: 1 });
  closing.push(() => busy.end());
  const called = begun({ lease: 9_000 });
  await lease(busy, called, async (held) => {
    const client = await busy.connect();
    const { lease_end: first } = await unfinished(called.key);
    await until(async () => (await unfinished(called.key)).lease_end > first);
    client.release();
    assert.deepEqual([held.signal.aborted, held.attempt], [false, 1]);
    await assert.rejects(lease(pool, { ...called, ...impatient }, () => assert.fail('runs')), { code: 'ID001' });
    return payment(held);
  });
  assert.equal(await effects(called.request), 1);
  const left = () => one("SELECT count(*)::integer FROM pg_stat_activity WHERE query ~ 'idem.renew' AND pid <> pg_backend_pid()");
  await until(async () => await left() === 0);
});

test('the connection of the heartbeat is set up as those of the pool', async () => {
  const rename = (name) => (client) => client.query(`SELECT set_config('application_name', ${name}, false)`);
  const own = new Pool({ onConnect: rename("'role'") });
  own.on('connect', rename("current_setting('application_name') || ' of the application'"));
  closing.push(() => own.end());
  const called = begun({ lease: 3_000 });
  await lease(own, called, async (held) => {
    const renewing = "SELECT min(application_name) FROM pg_stat_activity WHERE query LIKE 'SELECT idem.renew%'";
    await until(async () => await one(renewing) !== null);
    assert.equal(await one(renewing), 'role of the application');
    return payment(held);
  });
});

test('a lease or a time of grace that is longer than a timer of Node', async () => {
  let renewals = 0;
  const own = { connect: () => pool.connect(), Client: pool.Client, options: { ...pool.options, onConnect: () => renewals++ } };
  const called = begun({ lease: 90 * 86_400_000 });
  await lease(own, called, async (held) => { await sleep(300); return payment(held); });
  assert.equal(renewals, 0);
  const [left] = await abandon(1);
  let begin;
  const taken = new Promise((resolve) => { begin = resolve; });
  const finisher = worker(pool, { scope: 'left', grace: 30 * 86_400_000 }, async (held) => {
    begin();
    await sleep(300, undefined, { signal: held.signal });
    return payment(held);
  });
  await taken;
  await finisher.stop();
  assert.equal(await effects(left.request), 1);
});

test('a heartbeat whose connection cannot be set up tries again', async () => {
  let refusals = 0;
  const onConnect = async (client) => { if (refusals < 2) { refusals++; await client.query('SELECT 1 / 0'); } };
  const own = { connect: () => pool.connect(), Client: pool.Client, options: { ...pool.options, onConnect } };
  const called = begun({ lease: 9_000 });
  await lease(own, called, async (held) => {
    const { lease_end: first } = await unfinished(called.key);
    await until(async () => held.signal.aborted || (await unfinished(called.key)).lease_end > first);
    assert.deepEqual([held.signal.aborted, refusals], [false, 2]);
    return payment(held);
  });
  const left = () => one("SELECT count(*)::integer FROM pg_stat_activity WHERE query = 'SELECT 1 / 0'");
  await until(async () => await left() === 0);
});

test('a lost connection of the heartbeat is replaced', async () => {
  const cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE 'SELECT idem.renew%'";
  const called = begun({ lease: 9_000 });
  await lease(pool, called, async (held) => {
    for (let cuts = 0; cuts < 2;) cuts += Number(await one(cut)) || (await sleep(10), 0);
    const { lease_end: last } = await unfinished(called.key);
    await until(async () => (await unfinished(called.key)).lease_end > last);
    assert.equal(held.signal.aborted, false);
    return payment(held);
  });
  assert.equal(await effects(called.request), 1);
});

test('a lease that another attempt has taken over: the work is told, and has no effect', async () => {
  const called = begun({ lease: 500 });
  let steps = 0;
  await assert.rejects(lease(pool, called, async (held) => {
    await takeOver(called);
    await assert.rejects(sleep(60_000, undefined, { signal: held.signal }), { name: 'AbortError' });
    await assert.rejects(held.step('late', async () => { steps++; }), LeaseLost);
    return payment(held);
  }), (error) => error instanceof LeaseLost && error.code === 'ID004');
  assert.deepEqual([steps, await effects(called.request)], [0, 0]);
  assert.equal((await lease(pool, called, payment)).replayed, false);
});

test('a lease that was lost unnoticed: no step is stored, and no effect stays', async () => {
  for (const late of [(held) => held.step('late', async () => 1), (held) => held.childKey('late'), payment, () => ({})]) {
    const called = begun();
    let seen;
    await assert.rejects(lease(pool, called, async (held) => {
      seen = held;
      await takeOver(called);
      return late(held);
    }), LeaseLost);
    assert.ok(seen.signal.reason instanceof LeaseLost);
    assert.equal(await effects(called.request), 0);
    await lease(pool, called, async (held) => { await held.step('late', async () => 2); return payment(held); });
    assert.equal(await effects(called.request), 1);
  }
});

test('a server that no longer answers: the work is told when the lease ends', async () => {
  const wire = await Wire.open();
  const distant = new Pool({ host: '127.0.0.1', port: wire.port });
  distant.on('error', () => {});
  const called = begun({ lease: 4_000, retry: { attempts: 1 } });
  const start = performance.now();
  await assert.rejects(lease(distant, called, async (held) => {
    wire.delay = 1e6;
    await assert.rejects(sleep(60_000, undefined, { signal: held.signal }), { name: 'AbortError' });
    assert.ok(performance.now() - start >= 3_900 && performance.now() - start < 30_000);
    throw held.signal.reason;
  }), LeaseLost);
  wire.close();
  await distant.end();
});

test('the last attempt decides the operation, even after its lease has ended', async () => {
  class Unreachable { on() {} connect() { return new Promise(() => {}); } } // for the heartbeat
  const heartless = { connect: () => pool.connect(), Client: Unreachable };
  const decline = () => { throw new Failure('declined'); };
  for (const [decide, decided] of [[payment, 'completed'], [decline, 'failed']]) {
    const [called] = await abandon(1, { scope: 'twice' });
    const late = { ...called, lease: 200 };
    const attempt = () => lease(heartless, late, async (held) => {
      await assert.rejects(sleep(60_000, undefined, { signal: held.signal }), { name: 'AbortError' });
      await until(async () => await state(called.key, 'twice') === 'exhausted');
      const refused = await lease(pool, called, () => assert.fail('runs')).catch((error) => error);
      assert.deepEqual([refused.code, retryAfter(refused)], ['ID014', 60_000]);
      return decide(held);
    });
    const first = await attempt().catch((error) => error);
    assert.equal(await state(called.key, 'twice'), decided);
    const again = await lease(pool, called, () => assert.fail('runs')).catch((error) => error);
    assert.deepEqual([first.replayed, again.replayed, first.response, first.message],
      [false, true, again.response, again.message]);
    assert.equal(await effects(called.request), decided === 'completed' ? 1 : 0);
  }
});

test('a process that has slept over the end of its lease asks whether it is lost', async () => {
  const slept = () => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 6_100);
  const called = begun({ lease: 6_000 });
  await lease(pool, called, async (held) => {
    slept(); // nothing of this process runs
    await until(async () => held.signal.aborted
      || new Date((await unfinished(called.key)).lease_end) > new Date());
    assert.equal(held.signal.aborted, false);
    return payment(held);
  });
  assert.equal(await effects(called.request), 1);
});

test('no step begins after the lease has ended by the clock of the caller, unless it can be renewed', async () => {
  const slept = () => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1_100);
  const called = begun({ lease: 1_000 });
  await lease(pool, called, async (held) => {
    slept();
    assert.equal(await held.step('late', async () => 'done'), 'done');
    return payment(held);
  });
  const taken = begun({ lease: 1_000 });
  await assert.rejects(lease(pool, taken, async (held) => {
    const other = spawnSync(process.execPath, ['-e', `
      const { Client } = require(${JSON.stringify(require.resolve('pg'))});
      const client = new Client();
      client.connect().then(() => new Promise((done) => setTimeout(done, 1_000)))
        .then(() => client.query("SELECT token FROM idem.claim('charges', $1, $2, lease => '1 minute')",
          ${JSON.stringify([taken.key, taken.request])})).then(() => client.end());`], { encoding: 'utf8' });
    assert.equal(other.stderr, ''); // nothing of this process has run, not even its heartbeat
    await held.step('charge', () => assert.fail('runs'));
  }), LeaseLost);
});

test('a pool without a class for connections lends one for the heartbeat', async () => {
  const called = begun({ lease: 9_000 });
  await lease({ connect: () => pool.connect() }, called, async (held) => {
    const { lease_end: first } = await unfinished(called.key);
    await until(async () => (await unfinished(called.key)).lease_end > first);
    return payment(held);
  });
  await settled(pool);
  assert.equal(await effects(called.request), 1);
});

// IDEM_TEST_PROXIES names proxies that cut two connections each: "answer=5433 effect=5434".
for (const [place, port] of (process.env.IDEM_TEST_PROXIES ?? '').split(' ').filter(Boolean).map((p) => p.split('='))) {
  test(`connections cut (${place}): one effect, and the stored answer`, async () => {
    const cut = new Pool({ host: '127.0.0.1', port });
    closing.push(() => cut.end());
    for (let calls = 0; calls < 3; calls++) {
      const called = begun({ lease: 1_000 });
      const { response } = await lease(cut, called, payment);
      assert.deepEqual(response, await one(`SELECT response FROM idem.lookup('charges', $1)`, [called.key]));
      assert.equal(await effects(called.request), 1);
    }
  });
}

// Workers ------------------------------------------------------------------------------------------

// Begins operations whose callers have gone.
async function abandon(count, more = { scope: 'left' }) {
  const left = Array.from({ length: count }, () => begun(more));
  for (const called of left) {
    await assert.rejects(lease(pool, { ...called, backoff: { base: 0 } }, (held) =>
      held.step('begun', async () => called.key).then(() => { throw new Error('gone'); })), /gone/);
  }
  return left;
}
const finished = async (left, scope = 'left') => {
  for (const { key } of left) if (await state(key, scope) === 'in_progress') return false;
  return true;
};

test('a worker finishes what others left, so many at a time, and stops', async () => {
  const left = await abandon(6);
  let running = 0;
  let most = 0;
  const errors = [];
  const finisher = worker(pool, { scope: 'left', concurrency: 2, onError: (error, { key }) => errors.push([error.message, key]), backoff: { base: 0 } },
    async (held) => {
      most = Math.max(most, ++running);
      try {
        assert.equal(await held.step('begun', () => assert.fail('runs again')), held.key);
        await sleep(20);
        if (held.key === left[0].key && held.attempt === 2) throw new Error('once more');
        return await payment(held);
      } finally {
        running--;
      }
    });
  await until(() => finished(left));
  await finisher.stop();
  assert.deepEqual([most, running, errors], [2, 0, [['once more', left[0].key]]]);
  for (const called of left) {
    assert.equal(await effects(called.request), 1);
    assert.equal((await lease(pool, called, () => assert.fail('runs'))).replayed, true);
  }
  const [late] = await abandon(1);
  await sleep(300);
  assert.equal(await state(late.key, 'left'), 'in_progress');
  await lease(pool, late, payment);
});

test('what a worker leaves without attempts is undecided until one more is allowed', async () => {
  const [left] = await abandon(1, { scope: 'twice' });
  const attempts = [];
  const finisher = worker(pool, { scope: 'twice', backoff: { base: 0 } }, async (held) => {
    attempts.push(held.attempt);
    if (held.attempt === 2) throw new Error('secret');
    return payment(held);
  });
  await until(async () => await state(left.key, 'twice') === 'exhausted');
  const refused = await lease(pool, left, () => assert.fail('runs')).catch((error) => error);
  assert.deepEqual([refused.code, /secret/.test(refused.message)], ['ID014', false]);
  await pool.query(`SELECT idem.revoke('twice', $1)`, [left.key]);
  await until(async () => await state(left.key, 'twice') === 'completed');
  await finisher.stop();
  assert.deepEqual([attempts, await effects(left.request)], [[2, 3], 1]);
});

test('a worker stops at a signal, after what it is doing', async () => {
  const [left] = await abandon(1);
  let started;
  const taken = new Promise((resolve) => { started = resolve; });
  const finisher = worker(pool, { scope: 'left', signals: ['SIGHUP'] }, async (held) => {
    started();
    await sleep(300);
    return payment(held);
  });
  await taken;
  const own = () => {}; // of the application, which therefore goes on
  process.on('SIGHUP', own);
  process.kill(process.pid, 'SIGHUP');
  await finisher.finished;
  assert.deepEqual([await effects(left.request), process.listeners('SIGHUP')], [1, [own]]);
  process.off('SIGHUP', own);
});

// What becomes of a process with a server that would run on.
async function ended(code, signal) {
  const child = spawn(process.execPath, ['-e', `
    const { Pool } = require(${JSON.stringify(require.resolve('pg'))});
    const { worker } = require(${JSON.stringify(require.resolve('pg-idem'))});
    const pool = new Pool();
    require('node:http').createServer().listen(0, () => console.log('ready'));
    ${code}`], { stdio: ['ignore', 'pipe', 'pipe'] });
  let said = '';
  child.stderr.on('data', (text) => { said += text; });
  const exit = new Promise((resolve) => { child.on('exit', (status, by) => resolve([status, by])); });
  child.stdout.once('data', () => setTimeout(() => signal && child.kill(signal), 200));
  const [status, by] = await exit;
  return { status, by, said };
}

test('SIGTERM ends the process when its workers have stopped; a mistake ends it with an error', async () => {
  const two = "for (const scope of ['left', 'charges']) worker(pool, { scope, wait: 300 }, async () => {});";
  for (const signal of ['SIGTERM', 'SIGINT']) assert.deepEqual(await ended(two, signal), { status: null, by: signal, said: '' });
  // Of the application, which therefore ends by itself; its listener is removed before the worker stops.
  const own = "process.once('SIGTERM', () => setTimeout(() => process.exit(7), 1_500));";
  for (const both of [own + two, two + own]) assert.equal((await ended(both, 'SIGTERM')).status, 7);
  const unknown = await ended("worker(pool, { scope: 'no such' }, async () => {});");
  assert.deepEqual([unknown.status, /no such/.test(unknown.said)], [1, true]);
  const stranger = `stranger_${process.pid}`;
  await pool.query(`CREATE ROLE ${stranger} LOGIN`);
  const denied = await ended(`pool.options.user = '${stranger}'; worker(pool, { scope: 'left' }, async () => {});`);
  await pool.query(`DROP ROLE ${stranger}`);
  assert.deepEqual([denied.status, /permission denied/.test(denied.said)], [1, true]);
});

test('a worker survives what its next call may not meet again', async () => {
  for (const [code, severity, ends] of [['XX000', 'ERROR', false], ['54001', 'ERROR', false], [undefined, undefined, false],
    ['42501', 'ERROR', true], ['28P01', 'FATAL', true]]) {
    const failure = Object.assign(new Error('no token for a password'), { code, severity });
    const failing = [failure];
    const told = [];
    const faulty = { connect: async () => { if (failing.length) throw failing.pop(); return pool.connect(); } };
    const finisher = worker(faulty, { scope: 'left', wait: 100, onError: (error) => told.push(error) }, payment);
    if (ends) await assert.rejects(finisher.finished, failure, code);
    else await assertFinishes(finisher);
    assert.deepEqual(told, ends ? [] : [failure]);
  }
  const own = new Pool();
  const ended = assert.rejects(worker(own, { scope: 'left', wait: 100 }, payment).finished, /after calling end/);
  await own.end();
  await ended;
});

async function assertFinishes(finisher) {
  const called = begun({ scope: 'left', backoff: { base: 0 } });
  await assert.rejects(lease(pool, called, async () => { throw new Error('down'); }));
  await Promise.race([until(async () => await state(called.key, 'left') === 'completed'), finisher.finished]);
  await finisher.stop();
}

test('the events of a lease and of a worker', async () => {
  const events = [];
  const onEvent = ({ type, key, error, seconds }) => events.push([type, key, error?.message, seconds >= 0]);
  const called = begun({ scope: 'left', onEvent, backoff: { base: 0 } });
  const told = (...list) => list.map(([type, message]) => [type, called.key, message, true]);
  await assert.rejects(lease(pool, called, async () => { throw new Error('down'); }));
  assert.deepEqual(events.splice(0), told(['claimed'], ['error', 'down']));
  const finisher = worker(pool, { scope: 'left', onEvent }, payment);
  await until(async () => await state(called.key, 'left') === 'completed');
  await finisher.stop();
  assert.deepEqual(events.splice(0), told(['claimed'], ['completed']));
  await lease(pool, called, () => assert.fail('runs'));
  assert.deepEqual(events, told(['replayed']));
});

test('what has not ended after the time of grace is told to, and due for others at once', async () => {
  const [left] = await abandon(1);
  const finisher = worker(pool, { scope: 'left', grace: 100, onError: (error) => assert.fail(error) },
    (held) => new Promise((_, reject) => {
      held.signal.addEventListener('abort', () => reject(held.signal.reason));
      setTimeout(() => finisher.stop(), 10);
    }));
  await finisher.finished;
  assert.deepEqual((await unfinished(left.key)).last_error, { message: 'gone' });
  assert.equal((await lease(pool, { ...left, ...impatient }, payment)).replayed, false);
});

test('an operation that is taken while the worker stops is given back', async () => {
  const finisher = worker(pool, { scope: 'left', wait: 5_000 }, () => assert.fail('runs'));
  await sleep(200);
  const stopped = finisher.stop();
  const [left] = await abandon(1);
  await stopped;
  assert.equal((await lease(pool, { ...left, ...impatient }, payment)).replayed, false);
});

test('a worker outlives the server, and a mistake ends it', async () => {
  const wire = await Wire.open();
  const distant = new Pool({ host: '127.0.0.1', port: wire.port });
  distant.on('error', () => {});
  const errors = [];
  // The session that is cut off may still take the operation, for as long as the lease.
  const finisher = worker(distant, { scope: 'left', lease: 300, onError: (error) => errors.push(error) }, payment);
  const taking = `FROM pg_stat_activity WHERE datname = current_database() AND query ~ 'idem[.]take'
    AND state = 'active' AND pid <> pg_backend_pid()`;
  await until(() => one(`SELECT bool_or(pg_cancel_backend(pid)) ${taking}`));
  await until(() => errors.length > 0);
  assert.equal(errors[0].code, '57014');
  await until(() => one(`SELECT count(*) > 0 ${taking}`));
  for (const socket of wire.sockets) socket.destroy();
  await until(() => errors.length > 1);
  const left = await abandon(1);
  await until(() => finished(left));
  await finisher.stop();
  await distant.end();
  wire.close();
  await assert.rejects(worker(pool, { scope: 'no such' }, () => {}).finished, { code: 'ID008' });
});

test("a worker outlives the driver's query_timeout", async () => {
  const slow = new Pool({ query_timeout: 500 });
  closing.push(() => slow.end());
  const locker = await pool.connect();
  await locker.query('BEGIN');
  const errors = [];
  const finisher = worker(slow, { scope: 'left', wait: 100, lease: 300, onError: (error) => errors.push(error.message) }, payment);
  await locker.query('LOCK TABLE idem.record IN ACCESS EXCLUSIVE MODE');
  await sleep(700); // the ROLLBACK that follows the timeout would be answered
  await locker.query('COMMIT');
  locker.release();
  await Promise.race([finisher.finished, until(() => errors.length > 0)]);
  const left = await abandon(1);
  await until(() => finished(left));
  await finisher.stop();
  assert.equal(errors[0], 'Query read timeout');
});

test('a recovery point of another kind is an error of its operation, and not of the worker', async () => {
  const foreign = begun({ scope: 'left' });
  await pool.query(`SELECT idem.checkpoint(token, 'charged', '["ch_1"]'), idem.release(token)
    FROM idem.claim('left', $1, $2, lease => '1 minute')`, [foreign.key, foreign.request]);
  const errors = [];
  const finisher = worker(pool, { scope: 'left', onError: (error, { key }) => errors.push([error.message, key]) }, payment);
  const left = await abandon(1);
  await until(async () => errors.length && finished(left));
  await finisher.stop();
  assert.deepEqual(errors, [['the recovery point of the operation is not one of steps', foreign.key]]);
  await pool.query(`SELECT idem.forget('left', $1, force => true)`, [foreign.key]);
});

test('operations in another record table', async (t) => {
  if (!await one("SELECT to_regproc('idem.create_record_table') IS NOT NULL")) return t.skip('idem has no record tables here');
  const [scope, records] = [`elsewhere ${Date.now()}`, `record_${Date.now()}`];
  await pool.query(`SELECT idem.create_record_table('${records}'), idem.create_scope('${scope}',
    request_required => true, store_request => 'unfinished', records => true)`);
  const elsewhere = { scope, records, backoff: { base: 0 } };
  const { key, request } = begun(elsewhere);
  const atomic = { scope, records, key, request };
  await run(pool, atomic, async (client) => ({ response: await pay(client, atomic.request) }));
  assert.equal((await run(pool, atomic, () => assert.fail('runs'))).replayed, true);
  const left = await abandon(2, elsewhere);
  const finisher = worker(pool, { scope, records }, payment);
  const stateThere = (key) => transaction(pool, async (client) => {
    await client.query('SELECT idem.use_records($1)', [records]);
    return (await client.query('SELECT state FROM idem.lookup($1, $2)', [scope, key])).rows[0].state;
  });
  for (const { key } of left) await until(async () => await stateThere(key) === 'completed');
  await finisher.stop();
  for (const called of left) {
    assert.equal(await effects(called.request), 1);
    assert.equal((await lease(pool, called, () => assert.fail('runs'))).replayed, true);
  }
});

test('NotStored under a lease: the caller gets it, and the operation is due again', async () => {
  const called = begun({ backoff: { base: 0 } });
  const events = [];
  const onEvent = ({ type }) => events.push(type);
  await assert.rejects(lease(pool, { ...called, onEvent }, async () => { throw new NotStored({ a: 1 }); }), (error) => error instanceof NotStored && error.response.a === 1);
  assert.deepEqual([events, await state(called.key, 'charges')], [['claimed', 'not_stored'], 'in_progress']);
  assert.equal((await lease(pool, called, payment)).replayed, false);
});

test('after complete(), no Failure and no NotStored: the caller would take it for the outcome', async () => {
  for (const thrown of [new Failure('declined'), new NotStored({ a: 1 })]) {
    const called = begun();
    const events = [];
    const onEvent = ({ type }) => events.push(type);
    await assert.rejects(lease(pool, { ...called, onEvent }, async (held) => { await payment(held); throw thrown; }),
      (error) => !(error instanceof thrown.constructor) && error.cause === thrown && /was completed before/.test(error.message));
    assert.deepEqual([events, await effects(called.request)], [['claimed', 'error'], 1]);
    assert.equal((await lease(pool, called, () => assert.fail('runs'))).replayed, true);
  }
});

test('a step that nothing waits for: the operation does not complete without it, and no error ends the process', async () => {
  const ends = {
    complete: (held) => payment(held),
    return: async () => ({ response: 1 }),
    throw: async () => { throw new Error('down'); },
  };
  for (const [name, end] of Object.entries(ends)) {
    const called = begun({ backoff: { base: 60_000 } });
    let proceed;
    const unhandled = [];
    const listen = (error) => unhandled.push(error);
    process.on('unhandledRejection', listen);
    await assert.rejects(lease(pool, called, (held) => {
      held.step('u', () => new Promise((resolve) => { proceed = resolve; }));
      held.step('v', () => new Promise((_, reject) => { held.signal.addEventListener('abort', () => reject(held.signal.reason)); }));
      return end(held);
    }), name === 'throw' ? /down/ : /step "u" is still running/);
    assert.deepEqual([await effects(called.request), await state(called.key, 'charges')], [0, 'in_progress']);
    proceed();
    await sleep(100); // its result is refused, because the lease has ended
    process.off('unhandledRejection', listen);
    assert.deepEqual(unhandled, [], name);
  }
});

test('what goes on after its attempt has failed is told, and begins no step', async () => {
  for (const error of [new Error('down'), new Failure('declined')]) {
    let proceed;
    let late;
    const proceeding = new Promise((resolve) => { proceed = resolve; });
    await assert.rejects(lease(pool, begun(), async (held) => {
      late = proceeding.then(async () => {
        assert.ok(held.signal.reason instanceof LeaseLost);
        await held.step('charge', () => assert.fail('runs'));
      });
      throw error;
    }), error);
    proceed();
    await assert.rejects(late, LeaseLost);
  }
});
