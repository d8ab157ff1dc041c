"""The protocol of operations, once for every kind of connection.

It is written as generators. A generator yields what a driver's call has returned, and is sent the
result: `row = yield self.send(...)`. run() is for calls that return their result, and run_async()
for calls that return an awaitable.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import logging
import time
from typing import (TYPE_CHECKING, Any, Awaitable, Callable, Generator, Generic, Mapping,
                    NamedTuple, Optional, Protocol, Sequence, TypeVar, Union, overload)

from . import core, drivers
from .core import Answer, Claim, Event, Failure, Key, Refused, Retry

T = TypeVar("T")
L = TypeVar("L")  # the class of leases
Steps = Generator[Any, Any, T]
log = logging.getLogger("pg_idem")


class Call(NamedTuple):
    """Yielded where a framework calls the handler in a way of its own, and then goes on."""

    connection: Any


class Pause(NamedTuple):
    """Yielded between the attempts of a blocking driver, which hold no connection meanwhile."""

    seconds: float


class Done(NamedTuple):
    value: Any


Move = Callable[[], Any]  # the next send() or throw() of a generator


def advance(steps: Steps[Any], move: Move) -> Union[Call, Pause, Done]:
    try:
        value = move()
        while not isinstance(value, (Call, Pause)):
            value = steps.send(value)
        return value
    except StopIteration as end:
        return Done(end.value)


async def advance_async(steps: Steps[Any], move: Move) -> Union[Call, Done]:
    while True:
        try:
            awaitable = move()
        except StopIteration as end:
            return Done(end.value)
        if isinstance(awaitable, Call):
            return awaitable
        try:
            move = functools.partial(steps.send, await awaitable)
        except BaseException as error:
            move = functools.partial(steps.throw, error)


def run(steps: Steps[Any]) -> Any:
    go_on = functools.partial(steps.send, None)
    now = advance(steps, go_on)
    while isinstance(now, Pause):
        time.sleep(now.seconds)
        now = advance(steps, go_on)
    return now[0]


async def run_async(steps: Steps[Any]) -> Any:
    return (await advance_async(steps, functools.partial(steps.send, None)))[0]


if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    P = ParamSpec("P")
    T_co = TypeVar("T_co", covariant=True)

    class Operation(Protocol[P, T_co]):
        """What operation() makes of a function: it takes a key instead of the connection."""

        def __call__(self, key: Key, *args: P.args, **kwargs: P.kwargs) -> T_co: ...

        def of(self, *, tenant: str = core.UNSET,
               records: Optional[str] = None) -> Operation[P, T_co]:
            """The same for keys of this tenant, or of this record table."""


class Operations(Generic[L]):
    """Runs operations once per key.

    connect  returns a context manager that yields a connection
    wait     how long a claim waits for a key in flight, in seconds. A waiting claim occupies a
             connection, so this is shorter than the server's default of 10 seconds.
    ttl      how long answers are kept, in seconds; by default, the ttl of the scope
    retry    what to do after errors that a retry can cure
    tenant   to which client the keys belong; an argument of each call, too
    records  the record table, for scopes with `records`; an argument of each call, too
    on_event called with an Event for each step of an operation: for logs, metrics and spans
    dumps, loads  JSON of requests and responses
    """

    def __init__(self, connect: Callable[[], Any], *, wait: float = 2.0,
                 ttl: Optional[float] = None, retry: Retry = Retry(),
                 tenant: str = core.UNSET, records: Optional[str] = None,
                 on_event: Optional[Callable[[Event], None]] = None,
                 dumps: Callable[[Any], str] = functools.partial(json.dumps, allow_nan=False),
                 loads: Callable[[str], Any] = json.loads) -> None:
        self.connect, self.wait = connect, core.seconds("wait", wait)
        self.retry = core.instance("retry", retry, Retry)
        self.ttl = None if ttl is None else core.seconds("ttl", ttl)
        self.tenant = None if tenant is core.UNSET else core.tenant_text(tenant)
        self._modules: dict[tuple[str, str], Any] = {}  # that have defined its functions
        self.records = records
        self.on_event = None if on_event is None else core.function("on_event", on_event)
        self.dumps = functools.partial(core.json_text, core.function("dumps", dumps))
        self.loads = core.function("loads", loads)

    def operation(self, scope: str, name: Optional[str] = None
                  ) -> Callable[[Callable[Concatenate[Any, P], T]], Operation[P, T]]:
        """A decorator. Makes `pay(connection, request)` callable as `pay(key, request)`, and with
        `pay.of(tenant=...)`. The function may have other arguments: these are the request, by their
        names. Its `__qualname__` is bound to the key, too, or `name`, so that no other function
        gets its answer. Names are unique within the scope: functions that a factory makes need
        `name`, and one of another module with the same `__qualname__` is a TypeError."""

        def decorate(function: Callable[Concatenate[Any, P], T]) -> Operation[P, T]:
            bound = json.dumps({"function": self._unique_name_of(scope, function) if name is None
                                else core.text("name", name)})[:-1]
            signature = inspect.signature(function)

            def of(*, tenant: str = core.UNSET, records: Optional[str] = None) -> Any:
                @functools.wraps(function)
                def once(key: Key, *args: P.args, **kwargs: P.kwargs) -> Any:
                    arguments = signature.bind(None, *args, **kwargs)

                    def request() -> str:
                        text = core.request_text(_request_of(arguments), self.dumps)
                        return f'{bound}, "request": {text or "null"}}}'

                    def steps() -> Steps[Any]:
                        answer = yield from self.run_steps(
                            scope, key, request, functools.partial(
                                call, lambda connection: function(connection, *args, **kwargs)),
                            tenant=tenant, records=records)
                        return answer.response
                    return self.drive(steps())
                setattr(once, "of", of)
                return once
            made: Operation[P, T] = of()
            return made

        return decorate

    def _unique_name_of(self, scope: str, function: Callable[..., Any]) -> str:
        name, module = _name_of(function), getattr(function, "__module__", None)
        first = self._modules.setdefault((scope, name), module)
        if first != module:
            raise TypeError(f'"{name}" in the scope "{scope}" is a function of {first}, whose'
                            f" answers that of {module} would get: pass name=...")
        return name

    @overload  # type: ignore
    def run(self, scope: str, key: Key, request: Any, function: Callable[[Any], Awaitable[T]], *,
            tenant: str = core.UNSET, records: Optional[str] = None,
            retry: Optional[Retry] = None, expires: bool = False) -> Awaitable[Answer[T]]: ...

    @overload
    def run(self, scope: str, key: Key, request: Any,
            function: Callable[[Any], Union[Answer[T], T]], *, tenant: str = core.UNSET,
            records: Optional[str] = None, retry: Optional[Retry] = None,
            expires: bool = False) -> Answer[T]: ...

    def run(self, scope: str, key: Key, request: Any, function: Callable[[Any], Any], *,
            tenant: str = core.UNSET, records: Optional[str] = None,
            retry: Optional[Retry] = None, expires: bool = False) -> Any:
        """Claims the key, calls function(connection) and completes the claim with its result, in
        one transaction; or returns the stored answer. Raises Failure and Refused. With `expires`,
        a first answer says when it expires, as a replay does."""
        return self.drive(self.run_steps(
            scope, key, functools.partial(core.request_text, request, self.dumps),
            functools.partial(call, function), tenant=tenant, records=records, retry=retry,
            expires=expires))

    def transaction(self, function: Callable[[Any], T], *, retry: Optional[Retry] = None) -> T:
        """Calls function(connection) in a transaction, and again after errors that a retry can
        cure. The outcome of a lost COMMIT is unknown, so the function must claim a key."""
        made: T = self.drive(self.transaction_steps(functools.partial(call, function), retry))
        return made

    def lease(self, scope: str, key: Key, request: Any, *, lease: float = 60.0,
              tenant: str = core.UNSET, records: Optional[str] = None,
              backoff: tuple[float, float] = (1.0, 300.0), retry: Optional[Retry] = None) -> L:
        """A context manager that claims the key with a lease of so many seconds: see Lease. After
        an error, the operation is due again after `backoff`: the first and the longest time."""
        claim = self.claim_of(scope, key, core.request_text(request, self.dumps), tenant, records,
                              lease)
        return self.leases(self, claim, request, backoff=backoff, retry=retry)

    # The protocol ---------------------------------------------------------------------------

    def run_steps(self, scope: str, key: Key, request: Callable[[], Optional[str]],
                  body: Callable[[Any], Steps[Any]], *, tenant: str = core.UNSET,
                  records: Optional[str] = None, retry: Optional[Retry] = None,
                  expires: bool = False) -> Steps[Answer[Any]]:
        """`request` returns what the function would work on now, as JSON."""
        claim = self.claim_of(scope, key, request(), tenant, records)

        def unchanged(connection: Any) -> Steps[Any]:
            if request() != claim["request"]:  # an attempt that was rolled back has changed it
                raise RuntimeError("the request has changed since it was bound to the key: the"
                                   " function of an operation must not change it")
            return (yield from body(connection))

        def attempt() -> Steps[Answer[Any] | Failure]:
            return self.within(self.connected(), lambda connection: self._attempt(
                connection, claim, unchanged, expires))
        return (yield from self.reported(claim, self.retried(attempt, retry, claim)))

    def transaction_steps(self, body: Callable[[Any], Steps[T]],
                          retry: Optional[Retry] = None) -> Steps[T]:
        return self.retried(lambda: self.within(
            self.begun(), lambda connection: self.guarded_call(connection, body)), retry)

    def reported(self, claim: Mapping[str, Any],
                 steps: Steps[Answer[Any] | Failure]) -> Steps[Answer[Any]]:
        try:
            outcome = yield from steps
            if isinstance(outcome, Failure):
                raise outcome
        except core.NotStored as rolled_back:
            self.report(claim, core.event_of(rolled_back))
            return Answer(rolled_back.response)
        except Exception as error:
            self.report(claim, core.event_of(error), error)
            raise
        self.report(claim, core.event_of(outcome))
        return outcome

    def report(self, claim: Mapping[str, Any], kind: str,
               error: Optional[BaseException] = None) -> None:
        if self.on_event is None:
            return
        seconds = time.monotonic() - claim["began"]
        try:
            self.on_event(Event(kind, claim["scope"], claim["key"], claim["tenant"], error,
                                seconds))
        except Exception:  # what is logged decides no operation
            log.exception("on_event failed")

    def _attempt(self, connection: Any, claim: Mapping[str, Any],
                 body: Callable[[Any], Steps[Any]], expires: bool) -> Steps[Answer[Any] | Failure]:
        claimed = yield from self.claim(connection, claim, before=core.BEGIN, after=core.SAVEPOINT)
        stored = claimed.stored(claim["key"], self.loads)
        if stored is not None:
            yield self.end(connection)
            return stored
        self.report(claim, "claimed")
        try:
            result = yield from self.effect(connection, body)
        except Failure as failed:  # the effect is undone, and the failure is committed
            row = yield self.send(
                connection, [core.FAIL, core.EXPIRES] if expires else [core.FAIL],
                {**claim, **core.failure(claimed.token, core.as_own(failed)), "response": None},
                before=core.UNDO, after=core.COMMIT)
            if expires:
                failed.expires = core.time_of(row[1])
            return failed
        return (yield from self.completed(connection, claimed.token, result, before=core.RELEASE,
                                          expires=claim if expires else None))

    def completed(self, connection: Any, token: Optional[str], result: Any, *, before: str = "",
                  expires: Optional[Mapping[str, Any]] = None) -> Steps[Answer[Any]]:
        """Completes the operation with what its function has returned, and commits. With the
        parameters of its claim as `expires`, the answer says when it expires."""
        answer = result if isinstance(result, Answer) else Answer(result)
        row = yield self.send(connection, [core.COMPLETE, core.EXPIRES] if expires
                              else [core.COMPLETE],
                              {**(expires or {}), **core.completion(token, answer, self.dumps)},
                              before=before, after=core.COMMIT)
        # What the server made of it, so that the first answer equals its replays.
        response = None if row[0] is None else self.loads(row[0])
        return Answer(response, answer.status, answer.headers, answer.body,
                      expires=core.time_of(row[1]) if expires else None)

    def claim(self, connection: Any, claim: Mapping[str, Any], *, before: str = "",
              after: str = "") -> Steps[Claim]:
        try:
            row = yield self.send(connection, core.chosen(core.CLAIM, claim), claim,
                                  before=before, after=after)
        except Exception as error:
            refused = core.as_refused(error)
            if refused is None:
                raise
            raise refused from error
        return Claim(*core.readable(row))

    def claim_of(self, scope: str, key: Key, request: Optional[str], tenant: str,
                 records: Optional[str], lease: Optional[float] = None) -> dict[str, Any]:
        """The parameters of a claim."""
        return {"scope": core.text("scope", scope), "key": core.key_text(key), "request": request,
                "lease": None if lease is None else core.seconds("lease", lease),
                "began": time.monotonic(),
                "wait": self.wait, "ttl": self.ttl, **self.place(tenant, records)}

    def place(self, tenant: str, records: Optional[str]) -> dict[str, Any]:
        """Where keys are, by arguments that have defaults here."""
        records = records if records is not None else self.records
        return {"tenant": self.tenant if tenant is core.UNSET else core.tenant_text(tenant),
                "records": None if records is None else core.text("record table", records)}

    def single(self, statements: Sequence[str], parameters: Mapping[str, Any],
               connected: Any = None) -> Steps[Any]:
        """The row of the last of some statements, which are a transaction of their own."""

        def body(connection: Any) -> Steps[Any]:
            return (yield self.send(connection, statements, parameters))
        return (yield from self.within(connected or self.connected(), body))

    def retried(self, attempt: Callable[[], Steps[T]], retry: Optional[Retry] = None,
                claim: Optional[Mapping[str, Any]] = None) -> Steps[T]:
        retry = self.retry if retry is None else core.instance("retry", retry, Retry)
        start, attempts = time.monotonic(), 1
        while True:
            try:
                return (yield from attempt())
            except Exception as error:
                pause = retry.pause(error, attempts, time.monotonic() - start)
                if pause is None:
                    raise
                log.info("attempt %d failed, retrying in %.3f s: %s", attempts, pause, error)
                if claim:
                    self.report(claim, "retried", error)
            yield self.sleep(pause)
            attempts += 1

    def within(self, manager: Any, body: Callable[[Any], Steps[T]]) -> Steps[T]:
        """`with manager as value: return body(value)`"""
        value = yield self.enter(manager)
        try:
            result = yield from body(value)
        except BaseException as error:
            yield self.exit(manager, error)
            raise
        yield self.exit(manager, None)
        return result

    # What differs from driver to driver.

    leases: Callable[..., L]
    drive: Callable[..., Any]  # runs a generator of steps, or returns a coroutine that does
    enter: Callable[..., Any]  # of a context manager
    exit: Callable[..., Any]
    sleep: Callable[..., Any]
    connected: Callable[..., Any]  # a context manager of a connection, for send()
    begun: Callable[..., Any]  # one of a connection with a transaction, which it commits
    # Returns the row of the last statement. `before` and `after` begin and end the transaction or
    # its savepoint, and are sent in the same message.
    send: Callable[..., Any]
    end: Callable[..., Any]  # ends the transaction of a replay

    def renewing(self) -> Any:
        """As connected(), beside the pool, in which a renewal would wait for the work. It may fail
        where connected() does not: the password may have expired, or the role be another."""
        return self.connected()

    def effect(self, connection: Any, body: Callable[[Any], Steps[Any]]) -> Steps[Any]:
        """What the function does, within a savepoint if send() sets none."""
        return self.guarded_call(connection, body)

    def guarded_call(self, connection: Any, body: Callable[[Any], Steps[Any]]) -> Steps[Any]:
        with self.guarded(connection) as own:
            try:
                return (yield from body(own))
            finally:
                for rows in drivers.streams_of(own):
                    with contextlib.suppress(ValueError, RuntimeError):  # another reads it
                        yield (rows.aclose if hasattr(rows, "aclose") else rows.close)()

    def guarded(self, connection: Any) -> Any:
        """A context manager: the connection for a function, which cannot end the transaction. At
        its end, the transaction is whole, or a RuntimeError is raised."""
        return drivers.guarded(connection)

    def thread_ends(self) -> None:
        """Called at the end of each thread that has worked for a lease."""


def _name_of(function: Callable[..., Any]) -> str:
    """A name that it does not share with other functions."""
    name: str = getattr(function, "__qualname__", "<lambda>")
    if name.endswith("<lambda>"):
        raise TypeError(f"{function!r} has no name that could be bound to its keys: pass name=...")
    return name


def _request_of(call: inspect.BoundArguments) -> Any:
    """What is bound to the key: the argument after the connection, or several by their names."""
    call.apply_defaults()
    _, *arguments = call.arguments.items()
    return arguments[0][1] if len(arguments) == 1 else dict(arguments)


def call(function: Callable[[Any], Any], value: Any) -> Steps[Any]:
    return (yield function(value))
