"""The application in Flask, with psycopg 3."""

import functools

from flask import Flask, Response, g, request
from pg_idem import Idempotency
from pg_idem.flask import idempotent
from psycopg_pool import ConnectionPool

import handlers

app = Flask(__name__)
pool = ConnectionPool(max_size=16)
idempotency = Idempotency(pool.connection, wait=1.0)
OPTIONS = {"tenant": lambda request: g.client, "final_statuses": [402]}


def response(status, headers, body):
    return Response(body, status, headers)


def authenticated(view):
    @functools.wraps(view)
    def checked(**values):
        g.client = handlers.client(request.headers.get("Authorization"))
        return view(**values)
    return checked


def carry_out(operation):
    for statement, parameters in handlers.statements(operation, g.client):
        g.idem_connection.execute(statement, parameters)
    return response(*handlers.answer(operation))


@app.post("/operations")
@app.post("/refunds")
@authenticated
@idempotent(idempotency, "operations", **OPTIONS)
def operations():
    return carry_out(handlers.members(request.get_data()))


@app.post("/limited")
@authenticated
@idempotent(idempotency, "limited", **OPTIONS)
def limited():
    return carry_out(handlers.members(request.get_data()))


@app.post("/documents")
@authenticated
@idempotent(idempotency, "operations", **OPTIONS)
def documents():
    return carry_out(handlers.document(request.args["id"], request.get_data()))


@app.post("/uploads")
@authenticated
@idempotent(idempotency, "operations", **OPTIONS)
def uploads():
    return carry_out(handlers.document(request.form["id"], request.files["file"].read()))


@app.get("/operations/<name>")
@authenticated
def effects(name):
    with pool.connection() as connection:
        number, = connection.execute(handlers.COUNT, [name, g.client]).fetchone()
    return {"effects": number}


@app.errorhandler(handlers.Problem)
def problem(error):
    return response(*error.answer)


@app.errorhandler(Exception)
def internal(error):
    return response(*handlers.Problem(500).answer)
