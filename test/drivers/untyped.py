"""Runs the statements of standard input with psycopg 3, and prints the result of each."""
import sys
import uuid

import psycopg

mode = sys.argv[1]
saved = {}


def parameter(field):
    kind, value = field.split(":", 1)
    if kind == "null":
        return None
    if kind == "uuid":
        return uuid.UUID(value)
    return saved[value[1:]] if value.startswith("$") else value


def result(cursor, statement, parameters):
    try:
        if mode == "literals":
            return cursor.execute(statement, parameters).fetchone()[0]
        return cursor.execute(statement, parameters, prepare=mode == "prepared").fetchone()[0]
    except psycopg.Error as error:
        fields = [error.diag.schema_name, error.diag.constraint_name, error.diag.datatype_name,
                  error.diag.column_name]
        return " ".join(["ERROR", error.sqlstate, *(field or "-" for field in fields)])


with psycopg.connect(autocommit=True) as connection:
    cursor = psycopg.ClientCursor(connection) if mode == "literals" else connection.cursor()
    for line in sys.stdin:
        name, statement, *fields = line.rstrip("\n").split("\t")
        saved[name] = result(cursor, statement, [parameter(field) for field in fields])
        print(saved[name])
