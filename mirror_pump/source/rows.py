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
    selected = ", ".join(f"t.{_quoted(column.name)}::text" for column in columns)
    names = [f"v{place}" for place in range(len(table.key))]
    matched = " AND ".join(
        f"t.{_quoted(column.name)} = k.{name}::{column.type_sql}"
        for name, column in zip(names, table.key_columns, strict=True)
    )
    lists = ", ".join("%s::text[]" for _ in names)
    query = f"SELECT {selected} FROM {table.name.quoted} t JOIN unnest({lists}) AS k({', '.join(names)}) ON {matched}"
    parameters = [list(part) for part in zip(*keys, strict=True)]
    with source_errors(f"reading rows of {table.name}"):
        return connection.execute(query.encode(), parameters).fetchall() if keys else []


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
