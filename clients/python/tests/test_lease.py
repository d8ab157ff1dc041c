"""Operations of several steps: their steps, heartbeats and ends, and workers that finish them."""

import asyncio
import collections
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock
from pathlib import Path

import psycopg
import pg_idem
from pg_idem import (AsyncIdempotency, AsyncLease, AsyncWorker, AttemptsExhausted, Conflict,
                     Failure, Idempotency, InProgress, Lease, LeaseLost, Retry, Worker)

from mortal import Places, pay, pay_async
from support import (PaymentTest, aconnect, connect, effects, needs_the_library, new_key, psycopg2,
                     query, sqlalchemy)


SCOPE = """
    SELECT idem.create_scope('leased', request_required => true, store_request => 'unfinished',
                             if_not_exists => true)::text"""
INSERT = "INSERT INTO payment (amount) VALUES (1) RETURNING id"
NOW = (0.0, 0.0)  # as backoff: the next attempt may begin at once
HERE = Path(__file__).parent


class LeaseTest(PaymentTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        query(SCOPE)


def state_of(key, scope="leased"):
    return query("SELECT state FROM idem.lookup(%s, %s::text)", scope, key)


def wait_until_undecided(key):
    """Until the lease of its only attempt has ended."""
    while state_of(key, "payments") != "exhausted":
        time.sleep(0.02)


def lease_end(key):
    return query("SELECT lease_end FROM idem.in_flight WHERE scope = 'leased' AND key = %s", key)


def end_leases():
    query("SELECT count(idem.revoke('leased', key)) FROM idem.records"
          " WHERE scope = 'leased' AND state = 'in_progress'")


def finish_others():
    """Finishes what other tests have left, so that a worker finds only what its test has made."""
    end_leases()  # a lease that still runs would end during the test
    with connect() as connection:
        while True:
            token, = connection.execute("SELECT token FROM idem.take('leased')").fetchone()
            if token is None:
                return
            connection.execute("SELECT idem.complete(%s)", (token,))


class Leases:
    """The tests of leases. A subclass says how to connect and how to insert a payment."""

    payments = None

    def insert(self, connection):
        return connection.execute(INSERT).fetchone()[0]

    def lease(self, key, request=None, scope="leased", **options):
        options.setdefault("backoff", NOW)
        return self.payments.lease(scope, key, request or {"amount": 1}, **options)

    @contextlib.contextmanager
    def undecided(self, key):
        """The only attempt of an operation, whose process has slept over the end of the lease."""
        with unittest.mock.patch.object(Lease, "_beat"):
            with self.lease(key, scope="payments", lease=0.1) as lease:
                wait_until_undecided(key)
                yield lease

    def test_a_step_runs_once(self):
        key, ran = new_key(), []

        def attempt(lease):
            first = lease.step("first", lambda: ran.append("first") or {"n": (1, 2)})
            second = lease.step("second", lambda: ran.append("second") or 1 / (len(ran) - 2))
            return [lease.attempt, first, second]
        with self.assertRaises(ZeroDivisionError):
            self.lease(key).run(attempt)
        answer = self.lease(key).run(attempt)
        self.assertEqual(answer.response, [2, {"n": [1, 2]}, 1.0])
        self.assertEqual(ran, ["first", "second", "second"])
        again = self.lease(key).run(attempt)
        self.assertEqual((again.response, again.replayed), (answer.response, True))

    def test_a_finished_operation_has_its_answer(self):
        key = new_key()
        with self.lease(key) as lease:
            lease.complete({"paid": 1})
        with self.lease(key) as lease:
            self.assertEqual((lease.answer.response, lease.answer.replayed), ({"paid": 1}, True))
            with self.assertRaises(LeaseLost):
                lease.step("charge", self.fail)
        with self.assertRaises(Conflict):
            self.lease(key, {"amount": 2}).run(lambda lease: self.fail())

    def test_the_effect_is_committed_with_the_answer(self):
        key = new_key()
        with self.lease(key) as lease:
            with self.assertRaises(ZeroDivisionError):
                lease.complete(effect=lambda connection: self.insert(connection) / 0)
            self.assertEqual((effects(key), state_of(key)), (0, "in_progress"))
            answer = lease.complete(effect=self.insert)
        self.assertEqual((effects(key), state_of(key)), (1, "completed"))
        self.assertEqual(self.lease(key).run(None).response, answer.response)

    def test_a_failure_is_stored_and_its_effect_is_not(self):
        key = new_key()

        def effect(connection):
            self.insert(connection)
            raise Failure("declined", status=402)
        for replayed in (False, True):
            with self.assertRaises(Failure) as raised:
                self.lease(key).run(lambda lease: lease.complete(effect=effect))
            failed = raised.exception
            self.assertEqual((failed.message, failed.status, failed.replayed),
                             ("declined", 402, replayed))
        self.assertEqual(effects(key), 0)

    def test_nothing_begins_within_complete_that_would_wait_for_it(self):
        for begin in (lambda lease: lease.step("late", self.fail),
                      lambda lease: lease.complete("again")):
            def pay(lease):
                def effect(connection):
                    payment = self.insert(connection)
                    if lease.attempt == 1:
                        begin(lease)
                    return payment
                lease.complete(effect=effect)
                with self.assertRaises(LeaseLost):  # the operation is over
                    begin(lease)
            key = new_key()
            with self.assertRaisesRegex(RuntimeError, r"must not begin while complete\(\) runs"):
                self.lease(key).run(pay)
            self.assertEqual((effects(key), state_of(key)), (0, "in_progress"))
            self.lease(key).run(pay)
            self.assertEqual((effects(key), state_of(key)), (1, "completed"))

    def test_a_completed_operation_does_not_fail(self):
        def pay(lease):
            lease.complete("paid")
            raise Failure("declined")
        key = new_key()
        with self.assertRaisesRegex(RuntimeError, "completed already"):
            self.lease(key).run(pay)
        with self.assertRaisesRegex(RuntimeError, "completed already"), self.lease(key):
            raise Failure("declined")
        self.assertEqual(self.lease(key).run(pay).response, "paid")

    def swallowed(self, end, error, state="in_progress"):
        """What a call of the lease raises fails the attempt, even if the work swallows it."""
        def pay(lease):
            with contextlib.suppress(Exception):
                end(lease)
            return {"paid": True}

        def block(key):
            with self.lease(key, backoff=(1000.0, 2000.0)) as lease:
                pay(lease)
        for attempt in (lambda key: self.lease(key, backoff=(1000.0, 2000.0)).run(pay), block):
            key = new_key()
            with self.subTest(error), self.assertRaises(error) as raised:
                attempt(key)
            self.assertEqual((effects(key), state_of(key)), (0, state))
            if error is LeaseLost or state != "in_progress":
                continue
            noted = query("SELECT last_error->>'message' FROM idem.in_flight WHERE key = %s", key)
            self.assertEqual(noted, str(raised.exception))
            with self.assertRaises(InProgress) as refused:
                self.lease(key, retry=Retry(attempts=1)).run(None)
            self.assertGreater(refused.exception.retry_after, 450)

    def test_a_swallowed_error_of_the_effect(self):
        self.swallowed(lambda lease: lease.complete(
            effect=lambda connection: self.insert(connection) / 0), ZeroDivisionError)

    def test_a_swallowed_error_of_an_answer_that_is_no_json(self):
        self.swallowed(lambda lease: lease.complete(object()), TypeError)

    def test_a_swallowed_failure_of_the_effect(self):
        def decline(connection):
            self.insert(connection)
            raise Failure("declined")
        self.swallowed(lambda lease: lease.complete(effect=decline), Failure, "failed")

    def test_a_swallowed_error_of_a_step_that_could_not_be_stored(self):
        self.swallowed(lambda lease: lease.step("charge", object), TypeError)

    def test_a_swallowed_loss_of_the_lease(self):
        for call in (lambda lease: lease.step("charge", lambda: 1),
                     lambda lease: lease.complete(effect=self.insert)):
            def end(lease):
                query("SELECT idem.revoke('leased', %s::text)::text", lease.key)
                call(lease)
            self.swallowed(end, LeaseLost)

        def check(lease):
            lease._ends = 0.0
            lease.check()
        with unittest.mock.patch.object(Lease, "_beat"):
            self.swallowed(check, LeaseLost)

    def test_a_swallowed_error_before_the_operation_is_completed(self):
        key = new_key()

        def pay(lease):
            with contextlib.suppress(ZeroDivisionError):
                lease.complete(effect=lambda connection: self.insert(connection) / 0)
            with contextlib.suppress(ValueError):  # the step is the function's own
                lease.step("mail", lambda: int("no mail"))
            lease.complete(effect=self.insert)
        self.lease(key).run(pay)
        self.assertEqual((effects(key), state_of(key)), (1, "completed"))
        key = new_key()

        def pay_without_mail(lease):
            with contextlib.suppress(ValueError):
                lease.step("mail", lambda: int("no mail"))
            return "paid"
        self.assertEqual(self.lease(key).run(pay_without_mail).response, "paid")

    def test_the_failure_of_an_operation_inside_is_no_replay(self):
        inner = new_key()

        def decline(connection):
            raise Failure("declined")

        def charge(*_):
            self.payments.run("payments", inner, {"amount": 1}, decline)
        for work in (charge, lambda lease: lease.complete(effect=charge)):
            key = new_key()
            for replayed in (False, True):
                seen = []
                self.payments.on_event = seen.append
                self.addCleanup(setattr, self.payments, "on_event", None)
                with self.assertRaises(Failure) as raised:
                    self.lease(key).run(work)
                self.assertEqual(raised.exception.replayed, replayed)
                self.assertEqual([event.type for event in seen if event.key == key],
                                 ["replayed"] if replayed else ["claimed", "failed"])

    def test_an_error_releases_the_operation_for_later(self):
        key = new_key()
        with self.assertRaises(ZeroDivisionError), self.lease(key, backoff=(1000.0, 2000.0)):
            1 / 0
        error = query("SELECT last_error->>'message' FROM idem.in_flight WHERE key = %s", key)
        self.assertEqual(error, "division by zero")
        with self.assertRaises(InProgress) as raised:
            self.lease(key, retry=Retry(attempts=1)).run(None)
        self.assertTrue(450 < raised.exception.retry_after <= 1000, raised.exception.retry_after)

    def test_an_error_whose_message_the_server_does_not_take(self):
        query("SELECT idem.create_scope('small', max_answer_size => 1024, if_not_exists => true)"
              "::text")

        def noted(error):
            key = new_key()
            with self.assertRaises(type(error)), self.lease(key, scope="small"):
                raise error
            return query("SELECT last_error->>'message' FROM idem.in_flight WHERE key = %s", key)

        class Silent(Exception):
            def __str__(self):
                return 1 / 0
        for message, expected in (("", "ValueError"), (" ", " "), ("a\0\ud83d", "a\ufffd?"),
                                  ("\n" * 100_000, "\n" * 1000),
                                  ("\u20ac" * 100_000, "\u20ac" * 333)):
            self.assertEqual(noted(ValueError(message)), expected)
        self.assertEqual(noted(Silent()), "Silent")

    def test_an_error_that_the_scope_does_not_have_the_room_for(self):
        scope = new_key()
        query("SELECT idem.create_scope(%s, max_answer_size => 1024)", scope)
        for message in ("a" * 1_000_000, "ä" * 1_000):
            key = new_key()
            with self.assertRaises(ValueError), self.lease(key, scope=scope, backoff=(0.0, 0.0)):
                raise ValueError(message)
            retry = self.lease(key, scope=scope, retry=Retry(attempts=1))
            self.assertEqual(retry.run(lambda lease: lease.attempt).response, 2)
        key = new_key()
        with self.assertRaises(ValueError), self.lease(key):
            raise ValueError("a" * 1_000_000)
        error = query("SELECT last_error->>'message' FROM idem.in_flight WHERE key = %s", key)
        self.assertEqual(error, "a" * 1000)

    def test_an_interrupted_attempt_is_released_at_once(self):
        key = new_key()
        with self.assertRaises(KeyboardInterrupt), self.lease(key, backoff=(100.0, 200.0)):
            raise KeyboardInterrupt
        self.assertEqual(self.lease(key).run(lambda lease: lease.attempt).response, 2)

    def test_a_body_must_come_to_an_end(self):
        key = new_key()
        with self.assertRaisesRegex(RuntimeError, "neither completed nor failed"):
            with self.lease(key):
                pass
        self.assertEqual(self.lease(key).run(lambda lease: "done").response, "done")

    def test_a_recovery_point_of_other_code(self):
        key = new_key()
        with connect() as connection:
            connection.execute(
                "SELECT idem.checkpoint(token, 'page', '7') FROM idem.claim('leased', %s::text,"
                " '{\"amount\": 1}', lease => '1 us')", (key,))
        with self.assertRaisesRegex(TypeError, "not one of steps"), self.lease(key) as lease:
            lease.step("charge", lambda: self.fail())
        self.assertEqual(self.lease(key).run(lambda lease: "no steps").response, "no steps")

    def test_the_key_for_another_service_is_that_of_the_operation_and_step(self):
        keys = []
        for key in 2 * [new_key()] + [new_key()]:
            with contextlib.suppress(ZeroDivisionError), self.lease(key) as lease:
                keys.append([lease.child_key(step) for step in ("charge", "refund")])
                1 / 0
        self.assertEqual(keys[0], keys[1])
        self.assertEqual(len({*keys[0], *keys[2]}), 4)

    def test_the_key_for_another_service_within_complete_takes_no_other_connection(self):
        with self.lease(new_key()) as lease:
            key = lease.child_key("charge")

            def effect(_):
                with unittest.mock.patch.object(self.payments, "connect", self.fail):
                    return lease.child_key("charge")
            self.assertEqual(lease.complete(effect=effect).response, key)

    def test_a_lost_answer_of_the_last_commit(self):
        key, lost = new_key(), []
        send = self.payments.send

        def lose(connection, statements, parameters, *, before="", after=""):
            row = send(connection, statements, parameters, before=before, after=after)
            if "idem.complete" in statements[-1] and not lost:
                lost.append(1)
                if hasattr(connection, "commit"):
                    connection.commit()
                raise psycopg.OperationalError("the answer is lost")
            return row
        self.payments.send = lose
        self.addCleanup(delattr, self.payments, "send")
        with self.lease(key) as lease:
            lease.complete(effect=lambda connection: self.insert(connection) and "paid")
        self.assertEqual((lease.answer.response, lost, effects(key)), ("paid", [1], 1))


    def test_an_undecided_operation_is_completed_by_its_last_attempt(self):
        key = new_key()
        with self.undecided(key) as lease:
            with self.assertRaises(AttemptsExhausted) as raised:
                self.lease(key, scope="payments").run(None)
            self.assertEqual(raised.exception.retry_after, 60)
            self.assertEqual(lease.step("charge", lambda: "charged"), "charged")
            lease.complete(effect=lambda connection: self.insert(connection) and "paid")
        again = self.lease(key, scope="payments").run(None)
        self.assertEqual((again.response, again.replayed, effects(key)), ("paid", True, 1))

    def test_the_name_of_a_step_is_used_once(self):
        key, sent = new_key(), []

        def ship(lease):
            return [lease.step("ship", lambda: sent.append(item) or item) for item in "abc"]
        for _ in range(2):
            with self.assertRaisesRegex(ValueError, '"ship" was used before'):
                self.lease(key).run(ship)
        self.assertEqual(sent, ["a"])
        self.assertEqual(self.lease(key).run(lambda lease: [
            lease.step("ship", self.fail), lease.step("other", lambda: 2)]).response, ["a", 2])

    def test_the_names_of_steps_and_children_are_text(self):
        with self.lease(new_key()) as lease:
            for name in (1, None, b"ship", ["ship"]):
                for call in (lambda: lease.step(name, self.fail), lambda: lease.child_key(name)):
                    with self.subTest(name), self.assertRaises(TypeError):
                        call()
            with self.assertRaises(ValueError):
                lease.step("a\0", self.fail)
            lease.complete()

    def test_a_lease_begins_before_it_is_asked_for(self):
        send, slept = type(self.payments).send, []

        def slow(operations, *arguments, **options):
            made = send(operations, *arguments, **options)
            if not slept:
                slept.append(time.sleep(0.3))
            return made
        with unittest.mock.patch.object(type(self.payments), "send", slow):
            with unittest.mock.patch.object(Lease, "_beat"):
                with self.lease(new_key(), lease=0.2) as lease:
                    with self.assertRaises(LeaseLost):
                        lease.check()
                    lease.complete()

    def test_an_undecided_operation_fails_by_its_last_attempt(self):
        key = new_key()
        with self.assertRaises(Failure), self.undecided(key):
            raise Failure("declined")
        with self.assertRaisesRegex(Failure, "declined") as raised:
            self.lease(key, scope="payments").run(None)
        self.assertTrue(raised.exception.replayed)

    def test_a_revoked_attempt_has_lost_its_lease(self):
        for end in (lambda lease: lease.step("charge", self.fail),
                    lambda lease: lease.complete(effect=self.insert)):
            key = new_key()
            with self.assertRaises(LeaseLost), self.undecided(key) as lease:
                query("SELECT idem.revoke('payments', %s::text)::text", key)
                end(lease)
            self.assertEqual(effects(key), 0)
            answer = self.lease(key, scope="payments").run(lambda lease: lease.attempt)
            self.assertEqual(answer.response, 2)


class Logins:
    """Tests of how renewals log in. A subclass has login(role) and operations(connect)."""

    def roles(self, *names):
        with connect() as connection:
            for name in names:
                connection.execute(f"DROP ROLE IF EXISTS {name}")
                connection.execute(f"CREATE ROLE {name} SUPERUSER LOGIN")

    def change(self, statement):
        with connect() as connection:
            connection.execute(statement)

    def assert_renewed(self, payments):
        key = new_key()
        with payments.lease("leased", key, {}, lease=3.0) as lease:
            first, until = lease_end(key), time.monotonic() + 10
            while lease_end(key) == first and time.monotonic() < until:
                time.sleep(0.1)
            self.assertGreater(lease_end(key), first)
            lease.complete()

    def test_renewals_log_in_as_the_last_connection(self):
        self.roles("login_one", "login_two")
        payments = self.operations(lambda: contextlib.closing(self.login(role)))
        role = "login_one"
        payments.lease("leased", new_key(), {}).run(lambda lease: None)
        role = "login_two"
        self.change("DROP ROLE login_one")
        self.addCleanup(self.change, "DROP ROLE login_two")
        self.assert_renewed(payments)

    def weak_login(self):
        """A connection whose login role may do nothing but SET ROLE."""
        connection = self.login("login_weak")
        self.set_role(connection)
        return connection

    @staticmethod
    def set_role(connection):
        with connection.cursor() as cursor:
            cursor.execute("SET ROLE login_strong")
        connection.commit()

    def weak_roles(self):
        self.change("DROP ROLE IF EXISTS login_weak")
        self.roles("login_strong")
        self.change("CREATE ROLE login_weak LOGIN NOINHERIT IN ROLE login_strong")
        self.addCleanup(self.change, "DROP ROLE login_weak, login_strong")

    def test_renewals_as_the_role_of_the_connection(self):
        self.weak_roles()
        self.assert_renewed(self.operations(lambda: contextlib.closing(self.weak_login())))

    def test_renewals_after_the_end_of_a_password(self):
        self.roles("login_then")
        with contextlib.closing(self.login("login_then")) as connection:
            payments = self.operations(lambda: contextlib.nullcontext(connection))
            self.change("ALTER ROLE login_then RENAME TO login_now")
            self.addCleanup(self.change, "DROP ROLE login_now")
            self.assert_renewed(payments)


class Psycopg(Leases, Logins, LeaseTest):
    payments = Idempotency(connect, wait=0.0)
    operations = Idempotency

    def login(self, role):
        return psycopg.connect(user=role)

    def test_the_lease_is_renewed_while_the_work_runs(self):
        key = new_key()
        with self.lease(key, lease=9.0) as lease:
            first, until = lease_end(key), time.monotonic() + 60
            while lease_end(key) == first and time.monotonic() < until:
                time.sleep(0.1)
            self.assertGreater(lease_end(key), first)
            with self.assertRaises(InProgress):
                self.lease(key, retry=Retry(attempts=1)).run(None)
            lease.step("late", lambda: None)
            self.assertFalse(lease.lost.is_set())
            lease.complete(effect=self.insert)
        self.assertEqual(effects(key), 1)

    def test_no_thread_is_left(self):
        with self.lease(new_key(), lease=0.3) as lease:
            lease.complete()
        for thread in threading.enumerate():
            if "lease of" in thread.name:
                thread.join(60)
                self.assertFalse(thread.is_alive())

    def test_work_is_told_that_another_attempt_runs(self):
        key = new_key()
        with self.assertRaises(LeaseLost), self.lease(key, lease=0.3) as lease:
            query("SELECT idem.revoke('leased', %s::text)::text", key)
            # This one waits for the renewal that may be running.
            other = Idempotency(connect).lease("leased", key, {"amount": 1}, lease=60).__enter__()
            self.assertTrue(lease.lost.wait(60))
            with self.assertRaises(LeaseLost):
                lease.step("charge", lambda: self.fail())
            lease.complete()
        other.complete("by the other")
        other.__exit__(None, None, None)

    def test_work_is_told_that_the_lease_could_not_be_renewed(self):
        key, payments = new_key(), Idempotency(connect)

        def renewing():
            raise psycopg.OperationalError("unreachable")
        with self.assertRaises(LeaseLost), self.assertLogs("pg_idem"):
            with payments.lease("leased", key, {"amount": 1}, lease=0.3) as lease:
                payments.renewing = payments.connected = renewing
                self.assertTrue(lease.lost.wait(60))
                lease.check()

    def test_work_is_told_at_the_end_of_the_lease_while_a_renewal_hangs(self):
        silent = socket.create_server(("127.0.0.1", 0))  # takes connections, and says nothing
        self.addCleanup(silent.close)
        payments = Idempotency(connect)
        with self.assertRaises(LeaseLost):
            with payments.lease("leased", new_key(), {"amount": 1}, lease=0.6) as lease:
                payments.like = {"host": "127.0.0.1", "port": silent.getsockname()[1]}
                self.assertTrue(lease.lost.wait(10))
                lease.check()

    def test_a_renewal_does_not_wait_for_the_work(self):
        key, pool = new_key(), threading.Lock()

        @contextlib.contextmanager
        def connection():
            with pool, connect() as made:
                yield made
        payments = Idempotency(connection)
        with payments.lease("leased", key, {"amount": 1}, lease=1.5) as lease:
            with connection():  # the work has all that the pool has
                time.sleep(3)
                self.assertFalse(lease.lost.is_set())
                lease.check()
            lease.complete()

    def test_a_renewal_is_configured_as_by_the_pool(self):
        self.weak_roles()
        test, busy = self, threading.Lock()

        class Pool:  # of psycopg_pool
            _configure = staticmethod(self.set_role)

            @contextlib.contextmanager
            def connection(self):
                with busy, test.weak_login() as made:
                    yield made
        payments = Idempotency(Pool().connection)
        with payments.lease("leased", new_key(), {"amount": 1}, lease=1.5) as lease:
            with busy:  # the work has all that the pool has
                time.sleep(3)
                lease.check()
            lease.complete()

    def test_a_renewal_connects_as_the_pool(self):
        busy = threading.Lock()

        class Pool:
            kwargs = {"autocommit": True, "row_factory": psycopg.rows.dict_row}

            def _configure(self, connection):
                connection.execute("SELECT 1 AS one").fetchone()["one"]

            @contextlib.contextmanager
            def connection(self):
                with busy, psycopg.connect(**self.kwargs) as made:
                    yield made
        payments = Idempotency(Pool().connection)
        with payments.lease("leased", new_key(), {"amount": 1}, lease=1.5) as lease:
            with busy:
                time.sleep(3)
                lease.check()
            lease.complete()

    def test_events(self):
        seen, key = [], new_key()
        payments = Idempotency(connect, wait=0.0, on_event=seen.append)
        payments.lease("leased", key, {"amount": 1}).run(lambda lease: "paid")
        payments.lease("leased", key, {"amount": 1}).run(None)
        with self.assertRaises(Conflict):
            payments.lease("leased", key, {"amount": 2}).run(None)
        with self.lease(key + "2") as lease:
            with self.assertRaises(InProgress):
                payments.lease("leased", lease.key, {"amount": 1},
                               retry=Retry(attempts=1)).run(None)
            lease.complete()
        self.assertEqual([event.type for event in seen],
                         ["claimed", "completed", "replayed", "conflict", "refused"])
        self.assertEqual(seen[2][1:5], ("leased", key, None, None))
        self.assertIsInstance(seen[3].error, Conflict)


@unittest.skipUnless(psycopg2, "psycopg2 is not installed")
class Psycopg2(Leases, Logins, LeaseTest):
    def operations(self, connect):
        return pg_idem.psycopg2.Idempotency(connect)

    def login(self, role):
        return psycopg2.connect(user=role)

    def setUp(self):
        self.payments = pg_idem.psycopg2.Idempotency(
            lambda: contextlib.closing(psycopg2.connect("")), wait=0.0)

    def insert(self, connection):
        with connection.cursor() as cursor:
            cursor.execute(INSERT)
            return cursor.fetchone()[0]


@unittest.skipUnless(sqlalchemy, "SQLAlchemy is not installed")
class SQLAlchemy(Leases, LeaseTest):
    def setUp(self):
        driver = "psycopg2" if sqlalchemy.__version__.startswith("1.") else "psycopg"
        engine = sqlalchemy.create_engine(f"postgresql+{driver}://", future=True)
        self.addCleanup(engine.dispose)
        self.payments = pg_idem.sqlalchemy.Idempotency(engine.begin, wait=0.0)

    def insert(self, connection):
        return connection.execute(sqlalchemy.text(INSERT)).scalar()

    def test_a_forked_process_renews_on_a_connection_of_its_own(self):
        def backend():
            with self.payments.renewing() as connection:
                return connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        self.payments.transaction(lambda connection: None)
        own = backend()
        with unittest.mock.patch("os.getpid", return_value=0):
            self.assertNotEqual(backend(), own)


class PsycopgAsync(LeaseTest):
    payments = AsyncIdempotency(aconnect, wait=0.0)

    def lease(self, key, scope="leased", **options):
        options.setdefault("backoff", NOW)
        return self.payments.lease(scope, key, {"amount": 1}, **options)

    def test_steps_effect_and_replay(self):
        key, ran = new_key(), []

        async def charge():
            ran.append(1)
            return {"charge": 1}

        async def insert(connection):
            await connection.execute("INSERT INTO payment (amount) VALUES (1)")
            return "paid"

        async def attempt(lease):
            self.assertEqual(await lease.step("charge", charge), {"charge": 1})
            1 / (lease.attempt - 1)
            await lease.complete(effect=insert)

        async def main():
            with self.assertRaises(ZeroDivisionError):
                await self.lease(key).run(attempt)
            return [await self.lease(key).run(attempt) for _ in range(2)]
        first, again = asyncio.run(main())
        self.assertEqual((first.response, again.response, again.replayed), ("paid", "paid", True))
        self.assertEqual((effects(key), ran), (1, [1]))

    def test_the_key_for_another_service_within_complete_takes_no_other_connection(self):
        async def pay(lease):
            key = await lease.child_key("charge")

            async def effect(_):
                with unittest.mock.patch.object(self.payments, "connect", self.fail):
                    return await lease.child_key("charge")
            self.assertEqual((await lease.complete(effect=effect)).response, key)
        asyncio.run(self.lease(new_key()).run(pay))

    def test_a_completed_operation_does_not_fail(self):
        async def pay(lease):
            await lease.complete("paid")
            raise Failure("declined")
        with self.assertRaisesRegex(RuntimeError, "completed already"):
            asyncio.run(self.lease(new_key()).run(pay))

    def test_a_swallowed_error_of_complete(self):
        async def insert(connection):
            await connection.execute("INSERT INTO payment (amount) VALUES (1)")
            await connection.execute("SELECT 1 / 0")

        async def slow(connection):
            await connection.execute("INSERT INTO payment (amount) VALUES (1)")
            await asyncio.sleep(60)

        async def pay(lease):
            with contextlib.suppress(psycopg.Error):
                await lease.complete(effect=insert)
            return "paid"

        async def pay_in_time(lease):
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(lease.complete(effect=slow), 0.1)
            return "paid"

        async def block(key):
            async with self.lease(key) as lease:
                await pay(lease)
        for run, error in ((lambda key: self.lease(key).run(pay), psycopg.Error),
                           (block, psycopg.Error),
                           (lambda key: self.lease(key).run(pay_in_time), RuntimeError)):
            key = new_key()
            with self.assertRaises(error):
                asyncio.run(run(key))
            self.assertEqual((effects(key), state_of(key)), (0, "in_progress"))
            # A cancelled statement may still run on the server.
            self.assertEqual(Idempotency(connect, wait=60.0).lease(
                "leased", key, {"amount": 1}).run(lambda lease: lease.attempt).response, 2)

    def test_a_call_after_the_end_cancels_nothing(self):
        async def main():
            async with self.lease(new_key(), lease=0.3) as lease:
                await lease.complete("paid")
            with self.assertRaises(TypeError):
                await lease.complete(object())
            await asyncio.wait([lease._heart], timeout=60)  # it finds that the lease has ended
            await asyncio.sleep(0)
            return "not cancelled"
        self.assertEqual(asyncio.run(main()), "not cancelled")

    def test_what_goes_on_after_a_failed_attempt_begins_no_step(self):
        async def main(error):
            failed, ran = asyncio.Event(), []

            async def beside(lease):
                await failed.wait()
                with self.assertRaises(LeaseLost):
                    lease.check()
                await lease.step("charge", lambda: ran.append(1))
            with self.assertRaises(type(error)):
                async with self.lease(new_key()) as lease:
                    task = asyncio.create_task(beside(lease))
                    raise error
            failed.set()
            with self.assertRaises(LeaseLost):
                await task
            return ran
        for error in (ZeroDivisionError(), Failure("declined")):
            self.assertEqual(asyncio.run(main(error)), [])

    def test_a_step_that_is_not_awaited(self):
        def refused():
            return self.assertRaisesRegex(RuntimeError, 'step "u" is still running')

        async def begin(lease):
            done = asyncio.Event()
            step = asyncio.create_task(lease.step("u", done.wait))
            await asyncio.sleep(0)
            return done, step

        async def main(key):
            with refused():
                await self.lease(key).run(begin)
            with refused():
                async with self.lease(key) as lease:
                    await begin(lease)
            async with self.lease(key) as lease:
                done, step = await begin(lease)
                with refused():
                    await lease.complete("paid")
                done.set()
                await step
                await lease.complete("paid")
            return lease.attempt, lease.answer.response
        self.assertEqual(asyncio.run(main(new_key())), (3, "paid"))

    def test_steps_beside_each_other(self):
        key = new_key()

        async def step(name):
            await asyncio.sleep(0.01)
            return name

        async def main():
            with self.assertRaises(ZeroDivisionError):
                async with self.lease(key) as lease:
                    await asyncio.gather(*[lease.step(n, lambda n=n: step(n)) for n in "abcde"])
                    1 / 0
            async with self.lease(key) as lease:
                await lease.complete([await lease.step(n, None) for n in "abcde"])
            return lease.answer
        self.assertEqual(asyncio.run(main()).response, list("abcde"))

    def test_the_lease_is_renewed_while_the_work_runs(self, factory=None):
        async def main():
            asyncio.get_running_loop().set_task_factory(factory)
            key = new_key()
            async with self.lease(key, lease=9.0) as lease:
                first, until = await asyncio.to_thread(lease_end, key), time.monotonic() + 60
                while await asyncio.to_thread(lease_end, key) == first and time.monotonic() < until:
                    await asyncio.sleep(0.1)
                self.assertGreater(lease_end(key), first)
                lease.check()
                return await lease.complete("done")
        self.assertEqual(asyncio.run(main()).response, "done")

    @unittest.skipUnless(hasattr(asyncio, "eager_task_factory"), "before Python 3.12")
    def test_the_lease_is_renewed_by_an_eager_task(self):
        self.test_the_lease_is_renewed_while_the_work_runs(asyncio.eager_task_factory)

    def test_renewals_log_in_as_the_last_connection(self):
        async def main():
            payments, until = AsyncIdempotency(aconnect), time.monotonic() + 60
            async with payments.lease("leased", new_key(), {}, lease=9.0) as lease:
                payments.like = {"user": "no such role"}
                while payments.like["user"] == "no such role" and time.monotonic() < until:
                    await asyncio.sleep(0.1)
                self.assertNotEqual(payments.like["user"], "no such role")
                await lease.complete()
        asyncio.run(main())

    def test_a_renewal_is_configured_as_by_the_pool(self):
        configured = []

        class Pool:
            kwargs = {"autocommit": True, "row_factory": psycopg.rows.dict_row}

            async def _configure(self, connection):
                cursor = await connection.execute("SELECT 1 AS one")
                configured.append((await cursor.fetchone())["one"])

            def connection(self):
                return aconnect()

        async def main():
            payments = AsyncIdempotency(Pool().connection)
            async with payments.lease("leased", new_key(), {}, lease=1.5) as lease:
                await asyncio.sleep(2)
                await lease.complete()
        asyncio.run(main())
        self.assertTrue(configured)

    def test_an_undecided_operation_is_completed_by_its_last_attempt(self):
        async def charge():
            return "charged"

        async def main():
            key = new_key()
            async with self.lease(key, scope="payments", lease=4.0) as lease:
                wait_until_undecided(key)  # nothing else runs in this thread
                while state_of(key, "payments") == "exhausted":
                    await asyncio.sleep(0.02)  # until the heartbeat renews the lease
                self.assertEqual(await lease.step("charge", charge), "charged")
                return await lease.complete("done")
        self.assertEqual(asyncio.run(main()).response, "done")

    def test_a_renewal_that_swallows_its_cancellation_is_the_last(self):
        async def main(in_time):
            renewed = asyncio.Event()

            async def swallow(awaitable, timeout):  # as asyncio.wait_for() may do
                await awaitable
                renewed.set()
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(60)
                if not in_time:
                    lease._ends = time.monotonic()
            with unittest.mock.patch("asyncio.wait_for", swallow):
                async with self.lease(new_key()) as lease:
                    await renewed.wait()
                    return await lease.complete("done")
        with unittest.mock.patch.object(AsyncLease, "_pause", return_value=0.01):
            for in_time in (True, False):
                self.assertEqual(asyncio.run(main(in_time)).response, "done")

    def test_work_is_cancelled_when_the_lease_is_lost(self):
        async def main():
            key = new_key()
            async with self.lease(key, lease=0.3):
                query("SELECT idem.revoke('leased', %s::text)::text", key)
                waits = AsyncIdempotency(aconnect)  # for the renewal that may be running
                other = await waits.lease("leased", key, {"amount": 1}, lease=60).__aenter__()
                try:
                    await asyncio.sleep(10)
                finally:
                    await other.complete()
                    await other.__aexit__(None, None, None)
        with self.assertRaises(LeaseLost):
            asyncio.run(main())

    def test_cancelled_work_is_released_at_once(self):
        key = new_key()

        async def body(begun):
            async with self.lease(key, backoff=(100.0, 200.0)):
                begun.set()
                await asyncio.sleep(10)

        async def main():
            begun = asyncio.Event()
            task = asyncio.create_task(body(begun))
            await begun.wait()
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            async with self.lease(key) as lease:
                await lease.complete()
            return lease.attempt
        self.assertEqual(asyncio.run(main()), 2)


class Workers(LeaseTest):
    def setUp(self):
        finish_others()

    def abandon(self, amount=1, scope="leased", records=None):
        """An operation whose caller is gone."""
        key = new_key()
        with connect() as connection, connection.transaction():
            if records:
                connection.execute("SELECT idem.use_records(%s::regclass)", (records,))
            connection.execute("SELECT idem.claim(%s, %s::text, %s::jsonb, lease => '1 us')",
                               (scope, key, f'{{"amount": {amount}}}'))
        return key

    def work_until(self, worker, done):
        """Runs the worker in a thread until done() is true."""
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            until = time.monotonic() + 120
            while not done() and time.monotonic() < until:
                time.sleep(0.02)
        finally:
            worker.stop()
            thread.join(60)
        self.assertTrue(done())
        self.assertFalse(thread.is_alive())

    def test_it_finishes_what_others_left(self):
        keys = [self.abandon(n) for n in range(5)]
        seen = []

        def pay(lease):
            seen.append((lease.key, lease.request, lease.attempt))
            return lease.complete(effect=lambda connection: connection.execute(
                "INSERT INTO payment (amount) VALUES (%s)", [lease.request["amount"]]) and "paid")
        self.work_until(Worker(Idempotency(connect), "leased", pay, wait=0.1),
                        lambda: all(state_of(key) == "completed" for key in keys))
        self.assertEqual(seen, [(key, {"amount": n}, 2) for n, key in enumerate(keys)])
        self.assertEqual([effects(key) for key in keys], 5 * [1])

    def test_what_waiting_does_not_cure_ends_it(self):
        with self.assertLogs("pg_idem"):
            logging.getLogger("pg_idem").info("so that there is a line")
            with self.assertRaises(psycopg.Error) as raised:
                Worker(Idempotency(connect), "no such scope", self.fail, wait=0.1).run()
            self.assertEqual(raised.exception.sqlstate, "ID008")
            with self.assertRaises(psycopg.Error) as raised:
                asyncio.run(AsyncWorker(AsyncIdempotency(aconnect), "no such scope", self.fail,
                                        wait=0.1).run())
            self.assertEqual(raised.exception.sqlstate, "ID008")

    def test_so_many_at_a_time(self):
        for _ in range(6):
            self.abandon()
        lock, running, most, done = threading.Lock(), [0], [0], [0]
        three = threading.Barrier(3)

        def pay(lease):
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            three.wait(60)
            time.sleep(0.1)
            with lock:
                running[0] -= 1
                done[0] += 1
        self.work_until(Worker(Idempotency(connect), "leased", pay, wait=0.1, concurrency=3),
                        lambda: done[0] == 6)
        self.assertEqual(most[0], 3)

    def test_an_error_that_its_function_swallows_completes_nothing(self):
        key = self.abandon()

        def pay(lease):
            with contextlib.suppress(psycopg.Error):
                lease.complete(effect=lambda connection: connection.execute(
                    INSERT if lease.attempt > 2 else "SELECT 1 / 0").fetchone()[0])
            return "paid"
        with self.assertLogs("pg_idem", "WARNING"):
            self.work_until(Worker(Idempotency(connect), "leased", pay, wait=0.1, backoff=NOW),
                            lambda: state_of(key) == "completed")
        self.assertEqual(effects(key), 1)

    def test_a_cancelled_statement_does_not_end_it(self):
        def cancel():
            return query(
                "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE pid <>"
                " pg_backend_pid() AND query ~ 'idem.take' AND datname = current_database()")

        def done():
            if not keys and cancel():
                keys.append(self.abandon())
            return keys and state_of(keys[0]) == "completed"
        keys = []
        with self.assertLogs("pg_idem", "WARNING"):
            self.work_until(Worker(Idempotency(connect), "leased", lambda lease: "paid",
                                   wait=10.0), done)

    def test_nothing_is_waited_for_where_nothing_runs(self):
        for error in (KeyboardInterrupt, SystemExit):
            connect = unittest.mock.Mock(side_effect=error)
            with self.assertRaises(error):  # not after the grace
                Worker(Idempotency(connect), "leased", None, grace=100_000.0).run(signals=())

    def test_work_that_ends_itself_is_repeated_after_the_backoff(self):
        async def cancelled(lease):
            inner = asyncio.ensure_future(asyncio.sleep(60))
            inner.cancel()
            await inner

        async def exits(lease):
            sys.exit("no configuration")

        def exits_in_a_thread(lease):
            sys.exit("no configuration")

        def work(function):
            if function is exits_in_a_thread:
                self.work_until(Worker(Idempotency(connect), "leased", function, wait=0.1,
                                       backoff=(100.0, 200.0)), lambda: noted(key))
                return

            async def main():
                worker = AsyncWorker(AsyncIdempotency(aconnect), "leased", function, wait=0.1,
                                     backoff=(100.0, 200.0))
                task = asyncio.create_task(worker.run())
                while not await asyncio.to_thread(noted, key):
                    await asyncio.sleep(0.05)
                worker.stop()
                await task
            asyncio.run(asyncio.wait_for(main(), 120))

        def noted(key):
            with connect() as connection:
                return connection.execute(
                    "SELECT last_error FROM idem.in_flight WHERE key = %s"
                    " AND last_error IS NOT NULL", (key,)).fetchone()
        for function in (cancelled, exits, exits_in_a_thread):
            key = self.abandon()
            with self.subTest(function.__name__), self.assertLogs("pg_idem", "WARNING") as logged:
                work(function)
            self.assertEqual(["attempt 2" in record.getMessage() for record in logged.records],
                             [True])
            with self.assertRaises(InProgress) as refused:
                Idempotency(connect).lease("leased", key, {"amount": 1},
                                           retry=Retry(attempts=1)).run(None)
            self.assertGreater(refused.exception.retry_after, 45)
            query("SELECT idem.revoke('leased', %s::text)::text", key)
            finish_others()

    def test_it_goes_on_after_errors(self):
        broken = [1, 1]

        def connect_or_fail():
            if broken:
                broken.pop()
                raise psycopg.OperationalError("unreachable")
            return connect()
        first, second = self.abandon(1), self.abandon(2)

        def pay(lease):
            if lease.request["amount"] == 1 and lease.attempt == 2:
                raise ValueError("once")
            return "paid"
        with self.assertLogs("pg_idem", "WARNING") as logged:
            self.work_until(Worker(Idempotency(connect_or_fail), "leased", pay, wait=0.1,
                                   backoff=(0.1, 0.1)),
                            lambda: state_of(first) == state_of(second) == "completed")
        self.assertEqual([record.getMessage()[:9] for record in logged.records],
                         ["could not", "could not", "attempt 2"])

    def test_what_it_leaves_without_attempts_is_undecided_until_one_more_is_allowed(self):
        query("SELECT idem.create_scope('twice', request_required => true, max_attempts => 2,"
              " store_request => 'unfinished', if_not_exists => true)::text")
        key, attempts = self.abandon(scope="twice"), []

        def pay(lease):
            attempts.append(lease.attempt)
            if lease.attempt == 2:
                raise ValueError("secret")
            return "paid"
        worker = Worker(Idempotency(connect), "twice", pay, wait=0.1, backoff=NOW)
        with self.assertLogs("pg_idem", "WARNING"):
            self.work_until(worker, lambda: state_of(key, "twice") == "exhausted")
        with self.assertRaises(AttemptsExhausted) as raised:
            Idempotency(connect).lease("twice", key, {"amount": 1}).run(None)
        self.assertNotIn("secret", str(raised.exception))
        query("SELECT idem.revoke('twice', %s::text)::text", key)
        worker = Worker(Idempotency(connect), "twice", pay, wait=0.1)
        self.work_until(worker, lambda: state_of(key, "twice") == "completed")
        self.assertEqual(attempts, [2, 3])

    def test_a_chosen_record_table(self):
        needs_the_library(self, "record tables")
        with connect() as connection:
            connection.execute("SELECT idem.create_scope('elsewhere', records => true,"
                               " store_request => 'unfinished', if_not_exists => true)")
            connection.execute("DROP SCHEMA IF EXISTS acme CASCADE; CREATE SCHEMA acme")
            connection.execute("SELECT idem.create_record_table('acme.record')")
        key = self.abandon(scope="elsewhere", records="acme.record")
        payments = Idempotency(connect, records="acme.record")
        ran = []
        self.work_until(Worker(payments, "elsewhere", ran.append, wait=0.1), lambda: ran)
        answer = payments.lease("elsewhere", key, {"amount": 1}).run(None)
        self.assertEqual((answer.response, answer.replayed), (None, True))
        kinds = [Idempotency(connect)]
        if psycopg2:
            kinds.append(pg_idem.psycopg2.Idempotency(
                lambda: contextlib.closing(psycopg2.connect(""))))
        for kind in kinds:
            key, answers = new_key(), []
            for replayed in (False, True):
                answers.append(kind.run("elsewhere", key, None, lambda _: "done",
                                        records="acme.record", expires=True))
                self.assertEqual((answers[-1].response, answers[-1].replayed), ("done", replayed))
            self.assertEqual(answers[0].expires, answers[1].expires)
        self.assertEqual(query("SELECT count(*) FROM acme.record"), 1 + len(kinds))

    def test_a_signal_stops_it_gracefully(self):
        for program in ("Worker(Idempotency(connect), 'leased', work, wait=0.1).run()",
                        "asyncio.run(AsyncWorker(AsyncIdempotency(aconnect), 'leased', awork,"
                        " wait=0.1).run())"):
            key = self.abandon()
            process = subprocess.Popen([sys.executable, "-c", f"""
import asyncio, time
from pg_idem import *
from support import aconnect, connect
def work(lease):
    print('begins', flush=True)
    time.sleep(0.5)
    return 'finished'
async def awork(lease):
    return work(lease)
{program}
print('returns')"""], cwd=HERE, stdout=subprocess.PIPE, text=True)
            with self.subTest(program), process:
                self.assertEqual(process.stdout.readline(), "begins\n")
                process.send_signal(signal.SIGTERM)
                self.assertEqual(process.stdout.read(), "returns\n")
            self.assertEqual((process.returncode, state_of(key)), (0, "completed"))

    def signalled(self, count, handler=None):
        """Whether asynchronous workers have ended two seconds after a signal."""
        async def main():
            workers = [AsyncWorker(AsyncIdempotency(aconnect), "leased", None, wait=0.0)
                       for _ in range(count)]
            tasks = [asyncio.create_task(worker.run()) for worker in workers]
            await asyncio.sleep(0.1)
            os.kill(os.getpid(), signal.SIGTERM)
            ended, _ = await asyncio.wait(tasks, timeout=2)
            for worker in workers:
                worker.stop()
            await asyncio.gather(*tasks)
            return len(ended)
        self.addCleanup(signal.signal, signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        if handler:
            signal.signal(signal.SIGTERM, handler)
        return asyncio.run(asyncio.wait_for(main(), 120))

    def test_a_signal_stops_all_workers_of_a_loop(self):
        self.assertEqual(self.signalled(2), 2)
        self.assertEqual(signal.getsignal(signal.SIGTERM), signal.SIG_DFL)

    def test_a_signal_of_the_server_around_it_is_left_to_the_server(self):
        heard = []

        def stop(*_):
            heard.append(1)
        self.assertEqual((self.signalled(1, stop), heard), (0, [1]))
        self.assertIs(signal.getsignal(signal.SIGTERM), stop)

    def test_a_worker_that_does_not_wait_pauses(self):
        asked = []

        def counted():
            asked.append(1)
            return contextlib.nullcontext(connection)
        connection = connect()
        self.addCleanup(connection.close)
        end = time.monotonic() + 1
        self.work_until(Worker(Idempotency(counted), "leased", None, wait=0.0),
                        lambda: time.monotonic() > end)
        self.assertLess(len(asked), 15)

    def test_async(self):
        keys = [self.abandon(n) for n in range(4)]
        running, most = [], []

        async def pay(lease):
            running.append(1)
            most.append(len(running))
            while max(most) < 2:
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.1)
            running.pop()
            return lease.request["amount"]

        async def main():
            worker = AsyncWorker(AsyncIdempotency(aconnect), "leased", pay, wait=0.1,
                                 concurrency=2)
            task = asyncio.create_task(worker.run())
            while any([await asyncio.to_thread(state_of, key) != "completed" for key in keys]):
                await asyncio.sleep(0.05)
            worker.stop()
            await task
        asyncio.run(asyncio.wait_for(main(), 120))
        self.assertEqual(max(most), 2)

    def test_async_work_that_outlasts_the_grace_is_left_to_others(self):
        key = self.abandon()

        async def pay(lease):
            begun.set()
            await asyncio.sleep(60)

        async def main():
            nonlocal begun
            begun = asyncio.Event()
            worker = AsyncWorker(AsyncIdempotency(aconnect), "leased", pay, wait=0.1, grace=0.1)
            task = asyncio.create_task(worker.run())
            await begun.wait()
            worker.stop()
            await task
        begun = None
        asyncio.run(asyncio.wait_for(main(), 120))
        answer = Idempotency(connect).lease("leased", key, {"amount": 1}).run(lambda lease: "other")
        self.assertEqual(answer.response, "other")

    def killed_at_every_step(self, kind, finish):
        with tempfile.TemporaryDirectory() as folder:
            calls, keys = os.path.join(folder, "calls"), []
            ended = -signal.SIGKILL
            while ended == -signal.SIGKILL:
                keys.append(new_key())
                ended = subprocess.run([sys.executable, "mortal.py", kind, keys[-1],
                                        str(len(keys)), calls], cwd=HERE).returncode
            self.assertEqual((ended, len(keys)), (0, 10))
            end_leases()
            finish(Places(0), calls, lambda: all(state_of(key) == "completed" for key in keys))
            self.assertEqual([effects(key) for key in keys], [1] * len(keys))
            called = collections.Counter(Path(calls).read_text().splitlines())
        # Every service sees one key per operation, also of those that were called twice: by the
        # process that died after the call, before the recovery point, and by the worker.
        self.assertEqual(collections.Counter(line.split()[0] for line in called),
                         {"reserve": len(keys), "charge": len(keys)})
        self.assertEqual(collections.Counter(called.values()), {1: 2 * len(keys) - 2, 2: 2})

    def test_killed_at_every_step(self):
        def finish(places, calls, done):
            self.work_until(Worker(Idempotency(connect), "leased", pay(places, calls), wait=0.1,
                                   concurrency=4), done)
        self.killed_at_every_step("blocking", finish)

    def test_killed_at_every_step_async(self):
        def finish(places, calls, done):
            async def main():
                worker = AsyncWorker(AsyncIdempotency(aconnect), "leased",
                                     pay_async(places, calls), wait=0.1, concurrency=4)
                task = asyncio.create_task(worker.run())
                while not await asyncio.to_thread(done):
                    await asyncio.sleep(0.05)
                worker.stop()
                await task
            asyncio.run(asyncio.wait_for(main(), 120))
        self.killed_at_every_step("async", finish)


if __name__ == "__main__":
    unittest.main()
