'use strict';
// A client process of bench/peers: pays in one of the FORMS, when peers.js asks it to.
//
//   peers_client.js FORM
//
// With PEERS_DISTANCE, in milliseconds each way, this process has proxies of its own, to count
// waits.
const { EventEmitter } = require('node:events');
const { existsSync } = require('node:fs');
const { randomUUID } = require('node:crypto');
const { createRequire } = require('node:module');
const { resolve } = require('node:path');
const { setTimeout: sleep } = require('node:timers/promises');
const { Distance } = require('./distance.js');

const CLIENTS = Number(process.env.CLIENTS);
const SESSIONS = 2 * CLIENTS; // of each pool
const INSERT = 'INSERT INTO payment (reference, amount) VALUES ($1, $2) RETURNING id';
const requestOf = (key) => ({ reference: key, amount: 10 });

async function insert(client, { reference, amount }) {
  const { rows: [payment] } = await client.query(INSERT, [reference, amount]);
  return { payment: payment.id };
}

function sessions(database = 'peers_extension') {
  const { Pool } = require('pg');
  return new Pool({ database, max: SESSIONS, idleTimeoutMillis: 0 });
}

function address(database) {
  const { PGUSER, PGPASSWORD, PGHOST, PGPORT } = process.env;
  return `postgresql://${PGUSER}:${PGPASSWORD}@${PGHOST}:${PGPORT}/${database}?sslmode=disable`;
}

// A function that calls work(client, argument) in a transaction.
function inTransaction(pool, work) {
  return async (argument) => {
    const client = await pool.connect();
    try {
      await client.query('BEGIN');
      const answer = await work(client, argument);
      await client.query('COMMIT');
      return answer;
    } catch (error) {
      await client.query('ROLLBACK');
      throw error;
    } finally {
      client.release();
    }
  };
}

async function byHand(client, key) {
  const request = requestOf(key);
  const { rowCount } = await client.query('INSERT INTO payment_key (key, request) VALUES ($1, $2) '
    + 'ON CONFLICT DO NOTHING', [key, request]);
  if (!rowCount) {
    const { rows: [stored] } = await client.query(
      'SELECT answer FROM payment_key WHERE key = $1 AND request = $2', [key, request]);
    return stored.answer;
  }
  const answer = await insert(client, request);
  await client.query('UPDATE payment_key SET answer = $2 WHERE key = $1', [key, answer]);
  return answer;
}

async function inSql(client, key) {
  const { rows: [claim] } = await client.query(
    "SELECT claimed, token, response FROM idem.claim('payments', $1, $2)", [key, requestOf(key)]);
  if (!claim.claimed) return claim.response;
  const answer = await insert(client, requestOf(key));
  await client.query('SELECT idem.complete($1, $2)', [claim.token, answer]);
  return answer;
}

const ONE_STATEMENT = `
  WITH c AS MATERIALIZED (
    SELECT * FROM idem.claim('payments', $1::text, $2::jsonb)
  ), effect AS (
    INSERT INTO payment (reference, amount) SELECT $1::text, $3 FROM c WHERE c.claimed
    RETURNING jsonb_build_object('payment', id::text) AS answer
  )
  SELECT CASE WHEN c.claimed THEN idem.complete(c.token, (SELECT answer FROM effect))
              ELSE c.response END AS answer FROM c`;

function inOneStatement(pool) {
  return async (key) => {
    const request = requestOf(key);
    return (await pool.query(ONE_STATEMENT, [key, request, request.amount])).rows[0].answer;
  };
}

function byPackage(pool) {
  const { idempotent } = require('../clients/node');
  const pay = idempotent(pool, { scope: 'payments', name: 'pay' }, insert);
  return (key) => pay(key, requestOf(key));
}

// A workflow that calls work(request), with the key as its id. After a kill, the next process
// resumes what is pending.
async function byDbos(DBOS, database, work) {
  DBOS.setConfig({
    name: 'peers', systemDatabaseUrl: address(database), systemDatabasePoolSize: SESSIONS,
    runAdminServer: false, logLevel: 'error',
  });
  const workflow = DBOS.registerWorkflow(work, { name: 'pay' });
  await DBOS.launch();
  return async (key) =>
    (await DBOS.startWorkflow(workflow, { workflowID: key })(requestOf(key))).getResult();
}

function byDbosStep(pool) {
  const { DBOS } = require('@dbos-inc/dbos-sdk');
  return byDbos(DBOS, 'peers_dbos', (request) =>
    DBOS.runStep(() => insert(pool, request), { name: 'insert' }));
}

// The newest data source that was on npm needs an older DBOS.
function byDbosTransaction() {
  const older = createRequire(`${resolve('../build/peers/dbos4')}/`);
  const { DBOS } = older('@dbos-inc/dbos-sdk');
  const { PostgresDataSource } = older('@dbos-inc/postgres-datasource');
  const source = new PostgresDataSource('payments', {
    host: process.env.PGHOST, port: Number(process.env.PGPORT), database: 'peers_extension',
    max: SESSIONS, onnotice: () => {},
  });
  const transaction = source.registerTransaction(async ({ reference, amount }) => {
    const [payment] = await PostgresDataSource.client.unsafe(INSERT, [reference, amount]);
    return { payment: payment.id };
  }, { name: 'insert' });
  return byDbos(DBOS, 'peers_dbos4', (request) => transaction(request));
}

// The middleware, with the parts of Express that it uses.
async function byIdempotJs(pool) {
  const at = (name) => `../build/peers/node_modules/@idempot/${name}/index.js`;
  const { idempotency } = await import(at('express-middleware'));
  const { PostgresIdempotencyStore } = await import(at('postgres-store'));
  const store = new PostgresIdempotencyStore({ pool });
  await sleep(500); // it creates its table
  const middleware = idempotency({ store });
  return (key) => new Promise((done, failed) => {
    const request = { method: 'POST', headers: { 'idempotency-key': key }, body: requestOf(key) };
    const response = Object.assign(new EventEmitter(), {
      req: request,
      statusCode: 200,
      status(code) { this.statusCode = code; return this; },
      set() { return this; },
      getHeaders: () => ({}),
      json(body) { return this.send(JSON.stringify(body)); },
      send(body) {
        if (this.statusCode === 200) done(JSON.parse(body));
        else failed(new Error(body));
        setImmediate(() => this.emit('finish'));
        return this;
      },
    });
    middleware(request, response, () =>
      insert(pool, request.body).then((answer) => response.json(answer), failed));
  });
}

async function byNodeIdempotency(pool) {
  const { Idempotency } = require('@node-idempotency/core');
  const { RedisStorageAdapter } = require('@node-idempotency/storage-adapter-redis');
  const storage = new RedisStorageAdapter({ url: `redis://127.0.0.1:${process.env.REDIS_PORT}` });
  await storage.connect();
  const idempotency = new Idempotency(storage);
  return async (key) => {
    const headers = { 'idempotency-key': key };
    const request = { method: 'POST', path: '/payments', headers, body: requestOf(key) };
    const stored = await idempotency.onRequest(request);
    if (stored) return stored.body;
    const body = await insert(pool, request.body);
    await idempotency.onResponse(request, { body, additional: { status: 200 } });
    return body;
  };
}

// The key is the job's id. A worker in the same process is notified of it, and the caller asks for
// the job until it is completed. Another worker gets the job of a dead process after 2 seconds.
async function byPgBoss(work) {
  const PgBoss = require('pg-boss');
  const boss = new PgBoss({
    connectionString: address('peers_extension'), max: SESSIONS, maintenanceIntervalSeconds: 1,
  });
  boss.on('error', () => {});
  await boss.start();
  await boss.createQueue('payments', { expireInSeconds: 2, retryLimit: 100 });
  const workers = await Promise.all(Array.from({ length: CLIENTS }, () =>
    boss.work('payments', { pollingIntervalSeconds: 0.5 }, ([job]) => work(job, boss))));
  let turn = 0;
  return async (key) => {
    const isNew = await boss.send('payments', requestOf(key), { id: key });
    if (isNew) boss.notifyWorker(workers[turn++ % CLIENTS]);
    for (;;) {
      const { state, output } = await boss.getJobById('payments', key);
      if (state === 'completed') return output;
      await sleep(5);
    }
  };
}

// The job is completed in the transaction of the payment. When the work returns, pg-boss finds
// nothing to complete.
function withJob(pool) {
  const pay = inTransaction(pool, async (client, { job, boss }) => {
    const answer = await insert(client, job.data);
    const db = { executeSql: (text, values) => client.query(text, values) };
    const { affected } = await boss.complete('payments', job.id, answer, { db });
    if (!affected) throw new Error('not the worker of this job any more');
    return answer;
  });
  return (job, boss) => pay({ job, boss });
}

const FORMS = {
  'hand-written': (pool) => inTransaction(pool, byHand),
  'idem, plain SQL': (pool) => inTransaction(pool, inSql),
  'idem, one statement': inOneStatement,
  'idem, pg-idem': byPackage,
  'SQL edition, plain SQL': (pool) => inTransaction(pool, inSql),
  'SQL edition, pg-idem': byPackage,
  'DBOS, step': byDbosStep,
  'DBOS, transaction': byDbosTransaction,
  'idempot-js, PostgreSQL': byIdempotJs,
  'node-idempotency, Redis': byNodeIdempotency,
  'pg-boss, worker': (pool) => byPgBoss((job) => insert(pool, job.data)),
  'pg-boss, transaction': (pool) => byPgBoss(withJob(pool)),
};
if (!existsSync('../build/peers/node_modules/@idempot')) delete FORMS['idempot-js, PostgreSQL'];
const databaseOf = (form) => (form.startsWith('SQL edition') ? 'peers_sql' : 'peers_extension');

const middle = (numbers) => numbers.sort((a, b) => a - b)[Math.floor(numbers.length / 2)];

// What peers.js calls. A payment that is refused for now, as by a circuit breaker, is repeated,
// except in once().
const callsOf = (once, waits, pay = repeated(once)) => ({
  once,

  // Operations per second, new ones and then replays of them.
  async rates(milliseconds) {
    const keys = [];
    async function rate(next, duration) {
      const start = performance.now();
      let count = 0;
      await Promise.all(Array.from({ length: CLIENTS }, async () => {
        while (performance.now() < start + duration) { await pay(next(count)); count++; }
      }));
      return 1000 * count / (performance.now() - start);
    }
    const newKey = () => { keys.push(randomUUID()); return keys.at(-1); };
    await rate(newKey, milliseconds / 2);
    const fresh = await rate(newKey, milliseconds);
    await settle();
    const known = (count) => keys[count % Math.min(keys.length, 100)];
    await rate(known, milliseconds / 4);
    return [fresh, await rate(known, milliseconds)];
  },

  // As many operations, one after the other; with a key, replays after one new operation.
  async operate(count, key) {
    if (key) { await pay(key); await settle(); }
    for (let n = 0; n < count; n++) await pay(key ?? randomUUID());
    await settle();
  },

  // How often a new operation and a replay wait, beside what goes on anyway.
  async waits(count) {
    async function during(call) {
      const [start, before] = [performance.now(), waits()];
      await call();
      return [waits() - before, performance.now() - start];
    }
    for (let n = 0; n < 3; n++) await pay(randomUUID());
    await settle();
    const [polls, time] = await during(() => sleep(3000));
    const all = [[], []];
    for (let n = 0; n < count; n++) {
      const key = randomUUID();
      for (const of of all) {
        await settle();
        const [waited, duration] = await during(() => pay(key));
        of.push(Math.round(waited - duration * polls / time));
      }
    }
    return all.map(middle);
  },
});
function repeated(once) {
  return async (key) => {
    for (let attempt = 1; ; attempt++) {
      try {
        return await once(key);
      } catch (error) {
        if (attempt === 1) console.error(`repeated after: ${error.message}`);
        if (attempt === 1000) throw error;
        await sleep(50);
      }
    }
  };
}
const settle = () => sleep(300); // what goes on after an answer

async function main(form) {
  const { PEERS_DISTANCE, PGHOST, PGPORT, REDIS_PORT } = process.env;
  let proxies = [];
  if (PEERS_DISTANCE) {
    const servers = [{ host: PGHOST, port: PGPORT }, { host: '127.0.0.1', port: REDIS_PORT }];
    proxies = await Promise.all(servers.map((at) => Distance.open(at, Number(PEERS_DISTANCE))));
    const [{ port }, { port: redis }] = proxies;
    Object.assign(process.env, { PGHOST: '127.0.0.1', PGPORT: port, REDIS_PORT: redis });
  }
  const calls = callsOf(await FORMS[form](sessions(databaseOf(form))),
    () => proxies.reduce((sum, { waits }) => sum + waits, 0));
  process.on('message', async ({ id, call, args }) => {
    try {
      process.send({ id, result: await calls[call](...args) });
    } catch (error) {
      process.send({ id, error: error.message });
    }
  });
  process.on('disconnect', () => process.exit());
  process.send({ id: 'ready' });
}

if (require.main === module) main(process.argv[2]);
module.exports = { FORMS: Object.keys(FORMS), databaseOf, middle };
