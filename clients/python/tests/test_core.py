"""The rules without a database: errors, retries, keys, headers."""

import enum
import json
import sqlite3
import unittest
from pathlib import Path
from types import SimpleNamespace

from pg_idem import (Answer, AsyncIdempotency, AsyncWorker, AttemptsExhausted, Conflict,
                     Idempotency, InProgress, Intent, Refused, Retry, Worker, core, is_transient,
                     retry_after, sqlstate)
from pg_idem.http import RETRY, Exchange, Failure, NotStored, Response, Route, parse_key


class OperationalError(Exception):
    __module__ = "psycopg.errors"
    sqlstate = None

problem_of = Route(None, "payments", None).problem_of


def server_error(code, datatype_name=None, hint=None):
    error = OperationalError(code)
    error.sqlstate = code
    error.diag = SimpleNamespace(datatype_name=datatype_name, message_hint=hint,
                                 message_primary=code, severity="ERROR")
    return error


class Errors(unittest.TestCase):
    def test_retry_after_is_the_data_type_name_in_milliseconds(self):
        self.assertEqual(retry_after(server_error("ID001", "1500", "after 9.9 seconds")), 1.5)
        self.assertEqual(retry_after(server_error("ID009", "60000")), 60)
        self.assertEqual(retry_after(server_error("ID014", "60000")), 60)

    def test_retry_after_falls_back_to_the_hint(self):
        for name in (None, "", "payment_kind"):
            error = server_error("ID001", name, "Retry with the same key after 0.3 seconds, or ...")
            self.assertEqual(retry_after(error), 0.3)

    def test_retry_after_of_other_errors_is_none(self):
        self.assertIsNone(retry_after(server_error("23514", "1500", "after 1.5 seconds")))
        self.assertIsNone(retry_after(server_error("ID001", None, "Complete the first claim.")))
        self.assertIsNone(retry_after(ValueError("after 1.5 seconds")))

    def test_an_error_is_found_in_the_wrapper_of_sqlalchemy_and_in_psycopg2(self):
        wrapped = Exception()
        wrapped.orig = server_error("ID001", "250")
        self.assertEqual((sqlstate(wrapped), retry_after(wrapped)), ("ID001", 0.25))
        self.assertEqual(sqlstate(SimpleNamespace(sqlstate=None, pgcode="40001")), "40001")

    def test_what_a_retry_can_cure(self):
        for code in ("08006", "25006", "40001", "40P01", "53300", "55P03", "57P01", "58030"):
            self.assertTrue(is_transient(server_error(code)), code)
        for code in ("22P02", "23505", "25P02", "57014", "ID002", "ID003", "P0001", "XX000"):
            self.assertFalse(is_transient(server_error(code)), code)
        self.assertTrue(is_transient(OperationalError("connection lost")))
        self.assertFalse(is_transient(ValueError()))
        self.assertFalse(is_transient(sqlite3.OperationalError("no such table")))

    def test_a_failure_is_final_whatever_its_code(self):
        for code in ("40001", "08P01", "ID001", "ID004", "ID014"):
            failure = Failure("declined", sqlstate=code, replayed=True)
            with self.subTest(code):
                self.assertEqual((is_transient(failure), retry_after(failure)), (False, None))
                self.assertEqual(sqlstate(failure), code)
                self.assertIs(core.as_lost(failure), failure)
                self.assertEqual(problem_of(failure, 409).status, 409)

    def test_a_mistake_of_the_service_is_not_transient(self):
        for code in ("08P01", "22023", "28000", "28P01", "3D000", "54023"):
            self.assertFalse(is_transient(server_error(code)), code)
        # The driver has no SQLSTATE of what fails before there is a session.
        for message in ('FATAL:  database "shop" does not exist',
                        'FATAL:  role "shop" does not exist',
                        'FATAL:  password authentication failed for user "shop"',
                        'FATAL:  Peer authentication failed for user "shop"',
                        'FATAL:  no pg_hba.conf entry for host "192.0.2.1", user "shop"',
                        'FATAL:  role "shop" is not permitted to log in',
                        'FATAL:  permission denied for database "shop"',
                        "fe_sendauth: no password supplied",
                        "sending query and params failed: number of parameters must be between 0"):
            self.assertFalse(is_transient(OperationalError("failed: " + message)), message)
        for message in ("FATAL:  the database system is starting up",
                        "FATAL:  sorry, too many clients already", "Connection refused"):
            self.assertTrue(is_transient(OperationalError("failed: " + message)), message)

    def test_the_statement_that_a_wrapper_quotes_decides_nothing(self):
        wrapper = OperationalError("it was closed\n[SQL: SELECT 'permission denied']")
        wrapper.orig = OperationalError("server closed the connection")
        self.assertTrue(is_transient(wrapper))
        wrapper.orig = OperationalError('FATAL:  database "shop" does not exist')
        self.assertFalse(is_transient(wrapper))

    def test_pgbouncer_ends_a_connection_with_a_code_of_its_own(self):
        error = server_error("08P01")
        error.diag.severity = "FATAL"
        self.assertTrue(is_transient(error))

    def test_in_progress_without_a_time_is_final(self):  # the key is claimed by this transaction
        self.assertTrue(is_transient(InProgress("ID001", "", 0.5)))
        self.assertFalse(is_transient(InProgress("ID001", "", None)))
        self.assertFalse(is_transient(Conflict("ID002", "")))

    def test_an_undecided_operation_may_be_decided_later(self):
        self.assertTrue(is_transient(AttemptsExhausted("ID014", "", 60)))
        self.assertTrue(is_transient(server_error("ID014", "60000")))


    def test_a_refusal_concerns_the_key_or_the_request(self):
        self.assertEqual(core.as_refused(server_error("22P02")).sqlstate, "22P02")
        for code in ("22023", "42501", "40001"):    # the first: an argument of the service
            self.assertIsNone(core.as_refused(server_error(code)), code)


class Retries(unittest.TestCase):
    def test_backoff_doubles_with_jitter_up_to_its_longest(self):
        retry = Retry(first=0.1, longest=1.0)
        for attempt in range(1, 10):
            pauses = [retry.pause(server_error("40001"), attempt, 0) for _ in range(50)]
            self.assertTrue(0 <= min(pauses) < max(pauses) <= min(1.0, 0.1 * 2**(attempt - 1)))

    def test_an_outage_of_many_attempts(self):
        pause = Retry(attempts=10_000).pause(server_error("40001"), 5_000, 0)
        self.assertLessEqual(pause, 5.0)
        worker = Worker(Idempotency(None), "payments", None)
        with self.assertLogs("pg_idem", "WARNING"):
            self.assertEqual(worker._pause(server_error("57P03"), 5_000), 30.0)

    def test_never_sooner_than_retry_after(self):
        pauses = [Retry().pause(server_error("ID001", "1500"), 1, 0) for _ in range(50)]
        self.assertGreaterEqual(min(pauses), 1.5)
        undecided = AttemptsExhausted("ID014", "", 60)
        self.assertGreaterEqual(Retry(deadline=100).pause(undecided, 1, 0), 60)

    def test_gives_up(self):
        lost = server_error("40001")
        self.assertIsNone(Retry(attempts=3).pause(lost, 3, 0))
        self.assertIsNone(Retry(deadline=5).pause(lost, 1, 5.1))
        self.assertIsNone(Retry(deadline=5).pause(server_error("ID009", "60000"), 1, 0))
        self.assertIsNone(Retry().pause(AttemptsExhausted("ID014", "", 60), 1, 0))
        self.assertIsNone(Retry(refusals=False).pause(server_error("ID001", "100"), 1, 0))
        self.assertIsNone(Retry().pause(ValueError(), 1, 0))


class Keys(unittest.TestCase):
    """The cases are those of idem.parse_key() and of the Node package."""

    cases = json.loads((Path(__file__).parents[3] / "test/data/idempotency_key.json").read_text())

    def test_strings_and_tokens(self):
        for header, key in self.cases["keys"]:
            with self.subTest(header):
                self.assertEqual(parse_key([header]), key)

    def test_no_key_is_sent(self):
        self.assertIsNone(parse_key([]))
        for header in self.cases["none"]:
            self.assertIsNone(parse_key([header or ""]))

    def test_what_is_neither(self):
        for header in self.cases["invalid"]:
            with self.subTest(header), self.assertRaises(Refused) as raised:
                parse_key([header])
            self.assertEqual(raised.exception.sqlstate, "ID007")
        with self.assertRaises(Refused):
            parse_key(["one", "two"])


class Values(unittest.TestCase):
    """What is not what it is taken for is refused before anything runs."""

    def refused(self, kind, call, *values):
        for value in values:
            with self.subTest(value), self.assertRaises(kind):
                call(value)

    def test_text(self):
        ops = Idempotency(self.fail)
        for call in (lambda tenant: ops.run("s", "k", None, print, tenant=tenant),
                     lambda scope: ops.run(scope, "k", None, print),
                     lambda records: ops.run("s", "k", None, print, records=records),
                     lambda tenant: Worker(ops, "s", print, tenant=tenant)):
            self.refused(TypeError, call, 7, b"x", ["x"], {"id": 1}, object(), True)
            self.refused(ValueError, call, "a\0", "\ud800")
        self.refused(ValueError, lambda key: ops.run("s", key, None, print), "a\0", "\udfff")
        self.refused(ValueError, lambda tenant: ops.run("s", "k", None, print, tenant=tenant), "")

    def test_text_of_an_enum_is_its_value(self):
        class Shop(str, enum.Enum):
            FIRST = "first"
        for value in (core.text("scope", Shop.FIRST), core.key_text(Shop.FIRST),
                      core.tenant_text(Shop.FIRST)):
            self.assertEqual((str(value), type(value)), ("first", str))

    def test_seconds(self):
        for call in (lambda value: Idempotency(None, wait=value),
                     lambda value: Idempotency(None, ttl=value),
                     lambda value: Idempotency(None).lease("s", "k", None, lease=value),
                     lambda value: AsyncIdempotency(None).lease("s", "k", None, lease=value),
                     lambda value: Worker(Idempotency(None), "s", None, lease=value)):
            self.refused(TypeError, call, "60", True, b"1", [1])
            self.refused(ValueError, call, -1, float("nan"), float("inf"))

    def test_answers(self):
        def made(**parts):
            return core.completion("t", Answer(**parts), json.dumps)
        self.refused(TypeError, lambda status: made(status=status), "200", 200.0, True)
        self.refused(ValueError, lambda status: made(status=status), 99, 199, 600)
        self.refused(TypeError, lambda body: made(body=body), "\\x41", 1, ["a"])
        self.assertEqual(made(body=memoryview(b"a"))["body"], b"a")
        self.refused(TypeError, lambda value: made(headers={"A": value}), 1, None, b"x", [1])
        self.refused(ValueError, lambda value: made(headers={"A": value}), "\u0100", "a\n", "\0",
                     "a\x7f", ["a", "\r"])
        self.refused(ValueError, lambda name: made(headers={name: "1"}), "", "a b", "a:", "\u00e9")
        self.assertEqual(json.loads(made(headers={"A": "\u00ff"})["headers"]), {"A": "\u00ff"})

    def test_the_status_of_a_failure(self):
        self.refused(TypeError, lambda status: Failure("no", status=status), "402", 402.0, True)
        self.refused(ValueError, lambda status: Failure("no", status=status), 200, 399, 500, 503)
        Failure("stored by others", status=503, replayed=True)

    def test_counts(self):
        for worker in (Worker, AsyncWorker):
            def made(concurrency):
                return worker(Idempotency(None), "s", print, concurrency=concurrency)
            self.refused(TypeError, made, "2", 1.5, None, True)
            self.refused(ValueError, made, 0, -1)

    def test_options(self):
        for name in ("dumps", "loads", "on_event"):
            self.refused(TypeError, lambda value: Idempotency(None, **{name: value}), 5, "f", True)
        for call in (lambda retry: Idempotency(None, retry=retry),
                     lambda retry: Intent(retry=retry),
                     lambda retry: Idempotency(self.fail).transaction(print, retry=retry)):
            self.refused(TypeError, call, 3, True, 0, "3")
        self.refused(TypeError, lambda name: Idempotency(None).operation("s", name)(print), 5, b"x")
        for name, wrong in (("store_if", True), ("problem", "json"), ("key_from", 5),
                            ("max_body", "x"), ("max_body", 1.5), ("key_required", "no"),
                            ("send_retention", 7)):
            self.refused(TypeError, lambda value: Route(None, "s", None, **{name: value}), wrong)
        self.refused(ValueError, lambda size: Route(None, "s", None, max_body=size), -1)

    def test_retries(self):
        for name in ("attempts", "first", "longest", "deadline"):
            self.refused(TypeError, lambda value: Retry(**{name: value}), "3", None, True)
            self.refused(ValueError, lambda value: Retry(**{name: value}), -1)
        self.refused(ValueError, lambda attempts: Retry(attempts=attempts), 0)
        Retry(deadline=float("inf"))

    def test_lists(self):
        for name, wrong, right in (("never_stored", ("X-A", 7, None, [7]), (["X-A"], {"X-A"})),
                                   ("include_headers", ("location", b"x"), (None, ("X-A",))),
                                   ("final_statuses", (402, "402", ["402"], [True], iter([402])),
                                    ([402], {402}, range(402, 404)))):
            def made(value):
                return Route(Idempotency(None), "s", None, **{name: value})
            self.refused(TypeError, made, *wrong)
            for value in right:
                made(value)

    def test_requests(self):
        run = Idempotency(self.fail).run
        self.refused(ValueError, lambda request: run("s", "k", request, print), float("nan"))
        self.refused(TypeError, lambda request: run("s", "k", request, print), {1, 2}, b"x")


class Exchanges(unittest.TestCase):
    def exchange(self, body=b"", content_type="application/json", **options):
        route = Route(None, "payments", None, **options)
        return Exchange(route, "POST", "/pay", "", body, content_type)

    def test_json_is_bound_by_value_and_anything_else_by_its_digest(self):
        prefix = '{"method": "POST", "path": "/pay", "query": "", "body": '
        exact = b'{"amount": 12345678901.123456789}'
        self.assertEqual(self.exchange(exact).request(), prefix + exact.decode() + "}")
        for body in (b"", b"amount=1", b"\xff", b'{"a": NaN}', b'1}, {"path": "/other"',
                     b"[" * 100000, "1".encode("utf-16")):
            self.assertRegex(self.exchange(body).request(), '"sha256": "[0-9a-f]{64}"}$')
        self.assertRegex(self.exchange(b"1", 'Text/Plain; Charset="latin-1"; a=b').request(),
                         '"type": "text/plain;charset=.*latin-1.*", "sha256": "[0-9a-f]{64}"}$')

    def test_an_empty_key_is_no_key_that_is_missing(self):
        exchange = self.exchange(key_required=False)
        self.assertIsNone(exchange.key([], None))
        with self.assertRaisesRegex(Refused, "empty"):
            exchange.key([""], None)

    def test_headers_of_one_connection_moment_or_session_are_not_stored(self):
        headers = [("Location", "/p/1"), ("Set-Cookie", "s=1"), ("set-cookie", "t=1"),
                   ("AUTHORIZATION", "x"), ("Date", "today"), ("Connection", "close"),
                   ("Content-Length", "2"), ("Link", "<a>"), ("Link", "<b>"), ("X-Trace", "7")]
        answer = self.exchange(never_stored=["x-trace"]).judge(Response(201, headers, b"{}"))
        self.assertEqual(answer.headers, {"Location": "/p/1", "Link": ["<a>", "<b>"]})

    def test_retry_after_is_in_whole_seconds(self):
        for after, seconds in ((0.05, "1"), (1.0, "1"), (1.1, "2"), (60, "60")):
            headers = dict(problem_of(InProgress("ID001", "", after)).headers)
            self.assertEqual(headers["Retry-After"], seconds)
        self.assertNotIn("Retry-After", dict(problem_of(Conflict("ID002", "")).headers))

    def test_messages_of_internal_errors_are_not_sent(self):
        self.assertNotIn(b"secret", problem_of(OperationalError("secret")).body)
        self.assertIn(b"another request", problem_of(Conflict("ID002", "another request")).body)

    def test_the_middleware_leaves_refusals_to_the_client(self):
        for refused in (InProgress("ID001", "", 0.1), AttemptsExhausted("ID014", "", 0.1)):
            self.assertIsNone(RETRY.pause(refused, 1, 0))
        self.assertIsNotNone(RETRY.pause(server_error("40001"), 1, 0))

    def test_what_is_stored(self):
        exchange = self.exchange(final_statuses=[402, 501])
        self.assertEqual(exchange.judge(Response(302, [], b"")).status, 302)
        for status in (402, 501):
            with self.assertRaises(Failure) as raised:
                exchange.judge(Response(status, [], b""))
            self.assertEqual(raised.exception.status, status)
        for status in (400, 404, 500, 503):
            with self.assertRaises(NotStored):
                exchange.judge(Response(status, [], b""))


if __name__ == "__main__":
    unittest.main()
