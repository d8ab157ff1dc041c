'use strict';
const { ANSWERED, checkOptions, respond, unsent } = require('./http.js');
const { JsonText, filled, isNothing, json, known, statusCode } = require('./values.js');

// A route handler that runs handler(request, client) once for each Idempotency-Key, in a
// transaction of the pool, and sends the response { status, headers, body } that it returns.
function idempotent(pool, options, handler) {
  checkOptions(options);
  return async function once(request, reply) {
    // A hook has sent without returning the reply, and others may still work on what it sends.
    if (reply.statusCode >= 300 || reply.raw.headersSent) {
      request.log.error(new Error(ANSWERED));
      return reply;
    }
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
  const [, type = 'application/json'] =
    Object.entries(headers ?? {}).find(([name]) => /^content-type$/i.test(name)) ?? [];
  const made = shaped(reply.code(statusCode(status)), status, `${type}`, body);
  const isJson = typeof made === 'string' && /json/.test(type);
  return { ...answer, body: isJson ? new JsonText(made) : made };
}

// As reply.send() does it. reply.serialize() knows no schemas by content type: it throws.
function shaped(reply, status, type, body) {
  try {
    return reply.serialize(body);
  } catch (error) {
    const schema = [status, `${status}`.replace(/..$/, 'xx'), 'default']
      .map((name) => reply.getSerializationFunction(name)).find((of) => of);
    if (typeof schema !== 'object') throw error;
    const media = type.split(';')[0].trim().toLowerCase();
    return (schema[media] ?? schema['*/*'] ?? JSON.stringify)(body);
  }
}

// fastify.register(plugin, { pool }) gives fastify.idempotent(options, handler).
async function plugin(fastify, { pool }) {
  fastify.decorate('idempotent', (options, handler) => idempotent(pool, options, handler));
}
plugin[Symbol.for('skip-override')] = true; // for the whole application, not for a child of it
plugin[Symbol.for('fastify.display-name')] = 'pg-idem';

module.exports = { idempotent, plugin };
