'use strict';
const assert = require('node:assert/strict');
const http = require('node:http');
const { Readable, pipeline } = require('node:stream');
const { after, test } = require('node:test');
const { setTimeout: sleep } = require('node:timers/promises');
const { Pool } = require('pg');
const { Failure, NotStored, parseKey, respond, run } = require('pg-idem');
const { counts, effects, finish, holder, one, operation, pay, pool, state, useUpAttempts } = require('./support.js');

const servers = [];
after(() => Promise.all([finish(), ...servers.map((server) => server.close())]));

let retried = 0;
const events = [];
const onEvent = ({ type, scope, key, tenant, error, request, seconds }) => {
  assert.ok(request.headers && seconds >= 0);
  events.push([type, scope, key, tenant, error?.code]);
};

// How the attempt ends that follows one which answered 200 and failed to commit.
let attempts = 0;
const ends = {
  failure() { throw new Failure('insufficient funds', { status: 402, sqlstate: 'P0402' }); },
  refusal() { return { status: 404 }; },
  answer() { return { status: 201, body: 'second attempt' }; },
  mistake() { throw new TypeError('a mistake'); },
};

let client_; // the tenant of a request to /any
let given; // what its handler answers
const logged = [];
const log = { error: (error) => logged.push(error.code) };

// What both frameworks serve: path, options, handler.
const routes = {
  '/payments': [{ scope: 'payments', tenant: null }, async (request, client) => ({
    status: 201,
    headers: { Location: '/payments/1', 'Set-Cookie': ['a=1', 'b=2'], 'X-Trace': 'first' },
    body: await pay(client, request.body),
  })],
  '/impatient': [{ scope: 'payments', tenant: null, wait: 0, retry: { onRetry: () => retried++ } }, async () => ({})],
  '/any': [{ scope: 'payments', tenant: () => client_ }, async (request, client) => {
    await pay(client, request.body);
    return given;
  }],
  '/text': [{ scope: 'payments', tenant: null }, async () => ({ body: 'päid' })],
  '/bytes': [{ scope: 'payments', tenant: null }, async () => ({
    headers: { 'content-type': 'image/png' }, body: Buffer.from([0, 255, 10]),
  })],
  '/nothing': [{ scope: 'payments', tenant: null }, async () => ({ status: 204 })],
  '/tenants': [{ scope: 'payments', tenant: (request) => request.headers['x-account'] },
    async (request, client) => ({ body: await pay(client, request.body) })],
  '/traced': [{ scope: 'payments', tenant: null, neverStored: ['X-Trace'] },
    async () => ({ headers: { 'x-trace': 'first' }, body: {} })],
  '/located': [{ scope: 'payments', tenant: null, includeHeaders: ['Location', 'Set-Cookie'] }, async () => ({
    headers: { Location: '/1', 'X-Trace': 'first', 'Set-Cookie': 'a=1', 'Content-Type': 'text/html' }, body: 'paid',
  })],
  '/optional': [{ scope: 'payments', tenant: null, keyRequired: false }, async (request, client) => {
    await pay(client, request.body);
    if (request.body.then) ends[request.body.then]();
    return { status: 201, headers: { 'Set-Cookie': 'a=1' }, body: { paid: true } };
  }],
  '/optional-lost': [{ scope: 'payments', tenant: null, keyRequired: false, retry: { onRetry: () => assert.fail('retried') } },
    (request, client) => client.query('SELECT lose_race()')],
  '/member': [{ scope: 'payments', tenant: null, keyFrom: 'meta.idempotency_key' },
    async (request, client) => ({ body: await pay(client, request.body) })],
  '/function': [{ scope: 'payments', tenant: null, keyFrom: (request) => request.headers['x-request-id'] },
    async (request, client) => ({ body: await pay(client, request.body) })],
  '/kept': [{ scope: 'payments', tenant: null, ttl: 7_200_000, sendRetention: true }, async (request) => {
    if (request.body.then) ends[request.body.then]();
    return { body: {} };
  }],
  '/told': [{ scope: 'payments', wait: 0, tenant: () => 'acme', onEvent }, async (request) => {
    return (request.body.then && ends[request.body.then]()) || { body: {} };
  }],
  '/told-badly': [{ scope: 'payments', tenant: null, onEvent: () => { throw new Error('of the hook'); } }, async () => ({ body: {} })],
  '/graphql': [{ scope: 'payments', tenant: null, onEvent, storeIf: ({ body }) => !body.errors }, async (request, client) => {
    await pay(client, request.body);
    if (request.body.then === 'raised') throw new NotStored({ status: 201, headers: { 'x-a': '1' }, body: { raised: true } });
    return { headers: { 'x-a': '1' }, body: request.body.then ? { errors: [1] } : { data: 1 } };
  }],
  '/final': [{ scope: 'payments', tenant: null, finalStatuses: [402], documentation: 'https://shop.example/docs' }, async (request, client) => {
    await pay(client, request.body);
    return { status: 402, headers: { 'x-a': '1', 'set-cookie': 'a=1' }, body: { declined: request.body.amount } };
  }],
  '/chosen': [{ scope: async ({ headers }) => headers['x-scope'], tenant: null }, async () => ({ body: {} })],
  '/formatted': [{ scope: 'payments', tenant: null, wait: 0, documentation: 'https://shop.example/docs', problem: ({ status, sqlstate, type }, request) => ({
    status: request.body.then === 'rpc' ? 200 : status, headers: { 'content-type': 'application/json' }, body: { error: { code: sqlstate, type } },
  }) }, async (request) => (request.body.failure ? ends.failure() : {})],
  '/forever': [{ scope: 'payments', tenant: null, ttl: 0 }, async () => ({})],
  '/zero': [{ scope: 'payments', tenant: null }, async (request, client) => { await client.query('SELECT 1 / 0'); }],
  '/forbidden': [{ scope: 'payments', tenant: null }, async (request, client) => {
    await client.query('SET LOCAL ROLE pg_monitor');
    await pay(client, request.body);
  }],
  '/many': [{ scope: 'payments', tenant: null }, (request, client) => client.query('SELECT $1', Array(65_537).fill(1))],
  '/cards': [{ scope: 'secretive', tenant: null }, async () => ({ body: { card: { number: '4111', brand: 'visa' } } })],
  '/limited': [{ scope: 'limited', tenant: (request) => request.headers['x-account'] }, async () => ({})],
  '/fresh': [{ scope: 'fresh', tenant: null }, async () => ({})],
  '/strong': [{ scope: 'strong', tenant: null }, async () => ({})],
  '/unknown': [{ scope: 'payment', tenant: null }, async () => ({})],
  '/declined': [{ scope: 'payments', tenant: null }, async (request, client) => {
    await pay(client, request.body);
    throw new Failure('card declined', { status: 402, headers: { 'X-Reason': '51', 'Set-Cookie': 'a=1' } });
  }],
  '/inner': [{ scope: 'payments', tenant: null, keyRequired: false, sendRetention: true, onEvent }, async (request) => {
    await run(pool, { scope: 'payments', key: request.body.inner, request: {}, sendRetention: true }, () => ends.failure());
  }],
  '/refused': [{ scope: 'payments', tenant: null }, async () => {
    throw new Failure('no', { body: Buffer.from('<no/>'), headers: { 'content-type': 'text/xml' } });
  }],
  '/teapot': [{ scope: 'payments', tenant: null }, async (request, client) => {
    await pay(client, request.body);
    return { status: 418, body: { short: true } };
  }],
  '/mistake': [{ scope: 'payments', tenant: null }, async (request, client) => {
    await pay(client, request.body);
    throw new TypeError('a mistake');
  }],
  '/naked': [{ scope: 'payments', tenant: null }, async (request, client) => pay(client, request.body)],
  '/races': [{ scope: 'payments', tenant: null }, async (request, client) => {
    await client.query('SELECT lose_race()');
    return { body: await pay(client, request.body) };
  }],
  '/lost-commit': [{ scope: 'payments', tenant: null }, async (request, client) => {
    await client.query('INSERT INTO payment (amount) VALUES (40001)');
    attempts++;
    if (attempts === 1) return { headers: { 'x-attempt': '1', 'set-cookie': 'a=1' }, body: 'paid' };
    return ends[request.body.then]();
  }],
  '/slow': [{ scope: 'payments', tenant: null, log }, async (request, client) => {
    await client.query(`SET LOCAL statement_timeout = '1 ms'`);
    await client.query('SELECT pg_sleep(600)');
  }],
  '/late': [{ scope: 'payments', tenant: null, log, retry: { attempts: 1 } }, (request, client) =>
    client.query({ text: 'SELECT pg_sleep(0.4)', query_timeout: 200 })],
  '/number': [{ scope: 'payments', tenant: null }, (request, client) => client.query(`SELECT 'ten'::numeric`)],
  '/lost': [{ scope: 'payments', tenant: null, log }, (request, client) =>
    client.query(`DO $$ BEGIN RAISE EXCEPTION 'lost' USING ERRCODE = '40001'; END $$`)],
};

// The habits of a handler that has the response of its framework, which the test passes.
let habit;
let response_;
const sayNothing = () => {};
let prepare = sayNothing; // what a middleware does to the response of Node
let around = sayNothing; // what error handlers and hooks wait for before they send
let through = pool;

// Listening applications, by framework. /away is on a pool without a server, /unparsed has no parser.
const away = new Pool({ host: '127.0.0.1', port: 1 });
async function listenExpress(version) {
  const express = require(version);
  const { idempotent } = require('pg-idem/express');
  const app = express();
  app.post('/unparsed', idempotent(pool, { scope: 'payments', tenant: null }, async () => ({})));
  app.use(express.json());
  for (const [path, [options, handler]] of Object.entries(routes)) {
    app.post(path, idempotent(pool, options, handler));
  }
  app.post('/habits', (req, res, next) => { res.set('x-before', 'kept'); prepare(res, res); next(); }, (req, res, next) => {
    response_ = res;
    idempotent(through, { scope: 'payments', tenant: null, log }, (q, client) => habit(q, client, res))(req, res, next);
  });
  app.post('/away', idempotent(away, { scope: 'payments', tenant: null, log }, async () => ({})));
  app.use(async (error, req, res, next) => {
    if (around !== sayNothing) await around();
    if (res.headersSent) return next(error);
    return res.status(500).json({ error: error.message });
  });
  return new Promise((resolve) => { const server = app.listen(0, '127.0.0.1', () => resolve(server)); });
}

const frameworks = {
  express: () => listenExpress('express'),
  express4: () => listenExpress('express4'),
  async fastify() {
    const fastify = require('fastify')();
    const { idempotent, plugin } = require('pg-idem/fastify');
    fastify.register(plugin, { pool });
    fastify.register(async (child) => { // in a child: the plugin is for the whole application
      for (const [path, [options, handler]] of Object.entries(routes)) {
        child.post(path, child.idempotent(options, handler));
      }
    });
    fastify.post('/habits', { preHandler: async (request, reply) => { reply.header('x-before', 'kept'); prepare(reply.raw, reply); } }, (request, reply) => {
      response_ = reply.raw;
      return idempotent(through, { scope: 'payments', tenant: null, log }, (q, client) => habit(q, client, reply))(request, reply);
    });
    fastify.post('/away', idempotent(away, { scope: 'payments', tenant: null, log }, async () => ({})));
    fastify.setErrorHandler((error, request, reply) => reply.code(500).send({ error: error.message }));
    fastify.addHook('onSend', async () => { await around(); });
    await fastify.listen({ host: '127.0.0.1', port: 0 });
    return fastify.server;
  },
};

function sender(server) {
  const { port } = server.address();
  return (path, key, body, more) => new Promise((resolve, reject) => {
    const headers = { 'content-type': 'application/json', ...more };
    if (key !== undefined) headers['idempotency-key'] = key;
    const request = http.request({ host: '127.0.0.1', port, path, method: 'POST', headers, agent: false }, async (response) => {
      const chunks = [];
      for await (const chunk of response) chunks.push(chunk);
      resolve({ status: response.statusCode, headers: response.headers, body: Buffer.concat(chunks) });
    });
    request.on('error', reject);
    request.end(JSON.stringify(body));
  });
}

async function isProblem(response, status, type, detail) {
  const problem = JSON.parse(response.body);
  assert.equal(response.status, status);
  assert.match(response.headers['content-type'], /^application\/problem\+json/);
  assert.equal(response.headers['idempotent-replayed'], undefined);
  assert.deepEqual([problem.status, problem.type], [status, type]);
  if (detail) assert.match(problem.detail ?? '', detail);
  // idem.problem() says the same.
  assert.deepEqual({ ...problem, detail: undefined },
    { ...await one('SELECT idem.problem($1)', [problem.sqlstate]), detail: undefined });
}

for (const [name, listen] of Object.entries(frameworks)) {
  let installed = true;
  try { require(name); } catch { installed = false; }
  test(name, { skip: !installed && `${name} is not installed` }, async (t) => {
    const server = await listen();
    servers.push(server);
    const post = sender(server);
    const urn = 'urn:idem:problem:';
    const kind = name === 'fastify' ? 'fastify' : 'express';

    await t.test('first answer and replay', async () => {
      const { key, request } = operation();
      const first = await post('/payments', `"${key}"`, request);
      assert.deepEqual([first.status, first.headers.location], [201, '/payments/1']);
      assert.match(first.headers['content-type'], /^application\/json/);
      assert.deepEqual(first.headers['set-cookie'], ['a=1', 'b=2']);
      assert.equal(first.headers['idempotent-replayed'], undefined);
      const retry = await post('/payments', key, request); // the bare token is the same key
      assert.deepEqual([retry.status, retry.headers.location], [201, '/payments/1']);
      assert.equal(retry.headers['idempotent-replayed'], 'true');
      assert.deepEqual(retry.body, first.body);
      assert.equal(retry.headers['content-type'], first.headers['content-type']);
      assert.equal(retry.headers['set-cookie'], undefined);
      assert.equal(await effects(request), 1);
      assert.deepEqual(await one(`SELECT headers FROM idem.lookup('payments', $1)`, [key]),
        { location: '/payments/1', 'x-trace': 'first' });
    });

    await t.test('text, bytes, nothing', async () => {
      for (const [path, body, type] of [
        ['/text', Buffer.from('päid'), 'text/plain; charset=utf-8'],
        ['/bytes', Buffer.from([0, 255, 10]), 'image/png'],
        ['/nothing', Buffer.alloc(0), undefined],
      ]) {
        const { key, request } = operation();
        const first = await post(path, key, request);
        const retry = await post(path, key, request);
        assert.deepEqual([first.body, retry.body], [body, body]);
        assert.deepEqual([first.headers['content-type'], retry.headers['content-type']], [type, type]);
        assert.deepEqual([first.status, retry.status], path === '/nothing' ? [204, 204] : [200, 200]);
        assert.equal(retry.headers['idempotent-replayed'], 'true');
      }
    });

    await t.test('headers that the caller lists are not stored; the scope redacts JSON', async () => {
      const { key, request } = operation();
      assert.equal((await post('/traced', key, request)).headers['x-trace'], 'first');
      assert.equal((await post('/traced', key, request)).headers['x-trace'], undefined);
      const card = operation();
      assert.equal(JSON.parse((await post('/cards', card.key, card.request)).body).card.number, '4111');
      assert.deepEqual(JSON.parse((await post('/cards', card.key, card.request)).body), { card: { brand: 'visa' } });
    });

    await t.test('of the headers that the caller allows, only these are stored, and the type', async () => {
      const { key, request } = operation();
      const first = await post('/located', key, request);
      const retry = await post('/located', key, request);
      const sent = (of) => ['location', 'x-trace', 'set-cookie', 'content-type'].map((name) => of.headers[name]?.toString());
      assert.deepEqual([sent(first), sent(retry)],
        [['/1', 'first', 'a=1', 'text/html'], ['/1', undefined, undefined, 'text/html']]);
    });

    await t.test('a key that is not required', async () => {
      const { key, request } = operation();
      for (let n = 1; n <= 2; n++) {
        const { status, headers, body } = await post('/optional', undefined, request);
        assert.deepEqual([status, headers['set-cookie'], JSON.parse(body)], [201, ['a=1'], { paid: true }]);
        assert.equal(await effects(request), n);
      }
      await post('/optional', key, request);
      assert.equal((await post('/optional', key, request)).headers['idempotent-replayed'], 'true');
      assert.equal(await effects(request), 3);
      await isProblem(await post('/optional', '"open', request), 400, `${urn}invalid_key`);
      await isProblem(await post('/optional', '', request), 400, `${urn}invalid_key`, /is empty/);
      for (const [then, status] of [['failure', 402], ['refusal', 201], ['mistake', 500]]) {
        const other = operation().request;
        assert.equal((await post('/optional', undefined, { ...other, then })).status, status);
        assert.equal(await effects(other), status === 201 ? 1 : 0);
      }
      await pool.query('ALTER SEQUENCE tries RESTART');
      assert.equal((await post('/optional-lost', undefined, request)).status, 500);
    });

    await t.test('the key is a member of the body, or what a function says', async () => {
      const { key, request } = operation();
      const withKey = { ...request, meta: { idempotency_key: key } };
      const replies = [await post('/member', undefined, withKey), await post('/member', 'ignored', withKey)];
      assert.deepEqual(replies.map(({ headers }) => headers['idempotent-replayed']), [undefined, 'true']);
      assert.equal(await state(key), 'completed');
      const type = `${urn}invalid_key`;
      await isProblem(await post('/member', key, request), 400, type, /member meta.idempotency_key is missing/);
      for (const wrong of [7, '', { a: 1 }, 'k'.repeat(256)]) {
        await isProblem(await post('/member', key, { meta: { idempotency_key: wrong } }), 400, type, /1 to 255/);
      }
      await isProblem(await post('/member', key, { meta: 'toString' }), 400, type, /missing/);
      const other = operation();
      for (let n = 0; n < 2; n++) await post('/function', undefined, other.request, { 'x-request-id': other.key });
      assert.deepEqual([await effects(request), await effects(other.request)], [1, 1]);
      await isProblem(await post('/function', undefined, request), 400, type, /key is missing/);
    });

    await t.test('until when an answer is kept is sent if the service wishes', async () => {
      for (const then of [undefined, 'failure']) {
        const { key } = operation();
        const [first, retry] = [await post('/kept', key, { then }), await post('/kept', key, { then })];
        assert.equal(retry.headers['idempotent-replayed'], 'true');
        const until = first.headers['idempotency-expires'];
        assert.equal(retry.headers['idempotency-expires'], until);
        const hours = (Date.parse(until) - Date.now()) / 3.6e6;
        assert.ok(hours > 1.9 && hours <= 2, until);
      }
    });

    await t.test('a hook is told of each step of an operation', async () => {
      const { key, request } = operation();
      const other = operation();
      const about = ['payments', key, 'acme'];
      const seen = async (call) => { events.length = 0; await call(); return events.map(([type, ...rest]) => (assert.deepEqual(rest.slice(0, 3), about), [type, rest[3]])); };
      assert.deepEqual(await seen(() => post('/told', key, request)), [['claimed', undefined], ['completed', undefined]]);
      assert.deepEqual(await seen(() => post('/told', key, request)), [['replayed', undefined]]);
      assert.deepEqual(await seen(() => post('/told', key, operation().request)), [['conflict', 'ID002']]);
      about[1] = other.key;
      for (const [then, type, code] of [['mistake', 'error', undefined], ['refusal', 'not_stored', undefined], ['failure', 'failed', 'P0402']]) {
        assert.deepEqual(await seen(() => post('/told', other.key, { then })), [['claimed', undefined], [type, code]]);
      }
      assert.deepEqual(await seen(() => post('/told', other.key, { then: 'failure' })), [['replayed', 'P0402']]);
      about[1] = undefined;
      assert.deepEqual(await seen(() => post('/told', undefined, request)), [['refused', 'ID007']]);
      assert.deepEqual(await seen(() => post('/told', 'k'.repeat(300), request)), [['refused', 'ID007']]);
      const warned = new Promise((resolve) => { process.once('warning', resolve); });
      const hooked = operation();
      assert.equal((await post('/told-badly', hooked.key, request)).status, 200);
      assert.equal((await post('/told-badly', hooked.key, request)).headers['idempotent-replayed'], 'true');
      assert.match((await warned).message, /of the hook/);
    });

    await t.test('a replayed Failure of an operation inside of another one is no replay of that', async () => {
      const inner = operation().key;
      events.length = 0;
      const { key } = operation();
      for (const [sent, replayed] of [[undefined, undefined], [undefined, undefined], [key, undefined], [key, 'true']]) {
        const { status, headers } = await post('/inner', sent, { inner });
        assert.deepEqual([status, headers['idempotent-replayed'], 'idempotency-expires' in headers], [402, replayed, sent !== undefined]);
      }
      assert.deepEqual(events.map(([type]) => type), ['claimed', 'failed', 'replayed']);
    });

    await t.test('400: the key is missing or invalid, or the request', async () => {
      const { request } = operation();
      const type = `${urn}invalid_key`;
      await isProblem(await post('/payments', undefined, request), 400, type, /missing/);
      await isProblem(await post('/payments', '""', request), 400, type);
      await isProblem(await post('/payments', 'k'.repeat(256), request), 400, type);
      await isProblem(await post('/payments', ['one', 'two'], request), 400, type);
      await isProblem(await post('/payments', '"open', request), 400, type);
      await isProblem(await post('/strong', '4711', request), 400, type, /weak/);
      await isProblem(await post('/payments', operation().key, { note: '\0' }), 400, 'about:blank');
      assert.equal(await effects(request), 0);
    });

    await t.test('409: in progress', async () => {
      const { key, request } = operation();
      const held = await holder(key, { method: 'POST', url: '/payments', body: request });
      const refused = await post('/payments', key, request);
      await isProblem(refused, 409, `${urn}in_progress`, /in progress/);
      assert.match(refused.headers['retry-after'], /^[1-9]\d*$/);
      await held.complete({ payment: 'of the holder' });
      const answered = await post('/payments', key, request);
      assert.deepEqual([answered.status, answered.headers['idempotent-replayed'], JSON.parse(answered.body)],
        [200, 'true', { payment: 'of the holder' }]);
      assert.equal(await effects(request), 0);
    });

    await t.test('409: undecided, with no attempts left; no replay', async () => {
      const { key, request } = operation();
      const token = await useUpAttempts(key, { method: 'POST', url: '/payments', body: request });
      for (let n = 0; n < 2; n++) {
        const refused = await post('/payments', key, request);
        await isProblem(refused, 409, `${urn}attempts_exhausted`, /keep the key/);
        assert.equal(refused.headers['retry-after'], '60');
      }
      await pool.query(`SELECT idem.complete($1, '{"late": true}', 201)`, [token]);
      const answered = await post('/payments', key, request);
      assert.deepEqual([answered.status, answered.headers['idempotent-replayed'], JSON.parse(answered.body)],
        [201, 'true', { late: true }]);
      assert.equal(await effects(request), 0);
    });

    await t.test('409 is for the client to retry, after at least a second', async () => {
      const { key, request } = operation();
      const start = performance.now();
      const held = await holder(key, { method: 'POST', url: '/impatient', body: request });
      const refused = await post('/impatient', key, request);
      await isProblem(refused, 409, `${urn}in_progress`);
      // As long as the holder has taken, rounded up: a second, unless the machine is slow.
      const longest = Math.ceil((performance.now() - start) / 1000);
      assert.match(refused.headers['retry-after'], /^[1-9]\d*$/);
      assert.ok(Number(refused.headers['retry-after']) <= longest);
      assert.equal(retried, 0);
      await held.complete({});
    });

    await t.test('422: another request: body, path or query', async () => {
      const { key, request } = operation();
      await post('/payments', key, request);
      const type = `${urn}key_conflict`;
      await isProblem(await post('/payments', key, operation().request), 422, type, /different request/);
      await isProblem(await post('/text', key, request), 422, type);
      await isProblem(await post('/payments?dry', key, request), 422, type);
      assert.equal(await effects(request), 1);
    });

    await t.test('412: a stale key', async () => {
      const { request } = operation();
      await isProblem(await post('/fresh', '018f0000-0000-7000-8000-000000000000', request), 412, `${urn}stale_key`);
    });

    await t.test('429: the limit of a tenant', async (t) => {
      if (!await counts()) return t.skip('the SQL edition has no claims_per_minute');
      const { key, request } = operation();
      assert.equal((await post('/limited', key, request, { 'x-account': key })).status, 200);
      const limited = await post('/limited', 'another', request, { 'x-account': key });
      await isProblem(limited, 429, `${urn}limit_exceeded`);
      assert.ok(limited.headers['retry-after'] >= 1 && limited.headers['retry-after'] <= 60);
    });

    await t.test('tenants have keys of their own', async () => {
      const { key, request } = operation();
      await post('/tenants', key, request, { 'x-account': 'acme' });
      await post('/tenants', key, request, { 'x-account': 'apex' });
      await post('/tenants', key, request, { 'x-account': 'apex' });
      assert.equal(await effects(request), 2);
    });

    await t.test('a tenant that is missing or no text is an error, and never the namespace of all', async () => {
      given = {};
      for (client_ of [undefined, null, '', 7, { id: 'ann' }, ['ann'], () => 'ann', Promise.resolve()]) {
        const { key, request } = operation();
        const response = await post('/any', key, request);
        assert.deepEqual([response.status, /tenant/.test(response.body)], [500, true]);
        assert.deepEqual([await effects(request), await state(key)], [0, 'absent']);
      }
      const { key, request } = operation();
      for (client_ of [Promise.resolve('ann'), 'bob', 'ann']) await post('/any', key, request);
      assert.equal(await effects(request), 2);
    });

    await t.test('an answer that cannot be sent as it stands is refused before COMMIT', async () => {
      client_ = 'ann';
      for (given of [
        ...['201', 99, 101, 1000, 200.5, NaN, null].map((status) => ({ status })),
        ...['10 €', undefined, null, 5, new Date(0), 'a\r\nb: c', ' a'].map((value) => ({ headers: { 'x-a': value } })),
        { status: 204, body: {} }, { status: 304, body: 'a' },
        ...[Readable.from(['a']), new Response('a').body, new Blob(['a']), new ArrayBuffer(1), new Float32Array(1), new Map(), new Set(),
          new URLSearchParams('a=1'), { fee: NaN }, { a: [undefined] }, 10n, () => 1].map((body) => ({ status: 201, body })),
        { status: 418, body: new Map() }, { body: 1, answer: 2 }, 7, undefined, (async function* pays() { yield 1; })(),
      ]) {
        const { key, request } = operation();
        const response = await post('/any', key, request);
        assert.equal(response.status, 500, JSON.stringify(given, (name, value) => String(value)));
        assert.deepEqual([await effects(request), await state(key)], [0, 'absent']);
      }
    });

    await t.test('what can be sent is sent again as it was', async () => {
      for (given of [{ body: new Uint8Array([0, 255]) }, { body: '' }, { body: Buffer.alloc(0) }, { body: false }, { body: 0 }, { body: null },
        { body: { at: new Date(0), none: undefined } }, { headers: { 'x-a': 'p\xe9', vary: ['a', 'b'] }, body: 5 }, { headers: { 'Content-Length': '1' }, body: 'long' }, { status: 304 }, { status: 204, body: null }]) {
        const { key, request } = operation();
        const [first, retry] = [await post('/any', key, request), await post('/any', key, request)];
        assert.deepEqual([retry.status, retry.body, retry.headers['content-type'], retry.headers['x-a'], retry.headers.vary],
          [first.status, first.body, first.headers['content-type'], first.headers['x-a'], first.headers.vary]);
        assert.deepEqual([retry.headers['idempotent-replayed'], await effects(request)], ['true', 1]);
        if (given.body === null) assert.equal(first.body.length, 0);
      }
    });

    await t.test('a Failure: the effect is undone, and the answer stored', async () => {
      const { key, request } = operation();
      const first = await post('/declined', key, request);
      const retry = await post('/declined', key, request);
      assert.deepEqual([first.status, retry.status], [402, 402]);
      assert.deepEqual(retry.body, first.body);
      assert.deepEqual(JSON.parse(first.body).detail, 'card declined');
      assert.match(retry.headers['content-type'], /^application\/problem\+json/);
      assert.deepEqual([retry.headers['x-reason'], retry.headers['set-cookie']], ['51', undefined]);
      assert.deepEqual([first, retry].map((r) => r.headers['idempotent-replayed']), [undefined, 'true']);
      assert.deepEqual([await effects(request), await state(key)], [0, 'failed']);
      const other = operation();
      for (const replayed of [undefined, 'true']) {
        const { status, headers, body } = await post('/refused', other.key, other.request);
        assert.deepEqual([status, headers['content-type'], body.toString(), headers['idempotent-replayed']],
          [409, 'text/xml', '<no/>', replayed]);
      }
    });

    await t.test('an answer that must not be stored: rolled back, and sent', async () => {
      for (const [then, status, body] of [['errors', 200, { errors: [1] }], ['raised', 201, { raised: true }]]) {
        const { key, request } = operation();
        events.length = 0;
        for (let n = 0; n < 2; n++) {
          const { headers, ...answer } = await post('/graphql', key, { ...request, then });
          assert.deepEqual([answer.status, JSON.parse(answer.body), headers['x-a'], headers['idempotent-replayed']], [status, body, '1', undefined]);
        }
        assert.deepEqual([await effects(request), await state(key)], [0, 'absent']);
        assert.deepEqual(events.map(([type]) => type), ['claimed', 'not_stored', 'claimed', 'not_stored']);
      }
      const { key, request } = operation();
      await post('/graphql', key, request);
      assert.equal((await post('/graphql', key, request)).headers['idempotent-replayed'], 'true');
      assert.equal(await effects(request), 1);
    });

    await t.test('a final status: the effect is undone, and the answer stored', async () => {
      const { key, request } = operation();
      const [first, retry] = [await post('/final', key, request), await post('/final', key, request)];
      for (const { status, headers, body } of [first, retry]) {
        assert.deepEqual([status, headers['x-a'], headers['content-type'], JSON.parse(body)],
          [402, '1', 'application/json; charset=utf-8', { declined: request.amount }]);
      }
      assert.deepEqual([first, retry].map(({ headers }) => [headers['set-cookie'], headers['idempotent-replayed']]), [[['a=1'], undefined], [undefined, 'true']]);
      assert.deepEqual([await effects(request), await state(key)], [0, 'failed']);
    });

    await t.test('a scope that the request chooses', async () => {
      const { key, request } = operation();
      for (const scope of ['payments', 'charges']) await post('/chosen', key, request, { 'x-scope': scope });
      assert.deepEqual([await state(key, 'payments'), await state(key, 'charges')], ['completed', 'completed']);
      assert.equal((await post('/chosen', operation().key, request)).status, 500);
    });

    await t.test('problems link to the documentation', async () => {
      const { headers, status } = await post('/final', undefined, {});
      assert.deepEqual([status, headers['content-type'], headers.link],
        [400, 'application/problem+json', '<https://shop.example/docs>; rel="describedby"']);
      const { idempotent } = require('pg-idem/express');
      assert.throws(() => idempotent(pool, { scope: 'payments', tenant: null, documentation: 'https://a.example/\n' }, () => {}), RangeError);
    });

    await t.test('problems in the format of the application', async () => {
      const { key, request } = operation();
      const held = await holder(key, { method: 'POST', url: '/formatted', body: request });
      const response = await post('/formatted', key, request);
      assert.deepEqual([response.status, response.headers['content-type'], response.headers['retry-after'], response.headers.link, JSON.parse(response.body)],
        [409, 'application/json', '1', '<https://shop.example/docs>; rel="describedby"', { error: { code: 'ID001', type: `${urn}in_progress` } }]);
      await held.complete({});
      assert.equal((await post('/formatted', undefined, { then: 'rpc' })).status, 200);
      const other = operation();
      for (const replayed of [undefined, 'true']) {
        const failed = await post('/formatted', other.key, { failure: 1 });
        assert.deepEqual([failed.status, JSON.parse(failed.body), failed.headers['idempotent-replayed']],
          [402, { error: { code: 'ID003', type: `${urn}key_failed` } }, replayed]);
      }
    });

    await t.test('a fault of the service is 500, and goes to the error handler', async () => {
      for (const [path, message] of [['/zero', /division by zero/], ['/forever', /"ttl"/], ['/forbidden', /permission denied/], ['/many', /./]]) {
        const { key, request } = operation();
        const response = await post(path, key, request);
        assert.deepEqual([response.status, Object.keys(JSON.parse(response.body))], [500, ['error']], path);
        assert.match(JSON.parse(response.body).error, message);
        assert.deepEqual([await effects(request), await state(key)], [0, 'absent']);
      }
    });

    await t.test('an answer that the handler sends itself is refused before the client is told', async () => {
      const sends = {
        express: [(res) => res.status(201).json({}), (res) => { res.status(201).json({}); }, (res) => { try { res.send('a'); } catch { /* ignored */ } return {}; },
          (res) => res.redirect('/'), (res) => res.sendStatus(201), (res) => { res.writeHead(201); res.end('a'); }, (res) => res.write('a')],
        fastify: [(reply) => reply.code(201).send({}), (reply) => { reply.send({}); return reply; }, (reply) => { try { reply.send('a'); } catch { /* ignored */ } return {}; },
          (reply) => reply.redirect('/'), (reply) => reply.hijack(), (reply) => { reply.raw.writeHead(201); reply.raw.end('a'); }, (reply) => reply.raw.write('a')],
      };
      for (const sent of sends[kind]) {
        const { key, request } = operation();
        habit = async (q, client, response) => { await pay(client, request); return sent(response); };
        const response = await post('/habits', key, request);
        assert.deepEqual([response.status, response.headers.location], [500, undefined], String(sent));
        assert.match(JSON.parse(response.body).error, /is sent after COMMIT/);
        assert.deepEqual([await effects(request), await state(key)], [0, 'absent']);
      }
    });

    await t.test('a request that a middleware has refused, and passed on all the same, runs and shows nothing', async () => {
      const refusals = [(raw) => { raw.writeHead(401).end('no'); }];
      const slow = (raw, reply) => { around = () => sleep(200); reply.code(401).send('no'); }; // a hook works on it
      if (kind === 'fastify') refusals.push(slow);
      for (const refuse of refusals) {
        const { key, request } = operation();
        habit = async (q, client) => ({ status: 201, headers: { location: '/1' }, body: await pay(client, request) });
        prepare = refuse;
        const refused = [await post('/habits', key, request)];
        [prepare, around] = [sayNothing, sayNothing];
        assert.equal((await post('/habits', key, request)).headers['idempotent-replayed'], undefined);
        prepare = refuse;
        if (kind === 'fastify') refused.push(await post('/habits', key, request));
        [prepare, around] = [sayNothing, sayNothing];
        for (const { status, headers, body } of refused) assert.deepEqual([status, headers.location, body.toString()], [401, undefined, 'no']);
        assert.equal(await effects(request), 1);
      }
    });

    await t.test('a stream or a callback that sends is refused, and does not end the process, not even later', async () => {
      const source = () => Readable.from(['a', 'b'.repeat(100_000)]);
      const turn = () => new Promise(setImmediate);
      const late = [];
      const habits = [
        (res) => { source().pipe(res); },
        (res) => { pipeline(source(), res, sayNothing); },
        (res) => { setImmediate(() => res.end('a')); },
        (res) => { setImmediate(() => { res.writeHead(201); res.write('a'); }); return new Promise(sayNothing); }, // ends never
        (res) => { late.push((async () => { for (let n = 0; n < 50; n++) { res.write('a'); await turn(); } })()); },
      ];
      for (const sends of habits) {
        const { key, request } = operation();
        habit = async (q, client) => {
          await pay(client, request);
          await sends(response_);
          await turn().then(turn);
          return {};
        };
        const response = await post('/habits', key, request);
        assert.deepEqual([response.status, /is sent after COMMIT/.test(response.body)], [500, true], String(sends));
        assert.deepEqual([await effects(request), await state(key)], [0, 'absent']);
      }
      await Promise.all(late);
      const warned = new Promise((resolve) => { process.once('warning', resolve); });
      const { key, request } = operation();
      habit = async () => ({ body: 'paid' });
      assert.equal((await post('/habits', key, request)).body.toString(), 'paid');
      response_.end('late');
      source().pipe(response_);
      await turn().then(turn);
      assert.match((await warned).message, /is sent after COMMIT/);
    });

    await t.test('what a handler has not waited for sends nothing, while others do before they send', async () => {
      around = () => sleep(60);
      const later = (send, res = response_) => { sleep(30).then(() => send(res)); };
      const ends = [
        [() => later((res) => res.end('paid')), 500],
        [() => later((res) => { res.writeHead(200); res.end('paid'); }), 500],
        [() => later((res) => source().pipe(res)), 500],
        [async (res) => { for (let n = 0; n < 10; n++) { res.write('paid'); await sleep(10); } }, 500],
        [(_, reply) => { later((of) => of.status(201).header('x-failed', 'a').send('paid'), reply); throw new Failure('no'); }, 409],
        [(_, reply) => { setImmediate(() => reply.header('x-failed', 'a')); throw new Failure('no'); }, 409], // during COMMIT
        [() => { later((res) => res.end('paid')); return { status: 201, body: 'stored' }; }, 201],
      ];
      const source = () => Readable.from(['paid']);
      for (const [end, status] of ends) {
        const { key, request } = operation();
        habit = async (q, client, of) => { await pay(client, request); return end(response_, of); };
        const { status: sent, headers, body } = await post('/habits', key, request);
        assert.deepEqual([sent, headers['x-failed'], /paid/.test(body)], [status, undefined, false], String(end));
        assert.equal(await effects(request), status === 201 ? 1 : 0);
      }
      around = sayNothing;
    });

    await t.test('status and headers that the handler sets on the response belong to the answer, once', async () => {
      const { key, request } = operation();
      let finished = 0;
      await pool.query('ALTER SEQUENCE tries RESTART');
      habit = async (q, client, response) => {
        const attempt = await one("SELECT nextval('commits')");
        response_.on('finish', () => { finished++; });
        response[kind === 'express' ? 'set' : 'header'](`x-${attempt}`, 'a').header('x-n', 5);
        response[kind === 'express' ? 'status' : 'code'](201);
        await client.query('SELECT lose_race()');
        return { headers: { 'x-own': '1' }, body: await pay(client, request) };
      };
      await pool.query('ALTER SEQUENCE commits RESTART');
      const [first, retry] = [await post('/habits', key, request), await post('/habits', key, request)];
      for (const { status, headers } of [first, retry]) {
        assert.deepEqual([status, headers['x-before'], headers['x-1'], headers['x-2'], headers['x-3'], headers['x-n'], headers['x-own']],
          [201, 'kept', undefined, undefined, 'a', '5', '1']);
      }
      assert.deepEqual([first.body, finished, await effects(request)], [retry.body, 1, 1]);
      habit = async (q, client, response) => {
        response_.on('finish', () => { finished++; });
        response[kind === 'express' ? 'set' : 'header']('x-failed', 'a');
        throw new Error('a mistake');
      };
      const failed = await post('/habits', operation().key, request);
      assert.deepEqual([failed.status, failed.headers['x-failed'], failed.headers['x-before'], finished], [500, undefined, 'kept', 1]);
    });

    await t.test('functions that an attempt has registered run after its COMMIT, once, and not after a rollback', async () => {
      const lose = (client) => client.query('SELECT lose_race()');
      const lost = "DO $$ BEGIN RAISE EXCEPTION 'lost' USING ERRCODE = '40001'; END $$";
      const ends = [ // the answer to the third attempt, and what follows two lost races
        [200, async () => ({})],
        [503, (client) => client.query(lost)],
        [402, async () => { throw new Failure('declined', { status: 402 }); }],
        [404, async () => ({ status: 404 })],
        [202, async () => { throw new NotStored({ status: 202 }); }],
        [500, async () => { throw new Error('a mistake'); }],
      ];
      let onFinished = (response, tell) => response.once('finish', tell);
      try { onFinished = require('on-finished'); } catch { /* comes with Express */ }
      for (const outer of [sayNothing, (response) => onFinished(response, sayNothing)]) {
        for (const [status, end] of ends) {
          const { key, request } = operation();
          const told = [];
          let attempt = 0;
          await pool.query('ALTER SEQUENCE tries RESTART');
          prepare = (response) => {
            response.on('finish', () => told.push('before'));
            outer(response);
          };
          habit = async (q, client) => {
            const own = ++attempt;
            for (const event of ['finish', 'close']) response_.on(event, () => told.push(`${own}: ${event}`));
            onFinished(response_, () => told.push(`${own}: finished`));
            await lose(client);
            return end(client);
          };
          assert.deepEqual([(await post('/habits', key, request)).status, attempt], [status, 3]);
          await sleep(50); // until the connection is closed
          const ran = status === 200 ? ['3: close', '3: finish', '3: finished'] : [];
          if (ran.length) assert.equal(told.at(-1), '3: close'); // not only when the connection ends
          assert.deepEqual(told.sort(), [...ran, 'before'], `${status}: ${outer}`);
        }
      }
      prepare = sayNothing;
    });

    await t.test('functions of an attempt whose COMMIT is not answered run if it has committed', async () => {
      for (const isCommitted of [true, false]) {
        const { key, request } = operation();
        const told = [];
        let attempts = 0;
        habit = async (q, client) => {
          const own = ++attempts;
          response_.on('finish', () => told.push(own));
          return { body: await pay(client, request) };
        };
        let isCut = false;
        through = { async connect() {
          const client = await pool.connect();
          const { query } = client;
          client.query = async (config, ...more) => {
            if (isCut || !/idem.complete.*COMMIT/.test(config.text)) return query.call(client, config, ...more);
            isCut = true;
            if (isCommitted) await query.call(client, config, ...more);
            client.connection.stream.destroy();
            if (!isCommitted) assert.equal((await post('/habits', key, request)).status, 200); // another request
            throw new Error('Connection terminated unexpectedly');
          };
          const { release } = client;
          client.release = (broken) => { Object.assign(client, { query, release }); release(broken); };
          return client;
        } };
        const response = await post('/habits', key, request);
        through = pool;
        assert.deepEqual([response.headers['idempotent-replayed'], await effects(request)], ['true', 1]);
        assert.deepEqual(told, [isCommitted ? 1 : 2]);
      }
    });

    await t.test('cookies and headers of an attempt that was rolled back are not sent, and those before it are', async () => {
      const cookie = (response, value) => response[kind === 'express' ? 'append' : 'header']('set-cookie', value);
      const lost = "DO $$ BEGIN RAISE EXCEPTION 'lost' USING ERRCODE = '40001'; END $$";
      for (const before of [['a=1', 'b=2'], ['a=1'], []]) {
        for (const [status, end, ...own] of [
          [200, async () => ({}), 'attempt=3'], [404, async () => ({ status: 404 }), 'attempt=3'],
          [503, (client) => client.query(lost)], [500, async () => { throw new Error('a mistake'); }],
        ]) {
          let attempt = 0;
          await pool.query('ALTER SEQUENCE tries RESTART');
          prepare = (raw, response) => before.forEach((value) => cookie(response, value));
          habit = async (q, client, response) => {
            cookie(response, `attempt=${++attempt}`);
            response_.setHeader(`x-raw-${attempt}`, '1');
            if (attempt === 1) response.removeHeader('x-before');
            await client.query('SELECT lose_race()');
            return end(client);
          };
          const { status: sent, headers } = await post('/habits', operation().key, {});
          const raw = Object.keys(headers).filter((name) => name.startsWith('x-raw'));
          assert.deepEqual([sent, headers['set-cookie'] ?? [], raw, headers['x-before']],
            [status, [...before, ...own], own.length ? ['x-raw-3'] : [], 'kept']);
        }
      }
      prepare = sayNothing;
    });

    await t.test('a body that an attempt has changed is not paid by the next one', async () => {
      const { key, request } = operation();
      await pool.query('ALTER SEQUENCE tries RESTART');
      habit = async (q, client) => {
        q.body.amount *= 2;
        await client.query('SELECT lose_race()');
        return { body: await pay(client, q.body) };
      };
      const response = await post('/habits', key, request);
      assert.deepEqual([response.status, /the request has changed/.test(response.body)], [500, true]);
      assert.equal(await state(key), 'absent');
    });

    await t.test('a status from 400 on: rolled back, and not stored', async () => {
      const { key, request } = operation();
      const response = await post('/teapot', key, request);
      assert.deepEqual([response.status, JSON.parse(response.body)], [418, { short: true }]);
      assert.deepEqual([await effects(request), await state(key)], [0, 'absent']);
    });

    await t.test('a mistake goes to the framework, and nothing is stored', async () => {
      for (const [path, message] of [['/mistake', /a mistake/], ['/naked', /must return/], ['/unknown', /scope/], ['/number', /numeric/]]) {
        const { key, request } = operation();
        const response = await post(path, key, request);
        assert.equal(response.status, 500);
        assert.match(JSON.parse(response.body).error, message);
        assert.deepEqual([await effects(request), await state(key)], [0, 'absent']);
      }
    });

    await t.test('nothing of an attempt that was rolled back is sent', async () => {
      for (const [then, status, body] of [['failure', 402, /insufficient funds/], ['refusal', 404, /^$/],
        ['answer', 201, /^second attempt$/], ['mistake', 500, /a mistake/]]) {
        const { key } = operation();
        attempts = 0;
        await pool.query('ALTER SEQUENCE commits RESTART');
        for (const again of [false, true]) {
          const response = await post('/lost-commit', key, { then });
          assert.equal(response.status, status);
          assert.match(response.body.toString(), body);
          assert.deepEqual([response.headers['x-attempt'], response.headers['set-cookie']], [undefined, undefined]);
          const replayed = again && ['failure', 'answer'].includes(then);
          assert.equal(response.headers['idempotent-replayed'], replayed ? 'true' : undefined);
          if (then === 'failure') assert.equal(JSON.parse(response.body).sqlstate, 'ID003');
        }
      }
    });

    await t.test('races are retried; what stays lost is a 503', async () => {
      const { key, request } = operation();
      await pool.query('ALTER SEQUENCE tries RESTART');
      assert.equal((await post('/races', key, request)).status, 200);
      assert.equal(await effects(request), 1);
      logged.length = 0;
      for (const path of ['/lost', '/slow', '/late', '/away']) {
        const response = await post(path, operation().key, request);
        assert.equal(response.headers['retry-after'], '1');
        await isProblem(response, 503, 'about:blank');
        assert.equal(JSON.parse(response.body).detail, undefined);
      }
      assert.deepEqual(logged, ['40001', '57014', undefined, 'ECONNREFUSED']);
    });
  });
}

test('express: a body that nothing has parsed is a mistake', async (t) => {
  let listen;
  try { require('express'); listen = frameworks.express; } catch { return t.skip('not installed'); }
  const server = await listen();
  servers.push(server);
  const response = await sender(server)('/unparsed', operation().key, { amount: 1 });
  assert.deepEqual([response.status, /nothing has parsed the body/.test(response.body)], [500, true]);
});

test('fastify: the schema shapes what is stored, and a replay is not serialised again', async (t) => {
  try { require('fastify'); } catch { return t.skip('not installed'); }
  const app = require('fastify')();
  const { idempotent } = require('pg-idem/fastify');
  let serialised = 0;
  const options = { scope: 'payments', tenant: null };
  const response = { 201: { type: 'object', properties: { id: { type: 'number' }, at: { type: 'string' } } } };
  const secret = { id: 1, password: 'SECRET', at: new Date(0) };
  app.post('/shaped', { schema: { response } }, idempotent(pool, options, async () => ({ status: 201, body: secret })));
  app.post('/plain', { schema: { response } }, async (request, reply) => reply.code(201).send(secret));
  app.post('/own', { serializerCompiler: () => (body) => { serialised++; return `<id>${body.id}</id>`; }, schema: { response } },
    idempotent(pool, options, async () => ({ status: 201, headers: { 'Content-Type': 'text/xml' }, body: secret })));
  app.post('/map', { schema: { response } }, idempotent(pool, options, async () => ({ status: 201, body: new Map() })));
  const content = { 'application/json': { schema: response[201] } };
  app.post('/content', { schema: { response: { '2xx': { content } } } }, idempotent(pool, options, async () => ({ status: 201, body: secret })));
  app.post('/this', idempotent(pool, options, async function () { return { body: { same: this === app } }; }));
  let once = 0;
  app.addHook('onSend', async (request, reply, payload) => payload);
  app.addHook('onResponse', async () => { once++; });
  const post = (url, key) => app.inject({ method: 'POST', url, payload: {}, headers: { 'idempotency-key': key } });
  const { key } = operation();
  const [first, retry, plain] = [await post('/shaped', key), await post('/shaped', key), await post('/plain', key)];
  assert.deepEqual([first.json(), retry.json()], [plain.json(), plain.json()]);
  assert.deepEqual([retry.headers['idempotent-replayed'], once], ['true', 3]);
  assert.deepEqual(await one(`SELECT response FROM idem.lookup('payments', $1)`, [key]), { id: 1, at: '1970-01-01T00:00:00.000Z' });
  const other = operation();
  for (const replayed of [undefined, 'true']) {
    const { statusCode, headers, body } = await post('/own', other.key);
    assert.deepEqual([statusCode, headers['content-type'], body, headers['idempotent-replayed'], serialised], [201, 'text/xml', '<id>1</id>', replayed, 1]);
  }
  assert.equal((await post('/map', operation().key)).statusCode, 500);
  assert.deepEqual((await post('/content', operation().key)).json(), plain.json());
  assert.deepEqual((await post('/this', operation().key)).json(), { same: true });
  await app.close();
});

test('respond() is for other frameworks', async () => {
  const { key, request } = operation();
  const asked = { method: 'POST', url: '/payments', headers: { 'idempotency-key': `"${key}"`, 'content-length': '9' }, body: request };
  const call = (more) => respond(pool, { scope: 'payments', tenant: null }, { ...asked, ...more },
    async (client) => ({ status: 201, body: await pay(client, request) }));
  const [first, retry] = [await call(), await call()];
  assert.deepEqual([first.status, retry.status, retry.headers['idempotent-replayed']], [201, 201, 'true']);
  assert.ok(Buffer.isBuffer(first.body) && first.body.equals(retry.body));
  assert.equal((await call({ body: { a: 1 } })).status, 422);
  const sent = async (header) => (await call({ headers: { ...asked.headers, 'idempotency-key': header } })).status;
  assert.deepEqual([await sent([`"${key}"`]), await sent(['a', 'b']), await sent([]), await sent(null)], [201, 400, 400, 400]);
  await assert.rejects(call({ body: undefined }), /nothing has parsed the body/);
  await assert.rejects(respond(pool, { scope: 'payments' }, asked, async () => ({})), /tenant must be/);
});

test('storeIf decides: true or false, or a promise of one', async () => {
  for (const [storeIf, status, left] of [
    [() => true, 200, 'completed'], [async () => true, 200, 'completed'], [() => false, 200, 'absent'], [async () => false, 200, 'absent'],
    [() => {}, undefined, 'absent'], [async () => {}, undefined, 'absent'], [() => 1, undefined, 'absent'], [() => null, undefined, 'absent'],
  ]) {
    const { key, request } = operation();
    const asked = { method: 'POST', url: '/', headers: { 'idempotency-key': key }, body: request };
    const answer = respond(pool, { scope: 'payments', tenant: null, storeIf }, asked, async (client) => ({ body: await pay(client, request) }));
    if (status) assert.equal((await answer).status, status);
    else await assert.rejects(answer, { name: 'TypeError', message: /storeIf must return true or false/ });
    assert.deepEqual([await state(key), await effects(request)], [left, left === 'absent' ? 0 : 1], String(storeIf));
  }
});

test('a request of another form is an error of the service, and not of each client', async () => {
  const { key, request } = operation();
  const asked = { method: 'POST', url: '/', headers: { 'idempotency-key': key }, body: request };
  const call = (of) => respond(pool, { scope: 'payments', tenant: null }, of, () => assert.fail('runs'));
  for (const other of [
    new Request('http://localhost/', { method: 'POST', body: '{}', headers: asked.headers }), { ...asked, headers: new Headers(asked.headers) },
    { ...asked, method: undefined }, { ...asked, url: undefined }, { ...asked, url: new URL('http://localhost/') }, { ...asked, headers: undefined },
    { ...asked, headers: new Map(Object.entries(asked.headers)) }, { ...asked, headers: Object.entries(asked.headers) },
  ]) {
    await assert.rejects(call(other), { name: 'TypeError', message: /of the request must be/ });
  }
});

test('digits and members of a stored answer are those of its record', async () => {
  const { key } = operation();
  await pool.query(`SELECT idem.complete(token, '{"n": 12345678901234567890.10}')
    FROM idem.claim('payments', $1, '{"method": "POST", "url": "/"}')`, [key]);
  const asked = { method: 'POST', url: '/', headers: { 'idempotency-key': key } };
  const { body } = await respond(pool, { scope: 'payments', tenant: null }, asked, () => assert.fail('runs'));
  assert.equal(body.toString(), '{"n": 12345678901234567890.10}');
});

test('the tenant must be given', () => {
  for (const name of ['express', 'fastify'].filter((of) => { try { return require(of); } catch { return false; } })) {
    const { idempotent } = require(`pg-idem/${name}`);
    for (const tenant of [undefined, 'ann', 7]) {
      assert.throws(() => idempotent(pool, { scope: 'payments', tenant }, async () => ({})), /tenant must be a function, or null/);
    }
  }
});

// The cases are those of idem.parse_key() and of the Python package.
test('keys', () => {
  const cases = require('../../../test/data/idempotency_key.json');
  for (const [header, key] of cases.keys) assert.equal(parseKey(header), key, header);
  for (const header of cases.none) assert.equal(parseKey(header ?? undefined), undefined);
  for (const header of cases.invalid) {
    assert.throws(() => parseKey(header), { code: 'ID007', constraint: 'invalid_key' }, header);
  }
});
