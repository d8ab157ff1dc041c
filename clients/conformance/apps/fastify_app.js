'use strict';
// The application in Fastify.

const Fastify = require('fastify');
const multipart = require('@fastify/multipart');
const { plugin } = require('pg-idem/fastify');
const handlers = require('./handlers.js');

module.exports = async (pool, port) => {
  const fastify = Fastify();
  const options = { scope: 'operations', tenant: (request) => request.of,
    finalStatuses: [402] };

  fastify.decorateRequest('of', null);
  fastify.addHook('onRequest', async (request) => {
    request.of = handlers.client(request.headers.authorization);
  });
  await fastify.register(plugin, { pool });

  const operations = async (request, client) =>
    handlers.carryOut(client, request.of, request.body);
  for (const path of ['/operations', '/refunds']) {
    fastify.post(path, fastify.idempotent(options, operations));
  }
  fastify.post('/limited', fastify.idempotent({ ...options, scope: 'limited' }, operations));

  fastify.register(async (files) => {
    await files.register(multipart, { attachFieldsToBody: true, limits: { fileSize: 8 << 20 } });
    files.post('/uploads', files.idempotent(options, async (request, client) => {
      const { id, file } = request.body;
      return handlers.carryOut(client, request.of,
        handlers.document(id.value, await file.toBuffer()));
    }));
  });
  fastify.register(async (contents) => {
    contents.removeAllContentTypeParsers();
    contents.addContentTypeParser('*', { parseAs: 'buffer' }, (request, body, done) =>
      done(null, body));
    contents.post('/documents', contents.idempotent(options, async (request, client) =>
      handlers.carryOut(client, request.of,
        handlers.document(request.query.id, request.body ?? Buffer.alloc(0)))));
  });

  fastify.get('/operations/:name', async (request) => {
    const { rows: [effects] } = await pool.query(handlers.COUNT,
      [request.params.name, request.of]);
    return effects;
  });
  fastify.setErrorHandler((error, request, reply) => {
    const status = error.status ?? error.statusCode ?? 500;
    reply.code(status).type('application/problem+json').send(handlers.problemOf(status));
  });
  await fastify.listen({ port, host: '127.0.0.1' });
  return fastify.server.address().port;
};
