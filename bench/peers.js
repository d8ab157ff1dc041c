'use strict';
// Measures the forms of peers_client.js, each in processes of its own, and prints the tables of
// bench/peers.
//
//   peers.js [FORM]...
const { fork, spawn } = require('node:child_process');
const { randomUUID } = require('node:crypto');
const { existsSync, mkdtempSync, readFileSync, rmSync } = require('node:fs');
const net = require('node:net');
const { tmpdir } = require('node:os');
const { setTimeout: sleep } = require('node:timers/promises');
const { isDeepStrictEqual } = require('node:util');
const { Pool } = require('pg');
const { createClient } = require('redis');
const { Distance } = require('./distance.js');
const { FORMS, databaseOf, middle } = require('./peers_client.js');

const [CLIENTS, ROUNDS, KILLS, DISTANCE, SECONDS] = [
  'CLIENTS', 'ROUNDS', 'KILLS', 'DISTANCE', 'SECONDS_EACH',
].map((name) => Number(process.env[name]));
const HAND = FORMS[0];
const FOR_WAITS = 20; // milliseconds, so that answers nobody waits for come late
const PATIENCE = 10_000; // milliseconds for the retries of a key

const { PGHOST, PGPORT } = process.env;
const pools = Object.fromEntries(['peers_extension', 'peers_sql'].map((database) =>
  [database, new Pool({ database, application_name: 'peers' })]));
const query = async (text, values, database = 'peers_extension') =>
  (await pools[database].query(text, values)).rows;
const say = (text) => process.stderr.write(`${text}\n`);

// A process that pays in a form. A call rejects with Killed if the process is killed.
class Killed extends Error {}
class Client {
  static async start(form, environment = {}) {
    const client = new Client();
    client.pending = new Map();
    client.process = fork(require.resolve('./peers_client.js'), [form], {
      env: { ...process.env, ...environment }, stdio: ['ignore', 2, 2, 'ipc'],
      execArgv: ['--no-deprecation'],
    });
    client.ended = new Promise((resolve) => { client.process.on('exit', resolve); });
    client.process.on('error', () => {}).on('exit', (code) => {
      client.dead = true;
      const error = new Killed(`${form} ended with ${code}`);
      for (const { reject } of client.pending.values()) reject(error);
    });
    client.process.on('message', ({ id, result, error }) => {
      const { resolve, reject } = client.pending.get(id);
      client.pending.delete(id);
      if (error === undefined) resolve(result);
      else reject(new Error(error));
    });
    await client.answer('ready');
    return client;
  }

  answer(id) {
    return new Promise((resolve, reject) => { this.pending.set(id, { resolve, reject }); });
  }

  call(call, ...args) {
    if (this.dead) return Promise.reject(new Killed());
    const id = randomUUID();
    this.process.send({ id, call, args }, () => {});
    return this.answer(id);
  }

  async stop(signal = 'SIGTERM') {
    this.process.kill(signal);
    await this.ended;
    // Sessions finish what they have got, and count what they have written when they end.
    while ((await query("SELECT FROM pg_stat_activity WHERE backend_type = 'client backend' "
      + "AND application_name <> 'peers'")).length) await sleep(10);
  }
}

async function withClient(form, environment, call, ...args) {
  const client = await Client.start(form, environment);
  try {
    return await client.call(call, ...args);
  } finally {
    await client.stop();
  }
}

async function startRedis() {
  const listener = net.createServer();
  await new Promise((resolve) => { listener.listen(0, '127.0.0.1', resolve); });
  const { port } = listener.address();
  await new Promise((resolve) => { listener.close(resolve); });
  const directory = mkdtempSync(`${tmpdir()}/peers-redis.`);
  const server = spawn('redis-server', ['--port', port, '--bind', '127.0.0.1', '--dir', directory,
    '--save', '', '--appendonly', 'yes', '--appendfsync', 'always',
    '--auto-aof-rewrite-percentage', '0'], { stdio: 'ignore' });
  process.on('exit', () => {
    server.kill('SIGKILL');
    rmSync(directory, { recursive: true, maxRetries: 5 });
  });
  for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, () => process.exit(1));
  process.env.REDIS_PORT = port;
  const client = createClient({ url: `redis://127.0.0.1:${port}` });
  client.on('error', () => {}); // not yet there
  await client.connect();
  return client;
}

// Rows, and bytes of WAL and of Redis's log, that all have been written until now.
async function written(redis) {
  const [{ rows, wal }] = await query(
    'SELECT sum(tup_inserted + tup_updated + tup_deleted)::float8 AS rows, '
    + "(pg_current_wal_insert_lsn() - '0/0')::float8 AS wal FROM pg_stat_database");
  const [, log] = /^aof_current_size:(\d+)/m.exec(await redis.info('persistence'));
  return [rows, wal, Number(log)];
}

// Per operation. The difference of two runs does not have what a process writes when it starts.
async function writes(form, redis, key) {
  const [few, many] = [50, 250];
  const runs = [];
  for (const count of [few, many]) {
    const before = await written(redis);
    await withClient(form, {}, 'operate', count, key?.());
    const after = await written(redis);
    runs.push(after.map((value, n) => value - before[n]));
  }
  return runs[1].map((value, n) => Math.max(0, (value - runs[0][n]) / (many - few)));
}

// Payments while the process is killed again and again. Each key whose answer has not arrived is
// retried by the next process, until it is answered.
async function storm(form) {
  const answers = new Map(); // the first answer to each key
  const open = new Set(); // keys that were used and have no answer

  async function pay(client, key) {
    open.add(key);
    const answer = await client.call('once', key);
    open.delete(key);
    answers.set(key, answer);
    client.answered?.();
  }

  for (let kill = 0; kill < KILLS; kill++) {
    const client = await Client.start(form);
    const answered = new Promise((resolve) => { client.answered = resolve; });
    const retries = [...open];
    const callers = Array.from({ length: CLIENTS }, async () => {
      while (!client.dead) {
        try {
          await pay(client, retries.pop() ?? randomUUID());
        } catch (error) {
          if (!(error instanceof Killed)) await sleep(20); // refused for now
        }
      }
    });
    await Promise.race([answered, sleep(PATIENCE)]);
    await sleep(200 * Math.random());
    await client.stop('SIGKILL');
    await Promise.all(callers);
  }

  const client = await Client.start(form);
  const until = performance.now() + PATIENCE;
  await Promise.all([...open].map(async (key) => {
    while (performance.now() < until) {
      try {
        return await Promise.race([pay(client, key), sleep(PATIENCE)]);
      } catch { await sleep(200); }
    }
  }));
  let others = 0;
  for (const [key, answer] of answers) {
    const again = await client.call('once', key).catch(({ message }) => message);
    if (!isDeepStrictEqual(again, answer)) others++;
  }
  await client.stop();

  const keys = [...answers.keys(), ...open];
  const payments = await query('SELECT reference, count(*)::integer AS times FROM payment '
    + 'WHERE reference = ANY($1) GROUP BY reference', [keys], databaseOf(form));
  const paid = new Set(payments.map(({ reference }) => reference));
  return {
    operations: keys.length,
    duplicates: payments.reduce((sum, { times }) => sum + times - 1, 0),
    lost: [...open].filter((key) => paid.has(key)).length + others,
    blocked: [...open].filter((key) => !paid.has(key)).length,
    missing: [...answers.keys()].filter((key) => !paid.has(key)).length,
  };
}

function printTable(heads, rows) {
  console.log(`| ${heads.join(' | ')} |\n|${heads.map(() => '---').join('|')}|`);
  for (const row of rows) console.log(`| ${row.join(' | ')} |`);
  console.log();
}

async function printVersions(redis) {
  const version = (name, folder = 'peers') => {
    const file = `../build/${folder}/node_modules/${name}/package.json`;
    return `${name} ${JSON.parse(readFileSync(file)).version}`;
  };
  const packages = ['pg', 'pg-boss', '@dbos-inc/dbos-sdk', '@node-idempotency/core',
    '@node-idempotency/storage-adapter-redis'].map((name) => version(name));
  packages.push(...['@dbos-inc/dbos-sdk', '@dbos-inc/postgres-datasource'].map((name) =>
    version(name, 'peers/dbos4')));
  const commit = '../build/peers/node_modules/@idempot/commit';
  if (existsSync(commit)) packages.push(`idempot-js ${readFileSync(commit, 'utf8').slice(0, 8)}`);
  const [{ server_version: server }] = await query('SHOW server_version');
  const [, store] = /^redis_version:(\S+)/m.exec(await redis.info('server'));
  const settings = await query('SELECT name, setting FROM pg_settings WHERE name = ANY($1)',
    [['fsync', 'synchronous_commit', 'full_page_writes', 'autovacuum']]);
  const servers = [`PostgreSQL ${server}`, `Redis ${store}`, `Node.js ${process.versions.node}`];
  console.log([...servers, ...packages].join(', '));
  console.log([...settings.map(({ name, setting }) => `${name} = ${setting}`),
    'Redis: appendfsync always', `${CLIENTS} clients`, `${ROUNDS} rounds of ${SECONDS} s`,
    `${KILLS} kills`].join(', '), '\n');
}

const ratio = (value) => value.toFixed(value < 10 ? 2 : 0);

// The rounds take the forms in turn, so that what else the machine does concerns all of them.
async function printSpeeds(forms) {
  const server = await Distance.open({ host: PGHOST, port: PGPORT }, DISTANCE);
  const redis = await Distance.open({ host: '127.0.0.1', port: process.env.REDIS_PORT }, DISTANCE);
  const distant = { PGHOST: '127.0.0.1', PGPORT: server.port, REDIS_PORT: redis.port };
  const places = [['loopback', {}], [`${DISTANCE} ms`, distant]];
  const rates = Object.fromEntries(forms.map((form) => [form, places.map(() => [])]));
  for (let round = 1; round <= ROUNDS; round++) {
    say(`round ${round} of ${ROUNDS} ...`);
    for (const [place, [, environment]] of places.entries()) {
      for (const form of forms) {
        rates[form][place].push(await withClient(form, environment, 'rates', 1000 * SECONDS));
      }
    }
  }
  say('waits ...');
  const rows = [];
  for (const form of forms) {
    const speeds = places.flatMap((_, place) => [0, 1].map((kind) => ratio(middle(
      rates[form][place].map((pair, round) => pair[kind] / rates[HAND][place][round][kind])))));
    const waits = await withClient(form, { PEERS_DISTANCE: FOR_WAITS }, 'waits', 5);
    rows.push([form, ...speeds, ...waits]);
    say(rows.at(-1).join(' | '));
  }
  const speedsAt = places.flatMap(([place]) => [`new, ${place}`, `replay, ${place}`]);
  printTable(['form', ...speedsAt, 'waits, new', 'waits, replay'], rows);
}

async function printTraces(forms, redis) {
  say('rows and bytes, kills ...');
  const rows = [];
  for (const form of forms) {
    const [rowsOfNew, wal, log] = await writes(form, redis);
    const [rowsOfReplay] = await writes(form, redis, randomUUID);
    const bytes = `${wal.toFixed()}${log ? ` + ${log.toFixed()}` : ''}`;
    const { operations, duplicates, lost, blocked, missing } = await storm(form);
    if (missing) throw new Error(`${form}: ${missing} payments that were answered are missing`);
    rows.push([form, rowsOfNew.toFixed(), bytes, rowsOfReplay.toFixed(), operations, duplicates,
      lost, blocked]);
    say(rows.at(-1).join(' | '));
  }
  printTable(['form', 'rows, new', 'bytes', 'rows, replay', 'keys', 'duplicates', 'lost answers',
    'blocked keys'], rows);
}

async function main(names) {
  const forms = FORMS.filter((form) =>
    form === HAND || !names.length || names.some((name) => form.startsWith(name)));
  const redis = await startRedis();
  await printVersions(redis);
  await printSpeeds(forms);
  await printTraces(forms, redis);
  process.exit();
}

main(process.argv.slice(2));
