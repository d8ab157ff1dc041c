'use strict';
const { setTimeout: sleep } = require('node:timers/promises');

// Lost connections and races, a lack of resources, a restart of the server.
const TRANSIENT = /^(08|40|53|57P)/;

// A handler that runs `work(req, tx)` once per Idempotency-Key, in one transaction with its effect.
// work returns { status, body }. It may run more than once.
const once = (prisma, scope, work) => async (req, res, next) => {
  const key = req.get('Idempotency-Key')?.replace(/^"|"$/g, '') ?? '';
  try {
    const { status, body, replayed } = await retried(() => answer(prisma, scope, key, req, work));
    if (replayed) res.set('Idempotent-Replayed', 'true');
    res.status(status).json(body);
  } catch (error) {
    await refuse(prisma, res, error).catch(next);
  }
};

// The claim must wait for less than the transaction's timeout.
const answer = (prisma, scope, key, req, work) => prisma.$transaction(async (tx) => {
  const [claim] = await tx.$queryRaw`
    SELECT claimed, token, coalesce(status, 200) AS status, response
      FROM idem.claim(${scope}, ${key}, ${JSON.stringify(req.body)}::jsonb, wait => '1 second')`;
  if (!claim.claimed) return { status: claim.status, body: claim.response, replayed: true };
  const { status, body } = await work(req, tx);
  const [stored] = await tx.$queryRaw`
    SELECT idem.complete(${claim.token}, ${JSON.stringify(body)}::jsonb, ${status}) AS body`;
  return { status, body: stored.body };
}, { maxWait: 2_000, timeout: 5_000 });

async function retried(run, attempts = 3) {
  for (let attempt = 1; ; attempt++) {
    try {
      return await run();
    } catch (error) {
      if (attempt === attempts || !isTransient(error)) throw error;
      await sleep(100 * Math.random());
    }
  }
}

// The server's error. The adapter keeps its SQLSTATE, hint and column, but not its other fields.
const cause = (error) => (error.meta?.driverAdapterError ?? error).cause;
const sqlstate = (error) => cause(error)?.originalCode;

function isTransient(error) {
  if (sqlstate(error)) return TRANSIENT.test(sqlstate(error));
  // Prisma's own: no connection, a timeout, a race. A lost connection is an Error without a code.
  return error.code ? /^(P1|P2024|P2028|P2034)/.test(error.code) : error.name === 'Error';
}

async function refuse(prisma, res, error) {
  const state = sqlstate(error);
  if (!/^(ID|22)/.test(state ?? '')) throw error;
  const [{ document }] = await prisma.$queryRaw`
    SELECT idem.problem(${state}, ${cause(error).originalMessage}) AS document`;
  const after = /after ([\d.]+) seconds/.exec(cause(error).hint ?? ''); // of ID001, ID009 and ID014
  if (after) res.set('Retry-After', String(Math.ceil(after[1])));
  res.status(document.status).type('application/problem+json').send(JSON.stringify(document));
}

module.exports = { once };
