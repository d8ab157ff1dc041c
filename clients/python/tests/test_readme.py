"""The code of README.md, run in a database of its own, and its diff."""

import contextlib
import difflib
import io
import json
import os
import pathlib
import re
import sys
import types
import unittest
from unittest import mock

import psycopg

from support import connect, django_payment, new_key

HERE = pathlib.Path(__file__).parent
README = (HERE.parent / "README.md").read_text()
DATABASE = "pg_idem_readme"


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.M | re.S)


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

    def run_block(self, block, use=lambda names: None):
        """Runs it, uses what it defines, and compares what it prints."""
        if "shop.models" in block or "settings.py" in block:
            try:
                payment, self.urls = django_payment()
            except ImportError:
                self.skipTest("Django is not installed")
            sys.modules["shop"] = sys.modules["shop.models"] = types.ModuleType("shop.models")
            sys.modules["shop.models"].Payment = payment
        modules = re.findall(r"^(?:from|import) (\w+)", block, re.M)
        for module in modules:
            try:
                __import__(module)
            except ImportError:
                self.skipTest(f"{module} is not installed")
        if "sqlalchemy" in modules:
            import sqlalchemy
            if sqlalchemy.__version__.startswith("1."):
                block = block.replace("postgresql+psycopg:", "postgresql+psycopg2:")
        names, printed = {"__name__": "readme"}, io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile(block, "README.md", "exec"), names)
                use(names)
        finally:
            pool, engine = names.get("pool"), names.get("engine")
            if pool and hasattr(pool, "__enter__"):
                pool.close()
            if engine:
                engine.dispose()
        self.assertEqual(printed.getvalue().splitlines(), re.findall("^#> (.*)$", block, re.M))

    def pay_twice(self, client, post):
        headers = {"Idempotency-Key": f'"{type(client).__module__}"'}
        first, again = [post(client, headers) for _ in range(2)]
        self.assertEqual((first.status_code, again.status_code), (201, 201))
        self.assertEqual(again.headers["Idempotency-Replayed"], "true")
        self.assertEqual(json.loads(first.text), json.loads(again.text))

    def use_flask(self, names):
        self.pay_twice(names["app"].test_client(), lambda client, headers: client.post(
            "/payments", json={"amount": 10}, headers=headers))

    def use_fastapi(self, names):
        from fastapi.testclient import TestClient
        with TestClient(names["app"]) as client:
            self.pay_twice(client, lambda client, headers: client.post(
                "/payments", json={"amount": 10}, headers=headers))

    def use_settings(self, names):
        from django.conf import settings
        self.assertEqual(names["MIDDLEWARE"][-1:], settings.MIDDLEWARE)
        settings.PG_IDEM = names["PG_IDEM"]

    def use_django(self, names):
        from django.test import Client
        from django.urls import path
        self.urls.urlpatterns = [path("payments", names["pay"])]
        from django.urls import clear_url_caches
        clear_url_caches()
        key = new_key()
        first, again = [Client().post("/payments", '{"amount": 10}', HTTP_IDEMPOTENCY_KEY=key,
                                      content_type="application/json") for _ in range(2)]
        self.assertEqual((first.status_code, again.status_code), (201, 201))
        self.assertEqual(again["Idempotency-Replayed"], "true")
        self.assertEqual(first.content, again.content)
        from django.db import connections
        connections.close_all()

    def test_blocks(self):
        all_blocks = blocks("python")
        uses = {"Flask": self.use_flask, "FastAPI": self.use_fastapi,
                "settings.py": self.use_settings, "views.py": self.use_django}
        for word in uses:
            self.assertTrue(any(word in block for block in all_blocks), word)
        for number, block in enumerate(all_blocks):
            use = next((use for word, use in uses.items() if word in block), lambda names: None)
            with self.subTest(number=number, first=block.splitlines()[0]):
                self.run_block(block, use)

    def test_the_endpoint_before_pays_twice_and_after_once(self):
        for name, amount, payments in (("before.py", 71, 2), ("after.py", 72, 1)):
            def send_twice(names):
                client = names["app"].test_client()
                for _ in range(2):
                    client.post("/payments", json={"amount": amount},
                                headers={"Idempotency-Key": name})
            self.run_block(source(name), send_twice)
            with psycopg.connect() as connection:
                count, = connection.execute(
                    "SELECT count(*) FROM payment WHERE amount = %s", (amount,)).fetchone()
            self.assertEqual(count, payments, name)

    def test_the_diff(self):
        lines = [source(name).splitlines() for name in ("before.py", "after.py")]
        diff = list(difflib.unified_diff(*lines, lineterm="", n=1))[2:]
        self.assertEqual(blocks("diff"), ["\n".join(diff) + "\n"])
        added, removed = (sum(line.startswith(sign) for line in diff) for sign in "+-")
        self.assertIn(f"{added} lines added, {removed} removed", README)

    def test_the_list_of_headers(self):
        from pg_idem.http import NEVER_STORED
        named = README.split("These headers are never stored")[1].split("and others")[0]
        for name in re.findall(r"[A-Z][\w-]+", named):
            self.assertIn(name.lower(), NEVER_STORED)


if __name__ == "__main__":
    unittest.main()
