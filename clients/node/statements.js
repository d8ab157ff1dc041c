'use strict';
// The statements that the package sends. A message of node-postgres that has parameters can hold
// one statement only. So that several fit into one message, the values are literals here.
const { bodyBytes, headerFields, json, statusCode } = require('./values.js');

const UNSAFE = /[^ -&(-[\]-~]/gu; // not ASCII, or a control character, a quote or a backslash

// The value as a literal, which is the same in every session: ASCII is the same in every encoding
// of a client, and an escape string the same with and without standard_conforming_strings.
function literal(value) {
  return value === undefined || value === null ? 'NULL'
    : `E'${String(value).replace(UNSAFE, escaped)}'`;
}

function escaped(character) {
  if (character === '\0') return '\\x00'; // the server refuses it with 22021, as in a parameter
  const code = character.codePointAt(0);
  if (code > 0xffff) return `\\U${code.toString(16).padStart(8, '0')}`;
  const isSurrogate = code >= 0xd800 && code < 0xe000; // without its other half, no character
  return `\\u${(isSurrogate ? 0xfffd : code).toString(16).padStart(4, '0')}`;
}

const jsonb = (value) => literal(JSON.stringify(value));
const bytes = (body) => literal(body && `\\x${body.toString('hex')}`);

// Chooses the record table, for scopes that have their records elsewhere.
const choose = (records) =>
  (records === undefined ? '' : `SELECT idem.use_records(${literal(records)}); `);

// The request is JSON text, and times are intervals. The server reads and plans this statement each
// time, and the list of the columns would cost as much as the claim: the row comes as one value.
const claim = ({ scope, key, request, tenant, ttl, lease, wait }) =>
  `SELECT idem.try_claim(${literal(scope)}, ${literal(key)}, ${literal(request)}, `
  + `tenant => ${literal(tenant)}, ttl => ${literal(ttl)}, lease => ${literal(lease)}, `
  + `wait => ${literal(wait)}) AS claim, pg_client_encoding() AS encoding`;

// An interval as milliseconds, whatever the style that the session writes intervals in. The factor
// is numeric, too: for an integer, an operator of others in the search path would be preferred.
const milliseconds = (text) =>
  `SELECT ceil(1000.0 * extract(epoch FROM ${literal(text)}::interval))::text AS milliseconds`;

// The rest of an answer or a Failure.
const http = ({ status, headers, body }) => [
  literal(status === undefined ? undefined : statusCode(status)),
  jsonb(headerFields(headers)), bytes(bodyBytes(body)),
].join(', ');

function complete(token, answer) {
  const response = answer.response ?? null; // SQL's NULL, which is read as null
  return `SELECT idem.complete(${literal(token)}, `
    + `${literal(response === null ? null : json('answer', response))}, ${http(answer)})::text `
    + 'AS response';
}

function fail(token, failure) {
  const { code, message, detail, hint } = failure;
  const error = { sqlstate: code === 'ID003' ? undefined : code, message, detail, hint };
  return `SELECT FROM idem.fail(${literal(token)}, ${jsonb(error)}, ${http(failure)})`;
}

const expiry = ({ scope, key, tenant }) => 'SELECT expires_at AS "expiresAt" '
  + `FROM idem.lookup(${literal(scope)}, ${literal(key)}, ${literal(tenant)})`;

// The recovery state has the results of steps.
const take = ({ scope, lease, tenant, wait }) =>
  'SELECT token, key, tenant, request, attempt, recovery_state AS steps '
  + `FROM idem.take(${literal(scope)}, lease => ${literal(lease)}, tenant => ${literal(tenant)}, `
  + `wait => ${literal(wait)})`;
const renew = (token, lease) => `SELECT idem.renew(${literal(token)}, ${literal(lease)})`;
const checkpoint = (token, name, steps) =>
  `SELECT idem.checkpoint(${literal(token)}, ${literal(name)}, ${jsonb(steps)})`;
const childKey = (token, step) =>
  `SELECT idem.child_key(${literal(token)}, ${literal(step)}) AS key`;
const release = (token, attempt, { base, cap }, error) => `SELECT idem.release(${literal(token)}, `
  + `idem.backoff(${literal(attempt)}, ${literal(base)}, ${literal(cap)}), ${jsonb(error)})`;

// A finished operation as a claim would return it.
const finished = ({ scope, key, tenant }) => 'SELECT state AS outcome, response::text, status, '
  + 'headers, body, error, expires_at AS "expiresAt" '
  + `FROM idem.lookup(${literal(scope)}, ${literal(key)}, ${literal(tenant)}) `
  + "WHERE state IN ('completed', 'failed')";

// Every value comes as text, which fromText() reads: the application may have parsers of its own,
// such as one that leaves jsonb as text.
const TYPES = { getTypeParser: () => (value) => value };
const send = (client, statement) => client.query({ text: statement, types: TYPES });

module.exports = {
  checkpoint, childKey, choose, claim, complete, expiry, fail, finished, milliseconds, release,
  renew, send, take,
};
