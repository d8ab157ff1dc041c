"""A service that keeps its operations in memory, for the test of the suite: memory.py PORT [FAULT].
Without a fault it keeps the contract. Each fault is a mistake that services make."""

import decimal
import email
import hashlib
import json
import re
import secrets
import sys
import threading
import time
import uuid
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# What each fault breaks: the beginning of a sentence.
FAULTS = {
    "no keys": "Every later request with the same key gets the same status",
    "first wins late": "Every later request with the same key gets the same status",  # no lock
    "no header": "Every later request with the same key gets the same status",
    "headers are lost": "Every later request with the same key gets the same status",
    "always 200": "Every later request with the same key gets the same status",
    "serialised again": "Every later request with the same key gets the same status",
    "all headers bound": "Every later request with the same key gets the same status",
    "GET is stored": "Send this header with every `POST`.",
    "key is cut": "Its value is a string of 1 to 255 bytes",
    "key is lower case": "Its value is a string of 1 to 255 bytes",
    "key is a UUID": "Its value is a string of 1 to 255 bytes",
    "key is trimmed": "Its value is a string of 1 to 255 bytes",
    "one operation per request": "The first request with a key is carried out.",
    "bytes bound": "The order of members, white space",
    "JSON as numbers of a double": "Everything else matters",
    "items sorted": "Everything else matters",
    "body not bound": "Everything else matters",
    "path not bound": "Everything else matters",
    "null is absent": "Everything else matters",
    "boundary bound": "A form is the same if",
    "only JSON bound": "A form is the same if",
    "nothing may differ": "*The members `sent_at`",
    "clients share keys": "Keys belong to your account",
    "tenant of a header": "**Use the authenticated client as the tenant**",
    "replay before authentication": "**Authenticate and validate before you claim.**",
    "errors are text": "Errors are `application/problem+json` documents",
    "errors have one type": "The member `status` distinguishes them",
    "key is made": "**Never create a key for a request that has none.**",
    "first of two keys": "- **400** `urn:idem:problem:invalid_key`",
    "invalid is stored": "- **400** `about:blank`",
    "no Retry-After": "- **409** `urn:idem:problem:in_progress`",
    "failures are tried again": "- **409** `urn:idem:problem:key_failed`",
    "old keys are new": "- **412** `urn:idem:problem:stale_key`",
    "conflict is 409": "- **422** `urn:idem:problem:key_conflict`",
    "no limit": "- **429** `urn:idem:problem:limit_exceeded`",
    "unavailable is 500": "- **503** `about:blank`",
    "errors are stored": "- **500**: an internal error.",
    "claims before it reads": "- **No answer** (timeout or lost connection)",
    "effect stays": "**Use one transaction** from `claim` to COMMIT.",
    "no retries": "**Retry short-lived errors in the service**",
    "messages are sent": "Do not send the messages of 500 errors",
    "declined is tried again": "A failure that must not be tried again",
}
FAULT = None
CLIENTS = {"Bearer ann": "ann", "Bearer bob": "bob"}
lock = threading.Condition()
records, effects, tries, limited = {}, [], {}, {}


class Problem(Exception):
    def __init__(self, status, kind=None, after=None):
        super().__init__(status)
        self.status, self.kind, self.after = status, kind, after


def key_of(headers):
    if FAULT == "first of two keys":
        headers = headers[:1]
    if len(headers) == 1:
        header = headers[0].strip(" \t")
        string = re.fullmatch(r'"((?:[ !#-\[\]-~]|\\["\\])*)"', header)
        key = re.sub(r"\\(.)", r"\1", string[1]) if string else ""
        if 1 <= len(key) <= 255:
            return key
        if FAULT == "key is cut" and key:
            return key[:200]
    if FAULT == "key is made" and len(headers) < 2:
        return str(uuid.uuid4())
    raise Problem(400, "invalid_key")


def changed(key):
    """The key, as a service with a fault stores it."""
    if FAULT == "key is a UUID":
        try:
            return str(uuid.UUID(key))
        except ValueError:
            return key
    return {"key is cut": key[:250], "key is lower case": key.lower(),
            "key is trimmed": key.strip()}.get(FAULT, key)


def refuse(constant):
    raise ValueError(constant)


def canonical(value):
    if isinstance(value, dict):
        members = sorted(value.items())
        if FAULT == "null is absent":
            members = [(name, inner) for name, inner in members if inner is not None]
        return "{%s}" % ",".join(f"{json.dumps(n)}:{canonical(v)}" for n, v in members)
    if isinstance(value, list):
        items = [canonical(item) for item in value]
        return "[%s]" % ",".join(sorted(items) if FAULT == "items sorted" else items)
    if isinstance(value, decimal.Decimal):
        return str(float(value) if FAULT == "JSON as numbers of a double" else value.normalize())
    return json.dumps(value)


decimal.getcontext().prec = 1000


def bound_json(content):
    value = json.loads(content, parse_int=decimal.Decimal, parse_float=decimal.Decimal)
    if isinstance(value, dict) and FAULT != "nothing may differ":
        value.pop("sent_at", None)
        if isinstance(value.get("meta"), dict):
            value["meta"].pop("trace_id", None)
            if not value["meta"]:
                del value["meta"]
    return canonical(value)


class Service(BaseHTTPRequestHandler):
    def log_message(self, *message):
        pass

    def send(self, answer):
        status, kind, body, more = answer
        if FAULT == "nonsense":  # which no case may stumble over
            body = b"[[]]"
        self.send_response(status)
        for name, value in (("Content-Type", kind), ("Content-Length", str(len(body))), *more):
            if status != 204 or name.startswith("Idem"):
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def client(self):
        if self.headers.get("Authorization") not in CLIENTS:
            raise Problem(401)
        return CLIENTS[self.headers["Authorization"]]

    def problem(self, problem, message=""):
        kind = "urn:idem:problem:" + problem.kind if problem.kind else "about:blank"
        if FAULT == "errors have one type":
            kind = "about:blank"
        document = {"type": kind, "status": problem.status, "detail": message}
        more = [("Retry-After", str(problem.after))] if problem.after else []
        return (problem.status, "text/plain" if FAULT == "errors are text" else
                "application/problem+json", json.dumps(document).encode(), more)

    def do_HEAD(self):
        name = self.path.rsplit("/", 1)[-1]
        key = ("GET", self.headers.get("Idempotency-Key"))
        with lock:
            number = sum(effect[:2] == (name, self.client()) for effect in effects)
        answer = 200, "application/json", json.dumps({"effects": number}).encode(), []
        if FAULT == "GET is stored" and key[1]:
            answer = records.setdefault(key, answer)
        self.send(answer)

    do_GET = do_HEAD

    def body(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            if len(body) < length:
                if FAULT == "claims before it reads":
                    self.answer(b"{}")
                raise ConnectionError
            return body
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        return body

    def do_POST(self):
        try:
            self.send(self.answer(self.body()))
        except ConnectionError:
            pass
        except Problem as problem:
            self.send(self.problem(problem))

    def bound(self, body, media):
        """What is bound to the key, and the members of the request."""
        path, _, query = self.path.partition("?")
        members = {"id": query[3:]} if path == "/documents" else {}
        where = () if FAULT == "path not bound" else (path, query)
        if FAULT == "all headers bound":
            where += tuple(self.headers.items())
        if media == "multipart/form-data":
            parts = email.message_from_bytes(
                f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode() + body)
            fields = [(part.get_param("name", header="content-disposition"), part.get_filename(),
                       part.get_payload(decode=True)) for part in parts.get_payload()]
            members = {name: content if file else content.decode()
                       for name, file, content in fields}
            bound = body if FAULT == "boundary bound" else fields
        else:
            if self.headers.get("Content-Encoding") == "gzip":
                body = zlib.decompress(body, 47)
            bound = (media, body)
            if media == "application/json":
                try:
                    if path != "/documents":
                        members = json.loads(body.decode(), parse_constant=refuse)
                        if not (isinstance(members, dict) and isinstance(members.get("id"), str)):
                            raise Problem(400)
                    bound = (media, bound_json(body))
                except (ValueError, RecursionError):
                    raise Problem(400) from None
                if FAULT == "bytes bound":
                    bound = (media, body)
            elif FAULT == "only JSON bound":
                bound = media
        return None if FAULT == "body not bound" else (where, bound), members

    def answer(self, body):
        media = (self.headers.get("Content-Type") or "").split(";")[0]
        keys = self.headers.get_all("Idempotency-Key", [])
        if FAULT == "replay before authentication":
            for (_, key), record in records.items():
                if [f'"{key}"'] == keys and "answer" in record:
                    return record["answer"]
        client = self.client()
        if FAULT == "claims before it reads" and body == b"{}":
            bound, members = None, {"id": "none"}
        else:
            bound, members = self.bound(body, media)
        key = key_of(keys)
        if FAULT == "no keys":
            return self.carried_out(members, client, body, lambda: None)
        own = (None if FAULT == "clients share keys" else
               self.headers.get("X-Tenant", client) if FAULT == "tenant of a header" else client)
        if FAULT == "one operation per request":
            key = json.dumps(members, default=str)
        return self.once((own, changed(key)), bound, members, client, body)

    def once(self, key, bound, members, client, body):
        end = time.monotonic() + 1
        with lock:
            old = re.match("[0-9a-f]{8}-[0-9a-f]{4}-7", key[1])
            if old and int(key[1][:8], 16) < 0x01800000 and FAULT != "old keys are new":
                raise Problem(412, "stale_key")
            while "running" in records.get(key, {}) and FAULT != "first wins late":
                if not lock.wait(end - time.monotonic()):
                    raise Problem(409, "in_progress", FAULT != "no Retry-After" and 1)
            record = records.get(key)
            if record and record["bound"] != bound:
                raise Problem(409 if FAULT == "conflict is 409" else 422, "key_conflict")
            if record and "answer" in record:
                return self.replayed(*record["answer"])
            if self.path == "/limited" and FAULT != "no limit":
                if time.monotonic() - limited.get(client, -60) < 60:
                    raise Problem(429, "limit_exceeded", 60)
                limited[client] = time.monotonic()
            record = records[key] = {"bound": bound, "running": True}
        answer = None

        def forget():
            with lock:
                records.pop(key, None)
        try:
            answer = self.carried_out(members, client, body, forget)
            return answer
        finally:
            with lock:
                record.pop("running")
                if answer:
                    record["answer"] = answer
                lock.notify_all()

    def replayed(self, status, kind, body, more):
        if FAULT == "serialised again" and kind == "application/json" and body:
            body = json.dumps(json.loads(body)).encode()
        if FAULT == "always 200":
            status = 200
        if FAULT == "headers are lost":
            more = []
        if FAULT != "no header":
            more = [*more, ("Idempotent-Replayed", "true")]
        return status, kind, body, more

    def carried_out(self, members, client, body, forget):
        """The answer to store. Calls forget() if none is to be stored."""
        def counted(name):
            tries[name, members["id"]] = tries.get((name, members["id"]), 0) + 1
            return tries[name, members["id"]] <= members.get(name, 0)
        effect = (members["id"], client, secrets.token_hex(8))
        with lock:
            effects.append(effect)
        time.sleep(members.get("wait", 0))
        problem, stored = None, False
        if members.get("refuse"):
            problem, stored = Problem(402), FAULT != "declined is tried again"
        elif members.get("failed"):
            problem = Problem(409, "key_failed")
            stored = FAULT != "failures are tried again"
        elif members.get("invalid"):
            problem, stored = Problem(400), FAULT == "invalid is stored"
        elif counted("fail"):
            problem, stored = Problem(500), FAULT == "errors are stored"
        elif any(counted("busy") for _ in range(1 if FAULT == "no retries" else 3)
                 if members.get("busy", 0) >= (3 if FAULT != "no retries" else 1)):
            problem = Problem(503, None, 1)
            if FAULT == "unavailable is 500":
                problem = Problem(500)
        if problem:
            if FAULT != "effect stays":
                with lock:
                    effects.remove(effect)
            if not stored:
                forget()
            message = f"operation {members['id']}" if FAULT == "messages are sent" else ""
            return self.problem(problem, message)
        text = {"number": effect[2], "size": len(members.get("file", body)),
                "sha256": hashlib.sha256(members.get("file", body)).hexdigest()}
        content = json.dumps(text).encode()
        if "size" in members and isinstance(members["size"], int):
            content = b"x" * members["size"]
        if "answer" in members:
            content = members["answer"].encode()
        if members.get("status") == 204:
            content = b""
        return (members.get("status", 201), members.get("type", "application/json"), content,
                [("Location", f"/operations/{members['id']}")])


class Server(ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, *arguments):
        pass


def serve(port, fault=None):
    global FAULT
    FAULT = fault
    for kept in (records, effects, tries, limited):
        kept.clear()
    return Server(("127.0.0.1", port), Service)


if __name__ == "__main__":
    serve(int(sys.argv[1]), *sys.argv[2:]).serve_forever()
