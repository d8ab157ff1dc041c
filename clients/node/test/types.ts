// The types, as a caller uses them. Checked by tsc; not run.
import express from 'express';
import { Pool, type PoolClient } from 'pg';
import {
  Conflict, Failure, LeaseLost, Refused, idempotent, isTransient, lease, NotStored, respond, retryAfter, run, sqlstate, transaction, worker,
} from 'pg-idem';
import { idempotent as route } from 'pg-idem/express';
import { Intent, intent } from 'pg-idem/intent';

const pool = new Pool();

interface Payment { amount: string }

const pay = idempotent(pool, { scope: 'payments', wait: 2_000, retry: { attempts: 3 } },
  async (client: PoolClient, payment: Payment) => {
    const { rows } = await client.query<{ id: number }>('SELECT 1 AS id', [payment.amount]);
    return { payment: rows[0].id };
  });
const answer: Promise<{ payment: number }> = pay('key', { amount: '10' }, { tenant: 'acme' });
// @ts-expect-error: the request has the handler's type
pay('key', { amount: 10 });
// @ts-expect-error: the key is forgotten
pay({ amount: '10' });
// @ts-expect-error: the scope is missing
idempotent(pool, {}, async () => 1);

const outcome = run(pool, { scope: 'payments', key: 'key', request: { amount: '10' } },
  async () => ({ response: 1, status: 201, headers: { location: '/' }, body: Buffer.from('1') }));
outcome.then(({ replayed, response, status }) => [replayed satisfies boolean, response satisfies number, status]);
run(pool, { scope: 'messages', key: 'key', request: null }, async (client) => { await client.query('SELECT 1'); });
// @ts-expect-error: the request is forgotten
run(pool, { scope: 'messages', key: 'key' }, async () => {});
// @ts-expect-error: response is the member
run(pool, { scope: 'payments', key: 'key', request: {} }, async () => ({ answer: 1 }));

interface Charge { id: string }
const charged = lease(pool, { scope: 'payments', key: 'key', request: { amount: '10' }, lease: 60_000 },
  async (held) => {
    const charge: Charge = await held.step('charge', async () => ({ id: await held.childKey('charge') }));
    // @ts-expect-error: the request has the type that was passed
    held.request.currency;
    return held.complete(async (client) => {
      await client.query('SELECT $1', [held.request.amount, charge.id, held.signal.aborted, held.attempt]);
      return { response: { charge: charge.id } };
    });
  });
charged.catch((error) => error instanceof LeaseLost);
const finisher = worker<Payment>(pool, { scope: 'payments', concurrency: 4, signals: ['SIGTERM'], backoff: { base: 1_000 },
  onError: (error, held) => [error, held?.key] }, async (held) => ({ response: held.request.amount }));
finisher.stop().then(() => finisher.finished);
// @ts-expect-error: a key is of lease()
worker(pool, { scope: 'payments', key: 'key' }, async () => {});

transaction(pool, async (client) => client.query('SELECT 1'), { begin: 'BEGIN ISOLATION LEVEL SERIALIZABLE' })
  .catch((error: unknown) => {
    const seconds: number = (retryAfter(error) ?? 0) / 1000;
    if (error instanceof Conflict) return error.differs?.join();
    if (error instanceof Refused && error.constraint === 'in_progress') return [error.dataType, seconds];
    if (error instanceof Failure) return error.replayed;
    return [isTransient(error), sqlstate(error)?.startsWith('23')];
  });

express().post('/payments', route(pool, { scope: 'payments', tenant: (req) => req.get('x') ?? 'guest' },
  async (req, client) => {
    if (req.body.amount > 1000) throw new Failure('too much', { status: 403, sqlstate: 'P0403' });
    await client.query('SELECT 1');
    return { status: 201, headers: { location: '/payments/1' }, body: { payment: 1 } };
  }));
const typed = express.Router();
typed.post<{ account: string }, unknown, Payment>('/:account', route<{ account: string }, unknown, Payment>(
  pool, { scope: (req) => `payments of ${req.params.account}`, tenant: null }, async (req) => {
    const amount: string = req.body.amount;
    // @ts-expect-error: it has the type of the body
    req.body.currency;
    return { body: { amount, account: req.params.account } };
  }));
// @ts-expect-error: the tenant is forgotten
express().post('/', route(pool, { scope: 'payments' }, async () => ({ body: 1 })));
// @ts-expect-error: it may be missing
express().post('/', route(pool, { scope: 'payments', tenant: (req) => req.get('x') }, async () => ({ body: 1 })));
const served: Promise<{ status: number; headers: Record<string, string | string[]>; body?: Buffer }> = respond(
  pool, { scope: 'payments', tenant: null, storeIf: ({ body }) => body !== null, finalStatuses: [402],
    problem: ({ title, status }) => ({ status, body: { title } }), onEvent: ({ type, seconds, request }) => [type, seconds * 1000, request.url] },
  { method: 'POST', url: '/', headers: { 'idempotency-key': 'a' }, body: {} },
  async () => { throw new NotStored({ body: 1 }); });
served.then(({ body }) => body?.length);
// @ts-expect-error: a payment is not a response
express().post('/', route(pool, { scope: 'payments', tenant: null }, async () => ({ payment: 1 })));

const wanted: Intent = intent('order-1', { attempts: 3, onRetry: (reason, attempt, delay) => [reason, attempt, delay] });
wanted.fetch('http://localhost/payments', { method: 'POST', body: '{}' }).then((response: Response) => response.status);
// @ts-expect-error: a key is text
intent(4711);

export { answer };
