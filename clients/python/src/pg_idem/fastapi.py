"""Path operations of FastAPI that run once per key. The dependency claims the key, after all others;
the class of the route stores what leaves the endpoint, and commits.

    router = APIRouter(route_class=IdempotentRoute)
    once = idempotent(AsyncIdempotency(pool.connection), "payments", tenant=user_id)

    @router.post("/payments")
    async def pay(payment: Payment, connection=Depends(once)): ...
"""

from __future__ import annotations

import copy
from typing import Any, Callable, Iterator, Optional

from fastapi import Depends, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

from . import core, http
from .flow import Operations
from .http import Route
from .starlette import Operation, require_fitting, route_of


def idempotent(idempotency: Operations[Any], scope: Any, *, tenant: Any,
               **options: Any) -> Callable[..., Any]:
    """A dependency, whose value is the connection. `tenant` is a dependency itself, such as the one
    that authenticates, or None. The other arguments are those of http.Route."""
    route = route_of(idempotency, scope, tenant, **options)

    async def claim(request: Request, tenant: Any = Depends(tenant or _shared)) -> Any:
        if request.method in http.SAFE:
            return None
        operation: Optional[Operation] = request.scope.get("pg_idem")
        if operation is None:
            raise RuntimeError("the router needs route_class=IdempotentRoute")
        if operation.route is not route:
            raise RuntimeError("a route has one claim, of one scope and one tenant")
        return await operation.begin(request, core.tenant_text(tenant) if route.tenant else None)
    claim.route = route  # type: ignore[attr-defined]
    return claim


def _shared() -> None:
    return None


class IdempotentRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Any], Any]:
        handler = super().get_route_handler()
        dependant = _dependant_of(handler)
        if dependant is None:
            raise RuntimeError("the handler of the route does not show its dependencies: what"
                               " authenticates must come before the claim")
        _claim_last(dependant, list(_others(dependant)))
        route = _route_of(dependant)
        require_fitting(route, dependant.call)

        async def once(request: Any) -> Any:
            if route is None or request.method in http.SAFE:
                return await handler(request)
            operation = Operation(route, self._made_of)

            async def endpoint(attempt: Any) -> Any:
                attempt.scope["pg_idem"] = operation
                try:
                    return await handler(attempt)
                except RequestValidationError as error:  # of a dependency, and as one of the claim
                    found = error.errors()
                    if isinstance(found, list):
                        found[:] = {repr(each): each for each in found}.values()
                    raise
            return await operation.respond(request, endpoint)
        return once

    def _made_of(self, value: Any) -> Response:
        return value if isinstance(value, Response) else JSONResponse(
            jsonable_encoder(value), self.status_code or 200)


def _dependant_of(handler: Any) -> Optional[Dependant]:
    """What the handler solves, perhaps within one of another class of routes. For a router that is
    included, it is not that of the route, since FastAPI 0.137."""
    values = [cell.cell_contents for cell in getattr(handler, "__closure__", None) or ()]
    own = [value for value in values if isinstance(value, Dependant)]
    return next(filter(None, own or map(_dependant_of, values)), None)


def _claim_last(dependant: Any, others: list[Any]) -> None:
    """A replay needs no handler, but all that authenticates, wherever it stands. FastAPI goes on
    after an error in the parameters of a dependency, but not to what depends on it."""
    for each in dependant.dependencies:
        _claim_last(each, others)
    if _own_route_of(dependant):  # its tenant has a name
        dependant.dependencies[:] = others + [each for each in dependant.dependencies if each.name]
    dependant.dependencies.sort(key=lambda each: _route_of(each) is not None)


def _others(dependant: Any) -> Iterator[Any]:
    """Copies of what does not need the claim, which have their values from the cache."""
    for each in dependant.dependencies:
        if _route_of(each) is None:
            other = copy.copy(each)
            other.name, other.use_cache = None, True
            yield other
        elif not _own_route_of(each):
            yield from _others(each)


def _own_route_of(dependant: Any) -> Optional[Route]:
    own = getattr(dependant.call, "route", None)
    return own if isinstance(own, Route) else None


def _route_of(dependant: Any) -> Optional[Route]:
    return _own_route_of(dependant) or next(
        filter(None, map(_route_of, dependant.dependencies)), None)
