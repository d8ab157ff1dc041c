'use strict';
// A handler that does what it should not: its effect and its record are committed together, or nothing
// of both, and the caller gets an error that says what it must not do.
const assert = require('node:assert/strict');
const { EventEmitter, once } = require('node:events');
const { after, test } = require('node:test');
const { setImmediate: next, setTimeout: sleep } = require('node:timers/promises');
const { Client, Pool, Query } = require('pg');
const { Failure, idempotent, lease, run, transaction } = require('pg-idem');
const { effects, finish, operation, pay, pool, settled, state } = require('./support.js');

after(finish);

const quiet = () => {};
const insert = (client, { amount }) => client.query('INSERT INTO payment (amount) VALUES ($1)', [amount]);

// The state of a key once the server has noticed that a connection is closed.
async function freed(key) {
  for (;; await sleep(5)) {
    const now = await state(key);
    if (now !== 'in_progress') return now;
  }
}
const NOT_YOURS = /its function must not end, begin or prepare a transaction/;

// A COPY as a stream of it has it: the connection is its own until it ends.
class Copy extends EventEmitter {
  text = 'COPY payment (amount) FROM STDIN';

  submit(connection) { this.connection = connection; connection.query(this.text); }

  handleCopyInResponse() { this.emit('open'); }

  handleCommandComplete() {}

  handleReadyForQuery() { this.emit('end'); }

  handleError(error) { this.emit('error', error); }

  end() { this.connection.endCopyFrom(); }

  static open(client) { return new Promise((resolve) => { const copy = client.query(new Copy()); copy.on('open', () => resolve(copy)); }); }
}

// Statements that end a transaction, begin or prepare one, alone; and two at once.
const ENDS = ['ROLLBACK', 'rollback work', 'ROLLBACK AND CHAIN', 'COMMIT', 'commit and chain', 'END', 'Abort', 'BEGIN',
  'START TRANSACTION', "PREPARE TRANSACTION 'x'", ';COMMIT', ' \n-- a\n/* /* b */ -- */ COMMIT', '/*/**/*/ROLLBACK', 'ROLLBACK/**/TO'];

const MISTAKES = {
  ...Object.fromEntries(ENDS.flatMap((end) => [
    [`${end}, waited for`, [async (client) => { await insert(client, client.about).then(() => client.query(end)); }, NOT_YOURS]],
    [`${end}, swallowed`, [async (client) => { await client.query(end).catch(quiet); await insert(client, client.about); }, NOT_YOURS]],
  ])),
  'ROLLBACK, not waited for': [async (client) => { client.query('ROLLBACK'); await insert(client, client.about); }, NOT_YOURS],
  'ROLLBACK, with a callback': [(client) => new Promise((resolve) => {
    client.query('ROLLBACK', (error) => insert(client, client.about).then(() => resolve({}), quiet) && assert.ok(error));
  }), NOT_YOURS],
  'ROLLBACK as a config': [async (client) => { await client.query({ text: 'ROLLBACK' }).catch(quiet); }, NOT_YOURS],
  'ROLLBACK as a prepared statement': [async (client) => { await client.query({ name: 'r', text: 'ROLLBACK' }).catch(quiet); }, NOT_YOURS],
  'ROLLBACK, then a Failure': [async (client) => {
    await insert(client, client.about);
    await client.query('ROLLBACK').catch(quiet);
    throw new Failure('declined');
  }, NOT_YOURS],
  'two statements': [(client) => client.query(`ROLLBACK; INSERT INTO payment (amount) VALUES (${client.about.amount})`), NOT_YOURS],
  'two statements, the other way round': [
    (client) => client.query(`INSERT INTO payment (amount) VALUES (${client.about.amount}); COMMIT`), /multiple commands/],
  'two statements, behind a literal': [(client) => client.query("SELECT E'\\''; COMMIT; --'"), /multiple commands/],
  'two statements, swallowed': [async (client) => {
    await client.query(`INSERT INTO payment (amount) VALUES (${client.about.amount}); COMMIT`).catch(quiet);
  }, /has ignored an error/],
  'beside the guard': [(client) => new Promise((resolve) => {
    const query = new Query('SELECT 1', () => insert(client, client.about).then(resolve, () => resolve({})));
    query.submit = (connection) => { connection.query('ROLLBACK'); };
    client.query(query);
  }), NOT_YOURS],
  'an error that is swallowed': [async (client) => { await insert(client, client.about); await client.query('SELECT 1 / 0').catch(quiet); }, /has ignored an error/],
  'an error that is not waited for': [async (client) => { await insert(client, client.about); client.query('SELECT 1 / 0').catch(quiet); }, /must wait for its queries/],
  'a query that is not waited for': [async (client) => { insert(client, client.about); }, /must wait for its queries/],
  'queries that are not waited for, one after the other': [async (client) => {
    [1, 2].forEach(async () => { await client.query('SELECT 1'); await insert(client, client.about).catch(quiet); });
  }, /must wait for its queries/],
  'a callback that is not waited for': [async (client) => {
    client.query('SELECT 1', () => { insert(client, client.about).catch(quiet); });
  }, /must wait for its queries/],
  'a Query that is not waited for': [async (client) => {
    client.query(new Query(`INSERT INTO payment (amount) VALUES (${client.about.amount})`, () => { insert(client, client.about).catch(quiet); }));
  }, /must wait for its queries/],
  'a COPY that is not waited for, as in a loop over a stream': [async (client) => {
    const copy = Copy.open(client);
    copy.then(async (opened) => {
      opened.end();
      await once(opened, 'end');
      for (let turn = 0; turn < 3; turn++) await next(); // as pg-cursor does it
      await insert(client, client.about);
    }).catch(quiet);
  }, /must wait for its queries/],
  'the savepoint, released': [async (client) => {
    await insert(client, client.about);
    await client.query('SAVEPOINT pg_idem');
    await client.query('SELECT 1 / 0').catch(quiet);
    await client.query('RELEASE SAVEPOINT pg_idem').catch(quiet);
  }, /has ignored an error/],
  'several statements of a Query': [async (client) => {
    const insertion = `INSERT INTO payment (amount) VALUES (${client.about.amount}); COMMIT; BEGIN`;
    await new Promise((resolve) => { client.query(new Query(insertion, resolve)); });
  }, /has ignored an error/],
  'prepare behind a comment': [async (client) => { await client.query("PREPARE/* it */TRANSACTION 'x'").catch(quiet); }, NOT_YOURS],
  'a COPY that is left open': [async (client) => { await insert(client, client.about); await Copy.open(client); }, /still open/],
  'an error in a COPY': [async (client) => { await insert(client, client.about); await Copy.open(client); throw new Error('of its own'); }, /of its own/],
  'release in a callback': [(client) => new Promise((resolve) => {
    client.query('SELECT 1', () => { client.release(); resolve({}); });
  }), /must not release it/],
  release: [async (client) => { try { await insert(client, client.about); } finally { client.release(); } }, /must not release it/],
  'release, swallowed': [async (client) => { await insert(client, client.about); try { client.release(); } catch { /* ignored */ } }, /must not release it/],
  end: [async (client) => { await client.end(); }, /must not release it/],
};

// How a function gets a client. Each calls work(client) with the request as client.about.
const about = (work, request) => (client) => work(new Proxy(client, { get: (of, name) => (name === 'about' ? request : of[name]) }));
const CALLS = {
  run: ({ key, request }, work) => run(pool, { scope: 'payments', key, request, retry: { attempts: 1 } }, about(work, request)),
  transaction: ({ request }, work) => transaction(pool, about(work, request), { retry: { attempts: 1 } }),
  complete: ({ key, request }, work) => lease(pool, { scope: 'payments', key, request, retry: { attempts: 1 } },
    (held) => held.complete(about(work, request))),
};

for (const [call, how] of Object.entries(CALLS)) {
  test(`${call}: what a handler must not do`, async () => {
    for (const [name, [work, message]] of Object.entries(MISTAKES)) {
      const called = operation();
      await assert.rejects(how(called, async (client) => { await work(client); }), message, name);
      assert.equal(await effects(called.request), 0, name);
      if (call === 'run') assert.equal(await freed(called.key), 'absent', name);
      if (call === 'complete') assert.equal(await state(called.key), 'in_progress', name);
    }
    await settled(pool);
  });
}

test('what is left open holds neither the key nor a connection', async () => {
  const { key, request } = operation();
  const narrow = new Pool({ max: 1 });
  const once = (work) => run(narrow, { scope: 'payments', key, request }, async (client) => { await insert(client, request); await work(client); });
  await assert.rejects(once(async (client) => { await Copy.open(client); throw new Failure('no'); }), /still open/);
  assert.deepEqual([await effects(request), await freed(key)], [0, 'absent']);
  await assert.rejects(once(async (client) => { (await Copy.open(client)).on('error', quiet).connection.sendCopyFail('no'); }), /ignored/);
  await once(async (client) => { (await Copy.open(client)).end(); }); // its end need not be waited for
  assert.deepEqual([await effects(request), await state(key)], [1, 'completed']);
  await narrow.end();
});

test('a client whose transaction cannot be seen, as that of pg.native, is refused', async () => {
  const { key, request } = operation();
  const native = { async connect() {
    const client = await pool.connect();
    return { query: (...of) => client.query(...of), release: (error) => client.release(error), on() {}, off() {} };
  } };
  await assert.rejects(run(native, { scope: 'payments', key, request }, (client) => pay(client, request)), /as that of pg.native/);
  assert.deepEqual([await effects(request), await state(key)], [0, 'absent']);
});

test('what a handler may do', async () => {
  const { key, request } = operation();
  const work = async (client) => {
    await client.query('SAVEPOINT own');
    await client.query('SELECT 1 / 0').catch(quiet);
    await client.query('ROLLBACK TO own');
    await client.query('rollback work to savepoint own');
    await client.query('-- COMMIT\nSELECT 1');
    await client.query('');
    assert.deepEqual((await client.query("SELECT 'COMMIT; ROLLBACK' AS a")).rows, [{ a: 'COMMIT; ROLLBACK' }]);
    assert.deepEqual((await client.query({ text: 'SELECT $1::integer', values: [1], rowMode: 'array' })).rows, [[1]]);
    assert.deepEqual((await client.query('SELECT $1::text AS a', ['b'])).rows, [{ a: 'b' }]);
    const called = await new Promise((resolve, reject) => {
      client.query('SELECT $1::text AS a', ['c'], (error, result) => (error ? reject(error) : resolve(result)));
    });
    assert.deepEqual(called.rows, [{ a: 'c' }]);
    assert.equal(client.escapeLiteral("a'b"), "'a''b'");
    assert.ok(client instanceof Client && client.constructor.name === 'Client' && String(client) === '[object Object]'); // as ORMs ask
    const { query } = client; // for the pool of Kysely, which calls release()
    assert.equal((await query('SELECT 1')).rowCount, 1);
    await client.query('SET LOCAL work_mem = 64');
    return { response: await pay(client, request) };
  };
  assert.equal((await run(pool, { scope: 'payments', key, request }, work)).replayed, false);
  assert.equal(await effects(request), 1);
});

test('a Failure undoes what was done before a savepoint of the same name', async () => {
  const { key, request } = operation();
  const decline = idempotent(pool, { scope: 'payments', name: 'decline' }, async (client) => {
    await pay(client, request);
    await client.query('SAVEPOINT pg_idem');
    throw new Failure('declined');
  });
  await assert.rejects(decline(key, request), Failure);
  assert.deepEqual([await effects(request), await state(key)], [0, 'failed']);
});

test('a client is of no use after its operation', async () => {
  const single = new Pool({ max: 1 });
  const { key, request } = operation();
  let kept;
  await run(single, { scope: 'payments', key, request }, async (client) => { kept = client; });
  const warned = new Promise((resolve) => { process.once('warning', resolve); }); // all that is seen without await
  await assert.rejects(kept.query(`INSERT INTO payment (amount) VALUES (${request.amount})`), /the operation has ended/);
  assert.match((await warned).message, /the operation has ended/);
  assert.equal(await effects(request), 0);
  await single.end();
});

test('what is called in a callback is refused without an error, which would end the process', async () => {
  for (const ends of ['release', 'end']) {
    const { key, request } = operation();
    await assert.rejects(run(pool, { scope: 'payments', key, request }, async (client) => {
      await pay(client, request);
      await new Promise((resolve) => { setImmediate(() => { client[ends](); resolve(); }); });
    }), /must not release it/);
    assert.deepEqual([await effects(request), await state(key)], [0, 'absent']);
  }
});

test('a tracer that passes on a copy of each query without a name changes nothing', async () => {
  class Traced extends Client {
    query(config, ...more) { return super.query(config.text && config.name === undefined ? { ...config } : config, ...more); }
  }
  const traced = new Pool({ Client: Traced });
  const [{ key, request }, other] = [operation(), operation()];
  await run(traced, { scope: 'payments', key, request }, async (client) => ({ response: await pay(client, request) }));
  const both = (client) => client.query(`ROLLBACK; INSERT INTO payment (amount) VALUES (${other.request.amount})`);
  await assert.rejects(run(traced, { scope: 'payments', ...other }, both), /must not end/);
  assert.deepEqual([await effects(request), await effects(other.request)], [1, 0]);
  await traced.end();
});

test('an error shows the line that waits for it', async () => {
  const error = await transaction(pool, async function divide(client) { await client.query('SELECT 1 / 0'); }).catch((of) => of);
  assert.match(error.stack, /at async divide/);
});

test('the timeout of a query is kept', async () => {
  const slow = (client) => client.query({ text: 'SELECT pg_sleep(2)', query_timeout: 50 });
  await assert.rejects(transaction(pool, slow, { retry: { attempts: 1 } }), /timeout/);
});
