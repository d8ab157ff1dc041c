"""What the types say of operations and views; checked by mypy, never run."""

from typing import Optional, TypedDict

import psycopg
from flask import Flask
from pg_idem import Answer, AsyncIdempotency, AsyncLease, Idempotency, Lease
from pg_idem.flask import idempotent


class Order(TypedDict):
    amount: int


app = Flask(__name__)
payments = Idempotency(psycopg.connect)
payments_later = AsyncIdempotency(psycopg.AsyncConnection.connect)


@payments.operation("payments")
def pay(connection: psycopg.Connection[tuple[int]], request: Order) -> int:
    row = connection.execute("SELECT 1").fetchone()
    return row[0] if row else 0


paid: int = pay("order-1", {"amount": 1})
paid_by_name: int = pay.of(tenant="shop")("order-1", request={"amount": 1})
wrong_request: int = pay("order-1", {"price": 1})  # type: ignore[typeddict-item]
wrong_result: str = pay("order-1", {"amount": 1})  # type: ignore[assignment]
wrong_key: int = pay(7, {"amount": 1})  # type: ignore[arg-type]
wrong_tenant: int = pay.of(tenant=7)("order-1", {"amount": 1})  # type: ignore[arg-type]
no_tenant: int = pay.of(tenant=None)("order-1", {"amount": 1})  # type: ignore[arg-type]


@payments.operation("payments")
def refund(connection: psycopg.Connection[tuple[int]], payment: int, *, reason: str = "") -> None:
    connection.execute("DELETE FROM payment WHERE id = %s", [payment])


refund("order-1", 7, reason="broken")
refund("order-1", 7, why="broken")  # type: ignore[call-arg]
refund("order-1")  # type: ignore[call-arg]


@payments_later.operation("payments")
async def pay_later(connection: psycopg.AsyncConnection[tuple[int]], request: Order) -> int:
    return request["amount"]


async def later() -> Optional[int]:
    answer: Answer[int] = await payments_later.run("payments", "order-1", {}, amount_later)
    await payments_later.transaction(amount_later)
    async with payments_later.lease("payments", "order-1", {}) as lease:
        leased: AsyncLease = lease
        number: int = await leased.step("charge", charge_later)
        wrong: str = await leased.step("charge", charge_later)  # type: ignore[arg-type]
    return await pay_later("order-1", {"amount": 1}) if answer.response is None else number


async def charge_later() -> int:
    return 1


async def amount_later(connection: psycopg.AsyncConnection[tuple[int]]) -> int:
    return 1


def amount(connection: psycopg.Connection[tuple[int]]) -> int:
    return 1


answer: Answer[int] = payments.run("payments", "order-1", {"amount": 1}, amount)
response: Optional[int] = answer.response
wrong_response: Optional[str] = answer.response  # type: ignore[assignment]
done: int = payments.transaction(amount)
with payments.lease("payments", "order-1", {}) as lease:
    leased: Lease = lease
    number: int = lease.step("charge", lambda: 1)


@app.post("/payments/<int:number>")
@idempotent(payments, "payments", tenant=None)
def view(number: int) -> str:
    return str(number)


shown: str = view(1)
wrong_view: int = view(1)  # type: ignore[assignment]
wrong_argument: str = view("1")  # type: ignore[arg-type]
