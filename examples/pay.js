#!/usr/bin/env node
// Makes a payment exactly once, however often it is requested (node-postgres).
//
//   node pay.js KEY AMOUNT
//
// Prints the answer as JSON. Prints an error to standard error as a problem document (RFC 9457).
// Connects to the database that PGHOST, PGPORT, PGDATABASE and PGUSER name. The database needs
// the scope and the table of setup.sql.
const { Client } = require('pg');

const ATTEMPTS = 10;
// Errors that a retry can cure: a lost connection (08), a lost race (40), a lack of resources
// (53), a restart of the server (57P), a key that another caller holds (ID001), a limit (ID009), an
// operation without attempts left (ID014).
const TRANSIENT = /^(08|40|53|57P|ID001|ID009|ID014)/;

// Claims the key, makes the payment and completes the claim, in one transaction. The answer is JSON
// text: parsed, an amount would lose digits.
async function payOnce(client, key, amount) {
  await client.query('BEGIN');
  const { rows: [claim] } = await client.query(
    `SELECT claimed, token, response::text
       FROM idem.claim('payments', $1, jsonb_build_object('amount', $2::numeric))`,
    [key, amount]);
  let answer = claim.response; // a retry gets the first answer
  if (claim.claimed) {
    const { rows: [payment] } = await client.query(
      'INSERT INTO payment (amount) VALUES ($1) RETURNING to_jsonb(payment)::text AS answer',
      [amount]);
    const { rows: [completed] } = await client.query(
      'SELECT idem.complete($1, $2)::text AS answer', [claim.token, payment.answer]);
    answer = completed.answer;
  }
  await client.query('COMMIT');
  return answer;
}

// Retries with the same key until there is an answer, or an error that a retry cannot cure.
async function pay(key, amount) {
  for (let attempt = 1; ; attempt++) {
    try {
      return await connected((client) => payOnce(client, key, amount));
    } catch (error) {
      if (attempt === ATTEMPTS || !isTransient(error)) throw error;
      const backoff = Math.random() * Math.min(5, 0.05 * 2 ** attempt);
      const seconds = Math.max(retryAfter(error), backoff);
      await new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
    }
  }
}

// Runs the work on a connection of its own. Closing the connection rolls back an open transaction.
async function connected(work) {
  const client = new Client();
  client.on('error', () => {}); // the query in progress fails, too, and reports it
  try {
    await client.connect();
    return await work(client);
  } finally {
    await client.end();
  }
}

function isTransient(error) {
  const fromServer = error.severity !== undefined; // otherwise the connection is lost
  return !fromServer || TRANSIENT.test(error.code);
}

// The time to wait, in seconds. ID001, ID009 and ID014 have it in a field, in milliseconds.
function retryAfter(error) {
  return /^ID0(01|09|14)$/.test(error.code) ? Number(error.dataType ?? 0) / 1000 : 0;
}

async function problem(error) {
  const { rows: [row] } = await connected((client) =>
    client.query('SELECT idem.problem($1, $2)', [error.code, error.message]));
  return row.problem;
}

async function main([key, amount]) {
  try {
    console.log(await pay(key, amount));
  } catch (error) {
    if (error.severity === undefined) throw error;
    console.error(JSON.stringify(await problem(error)));
    process.exitCode = 1;
  }
}

main(process.argv.slice(2));
