"""The IETF draft of the Idempotency-Key header, for the integrations of frameworks.

They work at the route, behind authentication. The claim is made when the handler is about to run,
and its answer is stored in the transaction of its effect, which is committed before a byte leaves:

- status below 400, or one of `final_statuses`: stored, and replayed to every retry. From 400 on,
  the effect is undone first.
- any other status, or an exception: the transaction is rolled back, nothing is stored, and the key
  stays unused.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import gc
import hashlib
import json
import math
import re
import time
import uuid
import zlib
from dataclasses import dataclass, field
from decimal import Decimal
from email.utils import format_datetime
from enum import Enum
from http import HTTPStatus
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Callable, Collection, Iterable, Optional, Sequence, Union
from urllib.parse import parse_qsl

from . import core
from .core import Answer, Failure, Headers, JsonText, NotStored, Refused, Retry
from .flow import Operations, Steps, log

# Headers that concern one connection, one moment or one client's session.
NEVER_STORED = frozenset("""
    age alt-svc authentication-info authorization connection content-length cookie date
    idempotency-expires idempotent-replayed keep-alive proxy-authenticate proxy-authentication-info
    proxy-authorization proxy-connection server set-cookie te trailer transfer-encoding upgrade
    via www-authenticate""".split())

# The client has the key, so it retries what idem refuses. A database error is retried here.
RETRY = Retry(attempts=3, deadline=5.0, refusals=False)
NO_RETRY = Retry(attempts=1)  # without a key, a lost COMMIT must not be repeated

SAFE = ("GET", "HEAD", "OPTIONS", "TRACE")  # these methods have no effect to protect
MULTIPART, URLENCODED = "multipart/form-data", "application/x-www-form-urlencoded"


@dataclass
class Response:
    status: int
    headers: list[tuple[str, str]]
    body: bytes
    native: Any = None  # that of the framework, for a first answer
    raised: bool = False  # an exception that the application has turned into an answer
    undone: bool = False  # that of NotStored
    document: Optional[dict[str, Any]] = None  # of an error of idem


@dataclass
class Route:
    """The arguments of idempotent(), in all frameworks.

    idempotency      runs the operations: the class for your driver
    scope            the scope, or a function of the request that chooses it
    tenant           a function of the request: the authenticated client, whose keys they are. It
                     must return text. None: all clients share their keys
    key_from         where the key is, if not in the header Idempotency-Key: the path of a member of
                     the body, such as "meta.idempotency_key", or a function of the request and the
                     body, which returns None if there is no key
    key_required     refuse requests without a key (400); otherwise they run without one
    final_statuses   the statuses from 400 on that are stored, such as 402
    store_if         a function of the handler's response, no coroutine: True if it is to be stored,
                     below 400. If False, it is sent, and its effect is rolled back: for errors
                     inside of a 200
    never_stored     headers that are not stored, besides http.NEVER_STORED
    include_headers  the only headers that are stored, beside Content-Type; by default, all others
    send_retention   send the header Idempotency-Expires: until when the answer is kept
    max_body         the longest request, in bytes
    problem          a function of a problem document: the response of the framework to send in its
                     place, for formats of your own
    documentation    where your clients read about errors: a URL to which these link
    """

    idempotency: Operations[Any]
    scope: Union[str, Callable[[Any], str]]
    tenant: Optional[Callable[..., Any]]
    key_required: bool = True
    key_from: Union[str, Callable[[Any, bytes], Optional[str]], None] = None
    final_statuses: Collection[int] = ()
    store_if: Callable[[Any], bool] = lambda response: True
    never_stored: Collection[str] = ()
    include_headers: Optional[Collection[str]] = None
    send_retention: bool = False
    max_body: int = 16 << 20
    problem: Optional[Callable[[dict[str, Any]], Any]] = None
    documentation: Optional[str] = None

    def __post_init__(self) -> None:
        if not callable(self.scope):
            core.text("scope", self.scope)
        if not (self.tenant is None or callable(self.tenant)):
            raise TypeError("tenant must be a function, or None for keys that all clients share")
        core.function("store_if", self.store_if)
        core.count("max_body", self.max_body, least=0)
        for name in ("key_required", "send_retention"):
            core.instance(name, getattr(self, name), bool)
        if self.problem is not None:
            core.function("problem", self.problem)
        if not (self.key_from is None or callable(self.key_from)):
            core.text("key_from", self.key_from)
        self._links = [] if self.documentation is None else [
            ("Link", f'<{self.documentation}>; rel="describedby"')]
        for link in self._links:
            core.header(*link)
        core.listed("final_statuses", self.final_statuses, int)
        self._denied = NEVER_STORED | _names("never_stored", self.never_stored)
        self._allowed = None if self.include_headers is None else {  # the type belongs to the body
            "content-type", *_names("include_headers", self.include_headers)}

    def kept(self, response: Any) -> bool:
        """What store_if says. A coroutine would always be true, and a forgotten `return` false."""
        kept = self.store_if(response)
        if not isinstance(kept, bool):
            raise TypeError(f"store_if must return True or False, not {type(kept).__name__}")
        return kept

    def stores(self, header: str) -> bool:
        return header.lower() not in self._denied and (
            self._allowed is None or header.lower() in self._allowed)

    def problem_of(self, error: BaseException, status: Optional[int] = None) -> Response:
        """A problem document (RFC 9457). The client does not get messages of internal errors."""
        code = "ID003" if isinstance(error, Failure) else core.sqlstate(error) or "08006"
        known = core.known(code)
        status = status or known.status
        kind = f"urn:idem:problem:{known.name}" if known.name else "about:blank"
        document = {"type": kind, "title": known.title or phrase(status), "status": status,
                    "sqlstate": code}
        if status < 500:
            document["detail"] = str(error)
        after = core.retry_after(error)
        if after is None and status == 503:
            after = 1
        return self._json(document, [] if after is None else [
            ("Retry-After", str(max(1, math.ceil(after))))])

    def formatted(self, response: Response, made_of: Callable[[Any], Any] = lambda made: made
                  ) -> Any:
        """The response of the framework to send instead of a problem document, if there is one."""
        if not (response.document and self.problem):
            return None
        made = made_of(self.problem(response.document))
        for name, value in response.headers:
            if name in ("Retry-After", "Link"):
                made.headers[name] = value
        return made

    def too_large(self) -> Response:
        return self._json({"type": "about:blank", "title": "Content Too Large", "status": 413,
                           "detail": f"the request has more than {self.max_body} bytes"})

    def _json(self, document: dict[str, Any], more: Sequence[tuple[str, str]] = ()) -> Response:
        body = json.dumps(document).encode()
        headers = [("Content-Type", "application/problem+json"),
                   ("Content-Length", str(len(body))), *more, *self._links]
        return Response(document["status"], headers, body, document=document)


class Initial:
    """What a request holds before its first attempt. `states` are the dicts that a handler may
    change. They are copied with the objects in them, such as the user, except for those `shared`.
    What cannot be copied cannot be restored, nor can changes of what is `lasting`: others know it
    and would not see those of a copy."""

    def __init__(self, states: Sequence[dict[str, Any]], shared: Iterable[Any],
                 lasting: Iterable[Any] = ()) -> None:
        self._states, self._shared = states, {id(each): each for each in shared}
        self._found: Optional[list[dict[str, Any]]] = None
        if all(map(_is_constant, lasting)) and self._is_data():
            with contextlib.suppress(Exception):
                self._found = self._copy_of(states)

    @property
    def copied(self) -> bool:
        return self._found is not None

    def restore(self) -> None:
        assert self._found is not None
        plain: Any = dict  # whose methods do not mark a session as modified
        for state, found in zip(self._states, self._copy_of(self._found)):
            plain.clear(state)
            plain.update(state, found)

    def _copy_of(self, states: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return copy.deepcopy([dict.copy(state) for state in states], dict(self._shared))

    def _is_data(self) -> bool:
        """False for what owns a resource, for rows of a Session of SQLAlchemy, for arrays, and for
        more objects than should be copied for each request."""
        seen, unseen = set(self._shared), [each for state in self._states
                                           for each in dict.values(state)]
        while unseen and len(seen) <= _MOST_OBJECTS:
            each = unseen.pop()
            kind = type(each)
            if id(each) in seen or issubclass(kind, _NEVER_COPIED):
                continue
            if any(hasattr(kind, name) for name in ("__del__", "_sa_class_manager", "__array__")):
                return False
            seen.add(id(each))
            unseen.extend(gc.get_referents(each))
        return not unseen


_MOST_OBJECTS = 10_000
_NEVER_COPIED = (type, FunctionType, BuiltinFunctionType, ModuleType)
_CONSTANT = (*_NEVER_COPIED, str, bytes, int, float, complex, type(None), Decimal, uuid.UUID, Enum,
             datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo)


def _is_constant(value: Any) -> bool:
    return isinstance(value, _CONSTANT) or (
        type(value) in (tuple, frozenset) and all(map(_is_constant, value)))


def states_of(session: Any) -> list[dict[str, Any]]:
    """The items and the attributes of a session, which stays the object that others know."""
    return [state for state in (session, getattr(session, "__dict__", None))
            if isinstance(state, dict)]


@dataclass(frozen=True)
class _Repeat(Retry):
    """As long as the handler can be run again. Else the client repeats the request."""

    exchange: Optional[Exchange] = None

    def pause(self, error: BaseException, attempt: int, elapsed: float) -> Optional[float]:
        exchange = self.exchange
        if exchange and exchange.attempts and exchange.initial and not exchange.initial.copied:
            return None
        return super().pause(error, attempt, elapsed)


@dataclass
class Exchange:
    """One request, and what becomes of it."""

    route: Route
    method: str
    path: str
    query: str
    body: bytes
    content_type: str = ""
    content_encoding: str = ""
    form: Optional[Sequence[tuple[str, Any]]] = None  # its fields: values, or files as of file()
    length: int = 0  # of the body, as the client says
    states: Sequence[dict[str, Any]] = ()  # with those shared, as of Initial
    shared: Sequence[Any] = ()
    initial: Optional[Initial] = None  # since the first attempt, or before
    attempts: int = field(default=0, init=False)
    # Of the attempt that is running, or that has been committed.
    response: Optional[Response] = field(default=None, init=False)

    def __post_init__(self) -> None:
        if not self.form and len(self.body) < self.length:
            raise RuntimeError("the body was read before, and cannot be bound to the key")

    def key(self, headers: Sequence[str], request: Any) -> Optional[str]:
        """The key of the request, whose Idempotency-Key headers are given."""
        source = self.route.key_from
        if source is None:
            key = parse_key(headers)
            if key is None and headers:  # a client that has forgotten its key
                raise Refused("ID007", "header Idempotency-Key is empty")
        else:
            content = self.content()
            key = source(request, content) if callable(source) else member(content, source)
            if isinstance(key, uuid.UUID):
                key = str(key)
            if key is not None and not (isinstance(key, str) and 1 <= len(key) <= 255
                                        and not re.search("[\0\ud800-\udfff]", key)):
                raise Refused("ID007", "the key must be a string of 1 to 255 characters")
        if key is None and self.route.key_required:
            where = f"member {source}" if isinstance(source, str) else (
                "key" if source else "header Idempotency-Key")
            raise Refused("ID007", f"{where} is missing")
        return key

    def content(self) -> bytes:
        return _decoded(self.body, self.content_encoding, self.route.max_body)

    def request(self) -> JsonText:
        """What is bound to the key: all that the handler can read of the content. JSON counts by
        value, a form by its fields and files, and anything else byte by byte."""
        media, *parameters = [part.strip().lower() for part in self.content_type.split(";")]
        bound: dict[str, Any] = {"method": self.method, "path": self.path, "query": self.query}
        charset = [part for part in parameters
                   if re.fullmatch('charset="?(?!utf-8"?$).*', part)] if media != MULTIPART else []
        if media != "application/json" or charset:
            bound["type"] = ";".join([media, *charset])
        content = self.content()
        form = None if self.body and not self.form else self.form  # what no parser could read
        if form is None and media == URLENCODED:  # one character per byte
            form = parse_qsl(content.decode("latin-1"), keep_blank_values=True, encoding="latin-1")
        if form is not None:
            bound["form"] = {name: [] for name, _ in form}
            for name, value in form:
                bound["form"][name].append(value)
            return JsonText(json.dumps(bound))
        if (media == "application/json" or media.endswith("+json")) and _is_json(content):
            return JsonText(f'{json.dumps(bound)[:-1]}, "body": {content.decode()}}}')
        return JsonText(json.dumps({**bound, "sha256": hashlib.sha256(content).hexdigest()}))

    def attempt(self, call: Callable[[Any], Any], connection: Any) -> Steps[Answer[Any]]:
        """The answer of the handler to store."""
        self.response = None  # that of the attempt before was rolled back
        if self.initial is None:
            self.initial = Initial(self.states, self.shared)
        elif self.attempts:
            self.initial.restore()
        self.attempts += 1
        try:
            return self.judge((yield call(connection)))
        except Failure as failure:
            raise core.as_own(self.failed(failure))
        except Refused as refused:  # the client knows nothing of an operation inside of its own
            raise RuntimeError("an inner operation") from refused

    def judge(self, response: Response) -> Answer[Any]:
        """The answer to store. Raises Failure or NotStored if the effect must not stay."""
        self.response = response
        for name, value in response.headers:
            core.header(name, value)  # also those that are only sent
        if response.undone:
            raise NotStored(response)
        if response.status >= 400 and response.status in self.route.final_statuses:
            failure = Failure(phrase(response.status), headers=self.stored(response.headers),
                              body=response.body)
            failure.status = response.status  # which the service has declared to be final
            raise failure
        if response.status >= 400 or response.raised or not self.route.kept(response.native):
            raise NotStored(response)
        return Answer(None, response.status, self.stored(response.headers), response.body)

    def outcome(self, answer: Any) -> Response:
        """The response to an Answer or a Failure."""
        retention = [] if not (self.route.send_retention and answer.expires) else [
            ("Idempotency-Expires", format_datetime(answer.expires, usegmt=True))]
        if not answer.replayed and self.response:
            self.response.headers.extend(retention)
            return self.response
        headers, body = core.header_list(answer.headers or {}), answer.body
        if isinstance(answer, Failure):
            status = answer.status or 409
            if body is None:
                response = self.route.problem_of(answer, status)
                headers, body = _without(headers, "content-type") + response.headers, response.body
        else:
            status = answer.status or 200
            if body is None and answer.response is None:  # nothing was stored, or it was erased
                body = b""
            elif body is None:  # stored by a caller that does not speak HTTP
                body = json.dumps(answer.response).encode()
                if not any(name.lower() == "content-type" for name, _ in headers):
                    headers.append(("Content-Type", "application/json"))
        headers = _without(headers, "content-length") + retention
        if status >= 200 and status not in (204, 304):
            headers.append(("Content-Length", str(len(body))))
        if answer.replayed:
            headers.append(("Idempotent-Replayed", "true"))
        return Response(status, headers, body)

    def stored(self, headers: Iterable[tuple[str, str]]) -> Headers:
        """The headers that may be stored. A header that is sent several times is a list."""
        values: dict[str, list[str]] = {}
        for name, value in headers:
            if self.route.stores(name):
                values.setdefault(name, []).append(value)
        return {name: several if len(several) > 1 else several[0]
                for name, several in values.items()}

    def failed(self, failure: Failure) -> Failure:
        """The failure that a handler has raised, with the headers that may be stored."""
        failure.headers = self.stored(core.header_list(failure.headers or {}))
        return failure


# A string of RFC 8941 with its parameters, which have no meaning yet.
_STRING = r'"(?:[ !#-\[\]-~]|\\["\\])*"'
_VALUE = "|".join((_STRING, r"-?(?:[0-9]{1,12}\.[0-9]{1,3}|[0-9]{1,15})", r":[A-Za-z0-9+/=]*:",
                   r"[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]*", r"\?[01]"))
_QUOTED = re.compile(rf"({_STRING})(?:; *[a-z*][a-z0-9_.*-]*(?:=(?:{_VALUE}))?)*")
_TOKEN = re.compile(r"[!#-+\--:<-~]+")  # no space and none of " , ;


def parse_key(values: Sequence[str]) -> Optional[str]:
    """The key in the Idempotency-Key headers of a request, as idem.parse_key() reads it: a string
    as in RFC 8941, or a bare token, which many clients send. None if there is no header, or an
    empty one."""
    if len(values) > 1:
        raise Refused("ID007", "more than one Idempotency-Key")
    value = values[0].strip(" \t") if values else ""
    if not value:
        return None
    quoted = _QUOTED.fullmatch(value)
    if not quoted and not _TOKEN.fullmatch(value):
        raise Refused("ID007", "Idempotency-Key must be a string in double quotes, or a token")
    key = re.sub(r"\\(.)", r"\1", quoted[1][1:-1]) if quoted else value
    if not 1 <= len(key) <= 255:
        raise Refused("ID007", "Idempotency-Key must have 1 to 255 characters")
    return key


def member(body: bytes, path: str) -> Any:
    """The member of a JSON body with a path such as "meta.idempotency_key"; else None."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def respond(exchange: Exchange, keys: Sequence[str], request: Any,
            call: Callable[[Any], Any], tenant: Any = None) -> Steps[Response]:
    """The response to a request. `keys` are its Idempotency-Key headers, and `call` is the handler,
    on a connection."""
    route = exchange.route
    idempotency, key, scope, began = route.idempotency, None, route.scope, time.monotonic()

    def work(connection: Any) -> Steps[Answer[Any]]:
        return exchange.attempt(call, connection)

    if len(exchange.body) > route.max_body:
        return route.too_large()
    if route.tenant is not None:  # an error here is one of the service
        tenant = core.tenant_text(route.tenant(request) if tenant is None else tenant)
    scope = core.text("scope", scope(request)) if callable(scope) else scope
    try:
        key = exchange.key(keys, request)
        if key is None:
            exchange.states = ()  # there is one attempt
            return exchange.outcome(
                (yield from idempotency.transaction_steps(work, retry=NO_RETRY)))
        bound = exchange.request()  # of bytes, which each attempt parses anew
        answer = yield from idempotency.run_steps(
            scope, key, lambda: bound, work, retry=_Repeat(**vars(RETRY), exchange=exchange),
            tenant=core.UNSET if tenant is None else tenant, expires=route.send_retention)
        if isinstance(answer.response, Response):  # it was rolled back
            return answer.response
        return exchange.outcome(answer)
    except NotStored as rolled_back:
        return rolled_back.response  # type: ignore[no-any-return]
    except Failure as failed:
        return exchange.outcome(failed)
    except Refused as refused:
        if key is None:  # else it is reported by now
            idempotency.report({"scope": scope, "key": None, "tenant": tenant, "began": began},
                               core.event_of(refused), refused)
        if core.known(refused.sqlstate).status >= 500:  # the service's fault
            raise
        return route.problem_of(refused)
    except Exception as error:
        if key is None or not is_unavailable(error):  # without a key, do not ask to retry
            raise
        log.error("the database did not run an operation of %s: %s", scope, error)
        return route.problem_of(error, 503)


def is_unavailable(error: BaseException) -> bool:
    """Whether the database could not do it now, as opposed to an error of the application."""
    return core.is_transient(error) or core.known(core.sqlstate(error) or "").status == 503


def read(stream: Any, limit: int) -> bytes:
    """What is in the stream, or the beginning of what is longer than the limit."""
    body = bytearray()
    while len(body) <= limit:
        chunk = stream.read(limit + 1 - len(body))
        if not chunk:
            break
        body += chunk
    return bytes(body)


def phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _names(what: str, names: Any) -> set[str]:
    return {name.lower() for name in core.listed(what, names, str)}


def _without(headers: list[tuple[str, str]], unwanted: str) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers if name.lower() != unwanted]


def file(name: Optional[str], content_type: Optional[str],
         chunks: Iterable[bytes]) -> dict[str, Any]:
    """A file of a form."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return {"file": name, "type": content_type, "sha256": digest.hexdigest()}


def _decoded(body: bytes, encoding: str, limit: int) -> bytes:
    """Without the compression of the client, which may differ in a retry; else as it is."""
    if encoding.strip().lower() not in ("gzip", "x-gzip", "deflate"):
        return body
    decoder = zlib.decompressobj(47)
    try:
        content = decoder.decompress(body, limit + 1)
    except zlib.error:
        return body
    return content if decoder.eof and not decoder.unused_data else body


def _is_json(body: bytes) -> bool:
    try:
        json.loads(body.decode(), parse_constant=_refuse, parse_float=str, parse_int=str)
        return True
    except (ValueError, RecursionError):
        return False


def _refuse(constant: str) -> None:  # NaN and Infinity, which are not JSON
    raise ValueError(constant)
