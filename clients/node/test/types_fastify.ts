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
  onEvent: ({ type, scope, key, tenant, error, request }) => request.log.info([type, scope, key, tenant, error].join()),
}, async () => ({ status: 204 })));

interface Paid { Body: { amount: string }; Params: { account: string } }
app.post<Paid>('/accounts/:account', app.idempotent<Paid>({ scope: 'payments', tenant: (request) => request.params.account },
  async function (request, client) {
    const amount: string = request.body.amount;
    // @ts-expect-error: it has the type of the body
    request.body.currency;
    await client.query('SELECT $1', [amount, this.prefix]);
    return { status: 201, body: { amount } };
  }));
app.post<Paid>('/other/:account', idempotent<Paid>(pool, { scope: 'payments', tenant: null }, async ({ body }) => ({ body: body.amount })));
