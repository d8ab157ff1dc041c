"""Operations on a connection of psycopg 3."""

from __future__ import annotations

import contextlib
from contextlib import contextmanager
from typing import Any, Iterator, Mapping, Optional, Sequence

from . import drivers, flow
from .lease import Lease


class Blocking(flow.Operations[Lease]):
    """For drivers whose calls return their result."""

    leases = Lease

    def drive(self, steps: flow.Steps[Any]) -> Any:
        return flow.run(steps)

    def enter(self, manager: Any) -> Any:
        return manager.__enter__()

    def exit(self, manager: Any, error: Optional[BaseException]) -> Any:
        return manager.__exit__(type(error) if error else None, error,
                                error.__traceback__ if error else None)

    def sleep(self, seconds: float) -> flow.Pause:
        return flow.Pause(seconds)


class Idempotency(Blocking):
    __doc__ = flow.Operations.__doc__
    like: Optional[dict[str, Any]] = None  # how to connect once more: as the last one

    @contextmanager
    def connected(self) -> Iterator[Any]:
        with self.connect() as connection:
            drivers.require_idle(connection)
            self.like = drivers.parameters(connection)
            own = connection.autocommit
            connection.autocommit = True  # else the driver sends a BEGIN of its own, and waits
            try:
                yield connection
            except BaseException:
                with contextlib.suppress(Exception):  # of a connection that is lost
                    self.undo(connection)
                raise
            finally:
                if drivers.is_idle(connection):
                    connection.autocommit = own

    def undo(self, connection: Any) -> None:
        if drivers.is_abandoned(connection):
            connection.cancel()
        connection.rollback()

    @contextmanager
    def renewing(self) -> Iterator[Any]:
        from psycopg import connect
        configure, arguments = drivers.of_pool(self.connect)
        with connect(**{**arguments, **(self.like or {})}) as connection:
            if configure is not None:
                configure(connection)
            connection.autocommit = True
            yield connection

    @contextmanager
    def begun(self) -> Iterator[Any]:
        with self.connected() as connection, connection.transaction():
            yield connection

    def send(self, connection: Any, statements: Sequence[str], parameters: Mapping[str, Any], *,
             before: str = "", after: str = "") -> Any:
        from psycopg import ClientCursor
        message, results = drivers.message(connection, statements, before, after)
        with ClientCursor(connection, row_factory=lambda cursor: tuple) as cursor:
            cursor.execute(message, parameters)
            for _ in range(results):
                cursor.nextset()
            return cursor.fetchone() if statements else None

    def end(self, connection: Any) -> None:
        connection.commit()


class Framework(Blocking):
    """For frameworks that begin and commit the transaction, and set the savepoint."""

    def connected(self) -> Any:
        return self.connect()

    @contextmanager
    def begun(self) -> Iterator[Any]:
        with self.connected() as connection:
            self.execute(connection, "SELECT 1", {})  # the driver begins with a statement
            yield connection

    def send(self, connection: Any, statements: Sequence[str], parameters: Mapping[str, Any], *,
             before: str = "", after: str = "") -> Any:
        row = None
        for statement in statements:
            row = self.execute(connection, statement, parameters)
        return row

    def end(self, connection: Any) -> None:
        pass

    def execute(self, connection: Any, statement: str, parameters: Mapping[str, Any]) -> Any:
        """Returns the first row."""
        raise NotImplementedError
