"""The application in Starlette, with asynchronous psycopg 3."""

import contextlib
import functools

from pg_idem import AsyncIdempotency
from pg_idem.starlette import idempotent
from psycopg_pool import AsyncConnectionPool
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import handlers

pool = AsyncConnectionPool(max_size=16, open=False)
idempotency = AsyncIdempotency(pool.connection, wait=1.0)
OPTIONS = {"tenant": lambda request: request.state.client, "final_statuses": [402]}


def response(status, headers, body):
    return Response(body, status, headers)


def authenticated(endpoint):
    @functools.wraps(endpoint)
    async def checked(request):
        request.state.client = handlers.client(request.headers.get("Authorization"))
        return await endpoint(request)
    return checked


async def carry_out(request, operation):
    for statement, parameters in handlers.statements(operation, request.state.client):
        await request.state.idem_connection.execute(statement, parameters)
    return response(*handlers.answer(operation))


@authenticated
@idempotent(idempotency, "operations", **OPTIONS)
async def operations(request):
    return await carry_out(request, handlers.members(await request.body()))


@authenticated
@idempotent(idempotency, "limited", **OPTIONS)
async def limited(request):
    return await carry_out(request, handlers.members(await request.body()))


@authenticated
@idempotent(idempotency, "operations", **OPTIONS)
async def documents(request):
    name = request.query_params["id"]
    return await carry_out(request, handlers.document(name, await request.body()))


@authenticated
@idempotent(idempotency, "operations", **OPTIONS)
async def uploads(request):
    async with request.form() as form:
        return await carry_out(request, handlers.document(form["id"], await form["file"].read()))


@authenticated
async def effects(request):
    values = [request.path_params["name"], request.state.client]
    async with pool.connection() as connection:
        number, = await (await connection.execute(handlers.COUNT, values)).fetchone()
    return JSONResponse({"effects": number})


async def problem(request, error):
    return response(*error.answer)


async def internal(request, error):
    return response(*handlers.Problem(500).answer)


@contextlib.asynccontextmanager
async def lifespan(_):
    async with pool:
        yield


app = Starlette(
    lifespan=lifespan, exception_handlers={handlers.Problem: problem, Exception: internal},
    routes=[*(Route(path, endpoint, methods=["POST"]) for path, endpoint in (
        ("/operations", operations), ("/refunds", operations), ("/limited", limited),
        ("/documents", documents), ("/uploads", uploads))), Route("/operations/{name}", effects)])
