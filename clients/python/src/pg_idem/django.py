"""Operations and middleware on Django's own connection, so that the ORM is part of them:

    MIDDLEWARE = [..., "pg_idem.django.IdempotencyMiddleware"]    # after authentication
    PG_IDEM = {"scope": "payments"}
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import Any, Callable, Iterator, Optional

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.http import HttpResponse

from . import core, drivers, flow, http, sync
from .http import Exchange, Policy, Response


class Idempotency(sync.Framework):
    """As pg_idem.Idempotency, on the database `using`. A function gets Django's connection, and
    may use the ORM."""

    def __init__(self, using: str = DEFAULT_DB_ALIAS, **options: Any) -> None:
        self.using = using
        super().__init__(partial(transaction.atomic, using=using, durable=True), **options)

    @contextmanager
    def connected(self) -> Iterator[Any]:
        with self.connect():
            yield connections[self.using]

    def effect(self, connection: Any,
               body: Callable[[Any], flow.Steps[Any]]) -> flow.Steps[Any]:
        return self.within(transaction.atomic(using=self.using),
                           lambda _: self.guarded_call(connection, body))

    # Django itself refuses commit() and rollback().
    @contextmanager
    def guarded(self, connection: Any) -> Iterator[Any]:
        guard = core.Guard()

        def statement(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
            guard.statement(drivers.text_of(sql, context["cursor"].cursor))
            return execute(sql, params, many, context)

        def whole() -> None:  # else the end of the block would roll back, and not say so
            if connection.needs_rollback:
                raise RuntimeError(core.IGNORED)
            drivers.require_whole(connection.connection)
        with connection.execute_wrapper(statement), guard.kept(whole):
            yield connection

    def execute(self, connection: Any, statement: str, parameters: Any) -> Any:
        with connection.cursor() as cursor:
            cursor.execute(statement, parameters)
            return cursor.fetchone()

    def thread_ends(self) -> None:  # Django has a connection per thread
        connections[self.using].close()


class IdempotencyMiddleware:
    """As wsgi.IdempotencyMiddleware, within Django. Its arguments are in the setting PG_IDEM:
    `scope`, those of http.Policy, `tenant` and `idempotency`. Functions are called with the
    request instead of the environ."""

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        options = dict(settings.PG_IDEM)
        self.get_response = get_response
        self.idempotency: Idempotency = options.pop("idempotency", None) or Idempotency()
        self.tenant: Optional[Callable[[Any], Optional[str]]] = options.pop("tenant", None)
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
            response = self.idempotency.drive(http.respond(
                self.idempotency, exchange, [] if header is None else [header], request,
                self.tenant, call))
        if response is exchange.response:  # the first answer, with its cookies
            for name, value in response.headers:
                if name not in responses[-1]:
                    responses[-1][name] = value
            return responses[-1]
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
