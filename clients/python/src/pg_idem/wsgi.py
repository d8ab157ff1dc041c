"""WSGI middleware (Flask and others). The handler works on the middleware's transaction:

    app.wsgi_app = IdempotencyMiddleware(app.wsgi_app, Idempotency(pool.connection), "payments")

    connection = request.environ["idem.connection"]
"""

from __future__ import annotations

import io
from typing import Any, Callable, Iterable, Optional

from . import http
from .http import Exchange, Policy, Response
from .sync import Blocking


class IdempotencyMiddleware:
    """Answers each request of the scope once. Every covered request gets a transaction, in
    environ["idem.connection"]; the middleware commits it and then sends the response, which it
    keeps in memory until then. Exclude endless streams with `covers`.

    tenant           the authenticated client, from the environ
    key_from         where the key is, if not in the header Idempotency-Key: the path of a member of
                     the body, such as "meta.idempotency_key", or a function of the environ and the
                     body, which returns None if there is no key
    key_required     refuse requests without a key (400); otherwise they run without one
    covers           which (method, path) it applies to: by default, POST and PATCH
    final_statuses   the statuses from 400 on that are stored, such as 402
    never_stored     headers that are not stored, besides http.NEVER_STORED
    include_headers  the only headers that are stored, beside Content-Type; by default, all others
    send_retention   send the header Idempotency-Expires: until when the answer is kept
    max_body         the longest request, in bytes
    """

    def __init__(self, app: Callable[..., Iterable[bytes]], idempotency: Blocking, scope: str, *,
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
        response: Response = self.idempotency.drive(http.respond(
            self.idempotency, exchange, [] if header is None else [header], environ, self.tenant,
            lambda connection: self._call(environ, body, connection)))
        return response

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


def _path(environ: dict[str, Any]) -> str:
    return str(environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", ""))


def _read(environ: dict[str, Any], limit: int) -> bytes:
    length = environ.get("CONTENT_LENGTH") or ""
    if length and not (length.isascii() and length.isdigit()):
        raise ValueError("the header Content-Length is not a number")
    if not length and not environ.get("wsgi.input_terminated"):
        return b""
    expected = min(int(length), limit) if length else 0
    body: bytes = environ["wsgi.input"].read(expected if length else limit)
    if len(body) < expected:
        raise ValueError("the body is shorter than the header Content-Length says")
    return body
