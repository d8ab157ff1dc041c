'use strict';
// What the handlers of the Node applications do: the interface of docs/conformance.md.

const { createHash, randomUUID } = require('node:crypto');
const { Failure } = require('pg-idem');

const CLIENTS = new Map([['Bearer ann', 'ann'], ['Bearer bob', 'bob']]);
const EFFECT = 'INSERT INTO effect (name, client) VALUES ($1, $2)';
const LOSE = "DO $$ BEGIN RAISE 'lost' USING ERRCODE = 'serialization_failure'; END $$";
const COUNT = 'SELECT count(*)::integer AS effects FROM effect WHERE name = $1 AND client = $2';
const seen = new Map(); // how often an operation was to fail

// An error that the application answers with a problem document.
class Problem extends Error {
  constructor(status) {
    super(`status ${status}`);
    this.status = status;
  }
}

const problemOf = (status) => JSON.stringify({ type: 'about:blank', status });

// The client, by the header Authorization.
function client(authorization) {
  if (!CLIENTS.has(authorization)) throw new Problem(401);
  return CLIENTS.get(authorization);
}

// A request whose content is not JSON.
function document(id, content) {
  const sha256 = createHash('sha256').update(content).digest('hex');
  return { id, answer: JSON.stringify({ sha256, size: content.length }) };
}

// Whether it is to fail so, this time.
function happens(request, what) {
  const name = `${what} ${request.id}`;
  seen.set(name, (seen.get(name) ?? 0) + 1);
  return seen.get(name) <= (request[what] ?? 0);
}

// What a handler returns. `of` is the client, and `client` the transaction of the operation.
async function carryOut(client, of, request) {
  if (typeof request?.id !== 'string') throw new Problem(400);
  await client.query(EFFECT, [request.id, of]);
  if (happens(request, 'busy')) await client.query(LOSE);
  if ('wait' in request) await client.query('SELECT pg_sleep($1)', [request.wait]);
  if (request.invalid) throw new Problem(400);
  if (request.refuse) { // one of the final statuses of the routes
    return { status: 402, headers: { 'content-type': 'application/problem+json' },
      body: problemOf(402) };
  }
  if (request.failed) throw new Failure('declined');
  if (happens(request, 'fail')) throw new Error(`operation ${request.id} has failed`);
  const { status = 201, type = 'application/json' } = request;
  const headers = { location: `/operations/${request.id}` };
  if (status === 204) return { status, headers };
  if ('size' in request) return { status, headers, body: 'x'.repeat(request.size) };
  if ('answer' in request) {
    return { status, headers: { ...headers, 'content-type': type }, body: request.answer };
  }
  return { status, headers, body: { number: randomUUID(), id: request.id } };
}

module.exports = { COUNT, EFFECT, LOSE, Problem, carryOut, client, document, problemOf };
