'use strict';
// A payment that calls another service, killed at every step.
const assert = require('node:assert/strict');
const { spawn } = require('node:child_process');
const http = require('node:http');
const { setTimeout: sleep } = require('node:timers/promises');
const { after, test } = require('node:test');
const { lease, worker } = require('pg-idem');
const { SCOPE, charge, paid } = require('./killed.js');
const { effects, finish, one, operation, pool, state } = require('./support.js');

// The other service. It charges once per key, and notes each amount that it charges.
const charges = new Map();
const processor = http.createServer(async (request, response) => {
  let body = '';
  for await (const chunk of request) body += chunk;
  const { 'idempotency-key': key } = request.headers;
  if (!charges.has(key)) charges.set(key, JSON.parse(body).amount);
  response.end(JSON.stringify({ charge: `ch_${key}` }));
});
const chargesOf = ({ amount }) => [...charges.values()].filter((charged) => charged === amount).length;
after(() => Promise.all([finish(), processor.close()]));

// Whether it was killed.
function program(...args) {
  return new Promise((resolve, reject) => {
    const env = { ...process.env, PGAPPNAME: 'killed' };
    spawn(process.execPath, [require.resolve('./killed.js'), ...args], { env, stdio: ['ignore', 'inherit', 'inherit'] })
      .on('exit', (code, signal) => (code ? reject(new Error(`exit ${code}`)) : resolve(signal === 'SIGKILL')));
  });
}

// Ends the leases of processes that are dead, as an administrator can who does not want to wait. Their
// sessions finish the message that they have got.
async function revoke(payments) {
  const sessions = "SELECT count(*)::integer FROM pg_stat_activity WHERE application_name = 'killed'";
  while (await one(sessions) > 0) await sleep(5);
  for (const { key } of payments) {
    await pool.query(
      `SELECT idem.revoke('killed', $1) FROM idem.lookup('killed', $1) WHERE state = 'in_progress'`, [key]);
  }
}

const AT_ONCE = 6;

// Runs programs that are killed at their 1st, 2nd, ... step, until one comes to its end. For each, one
// payment is begun() first. Returns the payments.
async function killedAtEveryStep(begun, args) {
  const payments = [];
  for (let alive = false, step = 1; !alive; step += AT_ONCE) {
    const batch = Array.from({ length: AT_ONCE }, () => ({ ...SCOPE, ...operation() }));
    for (const payment of batch) await begun(payment);
    const killed = await Promise.all(batch.map((payment, n) => program(String(step + n), ...args(payment))));
    alive = killed.includes(false);
    payments.push(...batch);
    await revoke(payments);
  }
  return payments;
}

test('killed at every step: one payment and one charge, by a worker and for a late retry', async (t) => {
  await new Promise((resolve) => { processor.listen(0, '127.0.0.1', resolve); });
  const address = `http://127.0.0.1:${processor.address().port}/`;
  const work = paid((...call) => charge(address, ...call));
  async function drain(payments) {
    const finisher = worker(pool, SCOPE, work);
    for (const { key } of payments) while (await state(key, 'killed') === 'in_progress') await sleep(20);
    await finisher.stop();
  }

  const ofCallers = await killedAtEveryStep(() => {}, ({ key, request }) => [address, key, String(request.amount)]);
  await drain(ofCallers);
  const ofWorkers = await killedAtEveryStep((payment) => assert.rejects(
    lease(pool, { ...payment, backoff: { base: 0, cap: 0 } }, () => { throw new Error('gone'); }), /gone/), () => [address]);
  await drain(ofWorkers);
  t.diagnostic(`${ofCallers.length} callers and ${ofWorkers.length} workers, each killed at another step`);
  assert.ok(ofCallers.length > 15 && ofWorkers.length > 15);

  for (const payment of [...ofCallers, ...ofWorkers]) {
    const { response } = await lease(pool, payment, work);
    assert.match(response.charged, /^ch_/);
    assert.deepEqual([await effects(payment.request), chargesOf(payment.request)], [1, 1]);
  }
});
