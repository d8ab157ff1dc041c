'use strict';
const { checkOptions, respond } = require('./http.js');

// A route handler that runs handler(request, client) once for each Idempotency-Key, in a
// transaction of the pool, and sends the response { status, headers, body } that it returns.
function idempotent(pool, options, handler) {
  checkOptions(options);
  return async (request, reply) => {
    const response = await respond(pool, options, request, (client) => handler(request, client));
    return reply.code(response.status).headers(response.headers).send(response.body);
  };
}

// fastify.register(plugin, { pool }) gives fastify.idempotent(options, handler).
async function plugin(fastify, { pool }) {
  fastify.decorate('idempotent', (options, handler) => idempotent(pool, options, handler));
}
plugin[Symbol.for('skip-override')] = true; // for the whole application, not for a child of it
plugin[Symbol.for('fastify.display-name')] = 'pg-idem';

module.exports = { idempotent, plugin };
