"""Operations on a Session or Connection of SQLAlchemy, with psycopg or psycopg2.

    payments = Idempotency(sessionmaker(engine).begin)    # or engine.begin, without the ORM
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, ContextManager, Iterator

from sqlalchemy.orm import Session

from . import sync


class Idempotency(sync.Idempotency):
    """As pg_idem.Idempotency. `connect` returns a context manager that begins a transaction,
    yields a Session or Connection, and commits."""

    @contextmanager
    def begin(self) -> Iterator[Any]:
        with self.connect() as connection:
            yield connection

    # Its end flushes the session, so the ORM writes before the claim is completed.
    def savepoint(self, connection: Any) -> ContextManager[Any]:
        return connection.begin_nested()  # type: ignore[no-any-return]

    def execute(self, connection: Any, statement: str, parameters: dict[str, Any]) -> Any:
        if isinstance(connection, Session):
            connection = connection.connection()
        return connection.exec_driver_sql(statement, parameters).fetchone()
