// As types.ts, for Fastify.
import fastify from 'fastify';
import { Pool } from 'pg';
import { idempotent, plugin } from 'pg-idem/fastify';

const pool = new Pool();
const app = fastify();
app.register(plugin, { pool });
app.post('/payments', app.idempotent({ scope: 'payments', tenant: null }, async (request) => ({ body: request.body })));
app.post('/', idempotent(pool, { scope: 'payments', tenant: null, neverStored: ['x-trace'] }, async () => ({ status: 204 })));
app.post('/optional', idempotent(pool, {
  scope: 'payments', tenant: null, keyFrom: (request) => request.id, keyRequired: false, sendRetention: true, includeHeaders: ['etag'],
  onEvent: ({ type, scope, key, tenant, error, request }) => request.log.info([type, scope, key, tenant, error?.message].join()),
}, async () => ({ status: 204 })));
