"""Has PostgreSQL read the values of some columns, by COPY into a temporary table, and print them again.

The temporary table has the table's types, defaults, generated columns, NOT NULL and CHECK constraints, as far as they
concern these columns. So what comes back is what an INSERT would have stored, and what it would refuse is refused.
Texts that an INSERT would round, or cut, are refused as well: the table has them beside the values of such columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.csv as pacsv

from decoders.pgtypes import element_of
from mirror_pump.database.quoting import identifier, literal
from mirror_pump.ops.ingest.ingest_target import IngestTarget
from mirror_pump.ops.row_files.row_batch import one_array
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.copy_csv import csv_bytes
from mirror_pump.source.relations.target_columns import TargetColumn

_NUMBER = "mirror_pump_row"

_DATE = 1082
_TIMES = frozenset({1083, 1114, 1184, 1186, 1266})
"""time, timestamp, timestamptz, interval, timetz by pg_type.oid."""
_MODIFIED = _TIMES | {1700, 1043}
"""Also numeric and varchar: with a modifier they keep less than without. Not char(n), in which blanks at the end mean
nothing, nor bit(n), which refuses what does not fit."""

_MODIFIER = re.compile(r" ?\([0-9]+(?:,-?[0-9]+)?\)")
"""The modifier in a name of pg_catalog.format_type, such as `numeric(12,2)[]` or `interval day to second(3)`."""


class ValueRounded(ValueError):
    """A text says more than its column keeps."""


@dataclass(frozen=True)
class _Stage:
    """A temporary table for one set of columns."""

    name: str
    texts: Mapping[str, str]
    """Columns whose values may be rounded, each with the column that keeps its text."""
    rounded: Mapping[str, str]
    """Conditions by column: a row's value is not what the text says."""


class PostgresValues:
    """One connection and its temporary tables. Used by one thread at a time."""

    def __init__(self, connect: Callable[[], PgConnection], target: IngestTarget) -> None:
        """`connect` returns a connection in autocommit mode. It is opened when it is first needed."""
        self._connect = connect
        self._connection: PgConnection | None = None
        self._target = target
        self._stages: dict[frozenset[str], _Stage] = {}

    def close(self) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()

    def read(self, names: frozenset[str], given: Mapping[str, pa.Array], rows: int) -> dict[str, pa.Array]:
        """The texts of the columns `names` of some rows, as PostgreSQL prints them. `given`: texts of those columns
        that the input has. Raises psycopg.Error if PostgreSQL refuses a row, ValueRounded if it would round a value."""
        if self._connection is None:
            self._connection = self._connect()
        stage = self._stages.get(names)
        if stage is None:
            stage = self._stages[names] = self._make_stage(self._connection, names, len(self._stages))
        columns = [name for name in names if name in given]
        table = pa.table(
            [
                pa.array(np.arange(rows)).cast(pa.string()),
                *(given[name] for name in columns),
                *(given[name] for name in stage.texts),
            ],
            [_NUMBER, *columns, *stage.texts.values()],
        )
        listed = ", ".join(identifier(name) for name in table.column_names)
        ordered = sorted(names)
        printed = ", ".join(identifier(name) for name in ordered)
        with self._connection.transaction(), self._connection.cursor() as cursor:
            cursor.execute(f"TRUNCATE {stage.name}".encode())
            with cursor.copy(f"COPY {stage.name} ({listed}) FROM STDIN (FORMAT csv)".encode()) as copy:
                copy.write(csv_bytes(table))
            for name, rounded in stage.rounded.items():
                _require_whole(cursor, stage, name, rounded)
            rows_in_order = f"SELECT {printed} FROM {stage.name} ORDER BY {_NUMBER}"
            with cursor.copy(f"COPY ({rows_in_order}) TO STDOUT (FORMAT csv, FORCE_QUOTE *)".encode()) as copy:
                content = b"".join(bytes(part) for part in copy)
        return _parsed(content, ordered)

    def _make_stage(self, connection: PgConnection, names: frozenset[str], number: int) -> _Stage:
        """Makes the temporary table for a set of columns."""
        stage = f"pg_temp.mirror_pump_{number}"
        target = self._target
        with connection.transaction():
            connection.execute(
                f"CREATE TEMP TABLE mirror_pump_{number} (LIKE {target.relation} INCLUDING DEFAULTS"
                " INCLUDING CONSTRAINTS INCLUDING GENERATED)".encode()
            )
            dropped = [column for column in target.columns if column.name not in names]
            # Generated columns first: others may depend on them no longer then.
            for column in sorted(dropped, key=lambda column: not column.is_generated):
                connection.execute(f"ALTER TABLE {stage} DROP COLUMN {identifier(column.name)}".encode())
            for column in target.columns:
                if column.name in names and column.sequence is not None and column.name not in target.given:
                    default = f"nextval({literal(column.sequence)}::regclass)"
                    connection.execute(
                        f"ALTER TABLE {stage} ALTER COLUMN {identifier(column.name)} SET DEFAULT {default}".encode()
                    )
            connection.execute(f"ALTER TABLE {stage} ADD COLUMN {_NUMBER} int".encode())
            texts, rounded = {}, {}
            for column in target.columns:
                text = f"mirror_pump_text_{column.attnum}"
                condition = _rounds(text, column)
                if condition is not None and column.name in names and column.name in target.given:
                    connection.execute(f"ALTER TABLE {stage} ADD COLUMN {text} text".encode())
                    texts[column.name], rounded[column.name] = text, condition
        return _Stage(stage, texts, rounded)


def _rounds(text: str, column: TargetColumn) -> str | None:
    """An SQL condition: the column's value is not all of what the SQL expression `text` says. None if it always is.

    `text` is of type text, and PostgreSQL accepts it as a value of the column. That a float takes the nearest number
    that it has is no rounding in this sense.
    """
    conditions = []
    element = element_of(column.type_oid)
    single = column.type_oid if element is None else element
    if single in _MODIFIED and column.type_modifier != -1:
        unbounded = _MODIFIER.sub("", column.type_sql)
        conditions.append(f"{text}::{unbounded} <> {text}::{column.type_sql}")
    if single in _TIMES:
        # Microseconds are what PostgreSQL has.
        conditions.append(f"{text} ~ '[0-9][.][0-9]{{6}}[0-9]*[1-9]'")
    if single == _DATE:
        many = "" if element is None else "[]"
        conditions.append(
            f"CASE WHEN {text} ~ ':' THEN {text}::timestamp{many} <> {text}::date{many}::timestamp{many} END"
        )
    return " OR ".join(conditions) or None


def _require_whole(cursor: psycopg.Cursor[tuple[object, ...]], stage: _Stage, name: str, rounded: str) -> None:
    """Raises ValueRounded for a row whose value is not what its text says."""
    row = cursor.execute(
        f"SELECT {stage.texts[name]}, {identifier(name)}::text FROM {stage.name} WHERE {rounded} LIMIT 1".encode()
    ).fetchone()
    if row is not None:
        text, stored = row
        raise ValueRounded(f"column {name}: {text} would be stored as {stored}")


def _parsed(content: bytes, names: list[str]) -> dict[str, pa.Array]:
    """The columns of what COPY TO has printed: a field in quotes is a value, an empty one without is NULL."""
    if not content:
        return {name: pa.array([], pa.string()) for name in names}
    table = pacsv.read_csv(
        pa.BufferReader(content),
        pacsv.ReadOptions(column_names=names, use_threads=False, block_size=len(content) + 1),
        pacsv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        pacsv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    return {name: one_array(table.column(name)) for name in names}
