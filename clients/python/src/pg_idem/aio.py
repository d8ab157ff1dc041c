"""As sync.py, on an asynchronous connection of psycopg 3."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import time
from contextlib import asynccontextmanager
from typing import (Any, AsyncContextManager, AsyncIterator, Awaitable, Callable, Optional,
                    TypeVar)

from . import core
from .core import Answer, Claim, Failure, Key, Retry

T = TypeVar("T")
log = logging.getLogger("pg_idem")


class AsyncIdempotency:
    """As Idempotency. `connect` is the `connection` method of an AsyncConnectionPool, for example,
    and the operations are coroutines."""

    def __init__(self, connect: Callable[[], AsyncContextManager[Any]], *, wait: float = 2.0,
                 retry: Retry = Retry(), tenant: Optional[str] = None,
                 dumps: Callable[[Any], str] = json.dumps,
                 loads: Callable[[str], Any] = json.loads) -> None:
        self.connect, self.wait, self.retry, self.tenant = connect, wait, retry, tenant
        self.dumps, self.loads = dumps, loads

    def operation(self, scope: str) -> Callable[
            [Callable[[Any, Any], Awaitable[Any]]], Callable[..., Awaitable[Any]]]:
        """A decorator. Makes `pay(connection, request)` callable as `await pay(key, request)`."""

        def decorate(
                function: Callable[[Any, Any], Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
            @functools.wraps(function)
            async def once(key: Key, request: Any, *, tenant: Optional[str] = None) -> Any:
                async def work(connection: Any) -> Any:
                    return await function(connection, request)
                answer = await self.run(scope, key, request, work, tenant=tenant)
                return answer.response
            return once

        return decorate

    async def run(self, scope: str, key: Key, request: Any,
                  function: Callable[[Any], Awaitable[Any]], *,
                  tenant: Optional[str] = None, retry: Optional[Retry] = None) -> Answer:
        """Claims the key, calls function(connection) and completes the claim with its result, in
        one transaction; or returns the stored answer. Raises Failure and Refused."""
        text = core.key_text(key)

        async def attempt(connection: Any) -> Answer | Failure:
            claim = await self.claim(connection, scope, text, request, tenant)
            stored = claim.stored(text, self.loads)
            if stored is not None:
                return stored
            try:
                async with self.savepoint(connection):
                    result = await function(connection)
            except Failure as failed:  # the effect is undone, and the failure is committed
                await self.execute(connection, core.FAIL, core.failure(claim.token, failed))
                return failed
            answer = result if isinstance(result, Answer) else Answer(result)
            row = await self.execute(connection, core.COMPLETE,
                                     core.completion(claim.token, answer, self.dumps))
            # What the server made of it, so that the first answer equals its replays.
            response = None if row[0] is None else self.loads(row[0])
            return Answer(response, answer.status, answer.headers, answer.body)

        outcome = await self.transaction(attempt, retry=retry)
        if isinstance(outcome, Failure):
            raise outcome
        return outcome

    async def transaction(self, function: Callable[[Any], Awaitable[T]], *,
                          retry: Optional[Retry] = None) -> T:
        """Calls function(connection) in a transaction, and again after errors that a retry can
        cure. The outcome of a lost COMMIT is unknown, so the function must claim a key."""
        retry = retry or self.retry
        start, attempt = time.monotonic(), 1
        while True:
            try:
                async with self.begin() as connection:
                    return await function(connection)
            except Exception as error:
                pause = retry.pause(error, attempt, time.monotonic() - start)
                if pause is None:
                    raise
                log.info("attempt %d failed, retrying in %.3f s: %s", attempt, pause, error)
            await asyncio.sleep(pause)
            attempt += 1

    async def claim(self, connection: Any, scope: str, key: Key, request: Any,
                    tenant: Optional[str]) -> Claim:
        text = request if isinstance(request, (core.JsonText, type(None))) else self.dumps(request)
        try:
            return Claim(*await self.execute(connection, core.CLAIM, {
                "scope": scope, "key": core.key_text(key), "request": text,
                "tenant": tenant if tenant is not None else self.tenant, "wait": self.wait}))
        except Exception as error:
            refused = core.as_refused(error)
            if refused is None:
                raise
            raise refused from error

    # What differs from driver to driver.

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Any]:
        async with self.connect() as connection, connection.transaction():
            yield connection

    def savepoint(self, connection: Any) -> AsyncContextManager[Any]:
        return connection.transaction()  # type: ignore[no-any-return]

    async def execute(self, connection: Any, statement: str, parameters: dict[str, Any]) -> Any:
        async with connection.cursor(row_factory=lambda cursor: tuple) as cursor:
            await cursor.execute(statement, parameters)
            return await cursor.fetchone()
