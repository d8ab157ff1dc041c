"""Idempotency keys in your PostgreSQL transaction, with the extension idem.

    payments = Idempotency(pool.connection)

    @payments.operation("payments")
    def pay(connection, request): ...

    pay("order-4711", {"amount": 10})
"""

from .aio import AsyncIdempotency
from .core import (Answer, Conflict, Failure, InProgress, JsonText, LimitExceeded, Refused, Retry,
                   StaleKey, is_transient, retry_after, sqlstate)
from .sync import Idempotency

__all__ = ["Answer", "AsyncIdempotency", "Conflict", "Failure", "Idempotency", "InProgress",
           "JsonText", "LimitExceeded", "Refused", "Retry", "StaleKey", "is_transient",
           "retry_after", "sqlstate"]
