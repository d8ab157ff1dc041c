"""Requests to the service under test, and a record of what was sent and answered."""

import contextlib
import http.client
import json
import time
import urllib.parse
import uuid

PATIENCE = 30.0  # seconds for an answer, retries included


class Broken(Exception):
    """The service does not keep a sentence of the contract."""


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def header(self, name):
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    @property
    def replayed(self):
        return self.header("idempotent-replayed") == "true"

    @property
    def members(self):
        """Those of a body that is a JSON object."""
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError):
            value = None
        return value if isinstance(value, dict) else {}

    @property
    def pause(self):
        """The seconds of Retry-After, or what the contract says for an answer without it."""
        after = self.header("retry-after") or ""
        return int(after) if after.isdecimal() else 0.1

    @property
    def unfinished(self):
        """Whether the contract asks to retry: in progress, or temporarily unavailable."""
        return self.status == 503 or self.status == 409 and (
            str(self.members.get("type")).endswith("in_progress"))


def new_key():
    return f'"{uuid.uuid4()}"'


class Session:
    """What one case says to the service. A client is a number: 0 and 1 are known to the service,
    and None is not."""

    def __init__(self, url, clients):
        self.url, self.clients = urllib.parse.urlsplit(url), clients
        self.exchanges = []

    def connection(self, timeout=PATIENCE):
        kind = (http.client.HTTPSConnection if self.url.scheme == "https"
                else http.client.HTTPConnection)
        return kind(self.url.netloc, timeout=timeout)

    def begin(self, connection, method, path, headers, body):
        """Sends the head of a request, and notes it."""
        connection.putrequest(method, self.url.path.rstrip("/") + path, skip_accept_encoding=True)
        for name, value in headers:
            connection.putheader(name, value if isinstance(value, bytes) else value.encode())
        connection.endheaders()
        self.exchanges.append([f"{method} {path}", headers, body, "no answer"])
        return self.exchanges[-1]

    def head(self, key, body, client, content_type, headers):
        of_client = [] if client is None else [("Authorization", self.clients[client])]
        keys = [] if key is None else [key] if isinstance(key, (str, bytes)) else key
        return [*of_client, *(("Idempotency-Key", each) for each in keys),
                ("Content-Type", content_type), *headers, ("Content-Length", str(len(body)))]

    def post(self, key, body, *, path="/operations", client=0, content_type="application/json",
             headers=(), chunked=False):
        """The answer to one request."""
        body = encoded(body)
        head = self.head(key, body, client, content_type, headers)
        if chunked:
            head[-1] = ("Transfer-Encoding", "chunked")
        with contextlib.closing(self.connection()) as connection:
            noted = self.begin(connection, "POST", path, head, body)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has answered
                for part in halves(body) if chunked else [body]:
                    connection.send(b"%x\r\n%s\r\n" % (len(part), part) if chunked else part)
                if chunked:
                    connection.send(b"0\r\n\r\n")
            return self.read(connection, noted)

    def get(self, path, *, method="GET", client=0, key=None):
        with contextlib.closing(self.connection()) as connection:
            head = self.head(key, b"", client, "application/json", [])[:-2]
            noted = self.begin(connection, method, path, head, b"")
            return self.read(connection, noted)

    def read(self, connection, noted):
        with connection.getresponse() as response:
            noted[3] = Answer(response.status, response.getheaders(), response.read())
        return noted[3]

    def cut(self, key, body, *, path="/operations", sent=None, after=0.0):
        """Sends `sent` bytes of the body, and closes the connection after so many seconds."""
        body = encoded(body)
        with contextlib.closing(self.connection()) as connection, contextlib.suppress(OSError):
            self.begin(connection, "POST", path, self.head(key, body, 0, "application/json", []),
                       body)
            connection.send(body[:sent])
            time.sleep(after)

    def until_answered(self, key, body, **options):
        """Sends the request as the contract asks a client to."""
        return patient(lambda: self.post(key, body, **options), lambda answer: answer.unfinished)

    def effects(self, name, client=0):
        """How many effects of this name the service has."""
        answer = patient(lambda: self.get(f"/operations/{name}", client=client),
                         lambda answer: answer.status == 503)
        if answer.status != 200 or not isinstance(answer.members.get("effects"), int):
            raise Broken('reading back must answer 200 with {"effects": N}')
        return answer.members["effects"]


def patient(request, is_unfinished):
    """Sends a request again, no sooner than the answer asks for, as long as it is unfinished."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            answer = request()
            if not is_unfinished(answer):
                return answer
            pause = answer.pause
        except (OSError, http.client.HTTPException):
            pause = 0.1
        if time.monotonic() + pause > end:
            raise Broken(f"there is no answer within {PATIENCE:.0f} seconds")
        time.sleep(pause)


def encoded(body):
    if isinstance(body, (dict, list)):
        body = json.dumps(body)
    return body.encode() if isinstance(body, str) else body


def halves(body):
    return [part for part in (body[:len(body) // 2], body[len(body) // 2:]) if part]
