"""For the caller of an HTTP API that honours the Idempotency-Key header."""

from __future__ import annotations

import asyncio
import http.client
import inspect
import logging
import random
import re
import time
import uuid
from email.utils import parsedate_to_datetime
from typing import Any, Awaitable, Callable, Mapping, Optional

from . import core, flow
from .core import Key, Retry

log = logging.getLogger("pg_idem")

# Statuses of services that may answer otherwise later. 409 is one of them if it says when.
LATER = {408, 425, 429, 500, 502, 503, 504, *range(520, 530)}  # the latter of proxies
# Errors of HTTP clients without an answer which are no OSError: of httpx and aiohttp.
LOST = {"TransportError", "ClientConnectionError", "ClientPayloadError"}

Headers = Mapping[str, str]


class Intent:
    """One thing that the caller wants to happen once, with one key for all requests that ask for
    it. Store `key` with the order before the first request; a process that is started again makes
    an Intent of the stored key.

    key        by default, a new UUIDv7
    retry      how often and how long to send the request again, as for Idempotency
    store      called with the key before the first request, unless it was given
    retention  how long the service keeps its answers, in seconds: a key that is older raises a
               StaleKey and is not sent. It must be a UUIDv7, which says how old it is.
    """

    def __init__(self, key: Optional[Key] = None, *, retry: Retry = Retry(),
                 store: Optional[Callable[[str], Any]] = None,
                 retention: Optional[float] = None) -> None:
        store = None if store is None else core.function("store", store)
        self.store = store if key is None else None
        self.key = core.key_text(new_key() if key is None else key)
        if not re.fullmatch("[ -~]{1,255}", self.key):  # what a header can carry
            raise ValueError("the key must have 1 to 255 characters of ASCII")
        self.retry = core.instance("retry", retry, Retry)
        self.retention = None if retention is None else core.seconds("retention", retention)
        if retention is not None:
            _time_of(self.key)

    @property
    def headers(self) -> dict[str, str]:
        quoted = self.key.replace("\\", "\\\\").replace('"', '\\"')
        return {"Idempotency-Key": f'"{quoted}"'}

    def send(self, send: Callable[[Headers], Any]) -> Any:
        """The response of send(headers), a function that sends the request with these headers. It
        is called again after a lost connection, a timeout, and statuses that may be others later,
        never sooner than Retry-After says. It should read the body, which may be cut or hang, too.
        It makes the body of the request anew: a file that it has read would be sent empty. Returns
        the last response, or raises the last error."""
        return flow.run(self._steps(send, time.sleep))

    async def send_async(self, send: Callable[[Headers], Awaitable[Any]]) -> Any:
        """As send(), for a coroutine function."""
        return await flow.run_async(self._steps(send, asyncio.sleep))

    def _steps(self, send: Callable[[Headers], Any],
               sleep: Callable[[float], Any]) -> flow.Steps[Any]:
        start, attempt = time.monotonic(), 1
        if self.store is not None:
            stored = self.store(self.key)
            if inspect.isawaitable(stored) and (yield stored) is stored:  # send() awaits nothing
                if inspect.iscoroutine(stored):
                    stored.close()
                raise TypeError("store is a coroutine function, which needs send_async()")
            self.store = None
        while True:
            response, lost = None, None
            if self.retention is not None and time.time() - _time_of(self.key) > self.retention:
                raise core.StaleKey("ID010", f'key "{self.key}" is too old for the service')
            try:
                response = yield send(self.headers)
                _require_response(response)
                after = retry_after(response)
                _require_same_method(response)
            except Exception as error:
                lost, answer = error, _answer_of(error)
                after = _no_answer(error) if answer is None else retry_after(answer)
            pause = None if after is None or attempt >= self.retry.attempts else (
                self.retry.within(after, attempt, time.monotonic() - start))
            if pause is None:
                if lost:
                    raise lost
                return response
            log.info("attempt %d of %s failed, retrying in %.3f s: %s", attempt, self.key, pause,
                     lost or status_of(response))
            yield sleep(pause)
            attempt += 1


def new_key() -> uuid.UUID:
    """A UUIDv7: services can see how old it is."""
    value = int(1000 * time.time()) << 80 | random.SystemRandom().getrandbits(80)
    return uuid.UUID(int=value & ~(0xF << 76 | 3 << 62) | 7 << 76 | 2 << 62)


def _time_of(key: str) -> float:
    if not re.fullmatch("[0-9a-f]{8}-[0-9a-f]{4}-7.*", key, re.I):
        raise ValueError(f'key "{key}" does not say how old it is: it is no UUIDv7')
    return (uuid.UUID(key).int >> 80) / 1000


def _require_response(response: Any) -> None:
    if not _is_response(response):
        if inspect.iscoroutine(response):  # so that Python does not warn of it, too
            response.close()
        raise TypeError("the function must return a response with a status (an int) and headers, or"
                        f" be a coroutine function for send_async(), not {response!r}")


def _is_response(value: Any) -> bool:
    return isinstance(status_of(value), int) and hasattr(getattr(value, "headers", None), "get")


def _require_same_method(response: Any) -> None:
    """A client may have followed a redirect with GET, and what it got is no answer."""
    asked: Any = getattr(getattr(response, "request", response), "method", None)
    sent = {getattr(getattr(before, "request", before), "method", None)
            for before in getattr(response, "history", ())}
    if getattr(response, "_method", None) == "GET":  # of urllib, which keeps no history
        asked, sent = "GET", {"POST"}
    if sent - {asked}:
        raise RuntimeError(f"a redirect has turned {sent.pop()} into {asked}: send the request"
                           " without following redirects, or to where it leads")


def status_of(response: Any) -> Optional[int]:
    """The status of a response of requests, httpx, aiohttp or urllib."""
    status = getattr(response, "status_code", None) or getattr(response, "status", None)
    return status or getattr(response, "code", None)


def retry_after(response: Any) -> Optional[float]:
    """The seconds after which to send the request again; None if the response is final."""
    status, after = status_of(response), _seconds(response.headers.get("Retry-After"))
    if status in LATER:
        return after or 0.0
    return after if status == 409 else None


def _seconds(value: Optional[str]) -> Optional[float]:
    if value is None:
        return None
    if value.strip().isdecimal():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


def _answer_of(error: Exception) -> Any:
    """The response, of clients that raise it: urllib, and raise_for_status() of others."""
    answer = error if hasattr(error, "code") else getattr(error, "response", None)
    return answer if _is_response(answer) else None


def _no_answer(error: Exception) -> Optional[float]:
    lost = isinstance(error, (OSError, http.client.HTTPException, asyncio.TimeoutError)) or any(
        base.__name__ in LOST for base in type(error).__mro__)
    return 0.0 if lost else None
