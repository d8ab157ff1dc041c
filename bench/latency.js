'use strict';
// The Node package's part of bench/latency, with node-postgres. Prints a line per form.
const { randomUUID } = require('node:crypto');
const { Pool } = require('pg');
const { idempotent } = require('../clients/node');

const DURATION = 1000 * Number(process.env.SECONDS_EACH);
const CLIENTS = Number(process.env.CLIENTS);
const INSERT = 'INSERT INTO payment (amount) VALUES ($1) RETURNING id';
const REQUEST = { amount: 10 };
const ONE_STATEMENT = `
  WITH c AS MATERIALIZED (
    SELECT * FROM idem.claim('payments', $1::text, $2::jsonb, wait => '2 s')
  ), effect AS (
    INSERT INTO payment (amount) SELECT $3 FROM c WHERE c.claimed
    RETURNING jsonb_build_object('payment', id) AS answer
  )
  SELECT CASE WHEN c.claimed THEN idem.complete(c.token, (SELECT answer FROM effect))
              ELSE c.response END AS answer FROM c`;

const pool = new Pool({ max: 2 * CLIENTS }); // a replay's connection is back after its COMMIT

const byPackage = idempotent(pool, { scope: 'payments', name: 'pay' }, async (client, { amount }) => {
  const { rows: [payment] } = await client.query(INSERT, [amount]);
  return { payment: payment.id };
});
const pay = (key) => byPackage(key, REQUEST);

async function byHand(key) {
  const client = await pool.connect();
  try {
    await client.query('BEGIN');
    const answer = await answered(client, key, JSON.stringify(REQUEST));
    await client.query('COMMIT');
    return answer;
  } finally {
    client.release();
  }
}

async function answered(client, key, request) {
  const { rowCount } = await client.query('INSERT INTO payment_key (key, request) VALUES ($1, $2) '
    + 'ON CONFLICT DO NOTHING RETURNING key', [key, request]);
  if (!rowCount) {
    const { rows: [stored] } = await client.query(
      'SELECT answer FROM payment_key WHERE key = $1 AND request = $2', [key, request]);
    return stored.answer;
  }
  const { rows: [payment] } = await client.query(INSERT, [REQUEST.amount]);
  const answer = { payment: payment.id };
  await client.query('UPDATE payment_key SET answer = $2 WHERE key = $1', [key, answer]);
  return answer;
}

async function oneStatement(key) {
  const { rows: [row] } = await pool.query(ONE_STATEMENT, [key, REQUEST, REQUEST.amount]);
  return row.answer;
}

const oneKey = () => { const key = randomUUID(); return () => key; };
const newKeys = () => randomUUID;
const FORMS = [
  ['pg-idem', pay, newKeys], ['INSERT ... ON CONFLICT', byHand, newKeys],
  ['one statement', oneStatement, newKeys], ['pg-idem (replay)', pay, oneKey],
  ['INSERT ... ON CONFLICT (replay)', byHand, oneKey],
];

// Takes the forms in turn, so that what else the machine does concerns all of them.
async function client(until, times) {
  const forms = FORMS.map(([name, call, keys]) => [name, call, keys()]);
  for (let turn = 0; performance.now() < until; turn++) {
    for (const [name, call, key] of forms) {
      const start = performance.now();
      await call(key());
      if (turn >= 10) times[name].push(performance.now() - start); // connections are made by then
    }
  }
}

// All times of that many clients, by form.
async function measure(clients) {
  const times = Object.fromEntries(FORMS.map(([name]) => [name, []]));
  const until = performance.now() + DURATION * FORMS.length;
  await Promise.all(Array.from({ length: clients }, () => client(until, times)));
  return times;
}

const mean = (times) => times.reduce((sum, time) => sum + time, 0) / times.length;
const median = (times) => times.sort((a, b) => a - b)[Math.floor(times.length / 2)];

async function main() {
  const alone = await measure(1);
  const together = await measure(CLIENTS);
  for (const [name] of FORMS) {
    const perSecond = [1000 / mean(alone[name]), 1000 * CLIENTS / mean(together[name])];
    console.log([name, perSecond[0].toFixed(), median(alone[name]).toFixed(1), perSecond[1].toFixed()].join());
  }
  await pool.end();
}

main();
