"""What the integrations of Flask, Django, Starlette and FastAPI do beyond the contract, which
../../conformance judges."""

import asyncio
import collections
import contextlib
import copy
import datetime
import email.utils
import functools
import gc
import gzip
import io
import itertools
import json
import threading
import time
import types
import unittest
import uuid
import warnings
from unittest import mock

import psycopg
import pg_idem
from pg_idem import AsyncIdempotency, Idempotency
from pg_idem import http

from support import (PaymentTest, aconnect, connect, django_payment, effects, held, new_key,
                     query, use_up_attempts)

try:
    import flask
    import werkzeug.test
    import pg_idem.flask
except ImportError:
    flask = None
try:
    import django
    import psycopg2
    import werkzeug.test
except ImportError:
    django = None
try:
    import anyio.to_thread
    import httpx
    import starlette.applications
    import starlette.background
    import starlette.exceptions
    import starlette.responses
    import starlette.routing
    import pg_idem.starlette
except ImportError:
    starlette = None
try:
    import fastapi
    import pg_idem.fastapi
except ImportError:
    fastapi = None
try:
    import rest_framework
except ImportError:
    rest_framework = None

INSERT = "INSERT INTO payment (amount) VALUES (%s) RETURNING id"
OPTIONS = {"final_statuses": [402], "never_stored": ["X-Trace"], "max_body": 10_000,
           "send_retention": True}
# What a POST of {"amount": 10} to /payments binds to its key.
BOUND = '{"method": "POST", "path": "/payments", "query": "", "body": {"amount": 10}}'
HEADERS = {"Location": "/payments/1", "Set-Cookie": "session=1", "X-Trace": "7"}
calls = []  # the requests that reached a handler
# The first transaction with a payment of 40001 fails to commit.
LOST_COMMIT = """
    DROP TRIGGER IF EXISTS lose_commit ON payment;
    DROP SEQUENCE IF EXISTS commits;
    CREATE SEQUENCE commits;
    CREATE OR REPLACE FUNCTION lose_commit() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF nextval('commits') = 1 THEN RAISE 'lost' USING ERRCODE = '40001'; END IF;
        RETURN NULL;
    END $$;
    CREATE CONSTRAINT TRIGGER lose_commit AFTER INSERT ON payment DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW WHEN (NEW.amount = 40001) EXECUTE FUNCTION lose_commit()"""


class Contract:
    """The tests. A subclass has an app and says how to send a request to it."""

    def send(self, headers, body, path, method):
        """Returns status, headers (a dict with lower-case names) and body."""
        raise NotImplementedError

    def post(self, key, request=None, *, method="POST"):
        request = {"amount": 10} if request is None else request
        body = request if isinstance(request, bytes) else json.dumps(request).encode()
        headers = [("Content-Type", "application/json")]
        if key is not None:
            headers.append(("Idempotency-Key", key))
        return self.send(headers, body, "/payments", method)

    def assert_problem(self, response, status, name, retry_after=None):
        self.assertEqual(response[0], status, response)
        self.assertEqual(response[1]["content-type"], "application/problem+json")
        document = json.loads(response[2])
        kind = name if name == "about:blank" else "urn:idem:problem:" + name
        self.assertEqual((document["status"], document["type"]), (status, kind))
        self.assertEqual("retry-after" in response[1], bool(retry_after))
        if retry_after:
            self.assertRegex(response[1]["retry-after"], "^[1-9][0-9]*$")
        return document

    def test_headers(self):
        key = new_key()
        first, again = self.post(key), self.post(key)
        self.assertEqual(first[1]["set-cookie"].split(";")[0].strip(), "session=1")
        self.assertEqual(again[1]["location"], "/payments/1")
        stored = query("SELECT headers FROM idem.lookup('payments', %s::text)", key)
        names = {name.lower() for name in stored}
        self.assertEqual(names, {"content-type", "location"})
        for name in ("set-cookie", "x-trace"):
            self.assertNotIn(name, again[1])

    def test_the_time_for_which_the_answer_is_kept(self):
        key = new_key()
        for request in ({"amount": 10}, {"amount": 10, "status": 402}):
            key = new_key()
            first, again = self.post(key, request), self.post(key, request)
            kept = email.utils.parsedate_to_datetime(first[1]["idempotency-expires"])
            self.assertLess(abs(kept.timestamp() - time.time() - 7 * 86400), 60)
            self.assertEqual(again[1]["idempotency-expires"], first[1]["idempotency-expires"])
        self.assertNotIn("idempotency-expires", self.post(key, {"amount": 11})[1])

    def test_a_key_that_cannot_be_stored(self):
        options = {"key_from": "key"}
        for body in (b'{"key": "a\\u0000"}', b'{"key": "\\ud800"}'):
            self.assert_problem(self.once(options=options).send(
                [("Content-Type", "application/json")], body, "/payments", "POST"),
                400, "invalid_key")

    def test_an_operation_without_attempts_left(self):
        key = new_key()
        token = use_up_attempts(key, BOUND)
        for _ in range(2):
            response = self.post(key)
            document = self.assert_problem(response, 409, "attempts_exhausted", retry_after=True)
            self.assertEqual(response[1]["retry-after"], "60")
            self.assertIn("keep the key", document["detail"])
            self.assertNotIn("idempotent-replayed", response[1])
        query("SELECT idem.complete(%s, '{\"late\": true}', 201)::text", token)
        again = self.post(key)
        self.assertEqual((again[0], json.loads(again[2]), effects(key)), (201, {"late": True}, 0))
        self.assertEqual(again[1]["idempotent-replayed"], "true")

    def test_an_answer_from_400_on_is_not_stored(self):
        key = new_key()
        for status in (400, 404, 500, 503):
            response = self.post(key, {"amount": 10, "status": status})
            self.assertEqual((response[0], effects(key)), (status, 0))
            self.assertNotIn("idempotent-replayed", response[1])
        self.assertEqual(self.post(key)[0], 201)

    def test_an_exception_goes_to_the_framework(self):
        key = new_key()
        try:
            status = self.post(key, {"amount": 10, "divide": 0})[0]
        except ZeroDivisionError:
            status = 500
        self.assertEqual((status, effects(key)), (500, 0))
        self.assertEqual(self.post(key)[0], 201)

    def test_other_methods_are_left_alone(self):
        response = self.post(None, method="GET")
        self.assertEqual((response[0], response[2]), (200, b"no transaction"))

    def test_a_request_that_is_too_long(self):
        self.assert_problem(self.post(new_key(), b"1" * 10_001), 413, "about:blank")

    def test_a_request_that_the_server_refuses(self):
        self.assert_problem(self.post(new_key(), b'{"note": "\\u0000"}'), 400, "about:blank")

    def test_an_answer_that_was_erased(self):
        for status in (201, 204):
            key = new_key()
            self.post(key, {"amount": 10, "status": status})
            with connect() as connection:
                connection.execute("SELECT idem.erase('payments', %s::text)", (key,))
            response = self.post(key, {"amount": 10, "status": status})
            self.assertEqual((response[0], response[2]), (status, b""))
            self.assertEqual(response[1]["idempotent-replayed"], "true")

    def test_an_answer_of_a_caller_without_http(self):
        key = new_key()
        with connect() as connection, connection.transaction():
            token, = connection.execute("SELECT token FROM idem.claim('payments', %s, %s::jsonb)",
                                        (key, BOUND)).fetchone()
            connection.execute("SELECT idem.complete(%s, '{\"id\": 1}')", (token,))
        response = self.post(key)
        self.assertEqual((response[0], json.loads(response[2])), (200, {"id": 1}))
        self.assertEqual(response[1]["content-type"], "application/json")

    def test_a_stored_header_that_is_two_is_not_sent(self):
        for headers in ({"X-A": "1\r\nSet-Cookie: sid=evil"}, {"X\r\nSet-Cookie": "1"},
                        {"X-A ": "1"}, {"X-A": ["1", "\n"]}, {"X-A": 7}, [["X-A", "1"]], "X-A"):
            key = new_key()
            self.post(key)
            with connect() as connection:
                connection.execute("UPDATE idem.record AS r SET headers = %s"
                                   " WHERE %s IN (key, to_jsonb(r) ->> 'key_uuid')",
                                   (psycopg.types.json.Jsonb(headers), key))
            with self.subTest(headers):
                try:
                    self.assertEqual(self.post(key)[0], 500)
                except ValueError as error:
                    self.assertIn("headers that cannot be sent", str(error))

    def test_a_stored_header_that_is_sent_twice(self):
        key = new_key()
        with connect() as connection, connection.transaction():
            token, = connection.execute("SELECT token FROM idem.claim('payments', %s, %s::jsonb)",
                                        (key, BOUND)).fetchone()
            connection.execute("SELECT idem.complete(%s, '1', headers => %s::jsonb)",
                               (token, '{"Vary": ["Accept", "Origin"], "content-length": "99"}'))
        headers = self.post(key)[1]
        self.assertIn("Origin", headers["vary"])
        self.assertEqual(headers["content-length"], "1")

    def test_a_stored_failure(self):
        key = new_key()
        with connect() as connection, connection.transaction():
            token, = connection.execute("SELECT token FROM idem.claim('payments', %s, %s::jsonb)",
                                        (key, BOUND)).fetchone()
            connection.execute("SELECT idem.fail(%s, '{\"message\": \"declined\"}')", (token,))
        response = self.post(key)
        self.assertEqual(self.assert_problem(response, 409, "key_failed")["detail"], "declined")
        self.assertEqual(response[1]["idempotent-replayed"], "true")


class Routes:
    """What an endpoint at a route does. A subclass makes one with once(), which returns an object
    with send(): `act` is called after the payment, and returns status, headers and body."""

    def once(self, act=lambda: (201, {}, b"paid"), *, options=(), tenant=None, scope="payments",
             guest=None):
        raise NotImplementedError

    def sent(self, app, key, body=b"{}", content_type="application/json", **headers):
        return app.send([("Idempotency-Key", key), ("Content-Type", content_type),
                         *headers.items()], body, "/payments", "POST")

    def status_or_error(self, app, *arguments, **headers):
        try:
            return self.sent(app, *arguments, **headers)[0]
        except Exception:
            return 500

    def test_a_stranger_gets_nothing(self):
        app, key = self.once(lambda: (201, {}, b"secret"), guest=401), new_key()
        self.assertEqual(self.sent(app, key, Authorization="ann")[2], b"secret")
        for body in (b"{}", b"[]"):
            response = self.sent(app, key, body)
            self.assertEqual((response[0], b"secret" in response[2]), (401, False))
        self.assertEqual(self.sent(app, new_key())[0], 401)

    def test_tenants(self):
        app, key = self.once(tenant=lambda name: name), new_key()
        for name in ("ann", "bob", "ann"):
            self.assertEqual(self.sent(app, key, Authorization=name)[0], 201)
        self.assertEqual(effects(key), 2)

    def test_a_tenant_that_is_missing_or_no_text_is_an_error(self):
        async def coroutine():
            pass
        for value in (None, "", 7, True, b"ann", ["ann"], {"id": "ann"}, object(), "a\0"):
            key = new_key()
            with self.subTest(value):
                app = self.once(tenant=lambda name: value)
                self.assertEqual(self.status_or_error(app, key, Authorization="ann"), 500)
                self.assertEqual(effects(key), 0)
        with self.assertRaises(TypeError):
            self.once(tenant="ann")

    def test_the_scope_of_a_request(self):
        app, key = self.once(scope=lambda *_: "others"), new_key()
        query("SELECT idem.create_scope('others', if_not_exists => true)::text")
        self.assertEqual([self.sent(app, key)[0] for _ in range(2)], [201, 201])
        self.assertEqual(query("SELECT state FROM idem.lookup('others', %s::text)", key),
                         "completed")
        self.assertEqual(self.status_or_error(self.once(scope="unknown"), new_key()), 500)

    def test_an_answer_that_is_not_to_be_stored(self):
        calls.clear()

        def act():
            calls.append(1)
            return 200, {}, b"errors" if len(calls) < 3 else b"data"
        app = self.once(act, options={"store_if": self.no_errors})
        key = new_key()
        bodies = [self.sent(app, key)[2] for _ in range(4)]
        self.assertEqual((bodies, effects(key)), ([b"errors", b"errors", b"data", b"data"], 1))

    def test_a_response_that_is_not_to_be_stored(self):
        def act():
            raise pg_idem.NotStored(self.refused_response())
        key, app = new_key(), self.once(act, options={"final_statuses": [422]})
        for _ in range(2):
            status, headers, body = self.sent(app, key)
            self.assertEqual((status, body, headers["x-reason"]), (422, b"[1]", "51"))
        self.assertEqual((query("SELECT state FROM idem.lookup('payments', %s::text)", key),
                          effects(key)), ("absent", 0))

    def test_store_if_says_true_or_false(self):
        async def coroutine(response):
            return True
        for store_if in (coroutine, lambda response: None, lambda response: 1):
            key, app = new_key(), self.once(options={"store_if": store_if})
            with self.subTest(store_if), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the coroutine is never awaited
                self.assertEqual(self.status_or_error(app, key), 500)
                self.assertEqual(effects(key), 0)

    def test_the_client_knows_nothing_of_an_operation_inside(self):
        inner, key, refused = new_key(), new_key(), new_key()
        use_up_attempts(refused, "1")
        operations = Idempotency(connect, wait=0.0)

        def decline(connection):
            raise pg_idem.Failure("declined", status=402)

        def refuse(key):
            operations.run("payments", key, 2, lambda connection: 1,
                           retry=pg_idem.Retry(attempts=1))

        def act():
            operations.run("payments", inner, 1, decline, expires=True)
        with self.assertRaises(pg_idem.Failure):
            act()
        for sent, replayed in ((key, None), (key, "true")):
            status, headers, _ = self.sent(self.once(act), sent)
            self.assertEqual((status, headers.get("idempotent-replayed")), (402, replayed))
        key = new_key()
        with held(refused + "2", "2"):
            for other in (inner, refused, refused + "2"):  # a conflict, undecided, in progress
                self.assertEqual(self.status_or_error(self.once(lambda: refuse(other)), key), 500)
        self.assertEqual((effects(key), query(
            "SELECT state FROM idem.lookup('payments', %s::text)", key)), (0, "absent"))

    def test_an_answer_that_cannot_be_sent_is_not_committed(self):
        for headers in ({"X-A": "\u0100"}, {"X-A": "a\nb"}, {"X A": "1"}):
            if isinstance(self, Django) and headers.get("X-A") == "\u0100":
                continue  # Django encodes it
            key = new_key()
            app = self.once(lambda: (201, headers, b""))
            with self.subTest(headers):
                self.assertEqual(self.status_or_error(app, key), 500)
                self.assertEqual(effects(key), 0)

    def test_a_fault_of_the_service_is_not_that_of_the_client(self):
        key = new_key()    # 22023, unknown scope
        for app in (self.once(options={"ttl": 0}), self.once(scope="unknown")):
            self.assertEqual(self.status_or_error(app, key), 500)
        self.assertEqual(effects(key), 0)

    def test_a_problem_in_the_format_of_the_application(self):
        page = "https://shop.example/docs/retries"
        app = self.once(options={"problem": self.own_format, "documentation": page})
        response = app.send([], b"{}", "/payments", "POST")
        self.assertEqual((response[0], response[2]), (418, b"invalid_key"))
        self.assertEqual(response[1]["link"], f'<{page}>; rel="describedby"')
        key = new_key()
        with held(key, BOUND.replace('{"amount": 10}', "{}")):
            response = self.sent(app, key)
        self.assertRegex(response[1]["retry-after"], "^[0-9]+$")

    def test_problems_link_to_the_documentation(self):
        page = "https://shop.example/docs/retries"
        options = {"documentation": page, "final_statuses": [402], "max_body": 10}

        def act():
            raise pg_idem.Failure("declined", status=402)
        app, key = self.once(act, options=options), new_key()
        for response in (app.send([], b"{}", "/payments", "POST"), self.sent(app, key),
                         self.sent(app, key), self.sent(app, key, b"1" * 11)):
            self.assertEqual(response[1]["content-type"], "application/problem+json")
            self.assertEqual(response[1]["link"], f'<{page}>; rel="describedby"')
        with self.assertRaises(ValueError):
            self.once(options={"documentation": "https://shop.example/\n"})

    def test_the_type_is_bound(self):
        app, key = self.once(), new_key()
        for content_type, status in (("application/json", 201), ("text/plain", 422),
                                     ("application/json; charset=utf-8", 201),
                                     ("application/vnd.api+json", 422)):
            with self.subTest(content_type):
                self.assertEqual(self.sent(app, key, b"[1]", content_type)[0], status)
        key = new_key()
        for body, status in ((b"1", 201), (b"1.0", 422), (b"1", 201)):
            self.assertEqual(self.sent(app, key, body, "text/plain")[0], status)

    def test_numbers_members_and_null(self):
        app = self.once()
        for first, again, status in (
                (b'{"a": 9007199254740993}', b'{"a": 9007199254740992}', 422),
                (b'{"a": 1, "a": 2}', b'{"a": 2}', 201), (b'{"a": 1, "a": 2}', b'{"a": 1}', 422),
                (b'{"a": null}', b"{}", 422), (b'{"a": 1, "b": 2}', b'{"b":2.0,"a":1}', 201)):
            key = new_key()
            with self.subTest(first):
                self.assertEqual([self.sent(app, key, body)[0] for body in (first, again)],
                                 [201, status])

    def test_compression_of_the_request_is_not_bound(self):
        app, key = self.once(), new_key()
        for body, mtime, status in ((b'{"a": 1}', 1, 201), (b'{"a": 1}', 2, 201),
                                    (b'{"a": 2}', 2, 422)):
            self.assertEqual(self.sent(app, key, gzip.compress(body, mtime=mtime),
                                       **{"Content-Encoding": "gzip"})[0], status)

    def test_a_form_is_bound_by_its_fields(self):
        urlencoded = "application/x-www-form-urlencoded"
        for first, again, status in (
                (b"a=1+2", b"a=1%202", 201), (b"a=1+2", b"a=1%2B2", 422),
                (b"a=1&b=2", b"b=2&a=1", 201), (b"a=1&a=2", b"a=2&a=1", 422),
                (b"a=", b"a", 201), (b"a=", b"", 422), (b"a=%C3%A4", b"a=\xc3\xa4", 201),
                (b"a=%FF", b"a=%FE", 422), (b"a=1;b=2", b"a=1&b=2", 422)):
            app, key = self.once(), new_key()
            with self.subTest(first + b" " + again):
                self.assertEqual([self.sent(app, key, body, urlencoded)[0]
                                  for body in (first, again)], [201, status])
        for content_type, status in ((f"{urlencoded}; charset=UTF-8", 201), ("text/plain", 422),
                                     (f"{urlencoded}; charset=latin-1", 422)):
            self.assertEqual(self.sent(app, key, b"a=1;b=2", content_type)[0], status)

    def upload(self, boundary, note, content, name="a.txt"):
        lines = [f"--{boundary}", 'Content-Disposition: form-data; name="note"', "", note,
                 f"--{boundary}", f'Content-Disposition: form-data; name="file"; filename="{name}"',
                 "Content-Type: text/plain", "", content, f"--{boundary}--", ""]
        return "\r\n".join(lines).encode(), f"multipart/form-data; boundary={boundary}"

    def test_uploads(self):
        for size in (10, 3 << 20):
            app, key = self.once(lambda *form: (201, {}, json.dumps(form).encode())), new_key()
            first = self.sent(app, key, *self.upload("one", "n", "x" * size))
            self.assertEqual((first[0], json.loads(first[2])), (201, ["n", size]))
            again = self.sent(app, key, *self.upload("two", "n", "x" * size))
            self.assertEqual((again[2], again[1]["idempotent-replayed"]), (first[2], "true"))
            for other in (("one", "m", "x" * size), ("one", "n", "y" * size),
                          ("one", "n", "x" * size, "b.txt")):
                self.assertEqual(self.sent(app, key, *self.upload(*other))[0], 422)
            self.assertEqual(effects(key), 1)

    def test_an_upload_that_cannot_be_parsed_is_bound_by_its_bytes(self):
        app, key = self.once(), new_key()
        content_type = self.upload("one", "n", "x")[1]
        with mock.patch(__name__ + ".form_of", return_value=[]):
            statuses = [self.sent(app, key, body, content_type)[0]
                        for body in (b"amount=1", b"amount=1", b"amount=2", b"")]
        self.assertEqual((statuses, effects(key)), ([201, 201, 422, 422], 1))

    def test_what_runs_afterwards_runs_once_after_commit(self):
        key, seen = new_key(), []

        def later():
            seen.append(effects(key))
        for _ in range(2):
            self.assertEqual(self.sent(self.once(
                lambda: (201, {}, b"paid"), options={"later": later}), key)[0], 201)
        self.assertEqual(seen, [1])

    def test_nothing_of_an_attempt_that_was_rolled_back_survives(self):
        with connect() as connection:
            connection.execute(LOST_COMMIT)
        key, attempts, seen = new_key(), [], []

        def act():
            attempts.append(1)
            return 201, {"X-Attempt": str(len(attempts))}, b"%d" % len(attempts)
        app = self.once(act, options={"amount": 40001, "later": lambda: seen.append(effects(key))})
        first, again = self.sent(app, key), self.sent(app, key)
        self.assertEqual((first[1]["x-attempt"], first[2], again[2], effects(key), seen),
                         ("2", b"2", b"2", 1, [1]))

    def test_a_failure_after_an_attempt_that_was_rolled_back(self):
        with connect() as connection:
            connection.execute(LOST_COMMIT)
        key, attempts = new_key(), []

        def act():
            attempts.append(1)
            if len(attempts) > 1:
                raise pg_idem.Failure("declined", status=402)
            return 201, {}, b"paid"
        app = self.once(act, options={"amount": 40001})
        statuses = [self.sent(app, key)[0], self.sent(app, key)[0]]
        self.assertEqual((statuses, len(attempts), effects(key)), ([402, 402], 2, 0))

    def spending(self, user, losses):
        """An endpoint that changes the user and the session, and loses so many races. Returns also
        what its attempts have found, and the session."""
        found, session = [], {}

        def spend(user, session):
            found.append((user.credits[-1], session.get("spent", 0)))
            user.credits.append(user.credits[-1] - 10)
            session["spent"] = session.get("spent", 0) + 10
            if len(found) <= losses:
                raise psycopg.errors.SerializationFailure("lost")
        options = {"user": user, "session": session, "spend": spend}
        return self.once(options=options), found, session

    def test_each_attempt_begins_with_the_request_as_it_was(self):
        app, found, session = self.spending(types.SimpleNamespace(credits=[100]), 2)
        key = new_key()
        self.assertEqual((self.sent(app, key)[0], found, effects(key)), (201, [(100, 0)] * 3, 1))
        if isinstance(self, Asgi):  # the middleware of the session keeps the object
            self.assertEqual(session, {"spent": 10})

    def test_what_cannot_be_copied_is_not_changed_twice(self):
        class Owner(types.SimpleNamespace):
            def __del__(self):
                pass
        for of in (lambda: threading.Lock(), Owner, lambda: list(range(20_000))):
            user, key = types.SimpleNamespace(credits=[100], of=of()), new_key()
            app, found, _ = self.spending(user, 1)
            with self.subTest(type(user.of)), self.assertLogs("pg_idem", "ERROR"):
                response = self.sent(app, key)
            self.assertEqual((response[0], response[1]["retry-after"], found, effects(key)),
                             (503, "1", [(100, 0)], 0))
            self.assertEqual((self.sent(app, key)[0], len(found), effects(key)), (201, 2, 1))

    def test_a_failure(self):
        def act():
            raise pg_idem.Failure("insufficient funds", status=402, headers={
                "X-Reason": "51", "Set-Cookie": "session=2", "x-trace": "7"})
        app, key = self.once(act), new_key()
        first, again = self.sent(app, key), self.sent(app, key)
        self.assertEqual((first[0], again[0], again[2], effects(key)), (402, 402, first[2], 0))
        self.assertEqual(json.loads(first[2])["detail"], "insufficient funds")
        self.assertEqual(first[1]["x-reason"], "51")
        self.assertNotIn("set-cookie", first[1])

    def test_an_error_that_the_application_answers(self):
        calls.clear()

        def act():
            calls.append(1)
            raise self.refusal(404 if len(calls) < 3 else 402)
        app, key = self.once(act, options={"final_statuses": [402]}), new_key()
        responses = [self.sent(app, key) for _ in range(4)]
        self.assertEqual([response[0] for response in responses], [404, 404, 402, 402])
        self.assertEqual((len(calls), responses[3][2]), (3, responses[2][2]))
        self.assertEqual((responses[3][1]["idempotent-replayed"], effects(key)), ("true", 0))

    def test_the_key_is_a_member_of_the_body(self):
        key = new_key()
        app = self.once(options={"key_from": "meta.key", "key_required": False})
        for _ in range(2):
            app.send([("Content-Type", "application/json")],
                     json.dumps({"meta": {"key": key}}).encode(), "/payments", "POST")
        app.send([("Content-Type", "application/json"), ("Content-Encoding", "gzip")],
                 gzip.compress(json.dumps({"meta": {"key": key}}).encode()), "/payments", "POST")
        self.assertEqual(effects(key), 1)
        app = self.once(options={"key_from": lambda request, body: body.decode()})
        for _ in range(2):
            app.send([], key.encode() + b"2", "/payments", "POST")
        self.assertEqual(effects(key + "2"), 1)

    def test_only_these_headers_are_stored(self):
        app, key = self.once(lambda: (201, {"X-A": "1", "X-B": "2", "Date": "today"}, b""),
                             options={"include_headers": ["x-a", "date"]}), new_key()
        first, again = self.sent(app, key)[1], self.sent(app, key)[1]
        self.assertEqual(first["x-b"], "2")
        self.assertEqual(again["x-a"], "1")
        self.assertTrue({"x-b", "idempotency-expires"}.isdisjoint(again))
        self.assertNotEqual(again.get("date"), "today")

    def test_without_a_key_nothing_is_run_again(self):
        def act():
            calls.append(1)
            raise psycopg.errors.SerializationFailure("lost")
        calls.clear()
        options = {"key_required": False, "amount": 0}
        self.assertEqual(self.once(options=options).send([], b"", "/payments", "POST")[0], 201)
        app = self.once(act, options=options)
        try:
            self.assertEqual(app.send([], b"", "/payments", "POST")[0], 500)
        except psycopg.errors.SerializationFailure:
            pass
        self.assertEqual(len(calls), 1)

    def test_events(self):
        events = []
        app, key = self.once(options={"on_event": events.append}, tenant=str), new_key()
        for body in (b"1", b"1", b"2"):
            self.sent(app, key, body, Authorization="shop")
        app.send([("Authorization", "shop")], b"", "/payments", "POST")
        self.assertEqual([event[:4] for event in events], [
            (kind, "payments", key, "shop") for kind in (
                "claimed", "completed", "replayed", "conflict")] + [
            ("refused", "payments", None, "shop")])

    def test_the_database_is_away(self):
        def nowhere():
            return psycopg.connect(host="127.0.0.1", port=1)
        with self.assertLogs("pg_idem", "ERROR"):
            response = self.sent(self.once(options={"connect": nowhere}), new_key())
        self.assertEqual((response[0], response[1]["retry-after"]), (503, "1"))


class Wsgi(Contract, Routes):
    def send(self, headers, body, path, method):
        query_string = path.partition("?")[2]
        client = werkzeug.test.Client(self.app)
        response = client.open(path.partition("?")[0], query_string=query_string, method=method,
                               headers=headers, data=body)
        return response.status_code, {k.lower(): v for k, v in response.headers}, response.data


class Endless(io.RawIOBase):
    """A body that does not end, but at 10 MB."""

    given = 0

    def read(self, size=-1):
        size = min(10_000_000 - self.given, 10_000_000 if size < 0 else size)
        self.given += size
        return b"1" * size


def app_of(test, app):
    """An object with send(), for this application."""
    made = type(test)()
    made.app = app
    return made


def handle(connection, request):
    """What the handler of Flask does: status, content."""
    payment = connection.execute(INSERT, (request["amount"],)).fetchone()[0]
    if "divide" in request:
        1 / request["divide"]
    status = request.get("status", 201)
    return status, "" if status == 204 else json.dumps({"payment": payment, "at": time.time()})


def split(options):
    """Options of Idempotency, of the test's endpoint, and of the route."""
    options = dict(options)
    own = {name: options.pop(name) for name in ("connect", "on_event", "ttl") if name in options}
    test = {name: options.pop(name) for name in (
        "later", "amount", "outer", "user", "session", "spend") if name in options}
    return own, test, options


@unittest.skipUnless(flask, "Flask is not installed")
class Flask(Wsgi, PaymentTest):
    no_errors = staticmethod(lambda response: b"errors" not in response.data)
    own_format = staticmethod(lambda document: (document["type"].split(":")[-1], 418))

    @staticmethod
    def refused_response():
        return "[1]", 422, {"X-Reason": "51"}

    def refusal(self, status):
        return type("Refusal", (werkzeug.exceptions.HTTPException,), {"code": status})("no")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        app = flask.Flask(__name__)
        app.config["PROPAGATE_EXCEPTIONS"] = True

        @app.route("/payments", methods=["GET", "POST"])
        @pg_idem.flask.idempotent(Idempotency(connect, wait=0), "payments", tenant=None, **OPTIONS)
        def payments():
            if flask.request.method == "GET":
                return "no transaction"
            status, content = handle(flask.g.idem_connection, flask.request.json)
            return flask.Response(content, status, HEADERS, content_type="application/json")
        cls.app = app

    def once(self, act=lambda: (201, {}, b"paid"), *, options=(), tenant=None, scope="payments",
             guest=None):
        own, test, options = split(options)
        app = flask.Flask(__name__)
        app.secret_key = "test"
        if callable(tenant):
            of, tenant = tenant, lambda request: of(request.headers.get("Authorization"))

        def authenticated(view):
            @functools.wraps(view)
            def checked():
                if guest and "Authorization" not in flask.request.headers:
                    flask.abort(guest)
                flask.g.user = test.get("user")
                return view()
            return checked

        @app.post("/payments")
        @authenticated
        @test.get("outer", lambda view: view)
        @pg_idem.flask.idempotent(Idempotency(own.pop("connect", connect), wait=0, **own), scope,
                                  tenant=tenant, **options)
        def pay():
            if "spend" in test:
                test["spend"](flask.g.user, flask.session)
            if test.get("amount", 1):
                flask.g.idem_connection.execute(INSERT, (test.get("amount", 1),))
            if "later" in test:
                @flask.after_this_request
                def later(response):
                    test["later"]()
                    return response
            form = [flask.request.form["note"], len(flask.request.files["file"].read())] if (
                flask.request.files) else []
            status, headers, body = act(*form)
            return flask.Response(body, status, headers)

        @app.after_request
        def cors(response):
            response.headers["X-Outer"] = "1"
            return response
        return app_of(self, app)

    def test_outer_layers_treat_all_answers_alike(self):
        app, key = self.once(), new_key()
        for body in (b"1", b"1", b"2"):
            self.assertEqual(self.sent(app, key, body)[1]["x-outer"], "1")

    def test_each_attempt_reads_the_request_as_it_was_sent(self):
        seen = []

        def act():
            flask.request.json["amount"] *= 2
            seen.append([flask.request.json["amount"], flask.request.stream.read(),
                         flask.request.data])
            if len(seen) == 1:
                raise psycopg.errors.SerializationFailure("lost")
            return 201, {}, b"paid"
        app, body = self.once(act), b'{"amount": 10}'
        self.assertEqual(self.sent(app, new_key(), body)[0], 201)
        self.assertEqual(seen, [[20, body, body]] * 2)

        def upload():
            return 201, {}, str(len(flask.request.stream.read())).encode()
        body, content_type = self.upload("one", "n", "x")
        response = self.sent(self.once(lambda *form: upload()), new_key(), body, content_type)
        self.assertEqual(int(response[2]), len(body))

    def test_an_upload_that_was_read_before_is_bound(self):
        def reader(view):
            @functools.wraps(view)
            def once():
                for upload in flask.request.files.values():
                    upload.read()
                return view()
            return once
        app, key = self.once(lambda note, size: (201, {}, str(size).encode()),
                             options={"outer": reader}), new_key()
        for content, status in (("x", 201), ("x", 201), ("y", 422)):
            response = self.sent(app, key, *self.upload("one", "n", content))
            self.assertEqual(response[0], status)
        self.assertEqual(effects(key), 1)

    def test_a_chunked_body_is_read_up_to_its_limit(self):
        def send(key, stream, app=self.app):
            environ = werkzeug.test.EnvironBuilder(
                "/payments", method="POST", content_type="application/json",
                headers={"Idempotency-Key": key, "Transfer-Encoding": "Chunked"}).get_environ()
            environ.pop("CONTENT_LENGTH", None)
            environ.update({"wsgi.input": stream, "wsgi.input_terminated": True})
            body, status, _ = werkzeug.test.run_wsgi_app(app, environ)
            return int(status.split()[0])

        def reader(view):
            return functools.wraps(view)(lambda: flask.request.stream.read() and view())
        key, endless = new_key(), Endless()
        self.assertEqual([send(key, io.BytesIO(b'{"amount": %d}' % amount))
                          for amount in (10, 10, 11)], [201, 201, 422])
        self.assertEqual((send(new_key(), endless), endless.given), (413, 10_001))
        app = self.once(options={"outer": reader}).app
        app.testing = True
        with self.assertRaisesRegex(RuntimeError, "was read before"):
            send(new_key(), io.BytesIO(b"1"), app)

    def test_the_application_handles_errors_as_from_flask_3_2_on(self):
        def handle(self, ctx, error):
            return f"{error!r}: {ctx.request.path}", 402
        app, key = self.once(lambda: 1 / 0, options={"final_statuses": [402]}), new_key()
        newer = vars(flask.ctx).get("RequestContext", flask.ctx.AppContext)
        with mock.patch.object(flask.Flask, "handle_user_exception", handle), mock.patch.object(
                flask.ctx, "AppContext", newer):
            for _ in range(2):
                self.assertRegex(self.sent(app, key)[2], rb"ZeroDivisionError.*: /payments")
        self.assertEqual(effects(key), 0)

    test_what_runs_afterwards_runs_once_after_commit = None  # a hook of the first answer


@unittest.skipUnless(django, "Django, psycopg2 or Werkzeug is not installed")
class Django(Wsgi, PaymentTest):
    no_errors = staticmethod(lambda response: b"errors" not in response.content)
    connection_options = {}

    @staticmethod
    def own_format(document):
        from django.http import HttpResponse
        return HttpResponse(document["type"].split(":")[-1], status=418)

    @staticmethod
    def refused_response():
        from django.http import HttpResponse
        return HttpResponse("[1]", status=422, headers={"X-Reason": "51"})

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.payment, cls.urls = django_payment()
        from django.core.wsgi import get_wsgi_application
        from django.db import IntegrityError
        from django.http import HttpResponse, StreamingHttpResponse
        from django.urls import path
        from pg_idem.django import Idempotency, idempotent
        payment = cls.payment

        class Stream(StreamingHttpResponse):  # since Django 4.2, it may be asynchronous
            content = StreamingHttpResponse.streaming_content
            streaming_content = property(lambda self: object(), content.fset)

            def __iter__(self):
                return iter(self.content)

        @idempotent(Idempotency(wait=0), "payments", tenant=None, **OPTIONS)
        def payments(request):
            if request.method == "GET":
                return HttpResponse("no transaction")
            content = json.loads(request.body)
            made = payment.objects.create(amount=content["amount"])
            if "divide" in content:
                1 / content["divide"]
            if "again" in content:
                try:
                    payment.objects.create(pk=made.pk, amount=content["amount"])
                except IntegrityError:
                    pass
            if "stream" in content:
                return Stream(bytes([each]) for each in content["stream"])
            status = content.get("status", 201)
            body = "" if status == 204 else json.dumps({"payment": made.pk, "at": time.time()})
            response = HttpResponse(body, "application/json", status)
            for name in ("Location", "X-Trace"):
                response[name] = HEADERS[name]
            response.set_cookie("session", "1")
            return response
        cls.own = [path("payments", payments)]
        cls.urls.urlpatterns = cls.own
        cls.app = staticmethod(get_wsgi_application())

    def send(self, headers, body, path, method):
        from django.urls import clear_url_caches
        self.urls.urlpatterns = self.own
        clear_url_caches()
        return super().send(headers, body, path, method)

    def view_of(self, idempotent, pay, guest):
        """The view of a function of a request, its decorator and the status for guests."""
        from django.http import HttpResponse
        view = idempotent(pay)

        def checked(request):
            if guest and "HTTP_AUTHORIZATION" not in request.META:
                return HttpResponse(status=guest)
            return view(request)
        return functools.wraps(view)(checked)

    def once(self, act=lambda: (201, {}, b"paid"), *, options=(), tenant=None, scope="payments",
             guest=None):
        from django.db import connections, transaction
        from django.http import HttpResponse
        from django.urls import path
        from pg_idem.django import Idempotency, idempotent
        own, test, options = split(options)
        if callable(tenant):
            of, tenant = tenant, lambda request: of(request.META.get("HTTP_AUTHORIZATION"))
        payments = Idempotency("nowhere" if own.pop("connect", None) else "default", wait=0, **own)
        connections.databases.setdefault("nowhere", {  # the one that its open connection has
            **connections["default"].settings_dict, "HOST": "127.0.0.1", "PORT": 1,
            "ATOMIC_REQUESTS": False})

        def pay(request):
            if "spend" in test:
                test["spend"](request.owner, request.session)
            if test.get("amount", 1):
                self.payment.objects.create(amount=test.get("amount", 1))
            if "later" in test:
                transaction.on_commit(test["later"])
            form = [request.POST["note"], len(request.FILES["file"].read())] if (
                request.FILES) else []
            status, headers, body = act(*form)
            return HttpResponse(body, status=status, headers=headers)
        view = self.view_of(idempotent(payments, scope, tenant=tenant, **options), pay, guest)

        def outer(request):
            from django.contrib.sessions.backends.signed_cookies import SessionStore
            from django.utils.functional import SimpleLazyObject
            if "user" in test:
                request.session = SessionStore()
                request.owner = SimpleLazyObject(lambda: test["user"])
                request.owner.credits  # evaluated, as the user by what authenticates
            return view(request)
        made = app_of(self, self.app)
        made.own = [path("payments", functools.wraps(view)(outer))]
        return made

    def test_each_attempt_reads_the_request_as_it_was_sent(self):
        from django.http import HttpResponse
        from django.urls import path
        from pg_idem.django import Idempotency, idempotent
        for read in (json.load, lambda request: json.loads(request.read()),
                     lambda request: json.loads(b"".join(request.readlines()))):
            seen = []

            def pay(request):
                seen.append(read(request)["amount"])
                self.payment.objects.create(amount=seen[-1])
                if len(seen) == 1:
                    raise psycopg.errors.SerializationFailure("lost")
                return HttpResponse("paid", status=201)
            app, key = app_of(self, self.app), new_key()
            app.own = [path("payments", self.view_of(
                idempotent(Idempotency(), "payments", tenant=None), pay, None))]
            self.assertEqual((self.sent(app, key, b'{"amount": 10}')[0], seen, effects(key)),
                             (201, [10, 10], 1))

    test_an_error_that_the_application_answers = None  # views of Django have no such handlers

    def test_an_answer_without_its_effect_is_never_sent(self):
        key = new_key()
        for _ in range(2):
            with self.assertRaises(RuntimeError):
                self.post(key, {"amount": 1, "again": 1})
        self.assertEqual(query("SELECT state FROM idem.lookup('payments', %s::text)", key),
                         "absent")

    def test_a_stream_is_sent_after_commit(self):
        key = new_key()
        for _ in range(2):
            self.assertEqual(self.post(key, {"amount": 1, "stream": [97, 98]})[2], b"ab")
        self.assertEqual(effects(key), 1)

    def test_atomic_requests(self):
        from django.db import connection
        connection.settings_dict["ATOMIC_REQUESTS"] = True
        self.addCleanup(connection.settings_dict.update, ATOMIC_REQUESTS=False)
        app, key = self.once(), new_key()
        self.assertEqual([self.sent(app, key)[0] for _ in range(2)], [201, 201])
        self.assertEqual(effects(key), 1)
        app, key = self.once(lambda: (422, {}, b"invalid")), new_key()
        self.assertEqual([self.sent(app, key)[::2] for _ in range(2)], [(422, b"invalid")] * 2)
        self.assertEqual(effects(key), 0)

    def test_a_safe_method_keeps_the_transaction_of_atomic_requests(self):
        from django.db import connection
        from django.http import HttpResponse
        from django.urls import path
        from pg_idem.django import Idempotency, idempotent
        key = new_key()

        def pay(request):
            connection.cursor().execute("INSERT INTO payment (key, amount) VALUES (%s, 1)", [key])
            if "fails" in request.GET:
                1 / 0
            return HttpResponse("paid")
        app = app_of(self, self.app)
        app.own = [path("payments", self.view_of(
            idempotent(Idempotency(), "payments", tenant=None), pay, None))]

        def effects_of(url):
            with contextlib.suppress(ZeroDivisionError):
                app.send([], b"", url, "GET")
            return effects(key)
        self.assertEqual(effects_of("/payments?fails"), 1)
        connection.settings_dict["ATOMIC_REQUESTS"] = True
        self.addCleanup(connection.settings_dict.update, ATOMIC_REQUESTS=False)
        self.assertEqual((effects_of("/payments?fails"), effects_of("/payments")), (1, 2))

    def test_the_database_is_away_with_atomic_requests(self):
        from django.db import connections
        app, other = self.once(options={"connect": "nowhere"}), self.once()
        for name in connections:
            connections[name].settings_dict["ATOMIC_REQUESTS"] = True
            self.addCleanup(connections[name].settings_dict.update, ATOMIC_REQUESTS=False)
        with self.assertLogs("pg_idem", "ERROR"):
            response = self.sent(app, new_key())
        self.assertEqual((response[0], response[1]["retry-after"]), (503, "1"))
        key = new_key()
        with self.assertRaises(django.db.OperationalError):  # Django's, of the other database
            self.sent(other, key)
        self.assertEqual(effects(key), 0)

    def test_within_the_transaction_of_a_test(self):
        from django.test import TestCase
        test, statuses = self, []

        class Inner(TestCase):
            def test_it(self):
                app, key = test.once(), new_key()
                statuses.extend(test.sent(app, key)[1].get("idempotent-replayed") for _ in range(2))
        result = unittest.TestResult()
        Inner("test_it").run(result)
        self.assertEqual((result.errors, statuses), ([], [None, "true"]))

    def test_a_chunked_body_is_read_up_to_its_limit(self):
        from django.core.handlers.asgi import ASGIRequest
        from django.http import HttpResponse
        from django.test import AsyncRequestFactory
        from pg_idem.django import Idempotency, idempotent

        @idempotent(Idempotency(), "payments", tenant=None, max_body=10_000)
        def pay(request):
            self.payment.objects.create(amount=json.loads(request.body)["amount"])
            return HttpResponse("paid", status=201)

        def send(key, stream, content_type, reads=False):
            scope = AsyncRequestFactory()._base_scope(method="POST", path="/payments", headers=[
                (b"idempotency-key", key.encode()), (b"content-type", content_type)])
            request = ASGIRequest(scope, stream)
            if reads:  # a middleware
                request.read()
            return pay(request).status_code
        key = new_key()
        self.assertEqual([send(key, io.BytesIO(b'{"amount": %d}' % amount), b"application/json")
                          for amount in (10, 10, 11)], [201, 201, 422])
        for content_type in (b"application/json", b"multipart/form-data; boundary=b"):
            endless = Endless()
            self.assertEqual((send(new_key(), endless, content_type), endless.given),
                             (413, 10_001))
        with self.assertRaisesRegex(RuntimeError, "was read before"):  # of a form
            send(new_key(), io.BytesIO(b"1"), content_type, reads=True)

    def test_an_asynchronous_view(self):
        import asgiref.sync
        from django.http import HttpResponse
        from django.test import AsyncRequestFactory
        from pg_idem.django import Idempotency, idempotent

        @idempotent(Idempotency(), "payments", tenant=None)
        async def pay(request):
            await asgiref.sync.sync_to_async(self.payment.objects.create)(amount=1)
            return HttpResponse("paid", status=201)
        key, factory = new_key(), AsyncRequestFactory()

        async def twice():
            return [await pay(factory.post("/", b"{}", "application/json", **{
                "Idempotency-Key": key})) for _ in range(2)]
        first, again = asyncio.run(twice())
        self.assertEqual((first.status_code, again.content, effects(key)), (201, b"paid", 1))


@unittest.skipUnless(django, "Django, psycopg2 or Werkzeug is not installed")
class DjangoClasses(Django):
    """Class-based views: those that authenticate stand before or after the mixin."""

    def view_of(self, idempotent, pay, guest):
        from django.http import HttpResponse
        from django.views import View
        from pg_idem.django import IdempotentMixin

        class Authenticated(View):
            def dispatch(self, request):
                if guest and "HTTP_AUTHORIZATION" not in request.META:
                    return HttpResponse(status=guest)
                return super().dispatch(request)
        bases = [IdempotentMixin, Authenticated]
        return type("Pay", tuple(bases if guest else bases[::1]), {
            "idempotent": staticmethod(idempotent),
            "get": lambda self, request: pay(request),
            "post": lambda self, request: pay(request)}).as_view()

    def test_the_mixin_precedes_the_view(self):
        from django.views import View
        from pg_idem.django import IdempotentMixin

        class Base(IdempotentMixin):
            pass
        for bases in ((View, IdempotentMixin), (View, Base), (type("Own", (View,), {}), Base)):
            with self.subTest(bases), self.assertRaisesRegex(TypeError, "must precede View"):
                type("Pay", bases, {})
        type("Pay", (Base, View), {})


@unittest.skipUnless(django and rest_framework, "Django REST framework is not installed")
class DjangoRest(Django):
    """It authenticates in initial(), parses in the view, and renders after it."""

    test_an_error_that_the_application_answers = Routes.test_an_error_that_the_application_answers

    @staticmethod
    def refused_response():
        from rest_framework.response import Response
        return Response([1], status=422, headers={"X-Reason": "51"})

    def refusal(self, status):
        from rest_framework.exceptions import APIException
        error = APIException("no")
        error.status_code = status
        return error

    def view_of(self, idempotent, pay, guest):
        from pg_idem.django import IdempotentMixin
        from rest_framework import exceptions, parsers
        from rest_framework.views import APIView

        class Binary(parsers.BaseParser):
            media_type = "*/*"

        def initial(self, request, *args, **kwargs):
            super(view, self).initial(request, *args, **kwargs)
            if guest and "HTTP_AUTHORIZATION" not in request.META:
                raise exceptions.NotAuthenticated
        view = type("Pay", (IdempotentMixin, APIView), {
            "idempotent": staticmethod(idempotent), "authentication_classes": [],
            "permission_classes": [], "initial": initial,
            "parser_classes": [parsers.MultiPartParser, Binary],
            "get": lambda self, request: pay(request._request),
            "post": lambda self, request: pay(request._request)})
        checked = view.as_view()
        return functools.wraps(checked)(lambda request: self.challenged(checked(request)))

    @staticmethod
    def challenged(response):
        if response.status_code == 403:  # without a challenge, 401 becomes 403
            response.status_code = 401
        return response

    def test_an_error_that_the_application_answers_with_atomic_requests(self):
        from django.db import connection
        connection.settings_dict["ATOMIC_REQUESTS"] = True
        self.addCleanup(connection.settings_dict.update, ATOMIC_REQUESTS=False)
        self.test_an_error_that_the_application_answers()

    def test_what_it_renders_is_stored(self):
        from pg_idem.django import Idempotency, IdempotentMixin, idempotent as once
        from rest_framework.response import Response
        from rest_framework.views import APIView
        payment = self.payment

        class Pay(IdempotentMixin, APIView):
            authentication_classes = permission_classes = []
            idempotent = once(Idempotency(), "payments", tenant=None)

            def post(self, request):
                return Response({"paid": payment.objects.create(amount=1).pk, "of": request.data},
                                status=201)
        self.assert_stored(Pay)

    def test_what_a_permission_has_read_is_bound(self):
        from pg_idem.django import Idempotency, IdempotentMixin, idempotent as once
        from rest_framework.response import Response
        from rest_framework.views import APIView
        payment = self.payment

        class Pay(IdempotentMixin, APIView):
            idempotent = once(Idempotency(), "payments", tenant=None, max_body=10_000)
            initial = staticmethod(lambda request: request.data)

            def post(self, request):
                return Response({"paid": payment.objects.create(amount=1).pk, "of": request.data},
                                status=201)
        app, key = self.assert_stored(Pay)
        self.assertEqual(self.sent(app, key, b'{"amount": 2}')[0], 422)
        for length in (20_000, 3_000_000):  # the latter beyond DATA_UPLOAD_MAX_MEMORY_SIZE
            self.assertIn(self.sent(app, key, b'"%s"' % (b"1" * length))[0], (413, 400))

    def test_each_attempt_reads_the_request_as_it_was_sent(self):
        from pg_idem.django import Idempotency, IdempotentMixin, idempotent as once
        from rest_framework.response import Response
        from rest_framework.views import APIView
        payment, attempts = self.payment, []

        class Pay(IdempotentMixin, APIView):
            authentication_classes = permission_classes = []
            idempotent = once(Idempotency(), "payments", tenant=None)

            def post(self, request):
                made = payment.objects.create(amount=1)
                attempts.append(request.data["amount"])
                if len(attempts) == 1:
                    request.data["amount"] *= 2
                    raise psycopg.errors.SerializationFailure("lost")
                return Response({"paid": made.pk, "of": request.data}, status=201)
        self.assert_stored(Pay)
        self.assertEqual(attempts, [1, 1])

    def test_a_replay_is_behind_what_authenticates_within_the_view(self):
        from django.urls import path
        from django.utils.decorators import method_decorator
        from pg_idem.django import Idempotency, idempotent
        from rest_framework.decorators import api_view, permission_classes
        from rest_framework.permissions import BasePermission
        from rest_framework.response import Response
        from rest_framework.views import APIView
        once, payment = idempotent(Idempotency(), "payments", tenant=None), self.payment
        permitted = type("Permitted", (BasePermission,), {
            "has_permission": lambda self, request, view: request.META.get("HTTP_STRANGER") is None})

        def pay(request):
            made = payment.objects.create(amount=1)
            return Response({"paid": made.pk, "of": request.data}, status=201)
        below = api_view(["POST"])(permission_classes([permitted])(once(pay)))
        app, key = self.assert_stored(types.SimpleNamespace(as_view=lambda: below))
        self.assertEqual(self.sent(app, key, b'{"amount": 1}', Stranger="1")[0], 403)
        kind = type("Pay", (APIView,), {"post": lambda self, request: pay(request)})
        for view in (once(api_view(["POST"])(pay)), once(kind.as_view()),
                     method_decorator(once, name="dispatch")(kind).as_view()):
            app.own = [path("payments", view)]
            with self.assertRaisesRegex(TypeError, "before the view authenticates"):
                self.sent(app, key, b'{"amount": 1}')

    def assert_stored(self, view):
        from django.urls import path
        app, key = app_of(self, self.app), new_key()
        app.own = [path("payments", view.as_view())]
        first, again = [self.sent(app, key, b'{"amount": 1}') for _ in range(2)]
        self.assertEqual((first[0], json.loads(first[2])["of"]), (201, {"amount": 1}))
        self.assertEqual((again[2], again[1]["content-type"], effects(key)),
                         (first[2], first[1]["content-type"], 1))
        return app, key


class Asgi(Contract, Routes):
    no_errors = staticmethod(lambda response: b"errors" not in response.body)

    @staticmethod
    def own_format(document):
        return starlette.responses.PlainTextResponse(document["type"].split(":")[-1], 418)

    @staticmethod
    def refused_response():
        return starlette.responses.PlainTextResponse("[1]", 422, {"X-Reason": "51"})

    def refusal(self, status):
        return starlette.exceptions.HTTPException(status, "no")

    def send(self, headers, body, path, method):
        async def send():
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.request(method, path, headers=headers, content=body)
        response = asyncio.run(send())
        return response.status_code, dict(response.headers), response.content

    def guarded(self, app, test):
        class WithUser:  # as the middlewares of authentication and sessions
            def __init__(self, app):
                self.app = app

            async def __call__(self, scope, *channels):
                await self.app({**scope, "user": test["user"], "session": test["session"]},
                               *channels)
        if "user" in test:
            app.add_middleware(WithUser)
        app.add_middleware(starlette.middleware.cors.CORSMiddleware,
                           allow_origins=["https://a", "https://b"])
        app.add_middleware(starlette.middleware.gzip.GZipMiddleware, minimum_size=10)
        return app_of(self, app)

    def within(self, app, **more):
        """The application in a middleware that adds to the scope of each request."""
        async def outer(scope, *channels):
            await app({**scope, **more}, *channels)
        return app_of(self, outer)

    def test_a_body_that_a_middleware_has_read_is_refused(self):
        inner = self.once()

        async def reader(scope, receive, send):
            await receive()

            async def empty():
                return {"type": "http.request", "body": b"", "more_body": False}
            await inner.app(scope, empty, send)

        async def chunks():
            yield b"1"
        for body, headers in ((b"1", {}), (chunks(), {"Transfer-Encoding": "Chunked"})):
            with self.assertRaisesRegex(RuntimeError, "was read before"):
                self.sent(app_of(self, reader), new_key(), body, **headers)

    def test_what_may_outlive_the_request_is_no_copy_in_another_attempt(self):
        attempts = []

        def act():
            attempts.append(1)
            if len(attempts) == 1:
                raise psycopg.errors.SerializationFailure("lost")
            return 201, {}, b"paid"
        for name, value in {"jobs": collections.deque(), "jobs of each": ([],),
                            "user": types.SimpleNamespace()}.items():  # as of a lifespan
            attempts, key = [], new_key()
            app = self.within(self.once(act).app, state={name: value})
            with self.subTest(name), self.assertLogs("pg_idem", "ERROR"):
                self.assertEqual([self.sent(app, key)[0] for _ in range(2)], [503, 201])
            self.assertEqual((len(attempts), effects(key)), (2, 1))
        attempts, key = [], new_key()
        app = self.within(self.once(act).app, state={
            "id": uuid.uuid4(), "at": datetime.datetime.now(), "user": "a", "roles": ("b", 1)})
        self.assertEqual((self.sent(app, key)[0], len(attempts), effects(key)), (201, 2, 1))

    def test_errors_are_answered_as_by_the_framework(self):
        raised = [starlette.exceptions.HTTPException(204), type("Gone", (LookupError,), {
            "status_code": 402})("of another service")]

        def act():
            raise raised.pop(0)
        app, key = self.once(act, options={"final_statuses": [402]}), new_key()
        app.app.add_exception_handler(402, lambda *_: starlette.responses.Response("", 402))
        self.assertEqual(self.sent(app, key)[::2], (204, b""))
        with self.assertRaises(LookupError):
            self.sent(app, key)
        self.assertEqual((query("SELECT state FROM idem.lookup('payments', %s::text)", key),
                          effects(key)), ("absent", 0))

    def test_a_connection_of_a_thread_is_refused(self):
        operations = types.SimpleNamespace(using="default")  # as of pg_idem.django
        with self.assertRaisesRegex(TypeError, "Django has a connection per thread"):
            self.of_package().idempotent(operations, "payments", tenant=None)

    def test_an_upload_without_a_parser_is_bound_by_its_bytes(self):
        app, key = self.once(), new_key()
        with mock.patch("starlette.requests.parse_options_header", None), \
                mock.patch(__name__ + ".form_of", return_value=[]):
            statuses = [self.sent(app, key, *self.upload("one", note, "x"))[0] for note in "nnm"]
        self.assertEqual((statuses, effects(key)), ([201, 201, 422], 1))

    def test_the_whole_path_is_bound(self):
        app, key = self.once(), new_key()
        outer = app_of(self, starlette.applications.Starlette(routes=[
            starlette.routing.Mount("/shops/{shop}", app.app),
            starlette.routing.Mount("/", app.app)]))
        for path, status in (("/shops/1/payments", 201), ("/shops/2/payments", 422),
                             ("/shops/1%3F/payments", 422), ("/payments", 422),
                             ("/shops/1/payments", 201)):
            with self.subTest(path):
                self.assertEqual(outer.send([("Idempotency-Key", key)], b"", path, "POST")[0],
                                 status)
        key = new_key()
        self.assertEqual([outer.send([("Idempotency-Key", key)], b"", f"/shops/{shop}/payments",
                                     "POST")[0] for shop in ("a%3Fb", "a%3Fc")], [201, 422])

    def test_outer_layers_treat_all_answers_alike(self):
        app, key = self.once(lambda: (201, {}, b"paid" * 100)), new_key()
        for body, origin, coding in ((b"1", "https://a", "gzip"), (b"1", "https://b", "identity"),
                                     (b"2", "https://a", "identity")):
            response = self.sent(app, key, body, **{"Origin": origin, "Accept-Encoding": coding})
            self.assertEqual(response[1]["access-control-allow-origin"], origin)
            self.assertEqual(response[1].get("content-encoding", "identity"), coding)

    def test_a_request_that_is_cancelled_is_rolled_back(self):
        async def sleep():
            await asyncio.sleep(30)
        app, key = self.once(sleep), new_key()

        async def cancelled():
            transport = httpx.ASGITransport(app.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                task = asyncio.create_task(client.post(
                    "/payments", content=b"", headers={"Idempotency-Key": key}))
                await asyncio.sleep(0.5)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        asyncio.run(cancelled())
        self.assertEqual((query("SELECT state FROM idem.lookup('payments', %s::text)", key),
                          effects(key)), ("absent", 0))


    def test_a_handler_of_errors_that_fails_is_rolled_back_at_once(self):
        async def fails(request, error):
            raise LookupError("of the handler")

        async def sleeps(request, error):
            await asyncio.sleep(30)

        async def open_transactions(app):
            transport = httpx.ASGITransport(app.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                task = asyncio.create_task(client.post(
                    "/payments", content=b"", headers={"Idempotency-Key": new_key()}))
                await asyncio.wait([task], timeout=0.5)
                task.cancel()
                raised, = await asyncio.gather(task, return_exceptions=True)
                self.assertIsInstance(raised, (LookupError, asyncio.CancelledError))
                return query("SELECT count(*) FROM pg_stat_activity WHERE state ="
                             " 'idle in transaction' AND datname = current_database()")
        gc.disable()
        self.addCleanup(gc.enable)
        for handler in (fails, sleeps):
            app = self.once(lambda: 1 / 0)
            app.app.add_exception_handler(ZeroDivisionError, handler)
            with self.subTest(handler.__name__):
                self.assertEqual(asyncio.run(open_transactions(app)), 0)


async def handle_async(connection, request):
    cursor = await connection.execute(INSERT, (request["amount"],))
    payment, = await cursor.fetchone()
    if "divide" in request:
        1 / request["divide"]
    status = request.get("status", 201)
    return status, "" if status == 204 else json.dumps({"payment": payment, "at": time.time()})


async def form_of(request):
    if not request.headers.get("content-type", "").startswith("multipart"):
        return []
    form = await request.form()
    return [form["note"], len(await form["file"].read())]


async def answer_of(act, request, test):
    if "spend" in test:
        test["spend"](request.user, request.session)
    made = act(*await form_of(request))
    status, headers, body = await made if asyncio.iscoroutine(made) else made
    response = starlette.responses.Response(body, status)
    response.headers.update(headers)
    response.background = starlette.background.BackgroundTask(test["later"]) if (
        "later" in test) else None
    return response


@unittest.skipUnless(starlette, "Starlette or httpx is not installed")
class Starlette(Asgi, PaymentTest):
    of_package = staticmethod(lambda: pg_idem.starlette)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        import starlette.middleware.cors
        import starlette.middleware.gzip

        @pg_idem.starlette.idempotent(AsyncIdempotency(aconnect, wait=0), "payments", tenant=None,
                                      **OPTIONS)
        async def payments(request):
            if request.method == "GET":
                return starlette.responses.PlainTextResponse("no transaction")
            status, content = await handle_async(request.state.idem_connection,
                                                 await request.json())
            return starlette.responses.Response(content, status, HEADERS, "application/json")
        cls.app = starlette.applications.Starlette(routes=[
            starlette.routing.Route("/payments", payments, methods=["GET", "POST"])])

    def once(self, act=lambda: (201, {}, b"paid"), *, options=(), tenant=None, scope="payments",
             guest=None):
        own, test, options = split(options)
        if callable(tenant):
            of, tenant = tenant, lambda request: of(request.headers.get("Authorization"))

        @pg_idem.starlette.idempotent(
            AsyncIdempotency(own.pop("connect", aconnect), wait=0, **own), scope, tenant=tenant,
            **options)
        async def pay(request):
            if test.get("amount", 1):
                await request.state.idem_connection.execute(INSERT, (test.get("amount", 1),))
            return await answer_of(act, request, test)

        async def checked(request):
            if guest and "Authorization" not in request.headers:
                raise starlette.exceptions.HTTPException(guest)
            return await pay(request)
        return self.guarded(starlette.applications.Starlette(
            routes=[starlette.routing.Route("/payments", checked, methods=["POST"])]), test)

    def test_a_stream_is_sent_after_commit(self):
        @pg_idem.starlette.idempotent(AsyncIdempotency(aconnect), "payments", tenant=None)
        async def stream(request):
            await request.state.idem_connection.execute(INSERT, (1,))

            async def chunks():
                for chunk in (b"a", b"b"):
                    yield chunk
            return starlette.responses.StreamingResponse(chunks())
        app, key = app_of(self, starlette.applications.Starlette(
            routes=[starlette.routing.Route("/payments", stream, methods=["POST"])])), new_key()
        for _ in range(2):
            self.assertEqual(self.sent(app, key)[2], b"ab")
        self.assertEqual(effects(key), 1)

    def test_an_endpoint_in_a_thread(self):
        @pg_idem.starlette.idempotent(Idempotency(connect), "payments", tenant=None)
        def pay(request):
            request.state.idem_connection.execute(INSERT, (1,))
            return starlette.responses.PlainTextResponse("paid", 201)
        app, key = app_of(self, starlette.applications.Starlette(
            routes=[starlette.routing.Route("/payments", pay, methods=["POST"])])), new_key()
        self.assertEqual([self.sent(app, key)[0] for _ in range(2)], [201, 201])
        self.assertEqual(effects(key), 1)

    def statuses(self, threads, pool, act):
        async def statuses():
            anyio.to_thread.current_default_thread_limiter().total_tokens = threads
            async with self.blocking(pool, act) as client:
                return [response.status_code for response in await asyncio.gather(*[
                    client.post("/payments", headers={"Idempotency-Key": new_key()})
                    for _ in range(6)])]
        return asyncio.run(statuses())

    def blocking(self, pool, act=lambda key, connection: None, wait=2.0):
        @pg_idem.starlette.idempotent(Idempotency(pool, wait=wait), "payments", tenant=None)
        def pay(request):
            request.state.idem_connection.execute(INSERT, (1,))
            act(request.headers["Idempotency-Key"], request.state.idem_connection)
            return starlette.responses.StreamingResponse(iter(["paid"]), 201)  # in a thread, too
        transport = httpx.ASGITransport(starlette.applications.Starlette(
            routes=[starlette.routing.Route("/payments", pay, methods=["POST"])]))
        return httpx.AsyncClient(transport=transport, base_url="http://test")

    def test_claims_that_wait_for_the_pool_stop_no_operation(self):
        pool, lost = threading.Semaphore(1), set()

        @contextlib.contextmanager
        def connection():
            if not pool.acquire(timeout=10):
                raise psycopg.OperationalError("no connection in time")
            try:
                with connect() as made:
                    yield made
            finally:
                pool.release()

        def lose(key, _):  # once
            if key not in lost:
                lost.add(key)
                raise psycopg.errors.SerializationFailure("lost")
        self.assertEqual(self.statuses(2, connection, lose), [201] * 6)

    def test_endpoints_that_wait_for_a_lock_do_not_stop_its_holder(self):
        def wait(key, connection):
            connection.execute("SET LOCAL lock_timeout = '5s'; SELECT pg_advisory_xact_lock(4711)")
            time.sleep(0.2)  # the other endpoint is the next in the only thread
        self.assertEqual(self.statuses(1, connect, wait), [201] * 6)

    def test_a_time_limit_during_a_claim_leaves_no_transaction(self):
        gc.disable()
        self.addCleanup(gc.enable)
        key = new_key()

        async def statuses():
            async with self.blocking(connect) as client:
                def post():
                    return client.post("/payments", headers={"Idempotency-Key": key})
                with held(key, "{}"):
                    limited = asyncio.create_task(asyncio.wait_for(post(), 0.3))
                    await asyncio.sleep(0.6)
                with self.assertRaises(asyncio.TimeoutError):
                    await limited
                return (await post()).status_code
        self.assertEqual((asyncio.run(statuses()), effects(key)), (201, 1))


@unittest.skipUnless(fastapi and starlette, "FastAPI or httpx is not installed")
class FastAPI(Asgi, PaymentTest):
    of_package = staticmethod(lambda: pg_idem.fastapi)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        import starlette.middleware.cors
        import starlette.middleware.gzip
        cls.app = fastapi.FastAPI()
        cls.app.router.route_class = pg_idem.fastapi.IdempotentRoute
        once = pg_idem.fastapi.idempotent(AsyncIdempotency(aconnect, wait=0), "payments",
                                          tenant=None, **OPTIONS)

        @cls.app.post("/payments")
        async def payments(request: fastapi.Request, connection=fastapi.Depends(once)):
            status, content = await handle_async(connection, await request.json())
            return fastapi.Response(content, status, HEADERS, "application/json")

        @cls.app.get("/payments")
        async def read():
            return fastapi.responses.PlainTextResponse("no transaction")

    def once(self, act=lambda: (201, {}, b"paid"), *, options=(), tenant=None, scope="payments",
             guest=None):
        own, test, options = split(options)
        app, of = fastapi.FastAPI(), tenant
        app.router.route_class = pg_idem.fastapi.IdempotentRoute
        if callable(of):
            def tenant(authorization: str = fastapi.Header(None)):
                return of(authorization)

        def user(request: fastapi.Request):
            if guest and "Authorization" not in request.headers:
                raise fastapi.HTTPException(guest)
        once = pg_idem.fastapi.idempotent(
            AsyncIdempotency(own.pop("connect", aconnect), wait=0, **own), scope, tenant=tenant,
            **options)

        @app.post("/payments")
        async def pay(request: fastapi.Request, _=fastapi.Depends(user),
                      connection=fastapi.Depends(once)):
            if test.get("amount", 1):
                await connection.execute(INSERT, (test.get("amount", 1),))
            return await answer_of(act, request, test)
        return self.guarded(app, test)

    def test_the_model_of_the_response_shapes_what_is_stored(self):
        import pydantic

        class Paid(pydantic.BaseModel):
            amount: int
        app = fastapi.FastAPI()
        app.router.route_class = pg_idem.fastapi.IdempotentRoute
        once = pg_idem.fastapi.idempotent(Idempotency(connect), "payments", tenant=None)
        done = []

        @app.post("/payments", response_model=Paid, status_code=201)
        def pay(body: Paid, tasks: fastapi.BackgroundTasks, connection=fastapi.Depends(once)):
            connection.execute(INSERT, (body.amount,))
            tasks.add_task(lambda: done.append(effects(key)))
            return {"amount": body.amount, "secret": 1}
        made, key = app_of(self, app), new_key()
        first, again = [self.sent(made, key, b'{"amount": 5}') for _ in range(2)]
        self.assertEqual((first[0], json.loads(first[2]), again[2]), (201, {"amount": 5}, first[2]))
        self.assertEqual((effects(key), done), (1, [1]))
        self.assertEqual(self.sent(made, new_key(), b'{"amount": "x"}')[0], 422)

    def test_a_value_that_is_not_to_be_stored(self):
        app = fastapi.FastAPI()
        app.router.route_class = pg_idem.fastapi.IdempotentRoute
        once = pg_idem.fastapi.idempotent(Idempotency(connect), "payments", tenant=None)

        @app.post("/payments", status_code=202)
        def pay(connection=fastapi.Depends(once)):
            connection.execute(INSERT, (1,))
            raise pg_idem.NotStored({"errors": {1}})
        key = new_key()
        self.assertEqual(self.sent(app_of(self, app), key)[::2], (202, b'{"errors":[1]}'))
        self.assertEqual(effects(key), 0)

    def test_a_dependency_that_converts_errors_changes_no_replay(self):
        class Converting(fastapi.routing.APIRoute):
            def get_route_handler(self):  # as FastAPI 0.106 to 0.117 end dependencies with `yield`
                handler = super().get_route_handler()

                async def converted(request):
                    try:
                        return await handler(request)
                    except Exception as error:
                        raise LookupError("converted") from error
                return converted

        class Route(pg_idem.fastapi.IdempotentRoute, Converting):
            pass
        app, once = fastapi.FastAPI(), pg_idem.fastapi.idempotent(
            Idempotency(connect), "payments", tenant=None)
        app.router.route_class = Route

        @app.post("/payments", status_code=201)
        def pay(connection=fastapi.Depends(once)):
            connection.execute(INSERT, (1,))
            return "paid"
        made, key = app_of(self, app), new_key()
        self.assertEqual([self.sent(made, key)[0] for _ in range(2)], [201, 201])
        self.assertEqual(self.sent(made, key, b"other")[0], 422)
        self.assertEqual(effects(key), 1)

    def test_dependencies_of_each_attempt_find_the_request_as_it_was(self):
        app, session, found = fastapi.FastAPI(), {"nonces": [1]}, []
        app.router.route_class = pg_idem.fastapi.IdempotentRoute
        once = pg_idem.fastapi.idempotent(AsyncIdempotency(aconnect), "payments", tenant=None)

        def nonce(request: fastapi.Request):
            return request.session["nonces"].pop()

        @app.post("/payments", status_code=201)
        async def pay(nonce=fastapi.Depends(nonce), connection=fastapi.Depends(once)):
            found.append(nonce)
            await connection.execute(INSERT, (1,))
            if len(found) == 1:
                raise psycopg.errors.SerializationFailure("lost")
        key = new_key()
        self.assertEqual((self.sent(self.within(app, session=session), key)[0], effects(key)),
                         (201, 1))
        self.assertEqual((found, session), ([1, 1], {"nonces": []}))

    def test_a_body_that_is_too_long_is_not_parsed(self):
        app = fastapi.FastAPI()
        app.router.route_class = pg_idem.fastapi.IdempotentRoute
        once = pg_idem.fastapi.idempotent(AsyncIdempotency(aconnect), "payments", tenant=None,
                                          max_body=10)

        @app.post("/payments")
        async def pay(payment: dict, connection=fastapi.Depends(once)):
            return "paid"

        async def chunks():
            for _ in range(20):
                yield b'{"a": 1'
        self.assert_problem(self.sent(app_of(self, app), new_key(), chunks()), 413, "about:blank")

    def test_what_authenticates_comes_before_a_replay_wherever_it_stands(self):
        once = pg_idem.fastapi.idempotent(AsyncIdempotency(aconnect), "payments", tenant=None)

        def user(authorization: str = fastapi.Header()):
            if authorization != "ann":
                raise fastapi.HTTPException(401)

        async def pay(connection=fastapi.Depends(once), user=fastapi.Depends(user)):
            return "secret"

        async def pay_within(user=fastapi.Depends(user)):
            return "secret"

        def unit(connection=fastapi.Depends(once), user=fastapi.Depends(user)):
            return connection

        async def pay_in_unit(unit=fastapi.Depends(unit)):
            return "secret"

        async def pay_in_units(
                log=fastapi.Depends(lambda connection=fastapi.Depends(once): connection),
                unit=fastapi.Depends(unit)):
            return "secret"

        class Included(fastapi.routing.APIRoute):  # since FastAPI 0.137, it solves others
            def get_route_handler(self):
                shown, self.dependant = self.dependant, copy.deepcopy(self.dependant)
                self.dependant.dependencies.reverse()
                handler, self.dependant = super().get_route_handler(), shown
                return handler

        class Wrapped(fastapi.routing.APIRoute):
            def get_route_handler(self):
                return (lambda handler: lambda request: handler(request))(
                    super().get_route_handler())
        for (endpoint, dependencies), kind in itertools.product(
                ((pay, []), (pay_within, [fastapi.Depends(once)]), (pay_in_unit, []),
                 (pay_in_units, [])),
                (fastapi.routing.APIRoute, Included, Wrapped)):
            router = fastapi.APIRouter(dependencies=dependencies, route_class=type(
                "Own", (pg_idem.fastapi.IdempotentRoute, kind), {}))
            router.post("/payments")(endpoint)
            app, key = fastapi.FastAPI(), new_key()
            app.include_router(router)
            made = app_of(self, app)
            with self.subTest(endpoint.__name__, kind=kind):
                self.assertEqual(self.sent(made, key, Authorization="ann")[0], 200)
                self.assertEqual(self.sent(made, key, Authorization="bob")[0], 401)
                status, _, body = self.sent(made, key)
                self.assertEqual((status, len(json.loads(body)["detail"])), (422, 1))
                self.assertEqual(self.sent(made, key, Authorization="ann")[0], 200)

    def test_outer_layers_find_what_the_endpoint_leaves_in_the_state(self):
        app, found = fastapi.FastAPI(), []
        app.router.route_class = pg_idem.fastapi.IdempotentRoute
        once = pg_idem.fastapi.idempotent(AsyncIdempotency(aconnect), "payments", tenant=None)

        def user(request: fastapi.Request):
            request.state.seen = [*getattr(request.state, "seen", ()), "ann"]

        @app.post("/payments", status_code=201)
        async def pay(user=fastapi.Depends(user), connection=fastapi.Depends(once)):
            found.append(1)
            await connection.execute(INSERT, (1,))
            if len(found) == 1:
                raise psycopg.errors.SerializationFailure("lost")

        async def log(request, call_next):
            response = await call_next(request)
            response.headers["X-Seen"] = " ".join(request.state.seen)
            return response
        app.middleware("http")(log)
        made, key = app_of(self, app), new_key()
        responses = [self.sent(made, key)[:2] for _ in range(2)]
        self.assertEqual([(status, headers["x-seen"]) for status, headers in responses],
                         [(201, "ann")] * 2)
        self.assertEqual((effects(key), len(found)), (1, 2))

    def test_the_class_fits_the_endpoint(self):
        app = fastapi.FastAPI()
        app.router.route_class = pg_idem.fastapi.IdempotentRoute
        for operations, endpoint in ((Idempotency(connect), anyio.sleep_forever),
                                     (AsyncIdempotency(aconnect), lambda: None)):
            once = fastapi.Depends(pg_idem.fastapi.idempotent(operations, "payments", tenant=None))
            for decorated in (app.post("/payments", dependencies=[once]),
                              pg_idem.starlette.idempotent(operations, "payments", tenant=None)):
                with self.assertRaisesRegex(TypeError, "AsyncIdempotency is for coroutines"):
                    decorated(endpoint)

    def test_a_route_has_one_claim(self):
        shared, own = [fastapi.Depends(pg_idem.fastapi.idempotent(
            Idempotency(connect), "payments", tenant=of)) for of in (None, lambda: "ann")]
        app = fastapi.FastAPI(dependencies=[shared])
        app.router.route_class = pg_idem.fastapi.IdempotentRoute
        app.post("/payments")(lambda connection=own: 1)
        with self.assertRaisesRegex(RuntimeError, "one claim"):
            self.sent(app_of(self, app), new_key())

    def test_the_class_of_the_route_is_needed(self):
        app = fastapi.FastAPI()
        once = pg_idem.fastapi.idempotent(Idempotency(connect), "payments", tenant=None)
        app.post("/payments")(lambda connection=fastapi.Depends(once): 1)
        with self.assertRaisesRegex(RuntimeError, "route_class"):
            self.sent(app_of(self, app), new_key())

        class Hidden(fastapi.routing.APIRoute):
            def get_route_handler(self):
                return functools.partial(super().get_route_handler())
        router = fastapi.APIRouter(route_class=type("Own", (
            pg_idem.fastapi.IdempotentRoute, Hidden), {}))
        with self.assertRaisesRegex(RuntimeError, "does not show its dependencies"):
            router.post("/payments")(lambda connection=fastapi.Depends(once): 1)


if __name__ == "__main__":
    unittest.main()
