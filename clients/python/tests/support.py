"""What the tests share: the scope and table of ../../../examples/setup.sql, in the database that
PGHOST, PGPORT, PGDATABASE and PGUSER name."""

import contextlib
import functools
import os
import unittest
import uuid

import psycopg

os.environ["SQLALCHEMY_WARN_20"] = "1"  # 1.4 warns of what 2.0 does not have
try:
    import psycopg2
    import psycopg2.extras
    import pg_idem.psycopg2
except ImportError:
    psycopg2 = None
try:
    import sqlalchemy
    import sqlalchemy.orm
    import pg_idem.sqlalchemy
except ImportError:
    sqlalchemy = None
try:
    import django
except ImportError:
    django = None

SETUP = """
CREATE EXTENSION IF NOT EXISTS idem;
SELECT idem.create_scope('payments', ttl => '7 days', request_required => true,
                         max_attempts => 1, if_not_exists => true);
CREATE TABLE IF NOT EXISTS payment (
    id bigserial PRIMARY KEY,
    key text NOT NULL DEFAULT idem.current_key(),
    amount numeric NOT NULL);
"""


def connect(**options):
    return psycopg.connect(autocommit=True, **options)


class aconnect:
    """psycopg.AsyncConnection.connect is a coroutine, not yet a context manager."""

    async def __aenter__(self):
        self.connection = await psycopg.AsyncConnection.connect(autocommit=True)
        return self.connection

    async def __aexit__(self, *raised):
        await self.connection.close()


def set_up():
    with connect() as connection:
        connection.execute(SETUP)


def query(statement, *parameters):
    """The first column of the first row."""
    with connect() as connection:
        return connection.execute(statement, parameters).fetchone()[0]


def needs_the_library(test, what):
    """Skips a test of what the SQL edition lacks."""
    if query("SELECT idem.edition()") == "sql":
        test.skipTest(f"the SQL edition has no {what}")


def new_key():
    return str(uuid.uuid4())


def effects(key):
    return query("SELECT count(*) FROM payment WHERE key = %s", key)


def use_up_attempts(key, request):
    """The only attempt of the operation ends without an answer. Returns its token."""
    return query("SELECT token FROM idem.claim('payments', %s::text, %s::jsonb, lease => '1 us')",
                 key, request)


@contextlib.contextmanager
def held(key, request):
    """Another session holds the key."""
    with connect() as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT idem.claim('payments', %s::text, %s::jsonb)", (key, request))
        yield
        connection.execute("ROLLBACK")


class PaymentTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        set_up()


@functools.lru_cache
def django_payment(**options):
    """Configures Django. Returns a model of the table, and the module whose urlpatterns it uses."""
    import logging
    import types
    import sys
    from django.conf import settings
    from django.db import models
    urls = types.ModuleType("urls")
    sys.modules["urls"] = urls
    databases = {"default": {"NAME": os.environ["PGDATABASE"]}}
    for port in options.pop("ports", ()):
        databases[port] = {"NAME": os.environ["PGDATABASE"], "HOST": "127.0.0.1", "PORT": port}
    for database in databases.values():
        database["ENGINE"] = "django.db.backends.postgresql"
    logging.getLogger("django.request").setLevel(logging.CRITICAL)
    settings.configure(
        ROOT_URLCONF="urls", ALLOWED_HOSTS=["*"], SECRET_KEY="test", DATABASES=databases,
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField", LOGGING_CONFIG=None,
        DEBUG_PROPAGATE_EXCEPTIONS=True, REST_FRAMEWORK={"UNAUTHENTICATED_USER": None},
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth"])
    django.setup()

    class Payment(models.Model):
        amount = models.DecimalField(max_digits=30, decimal_places=9)

        class Meta:
            app_label, db_table, managed = "shop", "payment", False
    return Payment, urls
