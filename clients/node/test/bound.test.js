'use strict';
// What a handler can read is bound to the key, and nothing else: another request is a conflict, an honest
// retry is the same request, and what cannot be bound is refused.
const assert = require('node:assert/strict');
const { randomUUID } = require('node:crypto');
const os = require('node:os');
const { after, test } = require('node:test');
const zlib = require('node:zlib');
const { finish, pool } = require('./support.js');

const closing = [finish];
after(() => Promise.all(closing.map((close) => close())));

const options = { scope: 'payments', tenant: null };
const isInstalled = (name) => { try { return Boolean(require(name)); } catch { return false; } };
const raw = async (stream) => {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return Buffer.concat(chunks).toString();
};

async function send(url, key, { body, type, ...headers }) {
  const more = { ...(type && { 'content-type': type }), ...headers };
  const response = await fetch(url, { method: 'POST', body, duplex: 'half', headers: { 'idempotency-key': `"${key}"`, ...more } });
  return { status: response.status, text: await response.text(), replayed: response.headers.get('idempotent-replayed') };
}

// The second request is the first one again.
async function isSame(url, first, second = first) {
  const key = randomUUID();
  const [answer, again] = [await send(url, key, first), await send(url, key, second)];
  assert.deepEqual([answer.status, again], [200, { ...answer, replayed: 'true' }], answer.text + again.text);
}
async function isOther(url, first, second) {
  const key = randomUUID();
  assert.equal((await send(url, key, first)).status, 200);
  assert.equal((await send(url, key, second)).status, 422);
}
async function isRefused(url, request, message) {
  const answer = await send(url, randomUUID(), request);
  assert.equal(answer.status, 500);
  assert.match(answer.text, message);
}
// Its mistake: JSON, but none that can be stored.
async function isUnstorable(url) {
  for (const body of ['{"a":1e400}', '[-1e400]', '['.repeat(20_000) + ']'.repeat(20_000)]) {
    const answer = await send(url, randomUUID(), json(body));
    assert.equal(answer.status, 400);
    const { type, sqlstate, detail } = JSON.parse(answer.text);
    assert.deepEqual([type, sqlstate], ['about:blank', '22032']);
    assert.match(detail, /the request cannot be stored/);
  }
}

const json = (value, headers) => ({ body: typeof value === 'string' ? value : JSON.stringify(value), type: 'application/json', ...headers });
function form(content, { name = 'file', filename = 'a.txt', type = 'text/plain', note = 'n' } = {}) {
  const data = new FormData();
  if (note !== null) data.set('note', note);
  for (const of of [content].flat()) data.append(name, new Blob([of], { type }), filename);
  return { body: data }; // the boundary is another one each time
}

async function uploads(url, { named = true } = {}) {
  await isSame(url, form('a'), form('a'));
  await isOther(url, form('a'), form('b'));
  await isOther(url, form('a'), form('a', { note: 'other' }));
  if (!named) return;
  await isOther(url, form('a'), form('a', { filename: 'b.txt' }));
  await isOther(url, form('a'), form('a', { type: 'text/html' }));
}

for (const name of ['express', 'express4']) {
  const skip = !isInstalled(name) && `${name} is not installed`;
  const listen = async (build) => {
    const express = require(name);
    const app = express();
    build(app, express, require('pg-idem/express').idempotent);
    app.use((error, req, res, next) => res.status(500).end(error.message));
    const server = await new Promise((resolve) => { const s = app.listen(0, '127.0.0.1', () => resolve(s)); });
    closing.push(() => { server.close(); server.closeAllConnections(); });
    return `http://127.0.0.1:${server.address().port}`;
  };

  test(`${name}: bodies`, { skip }, async () => {
    const base = await listen((app, express, idempotent) => {
      app.use(express.json(), express.urlencoded({ extended: true }), express.text(), express.raw({ type: 'image/*' }));
      const route = (path, ...before) => app.post(path, ...before, idempotent(pool, options, async (req) => ({ body: String(JSON.stringify(req.body)) })));
      route('/');
      route('/map', (req, res, next) => { req.body = new Map(Object.entries(req.body)); next(); });
      route('/view', (req, res, next) => { req.body = new DataView(new TextEncoder().encode(JSON.stringify(req.body)).buffer); next(); });
      route('/elsewhere', async (req, res, next) => { req.xml = await raw(req); next(); });
      route('/formidable', async (req, res, next) => { // its fields are elsewhere
        Object.assign(req, { body: {}, fields: { text: await raw(req) }, files: { doc: { name: 'a', path: __filename } } });
        next();
      });
    });
    await isSame(`${base}/`, json('{"a":1,"b":[1,2]}'), json(' { "b": [1.0, 2], "a": 1e0 }'));
    await isSame(`${base}/`, json({ a: 1 }), json({ a: 1 }, { 'content-encoding': 'gzip', body: zlib.gzipSync('{"a":1}') }));
    await isSame(`${base}/`, json({ a: 1 }), json({ a: 1 }, { body: new Blob(['{"a":', '1}']).stream() })); // in chunks
    await isSame(`${base}/`, json({ a: 1 }), json('{"a":2,"a":1}')); // the last one counts, as for the handler
    await isSame(`${base}/`, json({ a: 1 }), json({ a: 1 }, { type: 'application/json; charset=utf-8' }));
    await isSame(`${base}/`, json('{"a":9007199254740993}'), json('{"a":9007199254740992}')); // one number for the handler
    await isSame(`${base}/`, json({}), json('{ }'));
    await isSame(`${base}/`, { });
    await isOther(`${base}/`, json({ a: 1 }), json({ a: '1' }));
    await isOther(`${base}/`, json({ a: null }), json({}));
    await isOther(`${base}/`, json([1, 2]), json([2, 1]));
    await isOther(`${base}/`, json({ a: '1' }), { body: 'a=1', type: 'application/x-www-form-urlencoded' });
    await isOther(`${base}/`, { body: 'a=1', type: 'application/x-www-form-urlencoded' }, { body: 'a=2', type: 'application/x-www-form-urlencoded' });
    await isOther(`${base}/`, { body: 'ten', type: 'text/plain' }, { body: 'nine', type: 'text/plain' });
    await isOther(`${base}/`, { body: 'a', type: 'image/png' }, { body: 'b', type: 'image/png' });
    await isOther(`${base}/`, { body: 'a', type: 'image/png' }, { body: 'a', type: 'image/gif' });
    for (const type of ['application/xml', 'application/vnd.api+json', 'multipart/form-data; boundary=x', undefined]) {
      await isRefused(`${base}/`, { body: new TextEncoder().encode('{"a":1}'), type }, /nothing has parsed the body/);
    }
    await isRefused(`${base}/`, { body: '<a/>', type: 'application/xml' }, /the request \(Content-Type: application\/xml\),.* a parser for this type/);
    await isRefused(`${base}/`, { body: new TextEncoder().encode('a') }, /the request \(Content-Type: none\)/);
    await isUnstorable(`${base}/`);
    await isRefused(`${base}/elsewhere`, { body: '<a/>', type: 'application/xml' }, /nothing has parsed the body/);
    await isRefused(`${base}/formidable`, form('a'), /a file cannot be bound to the key/);
    await isRefused(`${base}/map`, json({ a: 1 }), /the request must be JSON, which has no Map/);
    await isSame(`${base}/view`, json({ a: 1 }), json({ a: 1 }));
    await isOther(`${base}/view`, json({ a: 1 }), json({ a: 2 }));
    const signed = await listen((app, express, idempotent) => { // the handler reads the text that is signed
      app.post('/', async (req, res, next) => { req.signed = await raw(req); next(); }, express.json(),
        idempotent(pool, options, async (req) => ({ body: String(req.signed) })));
    });
    await isRefused(`${signed}/`, { body: 'a=1', type: 'application/x-www-form-urlencoded' }, /nothing has parsed the body/);
  });

  test(`${name}: files of multer`, { skip: skip || !isInstalled('multer') && 'multer is not installed' }, async () => {
    const multer = require('multer');
    const base = await listen((app, express, idempotent) => {
      const route = (path, upload) => app.post(path, upload, idempotent(pool, options, async (req) => ({ body: { file: req.file?.originalname ?? '' } })));
      route('/memory', multer({ storage: multer.memoryStorage() }).single('file'));
      route('/disk', multer({ dest: os.tmpdir() }).single('file'));
      route('/array', multer().array('file'));
      route('/fields', multer().fields([{ name: 'file' }]));
      route('/any', multer().any());
      route('/none', multer().none());
      route('/nowhere', multer({ storage: { _handleFile: (req, file, done) => { file.stream.resume(); done(null, { bucket: 'b' }); }, _removeFile() {} } }).single('file'));
      route('/skipped', multer({ fileFilter: (req, file, done) => done(null, false) }).single('file'));
    });
    for (const path of ['/memory', '/disk', '/array', '/fields', '/any']) {
      await uploads(base + path);
      await isSame(base + path, form('a', { note: null }), form('a', { note: null }));
      await isOther(base + path, form('a', { note: null }), form('b', { note: null }));
    }
    await isOther(`${base}/array`, form(['a', 'b']), form(['b', 'a']));
    await isOther(`${base}/any`, form('a', { name: 'file' }), form('a', { name: 'other' }));
    await isRefused(`${base}/nowhere`, form('a'), /the file of "file" cannot be bound to the key/);
    await isRefused(`${base}/skipped`, form('a', { note: null }), /nothing has parsed the body/);
    const none = new FormData();
    none.set('a', '1');
    await isSame(`${base}/none`, { body: none }, { body: none });
    // A form that looks like a part of another parser.
    const disguised = (amount) => {
      const data = new FormData();
      for (const [name, value] of [['fieldname', 'x'], ['type', 'file'], ['value', '1'], ['amount', amount]]) data.set(`a[${name}]`, value);
      return { body: data };
    };
    await isSame(`${base}/none`, disguised('10'), disguised('10'));
    await isOther(`${base}/none`, disguised('10'), disguised('20'));
  });
}

const skip = !isInstalled('fastify') && 'fastify is not installed';
const fastify = async (build) => {
  const app = require('fastify')();
  await build(app, (handler) => require('pg-idem/fastify').idempotent(pool, options, handler));
  app.setErrorHandler((error, request, reply) => reply.code(error.statusCode ?? 500).send(error.message));
  await app.listen({ host: '127.0.0.1', port: 0 });
  closing.push(() => app.close());
  return `http://127.0.0.1:${app.server.address().port}/`;
};

test('fastify: bodies', { skip }, async () => {
  const url = await fastify((app, idempotent) => {
    app.addContentTypeParser('application/xml', (request, payload, done) => done(null, payload)); // the stream
    app.addContentTypeParser('text/csv', (request, payload, done) => done(null, null)); // for the handler to read
    app.addContentTypeParser('text/tab', async (request, payload) => { request.tab = await raw(payload); return null; });
    app.addContentTypeParser('image/png', { parseAs: 'buffer' }, (request, body, done) => done(null, body));
    app.post('/', idempotent(async (request) => ({ body: String(JSON.stringify(request.body)) })));
  });
  await isSame(url, json('{"a":1,"b":[1,2]}'), json(' { "b": [1.0, 2], "a": 1e0 }'));
  await isSame(url, json('null'), json('null'));
  await isSame(url, {});
  await isOther(url, json({ a: null }), json({}));
  await isOther(url, json('"ten"'), { body: 'ten', type: 'text/plain' });
  await isOther(url, { body: 'ten', type: 'text/plain' }, { body: 'nine', type: 'text/plain' });
  await isOther(url, { body: 'a', type: 'image/png' }, { body: 'b', type: 'image/png' });
  for (const type of ['text/csv', 'text/tab', 'application/xml']) {
    await isRefused(url, { body: 'a', type }, /nothing has parsed the body|must be JSON, which has no/);
  }
  const { text } = await send(url, randomUUID(), { body: 'a', type: 'text/csv' });
  assert.doesNotMatch(text, /express/);
  assert.match(text, /Content-Type: text\/csv/);
  await isUnstorable(url);
});

test('fastify: files of @fastify/multipart', { skip: skip || !isInstalled('@fastify/multipart') && 'it is not installed' }, async () => {
  for (const [mode, settings] of Object.entries({
    stream: {}, attach: { attachFieldsToBody: true }, keyValues: { attachFieldsToBody: 'keyValues' },
    elsewhere: { attachFieldsToBody: true, onFile: async (part) => { await raw(part.file); } },
  })) {
    const url = await fastify(async (app, idempotent) => {
      await app.register(require('@fastify/multipart'), settings);
      app.post('/', idempotent(async () => ({ body: 'stored' })));
    });
    if (mode === 'stream' || mode === 'elsewhere') await isRefused(url, form('a'), /cannot be bound to the key/);
    else await uploads(url, { named: mode === 'attach' });
    if (mode === 'attach') await isOther(url, form(['a', 'b']), form(['b', 'a']));
  }
});
