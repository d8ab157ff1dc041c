'use strict';
// Shared by the tests. They need a database with schema.sql.
const { randomUUID } = require('node:crypto');
const { setTimeout: sleep } = require('node:timers/promises');
const { Pool } = require('pg');

const pool = new Pool();
pool.on('error', () => {});

// Every operation has an amount of its own, so that effects can be counted whatever their keys.
let last = Math.floor(Math.random() * 1e9);
const operation = () => ({ key: randomUUID(), request: { amount: ++last } });

async function pay(client, { amount }) {
  const { rows: [payment] } =
    await client.query('INSERT INTO payment (amount) VALUES ($1) RETURNING id', [amount]);
  return { payment: payment.id };
}

async function one(sql, parameters) {
  const { rows: [row] } = await pool.query({ text: sql, values: parameters, rowMode: 'array' });
  return row[0];
}

const effects = ({ amount }) =>
  one('SELECT count(*)::integer FROM payment WHERE amount = $1', [amount]);
const state = (key, scope = 'payments') => one('SELECT state FROM idem.lookup($1, $2)', [scope, key]);

// Until the connections of a pool are back in it: the end of a replay's transaction is not waited for.
async function settled(of) {
  while (of.idleCount < of.totalCount) await sleep(5);
}

// Ends the pool, and the holders that a failed test has left.
const held = new Set();
function finish() {
  for (const client of held) client.release(true);
  return pool.end();
}

// Another session that holds the key until its claim is completed.
async function holder(key, request, scope = 'payments') {
  const client = await pool.connect();
  held.add(client);
  await client.query('BEGIN');
  const { rows: [{ token }] } =
    await client.query('SELECT token FROM idem.claim($1, $2, $3)', [scope, key, request]);
  return {
    async complete(answer) {
      await client.query('SELECT idem.complete($1, $2)', [token, answer]);
      await client.query('COMMIT');
      held.delete(client);
      client.release();
    },
  };
}

// The two attempts of an operation end without an answer. Returns the token of the last one.
async function useUpAttempts(key, request) {
  let token;
  for (let attempt = 0; attempt < 2; attempt++) {
    token = await one("SELECT token FROM idem.claim('payments', $1, $2, lease => '1 microsecond')",
      [key, request]);
  }
  return token;
}

// Whether the server counts claims, for claims_per_minute. The SQL edition does not.
async function counts() {
  return await one('SELECT idem.edition()') === 'extension';
}

module.exports = {
  pool, operation, pay, one, effects, state, settled, holder, finish, useUpAttempts, counts,
};
