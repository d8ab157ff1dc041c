'use strict';
// For operations that take longer than a client waits: POST answers 202 and a place to ask as soon
// as the operation is stored, and GET says there what has become of it. The process works on; if it
// dies, a worker finishes the operation. The routes are in accepted_express.js and
// accepted_fastify.js.
const { Failure, lease, parseKey, sqlstate } = require('pg-idem');

const SCOPE = 'payments'; // with store_request => 'unfinished', for the worker

const UNDECIDED = 'ID014'; // no attempts are left: the client keeps its key, and asks again later

const accepted = (key) => ({
  status: 202, headers: { location: `/payments/${encodeURIComponent(key)}`, 'retry-after': '1' },
});
const answered = ({ status, response }) => ({ status: status ?? 200, body: response });
const failed = ({ status, message }) => ({ status: status ?? 409, body: { title: message } });

// The response to POST. pay(held) is the work, which the worker has, too.
async function post(pool, pay, header, request) {
  let key;
  try {
    key = parseKey(header);
    if (key === undefined) return { status: 400, body: { title: 'Idempotency-Key is missing' } };
    return await begun(pool, pay, key, request);
  } catch (error) {
    if (error instanceof Failure) return failed(error);
    if (sqlstate(error) === 'ID001') return accepted(key); // it is running, or due again
    if (!sqlstate(error)) throw error;
    return problem(pool, sqlstate(error));
  }
}

async function problem(pool, code) {
  const { rows: [response] } = await pool.query(
    'SELECT idem.http_status($1) AS status, idem.problem($1) AS body', [code]);
  return code === UNDECIDED ? { ...response, headers: { 'retry-after': '60' } } : response;
}

// Settled when the work begins, because its claim is committed then; or by what the claim finds.
function begun(pool, pay, key, request) {
  const operation = { scope: SCOPE, key, request, wait: 0, retry: { refusals: false } };
  return new Promise((resolve, reject) => {
    lease(pool, operation, (held) => {
      resolve(accepted(key));
      return pay(held);
    }).then((outcome) => resolve(answered(outcome)), reject);
  });
}

// The response to GET. Pass the authenticated client as the tenant, here and to lease(): the key
// alone is no secret.
async function get(pool, key) {
  const { rows: [found] } = await pool.query(
    'SELECT state, status, response, error FROM idem.lookup($1, $2)', [SCOPE, key]);
  switch (found.state) {
    case 'in_progress': return accepted(key);
    case 'completed': return answered(found);
    case 'failed': return failed({ ...found, message: found.error?.message ?? 'It has failed' });
    case 'exhausted': return problem(pool, UNDECIDED); // it neither failed nor is it unknown
    default: return { status: 404, body: { title: 'There is no such payment' } };
  }
}

module.exports = { get, post };
