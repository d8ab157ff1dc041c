"""What the tests share: the scope and table of ../../../examples/setup.sql, in the database that
PGHOST, PGPORT, PGDATABASE and PGUSER name."""

import contextlib
import unittest
import uuid

import psycopg

SETUP = """
CREATE EXTENSION IF NOT EXISTS idem;
SELECT idem.create_scope('payments', ttl => '7 days', request_required => true,
                         if_not_exists => true);
CREATE TABLE IF NOT EXISTS payment (
    id bigserial PRIMARY KEY,
    key text NOT NULL DEFAULT idem.current_key(),
    amount numeric NOT NULL);
"""


def connect(**options):
    return psycopg.connect(autocommit=True, **options)


def set_up():
    with connect() as connection:
        connection.execute(SETUP)


def query(statement, *parameters):
    """The first column of the first row."""
    with connect() as connection:
        return connection.execute(statement, parameters).fetchone()[0]


def new_key():
    return str(uuid.uuid4())


def effects(key):
    return query("SELECT count(*) FROM payment WHERE key = %s", key)


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
