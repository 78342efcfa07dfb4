"""The statements of sql/queries against schema modak: each is valid, and its columns are the fields of a row class."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from psycopg import pq

from mirror_pump.source.catalog.catalog_schema import migrate
from mirror_pump.testing.database import Database
from sql import queries
from sql.mirror_names import of_mirror

_ROOT = Path(__file__).parents[2]
_READ_BY_PLACE = 2
"""Columns of a row that is not read into a class."""


def test_columns_of_queries_are_the_fields_of_a_row_class(database: Database) -> None:
    with database.connect(autocommit=False) as connection:
        migrate(connection)
        fields = _fields_of_classes()
        checked = 0
        for path in sorted((_ROOT / "sql" / "queries").glob("*.sql")):
            for name, statement in queries(path.stem).items():
                if re.match(r"(--.*\n)*CREATE ", statement):
                    # It may be several statements, which cannot be prepared.
                    continue
                # Pins are in one of several relations, which have the same columns; mirrors, in schemas of their own.
                filled = statement.replace("{relation}", "modak.read_pins").replace("{schema}", "modak")
                columns = _columns(connection.pgconn, of_mirror(filled, None))
                if len(columns) > _READ_BY_PLACE:
                    checked += 1
                    assert frozenset(columns) in fields, f"no class has the fields of {path.name}, {name}: {columns}"
    assert checked > 30


def _columns(pgconn: pq.abc.PGconn, statement: str) -> list[str]:
    """The names of a statement's columns, from the server. Fails if the statement is not valid."""
    numbers: dict[str, int] = {}

    def numbered(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%"
        return f"${numbers.setdefault(match[1] or f'{match.start()}', len(numbers) + 1)}"

    text = re.sub(r"%%|%s|%\((\w+)\)s", numbered, statement)
    prepared = pgconn.prepare(b"", text.encode())
    assert prepared.status == pq.ExecStatus.COMMAND_OK, f"{prepared.get_error_message()}\n{text}"
    described = pgconn.describe_prepared(b"")
    return [(described.fname(column) or b"").decode() for column in range(described.nfields)]


def _fields_of_classes() -> set[frozenset[str]]:
    """The annotated fields of every class of the program, and those that it has from classes of its module. The name of
    a table is one field of a TypedRow, and two columns."""
    fields: set[frozenset[str]] = set()
    for path in (_ROOT / "mirror_pump").rglob("*.py"):
        of_module: dict[str, frozenset[str]] = {}
        text = path.read_text(encoding="utf-8")
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef):
                own = {
                    field.target.id
                    for field in node.body
                    if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
                }
                bases = [of_module.get(base.id, frozenset()) for base in node.bases if isinstance(base, ast.Name)]
                of_module[node.name] = frozenset(own.union(*bases))
        fields.update(of_module.values())
        names = {name for name in ("name", "table") if f"    {name}: TableName" in text}
        for second in ("table_name", "relation_name"):
            fields.update(own - names | {"schema_name", second} for own in of_module.values() if own & names)
    return fields
