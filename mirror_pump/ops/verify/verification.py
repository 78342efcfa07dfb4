"""Heap against lake, every column of every row, while writes go on and without a lock.

1. A temporary slot gives a WAL position L and a snapshot that sees exactly what ended before it. The heap is read in
   that snapshot, chunk by chunk, into a scratch Iceberg table.
2. The frontier is waited for until it has passed L; then the frontier and every table's published snapshot are read,
and pinned, in one statement.
3. The temporary slot's own stream from L to the frontier is laid over the scratch table: now it holds what the heap
held at the frontier.
4. DuckDB compares the two Iceberg tables if they are small, else Spark (mirror_pump.ops.verify.comparison_engines).

A table that changes meanwhile in a way that the stream's rows do not tell (a partition is made, dropped or rewritten,
say) is begun again by itself, at another consistent point, and given up after several tries.

Heap and lake are never compared at different points in time, so concurrent writes cannot look like differences, nor
excuse any. Of a table with heap retention, rows from the cut-line on are compared: each partition below is compared
with the lake and its corrections before it is dropped (mirror_pump.pipeline.retention.drop_proof).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from mirror_pump.backoff import Backoff, Retries
from mirror_pump.config import Settings
from mirror_pump.errors import SourceError, TableError
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.cutline import CutLine
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.storage import StorageOptions, delete_tree, join
from mirror_pump.model import Lsn, MirroredTable, TableId, TableState, format_lsn
from mirror_pump.ops.missing_files import refuse_missing
from mirror_pump.ops.verify.catch_up_changes import CatchUpTable, read_catch_up_changes
from mirror_pump.ops.verify.comparison import Comparison
from mirror_pump.ops.verify.comparison_engines import ComparisonEngine, Engines, EnginesBySize, OneEngine
from mirror_pump.ops.verify.frontier_catch_up import await_copies, reach
from mirror_pump.ops.verify.heap_copy import Disturbed, NotReadable, laid_over, read_heap
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.source.heap.block_reader import plan_chunks
from mirror_pump.source.relations.relations import resolve_name
from mirror_pump.source.rows import fetch_rows
from mirror_pump.source.stream.consistent_point import ConsistentPoint
from mirror_pump.telemetry import get_logger
from sql import queries

_SQL = queries("verify")

_POINT_TIMEOUT = 120.0
"""Seconds to wait for transactions that were open when the consistent point was asked for."""
_CHUNK_BYTES = 64 << 20
"""Heap bytes that one task reads."""
TRIES = 5
"""Of comparing a table that changes while it is read."""
_LONGEST_PAUSE = 60.0
"""Seconds between two tries. Pauses double, as whoever makes partitions may be about to make some more."""

_LEFT = "the table left the mirror while it was being compared"


@dataclass(frozen=True)
class TableReport:
    """The outcome for one table."""

    table: str
    comparison: Comparison | None
    problem: str | None = None
    """Why the table could not be compared; then it does not count as equal."""
    frontier: Lsn | None = None
    """The frontier at which it was compared."""

    @property
    def equal(self) -> bool:
        return self.comparison is not None and self.comparison.different_rows == 0

    def to_json(self) -> dict[str, Any]:
        found = self.comparison
        return {
            "table": self.table,
            "equal": self.equal,
            "frontier": None if self.frontier is None else format_lsn(self.frontier),
            "heap_rows": found.heap_rows if found else 0,
            "lake_rows": found.lake_rows if found else 0,
            "different_rows": found.different_rows if found else 0,
            "differences": [*(found.differences if found else ())],
            "problem": self.problem,
        }


@dataclass(frozen=True)
class VerifyReport:
    frontier: Lsn
    """The newest frontier at which a table was compared; the mirror's, if none was."""
    tables: tuple[TableReport, ...]

    @property
    def equal(self) -> bool:
        return all(table.equal for table in self.tables)

    def to_json(self) -> dict[str, Any]:
        """The shape that docs/cli-json.md promises."""
        return {"frontier": format_lsn(self.frontier), "tables": [table.to_json() for table in self.tables]}


class VerifyPhase(StrEnum):
    """How far the comparison of a table is."""

    READING = "reading"
    """Chunks of its heap."""
    READ = "read"
    """The frontier has to come, and other tables may be first."""
    COMPARING = "comparing"
    DONE = "done"
    AGAIN = "again"
    """It changed meanwhile, and is begun again."""


@dataclass(frozen=True)
class TableProgress:
    """How far a table is."""

    table: str
    phase: VerifyPhase
    small: bool
    """It takes a moment."""
    chunks_done: int = 0
    chunks_total: int = 0
    rows: int = 0
    """Read from the heap."""


@dataclass(frozen=True)
class _Heap:
    """A heap as it was at the consistent point."""

    lake: LakeTable
    nbytes: int


def verify(
    settings: Settings,
    names: Sequence[str] = (),
    engine: ComparisonEngine | None = None,
    observe: Callable[[TableProgress], None] = lambda _: None,
) -> VerifyReport:
    """Compare the named tables, or all live ones. Raises UsageError for a name that is no table, SourceError when no
    consistent point is reached or no free slot is left. Without a running pump it catches up first. Without an
    `engine` small tables are compared within the process, and a Spark is started for others, which ends with the
    comparison. `observe` is called in this thread, and must return quickly."""
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-verify") as connection:
        chosen = _choose(connection, settings, names)
        tables = {table.table_id: table for table in chosen if table.state is TableState.LIVE}
        storage = StorageOptions(settings.storage_properties, fsync=False)
        with EnginesBySize(settings, storage) if engine is None else nullcontext(OneEngine(engine)) as engines:
            reports = _Verification(settings, storage, connection, engines, observe).run(tables)
        frontiers = [report.frontier for report in reports.values() if report.frontier is not None]
        applied = connection.execute(_SQL["applied"], {"slot": settings.slot}).fetchone()
    return VerifyReport(
        max(frontiers, default=Lsn(applied[0] if applied else 0)),
        tuple(reports.get(table.table_id) or _not_live(table) for table in chosen),
    )


def _choose(connection: PgConnection, settings: Settings, names: Sequence[str]) -> list[MirroredTable]:
    if names:
        ids = [resolve_name(connection, name)[1] for name in names]
    else:
        with source_errors("reading the mirrored tables"):
            ids = [TableId(table_id) for (table_id,) in connection.execute(_SQL["live"], {"slot": settings.slot})]
    chosen = [load_table(connection, table_id) for table_id in ids]
    for table, name in zip(chosen, names, strict=False):
        if table is None:
            raise TableError(f"{name} is not mirrored", "`mirror-pump status` lists the tables that are.")
    return [table for table in chosen if table is not None]


def _not_live(table: MirroredTable) -> TableReport:
    return TableReport(str(table.name), None, f"the table is {table.state.value}: see `mirror-pump status`")


class _Verification:
    """Compares tables at one consistent point, and those that changed meanwhile at another one."""

    def __init__(
        self,
        settings: Settings,
        storage: StorageOptions,
        connection: PgConnection,
        engines: Engines,
        observe: Callable[[TableProgress], None],
    ) -> None:
        self._settings = settings
        self._storage = storage
        self._connection = connection
        self._engines = engines
        self._observe = observe
        self._log = get_logger("verify")

    def run(self, tables: Mapping[TableId, MirroredTable]) -> dict[TableId, TableReport]:
        """What came of each table, all of which were live a moment ago."""
        reports: dict[TableId, TableReport] = {}
        retries = Retries(Backoff(self._settings.limits.verify_pause, _LONGEST_PAUSE))
        for tried in range(1, TRIES + 1):
            disturbed: dict[TableId, Disturbed] = {}
            for table_id, outcome in self._compare(tables).items():
                if isinstance(outcome, Disturbed):
                    disturbed[table_id] = outcome
                else:
                    reports[table_id] = outcome
            if not disturbed:
                break
            for table_id, reason in disturbed.items():
                name = str(tables[table_id].name)
                reports[table_id] = TableReport(name, None, _given_up(reason))
                self._observe(
                    TableProgress(name, VerifyPhase.AGAIN if tried < TRIES else VerifyPhase.DONE, small=False)
                )
                if tried < TRIES:
                    self._log.warning("table-compared-again", table=name, tried=tried, of=TRIES, reason=str(reason))
            if tried < TRIES:
                retries.failed()
                retries.wait()
                tables = self._live_again(list(disturbed), reports)
        return reports

    def _live_again(
        self, table_ids: Sequence[TableId], reports: dict[TableId, TableReport]
    ) -> dict[TableId, MirroredTable]:
        """The tables as they are now, once those that are copied again are complete. Reports those that are gone."""
        await_copies(self._settings, table_ids)
        live = {}
        for table_id in table_ids:
            table = load_table(self._connection, table_id)
            if table is None:
                reports[table_id] = TableReport(reports[table_id].table, None, _LEFT)
            elif table.state is not TableState.LIVE:
                reports[table_id] = _not_live(table)
            else:
                live[table_id] = table
        return live

    def _compare(self, tables: Mapping[TableId, MirroredTable]) -> dict[TableId, TableReport | Disturbed]:
        """One try."""
        if not tables:
            return {}
        settings = self._settings
        outcomes: dict[TableId, TableReport | Disturbed] = {}
        scratch = join(settings.require_warehouse(), f".verify-{uuid.uuid4().hex[:12]}")
        slot = f"mirror_pump_verify_{uuid.uuid4().hex[:12]}"
        try:
            with ConsistentPoint(settings.require_dsn(), slot, _POINT_TIMEOUT) as point, self._reader(point) as reader:
                heaps = {}
                for table_id, table in tables.items():
                    try:
                        heaps[table_id] = self._read_heap(table, point, reader, join(scratch, str(table_id)))
                    except Disturbed as disturbed:
                        outcomes[table_id] = disturbed
                    except NotReadable as error:
                        outcomes[table_id] = TableReport(str(table.name), None, str(error))
                if heaps:
                    reach(settings, point.lsn)
                    read = {table_id: tables[table_id] for table_id in heaps}
                    outcomes |= self._compare_at_frontier(read, heaps, point, reader)
        finally:
            delete_tree(scratch, self._storage)
        return outcomes

    def _compare_at_frontier(
        self,
        tables: Mapping[TableId, MirroredTable],
        heaps: Mapping[TableId, _Heap],
        point: ConsistentPoint,
        reader: PgConnection,
    ) -> dict[TableId, TableReport | Disturbed]:
        """Bring the heaps from the consistent point to the frontier, and compare them with the lake at the frontier."""
        outcomes: dict[TableId, TableReport | Disturbed] = {}
        with self._pinned(tables) as (frontier, locations, cuts):
            present = {table_id: table for table_id, table in tables.items() if table_id in locations}
            for table_id in tables.keys() - present.keys():
                # Readers have it as of a former frontier until its copy is complete.
                outcomes[table_id] = Disturbed("it was set aside, is copied again, or left the mirror")
            if not present:
                return outcomes
            with point.stream(self._settings.publication) as stream:
                overlay = read_catch_up_changes(stream, present, point.lsn, frontier)
            for table_id, table in present.items():
                line = CutLine.of(table, cuts[table_id])
                try:
                    refuse_missing(self._connection, table, self._storage)
                    found = self._compare_table(
                        heaps[table_id], overlay.tables[table_id], reader, locations[table_id], line
                    )
                except Disturbed as disturbed:
                    outcomes[table_id] = disturbed
                except TableError as error:
                    outcomes[table_id] = TableReport(str(table.name), None, f"{error}. {error.remedy}")
                else:
                    outcomes[table_id] = TableReport(str(table.name), found, frontier=frontier)
        return outcomes

    def _read_heap(self, table: MirroredTable, point: ConsistentPoint, reader: PgConnection, location: str) -> _Heap:
        chunks = plan_chunks(reader, table.table_id, _CHUNK_BYTES)
        with source_errors(f"looking how large {table.name} is"):
            relations = {"relations": sorted({chunk.relation_id for chunk in chunks})}
            ((nbytes,),) = self._connection.execute(_SQL["bytes"], relations).fetchall()
        engine = self._engines.for_heap(nbytes)
        small = nbytes <= self._settings.limits.verify_small_bytes
        progress = TableProgress(str(table.name), VerifyPhase.READING, small, 0, len(chunks))
        self._observe(progress)

        def chunk_read(rows: int) -> None:
            nonlocal progress
            progress = replace(progress, chunks_done=progress.chunks_done + 1, rows=progress.rows + rows)
            self._observe(progress)

        dsn = self._settings.require_dsn()
        heap = read_heap(table, chunks, point.snapshot, engine.runner, dsn, self._storage, location, chunk_read)
        self._observe(replace(progress, phase=VerifyPhase.READ))
        return _Heap(heap, nbytes)

    def _compare_table(
        self, heap: _Heap, overlay: CatchUpTable, reader: PgConnection, location: str, line: CutLine | None
    ) -> Comparison:
        if overlay.altered:
            raise Disturbed(f"it was altered: {overlay.altered}")
        small = heap.nbytes <= self._settings.limits.verify_small_bytes
        progress = TableProgress(str(overlay.table.name), VerifyPhase.COMPARING, small)
        self._observe(progress)
        over = laid_over(heap.lake, overlay, reader, self._storage)
        schema = LakeSchema.of_table(overlay.table)
        engine = self._engines.for_tables(heap.nbytes, location)
        found = engine.compare(over.metadata_location, location, schema, line)
        self._observe(replace(progress, phase=VerifyPhase.DONE))
        return found

    @contextmanager
    def _reader(self, point: ConsistentPoint) -> Iterator[PgConnection]:
        """A connection that sees the consistent point for as long as it is open."""
        dsn = self._settings.require_dsn()
        with connect(dsn, autocommit=True, application_name="mirror-pump-verify") as connection:
            with source_errors("importing the consistent point's snapshot"):
                connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                connection.execute(f"SET TRANSACTION SNAPSHOT '{point.snapshot}'".encode())
            yield connection

    @contextmanager
    def _pinned(
        self, tables: Mapping[TableId, MirroredTable]
    ) -> Iterator[tuple[Lsn, dict[TableId, str], dict[TableId, int]]]:
        """The frontier, and of each table the metadata file that has it at that the frontier, and the cut-line;
        nothing of tables that are not live any more, or were registered or copied again since `tables` were read."""
        with source_errors("reading the frontier"):
            pins = fetch_rows(self._connection, _PinnedTable, _SQL["pin"], {"table_ids": list(tables)})
        try:
            same = [pin for pin in pins if pin.live and pin.start_lsn == tables[pin.table_id].start_lsn]
            # Of tables that are copied again it is a former one.
            frontiers = {pin.frontier for pin in same} or {Lsn(0)}
            frontier = frontiers.pop()
            if frontiers or frontier is None:
                raise SourceError("live tables of one mirror have different frontiers", "Run verify again.")
            locations = {pin.table_id: pin.location for pin in same}
            yield frontier, locations, {pin.table_id: pin.cut for pin in same}
        finally:
            with source_errors("releasing the pins"):
                self._connection.execute(_SQL["release"], {"pins": [pin.pin_id for pin in pins]})


@dataclass(frozen=True)
class _PinnedTable:
    """A row of the query `pin`."""

    pin_id: int
    table_id: TableId
    frontier: Lsn | None
    """None until the initial copy is complete."""
    location: str
    """The metadata file that has the table at the frontier."""
    cut: int
    live: bool
    start_lsn: Lsn


def _given_up(reason: Disturbed) -> str:
    return (
        f"the table changed each of the {TRIES} times that it was being compared, the last time: {reason}. Run verify"
        " again when nobody alters it"
    )
