'use strict';
const express = require('express');
const { get, post } = require('./accepted.js');

module.exports = (pool, pay) => {
  const app = express();
  app.use(express.json());
  const send = (res, { status, headers = {}, body = {} }) =>
    res.status(status).set(headers).json(body);
  app.post('/payments', (req, res, next) => {
    post(pool, pay, req.get('idempotency-key'), req.body).then((answer) => send(res, answer), next);
  });
  app.get('/payments/:key', (req, res, next) => {
    get(pool, req.params.key).then((answer) => send(res, answer), next);
  });
  return app;
};
