'use strict';
// What a service uses; the routes of Express and Fastify are in files of their names.
const {
  Conflict, Failure, LeaseLost, NotStored, Refused, isTransient, retryAfter, sqlstate,
} = require('./errors.js');
const { parseKey, respond } = require('./http.js');
const { lease } = require('./lease.js');
const { idempotent, run } = require('./operation.js');
const { transaction } = require('./transaction.js');
const { worker } = require('./worker.js');

module.exports = {
  idempotent, run, lease, worker, transaction, respond,
  Conflict, Failure, LeaseLost, NotStored, Refused, isTransient, parseKey, retryAfter, sqlstate,
};
