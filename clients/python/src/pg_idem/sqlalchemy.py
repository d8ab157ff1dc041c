"""Operations on a Session or Connection of SQLAlchemy, with psycopg or psycopg2.

    payments = Idempotency(sessionmaker(engine).begin)    # or engine.begin, without the ORM
"""

from __future__ import annotations

from typing import Any, Callable

from sqlalchemy.orm import Session

from . import core, flow, sync


class Idempotency(sync.Framework):
    """As pg_idem.Idempotency. `connect` returns a context manager that begins a transaction,
    yields a Session or Connection, and commits."""

    # The end of a nested transaction flushes the session, so the ORM writes before the claim is
    # completed. A flush that fails rolls it back, and its end would not say so.
    def effect(self, connection: Any, function: Callable[[Any], Any]) -> flow.Steps[Any]:
        nested = connection.begin_nested()

        def whole(_: Any) -> flow.Steps[Any]:
            result = yield function(connection)
            if not nested.is_active:
                raise RuntimeError(core.IGNORED)
            return result
        return self.within(nested, whole)

    def execute(self, connection: Any, statement: str, parameters: Any) -> Any:
        if isinstance(connection, Session):
            connection = connection.connection()
        return connection.exec_driver_sql(statement, parameters).fetchone()
