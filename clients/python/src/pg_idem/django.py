"""Operations and middleware on Django's own connection, so that the ORM is part of them:

    MIDDLEWARE = [..., "pg_idem.django.IdempotencyMiddleware"]    # after authentication
    PG_IDEM = {"scope": "payments"}
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import Any, Callable, ContextManager, Iterator, Optional

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.http import HttpResponse

from . import http, sync
from .http import Exchange, Policy, Response
from .wsgi import respond


class Idempotency(sync.Idempotency):
    """As pg_idem.Idempotency, on the database `using`. A function gets Django's connection, and
    may use the ORM."""

    def __init__(self, using: str = DEFAULT_DB_ALIAS, **options: Any) -> None:
        self.using = using
        super().__init__(partial(transaction.atomic, using=using, durable=True), **options)

    @contextmanager
    def begin(self) -> Iterator[Any]:
        with self.connect():
            yield connections[self.using]

    def savepoint(self, connection: Any) -> ContextManager[Any]:
        atomic: ContextManager[Any] = transaction.atomic(using=self.using)
        return atomic

    def execute(self, connection: Any, statement: str, parameters: dict[str, Any]) -> Any:
        with connection.cursor() as cursor:
            cursor.execute(statement, parameters)
            return cursor.fetchone()


class IdempotencyMiddleware:
    """As wsgi.IdempotencyMiddleware, within Django. Its arguments are in the setting PG_IDEM:
    `scope`, those of http.Policy, `tenant` (called with the request) and `idempotency`."""

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        options = dict(settings.PG_IDEM)
        self.get_response = get_response
        self.idempotency: Idempotency = options.pop("idempotency", None) or Idempotency()
        self.tenant: Callable[[Any], Optional[str]] = options.pop("tenant", lambda request: None)
        self.policy = Policy(**options)

    def __call__(self, request: Any) -> Any:
        if not self.policy.covers(request.method, request.path):
            return self.get_response(request)
        header = request.META.get("HTTP_IDEMPOTENCY_KEY")
        exchange = Exchange(self.policy, request.method, request.path,
                            request.META.get("QUERY_STRING", ""), request.body)
        responses: list[Any] = []
        found = dict(vars(request))

        def call(connection: Any) -> Response:
            vars(request).clear()  # what an attempt that was rolled back has noted there
            vars(request).update(found)
            responses.append(self.get_response(request))
            return _response_of(responses[-1])

        if len(exchange.body) > self.policy.max_body:
            response = http.too_large(self.policy.max_body)
        else:
            response = respond(self.idempotency, exchange, [] if header is None else [header],
                               lambda: self.tenant(request), call)
        if response is exchange.response:
            return responses[-1]  # the first answer, with its cookies
        answer = HttpResponse(response.body, status=response.status)
        del answer["Content-Type"]
        for name, value in response.headers:
            answer[name] = f"{answer[name]}, {value}" if name in answer else value
        return answer


def _response_of(response: Any) -> Response:
    if response.streaming:
        body = b"".join(response.streaming_content)
        response.streaming_content = [body]
    else:
        body = response.content
    return Response(response.status_code, list(response.items()), body)
