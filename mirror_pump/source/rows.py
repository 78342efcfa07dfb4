"""Reads single rows of the heap by key, every value as the text that Postgres prints."""

from __future__ import annotations

from collections.abc import Sequence

from mirror_pump.model import Column, MirroredTable
from mirror_pump.source.connect import PgConnection, source_errors


def read_rows(
    connection: PgConnection, table: MirroredTable, columns: Sequence[Column], keys: Sequence[tuple[str, ...]]
) -> list[tuple[str | None, ...]]:
    """The rows that exist among `keys` (texts of the key columns in attribute order), with the texts of `columns`.

    Raises SourceError, and ConnectionLost if the connection broke.
    """
    # format() runs the type's output function, as the stream does; a cast to text differs for char(n), inet and bool.
    selected = ", ".join(
        f"CASE WHEN t.{name} IS DISTINCT FROM NULL THEN format('%%s', t.{name}) END"
        for name in (_quoted(column.name) for column in columns)
    )
    names = [f"v{place}" for place in range(len(table.key))]
    matched = " AND ".join(
        f"t.{_quoted(column.name)} = k.{name}::{column.type_sql.replace('%', '%%')}"
        for name, column in zip(names, table.key_columns, strict=True)
    )
    lists = ", ".join("%s::text[]" for _ in names)
    relation = table.name.quoted.replace("%", "%%")
    query = f"SELECT {selected} FROM {relation} t JOIN unnest({lists}) AS k({', '.join(names)}) ON {matched}"
    parameters = [list(part) for part in zip(*keys, strict=True)]
    with source_errors(f"reading rows of {table.name}"):
        return connection.execute(query.encode(), parameters).fetchall() if keys else []


def _quoted(name: str) -> str:
    """The name as SQL wants it, in a query with parameters: there a percent sign is doubled too."""
    return '"' + name.replace('"', '""').replace("%", "%%") + '"'
