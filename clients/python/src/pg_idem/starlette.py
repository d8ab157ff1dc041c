"""Endpoints of Starlette that run once per key.

    @idempotent(AsyncIdempotency(pool.connection), "payments", tenant=lambda r: r.user.username)
    async def pay(request):
        await request.state.idem_connection.execute(...)
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from typing import Any, Callable, Optional, Union

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar
from starlette import requests
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import URL
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.responses import Response as Native

from . import core, flow, http
from .flow import Call, Done, Operations
from .http import Exchange, Response, Route
from .sync import Blocking


def idempotent(idempotency: Operations[Any], scope: Any, *, tenant: Any,
               **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator of an endpoint, or of a method of an HTTPEndpoint, below those that authenticate.
    It works on the transaction of `request.state.idem_connection`. The arguments are those of
    http.Route. With a class that is not asynchronous, the endpoint is no coroutine either."""
    route = route_of(idempotency, scope, tenant, **options)

    def decorate(view: Callable[..., Any]) -> Callable[..., Any]:
        require_fitting(route, view)

        @functools.wraps(view)
        async def once(*args: Any) -> Any:
            async def call(request: Any) -> Any:
                if isinstance(view, type) or not inspect.iscoroutinefunction(view):
                    return await run_in_threadpool(view, *args[:-1], request)
                return await view(*args[:-1], request)

            async def endpoint(request: Any) -> Any:
                await operation.begin(request)
                return await call(request)
            if args[-1].method in http.SAFE:
                return await call(args[-1])
            operation = Operation(route)
            return await operation.respond(args[-1], endpoint)
        return once
    return decorate


def route_of(idempotency: Operations[Any], *args: Any, **options: Any) -> Route:
    if hasattr(idempotency, "using"):
        raise TypeError("Django has a connection per thread, and an endpoint may run in another"
                        " thread than its claim: run an operation in asyncio.to_thread()")
    return Route(idempotency, *args, **options)


def require_fitting(route: Optional[Route], endpoint: Any) -> None:
    """A coroutine that waited for a lock would stop the event loop, and so the holder of the lock.
    What a function does not await has no effect."""
    is_async = any(kind(call) for kind in (inspect.iscoroutinefunction, inspect.isasyncgenfunction)
                   for call in (endpoint, inspect.unwrap(endpoint), getattr(endpoint, "__call__")))
    if route and is_async == isinstance(route.idempotency, Blocking):
        raise TypeError("AsyncIdempotency is for coroutines, and other classes for other endpoints")


class Answered(Exception):
    """The operation needs no handler."""


class Operation:
    """A request whose handler is called by the framework, between the claim and the answer."""

    def __init__(self, route: Route, made_of: Callable[[Any], Any] = lambda value: value) -> None:
        self.route, self.made_of = route, made_of  # the response to what an endpoint may return
        self.now: Union[Call, Done, None] = None

    async def respond(self, request: Any, endpoint: Callable[[Any], Any]) -> Any:
        """The response of endpoint(request), which calls begin()."""
        async with contextlib.AsyncExitStack() as self.places:
            return await self._respond(request, endpoint)

    async def _respond(self, request: Any, endpoint: Callable[[Any], Any]) -> Any:
        self.body = await _read(request, self.route.max_body)
        if len(self.body) > self.route.max_body:  # FastAPI would parse what was read of it
            return _sent(self.route, self.route.too_large())
        self.initial = _initial(request.scope)  # dependencies run again, too
        while True:
            attempt = type(request)(request.scope, _replay(self.body))
            try:
                made = await endpoint(attempt)
                response = await _captured(attempt, made) if self.running else made
            except BaseException as error:
                if isinstance(self.now, Done) and isinstance(error, Exception):
                    # Answered, or what a dependency with `yield` has made of it.
                    return _sent(self.route, self.now.value)
                if not self.running:
                    raise
                try:
                    rendered = await self._rendered(attempt, error)
                except BaseException as failed:  # of the application's handler
                    error, rendered = failed, None
                with anyio.CancelScope(shield=True):  # what is begun is rolled back
                    await (self._resume(error=error) if rendered is None
                           else self._resume(rendered))
            else:
                if not self.running:
                    return response
                await self._resume(response)
            if isinstance(self.now, Done):
                return _sent(self.route, self.now.value)

    @property
    def running(self) -> bool:
        return isinstance(self.now, Call)

    async def begin(self, request: Any, tenant: Any = None) -> Any:
        """Claims the key, unless another attempt has done so. Returns the connection."""
        if self.now is None:
            header = request.headers.get
            length = 0 if self.body else int(header("content-length") or 0) or (
                "chunked" in header("transfer-encoding", "").lower()
                and bool(header("content-type")))
            exchange = Exchange(
                self.route, request.method, _path(request.scope),
                request.scope.get("query_string", b"").decode("latin-1"), self.body,
                request.headers.get("content-type", ""),
                request.headers.get("content-encoding", ""), await _form(request, self.body),
                length, initial=self.initial)
            self.steps = http.respond(exchange, request.headers.getlist("idempotency-key"), request,
                                      Call, tenant)
            if isinstance(self.route.idempotency, Blocking):
                await self.places.enter_async_context(_places())
            await self._move(functools.partial(self.steps.send, None))
        if not isinstance(self.now, Call):
            raise Answered
        request.state.idem_connection = self.now.connection
        return self.now.connection

    async def _resume(self, response: Optional[Response] = None, *,
                      error: Optional[BaseException] = None) -> None:
        self.now = None
        await self._move(functools.partial(self.steps.send, response) if error is None
                         else functools.partial(self.steps.throw, error))

    async def _move(self, move: flow.Move) -> None:
        if not isinstance(self.route.idempotency, Blocking):
            self.now = await flow.advance_async(self.steps, move)
            return
        now = await self._in_thread(move)
        while isinstance(now, flow.Pause):
            await anyio.sleep(now.seconds)
            now = await self._in_thread(functools.partial(self.steps.send, None))
        self.now = now

    async def _in_thread(self, move: flow.Move) -> Union[Call, flow.Pause, Done]:
        """In a thread of its own: those of the endpoints may all wait for what COMMIT releases. No
        time limit ends it: what it has begun would hold the key until it is collected as garbage.
        It is rolled back."""
        ended: list[Any] = []
        limiter = anyio.CapacityLimiter(1)

        def advance() -> None:
            try:
                ended.append(flow.advance(self.steps, move))
            except BaseException as error:
                ended.append(error)
        cancelled = await _finished(anyio.to_thread.run_sync(advance, limiter=limiter))
        if cancelled is None:
            if isinstance(ended[0], BaseException):
                raise ended[0]
            return ended[0]  # type: ignore[no-any-return]
        if isinstance(ended[0], Call):
            move = functools.partial(self.steps.throw, cancelled)
            await _finished(anyio.to_thread.run_sync(advance, limiter=limiter))
        raise cancelled

    async def _rendered(self, request: Any, error: BaseException) -> Optional[Response]:
        """What NotStored carries, or what the application's handler of the exception answers."""
        made: Any
        if not isinstance(error, Exception) or isinstance(error, core.Failure) or (
                core.is_transient(error)):
            return None
        if isinstance(error, core.NotStored):
            made = self.made_of(error.response)
            if not isinstance(made, Native):
                return None
            response = await _captured(request, made)
            response.undone = True
            return response
        handlers: dict[Any, Any] = {
            HTTPException: ExceptionMiddleware(request.app).http_exception,
            **request.app.exception_handlers}
        status = error.status_code if isinstance(error, HTTPException) else None
        handler = handlers.get(status) or next(
            (handlers[kind] for kind in type(error).__mro__[:-2] if kind in handlers
             and kind is not Exception), None)
        if handler is None:
            return None
        if inspect.iscoroutinefunction(handler):
            made = await handler(request, error)
        else:
            made = await run_in_threadpool(handler, request, error)
        response = await _captured(request, made)
        response.raised = True
        return response


_PLACES = RunVar[anyio.Semaphore]("pg_idem_places")  # of each event loop


def _places() -> anyio.Semaphore:
    """As many as there are threads: else all could wait for one operation that needs a thread."""
    try:
        return _PLACES.get()
    except LookupError:
        threads = anyio.to_thread.current_default_thread_limiter().total_tokens
        _PLACES.set(anyio.Semaphore(int(min(threads, 10_000))))
        return _PLACES.get()


async def _finished(awaitable: Any) -> Optional[BaseException]:
    """Waits for it, and returns what has cancelled the caller meanwhile."""
    cancelled: Optional[BaseException] = None
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # Trio, which does not cancel a thread
        await awaitable
        return None
    task = asyncio.ensure_future(awaitable)
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
    task.result()
    return cancelled


def _initial(scope: Any) -> http.Initial:
    """Of what an endpoint may change, without what frameworks keep there. What is in `state` may be
    that of a lifespan, and so of all requests."""
    session, state = scope.get("session"), scope.setdefault("state", {})
    return http.Initial([scope, state, *http.states_of(session)], [session, state, *(
        value for name, value in scope.items()
        if name in ("app", "router", "route", "endpoint", "extensions")
        or name.startswith(("fastapi", "starlette", "pg_idem")))], state.values())


def _path(scope: Any) -> str:
    """With what leads to a mounted application, which old Starlette cuts off. An URL without host
    and query is the path alone, and not split at a question mark that was quoted."""
    return str(URL(scope={**scope, "headers": (), "server": None, "query_string": b""}))


async def _read(request: Any, limit: int) -> bytes:
    """The body, or the beginning of one that is too long."""
    if hasattr(request, "_body"):  # read before, and kept
        return bytes(await request.body())
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            break
    return bytes(body)


def _replay(body: bytes) -> Callable[[], Any]:
    unread = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:  # a client that goes away stops no operation
        if not unread:
            await anyio.sleep_forever()
        return unread.pop()
    return receive


async def _form(request: Any, body: bytes) -> Optional[list[tuple[str, Any]]]:
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != http.MULTIPART or (
            getattr(requests, "parse_options_header", None) is None):  # no python-multipart
        return None
    form = []
    try:
        async with requests.Request(request.scope, _replay(body)).form() as fields:
            for name, value in fields.multi_items():
                form.append((name, value if isinstance(value, str) else http.file(
                    value.filename, value.content_type, [await value.read()])))
    except Exception:  # of the parser: the endpoint gets it, too, if it asks for the form
        return None
    return form


async def _captured(request: Any, made: Any) -> Response:
    """What the response sends, without its background task, which runs after COMMIT."""
    background, made.background = made.background, None
    start: Any = {}
    chunks = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
        elif message["type"] == "http.response.body":
            chunks.append(message.get("body", b""))
    await made({**request.scope, "extensions": {}}, anyio.sleep_forever, send)
    content = b"".join(chunks)
    native = Native(content, start["status"], background=background)
    headers = [(name.decode("latin-1"), value.decode("latin-1"))
               for name, value in start.get("headers", [])]
    return Response(native.status_code, headers, content, native)


def _sent(route: Route, response: Response) -> Any:
    made = route.formatted(response)
    if made is not None:
        return made
    made = response.native or Native(response.body, response.status)
    made.raw_headers = [(name.lower().encode("latin-1"), value.encode("latin-1"))
                        for name, value in response.headers]
    return made
