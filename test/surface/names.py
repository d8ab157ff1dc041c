"""The public names of clients/python, one per line: what pg_idem exports, and what its modules and
classes have for users. Nothing is imported, so that no framework needs to be installed."""

import ast
import pathlib
import sys

SOURCE = pathlib.Path("clients/python/src/pg_idem")
# The modules that users import, beside the package itself, with the names that are for them.
MODULES = {
    "django": ["Idempotency", "IdempotentMixin", "idempotent"],
    "fastapi": ["IdempotentRoute", "idempotent"],
    "flask": ["idempotent"],
    "http": ["NEVER_STORED", "Route", "parse_key"],
    "psycopg2": ["Idempotency"],
    "sqlalchemy": ["Idempotency"],
    "starlette": ["idempotent"],
}
# What users call, beside constructors and declared fields. Classes inherit from these.
MEMBERS = {
    "Operations": ["operation", "run", "transaction", "lease"],
    "LeaseBase": ["answer", "request", "key", "tenant", "attempt", "lost",
                  "step", "child_key", "complete", "run", "check"],
    "Worker": ["run", "stop"],
    "AsyncWorker": ["run", "stop"],
    "Intent": ["key", "headers", "send", "send_async"],
    "Failure": ["message", "sqlstate", "detail", "hint", "status", "headers", "body", "replayed", "expires"],
    "Refused": ["message", "sqlstate", "retry_after"],
}
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)

modules = {file.stem: ast.parse(file.read_text(encoding="utf-8")) for file in SOURCE.glob("*.py")}
lines = {}  # in the order in which they are found, each once


def find(module, name):
    """Where the module has the name from: (module, definition)."""
    for node in modules[module].body:
        if isinstance(node, (ast.ClassDef, *FUNCTION)) and node.name == name:
            return module, node
        if isinstance(node, ast.Assign) and name in [getattr(target, "id", None) for target in node.targets]:
            return module, node
        if isinstance(node, ast.ImportFrom) and node.module in modules:
            if name in [alias.name for alias in node.names]:
                return find(node.module, name)
    return None


def bases(module, definition):
    """The base classes that are of this package, as (module, definition)."""
    plain = [base.value if isinstance(base, ast.Subscript) else base for base in definition.bases]
    found = [find(base.value.id, base.attr) if isinstance(base, ast.Attribute) else find(module, base.id)
             for base in plain]
    return [base for base in found if base]


def signature(function):
    kind = "async " if isinstance(function, ast.AsyncFunctionDef) else ""
    returns = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    return f"{kind}{function.name}({ast.unparse(function.args)}){returns}"


def describe(module, definition):
    """Adds the lines of a class and of its bases."""
    of = f"pg_idem.{module}.{definition.name}"
    lines.setdefault(f"{of}({', '.join(map(ast.unparse, definition.bases))})")
    functions = {node.name: node for node in definition.body if isinstance(node, FUNCTION)}
    assigned = {node.attr for node in ast.walk(definition)
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    fields = {node.target.id: ast.unparse(node) for node in definition.body
              if isinstance(node, ast.AnnAssign) and not node.target.id.startswith("_")}
    wanted = MEMBERS.get(definition.name, fields)
    for name in [*wanted, "__init__", "__call__"]:
        if name in functions:
            lines.setdefault(f"{of}.{signature(functions[name])}")
        elif name in fields:
            lines.setdefault(f"{of}.{fields[name]}")
        elif name in assigned:
            lines.setdefault(f"{of}.{name}")
        elif not name.startswith("__"):
            sys.exit(f"{of} has no {name}")
    for base in bases(module, definition):
        describe(*base)


exported = ast.literal_eval(find("__init__", "__all__")[1].value)
for where, names in [("", exported), *MODULES.items()]:
    for name in names:
        found = find(where or "__init__", name)
        if not found:
            sys.exit(f"clients/python does not define {name}, which it exports")
        module, definition = found
        lines.setdefault(f"from pg_idem{where and '.'}{where} import {name}")
        if isinstance(definition, ast.ClassDef):
            describe(module, definition)
        elif isinstance(definition, FUNCTION):
            lines.setdefault(f"pg_idem.{module}.{signature(definition)}")
print(*lines, sep="\n")
