'use strict';
// The application in Express, of version 4 or 5.

const multer = require('multer');
const { idempotent } = require('pg-idem/express');
const handlers = require('./handlers.js');

module.exports = (express) => (pool, port) => {
  const app = express();
  const options = { scope: 'operations', tenant: (req) => req.of, finalStatuses: [402] };
  const upload = multer({ storage: multer.memoryStorage() });

  app.use((req, res, next) => {
    req.of = handlers.client(req.headers.authorization);
    next();
  });
  app.post('/documents', express.raw({ type: () => true, limit: '1mb' }),
    idempotent(pool, options, async (req, client) => {
      const content = Buffer.isBuffer(req.body) ? req.body : Buffer.alloc(0);
      return handlers.carryOut(client, req.of, handlers.document(req.query.id, content));
    }));
  app.use(express.json({ limit: '1mb' }));

  const operations = async (req, client) => handlers.carryOut(client, req.of, req.body);
  app.post(['/operations', '/refunds'], idempotent(pool, options, operations));
  app.post('/limited', idempotent(pool, { ...options, scope: 'limited' }, operations));
  app.post('/uploads', upload.single('file'), idempotent(pool, options, async (req, client) =>
    handlers.carryOut(client, req.of, handlers.document(req.body.id, req.file.buffer))));

  app.get('/operations/:name', async (req, res, next) => {
    try {
      const { rows: [effects] } = await pool.query(handlers.COUNT, [req.params.name, req.of]);
      res.json(effects);
    } catch (error) {
      next(error);
    }
  });

  app.use((error, req, res, next) => { // what the parsers refuse has a status
    const status = error.status ?? 500;
    res.status(status).type('application/problem+json').send(handlers.problemOf(status));
  });
  return new Promise((resolve) => {
    const server = app.listen(port, '127.0.0.1', () => resolve(server.address().port));
  });
};
