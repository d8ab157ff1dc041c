"""The requirements of the Idempotency-Key draft, with Flask, Django, Starlette and FastAPI."""

import asyncio
import email.utils
import io
import json
import time
import unittest

import psycopg
import pg_idem
from pg_idem import AsyncIdempotency, Idempotency
from pg_idem import asgi, http, wsgi

from support import (PaymentTest, aconnect, connect, django_payment, effects, held, new_key,
                     query, use_up_attempts)

try:
    import flask
except ImportError:
    flask = None
try:
    import django
    import psycopg2
    import werkzeug.test
except ImportError:
    django = None
try:
    import httpx
    import starlette.applications
    import starlette.background
    import starlette.responses
    import starlette.routing
except ImportError:
    starlette = None
try:
    import fastapi
except ImportError:
    fastapi = None

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
PAY = "INSERT INTO payment (amount) VALUES (40001)"


class Contract:
    """The tests. A subclass has an app and says how to send a request to it."""

    def send(self, headers, body, path, method):
        """Returns status, headers (a dict with lower-case names) and body."""
        raise NotImplementedError

    def post(self, key, request=None, *, path="/payments", method="POST", more=()):
        request = {"amount": 10} if request is None else request
        body = request if isinstance(request, bytes) else json.dumps(request).encode()
        headers = [("Content-Type", "application/json"), *more]
        for value in [key] if isinstance(key, str) else key or []:
            headers.append(("Idempotency-Key", value))
        return self.send(headers, body, path, method)

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

    def test_a_retry_gets_the_first_answer(self):
        key = new_key()
        first, again = self.post(f'"{key}"'), self.post(f'"{key}"')
        self.assertEqual((first[0], again[0], effects(key)), (201, 201, 1))
        self.assertEqual(again[2], first[2])
        self.assertNotIn("idempotent-replayed", first[1])
        self.assertEqual(again[1]["idempotent-replayed"], "true")
        self.assertEqual(again[1]["content-length"], str(len(first[2])))
        self.assertEqual(again[1]["content-type"], first[1]["content-type"])

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

    def test_the_key_is_missing_or_invalid(self):
        for key in (None, "", '""', '"open', "k" * 256, "a b"):
            with self.subTest(key):
                self.assert_problem(self.post(key), 400, "invalid_key")

    def test_two_keys(self):
        self.assert_problem(self.post(["one", "two"]), 400, "invalid_key")

    def test_another_request(self):
        key = new_key()
        self.post(key)
        self.assertEqual(self.post(key, b'{ "amount": 1e1 }')[0], 201)
        self.assert_problem(self.post(key, {"amount": 11}), 422, "key_conflict")
        self.assert_problem(self.post(key, path="/payments?urgent=1"), 422, "key_conflict")
        self.assert_problem(self.post(key, path="/refunds"), 422, "key_conflict")
        self.assertEqual(effects(key), 1)

    def test_in_progress(self):
        key = new_key()
        with held(key, BOUND):
            self.assert_problem(self.post(key), 409, "in_progress", retry_after=True)
        self.assertEqual(self.post(key)[0], 201)

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

    def test_a_final_status_is_stored_without_its_effect(self):
        key = new_key()
        first = self.post(key, {"amount": 10, "status": 402})
        again = self.post(key, {"amount": 10, "status": 402})
        self.assertEqual((first[0], again[0], again[2], effects(key)), (402, 402, first[2], 0))
        self.assertEqual(again[1]["idempotent-replayed"], "true")

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

    def test_an_empty_answer(self):
        key = new_key()
        for _ in range(2):
            response = self.post(key, {"amount": 10, "status": 204})
            self.assertEqual((response[0], response[2]), (204, b""))
        self.assertEqual(effects(key), 1)

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

    def test_a_lost_race_is_run_again(self):
        key = new_key()
        calls.clear()
        response = self.post(key, {"amount": 10, "lose": 2})
        self.assertEqual((response[0], effects(key), len(calls)), (201, 1, 3))

    def test_lost_for_good(self):
        key = new_key()
        response = self.post(key, {"amount": 10, "lose": 99})
        self.assert_problem(response, 503, "about:blank", retry_after=True)
        self.assertEqual(effects(key), 0)


def lose(request):
    """The first calls of the handler lose a race."""
    calls.append(1)
    if len(calls) <= request.get("lose", 0):
        raise psycopg.errors.SerializationFailure("lost")


class Attempts:
    """An application whose first transaction answers 200 and fails to commit. Nothing of that
    attempt is sent, stored or seen by the next. A subclass runs it with post()."""

    def post(self, key):
        """Runs self.act() in each attempt. Returns status, headers and body."""
        raise NotImplementedError

    def act(self, left_behind):
        """The status, headers and chunks of this attempt."""
        self.attempts.append(left_behind)
        if len(self.attempts) == 1:
            return "200 OK", [("X-Attempt", "1"), ("Set-Cookie", "session=1")], [b"paid"]
        return self.then()

    def run_to(self, then):
        with connect() as connection:
            connection.execute(LOST_COMMIT)
        self.attempts, self.then, key = [], then, new_key()
        first = self.post(key)
        self.assertEqual(self.attempts, [None, None])
        self.assertNotIn("x-attempt", first[1])
        again = self.post(key)
        return first, again, effects(key)

    def test_a_failure(self):
        def then():
            raise pg_idem.Failure("insufficient funds", status=402, headers={
                "X-Reason": "51", "Set-Cookie": "session=2", "x-trace": "7"})
        first, again, paid = self.run_to(then)
        self.assertEqual((first[0], again[0], len(self.attempts), paid), (402, 402, 2, 0))
        self.assertEqual(json.loads(first[2])["detail"], "insufficient funds")
        self.assertEqual(json.loads(first[2])["sqlstate"], "ID003")
        self.assertEqual(again[2], first[2])
        self.assertEqual(again[1], {**first[1], "idempotent-replayed": "true"})
        self.assertEqual(first[1]["x-reason"], "51")
        self.assertTrue({"set-cookie", "x-trace"}.isdisjoint(first[1]))

    def test_a_failure_with_a_body(self):
        def then():
            raise pg_idem.Failure("no", body=b"<no/>", headers={"Content-Type": "text/xml"})
        first, again, paid = self.run_to(then)
        for response in (first, again):
            self.assertEqual((response[0], response[2], response[1]["content-type"]),
                             (409, b"<no/>", "text/xml"))

    def test_an_answer(self):
        first, again, paid = self.run_to(lambda: ("201 Created", [("Vary", "a"), ("Vary", "b")],
                                                  [b"second", b"", b" attempt"]))
        self.assertEqual((first[0], first[2], again[0], again[2], paid),
                         (201, b"second attempt", 201, b"second attempt", 1))

    def test_an_answer_that_is_not_stored(self):
        first, again, paid = self.run_to(lambda: ("404 Not Found", [], []))
        self.assertEqual((first[0], first[2], len(self.attempts), paid), (404, b"", 3, 0))

    def test_a_final_status(self):
        first, again, paid = self.run_to(lambda: ("402 Payment Required", [], [b"no"]))
        self.assertEqual((first[0], first[2], again[2], len(self.attempts), paid),
                         (402, b"no", b"no", 2, 0))

    def test_a_mistake(self):
        def then():
            1 / 0
        with self.assertRaises(ZeroDivisionError):
            self.run_to(then)


class Options(PaymentTest):
    """Options of the middleware, with an application of WSGI that answers 201."""

    def setUp(self):
        self.events = []

    def post(self, body=b"", headers=(), **options):
        def app(environ, start_response):
            self.paid = environ["idem.connection"].execute(INSERT, (1,)).fetchone()[0] if (
                environ.get("HTTP_IDEMPOTENCY_KEY")) else None
            start_response("201 Created", [("X-A", "1"), ("X-B", "2"), ("Date", "today"),
                                           ("Content-Type", "text/plain")])
            return [b"paid"]
        sent = []
        environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/", "wsgi.input": io.BytesIO(body),
                   "CONTENT_LENGTH": str(len(body)), **dict(headers)}
        payments = Idempotency(connect, wait=0, on_event=self.events.append)
        list(wsgi.IdempotencyMiddleware(app, payments, "payments", **options)(
            environ, lambda *start: sent.append(start)))
        (status, headers), = sent
        return int(status[:3]), dict(headers)

    def assert_one_operation(self, *arguments, **options):
        first, again = [self.post(*arguments, **options) for _ in range(2)]
        self.assertEqual((first[0], again[0]), (201, 201))
        self.assertNotIn("Idempotent-Replayed", first[1])
        self.assertEqual(again[1]["Idempotent-Replayed"], "true")
        return again[1]

    def test_the_key_is_a_member_of_the_body(self):
        def body(key):
            return json.dumps({"meta": {"idempotency_key": key}, "amount": 1}).encode()
        source = {"key_from": "meta.idempotency_key"}
        self.assert_one_operation(body(new_key()), **source)
        for wrong in (body(None), body(""), body(7), body("k" * 256), b'{"meta": 1}', b"[]", b"no"):
            self.assertEqual(self.post(wrong, [("HTTP_IDEMPOTENCY_KEY", "k")], **source)[0], 400)
        for _ in range(2):
            first = self.post(body(None), key_required=False, **source)
            self.assertNotIn("Idempotent-Replayed", first[1])
        self.assertEqual(self.post(body(7), key_required=False, **source)[0], 400)

    def test_the_key_is_what_a_function_finds(self):
        def key_from(environ, body):
            return f"{environ['HTTP_X_ORDER']} {len(body)}"
        order = [("HTTP_X_ORDER", new_key())]
        self.assert_one_operation(b"123", order, key_from=key_from)
        self.assertNotIn("Idempotent-Replayed", self.post(b"12", order, key_from=key_from)[1])
        self.assertEqual(self.post(b"12", key_from=lambda environ, body: None)[0], 400)

    def test_only_these_headers_are_stored(self):
        sent = {"X-A", "X-B", "Date", "Content-Type"}
        for include, stored in ((["x-a", "date"], {"X-A", "Content-Type"}), ([], {"Content-Type"})):
            headers = self.assert_one_operation(headers=[("HTTP_IDEMPOTENCY_KEY", new_key())],
                                                include_headers=include)
            self.assertEqual(sent & set(headers), stored)

    def test_the_time_for_which_answers_are_kept_is_not_sent_unasked(self):
        headers = self.assert_one_operation(headers=[("HTTP_IDEMPOTENCY_KEY", new_key())])
        self.assertNotIn("Idempotency-Expires", headers)

    def test_events(self):
        key = new_key()
        header = [("HTTP_IDEMPOTENCY_KEY", key)]
        self.post(b"1", header)
        self.assertEqual(self.events, [])
        self.post(b"1", header)
        self.post(b"2", header, tenant=lambda environ: None)
        self.post(b"1", tenant=lambda environ: "shop")
        with held(key + "2", "{}"):
            self.post(b"1", [("HTTP_IDEMPOTENCY_KEY", key + "2")])
        self.assertEqual([event[:4] for event in self.events], [
            ("replay", "payments", key, None), ("conflict", "payments", key, None),
            ("refused", "payments", None, "shop"), ("refused", "payments", key + "2", None)])
        self.assertEqual([pg_idem.sqlstate(event.error) for event in self.events if event.error],
                         ["ID002", "ID007", "ID001"])

    def test_a_hook_that_fails_changes_no_answer(self):
        class Broken(list):
            def append(self, event):
                raise ValueError
        self.events = Broken()
        with self.assertLogs("pg_idem", "ERROR"):
            self.assert_one_operation(headers=[("HTTP_IDEMPOTENCY_KEY", new_key())])


class WsgiAttempts(Attempts, PaymentTest):
    def post(self, key):
        def app(environ, start_response):
            left_behind, environ["left.behind"] = environ.get("left.behind"), 1
            environ["idem.connection"].execute(PAY)
            status, headers, chunks = self.act(left_behind)
            start_response(status, headers)(b"")
            return chunks
        sent = []
        middleware = wsgi.IdempotencyMiddleware(app, Idempotency(connect, wait=0), "payments",
                                                **OPTIONS)
        body = b"".join(middleware(
            {"REQUEST_METHOD": "POST", "PATH_INFO": "/", "HTTP_IDEMPOTENCY_KEY": key,
             "wsgi.input": io.BytesIO(), "CONTENT_LENGTH": "0"}, lambda *start: sent.append(start)))
        (status, headers), = sent
        return int(status[:3]), {name.lower(): value for name, value in headers}, body

    def test_an_error_page_replaces_what_was_written(self):
        def app(environ, start_response):
            environ["idem.connection"].execute(PAY)
            start_response("201 Created", [("X-Page", "1")])(b"half a page")
            start_response("202 Accepted", [], (ValueError, ValueError(), None))
            return [b"another"]
        sent = []
        body = b"".join(wsgi.IdempotencyMiddleware(app, Idempotency(connect), "payments")(
            {"REQUEST_METHOD": "POST", "HTTP_IDEMPOTENCY_KEY": new_key()},
            lambda *start: sent.append(start)))
        self.assertEqual((body, sent[0][0], sent[0][1]), (b"another", "202 Accepted", []))

    def test_a_request_that_was_cut_is_refused(self):
        for length, status in (("3", 400), ("2", 201), ("10001", 413)):
            def app(environ, start_response):
                start_response("201 Created", [])
                return [environ["wsgi.input"].read()]
            sent = []
            middleware = wsgi.IdempotencyMiddleware(app, Idempotency(connect), "payments",
                                                    **OPTIONS)
            body = b"12" if status < 413 else b"1" * 10_001
            middleware({"REQUEST_METHOD": "POST", "CONTENT_LENGTH": length,
                        "HTTP_IDEMPOTENCY_KEY": new_key(), "wsgi.input": io.BytesIO(body)},
                       lambda *start: sent.append(start))
            with self.subTest(length):
                self.assertEqual(int(sent[0][0][:3]), status)

    def test_content_length_is_digits(self):
        class Unread:
            def read(self, size):
                raise AssertionError("read")
        for length in ("-1", "+1", "1_0", " 1", "1 ", "0x1", "1.0", "\u0661", "9" * 5000):
            sent = []
            middleware = wsgi.IdempotencyMiddleware(self.fail, Idempotency(self.fail), "payments")
            body, = middleware({"REQUEST_METHOD": "POST", "CONTENT_LENGTH": length,
                                "HTTP_IDEMPOTENCY_KEY": "k", "wsgi.input": Unread()},
                               lambda *start: sent.append(start))
            with self.subTest(length[:9]):
                self.assertEqual((sent[0][0], json.loads(body)["status"]), ("400 Bad Request", 400))


class AsgiAttempts(Attempts, PaymentTest):
    def post(self, key):
        async def app(scope, receive, send):
            left_behind, scope["state"]["left"] = scope["state"].get("left"), 1
            scope["left"] = 1
            await scope["state"]["idem_connection"].execute(PAY)
            status, headers, chunks = self.act(left_behind)
            await send({"type": "http.response.start", "status": int(status[:3]),
                        "headers": [(n.lower().encode(), v.encode()) for n, v in headers]})
            for chunk in chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body"})
        return asyncio.run(self.call(app, key, [b""]))

    async def call(self, app, key, chunks, **options):
        sent, unread = [], [{"type": "http.request", "body": chunk, "more_body": True}
                            for chunk in chunks] + [{"type": "http.request"}]
        unread.reverse()
        state = {"kept": 1}

        async def receive():
            return unread.pop()

        async def send(message):
            sent.append(message)
        await asgi.IdempotencyMiddleware(
            app, AsyncIdempotency(aconnect, wait=0), "payments", **OPTIONS)(
                {"type": "http", "method": "POST", "path": "/", "state": state,
                 "headers": [(b"idempotency-key", key.encode())]}, receive, send)
        self.assertEqual(state, {"kept": 1})
        start, body = sent
        headers = {name.decode(): value.decode() for name, value in start["headers"]}
        return start["status"], headers, body["body"]

    def test_a_body_of_many_chunks(self):
        async def app(scope, receive, send):
            message = await receive()
            await send({"type": "http.response.start", "status": 200})
            await send({"type": "http.response.body", "body": message["body"]})
        for size, status in ((10_000, 200), (10_001, 413)):
            response = asyncio.run(self.call(app, new_key(), [b"x"] * size))
            self.assertEqual(response[0], status)
        response = asyncio.run(self.call(app, new_key(), [b"a", b"", b"bc"]))
        self.assertEqual(response[2], b"abc")

    def test_an_answer_is_whole_or_not_stored(self):
        async def app(scope, receive, send):
            await scope["state"]["idem_connection"].execute(INSERT, (1,))
            await send({"type": "http.response.start", "status": 200})
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
        key = new_key()
        for _ in range(2):
            with self.assertRaises(RuntimeError):
                asyncio.run(self.call(app, key, [b""]))
        self.assertEqual(effects(key), 0)


class Wsgi(Contract):
    def send(self, headers, body, path, method):
        calls.clear()
        query_string = path.partition("?")[2]
        client = werkzeug.test.Client(self.app)
        response = client.open(path.partition("?")[0], query_string=query_string, method=method,
                               headers=headers, data=body)
        return response.status_code, {k.lower(): v for k, v in response.headers}, response.data


def handle(connection, request):
    """What the handler of Flask does: status, content."""
    lose(request)
    payment = connection.execute(INSERT, (request["amount"],)).fetchone()[0]
    if "divide" in request:
        1 / request["divide"]
    status = request.get("status", 201)
    return status, "" if status == 204 else json.dumps({"payment": payment, "at": time.time()})


@unittest.skipUnless(flask, "Flask is not installed")
class Flask(Wsgi, PaymentTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        global werkzeug
        import werkzeug.test
        app = flask.Flask(__name__)
        app.config["PROPAGATE_EXCEPTIONS"] = True

        @app.route("/payments", methods=["GET", "POST"])
        @app.route("/refunds", methods=["POST"])
        def payments():
            if flask.request.method == "GET":
                return "no transaction"
            status, content = handle(flask.request.environ["idem.connection"], flask.request.json)
            return flask.Response(content, status, HEADERS, content_type="application/json")
        app.wsgi_app = wsgi.IdempotencyMiddleware(
            app.wsgi_app, Idempotency(connect, wait=0), "payments", **OPTIONS)
        cls.app = app

    def test_without_a_key_where_none_is_required(self):
        key = new_key()

        def app(environ, start_response):
            body = json.loads(environ["wsgi.input"].read())
            environ["idem.connection"].execute(
                "INSERT INTO payment (key, amount) VALUES (%s, 1)", (key,))
            start_response(f"{body} x", [])
            return [b"paid"]
        client = werkzeug.test.Client(
            wsgi.IdempotencyMiddleware(app, Idempotency(connect), "payments", key_required=False))
        for status, effect in ((500, 0), (402, 0), (201, 1), (201, 2)):
            self.assertEqual(client.post("/payments", json=status).status_code, status)
            self.assertEqual(effects(key), effect)

    def test_without_a_key_nothing_is_run_again(self):
        app = wsgi.IdempotencyMiddleware(self.app.wsgi_app.app, Idempotency(connect), "payments",
                                         key_required=False)
        calls.clear()
        with self.assertRaises(psycopg.errors.SerializationFailure):
            werkzeug.test.Client(app).post("/payments", json={"amount": 1, "lose": 99})
        self.assertEqual(len(calls), 1)

    def test_tenant(self):
        app = wsgi.IdempotencyMiddleware(self.app.wsgi_app.app, Idempotency(connect), "payments",
                                         tenant=lambda environ: environ["REMOTE_USER"])
        client, key = werkzeug.test.Client(app), new_key()
        for user in ("alice", "bob", "alice"):
            client.post("/payments", json={"amount": 1}, headers={"Idempotency-Key": key},
                        environ_overrides={"REMOTE_USER": user})
        self.assertEqual(effects(key), 2)

    def test_no_database(self):
        def nowhere():
            return psycopg.connect(host="127.0.0.1", port=1)
        app = wsgi.IdempotencyMiddleware(self.app.wsgi_app.app, Idempotency(nowhere), "payments")
        response = werkzeug.test.Client(app).post("/payments", json={"amount": 1},
                                                  headers={"Idempotency-Key": new_key()})
        self.assertEqual((response.status_code, response.headers["Retry-After"]), (503, "1"))

    def test_an_answer_without_its_effect_is_never_sent(self):
        def app(environ, start_response):
            try:
                environ["idem.connection"].execute("SELECT 1/0")
            except psycopg.Error:
                pass
            start_response("201 Created", [])
            return [b"paid"]
        client = werkzeug.test.Client(
            wsgi.IdempotencyMiddleware(app, Idempotency(connect), "payments"))
        with self.assertRaises(psycopg.Error):
            client.post("/", headers={"Idempotency-Key": new_key()})


@unittest.skipUnless(django, "Django, psycopg2 or Werkzeug is not installed")
class Django(Wsgi, PaymentTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        payment, urls = django_payment()
        from django.conf import settings
        from django.core.wsgi import get_wsgi_application
        from django.db import IntegrityError
        from django.http import HttpResponse, StreamingHttpResponse
        from django.urls import path
        from pg_idem.django import Idempotency

        def payments(request):
            if request.method == "GET":
                return HttpResponse("no transaction")
            content = json.loads(request.body)
            lose(content)
            made = payment.objects.create(amount=content["amount"])
            calls[-1] = getattr(request, "left_behind", None)
            request.left_behind = len(calls)
            if content["amount"] == 40001 and len(calls) == 1:
                return HttpResponse("paid", headers={"X-Attempt": "1"})
            if "divide" in content:
                1 / content["divide"]
            if "again" in content:
                try:
                    payment.objects.create(pk=made.pk, amount=content["amount"])
                except IntegrityError:
                    pass
            if "stream" in content:
                return StreamingHttpResponse(iter([b"a", b"b"]))
            status = content.get("status", 201)
            body = "" if status == 204 else json.dumps({"payment": made.pk, "at": time.time()})
            response = HttpResponse(body, "application/json", status)
            for name in ("Location", "X-Trace"):
                response[name] = HEADERS[name]
            response.set_cookie("session", "1")
            return response
        urls.urlpatterns = [path("payments", payments), path("refunds", payments)]
        settings.PG_IDEM = {"scope": "payments", "idempotency": Idempotency(wait=0), **OPTIONS}
        cls.app = staticmethod(get_wsgi_application())

    def test_nothing_of_an_attempt_that_was_rolled_back_survives(self):
        with connect() as connection:
            connection.execute(LOST_COMMIT)
        key = new_key()
        first = self.post(key, {"amount": 40001})
        self.assertEqual((first[0], "x-attempt" in first[1], calls), (201, False, [None, None]))
        self.assertEqual((self.post(key, {"amount": 40001})[2], effects(key)), (first[2], 1))

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
            self.assertEqual(self.post(key, {"amount": 1, "stream": 1})[2], b"ab")
        self.assertEqual(effects(key), 1)


class Asgi(Contract):
    def send(self, headers, body, path, method):
        calls.clear()

        async def send():
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.request(method, path, headers=headers, content=body)
        response = asyncio.run(send())
        return response.status_code, dict(response.headers), response.content


async def handle_async(connection, request):
    lose(request)
    cursor = await connection.execute(INSERT, (request["amount"],))
    payment, = await cursor.fetchone()
    if "divide" in request:
        1 / request["divide"]
    status = request.get("status", 201)
    return status, "" if status == 204 else json.dumps({"payment": payment, "at": time.time()})


@unittest.skipUnless(starlette, "Starlette or httpx is not installed")
class Starlette(Asgi, PaymentTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()

        async def payments(request):
            if request.method == "GET":
                return starlette.responses.PlainTextResponse("no transaction")
            status, content = await handle_async(request.state.idem_connection,
                                                 await request.json())
            return starlette.responses.Response(content, status, HEADERS, "application/json")
        cls.app = starlette.applications.Starlette(routes=[
            starlette.routing.Route("/payments", payments, methods=["GET", "POST"]),
            starlette.routing.Route("/refunds", payments, methods=["POST"])])
        cls.app.add_middleware(asgi.IdempotencyMiddleware, scope="payments",
                               idempotency=AsyncIdempotency(aconnect, wait=0), **OPTIONS)

    def test_a_stream_is_sent_after_commit(self):
        async def stream(request):
            await request.state.idem_connection.execute(INSERT, (1,))

            async def chunks():
                for chunk in (b"a", b"b"):
                    yield chunk
            return starlette.responses.StreamingResponse(chunks())
        app = starlette.applications.Starlette(
            routes=[starlette.routing.Route("/payments", stream, methods=["POST"])])
        app.add_middleware(asgi.IdempotencyMiddleware, scope="payments",
                           idempotency=AsyncIdempotency(aconnect))
        streaming, streaming.app, key = type(self)(), app, new_key()
        for _ in range(2):
            self.assertEqual(streaming.post(key)[2], b"ab")
        self.assertEqual(effects(key), 1)

    def test_a_client_that_goes_away_stops_no_operation(self):
        async def stream(request):
            connection = request.state.idem_connection
            await connection.execute(INSERT, (1,))

            async def chunks():
                for chunk in (b"a", b"b"):
                    await asyncio.sleep(0.1)
                    yield chunk
            return starlette.responses.StreamingResponse(chunks())
        app = starlette.applications.Starlette(
            routes=[starlette.routing.Route("/payments", stream, methods=["POST"])])
        middleware = asgi.IdempotencyMiddleware(app, AsyncIdempotency(aconnect), "payments")
        key, bodies = new_key(), []

        async def call():
            unread = [{"type": "http.request"}]

            async def receive():
                return unread.pop() if unread else {"type": "http.disconnect"}

            async def send(message):
                bodies.append(message.get("body"))
            await middleware({"type": "http", "method": "POST", "path": "/payments",
                              "asgi": {"spec_version": "2.3"}, "query_string": b"",
                              "headers": [(b"idempotency-key", key.encode())]}, receive, send)
        for _ in range(2):
            asyncio.run(call())
        self.assertEqual((bodies, effects(key)), ([None, b"ab"] * 2, 1))

    def test_without_a_key_nothing_is_run_again(self):
        async def payments(request):
            lose(await request.json())
        app = starlette.applications.Starlette(
            routes=[starlette.routing.Route("/payments", payments, methods=["POST"])])
        app.add_middleware(asgi.IdempotencyMiddleware, scope="payments", key_required=False,
                           idempotency=AsyncIdempotency(aconnect))
        losing, losing.app = type(self)(), app
        with self.assertRaises(psycopg.errors.SerializationFailure):
            losing.post(None, {"lose": 99})
        self.assertEqual(len(calls), 1)

    def test_the_key_is_what_a_function_finds(self):
        async def pay(request):
            await request.state.idem_connection.execute(INSERT, (1,))
            return starlette.responses.Response(status_code=201)
        app = starlette.applications.Starlette(
            routes=[starlette.routing.Route("/payments", pay, methods=["POST"])])
        app.add_middleware(
            asgi.IdempotencyMiddleware, scope="payments", idempotency=AsyncIdempotency(aconnect),
            key_from=lambda scope, body: json.loads(body)["order"] + scope["path"])
        ordering, ordering.app, order = type(self)(), app, new_key()
        first, again = [ordering.post(None, {"order": order}) for _ in range(2)]
        self.assertEqual((first[0], again[1]["idempotent-replayed"]), (201, "true"))
        self.assertEqual(effects(order + "/payments"), 1)

    def test_the_client_is_gone(self):
        async def gone():
            return {"type": "http.disconnect"}
        sent = []
        scope = {"type": "http", "method": "POST", "path": "/payments", "headers": []}
        asyncio.run(asgi.IdempotencyMiddleware(None, None, "payments")(scope, gone, sent.append))
        self.assertEqual(sent, [])


@unittest.skipUnless(fastapi and starlette, "FastAPI or httpx is not installed")
class FastAPI(Asgi, PaymentTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.app = fastapi.FastAPI()

        @cls.app.post("/payments")
        @cls.app.post("/refunds")
        async def payments(request: fastapi.Request):
            status, content = await handle_async(request.state.idem_connection,
                                                 await request.json())
            return fastapi.Response(content, status, HEADERS, "application/json")

        @cls.app.get("/payments")
        async def read():
            return fastapi.responses.PlainTextResponse("no transaction")
        cls.app.add_middleware(asgi.IdempotencyMiddleware, scope="payments",
                               idempotency=AsyncIdempotency(aconnect, wait=0), **OPTIONS)


if __name__ == "__main__":
    unittest.main()
