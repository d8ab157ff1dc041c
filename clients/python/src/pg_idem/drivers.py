"""What the drivers psycopg 3 and psycopg2 have in common."""

from __future__ import annotations

import importlib
import weakref
from contextlib import contextmanager
from typing import Any, Iterator, Optional, Sequence

from . import core


def is_idle(connection: Any) -> bool:
    return not connection.closed and connection.info.transaction_status == 0


def is_abandoned(connection: Any) -> bool:
    """Whether psycopg 3 waits no more for a statement: a task was cancelled, or a signal raised."""
    return connection.info.transaction_status == 1 and not connection.lock.locked()


def require_idle(connection: Any) -> None:
    if connection.info.transaction_status != 0:
        raise RuntimeError("the connection has an open transaction, and an operation needs its own")


def require_whole(connection: Any) -> None:
    status = connection.info.transaction_status
    if status == 1:
        raise RuntimeError(core.RUNNING)
    if status == 3:  # in error: COMMIT would roll it back, and succeed
        raise RuntimeError(core.IGNORED)
    if status == 0 and not connection.closed:
        raise RuntimeError(core.NOT_YOURS)


@contextmanager
def guarded(connection: Any) -> Iterator[Any]:
    """A copy of the connection of psycopg 3 that refuses to end its transaction, and all that comes
    after the function. Both have one lock, so a statement in flight ends before the transaction."""
    guard = core.Guard()
    lent = object.__new__(connection.__class__)  # copy.copy() does not take the proxy of a tracer

    def waiting(*args: Any, **kwargs: Any) -> Any:  # all that is sent, also by other cursors
        guard.require_open(connection)
        return connection.wait(*args, **kwargs)

    def whole() -> None:
        if connection.pgconn.pipeline_status:
            raise RuntimeError(core.RUNNING)
        require_whole(connection)
    vars(lent).update(vars(connection), wait=waiting,
                      cursor_factory=guarded_cursor(connection.cursor_factory, guard), _streams=[],
                      **dict.fromkeys(("commit", "rollback", "close"), guard.refuse))
    vars(lent).setdefault("_pool", None)  # else psycopg warns that it was not closed
    try:
        with guard.kept(whole):
            yield lent
    finally:
        if connection.pgconn.pipeline_status:  # all that is sent would wait for its end
            connection.pgconn.finish()
        # They would meet the statement of another.
        vars(lent).update(dict.fromkeys(("cancel", "cancel_safe"), guard.refuse))


def guarded_cursor(base: Any, guard: core.Guard) -> Any:
    class Cursor(base):  # type: ignore[misc]
        def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:
            guard.statement(text_of(query, self), self.connection)
            return super().execute(query, *args, **kwargs)

        def executemany(self, query: Any, *args: Any, **kwargs: Any) -> Any:
            guard.statement(text_of(query, self), self.connection)
            return super().executemany(query, *args, **kwargs)

        def stream(self, *args: Any, **kwargs: Any) -> Any:
            rows = super().stream(*args, **kwargs)
            vars(self.connection)["_streams"].append(rows)
            return rows
    return Cursor


def streams_of(lent: Any) -> list[Any]:
    """The rows that a function has asked psycopg 3 for. Until it has read them all, they hold the
    lock of the connection, on which all would wait."""
    streams: list[Any] = getattr(lent, "_streams", [])
    return streams if streams and lent.lock.locked() else []


def text_of(query: Any, cursor: Any) -> str:
    if isinstance(query, bytes):
        return query.decode("latin-1")
    if type(query).__name__ == "Template":  # of Python 3.14, and psycopg 3.3
        return str(importlib.import_module("psycopg.sql").as_string(query, cursor))
    return query if isinstance(query, str) else str(query.as_string(cursor))


def message(connection: Any, statements: Sequence[str], before: str, after: str) -> tuple[str, int]:
    """All statements as one, and how many results come before that of the last of `statements`."""
    if before == core.BEGIN:
        before = _begin(connection)
    texts = [text for text in (before, *statements, after) if text]
    return "; ".join(texts), len(texts) - 1 - bool(after)


def _begin(connection: Any) -> str:
    """BEGIN with the modes that the application has set on the connection."""
    modes = []
    if connection.isolation_level is not None:
        modes.append("ISOLATION LEVEL " + _isolation(connection.isolation_level))
    read_only = getattr(connection, "read_only", getattr(connection, "readonly", None))
    if read_only is not None:
        modes.append("READ ONLY" if read_only else "READ WRITE")
    if connection.deferrable is not None:
        modes.append("DEFERRABLE" if connection.deferrable else "NOT DEFERRABLE")
    return " ".join([core.BEGIN, ", ".join(modes)]).rstrip()


def _isolation(level: Any) -> str:
    name: Optional[str] = getattr(level, "name", None)  # of psycopg 3
    if name:
        return name.replace("_", " ")
    return {1: "READ COMMITTED", 2: "REPEATABLE READ", 3: "SERIALIZABLE",
            4: "READ UNCOMMITTED"}[level]


def of_pool(connect: Any) -> tuple[Any, dict[str, Any]]:
    """What a pool of psycopg 3 does with each new connection, such as SET ROLE, or None; and with
    which arguments it connects, such as autocommit and row_factory."""
    pool = getattr(connect, "__self__", None)
    arguments = getattr(pool, "kwargs", None)
    return getattr(pool, "_configure", None), arguments if isinstance(arguments, dict) else {}


_PARAMETERS = weakref.WeakKeyDictionary[Any, dict[str, Any]]()


def parameters(connection: Any) -> dict[str, Any]:
    """To connect once more. Asked once per connection, because it takes longer than a statement."""
    try:
        if connection not in _PARAMETERS:
            _PARAMETERS[connection] = _parameters(connection)
        return _PARAMETERS[connection]
    except TypeError:  # the proxy of a tracer, to which there are no weak references
        return _parameters(connection)


def _parameters(connection: Any) -> dict[str, Any]:
    info = connection.info
    found = info.get_parameters() if hasattr(info, "get_parameters") else info.dsn_parameters
    password = {"password": info.password} if info.password else {}
    return {name: value for name, value in found.items() if value} | password
