"""As sync.py, on an asynchronous connection of psycopg 3."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import asynccontextmanager
from typing import Any, AsyncIterator, Mapping, Optional, Sequence

from . import drivers, flow
from .lease import AsyncLease


class AsyncIdempotency(flow.Operations[AsyncLease]):
    """As Idempotency. `connect` is the `connection` method of an AsyncConnectionPool, for example,
    and the operations are coroutines."""

    leases = AsyncLease
    like: Optional[dict[str, Any]] = None  # as in sync.py

    def drive(self, steps: flow.Steps[Any]) -> Any:
        return flow.run_async(steps)

    def enter(self, manager: Any) -> Any:
        return manager.__aenter__()

    def exit(self, manager: Any, error: Optional[BaseException]) -> Any:
        return manager.__aexit__(type(error) if error else None, error,
                                 error.__traceback__ if error else None)

    def sleep(self, seconds: float) -> Any:
        return asyncio.sleep(seconds)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Any]:
        async with self.connect() as connection:
            drivers.require_idle(connection)
            self.like = drivers.parameters(connection)
            own = connection.autocommit
            await connection.set_autocommit(True)  # as in sync.py
            try:
                yield connection
            except BaseException:
                with contextlib.suppress(Exception):
                    if drivers.is_abandoned(connection):
                        await asyncio.to_thread(connection.pgconn.get_cancel().cancel)
                    await connection.rollback()
                raise
            finally:
                if drivers.is_idle(connection):
                    await connection.set_autocommit(own)

    @asynccontextmanager
    async def renewing(self) -> AsyncIterator[Any]:
        from psycopg import AsyncConnection
        configure, arguments = drivers.of_pool(self.connect)
        arguments = {**arguments, **(self.like or {})}
        async with await AsyncConnection.connect(**arguments) as connection:
            if configure is not None:
                await configure(connection)
            await connection.set_autocommit(True)
            yield connection

    @asynccontextmanager
    async def begun(self) -> AsyncIterator[Any]:
        async with self.connected() as connection, connection.transaction():
            yield connection

    async def send(self, connection: Any, statements: Sequence[str],
                   parameters: Mapping[str, Any], *, before: str = "", after: str = "") -> Any:
        from psycopg import AsyncClientCursor
        message, results = drivers.message(connection, statements, before, after)
        async with AsyncClientCursor(connection, row_factory=lambda cursor: tuple) as cursor:
            await cursor.execute(message, parameters)
            for _ in range(results):
                cursor.nextset()
            return await cursor.fetchone() if statements else None

    async def end(self, connection: Any) -> None:
        await connection.commit()
