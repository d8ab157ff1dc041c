'use strict';
// The README's code runs as it stands, and its figures are those of the files.
const assert = require('node:assert/strict');
const { spawnSync } = require('node:child_process');
const { readFileSync } = require('node:fs');
const { createRequire } = require('node:module');
const path = require('node:path');
const { after, test } = require('node:test');
const { inspect } = require('node:util');
const { Client } = require('pg');
const { run } = require('pg-idem');
const { finish, operation, pool } = require('./support.js');

const folder = path.join(__dirname, '..');
const readme = readFileSync(path.join(folder, 'README.md'), 'utf8');
const blocks = (kind) => [...readme.matchAll(new RegExp(`^\`\`\`${kind}\n(.*?)^\`\`\``, 'gms'))].map((m) => m[1]);

const closing = [finish];
after(() => Promise.all(closing.map((close) => close())));

// With what the README's SQL creates. The README's pools connect to it.
async function freshDatabase(sql) {
  await pool.query('DROP DATABASE IF EXISTS readme');
  await pool.query('CREATE DATABASE readme');
  process.env.PGDATABASE = 'readme';
  const client = new Client();
  await client.connect();
  await client.query(sql);
  await client.end();
}

function isInstalled(name) {
  try { return Boolean(require(name)); } catch { return false; }
}
const skip = !['express', 'fastify'].every(isInstalled) && 'express or fastify is not installed';

test('the code: "//> value" is what it prints', { skip }, async () => {
  const code = blocks('js').join('').replace(/^(app|fastify)\.listen\(.*\);$/gm, 'await serve($1);');
  const printed = [];
  const ports = [];
  async function serve(app) {
    const server = app.server ?? await new Promise((resolve) => { const s = app.listen(0, () => resolve(s)); });
    if (app.server) await app.listen({ port: 0 });
    closing.push(() => (app.server ? app.close() : server.close()));
    ports.push(server.address().port);
  }
  const log = { log: (...values) => printed.push(values.map((v) => (typeof v === 'string' ? v : inspect(v))).join(' ')) };
  const AsyncFunction = (async () => {}).constructor;
  await freshDatabase(blocks('sql').join(''));
  const pools = [];
  const require = createRequire(path.join(folder, 'README.md'));
  const tracked = (name) => {
    if (name !== 'pg') return require(name);
    return { ...require('pg'), Pool: class extends require('pg').Pool { constructor(o) { super(o); pools.push(this); } } };
  };
  closing.push(() => Promise.all(pools.map((pool) => pool.end())));
  await new AsyncFunction('require', 'console', 'serve', code)(tracked, log, serve);
  assert.deepEqual(printed, [...code.matchAll(/\/\/> (.*)$/gm)].map((m) => m[1]));

  assert.equal(ports.length, 2);
  for (const [amount, port] of [[1, ports[0]], [2, ports[1]]]) {
    const replies = [];
    for (let request = 0; request < 2; request++) {
      const reply = await fetch(`http://localhost:${port}/payments`, {
        method: 'POST', body: JSON.stringify({ amount }),
        headers: { 'content-type': 'application/json', 'idempotency-key': `"order-${amount}"` },
      });
      replies.push([reply.status, reply.headers.get('idempotent-replayed'), await reply.json()]);
    }
    assert.deepEqual(replies.map(([status, replayed]) => [status, replayed]), [[201, null], [201, 'true']]);
    assert.deepEqual(replies[0][2], replies[1][2]);
    const { rows } = await pools[0].query('SELECT 1 FROM payment WHERE amount = $1', [amount]);
    assert.equal(rows.length, 1);
  }
});

test('so many lines go and come from before.js to after.js; the page is short', () => {
  const { stdout } = spawnSync('diff', ['-U', '100', 'before.js', 'after.js'], { cwd: __dirname, encoding: 'utf8' });
  const lines = stdout.split('\n').slice(3).join('\n');
  const count = (sign) => lines.split('\n').filter((line) => line.startsWith(sign)).length;
  const figures = /(\d+) lines less, (\d+) more/.exec(readme);
  assert.deepEqual(figures.slice(1).map(Number), [count('-'), count('+')]);
  assert.ok(readme.split('\n').length <= 221);
});

test('the recipe for OpenTelemetry', { skip: !isInstalled('@opentelemetry/sdk-trace-base') && 'it is not installed' }, async () => {
  const { trace } = require('@opentelemetry/api');
  const { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } = require('@opentelemetry/sdk-trace-base');
  const exporter = new InMemorySpanExporter();
  trace.setGlobalTracerProvider(new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] }));
  const [recipe] = blocks('javascript');
  assert.ok(recipe.trim().split('\n').length <= 10);
  const onEvent = new Function('require', `${recipe}\nreturn onEvent;`)(require);
  const { key, request } = operation();
  const call = (work, name = key) => run(pool, { scope: 'payments', key: name, request, onEvent }, work).catch(() => {});
  await call(async (client) => { await client.query('SELECT pg_sleep(0.2)'); });
  await call(() => assert.fail('runs'));
  await call(() => { throw new Error('a mistake'); }, `${key} 2`);
  const spans = exporter.getFinishedSpans();
  assert.deepEqual(spans.map(({ name, attributes, events }) => [name, attributes['idem.end'], events[0]?.attributes['exception.message']]),
    [['idem payments', 'completed', undefined], ['idem payments', 'replayed', undefined], ['idem payments', 'error', 'a mistake']]);
  const [seconds, nanoseconds] = spans[0].duration;
  assert.ok(seconds + nanoseconds / 1e9 >= 0.15);
});
