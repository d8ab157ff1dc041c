"""The worker of the recipe "Finishing abandoned operations" in docs/recipes.md."""
import json
import os
import signal
import sys
import time
import urllib.request

import psycopg
from psycopg.types.json import Jsonb

running = True


def stop(*_):
    global running
    running = False


def charge(key, amount):
    """Your processor. The timeout is shorter than the lease."""
    request = urllib.request.Request(
        os.environ["PROCESSOR"], json.dumps({"amount": amount}).encode(),
        {"Content-Type": "application/json", "Idempotency-Key": key})
    with urllib.request.urlopen(request, timeout=20) as response:
        return json.load(response)["id"]


def finish(connection, token, amount, charge_id):
    """Continues from the recovery point. Each statement is a transaction of its own."""
    if charge_id is None:
        (key,) = connection.execute(
            "SELECT idem.child_key(%s, 'charge')", (token,)).fetchone()
        charge_id = charge(key, amount)
        connection.execute(
            "SELECT idem.checkpoint(%s, 'charged', %s)", (token, Jsonb({"charge": charge_id})))
    (answer,) = connection.execute(
        "SELECT payment_end(%s, %s, %s)", (token, amount, charge_id)).fetchone()
    return answer


def work(connection):
    while running:
        token, attempt, amount, charge_id = connection.execute(
            "SELECT token, attempt, request->>'amount', recovery_state->>'charge'"
            " FROM idem.take('payments', wait => '5 seconds')").fetchone()
        if token is None:
            continue
        try:
            finish(connection, token, amount, charge_id)
        except Exception as error:  # try again later; shown by idem.in_flight
            connection.execute(
                "SELECT idem.release(%s, idem.backoff(%s), %s)",
                (token, attempt, Jsonb({"message": repr(error)[:1000]})))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    while running:
        try:
            with psycopg.connect(autocommit=True) as connection:
                work(connection)
        except psycopg.Error as error:  # connection or lease lost: another attempt finishes
            print(error, file=sys.stderr)
            time.sleep(1)
