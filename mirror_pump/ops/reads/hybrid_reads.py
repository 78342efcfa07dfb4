"""Hybrid reads: old rows of a mirrored table come from the lake, young rows from the heap, both as of one frontier.

Neither side can be read at an arbitrary position: the heap shows only the present, the lake only what was published. A
heap snapshot taken before the frontier misses transactions committed up to the frontier. A heap snapshot taken after
the frontier shows more than the frontier. An ordinary snapshot does not say which WAL position it corresponds to. A
hybrid read therefore takes three steps:

1. It creates a temporary slot, which gives a consistent point: a WAL position, and a database snapshot that sees
   exactly the transactions that ended before it.
2. It waits until the frontier has passed the consistent point and the position that the reader requests. It pins the
   lake there.
3. It reads the temporary slot's stream from the consistent point to the frontier, and applies the changes of the
   requested tables to the heap's rows.

Old side: the rows below the split, from the lake at the frontier. Young side: the rows at or above the split. Young
rows whose key did not change between the consistent point and the frontier come from the heap; those whose key changed
are read as they were at the frontier.

Invariant: the union of both sides is the table at the frontier, which is a state that the database had. Both sides
decide by the row as it was at the frontier whether it is old or young. If a row moved across the split
in between, its key changed, so the heap's version is hidden; the row comes from the side it is on at the frontier.
All tables are read at the same frontier. The frontier includes everything that was committed when the read began.

The read falls back to the heap, in one database snapshot for all tables, and warns the reader if the frontier is too
slow, if a transaction that was open at the beginning does not end in time, if no slot is free or permitted, or if a
table is altered or truncated meanwhile. Tables with a cut-line (tiered, or with heap retention) are read there instead,
in a database snapshot of their own.
"""

from __future__ import annotations

import datetime
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

import psycopg

from mirror_pump.database.quoting import identifier
from mirror_pump.errors import SourceError, TableError, UsageError
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn, MirroredTable, TableId, TierKind, tier_kind
from mirror_pump.ops.catch_up_changes import CatchUpTable, UnchangedValue, former_rows, read_catch_up_changes
from mirror_pump.ops.reads.read_scope import ReadScope
from mirror_pump.ops.reads.table_reads import (
    LakeSide,
    Point,
    ReadMode,
    TableRead,
    assemble,
    axis,
    heap_read,
    lake_read,
    one_frontier,
    promised,
    published,
    seam_read,
)
from mirror_pump.ops.status.wait_for_frontier import wait_for
from mirror_pump.source.catalog.consistent_snapshot import ConsistentSnapshot, DeltaRow, Locks, TableCutline
from mirror_pump.source.connect import as_source_error, source_errors
from mirror_pump.source.heap.heap_side import heap_side
from mirror_pump.source.relations.tier_keys import END
from mirror_pump.source.stream.consistent_point import ConsistentPoint

Split = int | datetime.datetime | datetime.date | str
"""A tier key value as the user gives it. A string is parsed as an SQL literal of the key's type."""

_YOUNG_SHARE = 10
"""The default split: the heap serves the newest 1/_YOUNG_SHARE of the key's range."""


def hybrid_reads(
    scope: ReadScope, table_ids: Sequence[TableId], min_lsn: Lsn | None, max_wait: float, split: Split | None = None
) -> list[TableRead]:
    """Return the reads of the tables. `min_lsn`: nothing older. `max_wait`: seconds to wait for the frontier."""
    storage = scope.storage
    consistent_snapshot = scope.enter(
        ConsistentSnapshot(scope.dsn, table_ids, locks=Locks.WITH_RETENTION, stopped=scope.stopped)
    )
    with_retention = [seam for seam in consistent_snapshot.seams.values() if seam.has_retention]
    whole = [seam.table.table_id for seam in consistent_snapshot.seams.values() if not seam.has_retention]
    for seam in consistent_snapshot.seams.values():
        if seam.state.dropped:
            raise TableError(f"{seam.table.name} was dropped in Postgres", "read what the lake has of it (mode lake)")
    tables = {seam.table.table_id: seam.table for seam in consistent_snapshot.seams.values()}

    def conditions_of(moment: ConsistentSnapshot) -> Mapping[TableId, str]:
        return scope.conditions((tables | {seam.table.table_id: seam.table for seam in moment.seams.values()}).values())

    conditions = conditions_of(consistent_snapshot)
    reads = [
        seam_read(consistent_snapshot, seam, storage, conditions.get(seam.table.table_id, ""))
        for seam in with_retention
    ]
    if not whole:
        return reads
    if with_retention:
        scope.warn(
            "tables with a cut-line are read as of a different point in time than the others"
            " (--mode lake reads all of them at one frontier)"
        )
    try:
        return [*reads, *_exact(scope, whole, min_lsn, max_wait, split, conditions_of)]
    except (SourceError, TableError) as error:
        if isinstance(error, TableError) and not isinstance(error, _FromHeap):
            raise
        scope.warn(f"read from the heap, not from the lake: {error}")
    moment = scope.enter(ConsistentSnapshot(scope.dsn, whole, locks=Locks.ALL, stopped=scope.stopped))
    conditions = conditions_of(moment)
    heaps = (heap_read(moment, seam, storage, conditions.get(table_id, "")) for table_id, seam in moment.seams.items())
    return [*reads, *heaps]


class _FromHeap(TableError):
    """The lake and the heap cannot be read at one frontier, so the heap alone has to serve the read."""


def _exact(
    scope: ReadScope,
    table_ids: Sequence[TableId],
    min_lsn: Lsn | None,
    max_wait: float,
    split: Split | None,
    conditions_of: Callable[[ConsistentSnapshot], Mapping[TableId, str]],
) -> list[TableRead]:
    """The reads at one frontier. Raises _FromHeap, or an error of the source, if the heap has to serve them."""
    deadline = time.monotonic() + max_wait
    settings, dsn, stopped = scope.settings, scope.dsn, scope.stopped
    slot = f"mirror_pump_read_{uuid.uuid4().hex[:12]}"
    with ExitStack() as attempt, ConsistentPoint(dsn, slot, max_wait) as point:
        old = ConsistentSnapshot(dsn, table_ids, locks=Locks.ALL, snapshot=point.snapshot, stopped=stopped)
        attempt.callback(old.release)
        target = max(point.lsn, min_lsn or Lsn(0))
        result = wait_for(settings, target, max(0.0, deadline - time.monotonic()))
        if result.error is not None:
            raise _FromHeap(str(result.error))
        lake = ConsistentSnapshot(dsn, table_ids, locks=Locks.NONE, stopped=stopped)
        attempt.callback(lake.release)
        frontier = one_frontier(lake.seams.values())
        if frontier is None or frontier < target:
            raise _FromHeap("a table can no longer be mirrored")
        tables = {seam.table.table_id: seam.table for seam in lake.seams.values()}
        for seam in old.seams.values():
            if old.rewritten(seam):
                raise _FromHeap(f"{seam.table.name} was truncated or rewritten during the read")
        with point.stream(settings.publication) as stream:
            changes = read_catch_up_changes(stream, tables, point.lsn, frontier, settings.mirror)
        conditions = conditions_of(lake)
        reads = [
            _read(
                old, lake.seams[table_id], changes.tables[table_id], split, scope.storage, conditions.get(table_id, "")
            )
            for table_id in table_ids
        ]
        attempt.pop_all()
    scope.enter(old)
    scope.enter(lake)
    return reads


def _read(
    moment: ConsistentSnapshot,
    seam: TableCutline,
    changes: CatchUpTable,
    split: Split | None,
    storage: StorageOptions,
    condition: str,
) -> TableRead:
    table = seam.table
    if changes.altered:
        raise _FromHeap(f"{table.name} was altered during the read: {changes.altered}")
    if changes.truncated:
        raise _FromHeap(f"{table.name} was truncated during the read")
    point = _point(moment, table, split)
    if point is None:
        return lake_read(seam, published(seam), storage)
    # A row that changed since is hidden, whatever it was; any other one fails `condition` at the frontier, too.
    heap = heap_side(moment.connection, moment.snapshot, table, point.above, rare_condition=condition)
    rows = _changed(moment, changes)
    young = _young(moment, table, rows, point)
    # A row that is old or deleted at the frontier only hides the heap's version of its key.
    corrections = [
        row if keep else DeltaRow(gone=True, values=row.values) for row, keep in zip(rows, young, strict=True)
    ]
    lake = LakeSide(seam.state.published_location, seam.state.snapshot_id, point)
    return assemble(table, ReadMode.HYBRID, lake, heap, storage, corrections, of_lake=False, frontier=promised(seam))


def _changed(moment: ConsistentSnapshot, changes: CatchUpTable) -> list[DeltaRow]:
    """Return the last version of each key that changed between the consistent point and the frontier."""
    table = changes.table
    places = [place for place, column in enumerate(table.columns) if column.name in table.key]
    old_rows = former_rows(changes, moment.connection)
    delta_rows = []
    for key, row in changes.rows.items():
        if row is None:
            values: list[str | None] = [None] * len(table.columns)
            for place, part in zip(places, key, strict=True):
                values[place] = part
            delta_rows.append(DeltaRow(gone=True, values=tuple(values)))
        else:
            cells = (
                old_rows[cell.key][place] if isinstance(cell, UnchangedValue) else cell
                for place, cell in enumerate(row)
            )
            delta_rows.append(DeltaRow(gone=False, values=tuple(cells)))
    return delta_rows


def _young(moment: ConsistentSnapshot, table: MirroredTable, rows: Sequence[DeltaRow], point: Point) -> list[bool]:
    """Return for each row whether it exists and is at or above the split. Postgres makes the comparison."""
    if not rows:
        return []
    place, column = next(
        (at, candidate) for at, candidate in enumerate(table.columns) if candidate.name == point.column
    )
    if point.literal is None:
        return [not row.gone for row in rows]
    query = (
        f"SELECT coalesce(v.text::{column.type_sql} >= {point.literal}, false)"
        " FROM unnest(%s::text[]) WITH ORDINALITY AS v(text, place) ORDER BY v.place"
    )
    texts = [None if row.gone else row.values[place] for row in rows]
    with source_errors(f"sorting changes of {table.name}"):
        return [bool(young) for (young,) in moment.connection.execute(query.encode(), (texts,))]


def _point(moment: ConsistentSnapshot, table: MirroredTable, split: Split | None) -> Point | None:
    """Return where the table is split. None if it has no column to split on; the lake then serves all of it."""
    column = axis(table)
    if column is None:
        if split is not None:
            raise UsageError(
                f"{table.name} cannot be split: the type of its first key column does not allow it",
                "leave the split out, or read the lake",
            )
        return None
    kind, name = tier_kind(column.type), identifier(column.name)
    assert kind is not None, column.type
    # The tier key counts in the type's own unit (integers, days, microseconds). It has no value for infinities.
    value = {
        TierKind.BIGINT: "{0}::bigint",
        TierKind.DATE: "({0} - date '1970-01-01')::bigint",
        TierKind.TIMESTAMP: "(extract(epoch FROM {0}) * 1000000)::bigint",
        TierKind.TIMESTAMPTZ: "(extract(epoch FROM {0}) * 1000000)::bigint",
    }[kind]
    if split is not None:
        return Point(column.name, kind, _split_value(moment, column.type_sql, value, split))
    with source_errors(f"choosing where to split {table.name}"):
        finite = "" if kind is TierKind.BIGINT else f" WHERE isfinite({name})"
        row = moment.connection.execute(
            f"SELECT {value.format('min(k)')}, {value.format('max(k)')} FROM (SELECT {name} AS k FROM"
            f" {table.name.quoted}{finite}) h".encode()
        ).fetchone()
    assert row is not None
    lowest, highest = row
    if lowest is None:
        return Point(column.name, kind, END)
    return Point(column.name, kind, highest - (highest - lowest) // _YOUNG_SHARE)


def _split_value(moment: ConsistentSnapshot, type_sql: str, value: str, split: Split) -> int:
    query = f"SELECT {value.format('x.v')} FROM (SELECT %s::text::{type_sql}) x(v)"
    try:
        with moment.connection.transaction():
            row = moment.connection.execute(query.encode(), (str(split),)).fetchone()
    except psycopg.DataError as error:
        raise UsageError(
            f"{split!r} is not a valid {type_sql} at which to split a table", str(error).partition("\n")[0]
        ) from error
    except psycopg.Error as error:
        raise as_source_error(error, "reading where to split") from error
    assert row is not None
    return int(row[0])
