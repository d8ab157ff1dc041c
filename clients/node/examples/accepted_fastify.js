'use strict';
const fastify = require('fastify');
const { get, post } = require('./accepted.js');

module.exports = (pool, pay) => {
  const app = fastify();
  const send = (reply, { status, headers = {}, body = {} }) =>
    reply.code(status).headers(headers).send(body);
  app.post('/payments', async (request, reply) =>
    send(reply, await post(pool, pay, request.headers['idempotency-key'], request.body)));
  app.get('/payments/:key', async (request, reply) =>
    send(reply, await get(pool, request.params.key)));
  return app;
};
