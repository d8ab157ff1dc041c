'use strict';

module.exports = (app, prisma) => {
  app.post('/payments', async (req, res) => {
    const payment = await prisma.$transaction((tx) =>
      tx.payment.create({ data: { amount: req.body.amount } }));
    res.status(201).json({ payment: Number(payment.id) });
  });
};
