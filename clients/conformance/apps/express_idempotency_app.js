'use strict';
// The application in Express with another package, express-idempotency, as its README shows it: for
// the comparison in docs/conformance.md. Effects are in memory, as its answers are by default, and
// those of a handler that fails are undone.

const express = require('express');
const { getSharedIdempotencyService, idempotency } = require('express-idempotency');
const multer = require('multer');
const { Failure } = require('pg-idem');
const handlers = require('./handlers.js');

// What the published contract says for the statuses that it sets.
const OF_ITS_STATUS = {
  400: [400, 'invalid_key'], 409: [409, 'in_progress'], 417: [422, 'key_conflict'],
};

module.exports = async (pool, port) => {
  const app = express();
  const effects = [];
  const transaction = () => ({
    made: [],
    async query(statement, [name, of] = []) {
      if (statement === handlers.EFFECT) this.made.push({ name, of });
      else if (statement === handlers.LOSE) throw new handlers.Problem(503);
      else await new Promise((resolve) => { setTimeout(resolve, name * 1000); });
    },
  });

  app.use((req, res, next) => {
    req.of = handlers.client(req.headers.authorization);
    next();
  });
  app.get('/operations/:name', (req, res) => {
    const own = effects.filter(({ name, of }) => name === req.params.name && of === req.of);
    res.json({ effects: own.length });
  });
  app.use('/documents', express.raw({ type: () => true, limit: '1mb' }));
  app.use('/uploads', multer({ storage: multer.memoryStorage() }).single('file'));
  app.use(express.json({ limit: '1mb' }));
  app.use((req, res, next) => {
    if (req.headers['idempotency-key']) return next();
    res.status(400);
    return next(new Error('the key is missing'));
  });
  app.use(idempotency());

  const answered = (requestOf) => async (req, res, next) => {
    if (getSharedIdempotencyService().isHit(req)) return;
    try {
      const own = transaction();
      const { status, headers, body } = await handlers.carryOut(own, req.of, requestOf(req));
      if (status < 400) effects.push(...own.made);
      res.status(status).set(headers ?? {}).send(body);
    } catch (error) {
      next(error);
    }
  };
  app.post(['/operations', '/refunds'], answered((req) => req.body));
  app.post('/uploads', answered((req) => handlers.document(req.body.id, req.file.buffer)));
  app.post('/documents', answered((req) =>
    handlers.document(req.query.id, Buffer.isBuffer(req.body) ? req.body : Buffer.alloc(0))));

  app.use((error, req, res, next) => { // it sets the status of its own errors before
    const [status, kind] = error instanceof Failure ? [error.status ?? 409, 'key_failed']
      : error.status ? [error.status] : OF_ITS_STATUS[res.statusCode] ?? [500];
    const type = kind ? `urn:idem:problem:${kind}` : 'about:blank';
    if (kind === 'in_progress' || status === 503) res.set('retry-after', '1');
    res.status(status).type('application/problem+json').send(JSON.stringify({ type, status }));
  });
  return new Promise((resolve) => {
    const server = app.listen(port, '127.0.0.1', () => resolve(server.address().port));
  });
};
