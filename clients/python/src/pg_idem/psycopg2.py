"""Operations on a connection of psycopg2.

    payments = Idempotency(lambda: contextlib.closing(psycopg2.connect()))
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Mapping, Sequence

from . import core, drivers, sync

# psycopg2 keeps the result of the last statement of a message only. So the claim, which the
# savepoint follows, is handed on in a setting of the transaction; and what an operation returns is
# asked for after COMMIT. Functions of any type have their schema: one that others have made in the
# search path, for just these types, would be preferred.
_KEEP = ("SELECT set_config('pg_idem.row', (pg_catalog.to_jsonb(c) ||"
         " pg_catalog.jsonb_build_object('body', encode(c.body, 'hex')))::text, true)"
         " FROM ({}) AS c")
_KEPT = "SELECT current_setting('pg_idem.row')"
# idem.complete() returns the response as jsonb, as this does.
_RESPONSE = "SELECT %(response)s::jsonb::text"


class Idempotency(sync.Idempotency):
    """As pg_idem.Idempotency. `connect` returns a context manager that yields a connection: not the
    connection itself, which begins a transaction, but contextlib.closing(connection). The operation
    must not end the transaction, and commit() and rollback() of its connection are refused."""

    def undo(self, connection: Any) -> None:
        if not drivers.is_idle(connection):
            self.send(connection, ["ROLLBACK"], {})

    @contextmanager
    def renewing(self) -> Iterator[Any]:
        dsn = _extensions().make_dsn("", **(self.like or {}))
        with contextlib.closing(_extensions().connection(dsn)) as connection:
            connection.autocommit = True
            yield connection

    @contextmanager
    def begun(self) -> Iterator[Any]:
        with self.connected() as connection:
            self.send(connection, [], {}, before=core.BEGIN)
            yield connection
            self.end(connection)

    @contextmanager
    def guarded(self, connection: Any) -> Iterator[Any]:
        guard = core.Guard()
        with guard.kept(lambda: drivers.require_whole(connection)):
            yield _Guarded(connection, guard)

    def send(self, connection: Any, statements: Sequence[str], parameters: Mapping[str, Any], *,
             before: str = "", after: str = "") -> Any:
        kept, result = after == core.SAVEPOINT, []
        if kept:
            statements, result = [*statements[:-1], _KEEP.format(statements[-1])], [_KEPT]
        elif after and statements[-1] == core.EXPIRES:
            statements, result = statements[:-1], core.chosen(core.EXPIRES, parameters)
        elif parameters.get("response") is not None:
            result = [_RESPONSE]
        message, _ = drivers.message(connection, statements, before, after)
        message = "; ".join([message, *result])
        with connection.cursor(cursor_factory=_extensions().cursor) as cursor:
            cursor.execute(message, parameters)
            row: Any = cursor.fetchone() if cursor.description else (None,)
        return _claim(json.loads(row[0])) if kept else row

    def end(self, connection: Any) -> None:
        self.send(connection, ["COMMIT"], {})


def _extensions() -> Any:
    return importlib.import_module("psycopg2.extensions")  # not before it is needed


# The methods of a cursor that send something, and those of one that the server has.
_SENDING = ("execute", "executemany", "callproc", "copy_expert", "copy_from", "copy_to")
_FETCHING = ("fetchone", "fetchmany", "fetchall", "scroll", "__next__", "close")


class _Guarded:
    """A connection whose transaction cannot be ended, and which cannot be used after it."""

    def __init__(self, connection: Any, guard: core.Guard) -> None:
        vars(self).update(_connection=connection, _guard=guard)
        for name in ("commit", "rollback", "close", "set_session", "set_isolation_level", "reset",
                     "tpc_begin", "tpc_prepare", "tpc_commit", "tpc_rollback"):
            vars(self)[name] = guard.refuse

    def __getattr__(self, name: str) -> Any:
        self._guard.require_running()
        return getattr(self._connection, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._guard.require_running()
        if name == "autocommit" or name in ("isolation_level", "readonly", "deferrable"):
            self._guard.refuse()
        setattr(self._connection, name, value)

    def __enter__(self) -> Any:  # its end would commit
        self._guard.refuse()

    def __exit__(self, *error: Any) -> None:
        pass

    def cursor(self, *args: Any, cursor_factory: Any = None, **kwargs: Any) -> Any:
        self._guard.require_running()
        base = cursor_factory or self._connection.cursor_factory or _extensions().cursor
        factory = drivers.guarded_cursor(base, self._guard)
        for name in _SENDING + (_FETCHING if args or kwargs.get("name") else ()):
            setattr(factory, name, _guarded_method(getattr(factory, name), self._guard))
        return self._connection.cursor(*args, cursor_factory=factory, **kwargs)


def _guarded_method(method: Callable[..., Any], guard: core.Guard) -> Callable[..., Any]:
    """The operation does not end while it runs, nor before a call that waits for its turn."""
    @functools.wraps(method)
    def guarded(cursor: Any, *args: Any, **kwargs: Any) -> Any:
        with guard.lock:
            guard.require_open(cursor.connection)
            return method(cursor, *args, **kwargs)
    return guarded


def _claim(row: dict[str, Any]) -> core.Claim:
    body = row.pop("body")
    return core.Claim(**row, body=None if body is None else bytes.fromhex(body))
