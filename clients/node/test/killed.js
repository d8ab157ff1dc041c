'use strict';
// A payment under a lease, in a process that is killed at one of its steps: before a message is
// sent, before its answer has arrived, or after that.
//
//   killed.js STEP PROCESSOR KEY AMOUNT      begins a payment
//   killed.js STEP PROCESSOR                 takes one that is due
const { Client, Pool } = require('pg');
const { lease, worker } = require('pg-idem');

const SCOPE = { scope: 'killed', lease: 3_600_000 };

// charge(amount, key) calls the other service.
const paid = (charge) => async (held) => {
  const charged = await held.step('charge', async () =>
    charge(held.request.amount, await held.childKey('charge')));
  return held.complete(async (client) => {
    const { rows: [payment] } = await client.query(
      'INSERT INTO payment (amount) VALUES ($1) RETURNING id', [held.request.amount]);
    return { response: { payment: payment.id, charged } };
  });
};

// The other service charges once per key.
async function charge(processor, amount, key) {
  const response = await fetch(processor, {
    method: 'POST', body: JSON.stringify({ amount }), headers: { 'idempotency-key': key },
  });
  return (await response.json()).charge;
}

async function main(step, processor, key, amount) {
  let left = Number(step);
  const mayDie = () => { if (--left === 0) process.kill(process.pid, 'SIGKILL'); };
  const { query } = Client.prototype;
  Client.prototype.query = async function (...message) {
    mayDie();
    const sent = query.apply(this, message);
    mayDie();
    const answer = await sent;
    mayDie();
    return answer;
  };
  const pool = new Pool();
  const work = paid(async (...call) => {
    mayDie();
    const charged = await charge(processor, ...call);
    mayDie();
    return charged;
  });
  if (key) {
    await lease(pool, { ...SCOPE, key, request: { amount: Number(amount) } }, work);
  } else {
    const one = worker(pool, SCOPE, (held) => work(held).finally(() => { one.stop(); }));
    await one.finished;
  }
  await pool.end();
}

if (require.main === module) main(...process.argv.slice(2));
module.exports = { SCOPE, charge, paid };
