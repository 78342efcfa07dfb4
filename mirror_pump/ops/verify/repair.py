"""Compares a table's heap and lake by digests, and replaces only the rows of the lake that differ.

1. A consistent point yields a snapshot S of the database at the WAL position L, and a stream of what commits after L.
2. Once the frontier has passed L, the lake is pinned at the frontier F0. Both sides are digested by tasks, the heap in
   S, by sums of 128-bit hashes over whole rows in buckets of keys. Keys that the stream changed between L and F0 are
   digested from the stream. So both sides are compared at F0, exactly.
3. Only the rows of unequal buckets are looked at one by one. That leaves the keys K of the rows that differ.
4. One publish, under the slot's lock and at the frontier F that the mirror has then, deletes all rows with a key of K,
   and adds the rows that the heap has at F: those of S, with the stream's changes up to F on top.

Invariant: after the publish, for each key of K the lake has at F exactly what the heap had at F. It does not matter
what the stream did to these keys meanwhile, since everything up to F is in the rows that are added, and everything
later comes by the stream: the rule of the initial copy's chunks, at F. Other keys are not touched. No pump can
publish in between, because each publish takes the slot's lock. The lake's frontier does not move, so all tables stay at
one frontier. Whatever happens before the COMMIT leaves the lake as it was.

Before anything is written, the rows that were read are digested as well: they have to be those that were compared.

Of a table with heap retention, rows at or above the cut-line are compared and replaced: rows of the heap, the lake and
the stream below it are left out. So nothing is looked at that only the lake has, unless a partition above the cut-line
was dropped: then the table is refused, as far as it differs. The cut-line does not move while the slot's lock is held.

Tiered tables and those without a key are not repaired (`refuse`).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mirror_pump.engine.comparison.differing_rows import DifferingRows
from mirror_pump.engine.lake_storage import lake_storage, refresh_profiles
from mirror_pump.errors import CommitConflict, ConnectionLost, MirrorPumpError, TableError
from mirror_pump.lake.commit.row_delta import LakeTable, SegmentFiles
from mirror_pump.lake.format.partitioned_files import write_data_files, write_equality_delete_files
from mirror_pump.lake.format.raw_text_columns import narrowed, raw_text_fields
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.key_index.packed_keys import KeyPacking
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn, MirroredTable, TableMode, TableState, format_lsn
from mirror_pump.ops.catch_up_changes import CatchUpStream, ChangedRow, Key
from mirror_pump.ops.table_progress import TableProgress
from mirror_pump.ops.verify.followed_heap import FollowedHeap
from mirror_pump.ops.verify.frontier_catch_up import reach
from mirror_pump.ops.verify.heap_copy import Disturbed
from mirror_pump.ops.verify.pinned_tables import pinned, snapshot_reader
from mirror_pump.ops.verify.repair_runners import RepairRunners
from mirror_pump.ops.verify.table_digests import TASK_BYTES, ComparedDigests, TableDigests
from mirror_pump.pipeline.flow.tasks import Tasks
from mirror_pump.pipeline.landing.slot_lock import SlotLock
from mirror_pump.pipeline.landing.written_files import WrittenFiles
from mirror_pump.pipeline.missing_files.missing_files import refuse_missing
from mirror_pump.pipeline.operations.apply_stream import ApplyStream
from mirror_pump.pipeline.operations.operation import SegmentChange
from mirror_pump.pipeline.operations.requests import PublishRequest
from mirror_pump.pipeline.publish.guest_publish import GuestPublisher
from mirror_pump.runtime.telemetry import get_logger
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.pauses import state_text, way_to_live
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection, connect, portable_dsn, source_errors
from mirror_pump.source.heap.block_reader import FilenodeChanged, HeapLocked, plan_chunks
from mirror_pump.source.stream.consistent_point import ConsistentPoint
from sql import queries

if TYPE_CHECKING:
    from mirror_pump.engine.spark_runtime.runner import TaskRunner

_SQL = queries("verify")

_POINT_TIMEOUT = 120.0
"""Seconds to wait for transactions that were open when the consistent point was requested."""
_TRIES = 3
"""Attempts at a table that changes while it is read, and at a publish beside another engine's commits."""


class RepairPhase(StrEnum):
    """How far the repair of a table is."""

    COMPARING = "comparing"
    REPAIRING = "repairing"
    """The rows are written, and are about to be published."""
    DONE = "done"


@dataclass(frozen=True)
class TableRepair:
    """What was found in one table, and done."""

    table: str
    heap_rows: int = 0
    lake_rows: int = 0
    missing: int = 0
    """Keys that only the heap had."""
    extra: int = 0
    """Keys that only the lake had."""
    different: int = 0
    """Keys with other values in the lake, or more than one row."""
    repaired: bool = False
    """Whether the rows that differed were replaced."""
    frontier: Lsn | None = None
    """The frontier at which they were replaced, or else were compared. None: the table was not compared."""
    error: MirrorPumpError | None = None
    """Why the table was not compared or not repaired; nothing was changed then."""

    @property
    def differing(self) -> int:
        """How many keys differed."""
        return self.missing + self.extra + self.different

    def to_json(self) -> dict[str, Any]:
        """Return an entry of the document that docs/cli-json.md describes."""
        return {
            "table": self.table,
            "frontier": None if self.frontier is None else format_lsn(self.frontier),
            "heap_rows": self.heap_rows,
            "lake_rows": self.lake_rows,
            "missing": self.missing,
            "extra": self.extra,
            "different": self.different,
            "repaired": self.repaired,
            "error": None if self.error is None else str(self.error),
            "remedy": None if self.error is None else self.error.remedy,
        }


def refuse(table: MirroredTable) -> None:
    """Raises TableError, with the reason, for a table whose rows cannot be repaired one by one."""
    copied = f"`mirror-pump resync {table.name.shell}` copies it again"
    if table.mode is TableMode.TIERED:
        raise TableError(
            f"{table.name} is a tiered table: nothing of it comes by the stream",
            "`mirror-pump verify` compares what heap and lake both hold",
        )
    if table.state is not TableState.LIVE:
        raise TableError(f"{table.name} is {state_text(table)}", way_to_live(table))
    reason = ""
    if table.keyless:
        reason = "it has no key"
    elif table.no_copy:
        reason = "it was registered with --no-copy, so that most rows differ"
    if reason or KeyPacking.of(LakeSchema.of_table(table), b"-") is None:
        reason = reason or "a column of its key is a list"
        raise TableError(f"{table.name} cannot be repaired row by row: {reason}", copied)


def repair(
    settings: Settings,
    tables: Sequence[MirroredTable],
    *,
    dry_run: bool = False,
    runner: TaskRunner | None = None,
    observe: Callable[[TableProgress], None] = lambda _: None,
) -> list[TableRepair]:
    """Repair tables one after the other. With `dry_run`, only compare them.

    If no pump runs, starts one until the frontier has caught up. `runner` runs all tasks; without it, Spark
    those of large tables. `observe` is called in this thread. Raises SourceError and ConnectionLost if the database
    does not answer or has no free slot.
    """
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-repair") as connection:
        storage = lake_storage(settings)
        refresh_profiles(storage, connection)
        with RepairRunners(settings, runner) as runners:
            return [
                _RepairedTable(settings, storage, connection, runners, table, observe).run(dry_run=dry_run)
                for table in tables
            ]


class _RepairedTable:
    """The repair of one table."""

    def __init__(
        self,
        settings: Settings,
        storage: StorageOptions,
        connection: PgConnection,
        runners: RepairRunners,
        table: MirroredTable,
        observe: Callable[[TableProgress], None],
    ) -> None:
        self._settings = settings
        self._storage = storage
        self._connection = connection
        self._runners = runners
        self._table = table
        self._progress = TableProgress(str(table.name), RepairPhase.COMPARING)
        self._observe = observe
        self._log = get_logger("repair")

    def run(self, *, dry_run: bool) -> TableRepair:
        name = str(self._table.name)
        self._observe(self._progress)
        try:
            for tried in range(1, _TRIES + 1):
                self._table = _loaded(self._connection, self._table)
                refuse(self._table)
                try:
                    return self._attempt(dry_run=dry_run)
                except (Disturbed, FilenodeChanged, HeapLocked) as disturbed:
                    self._log.warning("table-compared-again", table=name, tried=tried, of=_TRIES, reason=str(disturbed))
                    reason = str(disturbed)
            raise TableError(f"{name} changed while it was being repaired: {reason}", "run the same command again")
        except ConnectionLost:
            raise
        except MirrorPumpError as error:
            return TableRepair(name, error=error)
        finally:
            self._observe(replace(self._progress, step=RepairPhase.DONE))

    def _attempt(self, *, dry_run: bool) -> TableRepair:
        dsn = self._settings.require_dsn()
        tables = {self._table.table_id: self._table}
        slot = f"mirror_pump_repair_{uuid.uuid4().hex[:12]}"
        with (
            ConsistentPoint(dsn, slot, _POINT_TIMEOUT) as point,
            snapshot_reader(dsn, point.snapshot) as reader,
        ):
            ((exported,),) = reader.execute("SELECT pg_export_snapshot()").fetchall()
            reach(self._settings, point.lsn)
            with point.stream(self._settings.publication) as stream:
                following = CatchUpStream(stream, tables, point.lsn)
                heap = FollowedHeap(self._table, LakeSchema.of_table(self._table), following, reader, self._frontier)
                frontier, compared = self._compare(heap, exported)
                differing = compared.differing
                result = TableRepair(str(self._table.name), compared.heap_rows, compared.lake_rows, frontier=frontier)
                if differing is None:
                    return result
                result = replace(
                    result, missing=differing.missing, extra=differing.extra, different=differing.different
                )
                if dry_run:
                    return result
                return replace(result, repaired=True, frontier=self._publish(differing, heap))

    def _frontier(self) -> Lsn:
        ((applied,),) = self._connection.execute(_SQL["applied"], {"slot": self._settings.slot}).fetchall()
        return Lsn(applied)

    def _compare(self, heap: FollowedHeap, snapshot: str) -> tuple[Lsn, ComparedDigests]:
        """Compares heap and lake at the frontier. `snapshot`: the exported snapshot of the consistent point."""
        tables = {self._table.table_id: self._table}
        with pinned(self._connection, tables) as (frontier, locations, cuts):
            if self._table.table_id not in locations:
                raise Disturbed("it failed, is being copied again, or was unregistered")
            if self._table.tier is not None and cuts[self._table.table_id] != self._table.tier.cut:
                raise Disturbed("its cut-line has moved")
            refuse_missing(self._connection, self._table, self._storage)
            lake = LakeTable.load(locations[self._table.table_id], self._storage)
            chunks = plan_chunks(heap.reader, self._table.table_id, TASK_BYTES)
            relations = {"relations": sorted({chunk.relation_id for chunk in chunks})}
            ((nbytes,),) = self._connection.execute(_SQL["bytes"], relations).fetchall()
            tasks = Tasks(self._runners.for_heap(nbytes), lambda: False)
            dsn = portable_dsn(self._settings.require_dsn(), heap.reader)
            digests = TableDigests(heap, lake, chunks, snapshot, dsn, tasks, self._storage)
            return frontier, digests.compare(frontier)

    def _publishes(self) -> None:
        self._observe(replace(self._progress, step=RepairPhase.REPAIRING))

    def _publish(self, differing: DifferingRows, heap: FollowedHeap) -> Lsn:
        """Returns the frontier at which the rows were replaced."""
        dsn = self._settings.require_dsn()
        with connect(dsn, autocommit=True, application_name="mirror-pump-repair") as connection:
            guest = GuestPublisher(connection, self._settings.slot, self._storage)
            publish = _RepairPublish(guest, connection, self._table, differing, heap, self._storage, self._publishes)
            for _ in range(_TRIES - 1):
                with suppress(CommitConflict):
                    return publish.run()
            return publish.run()


def _loaded(connection: PgConnection, table: MirroredTable) -> MirroredTable:
    current = load_table(connection, table.table_id)
    if current is None:
        raise TableError(f"{table.name} is not mirrored any more", "`mirror-pump status` lists the tables that are.")
    return current


class _RepairPublish:
    """Replaces the rows of the differing keys. They are written before the slot's lock is taken; under it, only those
    that the stream has changed since are written once more."""

    def __init__(
        self,
        guest: GuestPublisher,
        connection: PgConnection,
        table: MirroredTable,
        differing: DifferingRows,
        heap: FollowedHeap,
        storage: StorageOptions,
        before_lock: Callable[[], None],
    ) -> None:
        self._guest = guest
        self._before_lock = before_lock
        self._connection = connection
        self._table = table
        self._differing = differing
        self._heap = heap
        self._storage = storage
        self._raw_text: frozenset[int] = frozenset()
        self._files = WrittenFiles(storage)

    def run(self) -> Lsn:
        """Returns the frontier. Raises CommitConflict if another engine has committed meanwhile. The lake is as it was
        if this fails, unless the connection was lost at the COMMIT."""
        written_since = time.time()
        self._files = WrittenFiles(self._storage)
        self._heap.follow()
        chosen = self._heap.among(self._differing, self._heap.changes)
        with self._files:
            first = self._segment(self._differing, chosen)
            self._before_lock()
            with (
                source_errors(f"repairing {self._table.name}"),
                self._files.committing(self._connection, lambda: None),
            ):
                lock = SlotLock.take(self._connection, self._guest.slot)
                return self._land(lock, first, chosen, written_since)

    def _land(self, lock: SlotLock, first: SegmentChange, written: Mapping[Key, ChangedRow], since: float) -> Lsn:
        """Stages and lands the publish under the slot's lock. `written`: the stream's changes in the first segment."""
        self._require_same()
        frontier = self._heap.follow()
        changed = {
            key: row
            for key, row in self._heap.among(self._differing, self._heap.changes).items()
            if key not in written or written[key] is not row
        }
        segments = [first]
        if changed:
            segments.append(self._segment(self._heap.taken(self._differing, changed), changed))
        request = PublishRequest.of(self._table, ApplyStream(tuple(segments), self._raw_text), since)
        self._guest.land(lock, self._guest.stage(request, self._files))
        return frontier

    def _require_same(self) -> None:
        """Raises Disturbed unless the table is live, and what it was."""
        current = load_table(self._connection, self._table.table_id)
        if current is None or _described(current) != _described(self._table):
            raise Disturbed("it was altered, is being copied again, or was unregistered, or its cut-line has moved")
        # Its rows are not in the heap, and seem to be too many in the lake.
        partitions = self._guest.left_to_the_lake(self._table) if self._table.tier is not None else None
        if partitions is not None:
            raise TableError(
                f"{self._table.name}: of partition {partitions}, which was dropped or detached above the cut-line, the"
                " lake alone has the rows, and a repair would remove them: it is left as it is",
                "attach the partition again if you still have it",
            )

    def _segment(self, keys: DifferingRows, changes: Mapping[Key, ChangedRow]) -> SegmentChange:
        """Writes the files that replace all rows of the keys by those that the heap has."""
        table, schema = self._table, self._heap.schema
        rows, file_schema = narrowed(self._heap.rows(keys, changes), schema)
        self._raw_text |= raw_text_fields(file_schema)
        deleted = pa.table(list(keys.key_columns), schema.key.arrow.names)
        deletes = write_equality_delete_files(deleted, schema, table.location, self._storage, table.partitioning)
        self._files.own(*(file.path for file in deletes))
        data = write_data_files(rows, file_schema, table.location, self._storage, table.partitioning)
        self._files.own(*(file.path for file in data))
        return SegmentChange(SegmentFiles(data, deletes))


def _described(table: MirroredTable) -> tuple[object, ...]:
    return (
        table.state,
        table.columns,
        table.key,
        table.start_lsn,
        table.generation,
        table.location,
        table.excluded,
        table.tier,
        table.partitioning,
        table.row_filter,
    )
