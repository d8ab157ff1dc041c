"""Operations of several steps, which call other services and so cannot be one transaction."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
import time
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Optional

from . import core, flow
from .core import Answer, Claim, Failure, LeaseLost, Refused, Retry
from .flow import Steps, T, log

# At the end of a failed attempt. If it is in vain, the end of the lease does the same.
RELEASE_RETRY = Retry(attempts=3, deadline=5.0)


def _error_of(error: BaseException) -> str:
    """As the server takes it: not empty, without NUL and without half a surrogate pair, and within
    1,024 bytes, the least max_answer_size of a scope."""
    try:
        text = str(error)
    except Exception:  # the operation is released whatever the error is
        text = ""
    encoded = (text or type(error).__name__).replace("\0", "\ufffd").encode(errors="replace")
    return json.dumps({"message": encoded[:1000].decode(errors="ignore")})


class Taken(NamedTuple):
    """A row of TAKE."""

    token: Optional[str]
    key: str
    tenant: str
    request: Optional[str]
    attempt: int
    recovery_state: Optional[str]


class LeaseBase:
    """An attempt of a leased operation, as a context manager. While its body runs, the lease is
    renewed on other connections.

    answer   the stored answer, if the operation is finished: then there is nothing to do
    request, key, tenant, attempt
    lost     an Event: the lease is lost, and another attempt may be running
    """

    lost: Any
    # Whether an error that is no Exception, such as CancelledError, comes from outside of the work.
    interrupted: Callable[[], bool] = staticmethod(lambda: True)
    _raised: Optional[Exception] = None  # by a call of this attempt: the function may swallow it
    _state: Any = {}  # none, as _ends, if there is an answer
    _connection: Any = None  # of complete(), while its effect runs
    _over = False  # the body has ended: what goes on must begin nothing beside the next attempt

    def __init__(self, operations: flow.Operations[Any], claim: Mapping[str, Any], request: Any, *,
                 backoff: tuple[float, float], retry: Optional[Retry]) -> None:
        self._operations, self._claim, self._retry = operations, claim, retry
        self._backoff = backoff
        self._token: Optional[str] = None
        self._used, self._running, self._completing = set[str](), list[str](), False
        self.request = operations.loads(request) if isinstance(request, core.JsonText) else request
        self.key, self.tenant, self.attempt = claim["key"], claim["tenant"], 0
        self.answer: Optional[Answer[Any]] = None

    def step(self, name: str, work: Callable[[], T]) -> T:
        """The result of work(), which runs unless an earlier attempt has stored its result. Raises
        LeaseLost, so that no step begins after the lease was lost. A name is used once, and no step
        begins within complete()."""
        result: T = self._operations.drive(self._step(name, work))
        return result

    def child_key(self, step: str) -> Any:
        """The key to send to another service in this step: the same in every attempt."""
        parameters = {"token": self._token, "step": core.text("step", step)}
        return self._operations.drive(self._child_key(parameters))

    def complete(self, answer: Any = None, *,
                 effect: Optional[Callable[[Any], Any]] = None) -> Any:
        """Completes the operation with the answer; or with the result of effect(connection), in
        one transaction with it. Returns the Answer."""
        return self._operations.drive(self._complete(answer, effect))

    def run(self, function: Callable[[Any], Any]) -> Any:
        """Runs function(lease) unless the operation is finished, and completes the operation with
        its result unless the function has done so. Returns the Answer."""
        return self._operations.drive(self._operations.within(self, lambda _: self._run(function)))

    def check(self) -> None:
        """Raises LeaseLost if the lease is lost or has ended, or the body has."""
        if self._over or self.lost.is_set() or time.monotonic() >= self._ends:
            self._raised = LeaseLost()
            raise self._raised

    # The protocol ---------------------------------------------------------------------------

    def _begin(self) -> Steps[None]:
        def attempt() -> Steps[Claim]:
            self._sent = time.monotonic()
            return self._operations.within(
                self._operations.connected(),
                lambda connection: self._operations.claim(connection, self._claim))
        try:
            claim = yield from self._operations.retried(attempt, self._retry, self._claim)
            self.answer = claim.stored(self.key, self._operations.loads)
        except Exception as error:
            self._operations.report(self._claim, core.event_of(error), error)
            raise
        if self.answer is not None:
            self._operations.report(self._claim, core.event_of(self.answer))
        else:
            self.hold(claim.token, claim.attempt or 1, claim.recovery_state, self._sent)

    def hold(self, token: Optional[str], attempt: int, state: Optional[str], sent: float) -> None:
        """This attempt has the lease, at the latest since `sent`, when it was asked for."""
        self._token, self.attempt = token, attempt
        self._ends = sent + self._claim["lease"]
        self._state = {} if state is None else self._operations.loads(state)
        self._operations.report(self._claim, "claimed")

    def _step(self, name: str, work: Callable[[], Any]) -> Steps[Any]:
        if not isinstance(self._state, dict):
            raise TypeError("the recovery point of the operation is not one of steps")
        if core.text("step", name) in self._used:  # it would get the result of the other one
            raise ValueError(f'step "{name}" was used before in this attempt')
        self._used.add(name)
        if name not in self._state:
            self._running.append(name)
            try:
                yield from self._work(name, work)
            finally:
                self._running.remove(name)
        return self._state[name]

    def _work(self, name: str, work: Callable[[], Any]) -> Steps[None]:
        with self._noted():
            if self._over or self.lost.is_set() or self.answer is not None:
                raise LeaseLost
            self._require_apart(f'step "{name}"')
            if time.monotonic() >= self._ends:  # the process has slept: the server knows
                yield from self._operations.retried(self._renew, self._retry)
        result = yield work()
        with self._noted():
            # As a later attempt finds it.
            result = self._operations.loads(self._operations.dumps(result))
            yield from self._operations.within(self._lock, lambda _: self._keep(name, result))

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """What it raises fails the attempt, even if the function swallows it: it would be completed
        with an answer that says success."""
        try:
            yield
        except Exception as error:
            self._raised = error
            raise
        except BaseException:  # a timeout may turn it into an error
            self._raised = RuntimeError("a call of the lease was interrupted")
            raise

    def _unfinished(self) -> Optional[RuntimeError]:
        """A step that the function does not wait for would end after the operation."""
        return next((RuntimeError(f'step "{name}" is still running')
                     for name in self._running), None)

    def _require_apart(self, what: str) -> None:
        """It would wait for the transaction of complete(), and perhaps complete() for it."""
        if self._completing:
            raise RuntimeError(f"{what} must not begin while complete() runs")

    def _keep(self, name: str, result: Any) -> Steps[None]:
        state = {**self._state, name: result}
        yield from self._first_column([core.CHECKPOINT], {
            "token": self._token, "name": name, "state": self._operations.dumps(state)})
        self._state = state

    def _child_key(self, parameters: Mapping[str, Any]) -> Steps[Any]:
        if self._connection is None:
            return (yield from self._first_column([core.CHILD_KEY], parameters))
        with self._noted():  # within complete(): the pool may have no other connection
            row = yield self._operations.send(self._connection, [core.CHILD_KEY], parameters)
            return row[0]

    def _first_column(self, statements: list[str], parameters: Mapping[str, Any]) -> Steps[Any]:
        with self._noted():
            try:
                row = yield from self._operations.retried(
                    lambda: self._operations.single(statements, parameters), self._retry)
            except Exception as error:
                raise core.as_lost(error)
            return row[0]

    def _renew(self) -> Steps[None]:
        sent = time.monotonic()
        try:
            yield from self._operations.single([core.RENEW], self._renewal(),
                                               self._operations.renewing())
        except Exception as error:  # also ID004, which another role gets, too
            log.info("could not renew the lease of %s beside the pool: %s", self.key, error)
            yield from self._renew_in_pool()
        self._ends = sent + self._claim["lease"]

    def _renew_in_pool(self) -> Steps[None]:
        try:
            yield from self._operations.single([core.RENEW], self._renewal())
        except Exception as error:
            raise core.as_lost(error)

    def _renewal(self) -> dict[str, Any]:
        return {"token": self._token, "lease": self._claim["lease"]}

    def _run(self, function: Callable[[Any], Any]) -> Steps[Answer[Any]]:
        if self.answer is None:
            result = yield function(self)
            if self.answer is None and self._raised is not None:
                raise self._raised
            if self.answer is None:
                yield from self._complete(result, None)
        assert self.answer is not None
        return self.answer

    def _complete(self, answer: Any, effect: Optional[Callable[[Any], Any]]) -> Steps[Answer[Any]]:
        with self._noted():
            self.answer = yield from self._completed(answer, effect)
        self._operations.report(self._claim, "completed")
        return self.answer

    def _completed(self, answer: Any, effect: Optional[Callable[[Any], Any]]) -> Steps[Answer[Any]]:
        attempts = []

        def attempt() -> Steps[Answer[Any]]:
            attempts.append(1)
            return self._operations.within(
                self._operations.connected(),
                lambda connection: self._finish(connection, answer, effect))
        unfinished = self._unfinished()
        if unfinished:
            raise unfinished
        self._require_apart("complete()")
        self._completing = True
        try:
            yield self._stop()  # from now on, the transaction holds the key
            return (yield from self._operations.retried(attempt, self._retry))
        except LeaseLost:
            # Perhaps because an attempt has committed whose answer was lost.
            found = (yield from self._finished()) if len(attempts) > 1 else None
            if found is None:
                raise
            return found
        except BaseException:
            self._start()
            raise
        finally:
            self._completing = False

    def _finish(self, connection: Any, answer: Any,
                effect: Optional[Callable[[Any], Any]]) -> Steps[Answer[Any]]:
        try:
            if effect is None:
                return (yield from self._operations.completed(
                    connection, self._token, answer, before=core.BEGIN))
            yield self._operations.send(connection, [core.RENEW], self._renewal(),
                                        before=core.BEGIN)
            self._connection = connection
            try:
                result = yield from self._operations.effect(
                    connection, functools.partial(flow.call, effect))
            finally:
                self._connection = None
            return (yield from self._operations.completed(connection, self._token, result))
        except Exception as error:
            raise core.as_lost(error)

    def _finished(self) -> Steps[Optional[Answer[Any]]]:
        row = yield from self._operations.retried(lambda: self._operations.single(
            core.chosen(core.FINISHED, self._claim), self._claim), self._retry)
        return Claim(*row).stored(self.key, self._operations.loads) if row else None

    def _end(self, error: Optional[BaseException]) -> Steps[None]:
        self._over = True
        yield self._stop()
        reason = error
        if error is None and self.answer is None:
            reason = self._raised or self._unfinished() or RuntimeError(
                "the operation was neither completed nor failed")
        yield from self._end_after(reason)
        if error is None and reason is not None:
            raise reason

    def _end_after(self, error: Optional[BaseException]) -> Steps[None]:
        """What becomes of the operation after the body: the failure that it has raised is stored,
        and after any other error a later attempt continues."""
        if isinstance(error, Failure):
            core.as_own(error)
        if self.answer is None and error is not None:
            self._operations.report(self._claim, core.event_of(error), error)
        if self.answer is not None and isinstance(error, Failure):  # a retry gets the answer
            raise RuntimeError("the operation is completed already, and cannot fail") from error
        if self.answer is not None or error is None or isinstance(error, LeaseLost):
            return
        if isinstance(error, Failure):
            try:
                yield from self._first_column([core.FAIL], core.failure(self._token, error))
            except LeaseLost:  # perhaps because the failure is stored, and the answer was lost
                yield from self._finished()
                raise
            return
        later = isinstance(error, Exception) or not self.interrupted()
        base, cap = self._backoff if later else (0.0, 0.0)
        parameters = {"token": self._token, "attempt": self.attempt, "base": base, "cap": cap,
                      "error": _error_of(error)}
        try:
            yield from self._operations.retried(lambda: self._operations.single(
                [core.RELEASE_LEASE], parameters), RELEASE_RETRY)
        except Exception as failed:
            log.warning("could not release %s, whose lease ends by itself: %s", self.key, failed)

    def _pause(self) -> float:
        """The seconds until the next renewal: a third of what is left of the lease."""
        left = max(0.0, self._ends - time.monotonic())
        return max(left / 3, min(left, 0.05))

    def _patience(self, answered: bool) -> float:
        """The seconds that a renewal may take: what is left of the lease."""
        left = self._ends - time.monotonic()
        if left <= 0 and answered:  # the process has slept: the server knows
            return float(self._claim["lease"]) / 3
        return max(0.0, left)

    # What differs with and without `await`.

    _lock: Any
    _ends = 0.0
    _start: Callable[..., None]  # starts the heartbeat
    _stop: Callable[..., Any]


class Lease(LeaseBase):
    __doc__ = LeaseBase.__doc__

    def __enter__(self) -> Lease:
        self.lost, self._lock = threading.Event(), threading.Lock()
        self._stopped = threading.Event()
        if self._token is None:
            self._operations.drive(self._begin())
        if self.answer is None:
            self._start()
        return self

    def __exit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        self._operations.drive(self._end(error))

    def _start(self) -> None:
        self._stopped = threading.Event()
        threading.Thread(target=self._beat, args=(self._stopped,), daemon=True,
                         name=f"pg_idem lease of {self.key}").start()

    def _stop(self) -> None:
        self._stopped.set()

    def _beat(self, stopped: threading.Event) -> None:
        answered = True
        while not stopped.wait(self._pause()):
            # For a connection on which nothing comes back, not even an error.
            timer = threading.Timer(self._patience(answered), self._lose, [stopped])
            timer.daemon = True
            timer.start()
            try:
                self._operations.drive(self._renew())
                answered = True
            except LeaseLost:
                break
            except Exception as error:  # there is time for another attempt
                answered = False
                log.warning("could not renew the lease of %s: %s", self.key, error)
            finally:
                timer.cancel()
            if self.lost.is_set() or time.monotonic() >= self._ends:
                break
        self._lose(stopped)
        self._operations.thread_ends()

    def _lose(self, stopped: threading.Event) -> None:
        if not stopped.is_set():
            self.lost.set()


class AsyncLease(LeaseBase):
    """As Lease, with `async with`. If the lease is lost, the task of the body is cancelled, and
    LeaseLost is raised instead."""

    async def __aenter__(self) -> AsyncLease:
        self.lost, self._lock = asyncio.Event(), asyncio.Lock()
        self._body, self._heart = asyncio.current_task(), None
        if self._token is None:
            await self._operations.drive(self._begin())
        if self.answer is None:
            self._start()
        return self

    async def __aexit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        try:
            if isinstance(error, asyncio.CancelledError) and self.lost.is_set():
                raise error
            await self._operations.drive(self._end(error))
        except asyncio.CancelledError as cancelled:
            if not self.lost.is_set():
                raise
            getattr(self._body, "uncancel", int)()  # since Python 3.11
            raise LeaseLost from cancelled
        finally:
            self._body = None  # what the task does from now on needs no lease

    _heart: Optional[asyncio.Task[None]]

    def _start(self) -> None:
        self._heart = asyncio.create_task(self._beat())

    async def _stop(self) -> None:
        heart, self._heart = self._heart, None
        if heart is not None:
            heart.cancel()
            await asyncio.wait([heart])

    # Before Python 3.12, wait_for() may swallow a cancellation that comes as the renewal ends.
    async def _beat(self) -> None:
        await asyncio.sleep(0)  # an eager task begins before _start() knows it
        this = asyncio.current_task()
        answered = True
        while self._heart is this:
            await asyncio.sleep(self._pause())
            try:
                await asyncio.wait_for(self._operations.drive(self._renew()),
                                       self._patience(answered))
                answered = True
            except LeaseLost:
                break
            except Exception as error:
                answered = False
                log.warning("could not renew the lease of %s: %s", self.key, error)
            if time.monotonic() >= self._ends:
                break
        if self._heart is not this:  # the body has ended, or is completing the operation
            return
        self.lost.set()
        if self._body is not None:
            self._body.cancel()
