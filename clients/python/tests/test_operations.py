"""Every outcome of an operation, with psycopg, psycopg asynchronous, and SQLAlchemy."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import threading
import unittest
import uuid
import warnings
from decimal import Decimal
from functools import partial
from unittest import mock

import psycopg
import pg_idem
from pg_idem import (Answer, AsyncIdempotency, AttemptsExhausted, Conflict, Failure, Idempotency,
                     InProgress, LimitExceeded, Refused, Retry, StaleKey, core)

from support import (
    PaymentTest, aconnect, connect, django, django_payment, effects, held, needs_the_library,
    new_key, psycopg2, query, sqlalchemy, use_up_attempts)


INSERT = "INSERT INTO payment (amount) VALUES (%(amount)s) RETURNING id"
# Retries, but not for long.
PATIENT = Retry(attempts=5, deadline=60)
IMPATIENT = Retry(attempts=1)


class Outcomes:
    """The tests. A subclass says how to run an operation, a list of statements and an end."""

    def pay(self, key, request, *, wait=0.0, retry=PATIENT, end=None, statement=INSERT, **options):
        """Runs the operation; `end` is called after its statement. Returns an Answer."""
        raise NotImplementedError

    def test_answers_and_replays(self):
        key = new_key()
        first = self.pay(key, {"amount": 10})
        self.assertEqual((effects(key), first.replayed), (1, False))
        again = self.pay(key, {"amount": 10.0})
        self.assertEqual((again.response, again.replayed), (first.response, True))
        self.assertEqual(effects(key), 1)

    def test_the_first_answer_equals_its_replays(self):
        key = new_key()

        def end():
            return {"b": (1, 2), "a": 1e2, 3: None}
        first = self.pay(key, {"amount": 1}, end=end)
        self.assertEqual(first.response, {"a": 100, "b": [1, 2], "3": None})
        self.assertEqual(self.pay(key, {"amount": 1}, end=end).response, first.response)

    def test_events(self):
        def lost_once():
            calls.append(1)
            if len(calls) == 1:
                raise psycopg.errors.SerializationFailure("lost")
        seen, calls, key = [], [], new_key()
        options = {"on_event": seen.append}
        for end in (lost_once, None):
            self.pay(key, {"amount": 1}, end=end, **options)
        for end in (Failure("declined"), pg_idem.NotStored("rolled back"), ZeroDivisionError("0")):
            def fails():
                raise end
            with contextlib.suppress(Failure, ZeroDivisionError):
                self.pay(new_key(), {"amount": 1}, end=fails, **options)
        self.assertEqual([event.type for event in seen], [
            "claimed", "retried", "claimed", "completed", "replayed", "claimed", "failed",
            "claimed", "not_stored", "claimed", "error"])
        self.assertEqual([type(event.error).__name__ for event in seen if event.error],
                         ["SerializationFailure", "Failure", "ZeroDivisionError"])
        self.assertTrue(all(0 <= event.seconds < 60 for event in seen))

    def test_an_answer_that_is_too_large_names_the_limit(self):
        key = new_key()
        with self.assertRaises(Exception) as raised:
            self.pay(key, {"amount": 1}, end=lambda: "x" * 70_000)
        self.assertRegex(str(raised.exception),
                         '"max_answer_size" of scope "payments" allows 65536 bytes')
        self.assertEqual(effects(key), 0)

    def test_an_answer_that_is_not_to_be_stored(self):
        key = new_key()

        def fails():
            raise pg_idem.NotStored({"errors": []})
        self.assertEqual(self.pay(key, {"amount": 1}, end=fails).response, {"errors": []})
        self.assertEqual(effects(key), 0)
        self.assertFalse(self.pay(key, {"amount": 1}).replayed)

    def test_a_uuid_is_the_same_key_as_its_text(self):
        key = uuid.uuid4()
        self.assertFalse(self.pay(key, {"amount": 1}).replayed)
        self.assertTrue(self.pay(str(key), {"amount": 1}).replayed)

    def test_a_key_is_text_or_a_uuid(self):
        for key in ({"amount": 1}, None, 4711, True, b"k", 1.5, ["k"], object()):
            with self.subTest(key), self.assertRaisesRegex(TypeError, "must be a str or a UUID"):
                self.pay(key, {"amount": 1}, statement="no statement")
        with self.assertRaisesRegex(TypeError, "must be a str or a UUID"):
            self.pay({"amount": 10}, None, scope="no scope")

    def test_a_conflict_says_what_differs(self):
        query("SELECT idem.create_scope('explaining', store_request => 'always',"
              " if_not_exists => true)::text")
        for scope, differs in (("explaining", ["amount"]), ("payments", None)):
            key = new_key()
            self.pay(key, {"amount": 1, "note": "a"}, scope=scope)
            with self.assertRaises(Conflict) as raised:
                self.pay(key, {"amount": 2, "note": "a"}, scope=scope)
            self.assertEqual(raised.exception.differs, differs)

    def test_an_answer_says_when_it_expires(self):
        def declined():
            raise Failure("declined")
        key = new_key()
        first = self.pay(key, {"amount": 1}, expires=True)
        stored = query("SELECT expires_at FROM idem.lookup('payments', %s::text)", key)
        self.assertEqual((first.expires, first.response["id"] > 0), (stored, True))
        self.assertEqual(self.pay(key, {"amount": 1}).expires, stored)
        self.assertIsNone(self.pay(new_key(), {"amount": 1}).expires)
        with self.assertRaises(Failure) as raised:
            self.pay(new_key(), {"amount": 1}, end=declined, expires=True)
        self.assertLess(abs(raised.exception.expires - stored).total_seconds(), 60)

    def test_the_time_for_which_an_answer_is_kept(self):
        key = new_key()
        self.pay(key, {"amount": 1}, ttl=7200.0)
        left = query("SELECT extract(epoch FROM expires_at - now())::float8"
                     " FROM idem.lookup('payments', %s::text)", key)
        self.assertAlmostEqual(left, 7200, delta=60)

    def test_no_response_is_a_response(self):
        key = new_key()
        self.assertIsNone(self.pay(key, {"amount": 1}, end=lambda: Answer(None, 204)).response)
        again = self.pay(key, {"amount": 1})
        self.assertEqual((again.response, again.status, again.replayed), (None, 204, True))

    def test_an_answer_has_status_headers_and_body(self):
        key = new_key()
        answer = Answer({"a": 1}, 201, {"Location": "/1"}, b"\x00\xff")
        self.assertEqual(self.pay(key, {"amount": 1}, end=lambda: answer), answer)
        again = self.pay(key, {"amount": 1})
        self.assertEqual((again.status, again.headers, again.body),
                         (201, {"Location": "/1"}, b"\x00\xff"))

    def test_another_request_is_a_conflict(self):
        key = new_key()
        self.pay(key, {"amount": 1})
        with self.assertRaises(Conflict) as raised:
            self.pay(key, {"amount": 2})
        self.assertEqual(raised.exception.sqlstate, "ID002")
        self.assertEqual(effects(key), 1)

    def test_a_failure_is_stored_and_its_effect_is_not(self):
        key = new_key()

        def declined():
            raise Failure("card declined", sqlstate="P0001", hint="Use another card.", status=402)
        for replayed in (False, True):
            with self.assertRaises(Failure) as raised:
                self.pay(key, {"amount": 1}, end=declined if not replayed else None)
            failed = raised.exception
            self.assertEqual((failed.message, failed.sqlstate, failed.hint, failed.status),
                             ("card declined", "P0001", "Use another card.", 402))
            self.assertEqual(failed.replayed, replayed)
        self.assertEqual(effects(key), 0)

    def test_an_exception_stores_nothing(self):
        key = new_key()
        with self.assertRaises(ZeroDivisionError):
            self.pay(key, {"amount": 1}, end=lambda: 1 / 0)
        state = query("SELECT state FROM idem.lookup('payments', %s::text)", key)
        self.assertEqual(state, "absent")
        self.assertFalse(self.pay(key, {"amount": 1}).replayed)

    def test_a_final_error_of_the_server_is_not_retried(self):
        calls = []

        def end():
            calls.append(1)
        with self.assertRaises(Exception) as raised:
            self.pay(new_key(), {"amount": None}, end=end)
        self.assertEqual((pg_idem.sqlstate(raised.exception), calls), ("23502", []))

    def test_lost_races_are_retried(self):
        key, calls = new_key(), []

        def end():
            calls.append(1)
            if len(calls) < 3:
                error = psycopg.errors.SerializationFailure("lost")
                error.sqlstate = "40001"
                raise error
            return len(calls)
        with self.assertLogs("pg_idem", "INFO") as logged:
            self.assertEqual(self.pay(key, {"amount": 1}, end=end).response, 3)
        self.assertEqual(len(logged.output), 2)
        self.assertEqual(effects(key), 1)

    def test_a_request_that_an_attempt_has_changed_is_not_run(self):
        key, request = new_key(), {"amount": 1}

        def end():
            request["amount"] *= 2
            raise psycopg.errors.SerializationFailure("lost")
        with self.assertRaisesRegex(RuntimeError, "request has changed"):
            self.pay(key, request, end=end)
        self.assertEqual((request, effects(key)), ({"amount": 2}, 0))
        self.pay(key, request, end=lambda: request.clear())  # one attempt may
        self.assertEqual(effects(key), 1)

    def test_in_progress_says_when_to_come_back(self):
        key = new_key()
        with held(key, '{"amount": 1}'), self.assertRaises(InProgress) as raised:
            self.pay(key, {"amount": 1}, retry=IMPATIENT)
        self.assertEqual(raised.exception.sqlstate, "ID001")
        self.assertGreater(raised.exception.retry_after, 0)
        self.assertEqual(effects(key), 0)

    def test_in_progress_is_retried(self):
        key = new_key()
        release = threading.Event()

        def hold():
            with held(key, '{"amount": 1}'):
                holding.set()
                release.wait()
        holding = threading.Event()
        holder = threading.Thread(target=hold)
        holder.start()
        self.addCleanup(release.set)
        holding.wait()
        refused = []

        class Watch(Retry):  # the holder ends after the first refusal
            def pause(self, error, attempt, elapsed):
                refused.append(pg_idem.sqlstate(error))
                release.set()
                holder.join()
                return super().pause(error, attempt, elapsed)
        self.assertFalse(self.pay(key, {"amount": 1}, retry=Watch(attempts=3)).replayed)
        self.assertEqual((refused, effects(key)), (["ID001"], 1))

    def test_an_operation_without_attempts_left_is_undecided(self):
        key = new_key()
        token = use_up_attempts(key, '{"amount": 1}')
        with self.assertRaises(AttemptsExhausted) as raised:
            self.pay(key, {"amount": 1})
        refused = raised.exception
        self.assertEqual((refused.sqlstate, refused.retry_after, effects(key)), ("ID014", 60, 0))
        self.assertIn("keep the key", str(refused))
        with self.assertRaises(Conflict):
            self.pay(key, {"amount": 2})
        # Its last attempt may still say how it went.
        query("SELECT idem.complete(%s, '\"late\"')::text", token)
        answer = self.pay(key, {"amount": 1})
        self.assertEqual((answer.response, answer.replayed, effects(key)), ("late", True, 0))

    def test_an_undecided_operation_is_asked_for_again(self):
        key, refused = new_key(), []
        use_up_attempts(key, '{"amount": 1}')

        class Watch(Retry):  # an administrator allows one more attempt after the first refusal
            def pause(self, error, attempt, elapsed):
                refused.append((pg_idem.sqlstate(error), super().pause(error, attempt, 0) >= 60))
                query("SELECT idem.revoke('payments', %s::text)::text", key)
                return 0
        answer = self.pay(key, {"amount": 1}, retry=Watch(deadline=100))
        self.assertEqual((answer.replayed, refused, effects(key)), (False, [("ID014", True)], 1))

    def test_a_cancelled_operation_never_runs(self):
        cancel = ("SELECT state FROM idem.cancel('payments', %s::text,"
                  " error => '{\"message\": \"too late\"}')")
        key, undecided = new_key(), new_key()
        self.assertEqual(query(cancel, key), "failed")
        query("SELECT idem.revoke('payments', %s::text)::text", key)
        with self.assertRaisesRegex(Failure, "too late") as raised:
            self.pay(key, {"amount": 1})
        self.assertEqual((raised.exception.replayed, effects(key)), (True, 0))
        use_up_attempts(undecided, '{"amount": 1}')
        self.assertEqual(query(cancel, undecided), "exhausted")
        with self.assertRaises(AttemptsExhausted):
            self.pay(undecided, {"amount": 1})

    def test_a_claim_waits_for_the_holder(self):
        key = new_key()
        with connect() as holder:
            holder.execute("BEGIN")
            holder.execute("SELECT idem.claim('payments', %s::text, '{\"amount\": 1}')", (key,))
            pid = holder.info.backend_pid

            paid = threading.Event()

            def end_it():
                while not paid.is_set() and not query(
                        "SELECT count(*) FROM pg_locks"
                        " WHERE NOT granted AND %s = ANY (pg_blocking_pids(pid))", pid):
                    pass
                holder.execute("ROLLBACK")
            helper = threading.Thread(target=end_it)
            helper.start()
            try:
                self.assertFalse(self.pay(key, {"amount": 1}, wait=60.0, retry=IMPATIENT).replayed)
            finally:
                paid.set()
                helper.join()

    def test_refusals_of_a_claim(self):
        for key, scope, code in (("", "payments", "ID007"), ("k" * 256, "payments", "ID007"),
                                 ("k", "payment", "ID008")):
            with self.subTest(code), self.assertRaises(Refused) as raised:
                self.pay(key, {"amount": 1}, scope=scope)
            self.assertEqual(raised.exception.sqlstate, code)
        with self.assertRaises(Refused) as raised:
            self.pay(new_key(), {"note": "\u0000"})
        self.assertEqual(raised.exception.sqlstate[:2], "22")

    def test_stale(self):
        with connect() as connection:
            connection.execute("SELECT idem.create_scope('fresh', reject_stale_keys => true,"
                               " if_not_exists => true)")
        with self.assertRaises(StaleKey):
            self.pay("018f0000-0000-7000-8000-000000000000", None, scope="fresh")

    def test_limited(self):
        needs_the_library(self, "limits")
        with connect() as connection:
            connection.execute("SELECT idem.create_scope('strict', claims_per_minute => 1,"
                               " if_not_exists => true)")
        with self.assertRaises(LimitExceeded) as raised:
            for _ in range(3):
                self.pay(new_key(), None, scope="strict", statement="SELECT 1", retry=IMPATIENT)
        self.assertGreater(raised.exception.retry_after, 0)

    def test_tenants(self):
        key = new_key()
        for tenant in ("a", "b", core.UNSET):
            self.assertFalse(self.pay(key, {"amount": 1}, tenant=tenant).replayed)
        self.assertEqual(effects(key), 3)
        with self.assertRaisesRegex(TypeError, "tenant must be a str"):  # of an attribute
            self.pay(key, {"amount": 1}, tenant=None)

    def test_json_of_the_application(self):
        key, amount = new_key(), Decimal("12345678901.123456789")
        options = {"dumps": lambda value: json.dumps(value, default=float) if value != "exact"
                   else str(amount), "loads": partial(json.loads, parse_float=Decimal)}
        for _ in range(2):
            answer = self.pay(key, {"amount": 1}, end=lambda: "exact", **options)
            self.assertEqual(answer.response, amount)

    def test_amounts_stay_exact(self):
        key, exact = new_key(), '{"amount": 12345678901.123456789}'
        self.pay(key, pg_idem.JsonText(exact))
        with self.assertRaises(Conflict):
            self.pay(key, pg_idem.JsonText(exact.replace("789}", "788}")))


class Psycopg(Outcomes, PaymentTest):
    def pay(self, key, request, *, scope="payments", wait=0.0, retry=PATIENT, end=None,
            statement=INSERT, tenant=core.UNSET, expires=False, **options):
        amounts = request if isinstance(request, dict) else {"amount": 1}

        def work(connection):
            row = connection.execute(statement, amounts).fetchone()
            return end() if end else {"id": row[0]}
        payments = Idempotency(connect, wait=wait, **options)
        return payments.run(scope, key, request, work, tenant=tenant, retry=retry,
                            expires=expires)

    def test_decorator(self):
        payments = Idempotency(connect, tenant="shop")

        @payments.operation("payments")
        def pay(connection, request):
            """Pays."""
            return connection.execute(INSERT, request).fetchone()[0]
        for forgotten in (lambda: pay({"amount": 1}), lambda: pay(new_key()), pay,
                          lambda: pay(new_key(), {"amount": 1}, tenant="other")):
            with self.assertRaises(TypeError):
                forgotten()
        key = new_key()
        self.assertEqual(pay(key, {"amount": 1}), pay(key, {"amount": 1}))
        self.assertNotEqual(pay(key, {"amount": 1}), pay.of(tenant="other")(key, {"amount": 1}))
        self.assertEqual((pay.__name__, pay.__doc__), ("pay", "Pays."))
        for wrong in (lambda: pay.of(tenant=None)(key, {"amount": 1}),
                      lambda: payments.lease("payments", key, None, tenant=None),
                      lambda: pg_idem.Worker(payments, "payments", print, tenant=None),
                      lambda: Idempotency(connect, tenant=None)):
            with self.assertRaisesRegex(TypeError, "tenant must be a str"):
                wrong()

        @payments.operation("payments")
        def refund(connection, request):
            return "refunded"
        with self.assertRaises(Conflict):
            refund(key, {"amount": 1})
        self.assertEqual(payments.operation("payments", pay.__qualname__)(refund)(
            key, {"amount": 1}), pay(key, {"amount": 1}))

    def test_functions_of_one_name(self):
        payments = Idempotency(connect)

        class A:
            @payments.operation("payments")
            def pay(connection, request):
                return "a"

        class B:
            @payments.operation("payments")
            def pay(connection, request):
                return "b"
        key = new_key()
        self.assertEqual(A.pay(key, 1), "a")
        with self.assertRaises(Conflict):
            B.pay(key, 1)
        for nameless in (lambda connection: 1, partial(A.pay, None)):
            with self.subTest(nameless), self.assertRaisesRegex(TypeError, "pass name="):
                payments.operation("payments")(nameless)
            payments.operation("payments", name="nameless")(nameless)

    def test_a_statement_that_a_signal_ends_does_not_hold_the_key(self):
        def expire(*_):  # as the time limit of a task queue
            raise LookupError("time is up")
        before = signal.signal(signal.SIGALRM, expire)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        key = new_key()
        with self.assertRaises(LookupError):
            Idempotency(connect).run("payments", key, {}, lambda connection: (
                connection.execute("SELECT pg_sleep(600)")))
        self.assertEqual(Idempotency(connect).run("payments", key, {}, lambda _: 1).response, 1)

    def test_floats_that_the_application_reads_as_decimals(self):
        class Exact(psycopg.adapt.Loader):
            def load(self, data):
                return Decimal(bytes(data).decode())

        @contextlib.contextmanager
        def exact():
            with connect() as connection:
                connection.adapters.register_loader("float8", Exact)
                yield connection
        payments, key = Idempotency(exact, wait=0, retry=PATIENT), new_key()
        first, again = [payments.run("payments", key, {}, lambda connection: 1, expires=True)
                        for _ in range(2)]
        self.assertEqual((first.expires, again.replayed), (again.expires, True))
        with held(key + "2", "{}"), self.assertRaises(InProgress) as raised:
            payments.run("payments", key + "2", {}, None, retry=IMPATIENT)
        self.assertIsInstance(raised.exception.retry_after, float)

    def test_what_has_not_run_is_no_answer(self):
        async def coroutine(*_):
            pass

        def generator(connection):
            yield connection.execute(INSERT, {"amount": 1})

        async def forgotten(connection):
            return coroutine()
        dumps = partial(json.dumps, default=str)  # as for decimals and dates
        payments = Idempotency(connect, dumps=dumps)
        run_async = AsyncIdempotency(aconnect, dumps=dumps).run
        for run, function in ((payments.run, coroutine), (payments.run, generator), (
                lambda *arguments: asyncio.run(run_async(*arguments)), forgotten)):
            key = new_key()
            with self.subTest(function), self.assertRaisesRegex(TypeError, "has not run"):
                run("payments", key, {}, function)
            self.assertEqual(query("SELECT state FROM idem.lookup('payments', %s::text)", key),
                             "absent")

        def pay(lease):
            return lease.step("charge", coroutine)
        with self.assertRaisesRegex(TypeError, "has not run"):
            payments.lease("payments", new_key(), {}).run(pay)

    def test_a_function_of_the_same_name_in_another_module_is_refused(self):
        def defined_in(module, answer):
            def create(connection, request):
                return answer
            create.__module__ = module
            return create
        for kind in (Idempotency, AsyncIdempotency):
            shop = kind(connect)
            shop.operation("payments")(defined_in("shop.charges", 1))
            shop.operation("payments")(defined_in("shop.charges", 2))  # reloaded, or per request
            for _ in range(2):
                with self.assertRaisesRegex(TypeError, "of shop.charges, .* pass name="):
                    shop.operation("payments")(defined_in("shop.refunds", 3))
            shop.operation("payments", name="refund")(defined_in("shop.refunds", 3))
            shop.operation("others")(defined_in("shop.refunds", 3))
            kind(connect).operation("payments")(defined_in("shop.refunds", 3))

    def test_a_failure_of_an_operation_inside_is_no_replay(self):
        seen, inner, key = [], new_key(), new_key()
        payments = Idempotency(connect, on_event=seen.append)

        def decline(connection):
            raise Failure("declined")

        def order(connection):
            Idempotency(connect).run("payments", inner, {"amount": 1}, decline, expires=True)
        with self.assertRaises(Failure):
            order(None)
        for replayed in (False, True):
            with self.assertRaises(Failure) as raised:
                payments.run("payments", key, {"amount": 1}, order)
            self.assertEqual(raised.exception.replayed, replayed)
            self.assertEqual(raised.exception.expires is None, not replayed)
        self.assertEqual([event.type for event in seen], ["claimed", "failed", "replayed"])

    def test_an_encoding_without_text(self):
        def ascii():
            return connect(client_encoding="SQL_ASCII")

        async def run(key):
            connection = await psycopg.AsyncConnection.connect(
                autocommit=True, client_encoding="SQL_ASCII")
            return await AsyncIdempotency(lambda: connection).run("payments", key, None, None)
        key = new_key()
        for call in (lambda: Idempotency(ascii).run("payments", key, {}, self.fail),
                     lambda: Idempotency(ascii).lease("payments", key, {}).run(self.fail),
                     lambda: asyncio.run(run(key))):
            with self.assertRaisesRegex(RuntimeError, "client_encoding is SQL_ASCII"):
                call()

    def test_arguments_that_an_attempt_has_changed_are_not_run(self):
        @Idempotency(connect).operation("payments")
        def pay(connection, amounts, *, note=None):
            connection.execute(INSERT, {"amount": amounts.pop()})
            raise psycopg.errors.SerializationFailure("lost")
        for arguments in ({"amounts": [1, 2]}, {"amounts": [1, 2], "note": "two"}):
            key = new_key()
            with self.assertRaisesRegex(RuntimeError, "request has changed"):
                pay(key, **arguments)
            self.assertEqual(effects(key), 0)

    def test_an_operation_keeps_the_signature_of_its_function(self):
        @Idempotency(connect).operation("payments")
        def pay(connection, amount, *, note="none"):
            connection.execute(INSERT, {"amount": amount})
            return note
        key = new_key()
        self.assertEqual([pay(key, 10), pay(key, amount=10, note="none")], ["none", "none"])
        self.assertEqual(effects(key), 1)
        for other in ({"amount": 11}, {"amount": 10, "note": "other"}):
            with self.assertRaises(Conflict):
                pay(key, **other)
        for wrong in ({}, {"amount": 1, "notes": ""}):
            with self.assertRaises(TypeError):
                pay(key, **wrong)

    def test_the_row_factory_of_the_application_stays(self):
        from psycopg.rows import dict_row
        payments = Idempotency(partial(connect, row_factory=dict_row))
        answer = payments.run("payments", new_key(), {"amount": 1},
                              lambda connection: connection.execute("SELECT 1 AS one").fetchone())
        self.assertEqual(answer.response, {"one": 1})

    def test_an_operation_needs_a_transaction_of_its_own(self):
        with connect() as connection, connection.transaction():
            payments = Idempotency(lambda: contextlib.nullcontext(connection))
            for way in (partial(payments.run, "payments", new_key(), {"amount": 1}),
                        payments.transaction):
                with self.subTest(way), self.assertRaisesRegex(RuntimeError, "open transaction"):
                    way(lambda connection: None)

    def test_the_modes_of_the_connection_are_those_of_the_transaction(self):
        with psycopg.connect() as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only, connection.deferrable = False, True
            payments = Idempotency(lambda: contextlib.nullcontext(connection))
            answer = payments.run("payments", new_key(), {"amount": 1}, lambda connection: [
                connection.execute(f"SHOW transaction_{mode}").fetchone()[0]
                for mode in ("isolation", "read_only", "deferrable")])
            self.assertEqual(answer.response, ["repeatable read", "off", "on"])

    def test_a_transaction_that_claims_by_itself_follows_the_error(self):
        # The server says when to come back: in the field of 0.3, or only in the hint.
        for using, least in (("DATATYPE = '300', HINT = 'Retry after 9.9 seconds.'", 0.3),
                             ("HINT = 'Retry with the same key after 0.2 seconds.'", 0.2)):
            tries, pauses = [], []

            class Watch(Retry):
                def pause(self, error, attempt, elapsed):
                    pauses.append(super().pause(error, attempt, elapsed))
                    return pauses[-1]

            def work(connection):
                tries.append(1)
                if len(tries) == 1:
                    connection.execute("DO $$ BEGIN RAISE EXCEPTION 'operation is in progress'"
                                       f" USING ERRCODE = 'ID001', {using}; END $$")
                return "done"
            answer = Idempotency(connect).transaction(work, retry=Watch(first=0.01))
            self.assertEqual(answer, "done")
            self.assertTrue(least <= pauses[0] <= least + 0.1, pauses)

    def test_a_real_id001_is_retried_or_given_up(self):
        key = new_key()

        def work(connection):
            connection.execute("SELECT idem.claim('payments', %s::text, '{}', wait => '0')", (key,))
        with held(key, "{}"), self.assertRaises(psycopg.Error) as raised:
            Idempotency(connect).transaction(work, retry=Retry(attempts=2, first=0.01))
        self.assertEqual(raised.exception.sqlstate, "ID001")
        fields = raised.exception.diag
        self.assertEqual((fields.schema_name, fields.constraint_name), ("idem", "in_progress"))
        self.assertEqual(pg_idem.retry_after(raised.exception), int(fields.datatype_name) / 1000)

    def test_a_real_id014_is_given_up_if_its_time_is_beyond_the_deadline(self):
        key, calls = new_key(), []
        use_up_attempts(key, "{}")

        def work(connection):
            calls.append(1)
            connection.execute("SELECT idem.claim('payments', %s::text, '{}')", (key,))
        with self.assertRaises(psycopg.Error) as raised:
            Idempotency(connect).transaction(work)
        error = raised.exception
        self.assertEqual((error.sqlstate, pg_idem.retry_after(error), calls), ("ID014", 60, [1]))

    def test_a_wrong_key_needs_no_connection(self):
        def unreachable():
            self.fail("connects")
        for payments in (Idempotency(unreachable), AsyncIdempotency(unreachable)):
            with self.assertRaises(TypeError):
                asyncio.run(payments.run("payments", {"amount": 10}, None, print) or self.fail())

    def test_no_request_is_said_so(self):
        with connect() as connection:
            connection.execute("SELECT idem.create_scope('unbound', if_not_exists => true)")
        payments, key = Idempotency(connect).operation("unbound", name="done")(
            lambda connection, request=None: "done"), new_key()
        self.assertEqual([payments(key, None), payments(key, request=None), payments(key)],
                         ["done"] * 3)

    def test_claiming_a_key_twice_is_not_retried(self):
        calls = []

        def work(connection):
            calls.append(1)
            for _ in range(2):
                connection.execute("SELECT idem.claim('payments', 'twice', '{}')")
        with self.assertRaises(psycopg.Error) as raised:
            Idempotency(connect).transaction(work)
        self.assertEqual((raised.exception.sqlstate, len(calls)), ("ID001", 1))

    def test_a_wrong_database_or_role_and_too_many_parameters_are_not_retried(self):
        drivers = [psycopg.connect]
        if psycopg2:
            drivers.append(lambda **wrong: contextlib.closing(psycopg2.connect(**wrong)))
        calls = []
        for driver, wrong in itertools.product(drivers, ({"dbname": "no such"}, {"user": "none"})):
            def attempt():
                calls.append(1)
                return driver(**wrong)
            with self.assertRaises(Exception) as raised:
                Idempotency(attempt).run("payments", new_key(), {}, self.fail)
            self.assertFalse(pg_idem.is_transient(raised.exception), raised.exception)
        self.assertEqual(len(calls), 2 * len(drivers))
        with self.assertRaises(psycopg.Error) as raised:
            Idempotency(connect).transaction(lambda connection: connection.execute(
                "SELECT " + "%s," * 70_000, range(70_000)), retry=Retry(first=0))
        self.assertFalse(pg_idem.is_transient(raised.exception), raised.exception)

    def test_the_table_of_errors_is_that_of_the_server(self):
        with connect() as connection:
            for code in [*core.ERRORS, "23505", "25000", "42703", "P0001", "XX000", "0A000"]:
                full = (code + "000")[:5]
                status, name, title = connection.execute(
                    "SELECT p->>'status', nullif(substr(p->>'type', 18), ''), p->>'title'"
                    " FROM idem.problem(%s) AS p", (full,)).fetchone()
                known = core.known(full)
                if code != "08P01":    # in a session it is a mistake of the service
                    self.assertEqual(known.status, int(status), code)
                self.assertEqual((known.name, known.name and known.title),
                                 (name, name and title), code)


@unittest.skipUnless(psycopg2, "psycopg2 is not installed")
class Psycopg2(Outcomes, PaymentTest):
    def pay(self, key, request, *, scope="payments", wait=0.0, retry=PATIENT, end=None,
            statement=INSERT, tenant=core.UNSET, expires=False, **options):
        amounts = request if isinstance(request, dict) else {"amount": 1}

        def work(connection):
            with connection.cursor() as cursor:
                cursor.execute(statement, amounts)
                row = cursor.fetchone()
            return end() if end else {"id": row[0]}
        payments = pg_idem.psycopg2.Idempotency(self.connect, wait=wait, **options)
        return payments.run(scope, key, request, work, tenant=tenant, retry=retry,
                            expires=expires)

    @staticmethod
    def connect():
        return contextlib.closing(psycopg2.connect(""))

    def test_the_modes_of_the_connection_are_those_of_the_transaction(self):
        def modes(connection):
            with connection.cursor() as cursor:
                cursor.execute("SELECT current_setting('transaction_isolation'),"
                               " current_setting('transaction_deferrable')")
                return cursor.fetchone()
        with self.connect() as connection:
            connection.set_session("SERIALIZABLE", deferrable=False)
            payments = pg_idem.psycopg2.Idempotency(lambda: contextlib.nullcontext(connection))
            answer = payments.run("payments", new_key(), {"amount": 1}, modes)
        self.assertEqual(answer.response, ["serializable", "off"])

    def test_text_is_quoted(self):
        key, note = "k' \\ \" $$ %s %(key)s " + new_key(), "'; ROLLBACK; -- \\'"
        for replayed in (False, True):
            answer = self.pay(key, {"amount": 1, "note": note}, end=lambda: note)
            self.assertEqual((answer.response, answer.replayed), (note, replayed))
        self.assertEqual(effects(key), 1)

    def test_what_others_have_planted_in_the_search_path_is_not_run(self):
        key = new_key()
        with connect() as connection:
            connection.execute("CREATE SCHEMA planted")
            for function in ("to_jsonb(record)", "jsonb_build_object(text, text)"):
                connection.execute(f"CREATE FUNCTION planted.{function} RETURNS jsonb"
                                   " LANGUAGE plpgsql AS $$ BEGIN RAISE 'planted'; END $$")
            try:
                with mock.patch.dict(os.environ, PGOPTIONS="-c search_path=public,planted"):
                    self.assertEqual([self.pay(key, {"amount": 1}).replayed for _ in range(2)],
                                     [False, True])
            finally:
                connection.execute("DROP SCHEMA planted CASCADE")

    def test_a_transaction(self):
        def work(connection):
            with connection.cursor() as cursor:
                cursor.execute("CREATE TEMPORARY TABLE work ON COMMIT DROP AS SELECT 1 AS one")
                cursor.execute("SELECT one FROM work")
                return cursor.fetchone()[0]
        payments = pg_idem.psycopg2.Idempotency(self.connect)
        self.assertEqual(payments.transaction(work), 1)


class PsycopgAsync(Outcomes, PaymentTest):
    def pay(self, key, request, *, scope="payments", wait=0.0, retry=PATIENT, end=None,
            statement=INSERT, tenant=core.UNSET, expires=False, **options):
        amounts = request if isinstance(request, dict) else {"amount": 1}

        async def work(connection):
            cursor = await connection.execute(statement, amounts)
            row = await cursor.fetchone()
            return end() if end else {"id": row[0]}

        async def run():
            payments = AsyncIdempotency(aconnect, wait=wait, **options)
            return await payments.run(scope, key, request, work, tenant=tenant, retry=retry,
                                      expires=expires)
        return asyncio.run(run())

    def test_decorator(self):
        payments = AsyncIdempotency(aconnect)

        @payments.operation("payments")
        async def pay(connection, request):
            return (await (await connection.execute(INSERT, request)).fetchone())[0]

        for forgotten in (lambda: pay({"amount": 1}), lambda: pay(new_key()), pay):
            with self.assertRaises(TypeError):
                asyncio.run(forgotten())

        async def twice(key):
            return [await pay(key, {"amount": 1}) for _ in range(2)]
        first, again = asyncio.run(twice(new_key()))
        self.assertEqual(first, again)

    def test_an_operation_needs_a_transaction_of_its_own(self):
        async def work(connection):
            pass

        async def main():
            async with aconnect() as connection, connection.transaction():
                payments = AsyncIdempotency(lambda: contextlib.nullcontext(connection))
                for way in (partial(payments.run, "payments", new_key(), {}),
                            payments.transaction):
                    with self.subTest(way), self.assertRaisesRegex(RuntimeError, "open transact"):
                        await way(work)
        asyncio.run(main())

    def test_a_cancelled_statement_does_not_hold_the_key(self):
        key = new_key()

        async def late():
            payments = AsyncIdempotency(aconnect)
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(payments.run("payments", key, {}, lambda connection: (
                    connection.execute("SELECT pg_sleep(600)"))), 0.5)
            return await payments.run("payments", key, {}, lambda _: asyncio.sleep(0, "done"))
        self.assertEqual(asyncio.run(late()).response, "done")

    def test_cancellation_rolls_back(self):
        key = new_key()

        async def work(connection):
            await connection.execute(INSERT, {"amount": 1})
            raise asyncio.CancelledError
        with self.assertRaises(asyncio.CancelledError):
            asyncio.run(AsyncIdempotency(aconnect).run("payments", key, {}, work))
        self.assertEqual(effects(key), 0)


@unittest.skipUnless(sqlalchemy, "SQLAlchemy is not installed")
class SQLAlchemyCore(Outcomes, PaymentTest):
    """Connections of SQLAlchemy. 1.4 has a dialect for psycopg2 only, 2.0 also for psycopg 3."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if hasattr(sqlalchemy.exc, "RemovedIn20Warning"):
            caught = warnings.catch_warnings()
            caught.__enter__()
            cls.addClassCleanup(caught.__exit__, None, None, None)
            warnings.simplefilter("error", sqlalchemy.exc.RemovedIn20Warning)
        driver = "psycopg2" if sqlalchemy.__version__.startswith("1.") else "psycopg"
        # To 127.0.0.1, or to the socket: as libpq's environment says.
        cls.engine = sqlalchemy.create_engine(f"postgresql+{driver}://", future=True)

    @classmethod
    def tearDownClass(cls):
        cls.engine.dispose()

    connect = property(lambda self: self.engine.begin)

    def pay(self, key, request, *, scope="payments", wait=0.0, retry=PATIENT, end=None,
            statement=INSERT, tenant=core.UNSET, expires=False, **options):
        amounts = request if isinstance(request, dict) else {"amount": 1}

        def work(connection):
            row = connection.execute(sqlalchemy.text(statement.replace("%(amount)s", ":amount")),
                                     amounts).fetchone()
            return end() if end else {"id": row[0]}
        payments = pg_idem.sqlalchemy.Idempotency(self.connect, wait=wait, **options)
        return payments.run(scope, key, request, work, tenant=tenant, retry=retry,
                            expires=expires)

    def test_an_operation_of_a_coroutine_runs_in_a_thread(self):  # docs/frameworks.md
        key = new_key()

        async def twice():
            return [await asyncio.to_thread(self.pay, key, {"amount": 1}) for _ in range(2)]
        self.assertEqual([answer.replayed for answer in asyncio.run(twice())], [False, True])
        self.assertEqual(effects(key), 1)

    def test_a_transaction_that_is_not_committed_is_no_success(self):
        for connect in self.not_committing():
            key, payments = new_key(), pg_idem.sqlalchemy.Idempotency(connect, retry=IMPATIENT)

            def work(connection):
                connection.execute(sqlalchemy.text(
                    "INSERT INTO payment (key, amount) VALUES (:key, 1)"), {"key": key})
            for way in (partial(payments.run, "payments", key, {}), payments.transaction):
                with self.subTest(way), self.assertRaisesRegex(RuntimeError, "rolled back"):
                    way(work)
            self.assertEqual(effects(key), 0)

    def not_committing(self):
        return [self.engine.connect]

    def test_an_error_of_sqlalchemy_says_when_to_come_back(self):
        key = new_key()
        with held(key, "{}"), self.assertRaises(sqlalchemy.exc.DBAPIError) as raised:
            with self.engine.begin() as connection:
                connection.execute(sqlalchemy.text(
                    "SELECT idem.claim('payments', CAST(:key AS text), '{}', wait => '0')"),
                    {"key": key})
        self.assertEqual(pg_idem.sqlstate(raised.exception), "ID001")
        self.assertGreater(pg_idem.retry_after(raised.exception), 0)
        self.assertTrue(pg_idem.is_transient(raised.exception))


@unittest.skipUnless(sqlalchemy, "SQLAlchemy is not installed")
class SQLAlchemyORM(SQLAlchemyCore):
    connect = property(lambda self: sqlalchemy.orm.sessionmaker(self.engine, future=True).begin)

    def not_committing(self):
        return [sqlalchemy.orm.sessionmaker(self.engine, future=True)]

    def test_a_session_that_its_owner_commits(self):
        @contextlib.contextmanager
        def scope():
            session = sqlalchemy.orm.sessionmaker(self.engine, future=True)()
            try:
                yield session
                session.commit()
            finally:
                session.close()
        key, payments = new_key(), pg_idem.sqlalchemy.Idempotency(scope)
        for replayed in (False, True):
            answer = payments.run("payments", key, {}, lambda session: session.execute(
                sqlalchemy.text(INSERT.replace("%(amount)s", "1"))).scalar())
            self.assertEqual((answer.replayed, effects(key)), (replayed, 1))

    def test_what_the_session_has_not_flushed_is_part_of_the_operation(self):
        class Base:
            pass
        table = sqlalchemy.Table("payment", sqlalchemy.MetaData(),
                                 sqlalchemy.Column("id", sqlalchemy.Integer, primary_key=True),
                                 sqlalchemy.Column("amount", sqlalchemy.Numeric))
        sqlalchemy.orm.registry().map_imperatively(Base, table)
        payments = pg_idem.sqlalchemy.Idempotency(self.connect)

        @payments.operation("payments")
        def pay(session, request):  # idem.current_key() needs the claim to be open
            session.add(Base(amount=request["amount"]))
        key = new_key()
        pay(key, {"amount": 5})
        pay(key, {"amount": 5})
        self.assertEqual(effects(key), 1)

        @payments.operation("payments")
        def pay_twice(session, request):
            first = Base(amount=request["amount"])
            session.add(first)
            session.flush()
            session.expunge(first)
            session.add(Base(id=first.id, amount=request["amount"]))
            try:
                session.flush()
            except sqlalchemy.exc.IntegrityError:
                pass
            return {"paid": True}
        key = new_key()
        for _ in range(2):
            with self.assertRaises(RuntimeError):
                pay_twice(key, {"amount": 5})
        self.assertEqual(effects(key), 0)

    def test_a_pool_that_has_no_connection_left(self):
        engine = sqlalchemy.create_engine(self.engine.url, pool_size=1, max_overflow=0,
                                          pool_timeout=0, future=True)
        with engine.connect():
            with self.assertRaises(sqlalchemy.exc.TimeoutError) as raised:
                engine.connect()
        engine.dispose()
        self.assertTrue(pg_idem.is_transient(raised.exception))


@unittest.skipUnless(django and psycopg2, "Django or psycopg2 is not installed")
class DjangoORM(Outcomes, PaymentTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.payment, _ = django_payment()

    @classmethod
    def tearDownClass(cls):
        from django.db import connections
        connections.close_all()

    def pay(self, key, request, *, scope="payments", wait=0.0, retry=PATIENT, end=None,
            statement=INSERT, tenant=core.UNSET, expires=False, **options):
        import pg_idem.django

        def work(connection):
            made = None
            if statement == INSERT:
                amount = request["amount"] if isinstance(request, dict) else 1
                made = self.payment.objects.create(amount=amount).pk
            return end() if end else {"id": made}
        payments = pg_idem.django.Idempotency(wait=wait, **options)
        return payments.run(scope, key, request, work, tenant=tenant, retry=retry,
                            expires=expires)

    def test_an_operation_that_ignored_an_error_is_not_committed(self):
        from django.db import IntegrityError
        import pg_idem.django

        def work(_):
            made = self.payment.objects.create(amount=5)
            try:
                self.payment.objects.create(pk=made.pk, amount=5)
            except IntegrityError:
                pass
            return {"paid": True}
        key = new_key()
        for _ in range(2):
            with self.assertRaises(RuntimeError):
                pg_idem.django.Idempotency().run("payments", key, {}, work)
        self.assertEqual(effects(key), 0)

    def test_an_operation_within_a_transaction_is_refused(self):
        from django.db import transaction
        with transaction.atomic(), self.assertRaises(RuntimeError):
            self.pay(new_key(), {"amount": 1})

    def test_without_autocommit_nothing_would_be_committed(self):
        from django.db import connection
        connection.close()
        self.addCleanup(connection.close)
        self.addCleanup(connection.settings_dict.update, AUTOCOMMIT=True)
        connection.settings_dict["AUTOCOMMIT"] = False
        with self.assertRaisesRegex(RuntimeError, "autocommit"):
            self.pay(new_key(), {"amount": 1})


if __name__ == "__main__":
    unittest.main()
