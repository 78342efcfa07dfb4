"""Compares heap and lake, every column of every row, during writes and without locks that block them.

1. A temporary slot yields a consistent point: a WAL position, and a database snapshot of exactly the transactions that
   ended before it. The heap is read in that snapshot, chunk by chunk, into a scratch Iceberg table.
2. Once the frontier has passed the consistent point, one statement reads the frontier and pins every table's published
   snapshot.
3. The temporary slot's stream from the consistent point to the frontier is applied to the scratch table, which then
   holds what the heap held at the frontier.
4. DuckDB compares the two Iceberg tables if they are small, else Spark (mirror_pump.ops.verify.comparison_engines).

If a table changes meanwhile in a way that cannot be derived from the stream (a partition is created, dropped or
rewritten, for example), it is compared again at a new consistent point, up to TRIES times.

Heap and lake are always compared at the same point in time. So concurrent writes neither look like differences nor hide
any. Of a table with heap retention, only rows at or above the cut-line are compared: each partition below is compared
with the lake and its corrections before it is dropped (mirror_pump.pipeline.retention.drop_proof). Where its owner took
a partition away above it, rows that the lake alone has are those that it keeps. Of a tiered table, the partitions below
the cut-line that are still in the heap are compared in that way (mirror_pump.ops.verify.below_cutline), without a slot.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from mirror_pump.engine.lake_storage import lake_storage, refresh_profiles
from mirror_pump.errors import ConnectionLost, FileDamaged, FileMissing, MirrorPumpError, TableError, repair_of
from mirror_pump.json_documents import JsonDocument
from mirror_pump.lake.commit.readable_files import DescriptionCheck, require_readable
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.storage import StorageOptions, delete_tree, join
from mirror_pump.model import Lsn, MirroredTable, TableId, TableMode, TableState
from mirror_pump.ops.catch_up_changes import CatchUpTable, read_catch_up_changes
from mirror_pump.ops.table_progress import TableProgress
from mirror_pump.ops.verify.below_cutline import (
    NotComparable,
    compare_partitions,
    compared_text,
    shared_partitions,
)
from mirror_pump.ops.verify.comparison import ComparedRows, Comparison
from mirror_pump.ops.verify.comparison_engines import (
    ComparisonEngine,
    Engines,
    EnginesBySize,
    SingleEngine,
    comparing_duckdb,
)
from mirror_pump.ops.verify.feed_replay import MirrorReplay, replayed_feeds
from mirror_pump.ops.verify.frontier_catch_up import await_copies, reach
from mirror_pump.ops.verify.heap_copy import ChangedMeanwhile, NotReadable, read_heap, with_changes
from mirror_pump.ops.verify.kept_files import FeedReport, MomentReport, look_at_feeds, look_at_moments
from mirror_pump.ops.verify.pinned_tables import (
    no_pins,
    pinned,
    require_columns,
    require_published,
    snapshot_reader,
)
from mirror_pump.pipeline.missing_files.missing_files import refuse_missing
from mirror_pump.runtime.backoff import Backoff, Retries
from mirror_pump.runtime.table_work import REPORT, work_for
from mirror_pump.runtime.telemetry import get_logger
from mirror_pump.settings.config import Settings
from mirror_pump.settings.storage_profiles import warehouse_of
from mirror_pump.source.catalog.kept_moments import read_moments
from mirror_pump.source.catalog.pauses import state_text, way_to_live
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection, connect, portable_dsn, source_errors
from mirror_pump.source.heap.block_reader import FilenodeChanged, plan_chunks
from mirror_pump.source.relations.relations import resolve_name
from mirror_pump.source.retention.partitions import lake_locations
from mirror_pump.source.stream.consistent_point import ConsistentPoint
from sql import queries

_SQL = queries("verify")

_POINT_TIMEOUT = 120.0
"""Seconds to wait for transactions that were open when the consistent point was requested."""
_CHUNK_BYTES = 64 << 20
"""Heap bytes that one task reads."""
TRIES = 5
"""Number of attempts at a table that changes while it is read."""
_LONGEST_PAUSE = 60.0
"""Maximum seconds between two attempts. Pauses double, since a series of partitions may be under construction."""

_UNREGISTERED = "the table was unregistered while it was being compared"


@dataclass(frozen=True)
class TableReport(JsonDocument, keys={"comparison": None}, also=("equal",)):
    """The result for one table."""

    table: str
    comparison: Comparison | None
    problem: str | None = None
    """Why the table could not be compared, five times if it changed meanwhile, or not repaired: then it does not count
    as equal."""
    frontier: Lsn | None = None
    """The frontier at which heap and lake were compared; None if they were not, and for a tiered table. Tables that had
    to be begun again have a newer one than the others."""
    compared: str | None = None
    """Of a tiered table, which partitions were compared, for people: those that heap and lake both hold.
    `different_rows` counts the rows that are named then, and `columns` is empty."""
    repaired: int = 0
    """Keys whose rows `--repair` has replaced before this comparison."""

    @property
    def equal(self) -> bool:
        """Every column of every row is the same on both sides."""
        return self.comparison is not None and self.comparison.different_rows == 0

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | (self.comparison or Comparison(0, 0, 0, ())).to_json()


@dataclass(frozen=True)
class VerifyReport(JsonDocument):
    """What a comparison of several tables has found."""

    frontier: Lsn
    """The newest frontier at which a table was compared. If none was, the mirror's frontier."""
    tables: tuple[TableReport, ...]
    feeds: tuple[FeedReport, ...] = ()
    """Of the change feeds of these tables; of all, and that of the transactions, if no table was named."""
    moments: tuple[MomentReport, ...] = ()
    """Of what kept moments have of these tables, or of all they have."""

    @property
    def equal(self) -> bool:
        """All tables are equal, and feeds and moments have all files."""
        whole = all(feed.is_whole for feed in self.feeds) and all(moment.problem is None for moment in self.moments)
        return whole and all(table.equal for table in self.tables)


class VerifyPhase(StrEnum):
    """How far the comparison of a table is."""

    READING = "reading"
    """Its heap is being read."""
    READ = "read"
    """Its heap was read. It waits for the frontier and for other tables."""
    COMPARING = "comparing"
    DONE = "done"
    AGAIN = "again"
    """It changed meanwhile, and will be compared again."""


@dataclass(frozen=True)
class _CopiedHeap:
    """A heap's rows at the consistent point, as a scratch Iceberg table, and the heap's size in bytes."""

    lake: LakeTable
    nbytes: int


def verify(
    settings: Settings,
    names: Sequence[str] = (),
    engine: ComparisonEngine | None = None,
    observe: Callable[[TableProgress], None] = lambda _: None,
    *,
    replay_feeds: bool = False,
) -> VerifyReport:
    """Compare the named tables, or all live ones, and look for the files of their feeds, and of what moments have of
    them. If no pump runs, starts one until the frontier has caught up. `replay_feeds`: also replay the feeds.

    `engine` compares all tables. Without it, small tables are compared in this process, and a Spark is started for
    large ones and stopped at the end. `observe` is called in this thread and must return quickly.

    Raises UsageError for a name that is no table, TableError for a table that is not mirrored, and SourceError if no
    replication slot is free or no consistent point is reached.
    """
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-verify") as connection:
        chosen = _choose(connection, settings, names)
        live = [table for table in chosen if table.state is TableState.LIVE]
        tables = {table.table_id: table for table in live if table.mode is TableMode.MIRRORED}
        storage = _storage(settings, connection)
        with EnginesBySize(settings, storage) if engine is None else nullcontext(SingleEngine(engine)) as engines:
            verification = _Verification(settings, storage, connection, engines, observe)
            reports = verification.run(tables)
            for table in live:
                if table.mode is TableMode.TIERED:
                    reports[table.table_id] = verification.compare_tiered(table)
        named = {str(table.name) for table in chosen} if names else None
        feeds = look_at_feeds(connection, settings.slot, verification.footers, verification.looking, named)
        moments = look_at_moments(connection, settings.slot, verification.footers, verification.looking, named)
        if replay_feeds:
            stored = read_moments(connection, settings.slot)
            with ExitStack() as closing:
                duckdb = comparing_duckdb(closing, storage, settings.limits)
                replay = MirrorReplay(
                    connection, settings.slot, storage, duckdb, stored, settings.limits.verify_shown_rows
                )
                feeds = replayed_feeds(feeds, {str(table.name): table for table in tables.values()}, replay)
        frontiers = [report.frontier for report in reports.values() if report.frontier is not None]
        applied = connection.execute(_SQL["applied"], {"slot": settings.slot}).fetchone()
    return VerifyReport(
        max(frontiers, default=Lsn(applied[0] if applied else 0)),
        tuple(reports.get(table.table_id) or _not_live(table) for table in chosen),
        feeds,
        moments,
    )


def compare_at(
    settings: Settings,
    snapshot: str,
    tables: Sequence[MirroredTable],
    engine: ComparisonEngine | None = None,
    observe: Callable[[TableProgress], None] = lambda _: None,
) -> dict[TableId, TableReport]:
    """Compare live tables, as they are in the lake at present, with their heaps in a database snapshot that the caller
    exports (pg_export_snapshot).

    Of a tiered table, what both hold is compared as it is now, as `verify` does. No pump may publish meanwhile. A table
    that cannot be compared has a report with the problem.
    """
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-verify") as connection:
        storage = _storage(settings, connection)
        with EnginesBySize(settings, storage) if engine is None else nullcontext(SingleEngine(engine)) as engines:
            verification = _Verification(settings, storage, connection, engines, observe)
            streamed = {table.table_id: table for table in tables if table.mode is TableMode.MIRRORED}
            reports = verification.compare_at(streamed, snapshot) if streamed else {}
            for table in tables:
                if table.mode is TableMode.TIERED:
                    reports[table.table_id] = verification.compare_tiered(table)
    return reports


def _storage(settings: Settings, connection: PgConnection) -> StorageOptions:
    storage = lake_storage(settings, fsync=False)
    # Else it would open a connection of its own for them.
    refresh_profiles(storage, connection)
    return storage


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
    return TableReport(str(table.name), None, f"the table is {state_text(table)}: {way_to_live(table)}")


class _Verification:
    """Compares tables at one consistent point, and those that changed meanwhile again at another."""

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
        self.footers = DescriptionCheck(storage)

    @contextmanager
    def looking(self, name: str) -> Iterator[None]:
        """Shows that files are looked at."""
        self._observe(TableProgress(name, VerifyPhase.COMPARING))
        try:
            yield
        finally:
            self._observe(TableProgress(name, VerifyPhase.DONE))

    def run(self, tables: Mapping[TableId, MirroredTable]) -> dict[TableId, TableReport]:
        """A report on each table. All of them were live a moment ago."""
        reports: dict[TableId, TableReport] = {}
        retries = Retries(Backoff(self._settings.limits.verify_pause, _LONGEST_PAUSE))
        for tried in range(1, TRIES + 1):
            disturbed: dict[TableId, ChangedMeanwhile] = {}
            for table_id, outcome in self._compare(tables).items():
                if isinstance(outcome, ChangedMeanwhile):
                    disturbed[table_id] = outcome
                else:
                    reports[table_id] = outcome
            if not disturbed:
                break
            for table_id, reason in disturbed.items():
                name = str(tables[table_id].name)
                reports[table_id] = TableReport(name, None, _given_up(reason))
                self._observe(TableProgress(name, VerifyPhase.AGAIN if tried < TRIES else VerifyPhase.DONE))
                if tried < TRIES:
                    self._log.warning("table-compared-again", table=name, tried=tried, of=TRIES, reason=str(reason))
            if tried < TRIES:
                retries.failed()
                retries.wait()
                tables = self._live_again(list(disturbed), reports)
        return reports

    def compare_at(self, tables: Mapping[TableId, MirroredTable], snapshot: str) -> dict[TableId, TableReport]:
        """A report on each table: the lake as it is, held against the heap in the database snapshot."""
        scratch = join(self._settings.require_warehouse(), f".verify-{uuid.uuid4().hex[:12]}")
        try:
            with (
                snapshot_reader(self._settings.require_dsn(), snapshot) as reader,
                pinned(self._connection, tables) as (frontier, locations, published),
            ):
                reports = {}
                for table_id, table in tables.items():
                    name = str(table.name)
                    try:
                        with work_for(table, remedy=REPORT):
                            self._require_whole(table)
                            heap = self._read_heap(table, snapshot, reader, join(scratch, str(table_id)))
                            rows = ComparedRows.of(published[table_id])
                            changes = CatchUpTable(table)
                            comparison = self._compare_table(heap, changes, reader, locations[table_id], rows)
                    except ConnectionLost:
                        raise
                    except MirrorPumpError as error:
                        reports[table_id] = TableReport(name, None, str(error))
                    else:
                        reports[table_id] = TableReport(name, comparison, frontier=frontier)
                return reports
        finally:
            delete_tree(scratch, self._storage)

    def compare_tiered(self, table: MirroredTable) -> TableReport:
        """A report on what heap and lake both hold of a tiered table."""
        name = str(table.name)
        partitions = shared_partitions(self._connection, table)
        relations = [partition.relation_id for partition in partitions]
        row = self._connection.execute(_SQL["bytes"], {"relations": relations}).fetchone()
        size = 0 if row is None else int(row[0])
        is_small = size <= self._settings.limits.verify_small_bytes
        progress = TableProgress(name, VerifyPhase.COMPARING, is_small=is_small)
        self._observe(progress)
        try:
            with work_for(table, remedy=REPORT):
                self._require_whole(table)
                runner = self._engines.for_heap(size).runner
                comparison, compared = compare_partitions(
                    self._connection, self._settings, table, partitions, runner, self._storage
                )
                self._require_described(table)
        except (NotComparable, TableError, FileDamaged, FileMissing, ChangedMeanwhile) as error:
            return TableReport(name, None, str(error))
        finally:
            self._observe(replace(progress, step=VerifyPhase.DONE))
        return TableReport(name, comparison, compared=compared_text(compared))

    def _require_described(self, table: MirroredTable) -> None:
        """Holds the present files of a tiered table against their metadata. Raises TableError if files are lost,
        FileDamaged, and ChangedMeanwhile."""
        for _ in range(TRIES):
            pins = no_pins(self._connection)
            try:
                pins.take_published(table_ids=[table.table_id])
                for location in lake_locations(self._connection, table.table_id):
                    self.footers.require_described(location)
            except FileMissing:
                # Raises if the file is lost: else it was replaced meanwhile.
                self._require_whole(table)
            else:
                return
            finally:
                pins.drop()
        raise ChangedMeanwhile(f"files of {table.name} were replaced during each of {TRIES} attempts to look at them")

    def _require_whole(self, table: MirroredTable) -> None:
        """Raises TableError if files are lost, or the catalog's rows of the table are not those of the lake. Raises
        FileDamaged and LakeError."""
        refuse_missing(self._connection, table, self._storage)
        require_published(self._connection, table, self._storage)

    def _live_again(
        self, table_ids: Sequence[TableId], reports: dict[TableId, TableReport]
    ) -> dict[TableId, MirroredTable]:
        """Waits for tables that are copied again, and returns those that are live. Adds a report for each of the
        others."""
        await_copies(self._settings, table_ids)
        live = {}
        for table_id in table_ids:
            table = load_table(self._connection, table_id)
            if table is None:
                reports[table_id] = TableReport(reports[table_id].table, None, _UNREGISTERED)
            elif table.state is not TableState.LIVE:
                reports[table_id] = _not_live(table)
            else:
                live[table_id] = table
        return live

    def _compare(self, tables: Mapping[TableId, MirroredTable]) -> dict[TableId, TableReport | ChangedMeanwhile]:
        """One attempt: a report on each table, or why it has to be compared again."""
        if not tables:
            return {}
        settings = self._settings
        outcomes: dict[TableId, TableReport | ChangedMeanwhile] = {}
        directory = f".verify-{uuid.uuid4().hex[:12]}"
        scratch = {join(warehouse_of(table.location), directory) for table in tables.values()}
        slot = f"mirror_pump_verify_{uuid.uuid4().hex[:12]}"
        try:
            with (
                ConsistentPoint(settings.require_dsn(), slot, _POINT_TIMEOUT) as point,
                snapshot_reader(settings.require_dsn(), point.snapshot) as reader,
            ):
                heaps = {}
                for table_id, table in tables.items():
                    try:
                        with work_for(table, remedy=REPORT):
                            location = join(warehouse_of(table.location), directory, str(table_id))
                            heaps[table_id] = self._read_heap(table, point.snapshot, reader, location)
                    except ChangedMeanwhile as disturbed:
                        outcomes[table_id] = disturbed
                    except (NotReadable, TableError) as error:
                        outcomes[table_id] = TableReport(str(table.name), None, str(error))
                if heaps:
                    reach(settings, point.lsn)
                    read = {table_id: tables[table_id] for table_id in heaps}
                    outcomes |= self._compare_at_frontier(read, heaps, point, reader)
        finally:
            for location in scratch:
                delete_tree(location, self._storage)
        return outcomes

    def _compare_at_frontier(
        self,
        tables: Mapping[TableId, MirroredTable],
        heaps: Mapping[TableId, _CopiedHeap],
        point: ConsistentPoint,
        reader: PgConnection,
    ) -> dict[TableId, TableReport | ChangedMeanwhile]:
        """Bring the heap copies from the consistent point to the frontier, and compare them with the lake there."""
        outcomes: dict[TableId, TableReport | ChangedMeanwhile] = {}
        with pinned(self._connection, tables) as (frontier, locations, published):
            pinned_tables = {table_id: table for table_id, table in tables.items() if table_id in locations}
            for table_id in tables.keys() - pinned_tables.keys():
                # Until its copy is complete, readers see the table as of a former frontier.
                outcomes[table_id] = ChangedMeanwhile("it failed, is being copied again, or was unregistered")
            if not pinned_tables:
                return outcomes
            with point.stream(self._settings.publication) as stream:
                changes = read_catch_up_changes(stream, pinned_tables, point.lsn, frontier, self._settings.mirror)
            for table_id, table in pinned_tables.items():
                try:
                    with work_for(table, remedy=REPORT):
                        rows = ComparedRows.of(published[table_id])
                        self._require_whole(table)
                        comparison = self._compare_table(
                            heaps[table_id], changes.tables[table_id], reader, locations[table_id], rows
                        )
                except ChangedMeanwhile as disturbed:
                    outcomes[table_id] = disturbed
                except TableError as error:
                    outcomes[table_id] = TableReport(str(table.name), None, f"{error}. {error.remedy}")
                except FileDamaged as error:
                    only_copy = table.tier is not None and table.tier.moved
                    repair = repair_of(table.name.shell, error.location, only_copy=only_copy)
                    outcomes[table_id] = TableReport(str(table.name), None, f"{error}. To repair it, {repair}")
                else:
                    outcomes[table_id] = TableReport(str(table.name), comparison, frontier=frontier)
        return outcomes

    def _read_heap(self, table: MirroredTable, snapshot: str, reader: PgConnection, location: str) -> _CopiedHeap:
        try:
            chunks = plan_chunks(reader, table.table_id, _CHUNK_BYTES)
        except FilenodeChanged as error:
            raise ChangedMeanwhile(str(error)) from error
        with source_errors(f"looking how large {table.name} is"):
            relations = {"relations": sorted({chunk.relation_id for chunk in chunks})}
            ((nbytes,),) = self._connection.execute(_SQL["bytes"], relations).fetchall()
        engine = self._engines.for_heap(nbytes)
        small = nbytes <= self._settings.limits.verify_small_bytes
        progress = TableProgress(str(table.name), VerifyPhase.READING, 0, len(chunks), is_small=small)
        self._observe(progress)

        def chunk_read(rows: int) -> None:
            nonlocal progress
            progress = replace(progress, done=progress.done + 1, rows=progress.rows + rows)
            self._observe(progress)

        dsn = portable_dsn(self._settings.require_dsn(), reader)
        heap = read_heap(table, chunks, snapshot, engine.runner, dsn, self._storage, location, chunk_read)
        self._observe(replace(progress, step=VerifyPhase.READ))
        return _CopiedHeap(heap, nbytes)

    def _compare_table(
        self, heap: _CopiedHeap, changes: CatchUpTable, reader: PgConnection, location: str, rows: ComparedRows
    ) -> Comparison:
        if changes.altered:
            raise ChangedMeanwhile(f"it was altered: {changes.altered}")
        small = heap.nbytes <= self._settings.limits.verify_small_bytes
        progress = TableProgress(str(changes.table.name), VerifyPhase.COMPARING, is_small=small)
        self._observe(progress)
        changed = with_changes(heap.lake, changes, reader, self._storage)
        schema = LakeSchema.of_table(changes.table)
        engine = self._engines.for_tables(heap.nbytes, location)
        try:
            require_columns(changes.table, location, self._storage)
            comparison = engine.compare(changed.metadata_location, location, schema, rows)
            if comparison.different_rows == 0:
                # Equal rows may be passed over by readers that ask for some of them.
                self.footers.require_described(location)
        except FileDamaged:
            raise
        except Exception:
            # Whatever an engine makes of a damaged file, the error names the file.
            require_readable(location, self._storage)
            raise
        self._observe(replace(progress, step=VerifyPhase.DONE))
        return comparison


def _given_up(reason: ChangedMeanwhile) -> str:
    return (
        f"the table changed during each of {TRIES} attempts to compare it. In the last one: {reason}. Run verify again"
        " when no session alters the table"
    )
