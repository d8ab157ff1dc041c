// As after.js, with a handler that does now and then what it must not.
const express = require('express');
const { idempotent } = require('pg-idem/express');

const ignored = (work) => Promise.resolve().then(work).catch(() => {});
const habits = [
  (client) => client.query('ROLLBACK'),
  (client) => client.query('COMMIT'),
  (client) => client.query('ROLLBACK; BEGIN; INSERT INTO payment (amount) VALUES (-1)'),
  (client) => client.query('SELECT 1 / 0'),
  (client) => client.release(),
  (client, res) => res.status(201).json({ payment: -1 }),
  (client, res) => res.end(),
];
let turn = 0;

module.exports = (pool) => {
  const app = express();
  app.use(express.json());

  app.post('/payments', (req, res, next) => {
    const rude = turn++ % 3 === 0 && habits[(turn / 3 | 0) % habits.length];
    return idempotent(pool, { scope: 'payments', tenant: null }, async (_, client) => {
      const { rows: [payment] } = await client.query(
        'INSERT INTO payment (amount) VALUES ($1) RETURNING id', [req.body.amount]);
      if (rude) await ignored(() => rude(client, res));
      await client.query('INSERT INTO ledger VALUES ($1, $2)', [payment.id, req.body.amount]);
      return { status: 201, body: { payment: payment.id } };
    })(req, res, next);
  });
  return app;
};
