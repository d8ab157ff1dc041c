"""WSGI middleware (Flask and others). The handler works on the middleware's transaction:

    app.wsgi_app = IdempotencyMiddleware(app.wsgi_app, Idempotency(pool.connection), "payments")

    connection = request.environ["idem.connection"]
"""

from __future__ import annotations

import io
from typing import Any, Callable, Iterable, Optional, Sequence

from . import http
from .core import Failure, Refused
from .http import Exchange, NotStored, Policy, Response
from .sync import Idempotency


class IdempotencyMiddleware:
    """Answers each request of the scope once. Every covered request gets a transaction, in
    environ["idem.connection"]; the middleware commits it and then sends the response.

    tenant          the authenticated client, from the environ
    required        refuse requests without a key (400); otherwise they run without one
    covers          which (method, path) it applies to: by default, POST and PATCH
    final_statuses  the statuses from 400 on that are stored, such as 402
    never_stored    headers that are not stored, besides http.NEVER_STORED
    max_body        the longest request, in bytes
    """

    def __init__(self, app: Callable[..., Iterable[bytes]], idempotency: Idempotency, scope: str, *,
                 tenant: Optional[Callable[[dict[str, Any]], Optional[str]]] = None,
                 **policy: Any) -> None:
        self.app, self.idempotency, self.tenant = app, idempotency, tenant
        self.policy = Policy(scope, **policy)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], _path(environ)
        if not self.policy.covers(method, path):
            return self.app(environ, start_response)
        response = self._respond(environ, method, path)
        start_response(f"{response.status} {http.phrase(response.status)}", response.headers)
        return [response.body]

    def _respond(self, environ: dict[str, Any], method: str, path: str) -> Response:
        try:
            body = _read(environ, self.policy.max_body + 1)
        except ValueError as error:
            return http.malformed(str(error))
        if len(body) > self.policy.max_body:
            return http.too_large(self.policy.max_body)
        exchange = Exchange(self.policy, method, path, environ.get("QUERY_STRING", ""), body)
        header = environ.get("HTTP_IDEMPOTENCY_KEY")
        return respond(self.idempotency, exchange, [] if header is None else [header],
                       lambda: self.tenant(environ) if self.tenant else None,
                       lambda connection: self._call(environ, body, connection))

    def _call(self, environ: dict[str, Any], body: bytes, connection: Any) -> Response:
        response = Response(500, [], b"")
        written: list[bytes] = []

        def start_response(status: str, headers: Any, exc_info: Any = None) -> Any:
            if exc_info:  # an error page in place of what has been written
                written.clear()
            response.status, response.headers = int(status.split(" ", 1)[0]), list(headers)
            return written.append

        chunks = self.app({**environ, "wsgi.input": io.BytesIO(body),
                           "CONTENT_LENGTH": str(len(body)), "idem.connection": connection},
                          start_response)
        try:
            written.extend(chunks)
        finally:
            getattr(chunks, "close", lambda: None)()
        response.body = b"".join(written)
        return response


def respond(idempotency: Idempotency, exchange: Exchange, headers: Sequence[str],
            tenant: Callable[[], Optional[str]], call: Callable[[Any], Response]) -> Response:
    """The response to a request. `call` is the handler, on a connection."""

    def work(connection: Any) -> Any:
        exchange.begin()
        try:
            return exchange.judge(call(connection))
        except Failure as failure:
            raise exchange.failed(failure)

    key = None
    try:
        key = http.key_of(headers, exchange.policy)
        if key is None:
            return exchange.outcome(idempotency.transaction(work, retry=http.NO_RETRY))
        return exchange.outcome(idempotency.run(
            exchange.policy.scope, key, exchange.request(), work, tenant=tenant(),
            retry=http.RETRY))
    except NotStored as rolled_back:
        return rolled_back.response
    except Failure as failed:
        return exchange.outcome(failed)
    except Refused as refused:
        return http.problem(refused)
    except Exception as error:
        if key is None or not http.is_unavailable(error):  # without a key, do not ask to retry
            raise
        return http.problem(error)


def _path(environ: dict[str, Any]) -> str:
    return str(environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", ""))


def _read(environ: dict[str, Any], limit: int) -> bytes:
    length = environ.get("CONTENT_LENGTH") or ""
    if length and not (length.isascii() and length.isdigit()):
        raise ValueError("the header Content-Length is not a number")
    if not length and not environ.get("wsgi.input_terminated"):
        return b""
    body: bytes = environ["wsgi.input"].read(min(int(length), limit) if length else limit)
    return body
