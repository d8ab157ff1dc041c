"""Functions that do with their transaction what is not theirs to do: nothing is committed."""

import asyncio
import contextlib
import functools
import gc
import io
import sys
import threading
import unittest
import warnings

import psycopg
from psycopg import Error
import pg_idem
from pg_idem import AsyncIdempotency, Failure, Idempotency, Retry

from support import (PaymentTest, aconnect, connect, django, django_payment, effects, new_key,
                     psycopg2, query, sqlalchemy)


# A word is what a function does, with the connection it was given: a method, or a statement. After
# "?" it swallows the error. PAY is an INSERT with the key of the test.
PAY = "INSERT INTO payment (key, amount) VALUES ('KEY', 1)"
NOT_YOURS = "must not end, begin or prepare"
OVER = "the operation has ended"
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


class Leftovers:
    """Tests of what a function has left behind. A subclass has uses(), open() and on()."""

    def test_nothing_works_after_the_end(self):
        key, found = new_key(), []

        def fails(given):
            found.extend(self.uses(given))
            raise ZeroDivisionError

        def another(given):
            self.assert_over(found)
            self.do(given, "PAY", key)
        with self.open() as connection:
            payments = self.on(connection)
            with self.assertRaises(ZeroDivisionError):
                payments.run("payments", new_key(), {}, fails)
            payments.run("payments", key, {}, another)
            found.clear()
            payments.run("payments", new_key(), {}, lambda given: found.extend(self.uses(given)))
            self.assert_over(found)
        self.assertEqual(effects(key), 1)
        self.assertEqual(effects("late"), 0)

    def assert_over(self, uses):
        for name, use in uses:
            with self.subTest(name), self.assertRaisesRegex(RuntimeError, OVER):
                use()

    def test_threads_that_are_left_work_in_no_other_transaction(self):
        key, errors, started = new_key(), [], threading.Event()

        def works(given, statement):
            started.set()
            try:
                self.statement(given, statement)
            except Exception as error:
                errors.append(error)

        def function(given):
            for statement in ("SELECT pg_sleep(0.3)", *[PAY.replace("KEY", key)] * 4):
                started.clear()
                threads.append(threading.Thread(target=works, args=(given, statement)))
                threads[-1].start()
                started.wait()
            raise ZeroDivisionError
        threads = []
        with self.open() as connection:
            with self.assertRaises(ZeroDivisionError):
                self.on(connection).run("payments", new_key(), {}, function)
            for thread in threads:
                thread.join()
        self.assertEqual(effects(key), 0)
        self.assertEqual([str(error) for error in errors if OVER not in str(error)], [])


class Psycopg(Leftovers, Misdeeds, PaymentTest):
    def open(self):
        return connect()

    def on(self, connection):
        return Idempotency(lambda: contextlib.nullcontext(connection))

    def test_a_statement_that_is_still_running(self):
        key = new_key()

        def function(connection):
            self.do(connection, "PAY", key)
            thread = threading.Thread(target=connection.execute, args=("SELECT pg_sleep(0.5)",))
            thread.start()
            while connection.info.transaction_status != 1:
                pass
            threads.append(thread)
        threads = []
        for way, run in self.ways(key):
            with self.subTest(way), self.assertRaisesRegex(RuntimeError, "still running"):
                run(function)
            threads.pop().join()
            self.assertEqual(effects(key), 0)

    def test_a_pipeline_or_a_stream_that_is_left_open_holds_nothing_up(self):
        left = []

        def pipeline(connection):
            left.append(connection.pipeline())
            left[-1].__enter__()
            self.do(connection, "PAY", key)

        def stream(connection):
            rows = connection.cursor().stream("SELECT generate_series(1, 100000)")
            for _ in rows:
                raise Failure("declined")  # whose traceback has the rows
        for function in (pipeline, stream):
            key = new_key()
            for way, run in self.ways(key):
                with self.subTest(function.__name__, way=way), self.assertRaises(
                        RuntimeError if function == pipeline else Failure):
                    run(function)
                self.assertEqual(effects(key), 0)
        del left[:]

    def test_the_proxy_of_a_tracer(self):
        class Proxy:
            __slots__ = ("wrapped",)
            __class__ = property(lambda self: type(self.wrapped))
            __dict__ = property(lambda self: vars(self.wrapped))

            def __init__(self, wrapped):
                object.__setattr__(self, "wrapped", wrapped)

            def __getattr__(self, name):
                return getattr(self.wrapped, name)

            def __setattr__(self, name, value):
                setattr(self.wrapped, name, value)

            def __reduce_ex__(self, protocol):
                raise NotImplementedError
        key = new_key()
        with connect() as connection:
            self.on(Proxy(connection)).run("payments", key, {}, self.function(["PAY"], key))
        self.assertEqual(effects(key), 1)

    def test_no_warning_of_the_copy(self):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.payments().run("payments", new_key(), {}, lambda connection: None)
            gc.collect()
        self.assertEqual([str(warning.message) for warning in caught], [])

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

    @unittest.skipIf(sys.version_info < (3, 14), "needs templates")
    def test_templates(self):
        with self.assertRaisesRegex(RuntimeError, "must not end"):
            self.payments().transaction(lambda connection: connection.execute(eval('t"ROLLBACK"')))

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

    def uses(self, given):
        """What a function may keep, as functions that use it later."""
        pay = PAY.replace("KEY", "late")
        for cursor in (given.cursor(), psycopg.ClientCursor(given)):
            yield f"execute of {cursor}", functools.partial(cursor.execute, pay)
        copy = "COPY payment (key, amount) FROM STDIN"
        yield "copy", given.cursor().copy(copy).__enter__
        yield "executemany", functools.partial(given.cursor().executemany, pay, [()])
        yield "stream", functools.partial(next, given.cursor().stream(f"{pay} RETURNING id"))
        yield "execute", functools.partial(given.execute, pay)
        yield "a savepoint", given.transaction().__enter__
        yield "a pipeline", given.pipeline().__enter__
        block = given.transaction()
        block.__enter__()
        yield "the end of a block", functools.partial(block.__exit__, None, None, None)
        for name in ("commit", "rollback", "close", "cancel"):
            yield name, functools.partial(lambda name: getattr(given, name)(), name)
        yield "autocommit", functools.partial(setattr, given, "autocommit", False)

    def test_what_is_set_stays_with_the_operation(self):
        with connect() as connection:
            payments = Idempotency(lambda: contextlib.nullcontext(connection))

            def function(given):
                given.row_factory = psycopg.rows.dict_row
                with given.transaction(), given.pipeline():
                    return given.execute("SELECT 1 AS one").fetchone()
            answer = payments.run("payments", new_key(), {}, function)
            self.assertEqual(answer.response, {"one": 1})
            self.assertEqual(connection.execute("SELECT 1").fetchone(), (1,))

    def test_the_connection_is_as_before(self):
        class Cursor(psycopg.Cursor):
            pass
        with psycopg.connect(cursor_factory=Cursor) as connection:
            before = dict(vars(connection))
            payments = Idempotency(lambda: contextlib.nullcontext(connection))
            seen = payments.run("payments", new_key(), {}, lambda given: [
                isinstance(given, psycopg.Connection), isinstance(given.cursor(), Cursor),
                given.info.backend_pid == connection.info.backend_pid])
            self.assertEqual(seen.response, [True, True, True])
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

    def test_a_stream_that_is_left_open_holds_nothing_up(self):
        async def function(connection):
            rows = connection.cursor().stream("SELECT generate_series(1, 100000)")
            async for _ in rows:
                raise Failure("declined")
        for way, run in self.ways(new_key()):
            with self.subTest(way), self.assertRaises(Failure):
                run(function)

    def test_tasks_that_are_left_work_in_no_other_transaction(self):
        asyncio.run(self.leave_tasks())

    async def leave_tasks(self):
        key, left = new_key(), []

        async def works(given, cursor):
            await given.execute("SELECT pg_sleep(0.1)")
            await begun.wait()
            for late in (cursor.execute, given.execute):
                with self.assertRaisesRegex(RuntimeError, OVER):
                    await late(PAY.replace("KEY", key))
            with self.assertRaisesRegex(RuntimeError, OVER):
                async with given.transaction():
                    pass

        async def fails():
            raise ZeroDivisionError

        async def first(given):
            left.append(asyncio.create_task(works(given, given.cursor())))
            await asyncio.sleep(0.05)
            await asyncio.gather(fails(), left[0])

        async def second(given):
            begun.set()
            await given.execute("SELECT 1")
            await left[0]
        begun = asyncio.Event()
        async with aconnect() as connection:
            payments = AsyncIdempotency(lambda: contextlib.nullcontext(connection))
            with self.assertRaises(ZeroDivisionError):
                await payments.run("payments", new_key(), {}, first)
            await payments.run("payments", new_key(), {}, second)
        self.assertEqual(effects(key), 0)

    def test_a_task_that_is_still_running(self):
        key = new_key()

        async def function(connection):
            await self.do(connection, "PAY", key)
            tasks.append(asyncio.create_task(connection.execute("SELECT pg_sleep(0.5)")))
            await asyncio.sleep(0.1)
        tasks = []
        for way, run in self.ways(key):
            with self.subTest(way), self.assertRaisesRegex(RuntimeError, "still running"):
                run(function)
            self.assertEqual(effects(key), 0)


@unittest.skipUnless(psycopg2, "psycopg2 is not installed")
class Psycopg2(Leftovers, Misdeeds, PaymentTest):
    def open(self):
        return contextlib.closing(psycopg2.connect(""))

    def on(self, connection):
        return pg_idem.psycopg2.Idempotency(lambda: contextlib.nullcontext(connection))

    def uses(self, given):
        pay = PAY.replace("KEY", "late")
        cursor, named = given.cursor(), given.cursor(new_key(), withhold=True)
        named.execute("SELECT generate_series(1, 9)")
        data = io.StringIO("late\t1\n")
        yield "execute", functools.partial(cursor.execute, pay)
        yield "executemany", functools.partial(cursor.executemany, pay, [()])
        yield "a procedure", functools.partial(cursor.callproc, "now")
        yield "COPY", functools.partial(
            cursor.copy_expert, "COPY payment (key, amount) FROM STDIN", data)
        yield "copy_from", functools.partial(
            cursor.copy_from, data, "payment", columns=("key", "amount"))
        yield "many rows", functools.partial(
            psycopg2.extras.execute_batch, cursor, pay, [()])
        for fetch in (named.fetchone, named.fetchall, named.close, functools.partial(next, named)):
            yield f"{fetch} of the server's cursor", fetch
        yield "cursor", given.cursor
        for name in ("commit", "rollback", "close", "cancel"):
            yield name, functools.partial(lambda name: getattr(given, name)(), name)
        yield "autocommit", functools.partial(setattr, given, "autocommit", False)

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

    def test_nothing_is_sent_outside_of_the_transaction(self):
        key = new_key()
        for send in (lambda cursor: cursor.execute(PAY.replace("KEY", key)),
                     lambda cursor: cursor.executemany(PAY.replace("KEY", key), [()]),
                     lambda cursor: cursor.copy_from(
                         io.StringIO(f"{key}\t1\n"), "payment", columns=("key", "amount"))):
            def function(connection):
                cursor = connection.cursor()
                cursor.connection.cursor().execute("ROLLBACK")  # of the connection below
                send(cursor)
            for way, run in self.ways(key):
                with self.subTest(send, way=way), self.assertRaisesRegex(RuntimeError, NOT_YOURS):
                    run(function)
                self.assertEqual(effects(key), 0)

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

    def test_nothing_is_sent_outside_of_the_transaction(self):
        engine = sqlalchemy.create_engine(self.engine.url)  # in 1.4, it need not be a future one
        self.addCleanup(engine.dispose)

        def autocommit(connection):
            connection.execution_options(isolation_level="AUTOCOMMIT")

        def rollback(connection):
            connection.get_transaction().rollback()
        for misdeed in (autocommit, rollback):
            for connect in (engine.begin, sqlalchemy.orm.sessionmaker(engine).begin):
                key = new_key()

                def function(connection):
                    misdeed(connection if connect == engine.begin else connection.connection())
                    self.do(connection, "PAY", key)
                with self.subTest(misdeed, connect=connect), self.assertRaises(Exception):
                    pg_idem.sqlalchemy.Idempotency(connect).run("payments", key, {}, function)
                self.assertEqual(effects(key), 0)


@unittest.skipUnless(sqlalchemy, "SQLAlchemy is not installed")
class SQLAlchemyORM(SQLAlchemy):
    misdeeds = {**MISDEEDS, "begins anew": (["PAY", "?.rollback", "PAY", "?.commit"], NOT_YOURS),
                "closes": (["PAY", ".close", "PAY", "?.commit"], NOT_YOURS)}

    def payments(self):
        return pg_idem.sqlalchemy.Idempotency(
            sqlalchemy.orm.sessionmaker(self.engine, future=True).begin)

    def test_an_error_of_the_session_is_what_is_raised(self):
        class Row(sqlalchemy.orm.declarative_base()):
            __table__ = sqlalchemy.Table("payment", sqlalchemy.MetaData(), sqlalchemy.Column(
                "id", sqlalchemy.BigInteger, primary_key=True), sqlalchemy.Column("amount"))

        def function(session):
            session.add(Row(id=1, amount=None))
            session.flush()
        with self.assertRaises(sqlalchemy.exc.IntegrityError):
            self.payments().transaction(function)


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

    def test_nothing_is_sent_outside_of_the_transaction(self):
        key = new_key()

        def function(connection):
            connection.connection.rollback()
            connection.connection.autocommit = True
            self.do(connection, "PAY", key)
        self.addCleanup(self.connection.close)
        for way, run in self.ways(key):
            with self.subTest(way), self.assertRaises(Exception):
                run(function)
            self.assertEqual(effects(key), 0)

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
