'use strict';
const assert = require('node:assert/strict');
const { existsSync } = require('node:fs');
const path = require('node:path');
const { after, test } = require('node:test');
const { Client, Pool, types } = require('pg');
const { Conflict, Failure, NotStored, Refused, idempotent, isTransient, lease, retryAfter, run, transaction, worker } = require('pg-idem');
const { counts, effects, finish, holder, one, operation, pay, pool, settled, state, useUpAttempts } = require('./support.js');

after(finish);

const once = { attempts: 1 };
const payOnce = idempotent(pool, { scope: 'payments' }, pay);
const bound = (request, name = 'pay') => ({ function: name, request }); // of idempotent()
const rejected = (promise) => promise.then(() => assert.fail('not rejected'), (error) => error);

test('a retry gets the first answer, and has no second effect', async () => {
  const { key, request } = operation();
  const first = await payOnce(key, request);
  assert.deepEqual(await payOnce(key, { amount: request.amount }), first);
  assert.equal(await effects(request), 1);
});

test('run() tells a replay from the first answer, which are otherwise the same', async () => {
  const { key, request } = operation();
  const answer = {
    response: { at: new Date(0), none: undefined, amounts: [1.5] }, status: 201,
    headers: { location: '/payments/1' }, body: Buffer.from([0, 255]),
  };
  const work = async (client) => { await pay(client, request); return answer; };
  const { replayed, ...first } = await run(pool, { scope: 'payments', key, request }, work);
  const { replayed: again, ...retry } = await run(pool, { scope: 'payments', key, request }, work);
  assert.deepEqual([replayed, again], [false, true]);
  assert.deepEqual(retry, first);
  assert.deepEqual(first.response, { at: '1970-01-01T00:00:00.000Z', amounts: [1.5] });
  assert.equal(await effects(request), 1);
});

test('an operation without an answer', async () => {
  const { key, request } = operation();
  const nothing = idempotent(pool, { scope: 'payments', name: 'nothing' }, async () => {});
  assert.deepEqual([await nothing(key, request), await nothing(key, request)], [null, null]);
});

test('the same key in two tenants is two operations', async () => {
  const { key, request } = operation();
  await payOnce(key, request, { tenant: 'acme' });
  await payOnce(key, request, { tenant: 'apex' });
  assert.equal(await effects(request), 2);
});

test('many callers with one key: one effect, one answer', async () => {
  const { key, request } = operation();
  const answers = await Promise.all(Array.from({ length: 50 }, () => payOnce(key, request)));
  assert.deepEqual(answers, Array(50).fill(answers[0]));
  assert.equal(await effects(request), 1);
});

test('a claim waits for two seconds unless the caller says otherwise, and passes its ttl', async () => {
  const { key, request } = operation();
  const claims = [];
  const spy = {
    async connect() {
      const client = await pool.connect();
      const { query } = Object.getPrototypeOf(client);
      client.query = (config, ...more) => {
        if (/try_claim/.test(config.text)) claims.push(/wait => E'([^']*)'/.exec(config.text)[1]);
        return query.call(client, config, ...more);
      };
      return client;
    },
  };
  await run(spy, { scope: 'payments', key, request, ttl: 3_600_000 }, () => {});
  await run(spy, { scope: 'payments', key, request, wait: 3_000 }, () => {});
  assert.deepEqual(claims, ['2000 milliseconds', '3000 milliseconds']);
  assert.equal(await one(`SELECT expires_at - now() < '1 hour' FROM idem.lookup('payments', $1)`, [key]), true);
});

test('a key is text, and the request is said', async () => {
  const nowhere = { connect: () => assert.fail('connects') };
  const payNowhere = idempotent(nowhere, { scope: 'payments' }, pay);
  for (const key of [{ amount: 1 }, undefined, null, 4711, true, ['k'], Buffer.from('k'), new String('k')]) {
    const error = await rejected(payNowhere(key, { amount: 1 }));
    assert.deepEqual([error.name, /key must be a string/.test(error.message)], ['TypeError', true]);
  }
  for (const request of [undefined, () => {}, Symbol('x')]) {
    const error = await rejected(payNowhere('key', request));
    assert.deepEqual([error.name, /request must be JSON/.test(error.message)], ['TypeError', true]);
  }
  const none = (key) => run(pool, { scope: 'limited', tenant: key, key, request: null }, () => ({ response: 1 }));
  const { key } = operation();
  assert.deepEqual([(await none(key)).replayed, (await none(key)).replayed], [false, true]);
});

test('the name of the function is bound: another one does not get its answer', async () => {
  const { key, request } = operation();
  await payOnce(key, request);
  const refund = idempotent(pool, { scope: 'payments', name: 'refund' }, () => assert.fail('runs'));
  assert.equal((await rejected(refund(key, request))).code, 'ID002');
  assert.equal((await rejected(refund(key, null))).code, 'ID002');
  const renamed = idempotent(pool, { scope: 'payments', name: 'pay' }, () => assert.fail('runs'));
  assert.ok((await renamed(key, request)).payment);
  for (const name of ['', undefined]) assert.throws(() => idempotent(pool, { scope: 'payments', name }, async () => {}), /no name to bind/);
  assert.throws(() => idempotent(pool, { scope: 'payments', name: 7 }, pay), TypeError);
});

test('another function of the same name, which would get its answers, is refused at its definition', async () => {
  const [one, other] = [{}, {}]; // pools
  const define = (pool, text, more = {}) => idempotent(pool, { scope: 'payments', ...more }, new Function(`return async function create(client, request) { ${text} }`)());
  const refused = { name: 'TypeError', message: /"create" .* pass the option name/ };
  define(one, 'charge()');
  define(one, 'charge()'); // one function, which each request makes anew
  assert.throws(() => define(one, 'refund()'), refused);
  assert.throws(() => define(one, 'refund()'), refused); // also a second time
  define(one, 'refund()', { name: 'refund' });
  define(one, 'refund()', { scope: 'limited' });
  define(other, 'refund()');
  define(one, 'refund()', { name: 'create' }); // a function that was renamed, or has been changed
});

test('a function whose source says nothing, such as a bound one, needs a name', () => {
  class Stock { async create() {} }
  const stock = new Stock();
  for (const handler of [stock.create.bind(stock), Array.prototype.push, new Proxy(pay, {})]) {
    const define = (more) => idempotent({}, { scope: 'payments', ...more }, handler);
    assert.throws(() => define(), { name: 'TypeError', message: /another one .* pass the option name/ });
    define({ name: 'create' });
  }
  idempotent({}, { scope: 'payments' }, async function create() { return '[native code]'; });
});

test('an option of a call that is undefined has the value of the definition, but no tenant does', async () => {
  const events = [];
  const own = { scope: 'payments', name: 'own', ttl: 60_000, begin: 'BEGIN ISOLATION LEVEL SERIALIZABLE', onEvent: ({ type }) => events.push(type) };
  const level = idempotent(pool, own, async (client) => (await client.query('SHOW transaction_isolation')).rows[0]);
  const { key } = operation();
  const none = { ttl: undefined, begin: undefined, onEvent: undefined, scope: undefined };
  assert.deepEqual(await level(key, null, none), { transaction_isolation: 'serializable' });
  assert.deepEqual(events, ['claimed', 'completed']);
  assert.ok(await one("SELECT expires_at < now() + interval '2 minutes' FROM idem.lookup('payments', $1)", [key]));
  for (const more of [{ tenant: undefined }, { tennant: undefined }]) await assert.rejects(level(operation().key, null, more), TypeError);
});

test('an answer that is not stored: rolled back, and returned all the same', async () => {
  const { key, request } = operation();
  const events = [];
  let calls = 0;
  const call = () => run(pool, { scope: 'payments', key, request, onEvent: ({ type }) => events.push(type) }, async (client) => {
    await pay(client, request);
    throw new NotStored({ errors: ++calls });
  });
  assert.deepEqual([await call(), await call()], [1, 2].map((errors) => ({ response: { errors }, replayed: false })));
  assert.deepEqual([await effects(request), await state(key), events],
    [0, 'absent', ['claimed', 'not_stored', 'claimed', 'not_stored']]);
});

test('the Failure of an operation inside of another one is no replay of that', async () => {
  const inner = operation();
  const events = [];
  const charge = () => run(pool, { scope: 'payments', sendRetention: true, ...inner }, () => { throw new Failure('declined'); });
  await rejected(charge());
  const outer = operation();
  const options = { scope: 'payments', ...outer, onEvent: ({ type }) => events.push(type) };
  for (const replayed of [false, true]) {
    const error = await rejected(run(pool, options, charge));
    assert.deepEqual([error.message, error.replayed, error.expiresAt], ['declined', replayed, undefined]);
  }
  const leased = { ...options, ...operation() };
  const works = [charge, (held) => held.complete(charge)];
  for (const work of works) {
    const { key } = operation();
    for (const replayed of [false, true]) assert.equal((await rejected(lease(pool, { ...leased, key }, work))).replayed, replayed);
  }
  assert.deepEqual(events, Array(3).fill(['claimed', 'failed', 'replayed']).flat());
});

test('an answer that is too large names the limit, and has no effect', async () => {
  const { key, request } = operation();
  const large = async (client) => { await pay(client, request); return { response: 'x'.repeat(70_000) }; };
  assert.match((await rejected(run(pool, { scope: 'payments', key, request }, large))).message,
    /answer is too large: .*"max_answer_size" of scope "payments" allows 65536 bytes/);
  assert.deepEqual([await effects(request), await state(key)], [0, 'absent']);
});

test('an event for each step, with its seconds', async () => {
  const { key, request } = operation();
  const events = [];
  const onEvent = ({ error, seconds, ...event }) => {
    assert.ok(seconds >= 0 && seconds < 60);
    events.push({ ...event, code: error?.code });
  };
  const call = (more, work = async (client) => { await pay(client, request); }) =>
    run(pool, { scope: 'payments', key, request, tenant: 'ann', onEvent, retry: { first: 1 }, ...more }, work);
  await pool.query('ALTER SEQUENCE tries RESTART');
  await call({}, async (client) => { await client.query('SELECT lose_race()'); await pay(client, request); });
  await call();
  await rejected(call({ request: {} }));
  await rejected(call({ key: '', request }));
  const other = `${key} 2`;
  await rejected(call({ key: other }, () => { throw new TypeError('a mistake'); }));
  for (let n = 0; n < 2; n++) await rejected(call({ key: other }, () => { throw new Failure('declined'); }));
  const told = (name, list) => list.map(([type, code]) => ({ type, scope: 'payments', key: name, tenant: 'ann', code }));
  assert.deepEqual(events, [
    ...told(key, [['claimed'], ['retried', '40001'], ['claimed'], ['retried', '40P01'], ['claimed'], ['completed'], ['replayed'], ['conflict', 'ID002']]),
    ...told('', [['refused', 'ID007']]),
    ...told(other, [['claimed'], ['error'], ['claimed'], ['failed', 'ID003'], ['replayed', 'ID003']]),
  ]);
});

// Refusals ----------------------------------------------------------------------------------------

test('another request under the same key is refused', async () => {
  const { key, request } = operation();
  await payOnce(key, request);
  const other = operation().request;
  const error = await rejected(payOnce(key, other));
  assert.ok(error instanceof Refused && error instanceof Conflict);
  assert.deepEqual([error.name, error.code, error.schema, error.constraint, error.differs],
    ['Conflict', 'ID002', 'idem', 'key_conflict', undefined]);
  assert.equal(isTransient(error), false);
  assert.equal(await effects(other), 0);
});

test('a conflict says which members differ, if the scope stores requests', async () => {
  const { key, request } = operation();
  await payOnce(key, request, { scope: 'explaining' });
  const error = await rejected(payOnce(key, operation().request, { scope: 'explaining' }));
  assert.deepEqual(error.differs, ['request.amount']);
});

test('a key in flight: refused with a time, and answered once the holder has completed', async () => {
  const { key, request } = operation();
  const held = await holder(key, bound(request));
  const error = await rejected(payOnce(key, request, { wait: 0, retry: once }));
  assert.deepEqual([error.code, error.constraint, isTransient(error)], ['ID001', 'in_progress', true]);
  assert.ok(retryAfter(error) >= 100);
  for (const style of ['postgres_verbose', 'sql_standard', 'iso_8601']) {
    const session = new Pool({ options: `-c intervalstyle=${style}` });
    const refused = await rejected(run(session, { scope: 'payments', key, request, wait: 0, retry: once }, () => {}));
    assert.ok(retryAfter(refused) >= 100, style);
    await session.end();
  }
  const answer = payOnce(key, request, { wait: 0 });
  await rejected(payOnce(key, request, { wait: 0, retry: once })); // the holder still has it
  await held.complete({ payment: 'of the holder' });
  assert.deepEqual(await answer, { payment: 'of the holder' });
  assert.equal(await effects(request), 0);
});

test('refusals are not retried if the caller does not want it', async () => {
  const { key, request } = operation();
  const held = await holder(key, bound(request));
  const retry = { refusals: false, onRetry: () => assert.fail('retried') };
  assert.equal((await rejected(payOnce(key, request, { wait: 0, retry }))).code, 'ID001');
  await held.complete({});
});

test('an operation without attempts left is undecided: refused with a time, until it is decided', async () => {
  const { key, request } = operation();
  const token = await useUpAttempts(key, bound(request));
  const retry = { onRetry: () => assert.fail('retried') }; // its time is longer than the deadline
  const error = await rejected(payOnce(key, request, { retry }));
  assert.ok(error instanceof Refused && !(error instanceof Failure));
  assert.deepEqual([error.code, error.schema, error.constraint, retryAfter(error), isTransient(error)],
    ['ID014', 'idem', 'attempts_exhausted', 60_000, true]);
  assert.match(error.message, /keep the key/);
  assert.equal((await rejected(payOnce(key, operation().request))).code, 'ID002');
  await pool.query(`SELECT idem.complete($1, '"late"')`, [token]); // by its last attempt
  assert.equal(await payOnce(key, request), 'late');
  assert.equal(await effects(request), 0);
});

test('an undecided operation is asked for again when the server says so', async () => {
  const seen = [];
  const undecided = (client) => client.query(
    `DO $$ BEGIN RAISE EXCEPTION 'undecided' USING ERRCODE = 'ID014', DATATYPE = '50'; END $$`);
  const retry = { attempts: 3, first: 1, onRetry: (error, attempt, delay) => seen.push([error.code, delay >= 50]) };
  assert.equal((await rejected(transaction(pool, undecided, { retry }))).code, 'ID014');
  assert.deepEqual(seen, Array(2).fill(['ID014', true]));
  await rejected(transaction(pool, undecided, { retry: { ...retry, refusals: false } }));
  assert.equal(seen.length, 2);
});

test('the limit of a tenant', async (t) => {
  if (!await counts()) return t.skip('the SQL edition has no claims_per_minute');
  const { key } = operation();
  const tenant = key;
  const limited = (name) => run(pool, { scope: 'limited', key: name, request: null, tenant, retry: once }, () => ({}));
  await limited('first');
  const error = await rejected(limited('second'));
  assert.deepEqual([error.code, error.constraint, isTransient(error)], ['ID009', 'limit_exceeded', true]);
  assert.ok(retryAfter(error) > 1000 && retryAfter(error) <= 60_000);
  assert.equal((await limited('first')).replayed, true);
  // Longer than the deadline: the caller gets it at once.
  const retry = { onRetry: () => assert.fail('retried') };
  const late = await rejected(run(pool, { scope: 'limited', key, request: null, tenant, retry }, () => ({})));
  assert.equal(late.code, 'ID009');
});

test('an operator that others have planted in the search path is not run', async () => {
  await pool.query(`CREATE SCHEMA planted;
    CREATE FUNCTION planted.times(integer, numeric) RETURNS numeric LANGUAGE plpgsql
      AS $$ BEGIN RAISE 'planted'; END $$;
    CREATE OPERATOR planted.* (FUNCTION = planted.times, LEFTARG = integer, RIGHTARG = numeric)`);
  const session = new Pool({ options: '-c search_path=public,planted' });
  const { key, request } = operation();
  const held = await holder(key, request);
  const error = await rejected(run(session, { scope: 'payments', key, request, wait: 0, retry: once }, () => {}));
  assert.equal(error.code, 'ID001');
  await held.complete({});
  await session.end();
  await pool.query('DROP SCHEMA planted CASCADE');
});

test('a stale key, a weak key', async () => {
  const { request } = operation();
  const stale = await rejected(
    payOnce('018f0000-0000-7000-8000-000000000000', request, { scope: 'fresh' }));
  assert.deepEqual([stale.code, stale.constraint], ['ID010', 'stale_key']);
  const weak = await rejected(payOnce('4711', request, { scope: 'strong' }));
  assert.deepEqual([weak.code, weak.constraint], ['ID007', 'invalid_key']);
});

test('the errors of idem itself: the time is in a field', async () => {
  const { key, request } = operation();
  const held = await holder(key, request);
  const claim = (client) =>
    client.query(`SELECT * FROM idem.claim('payments', $1, $2, wait => '0')`, [key, request]);
  const error = await rejected(transaction(pool, claim, { retry: once }));
  assert.deepEqual([error.code, error.schema, error.constraint], ['ID001', 'idem', 'in_progress']);
  assert.match(error.column, /^\d{4}-\d\d-\d\dT[\d:.]+(Z|\+00:00)$/);
  assert.equal(retryAfter(error), Number(error.dataType));
  assert.ok(retryAfter(error) >= 100);
  await held.complete({});

  const twice = await rejected(transaction(pool, async (client) => {
    await client.query(`SELECT * FROM idem.claim('payments', $1, $2)`, [`${key} twice`, request]);
    await client.query(`SELECT * FROM idem.claim('payments', $1, $2)`, [`${key} twice`, request]);
  }));
  assert.deepEqual([twice.code, isTransient(twice)], ['ID001', false]);
});

test('stored headers that would be two are not returned', async () => {
  for (const headers of [{ 'X-A': '1\r\nSet-Cookie: sid=evil' }, { 'X\r\nSet-Cookie': '1' }, { 'X-A ': '1' },
    { 'X-A': ['1', '\n'] }, { 'X-A': 7 }, [['X-A', '1']], 'X-A']) {
    const { key, request } = operation();
    await payOnce(key, request);
    await pool.query(`UPDATE idem.record SET headers = $2
      WHERE coalesce(key, to_jsonb(record)->>'key_uuid') = $1`, [key, JSON.stringify(headers)]);
    assert.match((await rejected(payOnce(key, request))).message, /headers that cannot be sent/);
  }
});

test('headers are stored as strings', async () => {
  const { key, request } = operation();
  const work = () => ({ headers: { age: '7', vary: ['accept', 'origin'], none: [] } });
  const first = await run(pool, { scope: 'payments', key, request }, work);
  const retry = await run(pool, { scope: 'payments', key, request }, work);
  assert.deepEqual(retry.headers, { age: '7', vary: ['accept', 'origin'], none: [] });
  assert.deepEqual(first.headers, retry.headers);
});

// Types -------------------------------------------------------------------------------------------

// Runs the work while the application has parsers of its own for these types.
async function withParsers(work) {
  const own = [16, 17, 20, 23, 25, 114, 1009, 1184, 1186, 3802, 3807].map((type) => [type, types.getTypeParser(type)]);
  for (const [type] of own) types.setTypeParser(type, (text) => `parsed: ${text}`);
  try {
    return await work();
  } finally {
    for (const [type, parser] of own) types.setTypeParser(type, parser);
  }
}

test('no parser of the application takes part in what the package reads', async () => {
  const explaining = operation();
  const answer = { status: 201, headers: { 'x-a': ['1', '2'] }, body: Buffer.from([0, 92, 39, 97, 255]), response: { n: 1 } };
  await withParsers(async () => {
    for (const output of ['hex', 'escape']) {
      const { key, request } = operation();
      const seen = [];
      const call = () => run(pool, { scope: 'payments', key, request, sendRetention: true, begin: `BEGIN; SET LOCAL bytea_output = ${output}` },
        async (client) => {
          seen.push((await client.query(`SELECT 7 AS n, '[]'::jsonb AS j`)).rows[0]);
          return answer;
        });
      const [{ expiresAt, ...first }, { expiresAt: again, ...retry }] = [await call(), await call()];
      assert.deepEqual([first, retry], [{ ...answer, replayed: false }, { ...answer, replayed: true }]);
      assert.ok(expiresAt instanceof Date && Math.abs(expiresAt - Date.now() - 7 * 86_400_000) < 60_000);
      assert.deepEqual(again, expiresAt);
      assert.deepEqual(seen, [{ n: 'parsed: 7', j: 'parsed: []' }]); // its own queries keep them
    }
    const failed = operation();
    const fail = () => rejected(run(pool, { scope: 'payments', ...failed }, () => { throw new Failure('declined', { sqlstate: 'P0402', status: 402 }); }));
    for (const error of [await fail(), await fail()]) assert.deepEqual([error.message, error.code, error.status], ['declined', 'P0402', 402]);
    const asked = (request) => run(pool, { scope: 'explaining', key: explaining.key, request }, () => {});
    await asked({ 'a,"b"': 1, c: 1, NULL: 1 });
    assert.deepEqual((await rejected(asked({ 'a,"b"': 2, c: 1, NULL: 2 }))).differs.sort(), ['"a,\\"b\\""', 'NULL']);
    if (!await counts()) return;
    const limited = (key) => run(pool, { scope: 'limited', tenant: explaining.key, key, request: null, retry: once }, () => {});
    await limited('1');
    assert.ok(retryAfter(await rejected(limited('2'))) <= 60_000);
  });
});

test('no parser of the application takes part in leases and workers', async () => {
  const scope = `parsed ${Date.now()}`;
  await pool.query("SELECT idem.create_scope($1, request_required => true, store_request => 'unfinished')", [scope]);
  await withParsers(async () => {
    const [left, done] = [operation(), operation()];
    const charge = async (held) => ({ response: [held.attempt, held.request, await held.step('charge', () => assert.fail('runs'))] });
    const begin = (called) => assert.rejects(lease(pool, { scope, ...called, backoff: { base: 0 } }, async (held) => {
      assert.match(await held.childKey('charge'), /^[0-9a-f]{64}$/);
      await held.step('charge', async () => ({ charge: [held.attempt] }));
      throw new Error('down');
    }), /down/);
    await begin(done);
    const { response } = await lease(pool, { scope, ...done }, charge);
    assert.deepEqual(response, [2, done.request, { charge: [1] }]);
    await begin(left);
    const finisher = worker(pool, { scope, wait: 100, onError: (error) => assert.fail(error) }, charge);
    while (await state(left.key, scope) !== 'parsed: completed') await new Promise((resolve) => { setTimeout(resolve, 20); });
    await finisher.stop();
    const again = await lease(pool, { scope, ...left }, () => assert.fail('runs'));
    assert.deepEqual([again.response, again.replayed], [[2, left.request, { charge: [1] }], true]);
  });
});

// Failures ----------------------------------------------------------------------------------------

test('a Failure undoes the effect, is stored, and is what every retry gets', async () => {
  const { key, request } = operation();
  let calls = 0;
  const decline = idempotent(pool, { scope: 'payments', name: 'decline' }, async (client) => {
    calls++;
    await pay(client, request);
    throw new Failure('card declined', { sqlstate: 'P0402', hint: 'Use another card.', status: 402 });
  });
  const first = await rejected(decline(key, request));
  const retry = await rejected(decline(key, request));
  for (const error of [first, retry]) {
    assert.ok(error instanceof Failure);
    assert.deepEqual([error.message, error.code, error.hint, error.status],
      ['card declined', 'P0402', 'Use another card.', 402]);
  }
  assert.deepEqual([first.replayed, retry.replayed, calls], [false, true, 1]);
  assert.deepEqual([await effects(request), await state(key)], [0, 'failed']);
  const raised = await rejected(pool.query(`SELECT idem.claim('payments', $1, $2)`, [key, bound(request, 'decline')]));
  assert.deepEqual([raised.code, raised.message], ['P0402', 'card declined']);
});

test('a Failure after an error of the server', async () => {
  const { key, request } = operation();
  const error = await rejected(run(pool, { scope: 'payments', key, request }, async (client) => {
    await client.query('SELECT 1 / 0').catch((zero) => { throw new Failure(zero.message); });
  }));
  assert.deepEqual([error.message, error.code, await state(key)], ['division by zero', 'ID003', 'failed']);
});

test('a cancelled operation never runs', async () => {
  const cancel = (key) => one(`SELECT state FROM idem.cancel('payments', $1, error => '{"message": "too late"}')`, [key]);
  const { key, request } = operation();
  assert.equal(await cancel(key), 'failed');
  await pool.query(`SELECT idem.revoke('payments', $1)`, [key]);
  const error = await rejected(payOnce(key, request));
  assert.deepEqual([error instanceof Failure, error.message, error.replayed], [true, 'too late', true]);
  assert.equal(await effects(request), 0);
  const undecided = operation();
  await useUpAttempts(undecided.key, bound(undecided.request));
  assert.equal(await cancel(undecided.key), 'exhausted');
  assert.equal((await rejected(payOnce(undecided.key, undecided.request))).code, 'ID014');
});

test('any other error rolls back and frees the key', async () => {
  const { key, request } = operation();
  let calls = 0;
  const error = await rejected(run(pool, { scope: 'payments', key, request }, async (client) => {
    calls++;
    await pay(client, request);
    throw new TypeError('a mistake');
  }));
  assert.ok(error instanceof TypeError);
  assert.deepEqual([calls, await effects(request), await state(key)], [1, 0, 'absent']);
  await payOnce(key, request);
  assert.equal(await effects(request), 1);
});

test('an ignored error is not taken for success', async () => {
  const { key, request } = operation();
  const ignore = (client) => client.query('SELECT 1 / 0').catch(() => ({}));
  assert.match((await rejected(run(pool, { scope: 'payments', key, request }, ignore))).message, /has ignored an error/);
  assert.equal(await state(key), 'absent');
  assert.match((await rejected(transaction(pool, ignore))).message, /has ignored an error/);
});

// Retries -----------------------------------------------------------------------------------------

test('lost races are retried', async () => {
  const { key, request } = operation();
  await pool.query('ALTER SEQUENCE tries RESTART');
  await run(pool, { scope: 'payments', key, request }, async (client) => {
    await client.query('SELECT lose_race()');
    return { response: await pay(client, request) };
  });
  assert.equal(await one('SELECT last_value::integer FROM tries'), 3);
  assert.equal(await effects(request), 1);
});

test('a request that has changed since the call runs nothing, and its key stays unused', async () => {
  const changed = { name: 'TypeError', message: /the request has changed/ };
  const calls = {
    idempotent: ({ key, request }, work) => idempotent(pool, { scope: 'payments', name: 'pay' }, work)(key, request),
    run: ({ key, request }, work) => run(pool, { scope: 'payments', key, request }, (client) => work(client, request)),
    lease: ({ key, request }, work) => lease(pool, { scope: 'charges', key, request, backoff: { base: 0 } },
      (held) => held.complete((client) => work(client, held.request))),
  };
  for (const [name, call] of Object.entries(calls)) {
    const { key, request } = operation();
    const { amount } = request;
    const called = call({ key, request }, async (client) => assert.fail('runs'));
    request.amount *= 2; // the caller, during the claim
    await assert.rejects(called, changed, name);
    const left = async () => (name === 'lease' ? state(key, 'charges') : state(key));
    const expected = name === 'lease' ? 'in_progress' : 'absent';
    assert.equal(await left(), expected);
    request.amount = amount;
    await pool.query('ALTER SEQUENCE tries RESTART');
    let runs = 0;
    await assert.rejects(call({ key, request }, async (client, read) => {
      runs++;
      read.amount *= 2; // the handler, which loses a race
      await pay(client, read);
      await client.query('SELECT lose_race()');
    }), changed, name);
    assert.deepEqual([runs, await effects(request), await left()], [1, 0, expected], name);
  }
  const { key, request } = operation();
  const work = async (client, read) => { read.note = 'paid'; return pay(client, read); }; // what needs no second attempt may change it
  assert.ok((await calls.idempotent({ key, request }, work)).payment);
});

test('the last error is thrown when the attempts are used up', async () => {
  let calls = 0;
  const seen = [];
  const onRetry = (error, attempt, delay) => seen.push([error.code, attempt, delay >= 0]);
  const error = await rejected(transaction(pool, (client) => {
    calls++;
    return client.query(`DO $$ BEGIN RAISE EXCEPTION 'lost' USING ERRCODE = '40001'; END $$`);
  }, { retry: { attempts: 4, first: 1, deadline: 60_000, onRetry } }));
  assert.deepEqual([error.code, calls], ['40001', 4]);
  assert.deepEqual(seen, [1, 2, 3].map((attempt) => ['40001', attempt, true]));
});

test('transactions begin as the caller says', async () => {
  const level = await transaction(pool, async (client) =>
    (await client.query('SHOW transaction_isolation')).rows[0].transaction_isolation,
  { begin: 'BEGIN ISOLATION LEVEL SERIALIZABLE' });
  assert.equal(level, 'serializable');
});

test('serializable operations: one effect, one answer', async () => {
  const { key, request } = operation();
  const begin = 'BEGIN ISOLATION LEVEL SERIALIZABLE';
  const answers = await Promise.all(Array.from({ length: 20 }, () => payOnce(key, request, { begin })));
  assert.deepEqual(answers, Array(20).fill(answers[0]));
  assert.equal(await effects(request), 1);
});

test('no server: retried, then reported', async () => {
  const nowhere = new Pool({ host: '127.0.0.1', port: 1 });
  const error = await rejected(transaction(nowhere, () => {}, { retry: { attempts: 2, first: 1, deadline: 2_000 } }));
  assert.deepEqual([error.code, isTransient(error)], ['ECONNREFUSED', true]);
  await nowhere.end();
});

test('a server that ends a connection in its first packet does not end the process', async () => {
  let connections = 0;
  class Ended extends Client {
    connect(callback) {
      super.connect((error) => { callback(error); if (connections++ === 0) this.connection.emit('errorMessage', new Error('ended')); });
    }
  }
  const ending = new Pool({ Client: Ended });
  const { key, request } = operation();
  for (const of of [ending, { connect: () => ending.connect() }]) { // one that takes no callback
    await run(of, { scope: 'payments', key, request }, async (client) => ({ response: await pay(client, request) }));
  }
  assert.deepEqual([connections, await effects(request)], [2, 1]);
  await settled(ending).then(() => ending.end());
});

test('a database, role or password that is wrong is no transient error, nor are too many parameters', async () => {
  const { key, request } = operation();
  const of = async (settings) => {
    const other = new Pool(settings);
    const error = await rejected(run(other, { scope: 'payments', key, request, retry: { onRetry: () => assert.fail('retried') } }, () => {}));
    await other.end();
    return [error.code ?? error.message, isTransient(error)];
  };
  assert.deepEqual(await of({ database: 'no such' }), ['3D000', false]);
  assert.deepEqual(await of({ user: 'no such' }), ['28000', false]);
  class Sasl extends Client { connect(done) { done(new Error('SASL: SCRAM-SERVER-FIRST-MESSAGE: client password must be a string')); } }
  assert.equal((await of({ Client: Sasl }))[1], false);
  const many = await rejected(transaction(pool, (client) => client.query('SELECT $1', Array(65_537).fill(1))));
  assert.equal(isTransient(many), false);
  // PgBouncer ends a connection with the code of such a message.
  assert.equal(isTransient(Object.assign(many, { severity: 'FATAL', code: '08P01' })), true);
});

test('a refused connection of another kind, outside the database, is not retried', async () => {
  let calls = 0;
  const error = await rejected(transaction(pool, async () => {
    calls++;
    throw Object.assign(new Error('no such service'), { code: 'EPIPE' });
  }));
  assert.deepEqual([error.code, calls, isTransient(error)], ['EPIPE', 1, false]);
});

test("the driver's query_timeout gives the connection up, like a lost one", async () => {
  const slow = new Pool({ query_timeout: 300 });
  const { key, request } = operation();
  const retries = [];
  const retry = { first: 0, onRetry: (error) => retries.push(error.message) };
  const late = (client) => client.query(`SELECT pg_sleep(${retries.length < 2 ? 0.45 : 0})`);
  await run(slow, { scope: 'payments', key, request, retry }, async (client) => {
    await late(client);
    await pay(client, request);
  });
  assert.deepEqual([retries, await effects(request)], [Array(2).fill('Query read timeout'), 1]);
  await assert.rejects(run(slow, { scope: 'payments', ...operation(), retry: once }, (client) => client.query('SELECT pg_sleep(0.6)')), isTransient);
  // That of a connection of the handler itself is its own error, and this one goes on.
  const own = async () => { const client = await slow.connect(); await client.query('SELECT pg_sleep(0.6)').finally(() => client.release(true)); };
  const connections = slow.totalCount;
  await assert.rejects(transaction(pool, own, { retry: { onRetry: () => assert.fail('retried') } }), (error) => !isTransient(error));
  assert.equal(slow.totalCount, connections);
  await slow.end();
});

const skip = Client.prototype.getTransactionStatus ? false : 'pg does not say whether a transaction is open';
test('what another user of the pool has left in a transaction is not committed', { skip }, async () => {
  const dirty = new Pool({ max: 1 });
  for (const [waits, end] of [[true], [false], [true, 'ROLLBACK']]) {
    const [left, own] = [operation(), operation()];
    const client = await dirty.connect();
    const queries = [client.query('BEGIN'), pay(client, left.request)];
    if (waits) await Promise.all(queries);
    if (end) client.query(end);
    client.release();
    const call = () => lease(dirty, { scope: 'payments', ...own }, () => ({}));
    if (!end) await assert.rejects(call(), /an open transaction/);
    assert.equal((await call()).replayed, false);
    assert.equal(await effects(left.request), 0);
  }
  await dirty.end();
});

test('the session is terminated between two statements', async () => {
  const { key, request } = operation();
  let calls = 0;
  await run(pool, { scope: 'payments', key, request }, async (client) => {
    const { rows: [{ pid }] } = await client.query('SELECT pg_backend_pid() AS pid');
    await pay(client, request);
    if (++calls === 1) {
      const ended = new Promise((resolve) => { client.once('error', resolve); });
      await pool.query('SELECT pg_terminate_backend($1)', [pid]);
      await ended;
    }
    return {};
  });
  assert.deepEqual([calls, await effects(request)], [2, 1]);
});

// IDEM_TEST_PROXIES names proxies that cut two connections each: "answer=5433 effect=5434".
for (const [place, port] of (process.env.IDEM_TEST_PROXIES ?? '').split(' ').filter(Boolean).map((p) => p.split('='))) {
  test(`two connections cut (${place}): one effect, and the stored answer`, async () => {
    const { key, request } = operation();
    const cut = new Pool({ host: '127.0.0.1', port });
    const answer = await idempotent(cut, { scope: 'payments' }, pay)(key, request);
    assert.deepEqual(answer, await one(`SELECT response FROM idem.lookup('payments', $1)`, [key]));
    assert.equal(await effects(request), 1);
    await settled(cut);
    assert.equal(cut.totalCount, place === 'answer' ? 0 : 1); // the others were closed
    await cut.end();
  });
}

test('no connection is lost by the pool', async () => {
  await settled(pool);
  assert.equal(pool.idleCount, pool.totalCount);
});

test('the package can be imported', async () => {
  const imported = await import('pg-idem');
  assert.equal(imported.idempotent, idempotent);
});

test('every file that package.json names is there', () => {
  const { main, types, exports } = require('pg-idem/package.json');
  const folder = path.dirname(require.resolve('pg-idem/package.json'));
  const named = [main, types, ...Object.values(exports).flatMap((of) => (of.default ? Object.values(of) : [of]))];
  for (const file of named) assert.ok(existsSync(path.join(folder, file)), file);
});
