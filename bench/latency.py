"""The Python package's part of bench/latency, with psycopg 3. Prints a line per form."""

import collections
import itertools
import json
import os
import statistics
import threading
import time
import uuid
from contextlib import nullcontext

import psycopg
from pg_idem import Idempotency

DURATION, CLIENTS = float(os.environ["SECONDS_EACH"]), int(os.environ["CLIENTS"])
INSERT = "INSERT INTO payment (amount) VALUES (%s) RETURNING id"
REQUEST = {"amount": 10}
ONE_STATEMENT = """
    WITH c AS MATERIALIZED (
        SELECT * FROM idem.claim('payments', %s::text, %s::jsonb, wait => '2 s')
    ), effect AS (
        INSERT INTO payment (amount) SELECT %s FROM c WHERE c.claimed
        RETURNING jsonb_build_object('payment', id) AS answer
    )
    SELECT CASE WHEN c.claimed THEN idem.complete(c.token, (SELECT answer FROM effect))
                ELSE c.response END FROM c"""


def new_keys():
    return str(uuid.uuid4())


def one_key():
    key = str(uuid.uuid4())
    return lambda: key


def package(connection):
    payments = Idempotency(lambda: nullcontext(connection))

    @payments.operation("payments")
    def pay(connection, request):
        payment, = connection.execute(INSERT, (request["amount"],)).fetchone()
        return {"payment": payment}
    return lambda key: pay(key, REQUEST)


def by_hand(connection):
    def pay(key):
        request = json.dumps(REQUEST)
        with connection.transaction():
            new = connection.execute(
                "INSERT INTO payment_key (key, request) VALUES (%s, %s)"
                " ON CONFLICT DO NOTHING RETURNING key", (key, request)).fetchone()
            if not new:
                return connection.execute(
                    "SELECT answer FROM payment_key WHERE key = %s AND request = %s",
                    (key, request)).fetchone()[0]
            payment, = connection.execute(INSERT, (REQUEST["amount"],)).fetchone()
            answer = {"payment": payment}
            connection.execute("UPDATE payment_key SET answer = %s WHERE key = %s",
                               (json.dumps(answer), key))
            return answer
    return pay


def one_statement(connection):
    return lambda key: connection.execute(
        ONE_STATEMENT, (key, json.dumps(REQUEST), REQUEST["amount"])).fetchone()[0]


FORMS = [
    ("pg-idem", package, new_keys), ("INSERT ... ON CONFLICT", by_hand, new_keys),
    ("one statement", one_statement, new_keys), ("pg-idem (replay)", package, one_key()),
    ("INSERT ... ON CONFLICT (replay)", by_hand, one_key()),
]


def client(until, times):
    """Takes the forms in turn, so that what else the machine does concerns all of them."""
    with psycopg.connect(autocommit=True) as connection:
        forms = [(name, make(connection), key) for name, make, key in FORMS]
        for turn in itertools.count():
            for name, pay, key in forms:
                start = time.perf_counter()
                pay(key())
                if turn >= 10:  # psycopg prepares what it has run five times
                    times[name].append(time.perf_counter() - start)
            if time.perf_counter() > until:
                return


def measure(clients):
    """All times of that many clients, by form."""
    times, until = collections.defaultdict(list), time.perf_counter() + DURATION * len(FORMS)
    threads = [threading.Thread(target=client, args=(until, times)) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times


alone, together = measure(1), measure(CLIENTS)
for name, _, _ in FORMS:
    print(f"{name},{1 / statistics.mean(alone[name]):.0f},"
          f"{1000 * statistics.median(alone[name]):.1f},"
          f"{CLIENTS / statistics.mean(together[name]):.0f}")
