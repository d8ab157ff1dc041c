const fastify = require('fastify');
const { idempotent } = require('pg-idem/fastify');

module.exports = (pool) => {
  const app = fastify();
  app.post('/payments', idempotent(pool, { scope: 'payments', tenant: null }, async (request, client) => {
    const { amount } = request.body;
    const { rows: [payment] } = await client.query(
      'INSERT INTO payment (amount) VALUES ($1) RETURNING id', [amount]);
    await client.query('INSERT INTO ledger VALUES ($1, $2)', [payment.id, amount]);
    return { status: 201, body: { payment: payment.id } };
  }));
  return app;
};
