'use strict';
// Serves one of the Node applications, on a port that it prints: serve.js express4 [PORT]

const { Pool } = require('pg');

const apps = {
  express4: () => require('./express_app.js')(require('express4')),
  express5: () => require('./express_app.js')(require('express')),
  fastify: () => require('./fastify_app.js'),
  express_idempotency: () => require('./express_idempotency_app.js'),
};

const [name, port = 0] = process.argv.slice(2);
const pool = new Pool({ max: 16 });
pool.on('error', () => {}); // an idle connection is lost
apps[name]()(pool, Number(port)).then((listens) => console.log(listens));
