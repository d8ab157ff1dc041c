"""Operations and views on Django's own connection, so that the ORM is part of them:

    @login_required
    @idempotent(Idempotency(), "payments", tenant=lambda request: request.user.username)
    def pay(request): ...
"""

from __future__ import annotations

import functools
import inspect
import io
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Callable, Iterator, TypeVar, cast

from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import RequestDataTooBig
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.views import View as ClassView

from . import core, drivers, flow, http, sync
from .http import Exchange, Response, Route


class Idempotency(sync.Framework):
    """As pg_idem.Idempotency, on the database `using`. A function gets Django's connection, and
    may use the ORM."""

    def __init__(self, using: str = DEFAULT_DB_ALIAS, **options: Any) -> None:
        self.using = using
        super().__init__(functools.partial(transaction.atomic, using=using, durable=True),
                         **options)

    @contextmanager
    def connected(self) -> Iterator[Any]:
        own = connections[self.using]
        if not (own.in_atomic_block or own.get_autocommit()):
            raise RuntimeError("Django does not commit its transactions without autocommit")
        with self.connect():
            yield own

    def effect(self, connection: Any,
               body: Callable[[Any], flow.Steps[Any]]) -> flow.Steps[Any]:
        return self.within(transaction.atomic(using=self.using),
                           lambda _: self.guarded_call(connection, body))

    # Django itself refuses commit() and rollback().
    @contextmanager
    def guarded(self, connection: Any) -> Iterator[Any]:
        guard = core.Guard()

        def statement(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
            cursor = context["cursor"].cursor
            guard.statement(drivers.text_of(sql, cursor), cursor.connection)
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


View = TypeVar("View", bound=Callable[..., Any])


def idempotent(idempotency: Idempotency, scope: Any, *, tenant: Any,
               **options: Any) -> Callable[[View], View]:
    """A decorator of a view, below those that authenticate. Its transaction is that of the ORM, in
    place of the one of ATOMIC_REQUESTS. The arguments are those of http.Route."""
    route, using = Route(idempotency, scope, tenant, **options), idempotency.using

    def decorate(view: View) -> View:
        is_async, run = inspect.iscoroutinefunction(view), cast(Any, async_to_sync)
        opted_out = using in getattr(view, "_non_atomic_requests", ())
        of_class = hasattr(view, "view_class") or hasattr(view, "cls") or (
            getattr(getattr(view, "func", view), "__name__", "") == "dispatch")

        def atomic() -> bool:  # as Django decides, from which the view is taken out below
            return not opted_out and connections[using].settings_dict["ATOMIC_REQUESTS"]

        def once(request: Any, *args: Any, **kwargs: Any) -> Any:
            def call() -> Any:
                return (run(view) if is_async else view)(request, *args, **kwargs)
            if request.method not in http.SAFE:
                if of_class:
                    raise TypeError("it would answer before the view authenticates: a class needs"
                                    " IdempotentMixin, and a function the decorator below api_view")
                return _respond(route, request, call)
            with transaction.atomic(using) if atomic() else nullcontext():
                return call()

        async def once_async(request: Any, *args: Any, **kwargs: Any) -> Any:
            if request.method in http.SAFE and not atomic():
                return await view(request, *args, **kwargs)
            return await sync_to_async(once)(request, *args, **kwargs)
        return cast(View, transaction.non_atomic_requests(using)(
            functools.wraps(view)(once_async if is_async else once)))
    return decorate


class IdempotentMixin:
    """For class-based views, and those of Django REST framework, as `class Pay(IdempotentMixin,
    View)`. The methods run once per key, after what authenticates in dispatch() or initial(). The
    attribute `idempotent` is what idempotent() returns."""

    idempotent: Any

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if ClassView in cls.__mro__[:cls.__mro__.index(IdempotentMixin)]:
            raise TypeError(f"IdempotentMixin must precede View in the bases of {cls.__name__}, or"
                            " View would call its methods itself")

    @classmethod
    def as_view(cls, *args: Any, **kwargs: Any) -> Any:  # as the decorator does
        view = super().as_view(*args, **kwargs)  # type: ignore[misc]
        view._non_atomic_requests = cls.idempotent(view)._non_atomic_requests
        return view

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        dispatch: Any = super().dispatch  # type: ignore[misc]
        if request.method in http.SAFE:
            return type(self).idempotent(dispatch)(request, *args, **kwargs)
        if request.META.get("CONTENT_LENGTH") and request.content_type != http.MULTIPART:
            with suppress(RequestDataTooBig):  # is refused once it has authenticated
                request.body  # a parser of REST framework would leave nothing to bind
        name = request.method.lower()
        method = getattr(self, name, None)
        if method is not None:
            setattr(self, name, type(self).idempotent(method))
        return dispatch(request, *args, **kwargs)


def _respond(route: Route, request: Any, view: Callable[[], Any]) -> Any:
    outer, request = request, getattr(request, "_request", request)  # of REST framework
    rest = outer.parser_context if outer is not request else None

    def finished(response: Any, **kind: Any) -> Response:
        if rest:
            response = rest["view"].finalize_response(outer, response, *rest["args"],
                                                      **rest["kwargs"])
        return _captured(response, **kind)

    def call(connection: Any) -> Response:
        if isinstance(getattr(request, "_stream", None), io.BytesIO):  # of its body
            request._stream.seek(0)
        for _, upload in _files(request):
            upload.seek(0)
        try:
            response = view()
        except core.NotStored as rolled_back:
            if not isinstance(rolled_back.response, HttpResponseBase):
                raise
            return finished(rolled_back.response, undone=True)
        except Exception as error:
            if not rest or isinstance(error, core.Failure) or core.is_transient(error):
                raise
            return finished(rest["view"].handle_exception(error), raised=True)
        return finished(response)
    if _length(request) > route.max_body or _is_longer(request, route.max_body):
        return _sent(route, route.too_large())
    header = request.META.get("HTTP_IDEMPOTENCY_KEY")
    exchange = _exchange(route, request)
    exchange.states, exchange.shared = _states(outer, request)
    return _sent(route, route.idempotency.drive(http.respond(
        exchange, [] if header is None else [header], request, call)))


def _captured(response: Any, **kind: Any) -> Response:
    """What is sent if a view has returned this."""
    if not getattr(response, "is_rendered", True):
        response = response.render()
    if response.streaming:
        body = b"".join(response)
        response.streaming_content = [body]
    else:
        body = response.content
    return Response(response.status_code, list(response.items()), body, response, **kind)


# What Django and REST framework keep in a request, beside what is META.
_KEPT = ("scope", "_stream", "resolver_match", "_files", "_upload_handlers", "parsers",
         "authenticators", "negotiator", "parser_context", "_authenticator", "accepted_renderer",
         "versioning_scheme")


def _states(*requests: Any) -> tuple[list[dict[str, Any]], list[Any]]:
    """What a view may change, and what the frameworks keep there."""
    shared = [*requests, *(upload for _, upload in _files(requests[-1]))]
    for request in requests:
        shared += [request.META, *request.META.values()]
        shared += [vars(request)[name] for name in _KEPT if name in vars(request)]
    return [request.META, *(vars(request) for request in requests)], shared


def _length(request: Any) -> int:
    return int(request.META.get("CONTENT_LENGTH") or 0)


def _is_longer(request: Any, limit: int) -> bool:
    """Reads a chunked body, which says no length, up to its limit."""
    if request.META.get("CONTENT_LENGTH") or request._read_started or hasattr(request, "_body"):
        return False
    request._body = http.read(request, limit)
    request._stream = io.BytesIO(request._body)
    return len(request._body) > limit


def _files(request: Any) -> list[tuple[str, Any]]:
    if request.content_type != http.MULTIPART:
        return []
    return [(name, upload) for name, uploads in request.FILES.lists() for upload in uploads]


def _exchange(route: Route, request: Any) -> Exchange:
    form, length = None, _length(request)
    if request.content_type != http.MULTIPART:
        body = request.body
    else:
        if not request._read_started:  # it may be longer than what request.body takes
            request._body = request.read()
            request._stream = io.BytesIO(request._body)
        body = getattr(request, "_body", b"")
        length = length or not hasattr(request, "_body")  # others have read it, in chunks
        form = [(name, value) for name, values in request.POST.lists() for value in values]
        for name, upload in _files(request):
            form.append((name, http.file(upload.name, upload.content_type, upload.chunks())))
    return Exchange(route, request.method, request.path, request.META.get("QUERY_STRING", ""), body,
                    request.META.get("CONTENT_TYPE", ""),
                    request.META.get("HTTP_CONTENT_ENCODING", ""), form, length)


def _sent(route: Route, response: Response) -> Any:
    made = route.formatted(response)
    if made is not None:
        return made
    made = response.native
    if made is None:
        made = HttpResponse(response.body, status=response.status)
        del made["Content-Type"]
    known = set(made.headers) if response.native else set()
    for name, value in response.headers:
        if name not in known:
            made[name] = f"{made[name]}, {value}" if name in made else value
    return made
