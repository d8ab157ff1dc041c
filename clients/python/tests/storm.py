"""Impatient clients in front of a network that cuts connections; run by test/t/client_python.pl.

    storm.py STACK FIRST OPERATIONS SENDS PORT...

Sends each of the payments FIRST, FIRST + 1, ... several times, at the same time and in any order,
each time until there is an answer. A payment's amount is its number. The connections go to the
ports, which are those of proxies. Prints how many sends were answered, and how many operations got
more than one answer.

STACK is psycopg, asyncio, psycopg2, sqlalchemy, django, flask, starlette; or "without psycopg", the
same retries without idem, and "without flask", the endpoint of before.py.
"""

import asyncio
import contextlib
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
from pg_idem import AsyncIdempotency, Idempotency

CLIENTS = 12
INSERT = "INSERT INTO payment (amount) VALUES (%s) RETURNING id"


def pools_of(ports, kind, **options):
    return [kind(f"host=127.0.0.1 port={port}", min_size=1, max_size=CLIENTS, timeout=10, **options)
            for port in ports]


def any_of(pools):
    return lambda: random.choice(pools).connection()


def http_send(post):
    """What a client does: sends the same key until it has an answer."""
    def send(number):
        while True:
            status, retry_after, body = post(number)
            if status not in (409, 429, 500, 503):
                assert status == 201, (status, body)
                return body
            time.sleep(min(float(retry_after or 0), 0.2) + random.uniform(0, 0.1))
    return send


# Each stack returns the function that sends a payment and returns its answer. -----------------


def with_psycopg(ports):
    from psycopg_pool import ConnectionPool
    payments = Idempotency(any_of(pools_of(ports, ConnectionPool)))

    @payments.operation("payments")
    def pay(connection, request):
        return connection.execute(INSERT, [request["amount"]]).fetchone()[0]
    return lambda number: pay(f"order-{number}", {"amount": number})


def with_psycopg2(ports):
    import psycopg2
    from pg_idem.psycopg2 import Idempotency
    payments = Idempotency(lambda: contextlib.closing(
        psycopg2.connect(host="127.0.0.1", port=random.choice(ports))))

    def pay(connection, number):
        with connection.cursor() as cursor:
            cursor.execute(INSERT, [number])
            return cursor.fetchone()[0]
    return lambda number: payments.run("payments", f"order-{number}", {"amount": number},
                                       lambda connection: pay(connection, number)).response


def with_sqlalchemy(ports):
    import pg_idem.sqlalchemy
    from sqlalchemy import __version__, create_engine, text
    from sqlalchemy.orm import sessionmaker
    driver = "psycopg2" if __version__.startswith("1.") else "psycopg"
    sessions = [sessionmaker(create_engine(f"postgresql+{driver}://127.0.0.1:{port}", future=True,
                                           pool_size=CLIENTS), future=True) for port in ports]
    payments = pg_idem.sqlalchemy.Idempotency(lambda: random.choice(sessions).begin())

    @payments.operation("payments")
    def pay(session, request):
        return session.execute(text(INSERT.replace("%s", ":amount")), request).scalar()
    return lambda number: pay(f"order-{number}", {"amount": number})


def with_django(ports):
    from support import django_payment
    payment, _ = django_payment(ports=ports)
    from pg_idem.django import Idempotency

    def pay(number):
        using = random.choice(ports)
        answer = Idempotency(using).run(
            "payments", f"order-{number}", {"amount": number},
            lambda connection: payment.objects.using(using).create(amount=number).pk)
        return answer.response
    return pay


def flask_send(app):
    def post(number):
        response = app.test_client().post("/payments", json={"amount": number},
                                          headers={"Idempotency-Key": f'"order-{number}"'})
        return response.status_code, response.headers.get("Retry-After"), response.text
    return http_send(post)


def with_flask(ports):
    import after
    from psycopg_pool import ConnectionPool
    after.payments.connect = any_of(pools_of(ports, ConnectionPool))  # in place of its own
    after.pool.close()
    return flask_send(after.app)


def without_flask(ports):
    import before
    from psycopg_pool import ConnectionPool
    before.pool.close()
    pools = pools_of(ports, ConnectionPool)

    class Pool:
        connection = staticmethod(any_of(pools))
    before.pool = Pool
    return flask_send(before.app)


def without_psycopg(ports):
    from psycopg_pool import ConnectionPool
    connect = any_of(pools_of(ports, ConnectionPool))

    def pay(number):
        while True:
            try:
                with connect() as connection:
                    return connection.execute(INSERT, [number]).fetchone()[0]
            except psycopg.OperationalError:
                time.sleep(random.uniform(0, 0.1))
    return pay


def with_asyncio(pools):
    payments = AsyncIdempotency(any_of(pools))

    @payments.operation("payments")
    async def pay(connection, request):
        cursor = await connection.execute(INSERT, [request["amount"]])
        return (await cursor.fetchone())[0]
    return lambda number: pay(f"order-{number}", {"amount": number})


def with_starlette(pools):
    import httpx
    from pg_idem.starlette import idempotent
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    @idempotent(AsyncIdempotency(any_of(pools)), "payments", tenant=None)
    async def payments(request):
        cursor = await request.state.idem_connection.execute(
            INSERT, [(await request.json())["amount"]])
        return JSONResponse((await cursor.fetchone())[0], 201)
    app = Starlette(routes=[Route("/payments", payments, methods=["POST"])])
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")

    async def pay(number):
        while True:
            response = await client.post("/payments", json={"amount": number},
                                         headers={"Idempotency-Key": f'"order-{number}"'})
            if response.status_code not in (409, 429, 500, 503):
                assert response.status_code == 201, response.text
                return response.text
            await asyncio.sleep(random.uniform(0.1, 0.3))
    return pay


def run_threads(send, numbers):
    with ThreadPoolExecutor(CLIENTS) as clients:
        return list(clients.map(send, numbers))


async def run_tasks(stack, ports, numbers):
    from psycopg_pool import AsyncConnectionPool
    limit = asyncio.Semaphore(CLIENTS)

    # asyncio.run() waits forever for a pool that is not closed and whose worker was busy when it
    # was cancelled.
    async with contextlib.AsyncExitStack() as opened:
        send = stack([await opened.enter_async_context(pool)
                      for pool in pools_of(ports, AsyncConnectionPool, open=False)])

        async def one(number):
            async with limit:
                return await send(number)
        return await asyncio.gather(*[one(number) for number in numbers])


def main(stack, first, operations, sends, *ports):
    numbers = list(range(int(first), int(first) + int(operations))) * int(sends)
    random.shuffle(numbers)
    name = stack.replace(" ", "_") if stack.startswith("without") else "with_" + stack
    start = globals()[name]
    if stack in ("asyncio", "starlette"):
        answers = asyncio.run(run_tasks(start, ports, numbers))
    else:
        answers = run_threads(start(ports), numbers)
    of = {}
    for number, answer in zip(numbers, answers):
        of.setdefault(number, set()).add(answer)
    print("answered", len(answers))
    print("differing", sum(len(found) > 1 for found in of.values()))


if __name__ == "__main__":
    main(*sys.argv[1:])
