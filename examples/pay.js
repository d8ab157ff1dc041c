#!/usr/bin/env node
// A payment that is made once, however often it is asked for (node-postgres).
//
//   node pay.js KEY AMOUNT
//
// Prints the answer as JSON; an error goes to standard error as a problem document (RFC 9457). Connects
// as PGHOST, PGPORT, PGDATABASE and PGUSER say, to a database with the scope and table of setup.sql.
const { Client } = require('pg');

const ATTEMPTS = 10;
// Nothing is wrong with the request: the connection is lost, a race is lost, the server is short of
// something or restarting, another try is at it, too many came at once.
const TRANSIENT = /^(08|40|53|57P|ID001|ID009)/;

// Claim, effect and complete, in one transaction.
async function payOnce(client, key, amount) {
  await client.query('BEGIN');
  const { rows: [claim] } = await client.query(
    `SELECT claimed, token, response FROM idem.claim('payments', $1, jsonb_build_object('amount', $2::numeric))`,
    [key, amount]);
  let answer = claim.response; // a retry: the first answer
  if (claim.claimed) {
    const { rows: [payment] } = await client.query(
      'INSERT INTO payment (amount) VALUES ($1) RETURNING to_jsonb(payment) AS answer', [amount]);
    const { rows: [completed] } = await client.query(
      'SELECT idem.complete($1, $2) AS answer', [claim.token, payment.answer]);
    answer = completed.answer;
  }
  await client.query('COMMIT');
  return answer;
}

// Tries with the same key until there is an answer, or an error that will not pass.
async function pay(key, amount) {
  for (let attempt = 1; ; attempt++) {
    try {
      return await connected((client) => payOnce(client, key, amount));
    } catch (error) {
      if (attempt === ATTEMPTS || !isTransient(error)) throw error;
      const backoff = Math.random() * Math.min(5, 0.05 * 2 ** attempt);
      await new Promise((resolve) => setTimeout(resolve, 1000 * Math.max(retryAfter(error), backoff)));
    }
  }
}

// A connection that ends with the work; one that ends within a transaction rolls it back.
async function connected(work) {
  const client = new Client();
  client.on('error', () => {}); // a lost connection fails the query that is under way, too
  try {
    await client.connect();
    return await work(client);
  } finally {
    await client.end();
  }
}

function isTransient(error) {
  const fromServer = error.severity !== undefined; // else the connection is lost
  return !fromServer || TRANSIENT.test(error.code);
}

// Seconds: the hints of ID001 and ID009 say "after 1.5 seconds".
function retryAfter(error) {
  const found = /after ([\d.]+) seconds/.exec(error.hint);
  return found ? Number(found[1]) : 0;
}

async function problem(error) {
  const { rows: [row] } = await connected((client) =>
    client.query('SELECT idem.problem($1, $2)', [error.code, error.message]));
  return row.problem;
}

async function main([key, amount]) {
  try {
    console.log(JSON.stringify(await pay(key, amount)));
  } catch (error) {
    if (error.severity === undefined) throw error;
    console.error(JSON.stringify(await problem(error)));
    process.exitCode = 1;
  }
}

main(process.argv.slice(2));
