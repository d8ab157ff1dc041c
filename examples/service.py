#!/usr/bin/env python3
"""Payments over HTTP, after the IETF's draft of the Idempotency-Key header (psycopg 3).

    service.py [PORT]
    curl -i localhost:8080/payments -H 'Idempotency-Key: "order-4711"' -d '{"amount": 10}'

201  the payment; a retry gets the same, with the header Idempotency-Replayed: true
400  no key, or a bad one; a bad request
409  a request with this key is in flight: come back after Retry-After
422  the key was used for another request
429, 503  not now: come back with the same key after Retry-After

Errors are application/problem+json (RFC 9457). Connects as PGHOST, PGPORT, PGDATABASE and PGUSER say,
to a database with the scope and table of setup.sql.
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
    """A request that did not get as far as the database, with the SQLSTATE that says what it is."""

    def __init__(self, sqlstate, detail):
        super().__init__(detail)
        self.sqlstate = sqlstate


def pay_once(connection, key, request):
    """Claim, effect and complete, in one transaction. The request is JSON text, so are the answers."""
    with connection.transaction(), connection.cursor(row_factory=namedtuple_row) as cursor:
        claim = cursor.execute(
            "SELECT claimed, token, status, response::text"
            " FROM idem.claim('payments', %s, %s::jsonb, wait => '1 second')", (key, request)).fetchone()
        if not claim.claimed:
            return Answer(claim.status or 201, claim.response, replayed=True)  # pay.py stores no status
        payment = cursor.execute(
            "INSERT INTO payment (amount) VALUES ((%s::jsonb->>'amount')::numeric)"
            " RETURNING to_jsonb(payment)::text AS body", (request,)).fetchone()
        completed = cursor.execute(
            "SELECT idem.complete(%s, %s::jsonb, 201)::text AS body", (claim.token, payment.body)).fetchone()
        return Answer(201, completed.body, replayed=False)


def pay(key, request):
    """What passes in a moment is tried again here; all else is for the client, who has the key."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with psycopg.connect(autocommit=True) as connection:  # a pool's, in a larger service
                return pay_once(connection, key, request)
        except psycopg.OperationalError as error:  # its SQLSTATE, if any, is 40001, 40P01, 57P01, ...
            if attempt == ATTEMPTS:
                raise
            time.sleep(random.uniform(0, 0.1 * 2**attempt))


def idempotency_key(headers):
    """The draft's header is a string in quotes; many clients leave them out, and mean the same."""
    keys = headers.get_all("Idempotency-Key", [])
    if len(keys) > 1:
        raise Refused("ID007", "more than one Idempotency-Key")
    if not keys:
        return None  # which idem refuses
    quoted = re.fullmatch(r'"((?:[^"\\]|\\["\\])*)"', keys[0])
    return re.sub(r'\\(["\\])', r"\1", quoted[1]) if quoted else keys[0]


def payment_request(body):
    """What is no payment is refused before its key is claimed."""
    try:
        request = body.decode()
        amount = json.loads(request)["amount"]
    except (ValueError, KeyError, TypeError):
        raise Refused("22023", "the request must be a JSON object with an amount") from None
    if type(amount) not in (int, float) or not 0 < amount < 1e12:
        raise Refused("22023", "amount must be a positive number")
    return request


def problem(error):
    """The problem document and Retry-After. Messages of errors that are ours to solve stay here."""
    if isinstance(error, Refused):
        sqlstate, message, hint = error.sqlstate, str(error), None
    else:
        sqlstate, message, hint = error.sqlstate or "08006", error.diag.message_primary, error.diag.message_hint
    try:
        with psycopg.connect() as connection:
            document = connection.execute(
                "SELECT idem.problem(s, CASE WHEN idem.http_status(s) < 500 THEN m END)"
                " FROM (VALUES (%s::text, %s::text)) AS error (s, m)", (sqlstate, message)).fetchone()[0]
    except psycopg.OperationalError:  # no database, no answer
        document = {"type": "about:blank", "title": "Service Unavailable", "status": 503}
    after = re.search(r"after ([\d.]+) seconds", hint or "")  # the hints of ID001 and ID009
    if after:
        return document, math.ceil(float(after[1]))
    return document, 1 if document["status"] == 503 else None


class Payments(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path != "/payments":
            return self.send(404, "application/problem+json",
                             json.dumps({"type": "about:blank", "title": "Not Found", "status": 404}))
        try:
            answer = pay(idempotency_key(self.headers), payment_request(body))
        except (psycopg.Error, Refused) as error:
            document, retry_after = problem(error)
            headers = {} if retry_after is None else {"Retry-After": retry_after}
            return self.send(document["status"], "application/problem+json", json.dumps(document), headers)
        headers = {"Idempotency-Replayed": "true"} if answer.replayed else {}
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
