"""The caller's side: one key per intent, in front of a service that answers as it is told to."""

import asyncio
import http.client
import http.server
import socket
import threading
import time
import unittest
import unittest.mock
import urllib.error
import urllib.request
import uuid
from email.utils import formatdate
from types import SimpleNamespace

from pg_idem import Intent, Retry, StaleKey
from pg_idem.http import parse_key
from pg_idem.intent import new_key

QUICK = Retry(attempts=5, first=0.01, longest=0.02, deadline=60)


class Service:
    """Answers each request with the next of `answers`: a status with headers, or "lost". A header
    may be a function, which is called as the request comes."""

    def __init__(self, *answers):
        self.answers, self.keys, self.times = list(answers), [], []
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                service.keys.append(parse_key(self.headers.get_all("Idempotency-Key")))
                service.times.append(time.monotonic())
                answer = service.answers.pop(0)
                if answer == "lost":
                    return self.connection.shutdown(socket.SHUT_RDWR)
                status, headers = answer
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value() if callable(value) else value)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST  # after a redirect

            def log_message(self, *message):
                pass
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        self.server.shutdown()
        self.server.server_close()

    def post(self, headers):
        """Returns the response, whatever its status."""
        connection = http.client.HTTPConnection(*self.server.server_address, timeout=60)
        try:
            connection.request("POST", "/", b"{}", headers)
            response = connection.getresponse()
            response.read()
            return response
        finally:
            connection.close()

    def urlopen(self, headers):
        """Raises the response from 400 on."""
        url = "http://{}:{}".format(*self.server.server_address)
        with urllib.request.urlopen(urllib.request.Request(url, b"{}", headers), timeout=60) as got:
            return got


class Intents(unittest.TestCase):
    def test_one_key_for_all_requests(self):
        with Service("lost", (500, {}), (503, {"Retry-After": "\xb2"}), (429, {}),
                     (201, {})) as service:
            intent = Intent(retry=QUICK)
            self.assertEqual(intent.send(service.post).status, 201)
        self.assertEqual(service.keys, 5 * [intent.key])

    def test_final_answers(self):
        for status in (200, 302, 400, 404, 409, 412, 422):
            with self.subTest(status), Service((status, {})) as service:
                self.assertEqual(Intent(retry=QUICK).send(service.post).status, status)

    def test_not_before_the_service_says(self):
        for after in (lambda: "1", lambda: formatdate(time.time() + 3, usegmt=True)):
            with self.subTest(after()):
                with Service((409, {"Retry-After": after}), (201, {})) as service:
                    self.assertEqual(Intent(retry=QUICK).send(service.post).status, 201)
                self.assertGreaterEqual(service.times[1] - service.times[0], 1.0)

    def test_it_gives_up(self):
        with Service((503, {}), (503, {})) as service:
            impatient = Retry(attempts=2, first=0.01)
            self.assertEqual(Intent(retry=impatient).send(service.post).status, 503)
        for status in (409, 429):  # 409: in progress, or undecided
            with Service((status, {"Retry-After": "600"})) as service:
                self.assertEqual(Intent(retry=QUICK).send(service.post).status, status)
        with Service("lost", "lost") as service, self.assertRaises(http.client.HTTPException):
            Intent(retry=impatient).send(service.post)

    def test_a_client_that_raises_answers(self):
        with Service((503, {}), (201, {})) as service:
            self.assertEqual(Intent(retry=QUICK).send(service.urlopen).status, 201)
        with Service((422, {})) as service, self.assertRaises(urllib.error.HTTPError) as raised:
            Intent(retry=QUICK).send(service.urlopen)
        raised.exception.close()
        self.assertEqual(len(service.keys), 1)

    def test_an_error_of_the_program_is_not_retried(self):
        calls = []

        def send(headers):
            calls.append(1)
            raise ValueError
        with self.assertRaises(ValueError):
            Intent().send(send)
        self.assertEqual(len(calls), 1)

    def test_what_is_no_response(self):
        async def coroutine(headers):
            pass
        for made in ({"status": 200}, None, (b"", 200), b"", SimpleNamespace(status_code=200),
                     SimpleNamespace(status_code="200", headers={}), coroutine({})):
            with self.subTest(made), self.assertRaisesRegex(TypeError, "must return a response"):
                Intent(retry=QUICK).send(lambda headers: made)
        with self.assertRaisesRegex(TypeError, "must return a response"):
            asyncio.run(Intent(retry=QUICK).send_async(coroutine))

    def test_async(self):
        with Service("lost", (503, {}), (201, {})) as service:
            async def send(headers):
                return service.post(headers)
            intent = Intent("order-1", retry=QUICK)
            self.assertEqual(asyncio.run(intent.send_async(send)).status, 201)
        self.assertEqual(service.keys, 3 * ["order-1"])

    def test_a_key_that_could_not_be_stored_is_not_sent(self):
        stored, sent = [], []

        def store(key):
            stored.append(key)
            if len(stored) == 1:
                raise ConnectionError("the database is away")

        async def store_later(key):
            await asyncio.sleep(0)
            store(key)

        async def send(headers):
            sent.append(headers)
            return SimpleNamespace(status_code=201, headers={})
        for stores in (store, store_later):
            stored.clear(), sent.clear()
            intent = Intent(store=stores)
            with self.assertRaises(ConnectionError):
                asyncio.run(intent.send_async(send))
            self.assertEqual(sent, [])
            for _ in range(2):
                asyncio.run(intent.send_async(send))
            self.assertEqual((stored, len(sent)), (2 * [intent.key], 2))
        future = asyncio.new_event_loop().create_future()
        self.addCleanup(future.get_loop().close)
        for awaitable in (store_later, lambda key: future):
            with self.assertRaisesRegex(TypeError, "needs send_async"):
                Intent(store=awaitable).send(self.fail)

    def test_keys(self):
        for key in ('a "quoted" \\ key', str(uuid.uuid4())):
            self.assertEqual(parse_key([Intent(key).headers["Idempotency-Key"]]), key)
        first, second = new_key(), new_key()
        self.assertEqual((first.version, first.variant), (7, uuid.RFC_4122))
        self.assertNotEqual(first, second)
        self.assertLess(abs((first.int >> 80) / 1000 - time.time()), 60)
        with self.assertRaises(TypeError):
            Intent(4711)
        for key in ("", "\u00e9", "a\n", "k" * 256):
            with self.subTest(key), self.assertRaises(ValueError):
                Intent(key)
        with self.assertRaises(TypeError):
            Intent(store="key")


class Keys(unittest.TestCase):
    def test_the_key_is_stored_before_the_first_request(self):
        seen = []

        def send(headers):
            seen.append("sent")
            return SimpleNamespace(status_code=201, headers={})

        async def send_async(headers):
            return send(headers)

        async def store(key):
            seen.append(key)
        intent = Intent(store=seen.append)
        for _ in range(2):
            intent.send(send)
        self.assertEqual(seen, [intent.key, "sent", "sent"])
        intent = Intent(store=store)
        asyncio.run(intent.send_async(send_async))
        self.assertEqual(seen[3:], [intent.key, "sent"])
        Intent("known", store=self.fail).send(send)

    def test_a_key_that_the_service_has_forgotten_is_not_sent(self):
        old = str(new_key())
        with unittest.mock.patch("time.time", lambda: time.monotonic() + 4e9):
            with self.assertRaises(StaleKey):
                Intent(old, retention=86400.0).send(self.fail)
        Intent(old, retention=86400.0).send(
            lambda headers: SimpleNamespace(status_code=201, headers={}))
        for key in ("order-1", str(uuid.uuid4())):
            with self.assertRaisesRegex(ValueError, "UUIDv7"):
                Intent(key, retention=86400.0)
        with self.assertRaises(TypeError):
            Intent(old, retention="7 days")

    def test_a_redirect_that_turns_post_into_get_is_no_answer(self):
        def response(method, *history):
            return SimpleNamespace(status_code=200, headers={}, history=history,
                                   request=SimpleNamespace(method=method))
        with self.assertRaisesRegex(RuntimeError, "redirect has turned POST into GET"):
            Intent().send(lambda headers: response("GET", response("POST")))
        with Service((303, {"Location": "/"}), (200, {})) as service:
            with self.assertRaisesRegex(RuntimeError, "redirect has turned POST into GET"):
                Intent(retry=QUICK).send(service.urlopen)
        kept = response("POST", response("POST"))
        self.assertIs(Intent().send(lambda headers: kept), kept)

    def test_statuses_of_proxies(self):
        answers = [SimpleNamespace(status_code=status, headers={}) for status in (520, 529, 200)]
        self.assertEqual(Intent(retry=QUICK).send(lambda headers: answers.pop(0)).status_code, 200)

    def test_a_body_that_is_cut(self):
        with Service((200, {"Content-Length": "5"}), (200, {"Content-Length": "0"})) as service:
            self.assertEqual(Intent(retry=QUICK).send(service.post).status, 200)
        self.assertEqual(len(service.keys), 2)


if __name__ == "__main__":
    unittest.main()
