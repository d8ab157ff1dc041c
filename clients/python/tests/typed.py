"""What the types say of operations and views; checked by mypy, never run."""

from typing import TypedDict

import psycopg
from flask import Flask
from pg_idem import AsyncIdempotency, Idempotency
from pg_idem.flask import idempotent


class Order(TypedDict):
    amount: int


app = Flask(__name__)
payments = Idempotency(psycopg.connect)


@payments.operation("payments")
def pay(connection: psycopg.Connection[tuple[int]], request: Order) -> int:
    row = connection.execute("SELECT 1").fetchone()
    return row[0] if row else 0


paid: int = pay("order-1", {"amount": 1}, tenant="shop")
wrong_request: int = pay("order-1", {"price": 1})  # type: ignore[typeddict-item]
wrong_result: str = pay("order-1", {"amount": 1})  # type: ignore[assignment]
wrong_key: int = pay(7, {"amount": 1})  # type: ignore[arg-type]


@AsyncIdempotency(psycopg.AsyncConnection.connect).operation("payments")
async def pay_later(connection: psycopg.AsyncConnection[tuple[int]], request: Order) -> int:
    return request["amount"]


async def later() -> int:
    return await pay_later("order-1", {"amount": 1})


@app.post("/payments/<int:number>")
@idempotent(payments, "payments", tenant=None)
def view(number: int) -> str:
    return str(number)


shown: str = view(1)
wrong_view: int = view(1)  # type: ignore[assignment]
wrong_argument: str = view("1")  # type: ignore[arg-type]
