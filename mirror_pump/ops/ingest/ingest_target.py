"""The columns of the table that rows are ingested into, and which of their values PostgreSQL itself has to make.

Values of ordinary types are converted here, where that is certain to give what an INSERT would. All others go through
a temporary table of the same column types, and come back as PostgreSQL prints them: those of other types (json, arrays,
domains, enums, char(n)), of columns that a CHECK constraint or a generated column refers to, and defaults that are
computed for each row.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from decoders.pgtypes import NUMERIC, column_type
from mirror_pump.database.quoting import in_query
from mirror_pump.errors import TableError
from mirror_pump.model import Column, MirroredTable
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.relations.target_columns import TargetColumn, read_target_columns, require_given
from sql import queries

_SQL = queries("ingest")

BOOL, BYTEA, INT2, TEXT, VARCHAR, TIMESTAMP, TIMESTAMPTZ = 16, 17, 21, 25, 1043, 1114, 1184
_PLAIN = frozenset({BOOL, BYTEA, 20, INT2, 23, TEXT, 700, 701, 1082, VARCHAR, 2950, NUMERIC})
"""Ordinary types by pg_type.oid: boolean, bytea, integers, text, floats, date, varchar, uuid, numeric."""
_PLAIN_UNLESS_ROUNDED = frozenset({TIMESTAMP, TIMESTAMPTZ})
"""Ordinary types, unless the column rounds its values."""

_SAME_FOR_ALL_ROWS = re.compile(
    r"(?:NULL|true|false|-?[0-9.]+|\(-[0-9.]+\)|'(?:[^']|'')*'|now\(\)|CURRENT_(?:TIMESTAMP|DATE|TIME|USER))"
    r"(?:::[a-z0-9_ ,()\[\]\"]+)?",
    re.IGNORECASE,
)
"""Defaults that have one value for all rows of a transaction, as pg_get_expr() prints them."""


@dataclass(frozen=True)
class IngestTarget:
    """The table, and how each of its columns gets its values. Picklable and frozen; threads share it."""

    table: MirroredTable
    relation: str
    """The table's name as SQL has it."""
    columns: tuple[TargetColumn, ...]
    """All columns of the table in Postgres."""
    given: tuple[str, ...]
    """The columns that the input has."""
    by_postgres: frozenset[str] = field(default=frozenset())
    """Columns that always go through a temporary table."""
    constants: tuple[tuple[str, str | None], ...] = ()
    """Columns that the input lacks, with the text of the value that all rows get."""

    @property
    def lake_columns(self) -> tuple[Column, ...]:
        """The mirrored columns, without masks: the heap gets the values as they are, and the stream masks them."""
        return _unmasked(self.table)

    def column(self, name: str) -> TargetColumn:
        return next(column for column in self.columns if column.name == name)

    @property
    def unmirrored(self) -> tuple[str, ...]:
        """Given columns that the lake does not have."""
        mirrored = {column.name for column in self.lake_columns}
        return tuple(name for name in self.given if name not in mirrored)


def read_columns(connection: PgConnection, table: MirroredTable) -> tuple[str, tuple[TargetColumn, ...]]:
    """The table's name for SQL, and its columns as they are in Postgres now.

    Raises TableError if the mirror has not followed a change of them yet.
    """
    row = connection.execute(_SQL["relation"], {"table_id": table.table_id}).fetchone()
    if row is None:
        raise TableError(f"{table.name} does not exist any more")
    (relation,) = row
    columns = read_target_columns(connection, table.table_id)
    postgres_columns = {column.attnum: (column.name, column.type_oid, column.type_modifier) for column in columns}
    mirrored_columns = {column.attnum: (column.name, column.type_oid, column.type_modifier) for column in table.columns}
    left_out = {column.attnum for column in table.excluded}
    new = [
        column.name
        for column in columns
        if not column.is_generated and column.attnum not in mirrored_columns.keys() | left_out
    ]
    changed = [
        name
        for attnum, (name, *_) in mirrored_columns.items()
        if postgres_columns.get(attnum) != mirrored_columns[attnum]
    ]
    if new or changed:
        raise TableError(
            f"{table.name} was altered (column {', '.join([*new, *changed])}), and the mirror has not followed yet",
            "ingest again when it has: `mirror-pump wait --now --timeout 60` returns then",
        )
    return relation, columns


def choose_target(
    connection: PgConnection,
    table: MirroredTable,
    relation: str,
    columns: Sequence[TargetColumn],
    given: Sequence[str],
) -> IngestTarget:
    """How the columns of the table get their values from an input with the columns `given`.

    Raises TableError for columns that the table does not have, that are generated, or without which there is no row.
    """
    require_given(table.name, columns, given)
    missing = [column for column in columns if column.name not in given and not column.is_generated]
    needed = [column.name for column in missing if column.not_null and not _has_default(column)]
    if needed:
        raise TableError(
            f"the input has no column {', '.join(needed)}, which {table.name} must have", "it has no default"
        )
    mirrored = {column.name: column for column in _unmasked(table)}
    by_postgres = {
        column.name
        for column in columns
        if column.name in mirrored and _is_made_by_postgres(column, mirrored[column.name], given)
    }
    by_postgres |= {column.name for column in columns if column.checked}
    constants = tuple(
        (column.name, _constant(connection, column))
        for column in missing
        if column.name in mirrored and column.name not in by_postgres
    )
    return IngestTarget(table, relation, tuple(columns), tuple(given), frozenset(by_postgres), constants)


def _unmasked(table: MirroredTable) -> tuple[Column, ...]:
    return tuple(replace(column, type=column.type.unmasked) for column in table.columns)


def _is_made_by_postgres(column: TargetColumn, mirrored: Column, given: Sequence[str]) -> bool:
    if column.is_generated:
        return True
    return not (is_plain(column, mirrored) if column.name in given else _default_is_one_value(column))


def _has_default(column: TargetColumn) -> bool:
    return bool(column.identity) or (column.expression is not None and not column.is_generated)


def _default_is_one_value(column: TargetColumn) -> bool:
    """Whether all rows of a transaction get the same default."""
    return not column.identity and (
        column.expression is None or _SAME_FOR_ALL_ROWS.fullmatch(column.expression) is not None
    )


def is_plain(column: TargetColumn, mirrored: Column) -> bool:
    """Whether values of the column are converted here."""
    plain = column.type_oid in _PLAIN or (column.type_oid in _PLAIN_UNLESS_ROUNDED and column.type_modifier == -1)
    return plain and mirrored.type == column_type(column.type_oid, column.type_modifier)


def read_at_once(target: IngestTarget) -> dict[str, pa.DataType]:
    """Types of the columns whose texts Arrow reads as PostgreSQL does, while it parses them."""
    return {
        column.name: column.type.arrow
        for column in target.lake_columns
        if column.name in target.given
        and column.name not in target.by_postgres
        and column.type.facts.read_by_arrow
        and target.column(column.name).type_oid != INT2
    }


def insertable(target: IngestTarget, names: Collection[str]) -> list[str]:
    """Those of the columns that an INSERT may name."""
    return [column.name for column in target.columns if column.name in names and not column.is_generated]


def _constant(connection: PgConnection, column: TargetColumn) -> str | None:
    """The text of a default that is the same for all rows."""
    if column.expression is None:
        return None
    value = f"({in_query(column.expression)})::{column.type_sql}"
    query = f"SELECT format('%%s', v) FROM (SELECT {value} AS v) s WHERE v IS NOT NULL"
    row = connection.execute(query.encode(), ()).fetchone()
    return None if row is None else str(row[0])
