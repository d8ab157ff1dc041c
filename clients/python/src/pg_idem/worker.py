"""Workers: they take leased operations that others left, and finish them."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from typing import Any, Callable, Optional, Sequence

from . import core, flow
from .flow import Steps, log
from .lease import AsyncLease, Lease, LeaseBase, Taken

SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LEAST_WAIT = 0.1  # seconds between two calls that find nothing
# What waiting does not cure: of the scope, the tenant and the arguments, and of privileges.
_HOPELESS = ("ID007", "ID008", "ID013", "22", "42")


class WorkerBase:
    """Runs function(lease) for each operation of the scope that is due, and completes it with the
    result. The scope needs `store_request`, unless the function can do without the request.

    lease        how long the lease of an attempt is, in seconds; it is renewed
    tenant       only operations of this tenant
    records      the record table to take from, for scopes with `records`
    concurrency  how many operations run at a time
    wait         how long a call waits for an operation to be due, in seconds; stop() takes as long
    grace        how long stop() lets operations finish. Unfinished ones are left to others: at
                 once if they can be cancelled, else when their leases end.
    backoff      the first and the longest time after which a failed attempt is repeated
    """

    _stopping = False  # no Event, which a signal handler must not set

    def __init__(self, operations: Any, scope: str, function: Callable[[Any], Any], *,
                 lease: float = 60.0, tenant: str = core.UNSET, records: Optional[str] = None,
                 concurrency: int = 1, wait: float = 2.0, grace: float = 30.0,
                 backoff: tuple[float, float] = (1.0, 300.0)) -> None:
        self.operations, self.scope, self.function = operations, scope, function
        self.concurrency = core.count("concurrency", concurrency)  # with none, it takes nothing
        self.grace, self.backoff = grace, backoff
        self._take: dict[str, Any] = {
            "scope": core.text("scope", scope), "lease": core.seconds("lease", lease),
            "wait": core.seconds("wait", wait), **operations.place(tenant, records)}

    def _taken(self, kind: Callable[..., Any]) -> Steps[Optional[LeaseBase]]:
        """The lease of an operation that is due, or None."""
        sent = time.monotonic()
        row = yield from self.operations.single(core.chosen(core.TAKE, self._take), self._take)
        taken = Taken(*core.readable(row))
        if taken.token is None:
            return None
        request = None if taken.request is None else core.JsonText(taken.request)
        claim = {**self._take, "key": taken.key, "tenant": taken.tenant or None,
                 "began": sent}
        lease: LeaseBase = kind(self.operations, claim, request, backoff=self.backoff, retry=None)
        lease.interrupted = self._interrupted
        lease.hold(taken.token, taken.attempt, taken.recovery_state, sent)
        return lease

    def _interrupted(self) -> bool:
        """Whether the worker or what runs it has ended the work, and not the work itself, with a
        CancelledError or SystemExit of its own: this is a failed attempt."""
        return False

    def _failed(self, lease: LeaseBase, error: BaseException) -> None:
        log.warning("attempt %d of %s failed: %r", lease.attempt, lease.key, error)

    def _rest(self, sent: float) -> float:
        """The seconds to wait where nothing is due, if the server did not wait."""
        return max(0.0, sent + _LEAST_WAIT - time.monotonic())

    def _pause(self, error: Exception, failures: int) -> float:
        """The seconds to wait after the server could not be asked. Raises what waiting does not
        cure: an unknown scope, a missing privilege. A cancelled statement is no reason to end."""
        if (core.sqlstate(error) or "").startswith(_HOPELESS):
            raise error
        log.warning("could not take an operation of %s: %s", self.scope, error)
        return float(min(30.0, 0.1 * 2**min(failures, 64)))


class Worker(WorkerBase):
    __doc__ = WorkerBase.__doc__

    def run(self, signals: Sequence[signal.Signals] = SIGNALS) -> None:
        """Returns after stop(). In the main thread, the signals stop it as well."""
        handlers = {}
        if threading.current_thread() is threading.main_thread():
            handlers = {number: signal.signal(number, lambda *_: self.stop())
                        for number in signals}
        try:
            self._run()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def stop(self) -> None:
        """Takes no further operation. May be called from any thread."""
        self._stopping = True

    def _run(self) -> None:
        slots = threading.Semaphore(self.concurrency)
        try:
            self._take_all(slots)
        finally:
            last = time.monotonic() + self.grace
            for _ in range(self.concurrency):
                slots.acquire(timeout=max(0.0, last - time.monotonic()))

    def _take_all(self, slots: threading.Semaphore) -> None:
        failures = 0
        while not self._stopping:
            if not slots.acquire(timeout=0.1):
                continue
            lease, sent = None, time.monotonic()
            try:
                lease = flow.run(self._taken(Lease))
                pause, failures = self._rest(sent), 0
            except Exception as error:
                pause, failures = self._pause(error, failures), failures + 1
            finally:  # also after KeyboardInterrupt and SystemExit, which would wait for the slot
                if lease is None:
                    slots.release()
            if lease is None:
                self._sleep(pause)
            else:
                threading.Thread(target=self._work, args=(lease, slots), daemon=True,
                                 name=f"pg_idem worker of {self.scope}").start()

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._stopping and time.monotonic() < until:
            time.sleep(0.1)

    def _work(self, lease: Any, slots: threading.Semaphore) -> None:
        try:
            lease.run(self.function)
        except BaseException as error:
            self._failed(lease, error)
        finally:
            self.operations.thread_ends()
            slots.release()


_LISTENING: dict[int, list[AsyncWorker]] = {}  # a loop has one handler for each signal


def _stop_all(number: int) -> None:
    for worker in _LISTENING[number]:
        worker.stop()


def _is_free(number: int) -> bool:
    """Whether the worker may handle the signal, in whose place asyncio may have put itself."""
    if threading.current_thread() is not threading.main_thread():
        return False
    handler: Any = signal.getsignal(number)
    return bool(_LISTENING.get(number)) or handler in (
        signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler) or (
        getattr(getattr(handler, "func", None), "__module__", "") == "asyncio.runners")


class AsyncWorker(WorkerBase):
    """As Worker, for AsyncIdempotency and a coroutine function."""

    _ending = False

    async def run(self, signals: Sequence[signal.Signals] = SIGNALS) -> None:
        """Returns after stop(). In the main thread, the signals stop it as well, unless the process
        handles them itself: a server stops its workers when it shuts down."""
        handled = [number for number in signals if _is_free(number)]
        for number in handled:
            _LISTENING.setdefault(number, []).append(self)
            asyncio.get_running_loop().add_signal_handler(number, _stop_all, number)
        running: set[asyncio.Task[None]] = set()
        try:
            await self._run(running)
        finally:
            if running:
                await asyncio.wait(running, timeout=self.grace)
            for number in handled:
                _LISTENING[number].remove(self)
                if not _LISTENING[number]:
                    asyncio.get_running_loop().remove_signal_handler(number)
            self._ending = True
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running)

    def stop(self) -> None:
        """Takes no further operation. To be called in the thread of the event loop."""
        self._stopping = True

    async def _run(self, running: set[asyncio.Task[None]]) -> None:
        failures = 0
        while not self._stopping:
            if len(running) >= self.concurrency:
                await asyncio.wait(running, timeout=0.1, return_when=asyncio.FIRST_COMPLETED)
                continue
            sent = time.monotonic()
            try:
                lease = await flow.run_async(self._taken(AsyncLease))
                failures = 0
            except Exception as error:
                await self._sleep(self._pause(error, failures))
                failures += 1
                continue
            if lease is None:
                await self._sleep(self._rest(sent))
            else:
                task = asyncio.create_task(self._work(lease))
                running.add(task)
                task.add_done_callback(running.discard)

    async def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._stopping and time.monotonic() < until:
            await asyncio.sleep(0.1)

    async def _work(self, lease: Any) -> None:
        try:
            await lease.run(self.function)
        except BaseException as error:
            self._failed(lease, error)
            if isinstance(error, KeyboardInterrupt) or (
                    isinstance(error, asyncio.CancelledError) and self._interrupted()):
                raise

    def _interrupted(self) -> bool:
        asked = getattr(asyncio.current_task(), "cancelling", int)()  # since Python 3.11
        return self._ending or asked > 0
