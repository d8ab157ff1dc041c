'use strict';
const { checkOptions, respond, unsent } = require('./http.js');
const { JsonText, filled, isNothing, json, known, statusCode } = require('./values.js');

// A route handler that runs handler(request, client) once for each Idempotency-Key, in a
// transaction of the pool, and sends the response { status, headers, body } that it returns.
function idempotent(pool, options, handler) {
  checkOptions(options);
  return async function once(request, reply) {
    const call = (client) => handler.call(this, request, client);
    const { attempt, committed, open, undo } = unsent(reply, reply.raw, call);
    const serialize = (answer) => serialized(reply, answer);
    try {
      const own = filled({ log: request.log }, { ...options, serialize });
      const response = await respond(pool, own, request, attempt, committed);
      open();
      return reply.code(response.status).headers(response.headers).send(response.body);
    } catch (error) {
      undo();
      throw error;
    }
  };
}

// What is stored is what the schema or the serializer of the route makes of the body.
function serialized(reply, answer) {
  const { status = 200, headers, body } = known(answer, 'status', 'headers', 'body');
  if (isNothing(body) || typeof body === 'string' || body instanceof Uint8Array) return answer;
  json('body', body); // a schema makes {} of what is none
  const made = reply.code(statusCode(status)).serialize(body);
  const type = Object.entries(headers ?? {}).find(([name]) => /^content-type$/i.test(name));
  const isJson = typeof made === 'string' && /json/.test(type?.[1] ?? 'json');
  return { ...answer, body: isJson ? new JsonText(made) : made };
}

// fastify.register(plugin, { pool }) gives fastify.idempotent(options, handler).
async function plugin(fastify, { pool }) {
  fastify.decorate('idempotent', (options, handler) => idempotent(pool, options, handler));
}
plugin[Symbol.for('skip-override')] = true; // for the whole application, not for a child of it
plugin[Symbol.for('fastify.display-name')] = 'pg-idem';

module.exports = { idempotent, plugin };
