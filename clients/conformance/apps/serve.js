'use strict';
// Serves one of the Node applications, on a port that it prints: serve.js express4

const { Pool } = require('pg');

const apps = {
  express4: () => require('./express_app.js')(require('express4')),
  express5: () => require('./express_app.js')(require('express')),
  fastify: () => require('./fastify_app.js'),
};

const pool = new Pool({ max: 16 });
pool.on('error', () => {}); // an idle connection is lost
apps[process.argv[2]]()(pool).then((port) => console.log(port));
