"""Operations on a Session or Connection of SQLAlchemy, with psycopg or psycopg2.

    payments = Idempotency(sessionmaker(engine).begin)    # or engine.begin, without the ORM
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import Any, Callable, Iterator

from sqlalchemy import create_engine, event
from sqlalchemy.orm import Session

from . import core, drivers, flow, sync


class Idempotency(sync.Framework):
    """As pg_idem.Idempotency. `connect` returns a context manager that begins a transaction,
    yields a Session or Connection, and commits."""

    _renewals: Any = None  # of the process, and its engine

    @contextmanager
    def connected(self) -> Iterator[Any]:
        undone: list[Any] = []
        with self.connect() as connection:
            of = _connection_of(connection)
            self._engine = of.engine
            event.listen(of, "rollback", undone.append)  # as long as the connection lives
            yield connection
        if undone or connection.in_transaction():  # as after Engine.connect, and sessionmaker()
            raise RuntimeError("the transaction was rolled back or left open, which connect must"
                               " commit, as Engine.begin and sessionmaker.begin do")

    def renewing(self) -> Any:
        if self._renewals is None or self._renewals[0] != os.getpid():
            self._renewals = os.getpid(), create_engine(
                self._engine.url, pool=self._engine.pool.recreate(), future=True)
        return self._renewals[1].begin()

    # The end of a nested transaction flushes the session, so the ORM writes before the claim is
    # completed. A flush that fails rolls it back, and its end would not say so.
    def effect(self, connection: Any,
               body: Callable[[Any], flow.Steps[Any]]) -> flow.Steps[Any]:
        nested = connection.begin_nested()

        def whole(_: Any) -> flow.Steps[Any]:
            result = yield from self.guarded_call(connection, body)
            if not nested.is_active:
                raise RuntimeError(core.IGNORED)
            return result
        return self.within(nested, whole)

    @contextmanager
    def guarded(self, connection: Any) -> Iterator[Any]:
        guard, of = core.Guard(), _connection_of(connection)
        transaction = of.get_transaction()

        def statement(_: Any, cursor: Any, statement: str, *__: Any) -> None:
            if transaction and of.get_transaction() is not transaction:  # it was rolled back
                guard.refuse()
            guard.statement(statement, cursor.connection)

        def options(_: Any, options: Any) -> None:
            if "isolation_level" in options:  # its change is a rollback, before SQLAlchemy 2
                guard.refuse()

        own = dict.fromkeys(("commit", "rollback", "close", "invalidate"), guard.refuse)
        events: dict[str, Callable[..., Any]] = {
            "before_cursor_execute": statement, "set_connection_execution_options": options}
        for name, listener in events.items():
            event.listen(of, name, listener)
        vars(connection).update(own)
        try:
            with guard.kept(lambda: drivers.require_whole(of.connection.dbapi_connection)):
                yield connection
        finally:
            for name, listener in events.items():
                event.remove(of, name, listener)
            for name in own:
                del vars(connection)[name]

    def execute(self, connection: Any, statement: str, parameters: Any) -> Any:
        return _connection_of(connection).exec_driver_sql(statement, parameters).fetchone()


def _connection_of(connection: Any) -> Any:
    return connection.connection() if isinstance(connection, Session) else connection
