"""Functions that do with their transaction what is not theirs to do: nothing is committed."""

import asyncio
import contextlib
import unittest

import psycopg
from psycopg import Error
import pg_idem
from pg_idem import AsyncIdempotency, Failure, Idempotency, Retry

from support import PaymentTest, aconnect, connect, django_payment, effects, new_key, query

try:
    import psycopg2
    import psycopg2.extras
    import pg_idem.psycopg2
except ImportError:
    psycopg2 = None
try:
    import sqlalchemy
    import sqlalchemy.orm
    import pg_idem.sqlalchemy
except ImportError:
    sqlalchemy = None
try:
    import django
except ImportError:
    django = None

# A word is what a function does, with the connection it was given: a method, or a statement. After
# "?" it swallows the error. PAY is an INSERT with the key of the test.
PAY = "INSERT INTO payment (key, amount) VALUES ('KEY', 1)"
NOT_YOURS = "must not end, begin or prepare"
MISDEEDS = {
    "rolls back and goes on": (["PAY", ".rollback", "PAY"], NOT_YOURS),
    "rolls back after an error": (["?SELECT 1/0", ".rollback", "PAY"], NOT_YOURS),
    "commits": (["PAY", ".commit"], NOT_YOURS),
    "swallows the refusal": (["PAY", "?.rollback", "PAY"], NOT_YOURS),
    "swallows the refusal and fails": (["PAY", "?.rollback", "PAY", "SELECT 1/0"], NOT_YOURS),
    "ROLLBACK": (["PAY", "ROLLBACK", "PAY"], NOT_YOURS),
    "ROLLBACK, swallowed": (["?ROLLBACK", "PAY"], NOT_YOURS),
    "rollback in a comment's company": (["PAY", "/* undo */ rollback -- to", "PAY"], NOT_YOURS),
    "COMMIT": (["PAY", " commit work"], NOT_YOURS),
    "COMMIT of what failed": (["PAY", "?SELECT 1/0", "?COMMIT", "?PAY"], NOT_YOURS),
    "both in one string": (["PAY", "ROLLBACK; PAY"], NOT_YOURS),
    "another transaction in one string":
        (["SELECT 'it''s'; ROLLBACK; BEGIN; PAY; COMMIT"], NOT_YOURS),
    "after a literal with a backslash": (["SELECT E'\\''; ROLLBACK; PAY; SELECT ''"], NOT_YOURS),
    "BEGIN": (["PAY", "BEGIN", "PAY"], NOT_YOURS),
    "two phases": (["PAY", "PREPARE TRANSACTION 'x'"], NOT_YOURS),
    "an error that is swallowed": (["PAY", "?SELECT 1/0"], "ignored an error"),
    "a savepoint of its own that is left in error":
        (["PAY", "SAVEPOINT own", "PAY", "?SELECT 1/0"], "ignored an error"),
}
LEGAL = {
    "savepoints": ["SAVEPOINT own", "PAY", "ROLLBACK TO own", "ROLLBACK WORK TO SAVEPOINT own",
                   "RELEASE own", "PAY"],
    "words in literals, names and comments":
        ["SELECT '; ROLLBACK', $$; COMMIT;$$, 1 AS \"; end\" -- ; commit\n /* ; begin */", "PAY",
         "SELECT e'\\\\', E'it''s \\'; ROLLBACK; \\'', 'C:\\'",
         "DO $do$ BEGIN PERFORM 1; END $do$", "SELECT CASE WHEN true THEN 1\nEND"],
}


class Misdeeds:
    """The tests. A subclass says how to do a word, and how to run a function."""

    misdeeds = MISDEEDS

    def statement(self, connection, statement):
        return connection.execute(statement)

    def method(self, connection, name):
        return getattr(connection, name)()

    def function(self, words, key):
        def function(connection):
            for word in words:
                with contextlib.suppress(Exception) if word[0] == "?" else contextlib.nullcontext():
                    self.do(connection, word.lstrip("?"), key)
            return "done"
        return function

    def do(self, connection, word, key):
        if word[0] == ".":
            return self.method(connection, word[1:])
        return self.statement(connection, word.replace("PAY", PAY).replace("KEY", key))

    def ways(self, key):
        """How a function gets a connection: whether it claims a key, and a function of it."""
        payments = self.payments()
        yield "run", lambda function: payments.run("payments", key, {}, function)
        yield "lease", lambda function: payments.lease("leases", key, {}, backoff=(0.0, 0.0)).run(
            lambda lease: lease.complete(effect=function))
        yield "transaction", payments.transaction

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        query("SELECT idem.create_scope('leases', if_not_exists => true)::text")

    def test_nothing_is_committed(self):
        for name, (words, message) in self.misdeeds.items():
            key = new_key()
            for way, run in self.ways(key):
                with self.subTest(name, way=way):
                    for _ in range(2):
                        with self.assertRaisesRegex(RuntimeError, message):
                            run(self.function(words, key))
                    self.assertEqual(effects(key), 0)
                    run(self.function(["PAY"], key))
                    self.assertEqual(effects(key), 1)
                with connect() as connection:
                    connection.execute("DELETE FROM payment WHERE key = %s", (key,))

    def test_what_a_function_may_do(self):
        for name, words in LEGAL.items():
            key = new_key()
            with self.subTest(name):
                next(self.ways(key))[1](self.function(words, key))
                self.assertEqual(effects(key), 1)


class Psycopg(Misdeeds, PaymentTest):
    def payments(self):
        return Idempotency(psycopg.connect)

    def test_other_ways_to_a_cursor(self):
        key = new_key()
        pay = PAY.replace("KEY", key)

        def own_cursor(connection):
            connection.execute(pay)
            psycopg.ClientCursor(connection).execute("ROLLBACK")
            connection.execute(pay)

        def own_block(connection):
            psycopg.ClientCursor(connection).execute("ROLLBACK")
            with connection.transaction():
                connection.execute(pay)

        def composed(connection):
            connection.execute(psycopg.sql.SQL("ROLLBACK"))

        def many(connection):
            connection.cursor().executemany(b"ROLLBACK", [()])

        def with_block(connection):
            with connection:
                connection.execute(pay)
        for function in (own_cursor, own_block, composed, many, with_block):
            for way, run in self.ways(key):
                with self.subTest(function.__name__, way=way), self.assertRaises(RuntimeError):
                    run(function)
                self.assertEqual(effects(key), 0)

    def test_what_the_guard_cannot_see_is_refused_by_a_guarded_table(self):
        with connect() as connection:
            connection.execute(
                "DROP TABLE IF EXISTS guarded; CREATE TABLE guarded (key text);"
                "CREATE TRIGGER guard BEFORE INSERT ON guarded FOR EACH STATEMENT"
                " EXECUTE FUNCTION idem.require_claim('payments')")
        insert = "INSERT INTO guarded VALUES (idem.current_key())"

        def own_cursor(connection):
            psycopg.ClientCursor(connection).execute(f"ROLLBACK; {insert}")

        def libpq(connection):
            connection.pgconn.exec_(f"ROLLBACK; {insert}".encode())
        for function in (own_cursor, libpq):
            for _, run in self.ways(new_key()):
                with self.subTest(function.__name__), self.assertRaises((RuntimeError, Error)):
                    run(function)
        self.assertEqual(query("SELECT count(*) FROM guarded"), 0)

    def test_autocommit(self):
        key = new_key()

        def function(connection):
            connection.autocommit = True
        with self.assertRaisesRegex(psycopg.ProgrammingError, "autocommit"):
            self.payments().run("payments", key, {}, function)

    def test_the_connection_is_as_before(self):
        class Cursor(psycopg.Cursor):
            pass
        with psycopg.connect(cursor_factory=Cursor) as connection:
            before = dict(vars(connection))
            payments = Idempotency(lambda: contextlib.nullcontext(connection))
            seen = payments.run("payments", new_key(), {}, lambda given: [
                given is connection, isinstance(given.cursor(), Cursor)])
            self.assertEqual(seen.response, [True, True])
            self.assertEqual(vars(connection).keys(), before.keys())
            self.assertIs(connection.cursor_factory, Cursor)
            connection.commit()
            connection.rollback()

    def test_a_failure_after_a_refusal_is_not_stored_with_an_effect(self):
        key = new_key()

        def function(connection):
            connection.execute(PAY.replace("KEY", key))
            with contextlib.suppress(RuntimeError):
                connection.rollback()
            raise Failure("declined")
        with self.assertRaisesRegex(RuntimeError, NOT_YOURS):
            self.payments().run("payments", key, {}, function)
        self.assertEqual(effects(key), 0)


class PsycopgAsync(Misdeeds, PaymentTest):
    def function(self, words, key):
        async def function(connection):
            for word in words:
                with contextlib.suppress(Exception) if word[0] == "?" else contextlib.nullcontext():
                    await self.do(connection, word.lstrip("?"), key)
            return "done"
        return function

    def ways(self, key):
        def run(make):
            return lambda function: asyncio.run(make(AsyncIdempotency(aconnect), function))
        yield "run", run(lambda payments, function: payments.run("payments", key, {}, function))
        yield "lease", run(lambda payments, function: payments.lease(
            "leases", key, {}, backoff=(0.0, 0.0)).run(
                lambda lease: lease.complete(effect=function)))
        yield "transaction", run(lambda payments, function: payments.transaction(function))


@unittest.skipUnless(psycopg2, "psycopg2 is not installed")
class Psycopg2(Misdeeds, PaymentTest):
    def statement(self, connection, statement):
        with connection.cursor(cursor_factory=psycopg2.extras.RealDictCursor) as cursor:
            cursor.execute(statement)

    def payments(self):
        return pg_idem.psycopg2.Idempotency(lambda: contextlib.closing(
            psycopg2.connect("", cursor_factory=psycopg2.extras.RealDictCursor)))

    def test_what_ends_or_changes_it_is_refused(self):
        def with_block(connection):
            with connection:
                pass

        def autocommit(connection):
            connection.autocommit = True

        def session(connection):
            connection.set_session(autocommit=False)

        def many(connection):
            connection.cursor().executemany("ROLLBACK", [()])
        for function in (with_block, autocommit, session, many):
            with self.subTest(function), self.assertRaisesRegex(RuntimeError, NOT_YOURS):
                self.payments().run("payments", new_key(), {}, function)

    def test_the_cursors_of_the_application(self):
        def function(connection):
            with connection.cursor() as cursor:
                psycopg2.extras.execute_values(
                    cursor, "INSERT INTO payment (amount) VALUES %s RETURNING amount", [(1,), (2,)])
                return [int(row["amount"]) for row in cursor.fetchall()]
        answer = self.payments().run("payments", new_key(), {}, function)
        self.assertEqual(answer.response, [1, 2])


@unittest.skipUnless(sqlalchemy, "SQLAlchemy is not installed")
class SQLAlchemy(Misdeeds, PaymentTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        driver = "psycopg2" if sqlalchemy.__version__.startswith("1.") else "psycopg"
        cls.engine = sqlalchemy.create_engine(f"postgresql+{driver}://", future=True)
        cls.addClassCleanup(cls.engine.dispose)

    def statement(self, connection, statement):
        connection.execute(sqlalchemy.text(statement))

    def payments(self):
        return pg_idem.sqlalchemy.Idempotency(self.engine.begin)


@unittest.skipUnless(sqlalchemy, "SQLAlchemy is not installed")
class SQLAlchemyORM(SQLAlchemy):
    misdeeds = {**MISDEEDS, "begins anew": (["PAY", "?.rollback", "PAY", "?.commit"], NOT_YOURS),
                "closes": (["PAY", ".close", "PAY", "?.commit"], NOT_YOURS)}

    def payments(self):
        return pg_idem.sqlalchemy.Idempotency(
            sqlalchemy.orm.sessionmaker(self.engine, future=True).begin)


@unittest.skipUnless(django and psycopg2, "Django or psycopg2 is not installed")
class Django(Misdeeds, PaymentTest):
    misdeeds = {name: deed for name, deed in MISDEEDS.items() if not any(
        "." in word for word in deed[0])}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        django_payment()
        from django.db import connection, connections
        cls.connection = connection
        cls.addClassCleanup(connections.close_all)

    def statement(self, connection, statement):
        with connection.cursor() as cursor:
            cursor.execute(statement)

    def payments(self):
        import pg_idem.django
        return pg_idem.django.Idempotency()

    def test_django_refuses_by_itself(self):
        from django.db import transaction
        for method in (transaction.commit, transaction.rollback,
                       lambda: transaction.set_autocommit(True)):
            key = new_key()

            def function(connection):
                self.do(connection, "PAY", key)
                method()
            for way, run in self.ways(key):
                with self.subTest(method, way=way):
                    with self.assertRaises(transaction.TransactionManagementError):
                        run(function)
                    self.assertEqual(effects(key), 0)


if __name__ == "__main__":
    unittest.main()
