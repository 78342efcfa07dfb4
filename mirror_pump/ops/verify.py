"""Heap against lake, every column of every row, while writes go on and without a lock.

1. A temporary slot gives a WAL position L and a snapshot that sees exactly what ended before it. The heap is read in
   that snapshot, chunk by chunk, into a scratch Iceberg table.
2. F is waited for until it has passed L; then F and every table's S are read, and pinned, in one statement.
3. The temporary slot's own stream from L to F is laid over the scratch table: now it holds what the heap held at F.
4. Spark compares the two Iceberg tables.

Heap and lake are never compared at different points in time, so concurrent writes cannot look like differences, nor
excuse any. Of a table with heap retention, rows from T on are compared: each partition below is compared with the lake
and its corrections before it is dropped (mirror_pump.pipeline.proving).
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from decoders.text import parse_rows
from mirror_pump.config import Settings
from mirror_pump.engine.copying import ChunkTask, copy_chunk
from mirror_pump.engine.runner import SparkTaskRunner, TaskRunner
from mirror_pump.engine.session import SparkSettings, spark_session
from mirror_pump.errors import SourceError, TableError, about
from mirror_pump.lake.commit import BornFile, LakeTable, RowDelta, SegmentFiles
from mirror_pump.lake.cutline import CutLine
from mirror_pump.lake.files import WrittenFile, write_data_file, write_equality_deletes
from mirror_pump.lake.schema import LakeSchema
from mirror_pump.lake.sidecars import narrowed, sidecars, widened, with_sidecars, without_sidecars
from mirror_pump.lake.storage import StorageOptions, delete_tree, join
from mirror_pump.model import Column, Lsn, MirroredTable, TableId, TableState, format_lsn
from mirror_pump.ops.catchup import reach
from mirror_pump.ops.compare import Comparison, compare
from mirror_pump.ops.overlay import TableOverlay, Unchanged, former_rows, read_overlay
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.source.copyread import plan_chunks
from mirror_pump.source.relations import resolve_name
from mirror_pump.source.snapshot import ConsistentPoint
from mirror_pump.source.tables import load_table
from sql import queries

_SQL = queries("verify")

_POINT_TIMEOUT = 120.0
"""Seconds to wait for transactions that were open when the consistent point was asked for."""
_CHUNK_BYTES = 64 << 20
"""Heap bytes that one task reads."""


@dataclass(frozen=True)
class TableReport:
    """The outcome for one table."""

    table: str
    comparison: Comparison | None
    problem: str | None = None
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
            "differences": [*(found.differences if found else ())],
            "problem": self.problem,
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


@dataclass(frozen=True)
class Engine:
    """Who reads the heap's chunks, and who compares two Iceberg tables by their metadata files, as `compare` does."""

    runner: TaskRunner
    compare: Callable[[str, str, LakeSchema, CutLine | None], Comparison]


def verify(settings: Settings, names: Sequence[str] = (), engine: Engine | None = None) -> VerifyReport:
    """Compare the named tables, or all live ones. Raises UsageError for a name that is no table, SourceError when no
    consistent point is reached or no free slot is left. Without a running pump it catches up first. Without an
    `engine` a Spark is started, which ends with the comparison."""
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
            with nullcontext(engine) if engine is not None or not tables else _spark(settings) as chosen_engine:
                frontier, reports = _compare_all(settings, connection, tables, storage, scratch, chosen_engine)
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
    engine: Engine | None,
) -> tuple[Lsn, list[TableReport]]:
    if not tables:
        row = connection.execute(_SQL["applied"], {"slot": settings.slot}).fetchone()
        return Lsn(row[0] if row else 0), []
    assert engine is not None
    slot = f"mirror_pump_verify_{uuid.uuid4().hex[:12]}"
    with ConsistentPoint(settings.require_dsn(), slot, _POINT_TIMEOUT) as point, _reader(settings, point) as reader:
        heaps = {
            table_id: _read_heap(settings, reader, table, point, engine.runner, storage, scratch)
            for table_id, table in tables.items()
        }
        reach(settings, point.lsn)
        with _pinned(connection, tables) as (frontier, locations, cuts):
            present = {table_id: table for table_id, table in tables.items() if table_id in locations}
            with point.stream(settings.publication) as stream:
                overlay = read_overlay(stream, present, point.lsn, frontier)
            reports = []
            for table_id, table in tables.items():
                if table_id not in present:
                    # Readers have it as of a former F until its copy is complete.
                    problem = (
                        "the table was set aside, or is copied again, since the comparison began: run verify again"
                    )
                    reports.append(TableReport(str(table.name), None, problem))
                    continue
                one = overlay.tables[table_id]
                if one.altered:
                    problem = f"the table was altered while it was being compared: {one.altered}"
                    reports.append(TableReport(str(table.name), None, problem))
                    continue
                heap = _laid_over(heaps[table_id], one, reader, storage)
                schema = LakeSchema.of_table(table)
                line = CutLine.of(table, cuts[table_id])
                found = engine.compare(heap.metadata_location, locations[table_id], schema, line)
                reports.append(TableReport(str(table.name), found))
    return frontier, reports


@contextmanager
def _spark(settings: Settings) -> Iterator[Engine]:
    """A Spark for the time of a comparison."""
    log = Path(os.environ.get("TMPDIR", "/tmp")) / f"mirror-pump-spark-{os.getuid()}.log"  # noqa: S108 - a log only
    spark = spark_session(SparkSettings(master=settings.master, app_name="mirror-pump-verify", log=log))
    runner = SparkTaskRunner(spark, os.cpu_count() or 1)
    try:
        yield Engine(runner, partial(compare, spark))
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
    runner: TaskRunner,
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
    beside: frozenset[int] = frozenset()
    for result in [future.result() for future in futures]:
        if result.error is not None:
            raise TableError(about(str(table.name), result.error))
        if result.heap_rewritten:
            raise SourceError(f"the heap of {table.name} was rewritten while it was being read", "Run verify again.")
        if result.file is not None:
            born.append(BornFile(result.file, staged.sequence_number))
            beside |= result.sidecars
    schema = with_sidecars(staged.table.schema, beside)
    return staged.table.stage(RowDelta((), born=tuple(born), schema=schema), _now_ms()).table


@contextmanager
def _pinned(
    connection: PgConnection, tables: Mapping[TableId, MirroredTable]
) -> Iterator[tuple[Lsn, dict[TableId, str], dict[TableId, int]]]:
    """F, and of each table the metadata file that has it at that F, and T; nothing of tables that are not live any
    more, or copied again since `tables` were read."""
    with source_errors("reading the frontier"):
        rows = connection.execute(_SQL["pin"], {"table_ids": list(tables)}).fetchall()
    try:
        same = [row for row in rows if row[5] and row[6] == tables[TableId(row[1])].start_lsn]
        # Of tables that are copied again it is a former one.
        frontiers = {row[2] for row in same} or {max((row[2] or 0 for row in rows), default=0)}
        if len(rows) != len(tables) or len(frontiers) != 1 or None in frontiers:
            raise SourceError("a table left the mirror while it was being compared", "Run verify again.")
        locations = {TableId(row[1]): str(row[3]) for row in same}
        yield Lsn(frontiers.pop()), locations, {TableId(row[1]): int(row[4]) for row in same}
    finally:
        with source_errors("releasing the pins"):
            connection.execute(_SQL["release"], {"pins": [row[0] for row in rows]})


def _laid_over(heap: LakeTable, overlay: TableOverlay, reader: PgConnection, storage: StorageOptions) -> LakeTable:
    """The scratch table with the overlay on top."""
    if not overlay.rows and not overlay.truncated:
        return heap
    table, schema = overlay.table, without_sidecars(heap.schema)
    beside = sidecars(heap.schema)
    former = former_rows(overlay, reader)
    rows = [
        tuple(former[cell.key][place] if isinstance(cell, Unchanged) else cell for place, cell in enumerate(row))
        for row in overlay.rows.values()
        if row is not None
    ]
    data: tuple[WrittenFile, ...] = ()
    deletes: tuple[WrittenFile, ...] = ()
    if rows:
        typed, file_schema = narrowed(_typed(rows, table.columns, schema), schema)
        beside |= sidecars(file_schema)
        data = (write_data_file(typed, file_schema, heap.location, storage),)
    if overlay.rows:
        keys = _typed(list(overlay.rows), table.key_columns, schema).select(schema.key.arrow.names)
        deletes = (write_equality_deletes(keys, schema, heap.location, storage),)
    grown = with_sidecars(schema, beside)
    delta = RowDelta((SegmentFiles(data, deletes),), replace=overlay.truncated, schema=grown)
    return heap.stage(delta, _now_ms()).table


def _typed(rows: Sequence[tuple[Any, ...]], columns: Sequence[Column], schema: LakeSchema) -> pa.Table:
    """The columns, and every sidecar of the schema."""
    typed, raw = parse_rows(rows, {column.name: column.type for column in columns})
    return widened(pa.table(typed), raw, schema)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
