const express = require('express');

module.exports = (pool) => {
  const app = express();
  app.use(express.json());

  app.post('/payments', async (req, res) => {
    let client;
    try {
      client = await pool.connect();
      await client.query('BEGIN');
      const { rows: [payment] } = await client.query(
        'INSERT INTO payment (amount) VALUES ($1) RETURNING id', [req.body.amount]);
      await client.query('INSERT INTO ledger VALUES ($1, $2)', [payment.id, req.body.amount]);
      await client.query('COMMIT');
      res.status(201).json({ payment: payment.id });
    } catch (error) {
      await client?.query('ROLLBACK').catch(() => {});
      res.status(503).end();
    } finally {
      client?.release();
    }
  });
  return app;
};
