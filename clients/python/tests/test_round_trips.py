"""How often each kind of connection waits for the server, beside the operation's own statement."""

import asyncio
import contextlib
import unittest

import psycopg
import pg_idem
from pg_idem import AsyncIdempotency, Failure, Idempotency

from proxy import Proxy
from support import PaymentTest, django, django_payment, effects, new_key, psycopg2, sqlalchemy


INSERT = "INSERT INTO payment (amount) VALUES (1)"


class Counted:
    """The tests. A subclass says how often an operation waits, beside its own statement."""

    operation, failure, replay = 2, 2, 2  # a replay has its answer after the first

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.proxy = Proxy()
        cls.addClassCleanup(cls.proxy.close)
        cls.open()

    def run_once(self, key, work):
        raise NotImplementedError

    def waits(self, key, work):
        before = self.proxy.waits
        try:
            self.run_once(key, work)
        except Failure:
            pass
        return self.proxy.waits - before

    def test_an_operation(self):
        key = new_key()
        self.waits(new_key(), "paid")  # the framework asks the server about itself
        self.assertEqual(self.waits(key, "paid"), self.operation + 1)
        self.assertEqual(self.waits(key, "paid"), self.replay)
        self.assertEqual(effects(key), 1)

    def test_a_failure(self):
        key = new_key()
        self.waits(new_key(), "paid")
        self.assertEqual(self.waits(key, Failure("declined")), self.failure + 1)
        self.assertEqual(effects(key), 0)


def end(outcome):
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


class Psycopg(Counted, PaymentTest):
    autocommit = False

    @classmethod
    def open(cls):
        cls.connection = psycopg.connect(cls.proxy.dsn, autocommit=cls.autocommit)
        cls.addClassCleanup(cls.connection.close)
        cls.payments = Idempotency(lambda: contextlib.nullcontext(cls.connection))

    def run_once(self, key, work):
        def pay(connection):
            connection.execute(INSERT)
            return end(work)
        self.payments.run("payments", key, {}, pay)
        self.assertEqual(self.connection.autocommit, self.autocommit)

    def test_a_replay_has_its_answer_after_the_first(self):
        key, seen = new_key(), []
        self.waits(key, "paid")

        def end(connection):
            seen.append(self.proxy.waits)
            return type(self.payments).end(self.payments, connection)
        self.payments.end = end
        self.addCleanup(delattr, self.payments, "end")
        before = self.proxy.waits
        self.waits(key, "paid")
        self.assertEqual(seen[0] - before, 1)


class PsycopgAutocommit(Psycopg):
    autocommit = True


class PsycopgAsync(Counted, PaymentTest):
    @classmethod
    def open(cls):
        cls.loop = asyncio.new_event_loop()
        cls.addClassCleanup(cls.loop.close)
        cls.connection = cls.loop.run_until_complete(
            psycopg.AsyncConnection.connect(cls.proxy.dsn))
        cls.addClassCleanup(lambda: cls.loop.run_until_complete(cls.connection.close()))

    def run_once(self, key, work):
        @contextlib.asynccontextmanager
        async def connect():
            yield self.connection

        async def pay(connection):
            await connection.execute(INSERT)
            return end(work)
        payments = AsyncIdempotency(connect)
        self.loop.run_until_complete(payments.run("payments", key, {}, pay))


@unittest.skipUnless(psycopg2, "psycopg2 is not installed")
class Psycopg2(Counted, PaymentTest):
    @classmethod
    def open(cls):
        cls.connection = psycopg2.connect(cls.proxy.dsn)
        cls.addClassCleanup(cls.connection.close)
        cls.payments = pg_idem.psycopg2.Idempotency(
            lambda: contextlib.nullcontext(cls.connection))

    def run_once(self, key, work):
        def pay(connection):
            with connection.cursor() as cursor:
                cursor.execute(INSERT)
            return end(work)
        self.payments.run("payments", key, {}, pay)


@unittest.skipUnless(sqlalchemy and psycopg2, "SQLAlchemy or psycopg2 is not installed")
class SQLAlchemy(Counted, PaymentTest):
    operation, failure, replay = 6, 6, 3

    @classmethod
    def open(cls):
        cls.engine = sqlalchemy.create_engine(
            f"postgresql+psycopg2://127.0.0.1:{cls.proxy.port}", future=True)
        cls.addClassCleanup(cls.engine.dispose)
        cls.payments = pg_idem.sqlalchemy.Idempotency(cls.engine.begin)

    def run_once(self, key, work):
        def pay(connection):
            connection.execute(sqlalchemy.text(INSERT))
            return end(work)
        self.payments.run("payments", key, {}, pay)


@unittest.skipUnless(django and psycopg2, "Django or psycopg2 is not installed")
class Django(Counted, PaymentTest):
    operation, failure, replay = 6, 7, 3

    @classmethod
    def open(cls):
        from django.db import connections
        django_payment()
        own = {"NAME": connections["default"].settings_dict["NAME"], "HOST": "127.0.0.1",
               "PORT": cls.proxy.port, "ENGINE": "django.db.backends.postgresql"}
        connections.databases["counted"] = {**connections["default"].settings_dict, **own}
        cls.addClassCleanup(connections.databases.pop, "counted")
        cls.addClassCleanup(lambda: connections["counted"].close())

    def run_once(self, key, work):
        import pg_idem.django

        def pay(connection):
            with connection.cursor() as cursor:
                cursor.execute(INSERT)
            return end(work)
        pg_idem.django.Idempotency("counted").run("payments", key, {}, pay)


if __name__ == "__main__":
    unittest.main()
