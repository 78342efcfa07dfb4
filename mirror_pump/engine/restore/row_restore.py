"""A task that copies rows of the lake into tables of Postgres, each into the one with its range of the tier key.

A task is one transaction, and its entry in modak.op_log is part of it. So it has copied all of its rows or none, and
a second run of it copies nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import psycopg
import pyarrow as pa
from psycopg.types.json import Jsonb
from pyarrow import csv

from decoders.printing import print_values
from mirror_pump.database.errors import is_connection_loss
from mirror_pump.database.quoting import identifier
from mirror_pump.engine.comparison.live_rows import KeySet, LiveRows, TierRange, live_rows
from mirror_pump.errors import Interrupted, TableError, one_line_of
from mirror_pump.lake.format.raw_text_columns import raw_text_id
from mirror_pump.lake.key_index.packed_keys import KeyPacking
from mirror_pump.model import Column, TableId, TableName
from mirror_pump.source.connect import PgConnection, acting_as, connect, source_errors
from sql import queries

_SQL = queries("restore")
_CSV = csv.WriteOptions(include_header=False, quoting_style="all_valid")
"""Every value quoted and NULL empty, which is how COPY tells NULL from the empty string."""


@dataclass(frozen=True)
class RestoredColumn:
    """A column to fill."""

    column: Column
    is_array: bool
    """If the lake's type is a list: whether Postgres has an array, and not a vector of pgvector."""


@dataclass(frozen=True)
class RangeTable:
    """A table that takes the rows with a tier value in [lo, hi)."""

    name: TableName
    lo: int
    hi: int


@dataclass(frozen=True)
class RestoreTask:
    """Files of the lake, and the tables that take their rows."""

    dsn: str = field(repr=False)
    entry: str
    """UUID of the task's row in modak.op_log, the same for each attempt."""
    restore: str
    """UUID of the row of the whole."""
    table_id: TableId
    role: str | None
    """The role with whose rights the rows are written; None for that of the connection."""
    chosen: TierRange
    packing: KeyPacking
    key_ids: tuple[int, ...]
    """Field IDs of the key columns."""
    columns: tuple[RestoredColumn, ...]
    tables: tuple[RangeTable, ...]
    """In ascending order. Rows in none of their ranges are left out: the heap has them."""


def restore_rows(task: RestoreTask, stopped: Callable[[], bool] = lambda: False) -> int:
    """Copies the rows. Returns their number; 0 if the task was done before.

    Raises LakeError, TableError for a row that Postgres refuses, SourceError, ConnectionLost, and Interrupted once
    `stopped` returns true.
    """
    with connect(task.dsn, lock_timeout="0") as connection, source_errors("copying rows back"):
        parameters = {"op_id": task.entry, "table_id": task.table_id, "details": Jsonb({"restore": task.restore})}
        if not connection.execute(_SQL["copied"], parameters).rowcount:
            return 0
        copied = 0
        try:
            with acting_as(connection, task.role):
                for batch in live_rows(task.chosen, task.packing):
                    if stopped():
                        raise Interrupted("the copy was interrupted")
                    copied += _copy(connection, task, batch)
        except psycopg.Error as error:
            if is_connection_loss(error):
                raise
            raise _refused(error) from error
        connection.execute(_SQL["copied_rows"], {"op_id": task.entry, "rows": copied})
        return copied


def _refused(error: psycopg.Error) -> TableError:
    """What Postgres says to a row, with the place of the row."""
    where = f" ({one_line_of(error.diag.context)})" if error.diag.context else ""
    detail = f": {one_line_of(error.diag.message_detail)}" if error.diag.message_detail else ""
    return TableError(
        f"Postgres did not take a row of the lake: {one_line_of(error.diag.message_primary or error)}{detail}{where}",
        "Remove the obstacle, and run `mirror-pump unregister TABLE --restore-heap` again: it goes on where it was."
        " With --abort it removes what it has copied.",
    )


def _copy(connection: PgConnection, task: RestoreTask, batch: LiveRows) -> int:
    """Copies a batch. Returns the number of rows."""
    live = np.ones(batch.rows, np.bool_)
    if batch.deleted is not None and len(batch.deleted):
        live = ~KeySet(batch.deleted).among(task.packing.pack([batch.columns[field_id] for field_id in task.key_ids]))
    ends = np.array([table.hi for table in task.tables], np.int64)
    places = np.searchsorted(ends, batch.tiers, side="right")
    lows = np.array([*(table.lo for table in task.tables), np.iinfo(np.int64).max], np.int64)
    live &= batch.tiers >= lows[places]
    copied = 0
    texts = None
    for place in np.unique(places[live]).tolist():
        texts = texts or _texts(task, batch)
        chosen = live & (places == place)
        _write(connection, task.tables[place].name, texts if chosen.all() else texts.filter(pa.array(chosen)))
        copied += int(chosen.sum())
    return copied


def _texts(task: RestoreTask, batch: LiveRows) -> pa.Table:
    """The rows as texts, in the order of the columns."""
    printed = {}
    for restored in task.columns:
        column = restored.column
        values = batch.columns.get(column.field_id)
        if values is None:
            text = pa.array([column.older_value], pa.string())
            printed[column.name] = text.take(pa.array(np.zeros(batch.rows, np.int64)))
            continue
        text = print_values(values, column.type, is_array=restored.is_array, trimmed=column.chosen)
        raw = batch.columns.get(raw_text_id(column.field_id))
        printed[column.name] = text if raw is None else pa.compute.coalesce(text, raw.cast(pa.string()))
    return pa.table(printed)


def _write(connection: PgConnection, table: TableName, texts: pa.Table) -> None:
    names = ", ".join(identifier(name) for name in texts.column_names)
    with connection.cursor().copy(f"COPY {table.quoted} ({names}) FROM STDIN (FORMAT csv)".encode()) as copy:
        for part in _parts(texts):
            copy.write(part)


def _parts(texts: pa.Table) -> Iterator[bytes]:
    for batch in texts.to_batches(max_chunksize=4096):
        sink = pa.BufferOutputStream()
        csv.write_csv(batch, sink, _CSV)
        yield sink.getvalue().to_pybytes()
