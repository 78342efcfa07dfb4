"""The columns of a table that rows are brought into, by an ingest or a load, as the table's owner has them now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mirror_pump.errors import TableError
from mirror_pump.model import TableId, TableName
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.rows import fetch_rows
from sql import queries

_SQL = queries("relations")


ValueKind = Literal["json", "array", "uuid array", "uuid", "bytes", "other"]
"""How a value that is not text is written for PostgreSQL."""


@dataclass(frozen=True)
class TargetColumn:
    """A column of the table; a row of the query `target_columns`."""

    attnum: int
    name: str
    type_oid: int
    type_modifier: int
    type_sql: str
    not_null: bool
    is_generated: bool
    identity: str
    """pg_attribute.attidentity: `a` (always: given on INSERT, never updated), `d` (by default), or empty."""
    expression: str | None
    """The default, or what a generated column is computed from."""
    checked: bool
    """A CHECK constraint or a generated column refers to it."""
    sequence: str | None
    """The sequence of an identity column."""
    in_key: bool
    kind: ValueKind


def read_target_columns(connection: PgConnection, table_id: TableId) -> tuple[TargetColumn, ...]:
    """All columns of a table, in their order. Raises psycopg.Error."""
    return tuple(fetch_rows(connection, TargetColumn, _SQL["target_columns"], {"table_id": table_id}))


def require_given(table: TableName, columns: Sequence[TargetColumn], given: Sequence[str]) -> None:
    """Raises TableError if the columns of an input are not some of the table's, or are generated."""
    names = [column.name for column in columns]
    twice = sorted({name for name in given if given.count(name) > 1})
    if twice:
        raise TableError(f"{table}: the input has two columns {', '.join(twice)}", "name each column once")
    unknown = [name for name in given if name not in names]
    if unknown:
        raise TableError(
            f"{table} has no column {', '.join(unknown)}, which the input has",
            f"it has {', '.join(names)}; --columns names the columns of a CSV file, and chooses those of others",
        )
    generated = [column.name for column in columns if column.is_generated and column.name in given]
    if generated:
        raise TableError(
            f"{table}: column {', '.join(generated)} is generated",
            "leave it out: --columns chooses the columns of JSON lines and Parquet",
        )
