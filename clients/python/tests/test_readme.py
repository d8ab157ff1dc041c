"""The code of README.md, run in a database of its own; an endpoint before and after; and the code
of ../../../docs/frameworks.md."""

import contextlib
import io
import json
import os
import pathlib
import re
import types
import unittest
from unittest import mock

import psycopg

from support import PaymentTest, aconnect, connect, django_payment, effects, new_key

HERE = pathlib.Path(__file__).parent
README = (HERE.parent / "README.md").read_text()
DATABASE = "pg_idem_readme"


def blocks(language, page=README):
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.M | re.S)


def source(name):
    return (HERE / name).read_text()


class Readme(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with connect() as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
            connection.execute(f"CREATE DATABASE {DATABASE}")
        patched = mock.patch.dict(os.environ, PGDATABASE=DATABASE)
        patched.start()
        cls.addClassCleanup(patched.stop)
        with psycopg.connect(autocommit=True) as connection:
            for statements in blocks("sql"):
                connection.execute(statements)

    def run_block(self, block, names, use=lambda names: None):
        """Runs it, uses what it defines, and compares what it prints."""
        modules = re.findall(r"^(?:from|import) (\w+)", block, re.M)
        for module in modules:
            try:
                __import__(module)
            except ImportError:
                self.skipTest(f"{module} is not installed")
        printed = io.StringIO()
        names["__name__"] = "readme"
        with contextlib.redirect_stdout(printed):
            exec(compile(block, "README.md", "exec"), names)
            if "pool" in names:
                self.addCleanup(names["pool"].close)
            use(names)
        self.assertEqual(printed.getvalue().splitlines(), re.findall("^#> (.*)$", block, re.M))

    def post(self, path, request, headers):
        """A service for the caller in the page."""
        self.assertRegex(headers["Idempotency-Key"], '^"[0-9a-f-]{36}"$')
        return types.SimpleNamespace(status_code=201, headers={})

    def pay_twice(self, client, post):
        headers = {"Idempotency-Key": f'"{type(client).__module__}"'}
        first, again = [post(client, headers) for _ in range(2)]
        self.assertEqual((first.status_code, again.status_code), (201, 201))
        self.assertEqual(again.headers["Idempotent-Replayed"], "true")
        self.assertEqual(json.loads(first.text), json.loads(again.text))

    def use_flask(self, names):
        client = names["app"].test_client()
        self.pay_twice(client, lambda client, headers: client.post(
            "/payments", json={"amount": 10}, headers=headers,
            environ_overrides={"REMOTE_USER": "shop"}))
        with self.assertLogs("readme", "ERROR"):  # strangers have no namespace in common
            stranger = client.post("/payments", json={"amount": 10},
                                   headers={"Idempotency-Key": '"stranger"'})
        self.assertEqual(stranger.status_code, 500)

    def test_blocks(self):
        all_blocks, names = blocks("python"), {"post": self.post}  # each goes on from those before
        uses = {"Flask": self.use_flask}
        for word in uses:
            self.assertTrue(any(word in block for block in all_blocks), word)
        for number, block in enumerate(all_blocks):
            use = next((use for word, use in uses.items() if word in block), lambda names: None)
            with self.subTest(number=number, first=block.splitlines()[0]):
                self.run_block(block, names, use)

    def test_the_endpoint_before_pays_twice_and_after_once(self):
        for name, amount, payments in (("before.py", 71, 2), ("after.py", 72, 1)):
            def send_twice(names):
                client = names["app"].test_client()
                for _ in range(2):
                    client.post("/payments", json={"amount": amount},
                                headers={"Idempotency-Key": name})
            self.run_block(source(name), {}, send_twice)
            with psycopg.connect() as connection:
                count, = connection.execute(
                    "SELECT count(*) FROM payment WHERE amount = %s", (amount,)).fetchone()
            self.assertEqual(count, payments, name)

    def test_the_list_of_headers(self):
        from pg_idem.http import NEVER_STORED
        named = README.split("are never stored, such as")[1].split("(`pg_idem")[0]
        for name in re.findall(r"[A-Z][\w-]+", named):
            self.assertIn(name.lower(), NEVER_STORED)


class Frameworks(PaymentTest):
    """The rest of each program stands here."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        page = HERE.parents[2] / "docs/frameworks.md"
        if not page.exists():  # in a source distribution
            raise unittest.SkipTest("docs/frameworks.md is not here")
        cls.blocks = blocks("python", page.read_text())

    def run_block(self, word, **names):
        block, = [block for block in self.blocks if word in block]
        exec(compile(block, "docs/frameworks.md", "exec"), names)
        return names

    def pays_once(self, post, content=b'{"paid":10}'):
        """post(key) sends a payment of 10, and returns status and content."""
        key = new_key()
        self.assertEqual([post(key), post(key)], [(201, content)] * 2)
        self.assertEqual(effects(key), 1)

    def test_each_is_run(self):
        self.assertEqual(len(self.blocks), 3)

    def test_fastapi(self):
        try:
            import fastapi
            import pydantic
            from starlette.testclient import TestClient
            from pg_idem import AsyncIdempotency
            from pg_idem.fastapi import IdempotentRoute, idempotent
        except ImportError as error:
            self.skipTest(str(error))
        model = pydantic.create_model("Payment", amount=(int, ...))
        receipts = []
        names = self.run_block(
            "APIRouter", APIRouter=fastapi.APIRouter, BackgroundTasks=fastapi.BackgroundTasks,
            Depends=fastapi.Depends, AsyncIdempotency=AsyncIdempotency, idempotent=idempotent,
            IdempotentRoute=IdempotentRoute, Payment=model, Paid=model, user_name=lambda: "ann",
            pool=types.SimpleNamespace(connection=aconnect), send_receipt=receipts.append)
        app = fastapi.FastAPI()
        app.include_router(names["router"])
        client = TestClient(app)

        def post(key):
            response = client.post("/payments", json={"amount": 10},
                                   headers={"Idempotency-Key": key})
            return response.status_code, response.content
        self.pays_once(post, b'{"amount":10}')
        self.assertEqual([receipt.amount for receipt in receipts], [10])

    def test_starlette(self):
        try:
            from starlette import applications, authentication, middleware, responses, routing
            from starlette.middleware.authentication import AuthenticationMiddleware
            from starlette.testclient import TestClient
            from pg_idem import AsyncIdempotency
            from pg_idem.starlette import idempotent
        except ImportError as error:
            self.skipTest(str(error))

        class Backend(authentication.AuthenticationBackend):
            async def authenticate(self, connection):
                user = authentication.SimpleUser("ann")
                return authentication.AuthCredentials(["authenticated"]), user
        names = self.run_block(
            "@requires", requires=authentication.requires, idempotent=idempotent,
            AsyncIdempotency=AsyncIdempotency, JSONResponse=responses.JSONResponse,
            pool=types.SimpleNamespace(connection=aconnect))
        client = TestClient(applications.Starlette(
            routes=[routing.Route("/payments", names["pay"], methods=["POST"])],
            middleware=[middleware.Middleware(AuthenticationMiddleware, backend=Backend())]))

        def post(key):
            response = client.post("/payments", json={"amount": 10},
                                   headers={"Idempotency-Key": key})
            return response.status_code, response.content
        self.pays_once(post)

    def test_django_rest_framework(self):
        try:
            import psycopg2  # noqa: F401
            import rest_framework  # noqa: F401
        except ImportError as error:
            self.skipTest(str(error))
        payment, _ = django_payment()
        from pg_idem.django import Idempotency, IdempotentMixin, idempotent
        from rest_framework.response import Response
        from rest_framework.test import APIRequestFactory, force_authenticate
        from rest_framework.views import APIView
        names = self.run_block("APIView", APIView=APIView, IdempotentMixin=IdempotentMixin,
                               Idempotency=Idempotency, idempotent=idempotent, Payment=payment,
                               Response=Response)

        def post(key):
            request = APIRequestFactory().post("/payments", {"amount": 10}, format="json",
                                               HTTP_IDEMPOTENCY_KEY=key)
            force_authenticate(request, types.SimpleNamespace(username="ann"))
            response = names["Pay"].as_view()(request)
            return response.status_code, response.content
        self.pays_once(post)


if __name__ == "__main__":
    unittest.main()
