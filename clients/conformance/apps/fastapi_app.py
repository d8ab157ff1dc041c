"""The application in FastAPI, with psycopg 3 in threads."""

from fastapi import APIRouter, Depends, FastAPI, Form, Header, Request, Response, UploadFile
from pg_idem import Idempotency
from pg_idem.fastapi import IdempotentRoute, idempotent
from psycopg_pool import ConnectionPool

import handlers

app = FastAPI()
router = APIRouter(route_class=IdempotentRoute)
pool = ConnectionPool(max_size=16)


def response(status, headers, body):
    return Response(body, status, headers)


def client(authorization: str = Header(None)):
    return handlers.client(authorization)


async def content(request: Request):
    return await request.body()


idempotency = Idempotency(pool.connection, wait=1.0)
once = idempotent(idempotency, "operations", tenant=client, final_statuses=[402])
limited_once = idempotent(idempotency, "limited", tenant=client, final_statuses=[402])


def carry_out(connection, client, operation):
    for statement, parameters in handlers.statements(operation, client):
        connection.execute(statement, parameters)
    return response(*handlers.answer(operation))


@router.post("/operations")
@router.post("/refunds")
def operations(client=Depends(client), connection=Depends(once), body=Depends(content)):
    return carry_out(connection, client, handlers.members(body))


@router.post("/limited")
def limited(client=Depends(client), connection=Depends(limited_once), body=Depends(content)):
    return carry_out(connection, client, handlers.members(body))


@router.post("/documents")
def documents(id: str, client=Depends(client), connection=Depends(once), body=Depends(content)):
    return carry_out(connection, client, handlers.document(id, body))


@router.post("/uploads")
def uploads(file: UploadFile, id: str = Form(), client=Depends(client), connection=Depends(once)):
    return carry_out(connection, client, handlers.document(id, file.file.read()))


@router.get("/operations/{name}")
def effects(name: str, client=Depends(client)):
    with pool.connection() as connection:
        number, = connection.execute(handlers.COUNT, [name, client]).fetchone()
    return {"effects": number}


@app.exception_handler(handlers.Problem)
async def problem(request, error):
    return response(*error.answer)


@app.exception_handler(Exception)
async def internal(request, error):
    return response(*handlers.Problem(500).answer)


app.include_router(router)
