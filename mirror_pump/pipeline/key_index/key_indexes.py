"""Encodes a commit's deletes: as position deletes for tables with a key index, otherwise as equality deletes.

Invariant: in phase READY, a table's index belongs to the metadata file `location`. It maps exactly the keys of the rows
that a reader of that metadata sees to the places of these rows. This holds for three reasons:

- A new index is built from one state of the table. All later commits of the pump are replayed on it, in order.
- From then on, a commit of the pump changes the index only after its publish has landed (`landed`), and by exactly what
  was published.
- If the metadata location shows that another engine committed, this is noticed before a commit is planned. If that
  engine only rewrote files, no row has changed, and keys whose files are gone get their places in the new files
  (FOLLOWING). If the snapshot is the same, so are all places. After any other commit the index is discarded.

In all other cases the deletes are equality deletes, which need no index: if the table has none, if another engine's
rewrite is running (its commit would fail because of new position deletes), and if the stream deletes a key that the
index does not have. A commit's deletes are all by position or all by key. Folds can wait: one that finds the index
outdated, by an ingest for instance, is refused and made again (`awaits_index`).

A correction may concern a key without a row: a new key, or one that is deleted again. In READY and FOLLOWING the index
has exactly the keys of the commit's base. So no delete is written for a key that neither the index nor an earlier
segment of the commit has. An equality delete for it would hide nothing, and would keep pyiceberg, Polars and Daft from
reading the snapshot.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from mirror_pump.errors import FileMissing, LakeError
from mirror_pump.lake.commit.merged_files import MergedFile
from mirror_pump.lake.commit.row_delta import LakeTable, SegmentFiles
from mirror_pump.lake.contents.row_ids import RowIds, StoredIds
from mirror_pump.lake.contents.snapshot_history import only_rewritten_since
from mirror_pump.lake.format.partitioned_files import write_equality_delete_files
from mirror_pump.lake.format.partitioning import PartitionTuple
from mirror_pump.lake.format.position_deletes import Positions
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.format.unwritten_files import UnwrittenFiles
from mirror_pump.lake.key_index.index_plan import (
    FileNumbers,
    IndexPlan,
    KeyedSegment,
    PlacedFile,
    SegmentKeys,
    TouchedKeys,
    apply_plan,
    plan_commit,
)
from mirror_pump.lake.key_index.key_index import KeyIndex
from mirror_pump.lake.key_index.leaf_store import LeafStore
from mirror_pump.lake.key_index.packed_keys import KeyPacking
from mirror_pump.lake.key_index.whole_rows import RemovedRows
from mirror_pump.lake.manifests.manifest_list import read_list
from mirror_pump.lake.storage import StagedFiles, StorageOptions, discard
from mirror_pump.model import Lsn, MirroredTable, TableId
from mirror_pump.pipeline.flow.backlog import Backlog
from mirror_pump.pipeline.flow.events import IndexRead
from mirror_pump.pipeline.flow.steps import Observer, Step
from mirror_pump.pipeline.key_index.files_with_row_ids import (
    FilesWithRowIds,
    ReplacingRows,
    replacing_rows,
    write_identified,
)
from mirror_pump.pipeline.key_index.index_budget import Candidate, choose
from mirror_pump.pipeline.key_index.index_builder import BuiltIndex, IndexBuilder, IndexJob, SucceededFiles
from mirror_pump.pipeline.key_index.row_hashes import RowHashes
from mirror_pump.pipeline.key_index.table_index import IndexPhase, TableIndex
from mirror_pump.pipeline.operations.operation import SegmentChange

_Value = TypeVar("_Value")

_LOG_SHARE = 4
"""The log of commits during the building of an index may take at most the budget divided by this."""
_ROW_IDS_SHARE = 4
"""What is kept of rows' IDs, in tables that have them, may take at most the budget divided by this, in memory and in
files; and that much of the share always, however large the indexes are."""
_FAILED_PAUSE = 300.0
"""Seconds before a table whose index could not be built becomes a candidate again."""


class IndexNotReady(LakeError):
    """The table has no key index that matches it. The commit's deletes would have to be written by key."""


@dataclass(frozen=True)
class EncodedDeletes:
    """A commit's segments with the files of all deletes."""

    segments: tuple[SegmentFiles, ...]
    hidden: Mapping[str, Positions] = field(default_factory=dict, repr=False)
    """Rows that the whole commit deletes by position: as `RowDelta.hidden`."""
    partitions: Mapping[str, PartitionTuple] = field(default_factory=dict, repr=False)
    """As `RowDelta.partitions`."""
    base: LakeTable | None = field(default=None, repr=False)
    """The state of the table on which the commit builds."""
    keyed: tuple[KeyedSegment, ...] | None = field(default=(), repr=False)
    """The segments' keys. None if a segment has none."""
    emptied: bool = False
    """Whether the table has no other rows than the commit's."""
    touched: TouchedKeys | None = field(default=None, repr=False)
    """What the commit changes in the table's index. None if it has none."""
    written: tuple[str, ...] = ()
    """URIs of the files that encoding wrote. They are removed if the publish certainly failed."""
    deleted: int = 0
    """Number of keys, or of whole rows, that the commit deletes."""
    identified: FilesWithRowIds = field(default_factory=FilesWithRowIds, repr=False)
    """Its files whose rows have IDs of rows that they replace."""
    waiting: tuple[RemovedRows, ...] = field(default=(), repr=False)
    """Deletes of rows that are not in the lake yet, as the table is being copied."""

    @property
    def mode(self) -> str | None:
        """`equality` if the commit has any equality delete, `position` if all its deletes are position deletes, None if
        it has no deletes."""
        if any(segment.deletes for segment in self.segments):
            return "equality"
        return "position" if self.deleted else None


@dataclass
class _CountedTable:
    """A live table whose deletes have been counted."""

    candidate: Candidate
    not_before: float = 0.0
    """The table gets no index before this time.monotonic(), in seconds."""


class KeyIndexes:
    """All key indexes of one pump. Owned by the loop's thread. Any thread may call `packing` and `phase`.

    They outlive sessions: an index that is READY stays exact as long as the catalog names the same metadata.
    """

    def __init__(
        self,
        budget: int,
        storage: StorageOptions,
        look_interval: float = 1.0,
        disk: int = 0,
        rows_at_once: int = 0,
    ) -> None:
        """`budget`: maximum size of all indexes together, in bytes. 0: no table gets an index. `look_interval`: seconds
        between decisions about which tables have one. `disk`: maximum size of the files of indexes for which memory
        has no room, in bytes. 0: they have none. `rows_at_once`: as of RowHashes, for tables without a
        key, which have no index."""
        self._store = LeafStore(disk)
        self.row_hashes = RowHashes(self._store, rows_at_once)
        """Of tables without a key, which have no index."""
        self._row_ids = RowIds(
            storage, budget // _ROW_IDS_SHARE, self._store.stored, self._store.limit // _ROW_IDS_SHARE
        )
        self._budget = budget
        self._look_interval = look_interval
        self._storage = storage
        self._secret = os.urandom(16)
        self._tracked: dict[TableId, TableIndex] = {}
        self._counted: dict[TableId, _CountedTable] = {}
        self._packings: dict[TableId, tuple[MirroredTable, KeyPacking | None]] = {}
        """Each table's packing, and the table for which it was worked out."""
        self._jobs = 0
        self._looked_at = 0.0
        self._reported: dict[TableId, IndexPhase] = {}
        self._builder: IndexBuilder | None = None
        self._observer: Observer | None = None
        self._backlog = Backlog()

    def attach(self, builder: IndexBuilder, observer: Observer, backlog: Backlog) -> None:
        """Begin a session. `changed_reports` then returns every index again."""
        self._builder, self._observer, self._backlog = builder, observer, backlog
        self._reported = {}
        for tracked in self._tracked.values():
            if tracked.phase is not IndexPhase.READY:
                tracked.restart(self._next_job())

    def packing(self, table: MirroredTable) -> KeyPacking | None:
        """The packing in which segments of the table have to return their keys. None: they write equality deletes.
        Thread-safe."""
        tracked = self._tracked.get(table.table_id)
        if tracked is None or tracked.start_lsn != table.start_lsn or not table.state.has_all_rows:
            return None
        return tracked.packing

    def encode(
        self,
        table: MirroredTable,
        base: LakeTable,
        segments: Sequence[SegmentChange],
        *,
        emptied: bool,
        positions_allowed: bool,
        awaits_index: bool = False,
    ) -> EncodedDeletes:
        """Encodes the segments' deletes for a commit on top of `base`, and writes those by key. Changes no index, so it
        may be repeated with another base.

        `emptied`: the commit removes every row of `base`. `positions_allowed`: the commit may add position deletes.
        `awaits_index`: raise IndexNotReady rather than write deletes by key for want of an index. Raises LakeError.
        """
        tracked = self._of(table)
        keyed = _keyed(segments, [segment.files for segment in segments])
        plan: IndexPlan | None = None
        ready = False
        if tracked is not None and self._usable(table.table_id, tracked, base, keyed or ()) and keyed:
            index = KeyIndex(tracked.packing.words) if emptied else tracked.index
            ready = tracked.phase is IndexPhase.READY
            plan = plan_commit(index, tracked.numbers, keyed, with_changed=base.has_lineage)
        if awaits_index and (plan is None or (positions_allowed and not ready)):
            raise IndexNotReady(f"the key index of {table.name} does not match the table yet")
        by_position = plan if ready and positions_allowed and not _misses_keys(plan, keyed or ()) else None
        files: list[SegmentFiles] = []
        with StagedFiles(self._storage) as written:
            for number, segment in enumerate(segments):
                encoded = segment.files
                if segment.keys is not None:
                    deleted = _by_key(segment.keys, number, plan, positions=by_position is not None)
                    schema, divided_by = segment.keys.schema, table.partitioning
                    new = write_equality_delete_files(deleted, schema, table.location, self._storage, divided_by)
                    written.add(*(file.path for file in new))
                    encoded = replace(encoded, deletes=(*encoded.deletes, *new))
                files.append(encoded)
            data = [file for segment in files for file in segment.data]
            unwritten = UnwrittenFiles.joined(segment.unwritten for segment in segments)
            replacing = self._replacing_rows(tracked, plan, base)
            identified = write_identified(data, unwritten, replacing, base, written)
            files = [identified.in_place(segment) for segment in files]
            numbers = FileNumbers() if tracked is None else tracked.numbers
            for path, copy in identified.copies.items():
                numbers.rename(path, copy.path)
            hidden = {} if by_position is None else by_position.positions(numbers)
        return EncodedDeletes(
            segments=tuple(files),
            hidden=hidden,
            partitions=numbers.partitions(hidden),
            base=base,
            keyed=_keyed(segments, files),
            emptied=emptied,
            touched=None if plan is None else plan.touched,
            identified=identified,
            written=written.locations,
            deleted=sum(segment.deleted for segment in segments),
        )

    def _replacing_rows(
        self, tracked: TableIndex | None, plan: IndexPlan | None, base: LakeTable
    ) -> Mapping[str, ReplacingRows] | None:
        """The rows of a commit that replace others, by data file URI; None if these are not known. Files that another
        engine has just rewritten tell the IDs as long as they are there: a row keeps its ID wherever it is."""
        if tracked is None or plan is None or not base.has_lineage:
            return None
        manifests = [*base.manifests]
        if tracked.phase is IndexPhase.FOLLOWING:
            manifests += tracked.former_manifests
        try:
            return replacing_rows(plan, tracked.numbers, manifests, self._row_ids)
        except FileMissing:
            if tracked.phase is not IndexPhase.FOLLOWING:
                raise
            return None

    def phase(self, table: MirroredTable) -> IndexPhase | None:
        """The phase of the table's index. None if it has none. Thread-safe."""
        tracked = self._tracked.get(table.table_id)
        return None if tracked is None or tracked.start_lsn != table.start_lsn else tracked.phase

    def request(self, table: MirroredTable, lake: LakeTable, deletes: int) -> bool:
        """Request an index because this many deletes are about to be committed. `lake` is the table's current state.
        Returns whether the table has an index or one is being built."""
        tracked = self._of(table)
        if tracked is None:
            self._count(table, deletes, lake)
            self._choose()
            tracked = self._of(table)
        if tracked is not None and tracked.phase is IndexPhase.REQUESTED:
            self._build(table.table_id, tracked, lake)
            tracked.location, tracked.snapshot_id = lake.metadata_location, int(lake.snapshot_id)
        return tracked is not None

    def landed(
        self, table: MirroredTable, encoded: EncodedDeletes, now: LakeTable, merged: Sequence[MergedFile] = ()
    ) -> None:
        """Update the index after the commit was published. `now` is the table after it. `merged`: data files with which
        it replaced others."""
        table_id = table.table_id
        self._count(table, encoded.deleted, now)
        for path, ids in encoded.identified.ids.items():
            self._row_ids.put(path, None if ids is None else StoredIds.of(ids))
        discard(encoded.identified.superseded, self._storage)
        if not self._backlog.comes_first and time.monotonic() - self._looked_at >= self._look_interval:
            self._looked_at = time.monotonic()
            self._choose()
        tracked = self._of(table)
        if tracked is None:
            return
        if encoded.keyed is None:
            # The segments began before keys were requested. From the next commit on, segments have their keys.
            tracked.restart(self._next_job())
        elif encoded.emptied and (encoded.keyed or tracked.phase is not IndexPhase.REQUESTED):
            tracked.begin_empty(self._next_job(), encoded.keyed)
        elif tracked.phase is IndexPhase.REQUESTED:
            if encoded.keyed:
                assert encoded.base is not None
                self._build(table_id, tracked, encoded.base)
                self._note(tracked, encoded.keyed)
        elif tracked.phase is IndexPhase.BUILDING:
            if encoded.base is None or encoded.base.metadata_location != tracked.location:
                tracked.restart(self._next_job())
            elif encoded.keyed:
                self._note(tracked, encoded.keyed)
        elif encoded.touched is not None:
            apply_plan(tracked.index, encoded.touched)
        tracked.location, tracked.snapshot_id = now.metadata_location, int(now.snapshot_id)
        self._row_ids.forget([path for file in merged for path in file.sources])
        if merged and tracked.phase is not IndexPhase.REQUESTED:
            self._merged(table_id, tracked, _of_live_sources(tracked, encoded.base, merged), now)

    def _merged(self, table_id: TableId, tracked: TableIndex, merged: Sequence[MergedFile], now: LakeTable) -> None:
        if all(file.keys is not None for file in merged):
            for file in merged:
                tracked.merged(file)
        elif tracked.has_keys:
            # The merge began before the table had an index. Treat it like another engine's rewrite.
            self._follow(table_id, tracked, now)
        else:
            tracked.restart(self._next_job())

    def take_answer(self, answer: IndexRead) -> None:
        """Take the builder's answer to a job."""
        tracked = self._tracked.get(answer.table_id)
        if tracked is None or tracked.job != answer.job:
            return
        match answer.result:
            case BuiltIndex() if tracked.phase is IndexPhase.BUILDING:
                tracked.built(answer.result)
                self._ready(answer.table_id, tracked)
            case SucceededFiles() if tracked.phase is IndexPhase.FOLLOWING:
                if tracked.followed(answer.result):
                    self._ready(answer.table_id, tracked)
                else:
                    error = "rows of rewritten files are missing from the new files"
                    self._observe(Step.INDEX_FAILED, answer.table_id, error=error)
                    tracked.restart(self._next_job())
            case _:
                self._observe(Step.INDEX_FAILED, answer.table_id, error=answer.error)
                self.forget(answer.table_id)
                if answer.table_id in self._counted:
                    self._counted[answer.table_id].not_before = time.monotonic() + _FAILED_PAUSE

    def forget(self, table_id: TableId) -> None:
        """Drop the table's index: the table is not live, or other indexes help more."""
        self._tracked.pop(table_id, None)

    def keep_only(self, tables: Collection[tuple[TableId, Lsn]]) -> None:
        """Drop everything about tables other than these live registrations (table, start LSN)."""
        starts = dict(tables)
        for table_id in [
            tracked_id for tracked_id, tracked in self._tracked.items() if starts.get(tracked_id) != tracked.start_lsn
        ]:
            self.forget(table_id)
        for table_id in self._counted.keys() - starts.keys():
            del self._counted[table_id]
        for table_id in self._packings.keys() - starts.keys():
            del self._packings[table_id]

    def report(self, table_id: TableId) -> Mapping[str, Any]:
        """What `status` shows of the table's index: phase, rows and bytes."""
        tracked = self._tracked.get(table_id)
        if tracked is None:
            return {"phase": None, "rows": 0, "bytes": 0, "disk_bytes": 0}
        size, on_disk = (tracked.index.nbytes, tracked.index.disk_bytes) if tracked.has_keys else (0, 0)
        return {"phase": tracked.phase.value, "rows": tracked.index.alive, "bytes": size, "disk_bytes": on_disk}

    def changed_reports(self) -> Mapping[TableId, Mapping[str, Any]]:
        """The reports of all tables whose index appeared, disappeared or changed its phase since it was `reported`."""
        phases = {table_id: tracked.phase for table_id, tracked in self._tracked.items()}
        return {
            table_id: self.report(table_id)
            for table_id in phases.keys() | self._reported.keys()
            if phases.get(table_id) is not self._reported.get(table_id)
        }

    def reported(self, table_ids: Iterable[TableId]) -> None:
        """The present reports of these tables are stored."""
        for table_id in table_ids:
            if table_id in self._tracked:
                self._reported[table_id] = self._tracked[table_id].phase
            else:
                self._reported.pop(table_id, None)

    def _of(self, table: MirroredTable) -> TableIndex | None:
        """The table's index. Drops it if it belongs to another registration or another key."""
        tracked = self._tracked.get(table.table_id)
        if tracked is None:
            return None
        if tracked.start_lsn != table.start_lsn or tracked.packing != self._packing_of(table):
            self.forget(table.table_id)
            return None
        return tracked

    def _packing_of(self, table: MirroredTable) -> KeyPacking | None:
        """The packing of the table's keys; None if they cannot be packed."""
        cached = self._packings.get(table.table_id)
        # Columns and key decide; a commit asks several times.
        if cached is None or (cached[0].columns, cached[0].key) != (table.columns, table.key):
            cached = self._packings[table.table_id] = table, KeyPacking.of(LakeSchema.of_table(table), self._secret)
        return cached[1]

    def _usable(self, table_id: TableId, tracked: TableIndex, base: LakeTable, coming: Sequence[KeyedSegment]) -> bool:
        """Whether the index has the table's keys as of `base`. In phase READY it also has their places. `coming`: the
        segments to commit on top of `base`."""
        if not tracked.has_keys:
            return False
        if tracked.location == base.metadata_location:
            return True
        if tracked.phase is IndexPhase.READY and int(base.snapshot_id) == tracked.snapshot_id:
            # The metadata alone has changed: a property, the order of rows, the format version.
            tracked.location = base.metadata_location
            return True
        # Another engine has committed.
        if not only_rewritten_since(base.metadata, tracked.snapshot_id):
            tracked.restart(self._next_job())
            return False
        # If this is a repeated attempt, the coming files already have numbers. They are not in `base` yet, but are not
        # gone either.
        self._follow(table_id, tracked, base, {file.path for segment in coming for file in segment.data})
        return True

    def _follow(self, table_id: TableId, tracked: TableIndex, lake: LakeTable, coming: Collection[str] = ()) -> None:
        """Have new files read that replaced files of the index and hold the same rows. `coming`: files that are not
        part of `lake` yet."""
        if tracked.phase is IndexPhase.READY and lake.has_lineage:
            snapshot = lake.metadata.snapshot(tracked.snapshot_id)
            with suppress(FileMissing):
                tracked.former_manifests = () if snapshot is None else read_list(snapshot, self._storage)
        tracked.phase = IndexPhase.FOLLOWING
        tracked.location, tracked.snapshot_id = lake.metadata_location, int(lake.snapshot_id)
        self._submit(table_id, tracked, lake, tracked.numbers.paths().difference(coming))

    def _build(self, table_id: TableId, tracked: TableIndex, lake: LakeTable) -> None:
        """Have an index built from this state. Later commits are logged until it is built."""
        tracked.phase = IndexPhase.BUILDING
        self._submit(table_id, tracked, lake, None)
        self._observe(Step.INDEX_BUILDING, table_id, rows=lake.records)

    def _note(self, tracked: TableIndex, keyed: tuple[KeyedSegment, ...]) -> None:
        tracked.note(keyed)
        if tracked.log_bytes > self._budget // _LOG_SHARE:
            # Too much has changed since the building began.
            tracked.restart(self._next_job())

    def _ready(self, table_id: TableId, tracked: TableIndex) -> None:
        self._observe(Step.INDEX_READY, table_id, rows=tracked.index.alive, bytes=tracked.index.nbytes)

    def _next_job(self) -> int:
        self._jobs += 1
        return self._jobs

    def _submit(
        self, table_id: TableId, tracked: TableIndex, lake: LakeTable, indexed_paths: frozenset[str] | None
    ) -> None:
        assert self._builder is not None
        tracked.job = self._next_job()
        row_ids = self._row_ids if lake.has_lineage else None
        job = IndexJob(
            table_id, tracked.job, lake, tracked.packing, indexed_paths, self._budget, tracked.store, row_ids
        )
        self._builder.submit(job)

    def _count(self, table: MirroredTable, deletes: int, now: LakeTable) -> None:
        """Count the table's deletes, and estimate the size of an index."""
        if not self._budget or not deletes or not table.state.has_all_rows:
            return
        packing = self._packing_of(table)
        if packing is None:
            return
        counted = self._counted.get(table.table_id)
        # An advance of the cut-line does not matter.
        if counted is None or replace(counted.candidate.table, tier=None) != replace(table, tier=None):
            # The table is new, was registered again, or was altered.
            counted = _CountedTable(Candidate(table))
        candidate = counted.candidate.after(deletes, now, packing, time.monotonic())
        self._counted[table.table_id] = replace(counted, candidate=candidate)

    def _choose(self) -> None:
        """Give indexes to the tables that they help most: in memory, and where that has no room in files. An index
        that outgrows memory moves into files; one in files stays there."""
        now = time.monotonic()
        allowed = {
            table_id: counted.candidate for table_id, counted in self._counted.items() if counted.not_before <= now
        }
        taken = {table_id: tracked.nbytes for table_id, tracked in self._tracked.items()}
        filed = {table_id for table_id, tracked in self._tracked.items() if tracked.store is not None}
        in_memory = choose(_without(allowed, filed), _without(taken, filed), self._budget, now)
        # Those that have to leave memory come as candidates, or they would count as taken in files already.
        in_files = choose(
            _without(allowed, in_memory),
            {table_id: size for table_id, size in taken.items() if table_id in filed},
            self._store.limit,
            now,
        )
        self._place(allowed, in_memory, in_files)
        self._resize_row_ids()

    def _resize_row_ids(self) -> None:
        """Gives what is kept of rows' IDs a part of what indexes leave. Indexes come first: without its index a table
        has deletes by key, while an ID is read again."""
        in_memory = sum(tracked.nbytes for tracked in self._tracked.values() if tracked.store is None)
        share = self._budget // _ROW_IDS_SHARE
        left = max(min(share, self._budget - in_memory), share // _ROW_IDS_SHARE)
        left_on_disk = self._store.limit - (self._store.used - self._row_ids.disk_bytes)
        self._row_ids.resize(left, max(min(self._store.limit, left_on_disk), 0) // _ROW_IDS_SHARE)

    def _place(
        self, allowed: Mapping[TableId, Candidate], in_memory: Collection[TableId], in_files: Collection[TableId]
    ) -> None:
        """Begin, move and drop indexes so that these tables have theirs."""
        for table_id, tracked in tuple(self._tracked.items()):
            if table_id in in_files and tracked.store is None:
                tracked.spill(self._store)
            elif table_id not in in_memory and table_id not in in_files:
                self.forget(table_id)
            if tracked.store is not None and tracked.index.nbytes > self._budget:
                # Files had no room for leaves, which stayed in memory.
                error = "its key index has no room in memory nor on disk: raise --index-memory or --index-disk"
                self._observe(Step.INDEX_FAILED, table_id, error=error)
                self.forget(table_id)
                if table_id in self._counted:
                    self._counted[table_id].not_before = time.monotonic() + _FAILED_PAUSE
                return
        for table_id in {*in_memory, *in_files} - self._tracked.keys():
            candidate = allowed[table_id]
            tracked = TableIndex(candidate.table.start_lsn, candidate.packing_of(self._secret), candidate.nbytes)
            if table_id in in_files:
                tracked.spill(self._store)
            tracked.restart(self._next_job())
            self._tracked[table_id] = tracked

    def _observe(self, step: Step, table_id: TableId, **details: object) -> None:
        if self._observer is not None:
            name = self._counted[table_id].candidate.table.name if table_id in self._counted else table_id
            self._observer(step, table=str(name), **details)


def _of_live_sources(tracked: TableIndex, base: LakeTable | None, merged: Sequence[MergedFile]) -> Sequence[MergedFile]:
    """The merged files without rows of sources that another engine replaced before the merge landed: these are hidden,
    and their keys get places in that engine's files."""
    if tracked.phase is not IndexPhase.FOLLOWING or base is None:
        return merged
    live = {file.path for file in base.live_data_files()}
    return [file.of_sources(live) for file in merged]


def _without(values: Mapping[TableId, _Value], tables: Collection[TableId]) -> dict[TableId, _Value]:
    return {table_id: value for table_id, value in values.items() if table_id not in tables}


def _by_key(keys: SegmentKeys, number: int, plan: IndexPlan | None, *, positions: bool) -> pa.Table:
    """The deleted keys of a segment that are written as equality deletes. `plan`: the commit's plan, if the table has
    an index. `positions`: they are written as position deletes."""
    if plan is None:
        return keys.deleted
    if positions:
        return keys.deleted.slice(0, 0)
    if not keys.may_be_absent:
        return keys.deleted
    written = np.ones(keys.deleted.num_rows, np.bool_)
    written[plan.unknown[number]] = False
    return keys.deleted.filter(pa.array(written))


def _misses_keys(plan: IndexPlan | None, segments: Iterable[KeyedSegment]) -> bool:
    """Whether the stream deletes keys that the index does not know."""
    return plan is not None and any(
        len(unknown) and not segment.keys.may_be_absent for unknown, segment in zip(plan.unknown, segments, strict=True)
    )


def _keyed(segments: Iterable[SegmentChange], files: Iterable[SegmentFiles]) -> tuple[KeyedSegment, ...] | None:
    """The segments' keys, with the files of each. None if a segment that changes something has no keys."""
    keyed = []
    for segment, own_files in zip(segments, files, strict=True):
        if segment.keys is not None:
            data = tuple(PlacedFile(file.path, file.partition) for file in own_files.data)
            keyed.append(KeyedSegment(data, segment.keys))
        elif own_files.data or own_files.deletes:
            return None
    return tuple(keyed)
