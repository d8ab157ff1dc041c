'use strict';
const { checkOptions, respond, unsent } = require('./http.js');

// A route handler that runs handler(req, client) once for each Idempotency-Key, in a transaction of
// the pool, and sends the response { status, headers, body } that it returns.
function idempotent(pool, options, handler) {
  checkOptions(options);
  return async (req, res, next) => {
    const { attempt, committed, open, undo } = unsent(res, res, (client) => handler(req, client));
    try {
      const response = await respond(pool, options, req, attempt, committed);
      open();
      res.status(response.status);
      for (const [name, value] of Object.entries(response.headers)) res.setHeader(name, value);
      res.end(response.body);
    } catch (error) {
      undo();
      // Without an error, or with one of these names, next() goes on to other routes.
      const isNone = !error || error === 'route' || error === 'router';
      next(isNone ? new Error('the handler threw what is no error', { cause: error }) : error);
    }
  };
}

module.exports = { idempotent };
