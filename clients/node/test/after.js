const express = require('express');
const { idempotent } = require('pg-idem/express');

module.exports = (pool) => {
  const app = express();
  app.use(express.json());

  app.post('/payments', idempotent(pool, { scope: 'payments', tenant: null }, async (req, client) => {
    const { rows: [payment] } = await client.query(
      'INSERT INTO payment (amount) VALUES ($1) RETURNING id', [req.body.amount]);
    await client.query('INSERT INTO ledger VALUES ($1, $2)', [payment.id, req.body.amount]);
    return { status: 201, body: { payment: payment.id } };
  }));
  return app;
};
