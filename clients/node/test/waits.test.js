'use strict';
// How often an operation waits for the server, and what goes over the wire instead of parameters.
const assert = require('node:assert/strict');
const { after, test } = require('node:test');
const { Pool } = require('pg');
const { Failure, idempotent, run, transaction } = require('pg-idem');
const { finish, effects, one, operation, pay, pool, settled, state } = require('./support.js');
const { Wire } = require('./wire.js');

const closing = [finish];
after(() => Promise.all(closing.map((close) => close())));

// What the package sends without waiting is answered only after the call has returned.
test('waits for the server', async () => {
  const wire = await Wire.open({ delay: 20 });
  const distant = new Pool({ host: '127.0.0.1', port: wire.port, max: 1 });
  closing.push(() => distant.end().then(() => wire.close()));
  await distant.query('SELECT 1');
  async function waits(call) {
    await settled(distant);
    return wire.counted(call);
  }
  const once = idempotent(distant, { scope: 'payments', name: 'once' }, async (client, { statements, failure }) => {
    for (let n = 0; n < statements; n++) await client.query('SELECT $1::integer', [n]);
    if (failure) throw new Failure('declined');
  });

  for (const statements of [0, 1, 2]) {
    const { key } = operation();
    assert.equal(await waits(() => once(key, { statements })), 2 + statements);
    assert.equal(await waits(() => once(key, { statements })), 1, 'a replay');
    const conflict = () => assert.rejects(once(key, { statements: 7 }), { code: 'ID002' });
    assert.equal(await waits(conflict), 1, 'a conflict');
  }
  const { key } = operation();
  const failing = () => assert.rejects(once(key, { failure: true }), Failure);
  assert.deepEqual([await waits(failing), await waits(failing), await state(key)], [2, 1, 'failed']);
  assert.equal(await waits(() => transaction(distant, (client) => client.query('SELECT 1'))), 3);
});

test('a replay does not wait for COMMIT, and its connection is free after it', async () => {
  const { key, request } = operation();
  const slow = new Pool({ max: 1 });
  closing.push(() => slow.end());
  const payOnce = idempotent(slow, { scope: 'payments' }, pay);
  await payOnce(key, request);
  await payOnce(key, request);
  assert.equal(slow.idleCount, 0);
  assert.equal((await slow.query('SELECT pg_current_xact_id_if_assigned() AS id')).rows[0].id, null);
  await settled(slow);
});

// Every character that could end a literal or change its meaning, alone and beside others.
const NASTY = ["'", '"', '\\', "\\'", "';--", '\n', '\t', '\x7f', '$1', 'ü', '表', 'ソ\\', '😀', "'); SELECT 1; --",
  '\u2028', '\\u0027', 'E\'', '/*', ':x', '%s'];

test('text comes back as it was sent, whatever the session has set', async () => {
  const hostile = [...NASTY, NASTY.join(''), ...NASTY.map((text) => `é${text}`)];
  // From PostgreSQL 19 on, the first of them cannot be set.
  const settings = (await one('SELECT version()')) >= 'PostgreSQL 19' ? [] : ['standard_conforming_strings = off'];
  for (const set of [...settings, 'backslash_quote = on', 'bytea_output = escape']) {
    const session = new Pool({ max: 1 });
    closing.push(() => session.end());
    await session.query(`SET ${set}`);
    for (const text of hostile) {
      const key = `${text} ${operation().key}`;
      const answer = {
        response: { [text]: text }, headers: { 'x-text': text.replace(/[^ -~\x80-\xff]/g, '').trim() },
        body: Buffer.from(`${text}\0\\x41`), status: 299,
      };
      const options = { scope: 'payments', key, tenant: text, request: { [text]: [text] } };
      const first = await run(session, options, () => answer);
      const replay = await run(session, options, () => assert.fail('runs again'));
      assert.deepEqual(first, { ...answer, replayed: false });
      assert.deepEqual(replay, { ...answer, replayed: true });
      assert.deepEqual(await one(
        `SELECT ARRAY[key, tenant] FROM idem.records WHERE scope = 'payments' AND key = $1`, [key]), [key, text]);
    }
  }
});

test('a failure comes back as it was sent', async () => {
  for (const text of NASTY) {
    const { key } = operation();
    const fail = () => run(pool, { scope: 'payments', key, request: {} }, () => {
      throw new Failure(text, { detail: text, hint: text, sqlstate: 'P0402' });
    });
    for (const replayed of [false, true]) {
      await assert.rejects(fail, { message: text, detail: text, hint: text, code: 'P0402', replayed });
    }
  }
});

test('U+0000 and half a surrogate pair are refused', async () => {
  const claim = (more) => run(pool, { scope: 'payments', ...operation(), ...more }, () => {});
  for (const text of ['a\0b', '\ud83d', 'a\udc00']) {
    for (const name of ['key', 'tenant', 'scope']) await assert.rejects(claim({ [name]: text }), RangeError);
    await assert.rejects(claim({ request: text }), { code: /^22P0[25]$/ });
  }
});

test('with another client_encoding, answers could not be read', async () => {
  const session = new Pool({ max: 1 });
  closing.push(() => session.end());
  await session.query("SET client_encoding = 'SJIS'");
  for (const text of NASTY) {
    const { key, request } = operation();
    const sjis = run(session, { scope: 'payments', key: `${key}${text}`, request }, (client) => pay(client, request));
    await assert.rejects(sjis, /client_encoding is SJIS/);
    assert.deepEqual([await effects(request), await state(`${key}${text}`)], [0, 'absent']);
  }
});
