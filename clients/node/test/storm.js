'use strict';
// A retry storm on an endpoint: before.js, after.js, after_fastify.js or after_rude.js.
//
//   storm.js FILE OPERATIONS SENDS PORT...
//
// Impatient clients send each payment SENDS times at once, and each of these requests until it has
// an answer. The endpoint reaches the database through all of the ports, behind which connections
// break. Prints the requests, and the payments with more than one answer.
const http = require('node:http');
const { setTimeout: sleep } = require('node:timers/promises');
const { Pool } = require('pg');

const CLIENTS = 40;
const [file, operations, sends, ...ports] = process.argv.slice(2);

// An endpoint's pool: connections in turn from each of the ports.
const pools = ports.map((port) => new Pool({ host: '127.0.0.1', port, max: 5 }));
for (const pool of pools) {
  pool.on('error', () => {});
  pool.on('connect', (client) => client.on('error', () => {})); // before.js has no listener
}
let turn = 0;
const pool = { connect: () => pools[turn++ % pools.length].connect() };

console.error = () => {}; // after.js logs what it answers with 503

const agent = new http.Agent({ keepAlive: true });
let requests = 0;
function post(port, amount) {
  requests++;
  const headers = { 'content-type': 'application/json', 'idempotency-key': `"${file}-${amount}"` };
  return new Promise((resolve, reject) => {
    const request = http.request({ agent, host: '127.0.0.1', port, path: '/payments', method: 'POST', headers }, async (response) => {
      let body = '';
      for await (const chunk of response) body += chunk;
      resolve({ status: response.statusCode, body, after: Number(response.headers['retry-after'] ?? 0) });
    });
    // The server closes connections that a busy machine lets rest for seconds.
    const lost = (error) => request.reusedSocket && error.code === 'ECONNRESET';
    request.on('error', (error) => (lost(error) ? resolve({ status: 503, after: 0 }) : reject(error)));
    request.end(JSON.stringify({ amount }));
  });
}

async function answered(port, amount) {
  for (;;) {
    const { status, body, after } = await post(port, amount);
    if (status === 201) return body;
    if (status < 500 && status !== 409) throw new Error(`${status}: ${body}`);
    await sleep(100 * after + 20 * Math.random()); // a tenth of what it should wait
  }
}

async function main() {
  const app = require(file)(pool);
  await app.ready?.();
  const server = app.server ?? http.createServer(app); // Fastify's own, or one for Express
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address();
  const left = Array.from({ length: operations }, (_, n) => n + 1);
  let differing = 0;
  await Promise.all(Array.from({ length: CLIENTS / sends }, async () => {
    for (let amount; (amount = left.pop()) !== undefined;) {
      const answers = await Promise.all(Array.from({ length: sends }, () => answered(port, amount)));
      if (new Set(answers).size > 1) differing++;
    }
  }));
  console.log(JSON.stringify({ requests, differing }));
  process.exit();
}

main();
