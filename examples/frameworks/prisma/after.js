'use strict';
const { once } = require('./idempotent.js');

module.exports = (app, prisma) => {
  app.post('/payments', once(prisma, 'payments', async (req, tx) => {
    const payment = await tx.payment.create({ data: { amount: req.body.amount } });
    return { status: 201, body: { payment: Number(payment.id) } };
  }));
};
