"""A payment of several steps, in a process that dies; run by test_lease.py.

    mortal.py KIND KEY DIES_AT CALLS

KIND is blocking or async. The process kills itself at the place with the number DIES_AT. The two
other services write the key of each call that reaches them to the file CALLS.
"""

import asyncio
import itertools
import os
import signal
import sys

from pg_idem import AsyncIdempotency, Idempotency

from support import aconnect, connect

INSERT = "INSERT INTO payment (amount) VALUES (%s) RETURNING id"


class Places:
    """Where a process may die: the nth call of here()."""

    def __init__(self, dies_at):
        self.dies_at, self.passed = dies_at, itertools.count(1)

    def here(self):
        if next(self.passed) == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)


def call(calls, name, key):
    """Another service."""
    with open(calls, "a") as file:
        file.write(f"{name} {key}\n")
    return f"{name} is done"


def pay(places, calls):
    def work(lease):
        def step(name):
            places.here()
            result = call(calls, name, lease.child_key(name))
            places.here()
            return result

        def effect(connection):
            places.here()
            row = connection.execute(INSERT, [lease.request["amount"]]).fetchone()
            places.here()
            return {"payment": row[0], "done": done}
        places.here()
        done = [lease.step(name, lambda: step(name)) for name in ("reserve", "charge")]
        places.here()
        lease.complete(effect=effect)
        places.here()
    return work


def pay_async(places, calls):
    async def work(lease):
        async def step(name):
            places.here()
            result = call(calls, name, await lease.child_key(name))
            places.here()
            return result

        async def effect(connection):
            places.here()
            cursor = await connection.execute(INSERT, [lease.request["amount"]])
            places.here()
            return {"payment": (await cursor.fetchone())[0], "done": done}
        places.here()
        done = [await lease.step(name, lambda: step(name)) for name in ("reserve", "charge")]
        places.here()
        await lease.complete(effect=effect)
        places.here()
    return work


async def main_async(key, places, calls):
    payments = AsyncIdempotency(aconnect)
    await payments.lease("leased", key, {"amount": 1}).run(pay_async(places, calls))


if __name__ == "__main__":
    kind, key, dies_at, calls = sys.argv[1:]
    places = Places(int(dies_at))
    if kind == "async":
        asyncio.run(main_async(key, places, calls))
    else:
        payments = Idempotency(connect)
        payments.lease("leased", key, {"amount": 1}).run(pay(places, calls))
