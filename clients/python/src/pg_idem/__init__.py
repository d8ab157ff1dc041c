"""Idempotency keys in your PostgreSQL transaction, with the extension idem.

    payments = Idempotency(pool.connection)

    @payments.operation("payments")
    def pay(connection, request): ...

    pay("order-4711", {"amount": 10})
"""

from .aio import AsyncIdempotency
from .core import (Answer, AttemptsExhausted, Conflict, Event, Failure, InProgress, JsonText,
                   LeaseLost, LimitExceeded, NotStored, Refused, Retry, StaleKey, is_transient,
                   retry_after, sqlstate)
from .intent import Intent
from .lease import AsyncLease, Lease
from .sync import Idempotency
from .worker import AsyncWorker, Worker

__all__ = ["Answer", "AsyncIdempotency", "AsyncLease", "AsyncWorker", "AttemptsExhausted",
           "Conflict", "Event", "Failure", "Idempotency", "InProgress", "Intent", "JsonText",
           "Lease", "LeaseLost", "LimitExceeded", "NotStored", "Refused", "Retry", "StaleKey",
           "Worker", "is_transient", "retry_after", "sqlstate"]
