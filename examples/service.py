#!/usr/bin/env python3
"""Payments over HTTP, following the IETF draft of the Idempotency-Key header (psycopg 3).

    service.py [PORT]
    curl -i localhost:8080/payments -H 'Idempotency-Key: "order-4711"' -d '{"amount": 10}'

201  the payment; a retry gets the same answer, with the header Idempotent-Replayed: true
400  the key is missing or invalid, or the request is invalid
409  a request with this key is in progress, or its outcome is undecided: retry with the same key
     after Retry-After
422  the key was used for another request
429  too many new operations: retry with the same key after Retry-After
503  temporarily unavailable: retry with the same key after Retry-After

Errors are application/problem+json (RFC 9457). Connects to the database that PGHOST, PGPORT,
PGDATABASE and PGUSER name. The database needs the scope and the table of setup.sql.
"""
import json
import math
import random
import re
import sys
import time
from collections import namedtuple
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg
from psycopg.rows import namedtuple_row

ATTEMPTS = 3
Answer = namedtuple("Answer", "status body replayed")


class Refused(Exception):
    """A request that is refused before it reaches the database, with a SQLSTATE."""

    def __init__(self, sqlstate, detail):
        super().__init__(detail)
        self.sqlstate = sqlstate


def pay_once(connection, key, request):
    """Claims the key, makes the payment and completes the claim, in one transaction.

    The request and the answers are JSON text.
    """
    with connection.transaction(), connection.cursor(row_factory=namedtuple_row) as cursor:
        claim = cursor.execute(
            "SELECT claimed, token, status, response::text"
            " FROM idem.claim('payments', %s, %s::jsonb, wait => '1 second')",
            (key, request)).fetchone()
        if not claim.claimed:
            status = claim.status or 201  # the answers of pay.py have no status
            return Answer(status, claim.response or "{}", replayed=True)  # {}: it was erased
        payment = cursor.execute(
            "INSERT INTO payment (amount) VALUES ((%s::jsonb->>'amount')::numeric)"
            " RETURNING to_jsonb(payment)::text AS body", (request,)).fetchone()
        completed = cursor.execute(
            "SELECT idem.complete(%s, %s::jsonb, 201)::text AS body",
            (claim.token, payment.body)).fetchone()
        return Answer(201, completed.body, replayed=False)


def pay(key, request):
    """Retries short-lived errors. Other errors go to the client, which has the key."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with psycopg.connect(autocommit=True) as connection:  # use a pool in a larger service
                return pay_once(connection, key, request)
        except psycopg.OperationalError:  # lost connections, 40001, 40P01, 57P01, ...
            if attempt == ATTEMPTS:
                raise
            time.sleep(random.uniform(0, 0.1 * 2**attempt))


def idempotency_key(headers):
    """The draft requires quotes. Many clients leave them out, so both forms are accepted."""
    keys = headers.get_all("Idempotency-Key", [])
    if len(keys) > 1:
        raise Refused("ID007", "more than one Idempotency-Key")
    if not keys:
        return None  # idem.claim() refuses it
    if re.search(r"[\x00-\x1f\x7f]", keys[0]):
        raise Refused("ID007", "Idempotency-Key has a control character")
    quoted = re.fullmatch(r'"((?:[^"\\]|\\["\\])*)"', keys[0])
    return re.sub(r'\\(["\\])', r"\1", quoted[1]) if quoted else keys[0]


def payment_request(body):
    """Refuses an invalid request before its key is claimed."""
    try:
        request = body.decode()
        amount = json.loads(request)["amount"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Refused("22023", "the request must be a JSON object with an amount") from None
    if type(amount) not in (int, float) or not 0 < amount < 1e12:
        raise Refused("22023", "amount must be a positive number")
    return request


def problem(error):
    """The problem document and Retry-After. The client does not get messages of internal errors."""
    if isinstance(error, Refused):
        sqlstate, message = error.sqlstate, str(error)
    else:
        lost = isinstance(error, psycopg.OperationalError)  # without SQLSTATE: the connection
        sqlstate = error.sqlstate or ("08006" if lost else "XX000")
        message = error.diag.message_primary
    try:
        with psycopg.connect() as connection:
            document = connection.execute(
                "SELECT idem.problem(s, CASE WHEN idem.http_status(s) < 500 THEN m END)"
                " FROM (VALUES (%s::text, %s::text)) AS error (s, m)",
                (sqlstate, message)).fetchone()[0]
    except psycopg.OperationalError:  # the database is not reachable
        document = {"type": "about:blank", "title": "Service Unavailable", "status": 503}
    if sqlstate in ("ID001", "ID009", "ID014") and error.diag.datatype_name:  # when to retry, in ms
        return document, math.ceil(int(error.diag.datatype_name) / 1000)
    return document, 1 if document["status"] == 503 else None


class Payments(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        if "Transfer-Encoding" in self.headers:  # is not read, and must not be the next request
            self.close_connection = True
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path != "/payments":
            not_found = {"type": "about:blank", "title": "Not Found", "status": 404}
            return self.send(404, "application/problem+json", json.dumps(not_found))
        try:
            answer = pay(idempotency_key(self.headers), payment_request(body))
        except (psycopg.Error, Refused) as error:
            document, retry_after = problem(error)
            headers = {} if retry_after is None else {"Retry-After": retry_after}
            return self.send(
                document["status"], "application/problem+json", json.dumps(document), headers)
        headers = {"Idempotent-Replayed": "true"} if answer.replayed else {}
        return self.send(answer.status, "application/json", answer.body, headers)

    def send(self, status, content_type, text, headers={}):
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", len(body))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    request_queue_size = 128


if __name__ == "__main__":
    Server(("localhost", int(sys.argv[1]) if len(sys.argv) > 1 else 8080), Payments).serve_forever()
