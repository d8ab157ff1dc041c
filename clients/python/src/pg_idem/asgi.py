"""ASGI middleware (Starlette, FastAPI and others). The handler works on the middleware's
transaction:

    app.add_middleware(IdempotencyMiddleware, scope="payments",
                       idempotency=AsyncIdempotency(pool.connection))

    connection = request.state.idem_connection
"""

from __future__ import annotations

import asyncio
from typing import Any, Callable, Optional

from . import http
from .aio import AsyncIdempotency
from .http import Exchange, Policy, Response


class IdempotencyMiddleware:
    """As wsgi.IdempotencyMiddleware. The transaction is in scope["state"]["idem_connection"], and
    functions are called with the scope of ASGI instead of the environ. Starlette runs background
    tasks within the request, so before COMMIT."""

    def __init__(self, app: Any, idempotency: AsyncIdempotency, scope: str, *,
                 tenant: Optional[Callable[[dict[str, Any]], Optional[str]]] = None,
                 **policy: Any) -> None:
        self.app, self.idempotency, self.tenant = app, idempotency, tenant
        self.policy = Policy(scope, **policy)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http" or not self.policy.covers(scope["method"], scope["path"]):
            return await self.app(scope, receive, send)  # type: ignore[no-any-return]
        body = await _read(receive, self.policy.max_body)
        if body is None:
            return  # the client is gone
        headers = [value.decode("latin-1") for name, value in scope["headers"]
                   if name == b"idempotency-key"]
        if len(body) > self.policy.max_body:
            response = http.too_large(self.policy.max_body)
        else:
            exchange = Exchange(self.policy, scope["method"], scope["path"],
                                scope.get("query_string", b"").decode("latin-1"), body)
            response = await self.idempotency.drive(http.respond(
                self.idempotency, exchange, headers, scope, self.tenant,
                lambda connection: self._call(scope, exchange.body, connection)))
        await send({"type": "http.response.start", "status": response.status,
                    "headers": [(name.lower().encode("latin-1"), value.encode("latin-1"))
                                for name, value in response.headers]})
        await send({"type": "http.response.body", "body": response.body})

    async def _call(self, scope: dict[str, Any], body: bytes, connection: Any) -> Response:
        response = Response(500, [], b"")
        written: list[bytes] = []
        unread = [{"type": "http.request", "body": body, "more_body": False}]
        complete = asyncio.Event()

        # A client that goes away stops no operation: it will want the whole answer.
        async def replay() -> Any:
            if unread:
                return unread.pop()
            await complete.wait()
            return {"type": "http.disconnect"}

        async def keep(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                response.status = message["status"]
                response.headers = [(name.decode("latin-1"), value.decode("latin-1"))
                                    for name, value in message.get("headers", [])]
            elif message["type"] == "http.response.body":
                written.append(message.get("body", b""))
                if not message.get("more_body", False):
                    complete.set()

        # A copy of the state, as another attempt begins with what this one has found.
        state = {**scope.get("state", {}), "idem_connection": connection}
        await self.app({**scope, "state": state}, replay, keep)
        if not complete.is_set():
            raise RuntimeError("the application has not completed its response")
        response.body = b"".join(written)
        return response


async def _read(receive: Any, limit: int) -> Optional[bytes]:
    """The body, or the beginning of one that is too long; None if the client is gone."""
    chunks, size, more = [], 0, True
    while more and size <= limit:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        more = message.get("more_body", False)
    return b"".join(chunks)
