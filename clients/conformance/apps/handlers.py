"""What the handlers of the Python applications do: the interface of docs/conformance.md."""

import collections
import hashlib
import json
import secrets

from pg_idem import Failure

CLIENTS = {"Bearer ann": "ann", "Bearer bob": "bob"}
EFFECT = "INSERT INTO effect (name, client) VALUES (%s, %s)"
LOSE = "DO $$ BEGIN RAISE 'lost' USING ERRCODE = 'serialization_failure'; END $$"
COUNT = "SELECT count(*) FROM effect WHERE name = %s AND client = %s"
seen = collections.Counter()  # how often an operation was to fail


class Problem(Exception):
    """An error that the application answers with a problem document."""

    def __init__(self, status):
        super().__init__(status)
        self.status = status

    @property
    def answer(self):
        """Status, headers and body."""
        document = {"type": "about:blank", "status": self.status}
        return self.status, {"Content-Type": "application/problem+json"}, json.dumps(document)


def client(authorization):
    """The client, by the header Authorization."""
    if authorization not in CLIENTS:
        raise Problem(401)
    return CLIENTS[authorization]


def members(body):
    """The members of a request in JSON."""
    try:
        request = json.loads(body.decode(), parse_constant=int)  # which refuses NaN
    except (ValueError, RecursionError):
        raise Problem(400) from None
    if not (isinstance(request, dict) and isinstance(request.get("id"), str)):
        raise Problem(400)
    return request


def document(name, content):
    """A request whose content is not JSON."""
    digest = hashlib.sha256(content).hexdigest()
    return {"id": name, "answer": json.dumps({"sha256": digest, "size": len(content)})}


def happens(request, what):
    """Whether it is to fail so, this time."""
    seen[what, request["id"]] += 1
    return seen[what, request["id"]] <= request.get(what, 0)


def statements(request, of):
    """What the operation of a client does to the database."""
    yield EFFECT, [request["id"], of]
    if happens(request, "busy"):
        yield LOSE, None
    if "wait" in request:
        yield "SELECT pg_sleep(%s)", [request["wait"]]


def answer(request):
    """Status, headers and body of the answer."""
    if request.get("invalid"):
        raise Problem(400)
    if request.get("refuse"):
        raise Problem(402)
    if request.get("failed"):
        raise Failure("declined")
    if happens(request, "fail"):
        raise RuntimeError(f"operation {request['id']} has failed")
    status = request.get("status", 201)
    body = request.get("answer", json.dumps({"number": secrets.token_hex(8)}))
    if "size" in request:
        body = "x" * request["size"]
    headers = {"Content-Type": request.get("type", "application/json"),
               "Location": f"/operations/{request['id']}"}
    return status, headers, "" if status == 204 else body
