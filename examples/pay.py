#!/usr/bin/env python3
"""Makes a payment exactly once, however often it is requested (psycopg 3).

    pay.py KEY AMOUNT

Prints the answer as JSON. Prints an error to standard error as a problem document (RFC 9457).
Connects to the database that PGHOST, PGPORT, PGDATABASE and PGUSER name. The database needs
the scope and the table of setup.sql.
"""
import json
import random
import re
import sys
import time

import psycopg
from psycopg.rows import namedtuple_row

ATTEMPTS = 10
# Errors that a retry can cure: a lost connection (08), a lost race (40), a lack of resources
# (53), a restart of the server (57P), a key that another caller holds (ID001), a limit (ID009), an
# operation without attempts left (ID014).
TRANSIENT = re.compile("08|40|53|57P|ID001|ID009|ID014")


def pay_once(connection, key, amount):
    """Claims the key, makes the payment and completes the claim, in one transaction.

    The answer is JSON text: parsed, an amount would lose digits.
    """
    with connection.transaction(), connection.cursor(row_factory=namedtuple_row) as cursor:
        claim = cursor.execute(
            "SELECT claimed, token, response::text"
            " FROM idem.claim('payments', %s, jsonb_build_object('amount', %s::numeric))",
            (key, amount)).fetchone()
        if not claim.claimed:
            return claim.response  # a retry gets the first answer
        payment = cursor.execute(
            "INSERT INTO payment (amount) VALUES (%s) RETURNING to_jsonb(payment)::text AS answer",
            (amount,)).fetchone()
        completed = cursor.execute(
            "SELECT idem.complete(%s, %s::jsonb)::text", (claim.token, payment.answer)).fetchone()
        return completed[0]


def pay(key, amount):
    """Retries with the same key until there is an answer, or an error that a retry cannot cure."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with psycopg.connect(autocommit=True) as connection:
                return pay_once(connection, key, amount)
        except psycopg.Error as error:
            if attempt == ATTEMPTS or not is_transient(error):
                raise
            time.sleep(max(retry_after(error), random.uniform(0, min(5, 0.05 * 2**attempt))))


def is_transient(error):
    if error.sqlstate is None:  # not an error of the server: the connection is lost
        return isinstance(error, psycopg.OperationalError)
    return TRANSIENT.match(error.sqlstate)


def retry_after(error):
    """The time to wait, in seconds. ID001, ID009 and ID014 have it in a field, in milliseconds."""
    if error.sqlstate not in ("ID001", "ID009", "ID014"):
        return 0
    return int(error.diag.datatype_name or 0) / 1000


def problem(error):
    with psycopg.connect() as connection:
        row = connection.execute(
            "SELECT idem.problem(%s, %s)", (error.sqlstate, error.diag.message_primary)).fetchone()
        return row[0]


if __name__ == "__main__":
    try:
        print(pay(key=sys.argv[1], amount=sys.argv[2]))
    except psycopg.Error as error:
        if error.sqlstate is None:
            raise
        sys.exit(json.dumps(problem(error)))
