'use strict';
// The caller's side, against a service that answers what the test says.
const assert = require('node:assert/strict');
const http = require('node:http');
const { after, test } = require('node:test');
const { Intent, intent } = require('pg-idem/intent');

const requests = [];
let answers = [];
const services = [0, 1].map(() => http.createServer(async (request, response) => {
  let body = '';
  for await (const chunk of request) body += chunk;
  requests.push({ at: performance.now(), key: request.headers['idempotency-key'], method: request.method, body, url: request.url, authorization: request.headers.authorization });
  const [status, headers] = answers.shift() ?? [201];
  if (status === 'cut') return request.socket.destroy();
  if (status === 'silence') return undefined;
  if (['cut body', 'silent body'].includes(status)) {
    response.writeHead(201, { 'content-length': '100' }).write('{"half');
    return status === 'cut body' ? setTimeout(() => request.socket.destroy(), 20) : undefined;
  }
  return response.writeHead(status, headers).end(status === 204 ? undefined : JSON.stringify({ status }));
}));
after(() => { for (const service of services) { service.closeAllConnections(); service.close(); } });
let url;
let elsewhere; // another origin
test.before(async () => {
  [url, elsewhere] = await Promise.all(services.map(async (service) => {
    await new Promise((resolve) => { service.listen(0, '127.0.0.1', resolve); });
    return `http://127.0.0.1:${service.address().port}/payments`;
  }));
});

const quick = { first: 1, timeout: 60_000 };
const hasty = { timeout: 1_000 }; // where an answer never comes
const init = { method: 'POST', body: '{"amount":10}', headers: { 'content-type': 'application/json' } };
async function sent(list, options) {
  answers = list;
  requests.length = 0;
  return intent(undefined, { ...quick, ...options }).fetch(url, init);
}

test('one key for each intent, kept over retries', async () => {
  const response = await sent([['cut'], [500], [503], ['silence'], [409, { 'retry-after': '0' }], [429], [408], [425], [502], [201]], hasty);
  assert.deepEqual([response.status, await response.json(), requests.length], [201, { status: 201 }, 10]);
  assert.equal(new Set(requests.map(({ key }) => key)).size, 1);
  assert.match(requests[0].key, /^"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"$/);
  assert.ok(requests.every(({ method, body }) => method === 'POST' && body === init.body));
  assert.notEqual(intent().key, intent().key);
  const made = parseInt(intent().key.replace('-', '').slice(0, 12), 16);
  const age = Date.now() - made;
  assert.ok(age >= 0 && age < 10_000);
});

test('an answer that a retry would not change is returned', async () => {
  for (const status of [200, 201, 202, 302, 400, 402, 404, 409, 412, 422, 501]) {
    assert.equal((await sent([[status]])).status, status);
    assert.equal(requests.length, 1);
  }
});

// Debian 12's Node has no getSetCookie().
const cookies = (headers) => headers.getSetCookie?.() ?? headers.get('set-cookie').split(', ');

test('an answer that is cut or hangs after its headers is asked for again', async () => {
  for (const [lost, options] of [['cut body', quick], ['silent body', { ...quick, timeout: 500 }]]) {
    const response = await sent([[lost], [lost], [201, { 'x-a': '1', 'set-cookie': ['a=1', 'b=2'] }]], options);
    assert.deepEqual([response.status, response.headers.get('x-a'), cookies(response.headers), response.url, requests.length],
      [201, '1', ['a=1', 'b=2'], url, 3]);
    assert.deepEqual(await response.json(), { status: 201 });
    await assert.rejects(sent([[lost], [lost]], { ...options, attempts: 2 }));
  }
  const nothing = await sent([[204]]);
  assert.deepEqual([nothing.status, await nothing.text()], [204, '']);
});

test('statuses of proxies are asked for again', async () => {
  for (let status = 520; status < 530; status++) {
    assert.deepEqual([(await sent([[status]])).status, requests.length], [201, 2]);
  }
});

test('a redirect that would turn POST into GET is the answer; others are followed with the key', async () => {
  for (const status of [301, 302, 303]) {
    const response = await sent([[status, { location: '/other' }]]);
    assert.deepEqual([response.status, response.headers.get('location'), requests.length], [status, '/other', 1]);
  }
  for (const [status, location, authorization] of [[307, '/other', 'mine'], [308, '/other', 'mine'], [308, elsewhere, undefined]]) {
    answers = [[status, { location }]];
    requests.length = 0;
    const response = await intent('k', quick).fetch(url, { ...init, headers: { authorization: 'mine' } });
    assert.equal(response.status, 201);
    assert.deepEqual(requests.map(({ method, body, key }) => [method, body, key]), Array(2).fill(['POST', init.body, '"k"']));
    assert.equal(requests[1].authorization, authorization);
  }
  assert.equal((await sent(Array(20).fill([307, { location: '/other' }]))).status, 307);
  assert.equal(requests.length, 6);
  answers = [[307, { location: '/other' }]];
  await assert.rejects(intent('k', { ...quick, attempts: 1 }).fetch(url, { ...init, redirect: 'error' }));
});

test('a timeout that is longer than a timer of Node, and a signal that is null', async () => {
  assert.equal((await sent([[503], [201]], { timeout: 3e9 })).status, 201);
  assert.equal(requests.length, 2);
  answers = [[503], [201]];
  assert.equal((await intent(undefined, quick).fetch(url, { ...init, signal: null })).status, 201);
});

test('the key is stored before the first request, once', async () => {
  const stored = [];
  answers = [[503]];
  requests.length = 0;
  const wanted = intent(undefined, { ...quick, store: async (key) => { stored.push([key, requests.length]); } });
  await wanted.fetch(url, init);
  await wanted.fetch(url, init);
  assert.deepEqual([stored, requests.length], [[[wanted.key, 0]], 3]);
  await intent('given', { ...quick, store: () => assert.fail('stored') }).fetch(url, init);
  requests.length = 0;
  let tries = 0;
  const failing = intent(undefined, { ...quick, store: async () => { if (++tries === 1) throw new Error('no disk'); } });
  await assert.rejects(failing.fetch(url, init), /no disk/);
  assert.equal(requests.length, 0);
  assert.equal((await failing.fetch(url, init)).status, 201);
  assert.equal(tries, 2);
});

test('a key that is older than the retention is not sent', async () => {
  requests.length = 0;
  answers = [];
  const old = '018f0000-0000-7000-8000-000000000000';
  await assert.rejects(intent(old, { ...quick, retention: 86_400_000 }).fetch(url, init), { code: 'ID010', message: /too old/ });
  assert.equal(requests.length, 0);
  assert.equal((await intent(old, { ...quick, retention: 1e15 }).fetch(url, init)).status, 201);
  await assert.rejects(sent([[503], [503], [503], [503, { 'retry-after': '1' }]], { retention: 500 }), { code: 'ID010' });
  assert.equal(requests.length, 4);
  assert.throws(() => intent('order-1', { retention: 1_000 }), RangeError);
  assert.throws(() => intent(undefined, { retention: '7 days' }), TypeError);
});

test('Retry-After is obeyed, as seconds and as a date', async () => {
  for (const after of [() => '1', () => new Date(Date.now() + 5_000).toUTCString()]) {
    await sent([[503, { 'retry-after': after() }]]);
    assert.ok(requests[1].at - requests[0].at >= 900);
  }
});

test('the last answer is returned and the last error is thrown', async () => {
  const seen = [];
  const onRetry = (reason, attempt, delay) => seen.push([reason.status ?? reason.name, attempt, delay >= 0]);
  assert.equal((await sent(Array(9).fill([503]), { attempts: 3, onRetry })).status, 503);
  const broken = () => { throw new Error('of the hook'); };
  for (const hook of [broken, async () => broken()]) assert.equal((await sent([[503], [201]], { onRetry: hook })).status, 201);
  for (const status of [409, 503]) { // 409: in progress, or undecided
    assert.equal((await sent([[status, { 'retry-after': '60' }]], { deadline: 1_000 })).status, status);
    assert.equal(requests.length, 1);
  }
  await assert.rejects(sent(Array(9).fill(['cut']), { attempts: 2, onRetry }), /fetch failed/);
  await assert.rejects(sent(Array(9).fill(['silence']), { ...hasty, attempts: 2, onRetry }), { name: 'TimeoutError' });
  assert.deepEqual(seen, [[503, 1, true], [503, 2, true], ['TypeError', 1, true], ['TimeoutError', 1, true]]);
});

test('the caller can give up', async () => {
  for (const arguments_ of [(signal) => [url, { ...init, signal }], (signal) => [new Request(url, { ...init, signal })]]) {
    answers = [[503, { 'retry-after': '60' }]];
    requests.length = 0;
    const caller = new AbortController();
    const onRetry = () => setTimeout(() => caller.abort(), 50);
    await assert.rejects(intent(undefined, { ...quick, deadline: 1e6, onRetry }).fetch(...arguments_(caller.signal)));
    assert.equal(requests.length, 1);
  }
});

test('every request goes through the dispatcher of the caller, such as that of a proxy', async () => {
  await (await fetch(url)).text(); // now there is the dispatcher of Node
  let count = 0;
  const dispatcher = { dispatch(...of) {
    count++;
    return globalThis[Symbol.for('undici.globalDispatcher.1')].dispatch(...of);
  } };
  answers = [[503], [308, { location: elsewhere }]];
  assert.equal((await intent(undefined, quick).fetch(url, { ...init, dispatcher })).status, 201);
  assert.equal(count, 3);
});

test('what cannot be sent again is refused', async () => {
  assert.equal(intent('a"b\\').headers['idempotency-key'], '"a\\"b\\\\"');
  for (const key of ['', 'k'.repeat(256), 'ü', 7, null]) assert.throws(() => new Intent(key), TypeError);
  const stream = new ReadableStream();
  await assert.rejects(intent().fetch(url, { ...init, body: stream, duplex: 'half' }), /cannot be a stream/);
  await assert.rejects(intent().fetch('no url', init), TypeError);
});
