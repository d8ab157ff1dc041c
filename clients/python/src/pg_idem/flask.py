"""Views of Flask that run once per key.

    @app.post("/payments")
    @login_required
    @idempotent(Idempotency(pool.connection), "payments", tenant=lambda request: g.user.name)
    def pay():
        g.idem_connection.execute(...)
"""

from __future__ import annotations

import functools
import io
from typing import Any, Callable, Optional, TypeVar, cast

import flask
from flask import current_app, g, request

from . import core, http
from .flow import Operations
from .http import Exchange, Response, Route


View = TypeVar("View", bound=Callable[..., Any])


def idempotent(idempotency: Operations[Any], scope: Any, *, tenant: Any,
               **options: Any) -> Callable[[View], View]:
    """A decorator of a view, below those that authenticate. The view works on the transaction of
    `g.idem_connection`. The arguments are those of http.Route."""
    route = Route(idempotency, scope, tenant, **options)

    def decorate(view: View) -> View:
        @functools.wraps(view)
        def once(*args: Any, **kwargs: Any) -> Any:
            if request.method in http.SAFE:
                return current_app.ensure_sync(view)(*args, **kwargs)
            hooks = getattr(_context(), "_after_request_functions", [])
            registered = len(hooks)

            def call(connection: Any) -> Response:
                g.idem_connection = connection
                del hooks[registered:]  # of an attempt that was rolled back
                _rewind(exchange.body)
                return _called(lambda: current_app.ensure_sync(view)(*args, **kwargs))
            if (request.content_length or 0) > route.max_body or _is_longer(route.max_body):
                return _sent(route, route.too_large())
            exchange = _exchange(route)
            return _sent(route, idempotency.drive(http.respond(
                exchange, request.headers.getlist("Idempotency-Key"), request, call)))
        return cast(View, once)
    return decorate


def _context() -> Any:  # before Flask 2.2 that of a stack, and since 3.2 that of the application
    names = vars(flask.globals)
    if "_request_ctx_stack" in names:
        return names["_request_ctx_stack"].top
    return names["request_ctx" if "request_ctx" in names else "app_ctx"]._get_current_object()


def _is_longer(limit: int) -> bool:
    """Reads a chunked body, which says no length, up to its limit."""
    current: Any = request
    own = vars(current._get_current_object())
    if request.content_length is not None or {"stream", "form", "_cached_data"} & own.keys():
        return False
    body = http.read(request.stream, limit)
    request.environ["wsgi.input"] = io.BytesIO(body)
    own.pop("stream", None)
    return len(body) > limit


def _exchange(route: Route) -> Exchange:
    form: Optional[list[tuple[str, Any]]] = None
    current: Any = request
    own = vars(current._get_current_object()).keys()
    length = request.content_length or (  # perhaps read before, and not kept
        "chunked" in request.headers.get("Transfer-Encoding", "").lower()
        and "stream" in own and not {"form", "_cached_data"} & own)
    body = request.get_data()
    if request.mimetype == http.MULTIPART or (request.mimetype == http.URLENCODED and not body):
        form = list(request.form.items(multi=True))  # perhaps read before
        for name, upload in _uploads():
            chunks = iter(functools.partial(upload.stream.read, 1 << 20), b"")
            form.append((name, http.file(upload.filename, upload.mimetype, chunks)))
    return Exchange(route, request.method, request.root_path.rstrip("/") + request.path,
                    request.query_string.decode("latin-1"), body, request.content_type or "",
                    request.headers.get("Content-Encoding", ""), form, length, *_states())


def _states() -> tuple[list[dict[str, Any]], list[Any]]:
    """What a view may change, and what Flask keeps there."""
    current: Any = request
    context, own = vars(_context()), vars(current._get_current_object())
    return [vars(g._get_current_object()), context, own, *http.states_of(_session())], [
        *(value for name, value in context.items() if "flashes" not in name), _session(),
        *(value for name, value in own.items()
          if name == "environ" or hasattr(flask.Request, name))]


def _session() -> Any:
    current: Any = flask.session
    return current._get_current_object()


def _rewind(body: bytes) -> None:
    """Each attempt reads the request from the beginning, as it was sent."""
    request.environ["wsgi.input"] = io.BytesIO(body)
    current: Any = request
    for name in ("stream", "_cached_json"):
        vars(current._get_current_object()).pop(name, None)
    _uploads()


def _uploads() -> list[tuple[str, Any]]:
    """The files of a form, from their beginnings, whatever has read them before."""
    uploads = list(request.files.items(multi=True)) if request.mimetype == http.MULTIPART else []
    for _, upload in uploads:
        upload.stream.seek(0)
    return uploads


def _called(view: Callable[[], Any]) -> Response:
    try:
        return _captured(view())
    except core.NotStored as rolled_back:
        return _captured(rolled_back.response, undone=True)
    except Exception as error:
        if isinstance(error, core.Failure) or core.is_transient(error):
            raise
        handle: Any = current_app.handle_user_exception
        context = _context()
        if isinstance(context, flask.ctx.AppContext):  # since Flask 3.2, it is an argument
            handle = functools.partial(handle, context)
        # Raises the error again, if the application has no handler for it.
        return _captured(handle(error), raised=True)


def _captured(made: Any, **kind: Any) -> Response:
    """What is sent if a view has returned this."""
    made = current_app.make_response(made)
    made.direct_passthrough = False
    return Response(made.status_code, list(made.headers.items()), made.get_data(), made, **kind)


def _sent(route: Route, response: Response) -> Any:
    made = route.formatted(response, current_app.make_response)
    if made is not None:
        return made
    made = response.native or current_app.response_class(response.body, response.status)
    made.headers = type(made.headers)(response.headers)
    return made
