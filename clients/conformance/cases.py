"""The sentences of docs/clients.md, and the cases that show whether a service keeps them.

A case is a function of a Session, which raises Broken. Many are rows of a table: a name, and what
the function gets besides. A group is what a service may lack: --skip leaves its cases out."""

import concurrent.futures
import gzip
import hashlib
import random
import threading
import time
import uuid

from exchange import Broken, new_key, patient

GROUPS = ("limits", "old-keys", "may-differ", "failed", "busy", "uploads", "documents", "chunked",
          "gzip", "exact-numbers", "replay-header")
MARKED = True  # whether the service marks replays with a header
STORM = 20  # keys
SLOW = 2.0  # seconds: longer than a service lets a retry wait for the first request
TYPES = "urn:idem:problem:"


class Sentence:
    def __init__(self, text, unjudged=None):
        self.text, self.unjudged, self.cases = text, unjudged, []
        SENTENCES.append(self)

    def case(self, name, group=None):
        def register(function):
            self.cases.append((name, group, function))
            return function
        return register

    def each(self, rows, group=None):
        def register(function):
            for name, *values in rows:
                self.cases.append((name, group, lambda session, values=values:
                                   function(session, *values)))
            return function
        return register


SENTENCES = []


# What the cases expect ----------------------------------------------------------------------------

def new_name():
    return f"op-{uuid.uuid4().hex[:20]}"


def order(**members):
    return {"id": new_name(), **members}


def expect(holds, message):
    if not holds:
        raise Broken(message)


def is_first(answer, status=201):
    expect(answer.status == status, f"{answer.status}, and not {status}")
    expect(not answer.replayed, "Idempotent-Replayed, but this is the first answer")
    return answer


def is_replay(answer, first):
    expect(answer.status == first.status, f"{answer.status}, but the first was {first.status}")
    expect(answer.body == first.body, "the body is not that of the first answer")
    expect(answer.header("content-type") == first.header("content-type"),
           "the Content-Type is not that of the first answer")
    expect(answer.replayed or not MARKED, "Idempotent-Replayed is not true")
    return answer


def is_repeated(session, key, body, **options):
    first = is_first(session.post(key, body, **options))
    return is_replay(session.post(key, body, **options), first)


def is_problem(answer, status, kind=None):
    """`kind` is the end of the type, None for about:blank, or "any"."""
    kind = "about:blank" if kind is None else TYPES + kind
    expect(answer.status == status, f"{answer.status}, and not {status}")
    expect((answer.header("content-type") or "").split(";")[0] == "application/problem+json",
           "the Content-Type is not application/problem+json")
    document = answer.members
    expect(document.get("status") == status, "the member status is not the status")
    expect(kind == TYPES + "any" or document.get("type", "about:blank") == kind,
           f"the type is not {kind}")
    expect(not answer.replayed or status in (402, 409), "an error is sent as a replay")
    return answer


def asks_to_retry(answer):
    after = answer.header("retry-after") or ""
    expect(after.isdecimal() and int(after) >= 1, "Retry-After is not a number of seconds from 1 on")
    return answer


def is_conflict(answer):
    return is_problem(answer, 422, "key_conflict")


def has_effects(session, name, number, client=0):
    found = session.effects(name, client)
    expect(found == number, f"{found} effects of {name}, and not {number}")


def at_once(functions):
    """Their results, called at the same time."""
    barrier = threading.Barrier(len(functions))

    def call(function):
        barrier.wait()
        return function()
    with concurrent.futures.ThreadPoolExecutor(len(functions)) as pool:
        return list(pool.map(call, functions))


def goes_on_beside_it(session, other, complaint):
    """Sends a slow operation and calls other(key, body) with what it has, at once: the other ends
    first."""
    for wait in (SLOW, 2 * SLOW, 4 * SLOW):  # longer where the machine is busy
        key, body, ended = new_key(), order(wait=wait), []

        def slow():
            is_first(session.post(key, body))
            ended.append("slow")

        def meanwhile():
            other(key, body)
            ended.append("other")
        at_once([slow, meanwhile])
        if ended[0] == "other":
            return
    raise Broken(complaint)


# The key ------------------------------------------------------------------------------------------

HEADER = Sentence("Send this header with every `POST`.")


@HEADER.each([("GET needs no key", "GET", None), ("HEAD needs no key", "HEAD", None),
              ("GET with a key is no operation", "GET", new_key())])
def reading_is_no_operation(session, method, key):
    body = order()
    for number in (0, 1):
        answer = session.get(f"/operations/{body['id']}", method=method, key=key)
        expect(answer.status == 200 or method == "HEAD" and answer.status == 405,
               f"{answer.status}, and not 200")
        expect(not answer.replayed, "what was read is a stored answer")
        expect(method == "HEAD" or answer.members.get("effects") == number, f"not {number} effects")
        is_first(session.post(new_key(), body)) if number == 0 else None


STRING = Sentence("Its value is a string of 1 to 255 bytes in double quotes:"
                  ' `Idempotency-Key: "8e03978e-40d5-43dd-bc93-6894a57f9324"`.')


# KEY becomes a UUID. A key without it is the same in every run, as is its request.
@STRING.each([
    ("a key of one byte", '"k"'), ("a UUID", '"KEY"'),
    ("a key of 255 bytes", '"KEY' + "k" * 219 + '"'), ("white space around it", ' \t"KEY"\t '),
    ("a space in it", '"KEY b"'), ("a space at its ends", '" KEY "'),
    ("commas and semicolons in it", '"KEY,b;c=d"'), ("quotes in it", r'"KEY\"b\""'),
    ("backslashes in it", r'"KEY\\b\\\\"'), ("a path", '"/KEY/../%2e?b#c"'),
    ("signs of formats and statements", "\"KEY'; -- %s $1 {0} ${x} :y ? E'\""),
    ("all punctuation", '"KEY!#$%&()*+-.:<=>@[]^_`{|}~"'), ("null", '"null"'), ("zero", '"0"'),
])
def is_kept(session, header):
    body = order() if "KEY" in header else {"id": "op-" + header.strip('"')}
    key = header.replace("KEY", str(uuid.uuid4()))
    first = session.post(key, body)
    expect(first.status == 201, f"{first.status}, and not 201")
    is_replay(session.post(key, body), first)
    has_effects(session, body["id"], 1)


@STRING.each([
    ("upper and lower case", '"KEYa"', '"KEYA"'), ("a space at the end", '"KEY"', '"KEY "'),
    ("a zero before", '"1KEY"', '"01KEY"'), ("the last of 255 bytes", '"KEY' + "k" * 219 + '"',
                                             '"KEY' + "k" * 218 + 'K"'),
    ("255 bytes and 254", '"KEY' + "k" * 219 + '"', '"KEY' + "k" * 218 + '"'),
    ("UUIDs in upper and lower case", '"KEY"', '"UPPER"'), ("a backslash", r'"KEY\\b"', '"KEYb"'),
    ("a UUID without hyphens", '"KEY"', '"SHORT"'), ("a UUID in braces", '"KEY"', '"{KEY}"'),
])
def are_different_keys(session, one, other):
    value = str(uuid.uuid4())
    for header in (one, other):
        header = header.replace("KEY", value).replace("UPPER", value.upper()).replace(
            "SHORT", value.replace("-", ""))
        is_first(session.post(header, order()))


@STRING.each([
    ("a bare token", "KEY"), ("a parameter", '"KEY";v=1'), ("single quotes", "'KEY'"),
    ("bytes beyond ASCII", '"KEYé"'),
])
def is_one_key_or_refused(session, header):
    body, key = order(), header.replace("KEY", str(uuid.uuid4()))
    first = session.post(key, body)
    if first.status == 201:
        is_replay(session.post(key, body), first)
    else:
        is_problem(first, 400, "invalid_key")
    has_effects(session, body["id"], int(first.status == 201))


CLIENTS = "it is about clients"
NEW_KEY = Sentence("Create a new key, such as a UUID, for every new operation. Store the key with"
                   " the operation before you send the first request. Send the same key with every"
                   " retry.", CLIENTS)


# What the first request does, and what every later one gets ---------------------------------------

FIRST = Sentence("The first request with a key is carried out.")


@FIRST.case("one effect, which can be read back")
def is_carried_out(session):
    body = order()
    is_first(session.post(new_key(), body))
    has_effects(session, body["id"], 1)


@FIRST.case("a new key is a new operation, of the same request")
def is_carried_out_per_key(session):
    body = order()
    answers = [is_first(session.post(new_key(), body)) for _ in range(3)]
    expect(len({answer.body for answer in answers}) == 3, "two operations have one answer")
    has_effects(session, body["id"], 3)


@FIRST.case("eight keys at once are eight operations")
def eight_keys(session):
    body = order()
    for answer in at_once([lambda: session.until_answered(new_key(), body)] * 8):
        expect(answer.status == 201, f"{answer.status}, and not 201")
    has_effects(session, body["id"], 8)


@FIRST.case("a request of 900 KB")
def long_request(session):
    body, key = order(note="x" * 900_000), new_key()
    is_repeated(session, key, body)
    body["note"] = body["note"][:-1] + "y"
    is_conflict(session.post(key, body))
    has_effects(session, body["id"], 1)


LATER = Sentence("Every later request with the same key gets the same status and the same body,"
                 " with the same `Content-Type` and `Location`, and the header"
                 " `Idempotent-Replayed: true`, whether or not you received the first answer.")


@LATER.each([(f"status {status}", status) for status in (200, 201, 202, 204)])
def statuses_are_kept(session, status):
    body, key = order(status=status), new_key()
    first = is_first(session.post(key, body), status)
    expect(status != 204 or not first.body, "a 204 has a body")
    is_replay(session.post(key, body), first)
    has_effects(session, body["id"], 1)


JSON = "application/json"


@LATER.each([
    ("JSON without spaces", '{"a":1,"b":[2,3]}', JSON), ("JSON with spaces", '{ "a" : 1 }\n', JSON),
    ("numbers as written", "[1.0, 1e2, 10.00, 1E+2, -0.0]", JSON),
    ("numbers beyond a double", "[9007199254740993, 0.1234567890123456789, 1e400]", JSON),
    ("the order of members", '{"z": 1, "a": 2, "aa": 3}', JSON),
    ("a member twice", '{"a": 1, "a": 2}', JSON), ("escapes", r'"\u00e9\/\ud83d\ude00"', JSON),
    ("text beyond ASCII", '{"ü": "é 😀 \u2028"}', JSON), ("a string", '"paid"', JSON),
    ("null", "null", JSON), ("false", "false", JSON), ("an empty object", "{}", JSON),
    ("a JSON type of its own", '{"data": 1.0}', "application/vnd.api+json"),
    ("plain text", "paid\r\n", "text/plain; charset=utf-8"), ("no text", "", "text/plain"),
    ("HTML", "<p>paid</p>", "text/html; charset=utf-8"),
    ("text like bytes of PostgreSQL", r"\x7061 \\x", "text/plain"),
    ("text like a template", "%s $1 ${a} {{b}} \\1 'c'", "text/plain"),
    ("text that ends with white space", "paid \t\n\n", "text/plain"),
])
def bodies_are_kept(session, content, content_type):
    body, key = order(answer=content, type=content_type), new_key()
    first = is_first(session.post(key, body))
    expect(first.body == content.encode(), "the first answer is not what the handler made")
    expect((first.header("content-type") or "").split(";")[0] == content_type.split(";")[0],
           f"the Content-Type is not {content_type}")
    for _ in range(2):
        is_replay(session.post(key, body), first)


@LATER.each([(f"an answer of {size} bytes", size) for size in (1, 1000, 60_000, 1_000_000)])
def sizes_are_kept(session, size):
    body, key = order(size=size), new_key()
    first = is_first(session.post(key, body))
    expect(len(first.body) == size, f"{len(first.body)} bytes, and not {size}")
    again = is_replay(session.post(key, body), first)
    length = again.header("content-length")
    expect(length is None or int(length) == size, "the Content-Length is wrong")


@LATER.case("ten retries, and one effect")
def ten_retries(session):
    body, key = order(), new_key()
    first = is_first(session.post(key, body))
    for _ in range(10):
        is_replay(session.post(key, body), first)
    has_effects(session, body["id"], 1)


@LATER.case("the place of what was made")
def location_is_kept(session):
    body, key = order(), new_key()
    first = is_first(session.post(key, body))
    expect((first.header("location") or "").endswith(f"/operations/{body['id']}"),
           "the Location is not that of the operation")
    expect(session.post(key, body).header("location") == first.header("location"),
           "the Location is not that of the first answer")


@LATER.case("the header of the key in lower case")
def header_in_lower_case(session):
    body, key = order(), new_key()
    first = is_first(session.post(key, body))
    is_replay(session.post(None, body, headers=[("idempotency-key", key)]), first)


@LATER.case("a retry after other operations")
def after_others(session):
    body, key = order(), new_key()
    first = is_first(session.post(key, body))
    for _ in range(5):
        is_first(session.post(new_key(), order()))
    is_replay(session.post(key, body), first)


@LATER.case("the only header that says so is that of a retry")
def first_answers_are_no_replays(session):
    answer = is_first(session.post(new_key(), order()))
    expect(answer.header("idempotent-replayed") is None, "a first answer has Idempotent-Replayed")


@LATER.case("the answer to the first request is lost")
def answer_is_lost(session):
    body, key = order(), new_key()
    session.cut(key, body)
    expect(session.until_answered(key, body).status == 201, "the retry is not answered with 201")
    has_effects(session, body["id"], 1)


@LATER.case("a retry over HTTP/1.1 in chunks", "chunked")
def in_chunks(session):
    body, key = order(), new_key()
    first = is_first(session.post(key, body, chunked=True))
    is_replay(session.post(key, body), first)
    is_replay(session.post(key, body, chunked=True), first)
    is_conflict(session.post(key, {**body, "a": 1}, chunked=True))
    has_effects(session, body["id"], 1)


@LATER.each([
    ("another User-Agent", [("User-Agent", "retry/2")]), ("another trace", [("Traceparent", "2")]),
    ("another Accept", [("Accept", "text/html, */*;q=0.1")]), ("a cookie", [("Cookie", "a=b")]),
    ("another Accept-Language", [("Accept-Language", "fr")]),
])
def other_headers_do_not_matter(session, headers):
    body, key = order(), new_key()
    first = is_first(session.post(key, body))
    is_replay(session.post(key, body, headers=headers), first)


def sends(session, key, body, times):
    answers = at_once([lambda: session.until_answered(key, body)] * times)
    expect({answer.status for answer in answers} == {201}, "they are not all answered with 201")
    expect(len({answer.body for answer in answers}) == 1, "they get different answers")
    has_effects(session, body["id"], 1)
    return answers


@LATER.each([("two requests at once", 2, 0), ("eight requests at once", 8, 0),
             ("eight requests at once, of a slow operation", 8, 0.4)])
def at_the_same_time(session, times, wait):
    answers = sends(session, new_key(), order(wait=wait), times)
    first = [answer for answer in answers if not answer.replayed]
    expect(len(first) == 1 or not MARKED, f"{len(first)} answers are no replays")


@LATER.case("a storm: each key three times, and some connections cut")
def storm(session):
    tasks = [(new_key(), order()) for _ in range(STORM)]
    queue = tasks * 3
    random.shuffle(queue)
    bodies = {key: set() for key, _ in tasks}

    def client(own):
        for number, (key, body) in enumerate(own):
            if number % 3 == 0:
                session.cut(key, body)
            answer = patient(lambda: session.post(key, body),
                             lambda answer: answer.unfinished or answer.status == 500)
            expect(answer.status == 201, f"{answer.status}, and not 201")
            bodies[key].add(answer.body)
    at_once([lambda own=queue[number::6]: client(own) for number in range(6)])
    for key, body in tasks:
        expect(len(bodies[key]) == 1, f"{len(bodies[key])} answers of {body['id']}")
        has_effects(session, body["id"], 1)


KEPT = Sentence("Answers are kept for *7 days* after the operation has completed. Stop retrying"
                " before that time: after it, the same key starts a new operation.",
                "it takes days")


# The same request ---------------------------------------------------------------------------------

SAME = Sentence("Two requests are the same if their JSON is the same.")
NOTATION = Sentence("The order of members, white space and the notation of numbers (`10`, `10.0`,"
                    " `1e1`) do not matter.")


def same(session, one, other, **options):
    key, name = new_key(), new_name()
    first = is_first(session.post(key, one.replace("ID", name), **options))
    is_replay(session.post(key, other.replace("ID", name), **options), first)
    has_effects(session, name, 1)


SAME.each([
    ("byte by byte", '{"id": "ID", "a": [1, {"b": null}]}', '{"id": "ID", "a": [1, {"b": null}]}'),
    ("letters and their escapes", '{"id": "ID", "a": "é/"}', r'{"id": "ID", "a": "\u00e9\/"}'),
    ("a letter beyond the first plane", '{"id": "ID", "a": "😀"}',
     r'{"id": "ID", "a": "\ud83d\ude00"}'),
    ("names of members with escapes", '{"id": "ID", "b": 1}', r'{"id": "ID", "\u0062": 1}'),
])(same)

NOTATION.each([
    ("the order of members", '{"id": "ID", "a": 1, "b": 2}', '{"b": 2, "a": 1, "id": "ID"}'),
    ("the order of inner members", '{"id": "ID", "a": [{"b": 1, "c": 2}]}',
     '{"id": "ID", "a": [{"c": 2, "b": 1}]}'),
    ("no white space", '{"id": "ID", "a": [1, 2]}', '{"id":"ID","a":[1,2]}'),
    ("line breaks and tabs", '{"id": "ID", "a": {}}', '\r\n{\t"id" :\n"ID",\r\n\t"a": { } }\n'),
    ("10 and 10.0", '{"id": "ID", "a": 10}', '{"id": "ID", "a": 10.0}'),
    ("10 and 1e1", '{"id": "ID", "a": 10}', '{"id": "ID", "a": 1e1}'),
    ("100 and 1E+2", '{"id": "ID", "a": 100}', '{"id": "ID", "a": 1E+2}'),
    ("0.1 and 1e-1", '{"id": "ID", "a": 0.1}', '{"id": "ID", "a": 1e-1}'),
    ("0.50 and 0.5", '{"id": "ID", "a": 0.50}', '{"id": "ID", "a": 0.5}'),
    ("-3 and -3.000", '{"id": "ID", "a": -3}', '{"id": "ID", "a": -3.000}'),
    ("an integer beyond 2^53", '{"id": "ID", "a": 9007199254740993}',
     '{"id": "ID", "a": 9007199254740993.0}'),
])(same)


@SAME.case("another compression of the same JSON", "gzip")
def compressed_again(session):
    body, key, name = b'{"a": 1}', new_key(), new_name()

    def send(content, mtime):
        return session.post(key, gzip.compress(content, mtime=mtime), path=f"/documents?id={name}",
                            headers=[("Content-Encoding", "gzip")])
    first = is_first(send(body, 1))
    is_replay(send(body, 2), first)
    is_conflict(send(b'{"a": 2}', 2))
    has_effects(session, name, 1)


ELSE = Sentence("Everything else matters, including the path, the query and the order of array"
                " items.")


@ELSE.each([
    ("a value", '{"id": "ID", "a": 1}', '{"id": "ID", "a": 2}'),
    ("a value deep inside", '{"id": "ID", "a": {"b": [{"c": 1}]}}',
     '{"id": "ID", "a": {"b": [{"c": 2}]}}'),
    ("another member", '{"id": "ID"}', '{"id": "ID", "a": 1}'),
    ("a missing member", '{"id": "ID", "a": 1}', '{"id": "ID"}'),
    ("the name of a member", '{"id": "ID", "a": 1}', '{"id": "ID", "A": 1}'),
    ("null and absent", '{"id": "ID", "a": null}', '{"id": "ID"}'),
    ("null and false", '{"id": "ID", "a": null}', '{"id": "ID", "a": false}'),
    ("null and an empty object", '{"id": "ID", "a": null}', '{"id": "ID", "a": {}}'),
    ("an empty array and an empty object", '{"id": "ID", "a": []}', '{"id": "ID", "a": {}}'),
    ("an empty text and null", '{"id": "ID", "a": ""}', '{"id": "ID", "a": null}'),
    ("a number and a text", '{"id": "ID", "a": 1}', '{"id": "ID", "a": "1"}'),
    ("a number and a truth value", '{"id": "ID", "a": 1}', '{"id": "ID", "a": true}'),
    ("zero and false", '{"id": "ID", "a": 0}', '{"id": "ID", "a": false}'),
    ("an item and an array of it", '{"id": "ID", "a": 1}', '{"id": "ID", "a": [1]}'),
    ("the order of array items", '{"id": "ID", "a": [1, 2]}', '{"id": "ID", "a": [2, 1]}'),
    ("an item twice", '{"id": "ID", "a": [1]}', '{"id": "ID", "a": [1, 1]}'),
    ("the case of a text", '{"id": "ID", "a": "eur"}', '{"id": "ID", "a": "EUR"}'),
    ("white space in a text", '{"id": "ID", "a": "b c"}', '{"id": "ID", "a": "b  c"}'),
    ("white space at the end of a text", '{"id": "ID", "a": "b"}', '{"id": "ID", "a": "b "}'),
    ("composed letters", '{"id": "ID", "a": "\\u00e9"}', '{"id": "ID", "a": "e\\u0301"}'),
    ("the sign of a number", '{"id": "ID", "a": 1}', '{"id": "ID", "a": -1}'),
    ("a member elsewhere", '{"id": "ID", "a": {"c": 1}, "b": {}}',
     '{"id": "ID", "a": {}, "b": {"c": 1}}'),
    ("the name of the operation", '{"id": "ID"}', '{"id": "ID-2"}'),
])
def different(session, one, other):
    key, name = new_key(), new_name()
    one = one.replace("ID", name)
    first = is_first(session.post(key, one))
    is_conflict(session.post(key, other.replace("ID", name)))
    is_replay(session.post(key, one), first)
    has_effects(session, name, 1)


ELSE.each([
    ("neighbours beyond 2^53", '{"id": "ID", "a": 9007199254740993}',
     '{"id": "ID", "a": 9007199254740992}'),
    ("the 20th digit", '{"id": "ID", "a": 0.10000000000000000001}', '{"id": "ID", "a": 0.1}'),
    ("numbers beyond a double", '{"id": "ID", "a": 1e400}', '{"id": "ID", "a": 2e400}'),
], "exact-numbers")(different)


@ELSE.each([
    ("another path", "/operations", "/refunds"), ("a query", "/operations", "/operations?a=1"),
    ("another query", "/operations?a=1", "/operations?a=2"),
])
def the_place_matters(session, one, other):
    body, key = order(), new_key()
    first = is_first(session.post(key, body, path=one))
    is_conflict(session.post(key, body, path=other))
    is_replay(session.post(key, body, path=one), first)
    has_effects(session, body["id"], 1)


CONTENT = Sentence("A form is the same if its fields and files are, and any other content if its"
                   " bytes and its type are.")


def form(boundary, name, note="n", content=b"paid", file="a.txt"):
    lines = [f"--{boundary}", 'Content-Disposition: form-data; name="id"', "", name,
             f"--{boundary}", 'Content-Disposition: form-data; name="note"', "", note,
             f"--{boundary}", f'Content-Disposition: form-data; name="file"; filename="{file}"',
             "Content-Type: text/plain", "", ""]
    return ("\r\n".join(lines).encode() + content + f"\r\n--{boundary}--\r\n".encode(),
            f"multipart/form-data; boundary={boundary}")


@CONTENT.each([
    ("another boundary", {}, True), ("a field", {"note": "m"}, False),
    ("the content of a file", {"content": b"Paid"}, False),
    ("a file with a line more", {"content": b"paid\r\n"}, False),
    ("the name of a file", {"file": "b.txt"}, False),
], "uploads")
def uploads(session, change, is_same):
    key, name = new_key(), new_name()

    def send(boundary, **fields):
        body, content_type = form(boundary, name, **fields)
        return session.post(key, body, path="/uploads", content_type=content_type)
    first = is_first(send("one"))
    expect(first.members.get("sha256") == hashlib.sha256(b"paid").hexdigest(),
           "the handler has not got the file")
    answer = send("two", **change)
    is_replay(answer, first) if is_same else is_conflict(answer)
    has_effects(session, name, 1)


@CONTENT.case("a file of 3 MB, and its last byte", "uploads")
def large_upload(session):
    key, name, content = new_key(), new_name(), b"x" * (3 << 20)

    def send(boundary, content):
        body, content_type = form(boundary, name, content=content)
        return session.post(key, body, path="/uploads", content_type=content_type)
    first = is_first(send("one", content))
    expect(first.members.get("size") == len(content), "the handler has not got the file")
    is_replay(send("two", content), first)
    is_conflict(send("one", content[:-1] + b"y"))
    has_effects(session, name, 1)


@CONTENT.each([
    ("the same text", "text/plain", b"a b", "text/plain", b"a b", True),
    ("another text", "text/plain", b"a b", "text/plain", b"a  b", False),
    ("numbers in a text", "text/plain", b"1", "text/plain", b"1.0", False),
    ("the same XML", "application/xml", b"<a/>", "application/xml", b"<a/>", True),
    ("another XML", "application/xml", b"<a/>", "application/xml", b"<b/>", False),
    ("the same bytes", "application/octet-stream", b"\0\xff", "application/octet-stream", b"\0\xff",
     True),
    ("other bytes", "application/octet-stream", b"\0\xff", "application/octet-stream", b"\0\xfe",
     False),
    ("no content", "text/plain", b"", "text/plain", b" ", False),
    ("another type", "text/plain", b"a", "text/csv", b"a", False),
    ("JSON as text", "application/json", b'{"a": 1}', "text/plain", b'{"a": 1}', False),
    ("an unknown type", "x/y", b"a", "x/y", b"b", False),
], "documents")
def documents(session, type_one, one, type_other, other, is_same):
    key, name = new_key(), new_name()

    def send(content_type, content):
        return session.post(key, content, path=f"/documents?id={name}", content_type=content_type)
    first = is_first(send(type_one, one))
    expect(first.members.get("sha256") == hashlib.sha256(one).hexdigest(),
           "the handler has not got the content")
    answer = send(type_other, other)
    is_replay(answer, first) if is_same else is_conflict(answer)
    has_effects(session, name, 1)


MAY_DIFFER = Sentence("*The members `sent_at` and `meta.trace_id` may differ.*")


@MAY_DIFFER.each([
    ("sent_at", {"sent_at": 1}, {"sent_at": 2}, True),
    ("without sent_at", {"sent_at": 1}, {}, True),
    ("meta.trace_id", {"meta": {"trace_id": 1}}, {"meta": {"trace_id": 2}}, True),
    ("another member of meta", {"meta": {"a": 1}}, {"meta": {"a": 2}}, False),
    ("sent_at elsewhere", {"a": {"sent_at": 1}}, {"a": {"sent_at": 2}}, False),
], "may-differ")
def may_differ(session, one, other, is_same):
    body, key = order(), new_key()
    first = is_first(session.post(key, {**body, **one}))
    answer = session.post(key, {**body, **other})
    is_replay(answer, first) if is_same else is_conflict(answer)
    has_effects(session, body["id"], 1)


ACCOUNT = Sentence("Keys belong to your account: if another client uses the same value, it is a"
                   " different key.")


@ACCOUNT.each([("the same request", {}), ("another request", {"a": 1})])
def each_client_has_keys_of_its_own(session, more):
    body, key = order(), new_key()
    first = is_first(session.post(key, body))
    of_other = is_first(session.post(key, {**body, **more}, client=1))
    expect(of_other.body != first.body, "the other client gets the answer of the first")
    is_replay(session.post(key, body), first)
    is_replay(session.post(key, {**body, **more}, client=1), of_other)
    has_effects(session, body["id"], 1)
    has_effects(session, body["id"], 1, client=1)


@ACCOUNT.case("a refusal of one client")
def refusals_belong_to_a_client(session):
    body, key = order(refuse=True), new_key()
    first = session.post(key, body)
    is_first(session.post(key, {"id": body["id"]}, client=1))
    expect(session.post(key, body).body == first.body, "the refusal has changed")


@ACCOUNT.case("an operation of another client that is in progress")
def another_client_waits_for_nothing(session):
    def other(key, body):
        is_first(session.post(key, {"id": body["id"]}, client=1))
    goes_on_beside_it(session, other, "it waits for the other client's operation")


# Errors -------------------------------------------------------------------------------------------

ERRORS = Sentence("Errors are `application/problem+json` documents (RFC 9457).")


@ERRORS.each([("a key that is missing", None, {}), ("an invalid request", new_key(), {"id": 7}),
              ("a final refusal", new_key(), {"refuse": True}),
              ("an internal error", new_key(), {"fail": 99})])
def errors_are_documents(session, key, members):
    answer = session.post(key, {**order(), **members})
    expect(answer.status >= 400, f"{answer.status} is no error")
    expect((answer.header("content-type") or "").split(";")[0] == "application/problem+json",
           "the Content-Type is not application/problem+json")
    expect(answer.members, "the body is no JSON object")


DISTINGUISHED = Sentence("The member `status` distinguishes them, and `type` where two errors have"
                         " the same status.")


@DISTINGUISHED.case("the two errors with status 400")
def two_of_400(session):
    is_problem(session.post(None, order()), 400, "invalid_key")
    is_problem(session.post(new_key(), {}), 400)


@DISTINGUISHED.case("in progress and failed, with status 409", "failed")
def two_of_409(session):
    while_in_progress(session, lambda wait: [order(wait=wait)] * 2)
    is_problem(session.post(new_key(), order(failed=True)), 409, "key_failed")


INVALID_KEY = Sentence("- **400** `urn:idem:problem:invalid_key`: the key is missing, empty, too"
                       " long *or too weak*. Fix the client.")


@INVALID_KEY.each([
    ("no header", None), ("an empty header", ""), ("a header of spaces", "  "),
    ("an empty string", '""'), ("256 bytes", '"' + "k" * 256 + '"'), ("an open string", '"open'),
    ("1000 bytes", '"' + "k" * 1000 + '"'), ("4000 bytes", '"' + "k" * 4000 + '"'),
    ("a string without its beginning", 'k"'), ("one quote", '"'), ("text after it", '"a"b'),
    ("two strings", '"a" "b"'), ("a list", '"a", "b"'), ("an unknown escape", r'"a\b"'),
    ("a backslash at its end", '"a\\"'), ("a tab in it", '"a\tb"'), ("two words", "a b"),
    ("two headers", ['"a"', '"b"']), ("the same header twice", ['"a"', '"a"']),
    ("two headers, one of them empty", ['"a"', ""]),
])
def keys_are_refused(session, key):
    body = order()
    is_problem(session.post(key, body), 400, "invalid_key")
    has_effects(session, body["id"], 0)


INVALID = Sentence("- **400** `about:blank`: the request is invalid. Fix the client. The key is"
                   " still unused.")


@INVALID.each([
    ("no content", ""), ("no JSON", "id=1"), ("JSON that is cut", '{"id": "ID"'),
    ("an array", "[]"), ("null", "null"), ("NaN", '{"id": "ID", "a": NaN}'), ("no id", "{}"),
    ("an id of another type", '{"id": {"a": "ID"}}'), ("two documents", '{"id": "ID"}{}'),
    ("a comma too many", '{"id": "ID",}'),
    ("an error of the handler", '{"id": "ID", "invalid": true}'),
])
def the_key_is_unused(session, content):
    body, key = order(), new_key()
    name = body["id"]
    is_problem(session.post(key, content.replace("ID", name)), 400)
    has_effects(session, name, 0)
    is_first(session.post(key, body))
    has_effects(session, name, 1)


@INVALID.each([("a NUL in a text", rb'{"id": "ID", "a": "\u0000"}'),
               ("half of a character", rb'{"id": "ID", "a": "\ud800"}'),
               ("bytes that are no UTF-8", b'{"id": "ID", "a": "\xff"}'),
               ("arrays in arrays", b'{"id": "ID", "a": ' + b"[" * 100 + b"]" * 100 + b"}")])
def is_refused_or_no_problem(session, content):
    key, name = new_key(), new_name()
    content = content.replace(b"ID", name.encode())
    answer = session.post(key, content)
    if answer.status == 201:
        is_replay(session.post(key, content), answer)
    else:
        is_problem(answer, 400)
    has_effects(session, name, int(answer.status == 201))


IN_PROGRESS = Sentence(
    "- **409** `urn:idem:problem:in_progress`: a request with this key is being carried out. Retry"
    " with the same key after the number of seconds in `Retry-After`.")


def while_in_progress(session, requests):
    """Sends requests(wait) at once, with one key. One is carried out, and the others are refused
    meanwhile, unless one was late and gets its answer. Then the operation takes longer."""
    for wait in (SLOW, 2 * SLOW, 4 * SLOW):
        key, bodies = new_key(), requests(wait)
        answers = at_once([lambda body=body: session.post(key, body) for body in bodies])
        done = [answer for answer in answers if answer.status == 201 and not answer.replayed]
        first = done if MARKED else list({answer.body: answer for answer in done}.values())
        expect(len(first) == 1, f"{len(first)} of {len(bodies)} requests are carried out")
        others = [answer for answer in answers if answer is not first[0]]
        for answer in others:
            if answer.status == 409:
                asks_to_retry(is_problem(answer, 409, "in_progress"))
        if any(answer.status != 201 for answer in others):
            break
    return key, bodies, answers, first[0]


@IN_PROGRESS.each([("two requests at once", 2), ("five requests at once", 5)])
def in_progress(session, number):
    key, (body, *_), answers, first = while_in_progress(
        session, lambda wait: [order(wait=wait)] * number)
    for answer in answers:
        if answer is not first and answer.status != 409:
            is_replay(answer, first)
    is_replay(session.post(key, body), first)
    has_effects(session, body["id"], 1)


@IN_PROGRESS.case("two different requests at once")
def in_progress_otherwise(session):
    name = new_name()
    key, bodies, answers, first = while_in_progress(
        session, lambda wait: [{"id": name, "wait": wait, "a": number} for number in (0, 1)])
    for body, answer in zip(bodies, answers):
        if answer is first:
            is_replay(session.post(key, body), first)
        else:
            expect(answer.status in (409, 422), f"{answer.status}, and not 409 or 422")
            is_conflict(session.post(key, body))


@IN_PROGRESS.case("an operation with another key meanwhile")
def others_go_on(session):
    goes_on_beside_it(session, lambda *_: is_first(session.post(new_key(), order())),
                      "it waits for the slow operation")


UNDECIDED = Sentence(
    "- **409** `urn:idem:problem:attempts_exhausted`: undecided: the operation was begun, and may"
    " have had effects. Keep the key, and ask again after the number of seconds in `Retry-After`,"
    " until the retention ends; then ask our support. Never send the request with another key.",
    "it takes an operation whose processes end")
FAILED = Sentence(
    "- **409** `urn:idem:problem:key_failed`: the operation has failed permanently, or was"
    " cancelled. Do not retry. For a new operation, decide anew and use a new key.")


@FAILED.case("a failure is kept, without its effect", "failed")
def failures_are_kept(session):
    body, key = order(failed=True), new_key()
    first = is_problem(session.post(key, body), 409, "key_failed")
    again = is_problem(session.post(key, body), 409, "key_failed")
    expect(again.body == first.body, "the body is not that of the first answer")
    is_conflict(session.post(key, {"id": body["id"]}))
    has_effects(session, body["id"], 0)
    is_first(session.post(new_key(), {"id": body["id"]}))
    has_effects(session, body["id"], 1)


STALE = Sentence(
    "- **412** `urn:idem:problem:stale_key`: *the key is older than the time for which answers are"
    " kept*. Find out whether the operation was carried out. A new operation needs a new key.")


def uuid7(seconds):
    number = int(seconds * 1000) << 80 | 7 << 76 | random.getrandbits(76)
    return f'"{uuid.UUID(int=number & ~(3 << 62) | 2 << 62)}"'


@STALE.each([("a UUIDv7 of 2020", 1_577_836_800, 412), ("a UUIDv7 of now", None, 201)], "old-keys")
def old_keys(session, seconds, status):
    body, key = order(), uuid7(seconds or time.time())
    answer = session.post(key, body)
    is_first(answer) if status == 201 else is_problem(answer, 412, "stale_key")
    has_effects(session, body["id"], int(status == 201))


CONFLICT = Sentence("- **422** `urn:idem:problem:key_conflict`: the key was used for another"
                    " request. Fix the client.")


@CONFLICT.case("the document, and the first answer after it")
def conflict(session):
    body, key = order(), new_key()
    first = is_first(session.post(key, body))
    for number in range(3):
        is_conflict(session.post(key, order(a=number)))
    is_replay(session.post(key, body), first)


@CONFLICT.case("eight different requests at once: one is carried out")
def conflict_at_once(session):
    body, key = order(), new_key()
    answers = at_once([lambda number=number: session.until_answered(key, {**body, "a": number})
                       for number in range(8)])
    statuses = sorted(answer.status for answer in answers)
    expect(statuses == [201] + [422] * 7, f"{statuses}, and not one 201 and 422 seven times")
    has_effects(session, body["id"], 1)


LIMITED = Sentence(
    "- **429** `urn:idem:problem:limit_exceeded`: too many new operations. Retry with the same key"
    " after the number of seconds in `Retry-After`.")


@LIMITED.case("one new operation per minute", "limits")
def limits(session):
    requests = [(new_key(), order()) for _ in range(4)]
    answers = [session.post(key, body, path="/limited") for key, body in requests]
    for answer, (_, body) in zip(answers, requests):
        if answer.status != 201:
            asks_to_retry(is_problem(answer, 429, "limit_exceeded"))
        has_effects(session, body["id"], int(answer.status == 201))
    expect(answers[3].status == 429, "four operations are not too many")


UNAVAILABLE = Sentence(
    "- **503** `about:blank`: the service is temporarily unavailable; the request itself is valid."
    " Retry with the same key after the number of seconds in `Retry-After`.")


@UNAVAILABLE.case("the database gives up", "busy")
def unavailable(session):
    body, key = order(busy=99), new_key()
    asks_to_retry(is_problem(session.post(key, body), 503))
    has_effects(session, body["id"], 0)


@UNAVAILABLE.case("a retry is carried out", "busy")
def available_again(session):
    body, key = order(busy=4), new_key()
    first = is_first(session.until_answered(key, body))
    is_replay(session.post(key, body), first)
    has_effects(session, body["id"], 1)


INTERNAL = Sentence("- **500**: an internal error. Retry later with the same key, or give up.")


@INTERNAL.each([("an error, and a retry", 1), ("three errors, and a retry", 3)])
def internal_errors(session, times):
    body, key = order(fail=times), new_key()
    for _ in range(times):
        answer = session.post(key, body)
        expect(answer.status == 500 and not answer.replayed, f"{answer.status}, and not 500")
        has_effects(session, body["id"], 0)
    is_repeated(session, key, body)
    has_effects(session, body["id"], 1)


LOST = Sentence("- **No answer** (timeout or lost connection): the operation may have been carried"
                " out. Retry **with the same key**.")


@LOST.case("the connection is lost while the operation is slow")
def lost_while_slow(session):
    body, key = order(wait=SLOW), new_key()
    session.cut(key, body, after=0.5)
    answer = session.until_answered(key, body)
    expect(answer.status == 201, f"{answer.status}, and not 201")
    is_replay(session.post(key, body), answer)
    has_effects(session, body["id"], 1)


@LOST.case("the connection is lost three times")
def lost_three_times(session):
    body, key = order(wait=0.3), new_key()
    for _ in range(3):
        session.cut(key, body, after=0.1)
    expect(session.until_answered(key, body).status == 201, "the retry is not answered with 201")
    has_effects(session, body["id"], 1)


@LOST.each([("before the content", 0), ("in the middle of the content", 20)])
def lost_before_the_end(session, sent):
    for pause in (0, 0.1, 0.5):  # for a service that notices it late
        body, key = order(note="x" * 50), new_key()
        session.cut(key, body, sent=sent, after=0.1)
        time.sleep(pause)
        answer = session.until_answered(key, body)
        expect(answer.status == 201, f"{answer.status}, and not 201")
        has_effects(session, body["id"], 1)


RETRYING = Sentence(
    "Wait at least as long as `Retry-After` asks for. Without that header, start with 0.1 seconds,"
    " double the time with each retry up to *5 seconds*, and wait for a random part of it. A"
    " timeout on your side is not an answer: retry with the same key until you have an answer, or"
    " until *24 hours* have passed.", CLIENTS)


# Rules for the service ----------------------------------------------------------------------------

BEFORE = Sentence("**Authenticate and validate before you claim.** A request that you reject anyway"
                  " does not use up its key.")


@BEFORE.case("a stranger without a key")
def stranger_without_key(session):
    is_problem(session.post(None, order(), client=None), 401)


@BEFORE.case("a stranger gets no stored answer")
def stranger(session):
    body, key = order(), new_key()
    first = is_first(session.post(key, body))
    for request in (body, order()):
        answer = is_problem(session.post(key, request, client=None), 401)
        expect(answer.body != first.body, "a stranger gets the stored answer")
    is_replay(session.post(key, body), first)


@BEFORE.case("the key of a stranger is unused")
def key_of_a_stranger(session):
    body, key = order(), new_key()
    is_problem(session.post(key, order(), client=None), 401)
    is_first(session.post(key, body))
    has_effects(session, body["id"], 1)


@BEFORE.case("a stranger during an operation")
def stranger_meanwhile(session):
    body, key = order(wait=SLOW), new_key()
    first, answer = at_once([lambda: session.post(key, body),
                             lambda: session.post(key, body, client=None)])
    is_problem(answer, 401)
    is_first(first)


@BEFORE.case("an invalid request without a key")
def invalid_without_key(session):
    answer = session.post(None, "{}")
    expect(answer.status == 400, f"{answer.status}, and not 400")


TENANT = Sentence("**Use the authenticated client as the tenant**, never the value of a header that"
                  " any client can set, and set `tenant_required`.")


@TENANT.each([(name, name) for name in ("X-Tenant", "X-Forwarded-User", "X-User-Id", "Cookie")])
def headers_are_no_tenants(session, name):
    body, key = order(), new_key()
    first = is_first(session.post(key, body, headers=[(name, "a=1")]))
    is_replay(session.post(key, body, headers=[(name, "a=2")]), first)
    is_first(session.post(key, body, client=1, headers=[(name, "a=1")]))


PASS = Sentence("**Pass everything that defines the request to `claim`.** If one scope serves"
                " several paths, include method and path in `request` together with the body.")
PASS.cases = [(name, group, case) for name, group, case in ELSE.cases if "path" in name]
ONE = Sentence("**Use one transaction** from `claim` to COMMIT.")


@ONE.each([("a final refusal has no effect", {"refuse": True}), ("nor has an error", {"fail": 99}),
           ("nor has an invalid request", {"invalid": True})])
def no_effect(session, members):
    body = order(**members)
    answer = session.post(new_key(), body)
    expect(answer.status >= 400, f"{answer.status} is no error")
    has_effects(session, body["id"], 0)


SHORT = Sentence(
    "**Retry short-lived errors in the service** (a lost connection, `40001`, `40P01`), two or"
    " three times, with the same key in a new transaction.")


@SHORT.each([("one lost race", 1), ("two lost races", 2)], "busy")
def lost_races(session, times):
    body, key = order(busy=times), new_key()
    is_repeated(session, key, body)
    has_effects(session, body["id"], 1)


SECRET = Sentence("Do not send the messages of 500 errors to the client.")


@SECRET.case("the message of an error names the operation")
def messages_stay(session):
    body = order(fail=1)
    answer = session.post(new_key(), body)
    expect(answer.status == 500, f"{answer.status}, and not 500")
    expect(body["id"].encode() not in answer.body, "the answer has the message of the error")


NEVER = Sentence(
    "**Never create a key for a request that has none.** Such a key cannot tell a retry from a new"
    " order. Refuse the request with status 400.")


@NEVER.each([("a request without a key", None), ("with an empty one", ""),
             ("with an empty string", '""')])
def without_key(session, key):
    body = order()
    for _ in range(2):
        is_problem(session.post(key, body), 400, "invalid_key")
    has_effects(session, body["id"], 0)


STORED = Sentence("A failure that must not be tried again, such as a declined card, is an answer"
                  " like any other: store it with `complete` and its status, or with `fail`.")


@STORED.case("a declined card")
def declined(session):
    body, key = order(refuse=True), new_key()
    first = is_problem(session.post(key, body), 402, "any")
    is_replay(session.post(key, body), first)
    is_conflict(session.post(key, {"id": body["id"]}))
    has_effects(session, body["id"], 0)


@STORED.case("eight requests at once, of a card that is declined")
def declined_at_once(session):
    body, key = order(refuse=True, wait=0.2), new_key()
    answers = at_once([lambda: session.until_answered(key, body)] * 8)
    expect({answer.status for answer in answers} == {402}, "they are not all answered with 402")
    expect(len({answer.body for answer in answers}) == 1, "they get different answers")
