"""Heap against lake, every column of every row, while writes go on and without a lock.

1. A temporary slot gives a WAL position L and a snapshot that sees exactly what ended before it. The heap is read in
   that snapshot, chunk by chunk, into a scratch Iceberg table.
2. F is waited for until it has passed L; then F and every table's S are read, and pinned, in one statement.
3. The temporary slot's own stream from L to F is laid over the scratch table: now it holds what the heap held at F.
4. Spark compares the two Iceberg tables.

Heap and lake are never compared at different points in time, so concurrent writes cannot look like differences, nor
excuse any.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from decoders.text import parse_text
from mirror_pump.config import Settings
from mirror_pump.engine.copying import ChunkTask, copy_chunk
from mirror_pump.engine.runner import SparkTaskRunner
from mirror_pump.engine.session import SparkSettings, spark_session
from mirror_pump.errors import SourceError, TableError
from mirror_pump.lake.commit import BornFile, LakeTable, RowDelta, SegmentFiles
from mirror_pump.lake.files import WrittenFile, write_data_file, write_equality_deletes
from mirror_pump.lake.schema import LakeSchema
from mirror_pump.lake.storage import StorageOptions, delete_tree, join
from mirror_pump.model import Column, Lsn, MirroredTable, TableId, TableState, format_lsn
from mirror_pump.ops.catchup import reach
from mirror_pump.ops.compare import Comparison, compare
from mirror_pump.ops.overlay import Key, Overlay, TableOverlay, Unchanged
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.source.copyread import plan_chunks
from mirror_pump.source.relations import resolve_name
from mirror_pump.source.rows import read_rows
from mirror_pump.source.snapshot import ConsistentPoint
from mirror_pump.source.stream import XLOG_HEADER_BYTES, ReplicationStream
from mirror_pump.source.tables import load_table
from sql import queries

_SQL = queries("verify")

_POINT_TIMEOUT = 120.0
"""Seconds to wait for transactions that were open when the consistent point was asked for."""
_STREAM_WAIT = 1.0
"""Seconds between status updates to the temporary slot's walsender while nothing comes."""
_CHUNK_BYTES = 64 << 20
"""Heap bytes that one task reads."""
_READ_MESSAGES = 8192


@dataclass(frozen=True)
class TableReport:
    """The outcome for one table."""

    table: str
    comparison: Comparison | None
    problem: str = ""
    """Why the table could not be compared; then it does not count as equal."""

    @property
    def equal(self) -> bool:
        return self.comparison is not None and self.comparison.different_rows == 0

    def to_json(self) -> dict[str, Any]:
        found = self.comparison
        return {
            "table": self.table,
            "equal": self.equal,
            "heap_rows": found.heap_rows if found else 0,
            "lake_rows": found.lake_rows if found else 0,
            "different_rows": found.different_rows if found else 0,
            "differences": [*(found.differences if found else ()), *([self.problem] if self.problem else [])],
        }


@dataclass(frozen=True)
class VerifyReport:
    frontier: Lsn
    tables: tuple[TableReport, ...]

    @property
    def equal(self) -> bool:
        return all(table.equal for table in self.tables)

    def to_json(self) -> dict[str, Any]:
        """The shape that docs/cli-json.md promises."""
        return {"frontier": format_lsn(self.frontier), "tables": [table.to_json() for table in self.tables]}


def verify(settings: Settings, names: Sequence[str] = ()) -> VerifyReport:
    """Compare the named tables, or all live ones. Raises UsageError for a name that is no table, SourceError when no
    consistent point is reached or no free slot is left. Without a running pump it catches up first."""
    dsn = settings.require_dsn()
    storage = StorageOptions(settings.storage_properties, fsync=False)
    with connect(dsn, autocommit=True, application_name="mirror-pump-verify") as connection:
        chosen = _choose(connection, settings, names)
        tables = {table.table_id: table for table in chosen if table.state is TableState.LIVE}
        problems = [
            TableReport(str(table.name), None, f"the table is {table.state.value}: see `mirror-pump status`")
            for table in chosen
            if table.state is not TableState.LIVE
        ]
        scratch = join(settings.require_warehouse(), f".verify-{uuid.uuid4().hex[:12]}")
        try:
            frontier, reports = _compare_all(settings, connection, tables, storage, scratch)
        finally:
            delete_tree(scratch, storage)
    return VerifyReport(frontier, (*reports, *problems))


def _choose(connection: PgConnection, settings: Settings, names: Sequence[str]) -> list[MirroredTable]:
    if names:
        ids = [resolve_name(connection, name)[1] for name in names]
    else:
        with source_errors("reading the mirrored tables"):
            ids = [TableId(row[0]) for row in connection.execute(_SQL["live"], {"slot": settings.slot})]
    chosen = [load_table(connection, table_id) for table_id in ids]
    for table, name in zip(chosen, names, strict=False):
        if table is None:
            raise TableError(f"{name} is not mirrored", "`mirror-pump status` lists the tables that are.")
    return [table for table in chosen if table is not None]


def _compare_all(
    settings: Settings,
    connection: PgConnection,
    tables: Mapping[TableId, MirroredTable],
    storage: StorageOptions,
    scratch: str,
) -> tuple[Lsn, list[TableReport]]:
    if not tables:
        row = connection.execute(_SQL["applied"], {"slot": settings.slot}).fetchone()
        return Lsn(row[0] if row else 0), []
    cores = os.cpu_count() or 1
    log = Path(os.environ.get("TMPDIR", "/tmp")) / f"mirror-pump-spark-{os.getuid()}.log"  # noqa: S108 - a log only
    spark = spark_session(SparkSettings(master=settings.master, app_name="mirror-pump-verify", log=log))
    runner = SparkTaskRunner(spark, cores)
    try:
        slot = f"mirror_pump_verify_{uuid.uuid4().hex[:12]}"
        with ConsistentPoint(settings.require_dsn(), slot, _POINT_TIMEOUT) as point, _reader(settings, point) as reader:
            heaps = {
                table_id: _read_heap(settings, reader, table, point, runner, storage, scratch)
                for table_id, table in tables.items()
            }
            reach(settings, point.lsn)
            with _pinned(connection, tables) as (frontier, locations):
                with point.stream(settings.publication) as stream:
                    overlay = _overlay(stream, tables, point.lsn, frontier)
                reports = []
                for table_id, table in tables.items():
                    one = overlay.tables[table_id]
                    if one.altered:
                        problem = f"the table was altered while it was being compared: {one.altered}"
                        reports.append(TableReport(str(table.name), None, problem))
                        continue
                    heap = _laid_over(heaps[table_id], one, reader, storage)
                    schema = LakeSchema.of_table(table)
                    found = compare(spark, heap.metadata_location, locations[table_id], schema)
                    reports.append(TableReport(str(table.name), found))
        return frontier, reports
    finally:
        runner.close()


@contextmanager
def _reader(settings: Settings, point: ConsistentPoint) -> Iterator[PgConnection]:
    """A connection that sees the consistent point for as long as it is open."""
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-verify") as connection:
        with source_errors("importing the consistent point's snapshot"):
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            connection.execute(f"SET TRANSACTION SNAPSHOT '{point.snapshot}'".encode())
        yield connection


def _read_heap(
    settings: Settings,
    reader: PgConnection,
    table: MirroredTable,
    point: ConsistentPoint,
    runner: SparkTaskRunner,
    storage: StorageOptions,
    scratch: str,
) -> LakeTable:
    """The heap at the consistent point, as a scratch Iceberg table."""
    location = join(scratch, str(table.table_id))
    target = MirroredTable(**{**table.__dict__, "location": location})
    staged = LakeTable.create(LakeSchema.of_table(table), location, storage, {}, _now_ms())
    futures = [
        runner.submit(copy_chunk, ChunkTask(settings.require_dsn(), target, chunk, storage, point.snapshot))
        for chunk in plan_chunks(reader, table.table_id, _CHUNK_BYTES)
    ]
    born = []
    for result in [future.result() for future in futures]:
        if result.error is not None:
            raise TableError(f"{table.name}: {result.error}")
        if result.heap_rewritten:
            raise SourceError(f"the heap of {table.name} was rewritten while it was being read", "Run verify again.")
        if result.file is not None:
            born.append(BornFile(result.file, staged.sequence_number))
    return staged.table.stage(RowDelta((), born=tuple(born)), _now_ms()).table


@contextmanager
def _pinned(
    connection: PgConnection, tables: Mapping[TableId, MirroredTable]
) -> Iterator[tuple[Lsn, dict[TableId, str]]]:
    """F, and the metadata file of each table's S at that F."""
    with source_errors("reading the frontier"):
        rows = connection.execute(_SQL["pin"], {"table_ids": list(tables)}).fetchall()
    try:
        frontiers = {row[2] for row in rows}
        if len(rows) != len(tables) or len(frontiers) != 1 or None in frontiers:
            raise SourceError("a table left the mirror while it was being compared", "Run verify again.")
        yield Lsn(frontiers.pop()), {TableId(row[1]): str(row[3]) for row in rows}
    finally:
        with source_errors("releasing the pins"):
            connection.execute(_SQL["release"], {"pins": [row[0] for row in rows]})


def _overlay(stream: ReplicationStream, tables: Mapping[TableId, MirroredTable], start: Lsn, until: Lsn) -> Overlay:
    """Everything that ended after `start` and at or before `until`."""
    overlay = Overlay(tables, start)
    while True:
        messages: list[bytes] = []
        stream.read(messages, _READ_MESSAGES, _STREAM_WAIT)
        for message in messages:
            if not overlay.feed(bytes(message[XLOG_HEADER_BYTES:]), until):
                return overlay
        keepalive = stream.keepalive
        if overlay.position >= until or (keepalive is not None and keepalive.wal_end >= until and not messages):
            return overlay
        stream.send_status(start, start, start, reply=not messages)


def _laid_over(heap: LakeTable, overlay: TableOverlay, reader: PgConnection, storage: StorageOptions) -> LakeTable:
    """The scratch table with the overlay on top."""
    if not overlay.rows and not overlay.truncated:
        return heap
    table, schema = overlay.table, heap.schema
    former = _former_rows(overlay, reader)
    rows = [
        tuple(former[cell.key][place] if isinstance(cell, Unchanged) else cell for place, cell in enumerate(row))
        for row in overlay.rows.values()
        if row is not None
    ]
    data: tuple[WrittenFile, ...] = ()
    deletes: tuple[WrittenFile, ...] = ()
    if rows:
        data = (write_data_file(_typed(rows, table.columns), schema, heap.location, storage),)
    if overlay.rows:
        keys = _typed(list(overlay.rows), table.key_columns)
        deletes = (write_equality_deletes(keys, schema, heap.location, storage),)
    delta = RowDelta((SegmentFiles(data, deletes),), replace=overlay.truncated)
    return heap.stage(delta, _now_ms()).table


def _former_rows(overlay: TableOverlay, reader: PgConnection) -> dict[Key, tuple[str | None, ...]]:
    """The heap's rows at the consistent point that unchanged values refer to, by key."""
    wanted = {
        cell.key for row in overlay.rows.values() if row is not None for cell in row if isinstance(cell, Unchanged)
    }
    columns = overlay.table.columns
    found = read_rows(reader, overlay.table, columns, sorted(wanted))
    places = [place for place, column in enumerate(columns) if column.name in overlay.table.key]
    return {tuple(str(row[place]) for place in places): row for row in found}


def _typed(rows: Sequence[tuple[Any, ...]], columns: Sequence[Column]) -> pa.Table:
    arrays = []
    for place, column in enumerate(columns):
        parsed = parse_text(pa.array([row[place] for row in rows], pa.string()), column.type)
        if parsed.unrepresentable is not None and pc.any(parsed.unrepresentable).as_py():
            raise TableError(f"column {column.name} holds a value that {column.type} cannot hold")
        arrays.append(parsed.values)
    return pa.table(arrays, names=[column.name for column in columns])


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
