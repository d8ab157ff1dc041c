"""What idem answers, and which errors a retry can cure. No driver and no input or output here."""

from __future__ import annotations

import inspect
import json
import math
import pkgutil
import random
import re
import threading
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import (Any, Callable, Collection, Generic, Iterator, Mapping, NamedTuple, NoReturn,
                    Optional, Sequence, TypeVar, Union)

Headers = Mapping[str, Union[str, Sequence[str]]]
Key = Union[str, uuid.UUID]
T = TypeVar("T")


def _one_line(statement: str) -> str:  # as the server's log should show it
    return " ".join(statement.split())


# What the driver sends. Text in, text out: each driver has its own idea of JSON.
CLAIM = _one_line("""
    SELECT outcome, token, response::text, status, headers::text, body, error::text,
           extract(epoch FROM retry_after)::float8 AS retry_after, differs, attempt,
           recovery_state::text, extract(epoch FROM expires_at)::float8 AS expires
      FROM idem.try_claim(%(scope)s::text, %(key)s::text, %(request)s::jsonb,
                          tenant => %(tenant)s::text,
                          ttl => make_interval(secs => %(ttl)s::float8),
                          lease => make_interval(secs => %(lease)s::float8),
                          wait => make_interval(secs => %(wait)s::float8))""")
_HTTP = "%(status)s::integer, %(headers)s::jsonb, %(body)s::bytea)::text"
COMPLETE = f"SELECT idem.complete(%(token)s::text, %(response)s::jsonb, {_HTTP}"
FAIL = f"SELECT idem.fail(%(token)s::text, %(error)s::jsonb, {_HTTP}"
# After COMPLETE or FAIL in the same message: what COMPLETE returns, and when the answer expires.
EXPIRES = _one_line("""
    SELECT %(response)s::jsonb::text, extract(epoch FROM expires_at)::float8
      FROM idem.lookup(%(scope)s::text, %(key)s::text, %(tenant)s::text)""")
TAKE = _one_line("""
    SELECT token, key, tenant, request::text, attempt, recovery_state::text
      FROM idem.take(%(scope)s::text, tenant => %(tenant)s::text,
                     lease => make_interval(secs => %(lease)s::float8),
                     wait => make_interval(secs => %(wait)s::float8))""")
RENEW = "SELECT idem.renew(%(token)s::text, make_interval(secs => %(lease)s::float8))"
CHECKPOINT = "SELECT idem.checkpoint(%(token)s::text, %(name)s::text, %(state)s::jsonb)"
CHILD_KEY = "SELECT idem.child_key(%(token)s::text, %(step)s::text)"
RELEASE_LEASE = _one_line("""
    SELECT idem.release(%(token)s::text,
                        idem.backoff(%(attempt)s, make_interval(secs => %(base)s::float8),
                                     make_interval(secs => %(cap)s::float8)), %(error)s::jsonb)""")
# A finished operation as a row of CLAIM.
FINISHED = _one_line("""
    SELECT state, NULL, response::text, status, headers::text, body, error::text, NULL, NULL
      FROM idem.lookup(%(scope)s::text, %(key)s::text, %(tenant)s::text)
     WHERE state IN ('completed', 'failed')""")
USE_RECORDS = "SELECT idem.use_records(%(records)s::regclass)"


def chosen(statement: str, parameters: Mapping[str, Any]) -> list[str]:
    """The statement, after the choice of the record table if there is one."""
    return [statement] if parameters["records"] is None else [USE_RECORDS, statement]


# What is sent in one message with them. Drivers and frameworks that own their BEGIN leave it out.
BEGIN = "BEGIN"
SAVEPOINT = "SAVEPOINT pg_idem"
RELEASE = "RELEASE SAVEPOINT pg_idem"
UNDO = "ROLLBACK TO SAVEPOINT pg_idem"
COMMIT = "COMMIT"


# What a RuntimeError says. The transaction is rolled back, whatever the function does with it.
IGNORED = "the transaction has ignored an error, and is rolled back"
NOT_YOURS = ("the operation and its answer are committed together: its function must not end, begin"
             " or prepare a transaction")
OVER = "the operation has ended, and its connection with it"
RUNNING = "a statement of the operation is still running"
# Statements that would, outside of literals, quoted names and comments.
_LITERAL = re.compile(r"""\b[eE]'(?:[^'\\]|''|\\.)*'|'(?:[^']|'')*'|"[^"]*"|--[^\n]*|/\*.*?\*/|
                      \$(\w*)\$.*?\$\1\$""", re.S | re.X)
_ENDS = re.compile(r"""(?:^|;)\s*(?:begin|start\s+transaction|commit|end|abort|
                       prepare\s+transaction|
                       rollback(?!(?:\s+(?:work|transaction))?\s+to\b))\b""", re.I | re.X)


class Guard:
    """Keeps a function from ending the transaction that it works in, and what it has left running
    from working in a later one."""

    broken = over = False

    def __init__(self) -> None:
        self.lock = threading.RLock()  # for drivers that have none of their own to hold

    def require_running(self) -> None:
        if self.over:
            raise RuntimeError(OVER)

    def refuse(self, *_: Any, **__: Any) -> NoReturn:
        self.require_running()
        self.broken = True
        raise RuntimeError(NOT_YOURS)

    def require_open(self, connection: Any) -> None:
        """Called before all that is sent. Outside of the transaction, it would stay."""
        self.require_running()
        if connection.autocommit and connection.info.transaction_status == 0:
            self.refuse()

    def statement(self, statement: str, connection: Any) -> None:
        self.require_open(connection)
        if _ENDS.search(_LITERAL.sub(" ", statement)):
            self.refuse()

    @contextmanager
    def kept(self, require_whole: Callable[[], None]) -> Iterator[None]:
        """What the function does: it may also have swallowed the refusal."""
        try:
            with self._ending():
                yield
        except Exception as error:
            if self.broken and str(error) != NOT_YOURS:
                raise RuntimeError(NOT_YOURS) from error
            raise
        if self.broken:
            raise RuntimeError(NOT_YOURS)
        require_whole()

    @contextmanager
    def _ending(self) -> Iterator[None]:
        try:
            yield
        finally:
            with self.lock:
                self.over = True


class JsonText(str):
    """A request that is JSON already, and is passed on as it is, to the last digit."""


@dataclass(frozen=True)
class Answer(Generic[T]):
    """The answer of an operation. A function may return one to store more than a response."""

    response: Optional[T] = None
    status: Optional[int] = None
    headers: Optional[Headers] = None
    body: Optional[bytes] = None
    replayed: bool = False
    expires: Optional[datetime] = None  # of a replay, or if it is asked for


class Failure(Exception):
    """A final failure. Raise it in an operation: its effect is undone, and every retry gets the
    same failure. The members of the error are those of idem.fail(). A status is from 400 to 499."""

    def __init__(self, message: str, *, sqlstate: Optional[str] = None,
                 detail: Optional[str] = None, hint: Optional[str] = None,
                 status: Optional[int] = None, headers: Optional[Headers] = None,
                 body: Optional[bytes] = None, replayed: bool = False,
                 expires: Optional[datetime] = None) -> None:
        super().__init__(message)
        if status is not None and not replayed and not 400 <= status_code(status) <= 499:
            raise ValueError(f"a final failure has a status from 400 to 499, not {status}: clients"
                             " take others for a success, or for a reason to try again")
        self.message, self.sqlstate, self.detail, self.hint = message, sqlstate, detail, hint
        self.status, self.headers, self.body, self.replayed = status, headers, body, replayed
        self.expires = expires

    def error(self) -> dict[str, str]:
        members = {"message": self.message, "sqlstate": self.sqlstate,
                   "detail": self.detail, "hint": self.hint}
        return {name: value for name, value in members.items() if value}


def as_own(failed: Failure) -> Failure:
    """What an operation has raised. One that it got from an operation inside of it is no replay of
    its own, and expires with it."""
    failed.replayed, failed.expires = False, None
    return failed


class NotStored(Exception):
    """Raise it in an operation to roll it back, and to answer all the same with `response`. Nothing
    is stored, and a retry runs again: for errors inside of an answer that says success."""

    def __init__(self, response: Any) -> None:
        super().__init__("the answer is not stored")
        self.response = response


class Refused(Exception):
    """idem did not run the operation. `sqlstate` says why; `retry_after`, in seconds, says when
    to come back with the same key, and is None if waiting does not help."""

    def __init__(self, sqlstate: str, message: str, retry_after: Optional[float] = None) -> None:
        super().__init__(message)
        self.sqlstate, self.message, self.retry_after = sqlstate, message, retry_after


class InProgress(Refused):
    """ID001: another caller holds the key."""


class Conflict(Refused):
    """ID002: the key was used for a different request. `differs` names the members that differ,
    if the scope stores requests; else it is None."""

    differs: Optional[Sequence[Optional[str]]] = None


class LeaseLost(Refused):
    """ID004: the lease has ended, and another attempt may have taken the operation over."""

    def __init__(self, message: str = "the lease has been lost") -> None:
        super().__init__("ID004", message)


class LimitExceeded(Refused):
    """ID009: too many new operations."""


class StaleKey(Refused):
    """ID010: the key is older than the scope remembers."""


class AttemptsExhausted(Refused):
    """ID014: the last attempt that the scope allows has ended without an answer. The operation is
    undecided, not failed: its effect may exist. Keep the key, and ask again after `retry_after`."""


def time_of(epoch: Optional[float]) -> Optional[datetime]:
    return None if epoch is None else datetime.fromtimestamp(float(epoch), timezone.utc)


class Event(NamedTuple):
    """What `on_event` is called with, so many seconds after the call began. `type` is "claimed" or
    "retried", and at the end "completed", "failed", "replayed", "conflict", "refused", "not_stored"
    or "error". `error` is what is raised, or the reason of a retry."""

    type: str
    scope: str
    key: Optional[str]
    tenant: Optional[str]
    error: Optional[BaseException]
    seconds: float


def event_of(outcome: Union[Answer[Any], BaseException]) -> str:
    if isinstance(outcome, (Answer, Failure)) and outcome.replayed:
        return "replayed"
    return next(name for kind, name in (
        (Answer, "completed"), (Failure, "failed"), (Conflict, "conflict"), (Refused, "refused"),
        (NotStored, "not_stored"), (BaseException, "error")) if isinstance(outcome, kind))


class Claim(NamedTuple):
    """A row of CLAIM."""

    outcome: str
    token: Optional[str]
    response: Optional[str]
    status: Optional[int]
    headers: Optional[str]
    body: Optional[bytes]
    error: Optional[str]
    retry_after: Optional[float]
    differs: Optional[Sequence[Optional[str]]]
    attempt: Optional[int] = None
    recovery_state: Optional[str] = None
    expires: Optional[float] = None

    def stored(self, key: str, loads: Callable[[str], Any]) -> Optional[Answer[Any]]:
        """The stored answer; None if the caller now owns the operation. Raises the rest."""
        if self.outcome == "claimed":
            return None
        headers = stored_headers(self.headers)
        body = bytes(self.body) if self.body is not None else None
        if self.outcome == "completed":
            response = None if self.response is None else loads(self.response)
            return Answer(response, self.status, headers, body, replayed=True,
                          expires=time_of(self.expires))
        if self.outcome == "failed":
            error = json.loads(self.error) if self.error else {}
            raise Failure(error.get("message") or f'operation "{key}" has failed permanently',
                          sqlstate=error.get("sqlstate"), detail=error.get("detail"),
                          hint=error.get("hint"), status=self.status, headers=headers, body=body,
                          replayed=True, expires=time_of(self.expires))
        refused, code, message = _REFUSALS[self.outcome]
        after = None if self.retry_after is None else float(self.retry_after)  # perhaps a Decimal
        refusal = refused(code, message.format(key=key), after)
        if isinstance(refusal, Conflict):
            refusal.differs = self.differs
        raise refusal


def readable(row: Sequence[Any]) -> Sequence[Any]:
    """A row that begins with text, which psycopg 3 leaves as bytes under SQL_ASCII."""
    if isinstance(row[0], bytes):
        raise RuntimeError("client_encoding is SQL_ASCII, but answers are read as text: set UTF8")
    return row


_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"(?:[!-~\x80-\xff](?:[ \t!-~\x80-\xff]*[!-~\x80-\xff])?)?")


def stored_headers(text: Optional[str]) -> Optional[Headers]:
    """The headers of a record. idem.complete() checks them, but a superuser or a publisher can
    write a record without it, and a line break would make one header two."""
    headers = json.loads(text) if text else None
    if headers is None:
        return None
    for name, value in header_list(headers) if isinstance(headers, dict) else [("", headers)]:
        try:
            header(name, value)
        except (TypeError, ValueError) as error:
            raise ValueError("the record has headers that cannot be sent") from error
    return dict(headers)


def header_list(headers: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A pair for each header to send; a list is a header that is sent several times."""
    return [(name, value) for name, values in headers.items()
            for value in (values if isinstance(values, (list, tuple)) else [values])]


_REFUSALS: dict[str, tuple[type[Refused], str, str]] = {
    "in_progress": (InProgress, "ID001", 'operation "{key}" is in progress'),
    "conflict": (Conflict, "ID002", 'key "{key}" was used for a different request'),
    "limited": (LimitExceeded, "ID009", "too many new operations"),
    "stale_key": (StaleKey, "ID010", 'idempotency key "{key}" is stale'),
    "exhausted": (AttemptsExhausted, "ID014", 'operation "{key}" has no attempts left: '
                  "its outcome is undecided, so keep the key and ask again later"),
}
_CLASSES = {code: refused for refused, code, _ in _REFUSALS.values()}

# Errors -------------------------------------------------------------------------------------


class Known(NamedTuple):
    """What an error means, by idem.http_status() and idem.problem()."""

    status: int
    name: Optional[str] = None
    title: Optional[str] = None
    retry: bool = False


# SQLSTATEs and classes of them, as tools/errors has written them.
ERRORS = {code: Known(**members) for code, members in json.loads(
    pkgutil.get_data(__package__, "sqlstates.json") or b"").items()}
# Refusals that say when to come back.
NOT_NOW = [code for code, error in ERRORS.items() if code.startswith("ID") and error.retry]
# libpq has no SQLSTATE of what the server says before there is a session, nor of what it does not
# send. Waiting does not cure a wrong database, role or password, or too many parameters. In another
# language than English, they are repeated in vain.
_HOPELESS = re.compile(
    r"(?:database|role) \".*\" does not exist|authentication failed|no pg_hba\.conf entry"
    r"|permission denied|not permitted to log in|no password supplied|number of parameters")


def known(code: str) -> Known:
    return ERRORS.get(code) or ERRORS.get(code[:2]) or Known(500)


DRIVERS = ("psycopg", "sqlalchemy", "django")  # "psycopg" also begins psycopg2 and psycopg_pool


def unwrapped(error: BaseException) -> BaseException:
    """The driver's error, which SQLAlchemy and Django wrap."""
    if type(error).__module__ == "django.db.utils" and error.__cause__:
        return error.__cause__
    return getattr(error, "orig", None) or error


def sqlstate(error: BaseException) -> Optional[str]:
    """The SQLSTATE of an error of the driver, SQLAlchemy, Django or this package; else None."""
    error = unwrapped(error)
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)


def retry_after(error: BaseException) -> Optional[float]:
    """The seconds after which ID001, ID009 and ID014 tell the caller to come back; else None."""
    if isinstance(error, Refused):
        return error.retry_after
    error = unwrapped(error)
    if isinstance(error, Failure) or sqlstate(error) not in NOT_NOW:
        return None
    fields = getattr(error, "diag")
    if re.fullmatch("[0-9]+", getattr(fields, "datatype_name", None) or ""):
        return int(fields.datatype_name) / 1000
    # A library of idem without the field, or one behind a proxy that drops it.
    found = re.search(r"after ([0-9]+(?:\.[0-9]+)?) seconds", fields.message_hint or "")
    return float(found[1]) if found else None


def is_transient(error: BaseException) -> bool:
    """Whether the same transaction may succeed later."""
    if isinstance(error, Failure):  # it is final, whatever code it has
        return False
    code = sqlstate(error)
    if code in NOT_NOW:
        return retry_after(error) is not None  # without a time, waiting does not help
    if code:  # PgBouncer ends a connection with a code that else is for malformed messages
        return known(code).retry or (
            code == "08P01" and getattr(unwrapped(error), "diag").severity == "FATAL")
    # Not an error of the server: the connection is lost, or the pool has none to give. DB-API 2.0
    # gives the class its name.
    return not _HOPELESS.search(str(unwrapped(error))) and (
            getattr(error, "connection_invalidated", False)
            or any(base.__name__ in ("OperationalError", "TimeoutError")  # the latter of a pool
                   and base.__module__.startswith(DRIVERS) for base in type(error).__mro__))


def as_refused(error: Exception) -> Optional[Refused]:
    """An error of a claim that concerns the key or the request (classes ID, 22, without the
    service's arguments that are out of range); else None."""
    code = sqlstate(error) or ""
    if isinstance(error, Refused) or not code.startswith(("ID", "22")) or code == "22023":
        return None
    message = getattr(unwrapped(error), "diag").message_primary
    return _CLASSES.get(code, Refused)(code, message, retry_after(error))


def as_lost(error: Exception) -> Exception:
    """LeaseLost for an error that says so of a leased token; else the error itself."""
    if isinstance(error, (Refused, Failure)) or sqlstate(error) not in ("ID004", "ID005"):
        return error
    lost = LeaseLost(getattr(unwrapped(error), "diag").message_primary)
    lost.__cause__ = error
    return lost


@dataclass(frozen=True)
class Retry:
    """How often and how long to retry: exponential backoff with jitter, on top of the time that
    the error names."""

    attempts: int = 10
    first: float = 0.05  # seconds, doubled with each attempt
    longest: float = 5.0
    deadline: float = 30.0  # no attempt starts later than this after the first
    refusals: bool = True  # also when idem refuses for now: ID001, ID009, ID014

    def __post_init__(self) -> None:
        count("attempts", self.attempts)
        for name in ("first", "longest", "deadline"):
            if getattr(self, name) != math.inf:
                seconds(name, getattr(self, name))
        instance("refusals", self.refusals, bool)

    def pause(self, error: BaseException, attempt: int, elapsed: float) -> Optional[float]:
        """The seconds to wait before the next attempt, or None to give up."""
        if attempt >= self.attempts or not is_transient(error):
            return None
        if not self.refusals and (sqlstate(error) or "").startswith("ID"):
            return None
        return self.within(retry_after(error) or 0, attempt, elapsed)

    def within(self, after: float, attempt: int, elapsed: float) -> Optional[float]:
        """The seconds to wait, and at least `after`; or None if that is beyond the deadline."""
        pause = after + random.uniform(0, min(self.longest, self.first * 2**min(attempt - 1, 64)))
        return pause if elapsed + pause <= self.deadline else None


# Parameters of the statements ---------------------------------------------------------------


# Values at the edge: what would be stored or sent as something else is refused.


def text(what: str, value: Any) -> str:
    """Text that the server can store."""
    if not isinstance(value, str):
        raise TypeError(f"the {what} must be a str, not {type(value).__name__}")
    if re.search("[\0\ud800-\udfff]", value):
        raise ValueError(f"the {what} has a character that cannot be stored")
    return value[:]  # of an Enum, its value, as drivers and JSON have it


def key_text(key: Key) -> str:
    """A forgotten key must not make all calls one operation."""
    if not isinstance(key, (str, uuid.UUID)):
        raise TypeError(f"the key must be a str or a UUID, not {type(key).__name__}")
    return text("key", key if isinstance(key, str) else str(key))


def tenant_text(tenant: Any) -> str:
    """A client that is not known must not get what belongs to all."""
    tenant = text("tenant", tenant)
    if tenant == "":
        raise ValueError("the tenant is empty")
    return str(tenant)


# The default of an argument whose None is a mistake: a tenant that is not set would make the keys
# of all clients one namespace.
UNSET: Any = object()


def instance(what: str, value: Any, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"{what} must be a {kind.__name__}, not {type(value).__name__}")
    return value


def function(what: str, value: Any) -> Any:
    if not callable(value):
        raise TypeError(f"{what} must be a function, not {type(value).__name__}")
    return value


def count(what: str, value: object, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} must be an int, not {type(value).__name__}")
    if value < least:
        raise ValueError(f"{what} must be at least {least}, not {value}")
    return value


def seconds(what: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{what} must be a number of seconds, not {type(value).__name__}")
    if not 0 <= value < math.inf:
        raise ValueError(f"{what} must be a number of seconds from 0 on, not {value}")
    return float(value)


def listed(what: str, values: object, kind: type) -> Collection[Any]:
    """A text would be taken letter by letter."""
    if isinstance(values, str) or not isinstance(values, Collection) or any(
            isinstance(value, bool) or not isinstance(value, kind) for value in values):
        raise TypeError(f"{what} must be a collection of {kind.__name__}, not {values!r}")
    return values


def json_text(dumps: Callable[[Any], str], value: Any) -> str:
    """What has not run has no effect, and `default=str` would store its name."""
    if inspect.isawaitable(value) or inspect.isgenerator(value) or inspect.isasyncgen(value):
        getattr(value, "close", bool)()  # so that Python does not warn of it, too
        raise TypeError(f"{value!r} has not run: its function needs await, or the asynchronous"
                        " class")
    return dumps(value)


def request_text(request: Any, dumps: Callable[[Any], str]) -> Optional[str]:
    return request if isinstance(request, (JsonText, type(None))) else dumps(request)


def status_code(status: object) -> int:
    if isinstance(status, bool) or not isinstance(status, int):
        raise TypeError(f"the status must be an int, not {type(status).__name__}")
    if not 200 <= status <= 599:
        raise ValueError(f"the status must be from 200 to 599, not {status}")
    return status


def header(name: Any, value: Any) -> None:
    if not isinstance(name, str) or not isinstance(value, str):
        raise TypeError("names and values of headers must be str")
    if not (_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value)):
        raise ValueError(f"header {name!r} cannot be sent")


def body_bytes(body: Any) -> bytes:
    if not isinstance(body, (bytes, bytearray, memoryview)):
        raise TypeError(f"the body must be bytes, not {type(body).__name__}")
    return bytes(body)


def completion(token: Optional[str], answer: Answer[Any],
               dumps: Callable[[Any], str]) -> dict[str, Any]:
    response = None if answer.response is None else dumps(answer.response)
    return {"token": token, "response": response, **_http(answer)}


def failure(token: Optional[str], failed: Failure) -> dict[str, Any]:
    return {"token": token, "error": json.dumps(failed.error()), **_http(failed)}


def _http(of: Any) -> dict[str, Any]:
    for name, value in header_list(of.headers or {}):
        header(name, value)
    return {"status": None if of.status is None else status_code(of.status),
            "headers": None if of.headers is None else json.dumps(dict(of.headers)),
            "body": None if of.body is None else body_bytes(of.body)}
