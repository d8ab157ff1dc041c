'use strict';
// The caller's side, against a service that answers what the test says.
const assert = require('node:assert/strict');
const http = require('node:http');
const { after, test } = require('node:test');
const { Intent, intent } = require('pg-idem/intent');

const requests = [];
let answers = [];
const service = http.createServer(async (request, response) => {
  let body = '';
  for await (const chunk of request) body += chunk;
  requests.push({ at: performance.now(), key: request.headers['idempotency-key'], method: request.method, body });
  const [status, headers] = answers.shift() ?? [201];
  if (status === 'cut') return request.socket.destroy();
  if (status === 'silence') return undefined;
  return response.writeHead(status, headers).end(JSON.stringify({ status }));
});
after(() => { service.closeAllConnections(); service.close(); });
let url;
test.before(async () => {
  await new Promise((resolve) => { service.listen(0, '127.0.0.1', resolve); });
  url = `http://127.0.0.1:${service.address().port}/payments`;
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
  for (const status of [409, 503]) { // 409: in progress, or undecided
    assert.equal((await sent([[status, { 'retry-after': '60' }]], { deadline: 1_000 })).status, status);
    assert.equal(requests.length, 1);
  }
  await assert.rejects(sent(Array(9).fill(['cut']), { attempts: 2, onRetry }), /fetch failed/);
  await assert.rejects(sent(Array(9).fill(['silence']), { ...hasty, attempts: 2, onRetry }), { name: 'TimeoutError' });
  assert.deepEqual(seen, [[503, 1, true], [503, 2, true], ['TypeError', 1, true], ['TimeoutError', 1, true]]);
});

test('the caller can give up', async () => {
  answers = [[503, { 'retry-after': '60' }]];
  requests.length = 0;
  const caller = new AbortController();
  const onRetry = () => setTimeout(() => caller.abort(), 50);
  await assert.rejects(intent(undefined, { ...quick, deadline: 1e6, onRetry }).fetch(url, { ...init, signal: caller.signal }));
  assert.equal(requests.length, 1);
});

test('what cannot be sent again is refused', async () => {
  assert.equal(intent('a"b\\').headers['idempotency-key'], '"a\\"b\\\\"');
  for (const key of ['', 'k'.repeat(256), 'ü', 7, null]) assert.throws(() => new Intent(key), TypeError);
  const stream = new ReadableStream();
  await assert.rejects(intent().fetch(url, { ...init, body: stream, duplex: 'half' }), /cannot be a stream/);
  await assert.rejects(intent().fetch('no url', init), TypeError);
});
