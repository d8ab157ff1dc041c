'use strict';
// Values that would be stored or sent as something else are refused before anything runs or commits.
const assert = require('node:assert/strict');
const { after, test } = require('node:test');
const { Readable } = require('node:stream');
const { setTimeout: sleep } = require('node:timers/promises');
const { Failure, idempotent, lease, respond, run, transaction, worker } = require('pg-idem');
const { intent } = require('pg-idem/intent');
const { effects, finish, one, operation, pay, pool, state } = require('./support.js');

after(finish);

const nowhere = { connect: () => assert.fail('connects') };
const NO_TEXT = [undefined, null, 7, {}, ['a'], () => 'a', Promise.resolve('a'), Buffer.from('a')];

test('scope, key, tenant, record table: text', async () => {
  for (const call of [(o) => run(nowhere, o, () => {}), (o) => lease(nowhere, o, () => {})]) {
    for (const [name, called] of [['scope', 'scope'], ['key', 'key'], ['tenant', 'tenant'], ['records', 'record table']]) {
      const with_ = (value) => call({ scope: 'payments', ...operation(), [name]: value });
      for (const value of name === 'records' ? NO_TEXT.slice(1) : NO_TEXT) {
        await assert.rejects(async () => with_(value), { name: 'TypeError', message: new RegExp(`the ${called} must be a string`) });
      }
      await assert.rejects(async () => with_('a\0'), RangeError);
    }
    await assert.rejects(async () => call({ scope: 'payments', ...operation(), tenant: '' }), /the tenant is empty/);
  }
  for (const tenant of NO_TEXT) assert.throws(() => worker(nowhere, { scope: 'left', tenant }, () => {}), TypeError);
  assert.throws(() => worker(nowhere, {}, () => {}), TypeError);
});

test('an option that does not exist: a misspelt tenant would be none', async () => {
  const unknown = { name: 'TypeError', message: 'there is no option "tennant"' };
  const given = { scope: 'payments', ...operation(), tennant: 'acme' };
  for (const call of [run, lease]) await assert.rejects(async () => call(nowhere, given, () => {}), unknown);
  const options = { scope: 'payments', tennant: 'acme' };
  assert.throws(() => idempotent(nowhere, { ...options, name: 'pay' }, () => {}), unknown);
  await assert.rejects(idempotent(nowhere, { scope: 'payments', name: 'pay' }, () => {})('k', null, options), unknown);
  assert.throws(() => worker(nowhere, options, () => {}), unknown);
  assert.throws(() => intent('k', { tennant: 'acme' }), unknown);
  await assert.rejects(async () => transaction(nowhere, () => {}, { tennant: 'acme' }), unknown);
  await assert.rejects(respond(nowhere, { ...options, tenant: null }, { headers: {} }, () => {}), unknown);
  await assert.rejects(async () => run(nowhere, { ...given, tennant: undefined, retry: { attempts: 1 } }, () => {}), unknown);
  await assert.rejects(async () => run(nowhere, { scope: 'payments', ...operation(), retry: { atempts: 1 } }, () => {}),
    /no option "atempts"/);
});

// Options, and values that they cannot have, with a TypeError or else a RangeError.
const calls = {
  idempotent: (of) => idempotent(nowhere, { scope: 'payments', name: 'pay', ...of }, () => {}),
  worker: (of) => worker(nowhere, { scope: 'left', ...of }, () => {}),
  intent: (of) => intent('k', of),
  ...Object.fromEntries(['express', 'fastify'].map((name) => [name,
    (of) => require(`pg-idem/${name}`).idempotent(nowhere, { scope: 'payments', tenant: null, ...of }, () => {})])),
};
const NO_LIST = ['x-session', 402, new Set(['x-session']), { 0: 'a' }, null, [7], [null]];
const NO_COUNT = [[0, 'r'], [-1, 'r'], [1.5, 'r'], [NaN, 'r'], ['4', 't'], [null, 't'], [{}, 't']];
const retries = (name, ...values) => values.map(([value, kind]) => [{ [name]: value }, kind]);
const WRONG = [
  ['worker', 'concurrency', ...NO_COUNT], ['worker', 'concurrency', [Infinity, 'r']],
  ['worker', 'signals', ['SIGTERM', 't'], [[1], 't']], ['worker', 'onError', [true, 't']], ['worker', 'grace', ['1', 't']], ['worker', 'records', [7, 't']],
  ['worker', 'backoff', [5, 't'], ...retries('base', ['1', 't'], [-1, 'r'])],
  ...['idempotent', 'worker', 'express', 'fastify'].flatMap((call) => [
    [call, 'retry', [3, 't'], ['3', 't'], [true, 't'], [null, 't'], [[3], 't'], [() => 3, 't']],
    [call, 'retry', ...retries('attempts', ['3', 't'], [0, 'r'], [NaN, 'r']), ...retries('deadline', ['1', 't'], [-1, 'r']), ...retries('onRetry', [1, 't'])],
    [call, 'onEvent', [true, 't'], ['log', 't'], [null, 't']],
    [call, 'wait', ['1 second', 't'], [-1, 'r']],
  ]),
  ...['idempotent', 'express'].map((call) => [call, 'ttl', ['7 days', 't'], [NaN, 'r']]),
  ['idempotent', 'begin', [7, 't']], ['idempotent', 'name', [7, 't']],
  ...['express', 'fastify'].flatMap((call) => [
    ...['neverStored', 'includeHeaders'].map((name) => [call, name, ...NO_LIST.map((of) => [of, 't'])]),
    [call, 'finalStatuses', ...[...NO_LIST.slice(0, 5), ['402'], [402.5], [null]].map((of) => [of, 't']), [[200], 'r'], [[402, 600], 'r']],
    [call, 'storeIf', [true, 't'], [null, 't']], [call, 'problem', [{}, 't']], [call, 'keyFrom', [7, 't'], [null, 't']],
    [call, 'keyRequired', ['no', 't'], [0, 't']], [call, 'sendRetention', [1, 't']], [call, 'log', [true, 't'], [{}, 't'], [null, 't']], [call, 'documentation', [7, 't']],
  ]),
  ['intent', 'attempts', [0, 'r'], ['3', 't']], ['intent', 'store', [{}, 't']], ['intent', 'timeout', ['1', 't']], ['intent', 'onRetry', [1, 't']],
];

test('an option of another kind is refused when it is given', async () => {
  for (const [call, name, ...values] of WRONG) {
    for (const [value, kind] of values) {
      const label = `${call}: ${name}: ${JSON.stringify(value)}`;
      assert.throws(() => calls[call]({ [name]: value }), kind === 't' ? TypeError : RangeError, label);
    }
  }
  for (const options of [3, 'a', true, ['a'], () => {}, new Map([['attempts', 1]])]) assert.throws(() => intent('k', options), TypeError);
  await assert.rejects(async () => transaction(nowhere, () => {}, { retry: 3 }), TypeError);
  await assert.rejects(respond(nowhere, { scope: 'payments', tenant: null, finalStatuses: '402' }, { headers: {} }, () => {}), TypeError);
  for (const retry of [undefined, { attempts: Infinity, deadline: Infinity }, { refusals: false, first: 0, longest: 1.5 }]) calls.express({ retry });
});

test('an option that is undefined has its default', async () => {
  const none = (...names) => Object.fromEntries(names.map((name) => [name, undefined]));
  const retry = { ...none('attempts', 'deadline', 'onRetry'), first: 0, longest: 0 };
  let connects = 0;
  const unreachable = { connect: async () => {
    if (++connects > 20) assert.fail('connects for ever');
    throw Object.assign(new Error('refused'), { code: 'ECONNREFUSED' });
  } };
  await assert.rejects(run(unreachable, { scope: 'payments', ...operation(), retry }, () => {}), { code: 'ECONNREFUSED' });
  assert.equal(connects, 10);
  connects = 0;
  const options = { scope: 'payments', tenant: null, retry: { ...retry, refusals: undefined }, log: { error() {} }, ...none('wait', 'keyRequired') };
  const request = { method: 'POST', url: '/', path: '/', headers: { 'idempotency-key': 'k' } };
  assert.equal((await respond(unreachable, options, request, () => {})).status, 503);
  assert.equal(connects, 3);
  let asked = 0;
  const onRetry = () => { if (++asked > 20) assert.fail('asks for ever'); };
  await assert.rejects(intent('k', { ...retry, ...none('timeout', 'store', 'retention'), onRetry })
    .fetch('http://127.0.0.1:1/'), TypeError);
  assert.equal(asked, 9);
  const answer = await lease(pool, { scope: 'left', ...operation(), ...none('lease'), backoff: none('base', 'cap') }, () => ({ response: 1 }));
  assert.equal(answer.response, 1);
});

test('a worker whose concurrency is undefined runs one operation at a time', async () => {
  const left = [operation(), operation(), operation()];
  for (const { key, request } of left) {
    await one("SELECT token FROM idem.claim('left', $1, $2, lease => '1 microsecond')", [key, request]);
  }
  let [running, most, done] = [0, 0, 0];
  const options = { scope: 'left', concurrency: undefined, grace: undefined, signals: [], wait: 100 };
  const works = worker(pool, options, async () => {
    most = Math.max(most, ++running);
    await sleep(50);
    running--;
    if (++done === left.length) works.stop();
  });
  await works.finished;
  assert.equal(most, 1);
});

test('times are milliseconds', async () => {
  for (const name of ['ttl', 'wait', 'lease', 'backoff']) {
    for (const [value, kind] of [['1 second', TypeError], [null, TypeError], [{}, TypeError], [NaN, RangeError], [-1, RangeError], [Infinity, RangeError]]) {
      const given = { [name]: name === 'backoff' ? { base: value } : value };
      await assert.rejects(async () => lease(nowhere, { scope: 'payments', ...operation(), ...given }, () => {}), kind);
    }
  }
  const { key, request } = operation();
  await run(pool, { scope: 'payments', key, request, ttl: 60_000 }, () => {});
  assert.equal(await one("SELECT round(extract(epoch FROM expires_at - now())) BETWEEN 50 AND 60 FROM idem.lookup('payments', $1)", [key]), true);
});

// What JSON.stringify() makes {}, null or something else of.
const NO_JSON = {
  map: new Map([['a', 1]]), set: new Set([1]), blob: new Blob(['a']), buffer: new ArrayBuffer(1), typed: new Float32Array(1),
  stream: Readable.from(['a']), web: new Response('a').body, parameters: new URLSearchParams('a=1'), promise: Promise.resolve(1),
  error: Object.assign(new Error('a'), { code: 1 }), pattern: /a/, nan: NaN, infinity: -Infinity, date: new Date(NaN), hole: [undefined],
  symbol: Symbol('a'), method: () => 1, big: 10n,
};
const NO_NUMBERS = ['nan', 'infinity'];
class Money { amount = 1; }
const JSON_VALUES = [false, 0, '', 'a', null, [], {}, [null], { a: undefined, b: 1 }, new Date(0), new Money(), Object.create(null), new URL('http://a/')];

test('a request and an answer are JSON, or refused before anything runs or commits', async () => {
  for (const [name, value] of Object.entries(NO_JSON)) {
    for (const part of [value, { a: [value] }]) {
      const { key, request } = operation();
      const refused = NO_NUMBERS.includes(name) ? RangeError : TypeError;
      await assert.rejects(async () => run(nowhere, { scope: 'payments', key, request: part }, () => {}), refused, name);
      const work = async (client) => { await pay(client, request); return { response: part }; };
      await assert.rejects(run(pool, { scope: 'payments', key, request }, work), refused, name);
      assert.deepEqual([await effects(request), await state(key)], [0, 'absent'], name);
    }
  }
  for (const value of JSON_VALUES) {
    const { key } = operation();
    const call = () => run(pool, { scope: 'payments', key, request: { value } }, () => ({ response: value }));
    const [first, retry] = [await call(), await call()];
    assert.deepEqual([retry.response, retry.replayed], [first.response, true]);
    assert.deepEqual(first.response, JSON.parse(JSON.stringify(value)));
  }
});

const header = (value) => ({ headers: { 'x-a': value } });
const ANSWERS = [
  ...['201', 99, 101, 600, 1000, 200.5, NaN, null, true].map((status) => ({ status })),
  ...[undefined, null, 5, new Date(0), {}, '10 €', 'a\r\nb', 'a\0', ' a', 'a\tb', ['a', 1], [['a']]].map(header),
  { headers: { 'x a': '1' } }, { headers: { '': '1' } }, { headers: [['a', '1']] }, { headers: new Headers({ a: '1' }) }, { headers: 'a' },
  ...['\\x41', 'text', new ArrayBuffer(1), new Float32Array(1), new Blob(['a']), {}].map((body) => ({ body })),
];

test('the error names what is no JSON', async () => {
  for (const [value, name] of [[(function* one() {})(), 'Generator'], [(async function* one() {})(), 'AsyncGenerator'], [new Map(), 'Map']]) {
    await assert.rejects(async () => run(nowhere, { scope: 'payments', ...operation(), request: value }, () => {}), new RegExp(`which has no ${name}$`));
  }
});

test('an answer or a Failure that could not be sent is refused before COMMIT', async () => {
  for (const answer of [...ANSWERS, { answer: 1 }, 7, [], 'text', Promise, new Map(), (async function* pays() { yield 1; })()]) {
    const { key, request } = operation();
    const work = async (client) => { await pay(client, request); return answer; };
    await assert.rejects(run(pool, { scope: 'payments', key, request }, work),
      (error) => error instanceof TypeError || error instanceof RangeError, JSON.stringify(answer));
    assert.deepEqual([await effects(request), await state(key)], [0, 'absent']);
  }
  for (const answer of ANSWERS) {
    if (answer.status === null) continue; // as left out
    const { key, request } = operation();
    const fail = () => { throw new Failure('declined', answer); };
    await assert.rejects(run(pool, { scope: 'payments', key, request }, fail),
      (error) => error instanceof TypeError || error instanceof RangeError, JSON.stringify(answer));
    assert.equal(await state(key), 'absent');
  }
  const { key, request } = operation();
  const answer = { status: 599, headers: { 'x-a': 'a \xff', 'x-b': '', 'x-c': ['1', '2'] }, body: new Uint8Array([0, 92, 255]) };
  const call = () => run(pool, { scope: 'payments', key, request }, () => answer);
  for (const replayed of [false, true]) {
    assert.deepEqual(await call(), { ...answer, body: Buffer.from(answer.body), response: null, replayed });
  }
});

test('the status of a Failure is that of a final failure; its options are known', () => {
  for (const status of [200, 302, 399, 500, 503, 599]) assert.throws(() => new Failure('no', { status }), RangeError);
  for (const status of ['402', 402.5, NaN]) assert.throws(() => new Failure('no', { status }), TypeError);
  for (const status of [undefined, 400, 499]) assert.equal(new Failure('no', { status }).status, status);
  assert.throws(() => new Failure('no', { sqlState: 'P0402' }), { name: 'TypeError', message: 'there is no option "sqlState"' });
});

test('a Failure with a status of its own, which SQL has stored, is replayed', async () => {
  const { key, request } = operation();
  await pool.query(`SELECT idem.fail(token, '{"message": "down"}', 503) FROM idem.claim('payments', $1, $2)`, [key, request]);
  await assert.rejects(run(pool, { scope: 'payments', key, request }, () => assert.fail('runs')), { name: 'Failure', status: 503, message: 'down' });
});

test('names and results of steps', async () => {
  const { key, request } = operation();
  await lease(pool, { scope: 'payments', key, request }, async (held) => {
    for (const name of NO_TEXT) {
      await assert.rejects(held.step(name, () => assert.fail('runs')), TypeError);
      await assert.rejects(held.childKey(name), TypeError);
    }
    await assert.rejects(held.step('a\0', () => assert.fail('runs')), RangeError);
    for (const [name, value] of Object.entries(NO_JSON)) {
      await assert.rejects(held.step(name, async () => [value]), NO_NUMBERS.includes(name) ? RangeError : TypeError, name);
    }
    await held.complete(() => {});
  });
});
