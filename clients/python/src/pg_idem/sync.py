"""Operations on a connection of psycopg 3. aio.py is the same with `await`."""

from __future__ import annotations

import functools
import json
import logging
import time
from contextlib import contextmanager
from typing import Any, Callable, ContextManager, Iterator, Optional, TypeVar

from . import core
from .core import Answer, Claim, Failure, Key, Retry

T = TypeVar("T")
log = logging.getLogger("pg_idem")


class Idempotency:
    """Runs operations once per key.

    connect  returns a context manager that yields a connection: the `connection` method of a
             psycopg pool, or `lambda: psycopg.connect(...)`
    wait     how long a claim waits for a key in flight, in seconds. A waiting claim occupies a
             connection, so this is shorter than the server's default of 10 seconds.
    retry    what to do after errors that a retry can cure
    tenant   to which client the keys belong; an argument of each call, too
    dumps, loads  JSON of requests and responses
    """

    def __init__(self, connect: Callable[[], ContextManager[Any]], *, wait: float = 2.0,
                 retry: Retry = Retry(), tenant: Optional[str] = None,
                 dumps: Callable[[Any], str] = json.dumps,
                 loads: Callable[[str], Any] = json.loads) -> None:
        self.connect, self.wait, self.retry, self.tenant = connect, wait, retry, tenant
        self.dumps, self.loads = dumps, loads

    def operation(self, scope: str) -> Callable[[Callable[[Any, Any], Any]], Callable[..., Any]]:
        """A decorator. Makes `pay(connection, request)` callable as `pay(key, request)`."""

        def decorate(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def once(key: Key, request: Any, *, tenant: Optional[str] = None) -> Any:
                def work(connection: Any) -> Any:
                    return function(connection, request)
                return self.run(scope, key, request, work, tenant=tenant).response
            return once

        return decorate

    def run(self, scope: str, key: Key, request: Any, function: Callable[[Any], Any], *,
            tenant: Optional[str] = None, retry: Optional[Retry] = None) -> Answer:
        """Claims the key, calls function(connection) and completes the claim with its result, in
        one transaction; or returns the stored answer. Raises Failure and Refused."""
        text = core.key_text(key)

        def attempt(connection: Any) -> Answer | Failure:
            claim = self.claim(connection, scope, text, request, tenant)
            stored = claim.stored(text, self.loads)
            if stored is not None:
                return stored
            try:
                with self.savepoint(connection):
                    result = function(connection)
            except Failure as failed:  # the effect is undone, and the failure is committed
                self.execute(connection, core.FAIL, core.failure(claim.token, failed))
                return failed
            answer = result if isinstance(result, Answer) else Answer(result)
            row = self.execute(connection, core.COMPLETE,
                               core.completion(claim.token, answer, self.dumps))
            # What the server made of it, so that the first answer equals its replays.
            response = None if row[0] is None else self.loads(row[0])
            return Answer(response, answer.status, answer.headers, answer.body)

        outcome = self.transaction(attempt, retry=retry)
        if isinstance(outcome, Failure):
            raise outcome
        return outcome

    def transaction(self, function: Callable[[Any], T], *, retry: Optional[Retry] = None) -> T:
        """Calls function(connection) in a transaction, and again after errors that a retry can
        cure. The outcome of a lost COMMIT is unknown, so the function must claim a key."""
        retry = retry or self.retry
        start, attempt = time.monotonic(), 1
        while True:
            try:
                with self.begin() as connection:
                    return function(connection)
            except Exception as error:
                pause = retry.pause(error, attempt, time.monotonic() - start)
                if pause is None:
                    raise
                log.info("attempt %d failed, retrying in %.3f s: %s", attempt, pause, error)
            time.sleep(pause)
            attempt += 1

    def claim(self, connection: Any, scope: str, key: Key, request: Any,
              tenant: Optional[str]) -> Claim:
        text = request if isinstance(request, (core.JsonText, type(None))) else self.dumps(request)
        try:
            return Claim(*self.execute(connection, core.CLAIM, {
                "scope": scope, "key": core.key_text(key), "request": text,
                "tenant": tenant if tenant is not None else self.tenant, "wait": self.wait}))
        except Exception as error:
            refused = core.as_refused(error)
            if refused is None:
                raise
            raise refused from error

    # What differs from driver to driver.

    @contextmanager
    def begin(self) -> Iterator[Any]:
        with self.connect() as connection, connection.transaction():
            yield connection

    def savepoint(self, connection: Any) -> ContextManager[Any]:
        return connection.transaction()  # type: ignore[no-any-return]

    def execute(self, connection: Any, statement: str, parameters: dict[str, Any]) -> Any:
        with connection.cursor(row_factory=lambda cursor: tuple) as cursor:
            return cursor.execute(statement, parameters).fetchone()
