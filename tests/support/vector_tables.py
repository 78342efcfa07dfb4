"""A lake table with deletes by position in either form, random changes, and a model of its rows and their lineage."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from pyiceberg.manifest import ManifestContent

from mirror_pump.engine.rewrite.conversion_plan import file_rewrite_of, plan_conversion
from mirror_pump.engine.rewrite.delete_conversion import convert_deletes
from mirror_pump.engine.rewrite.file_merge import merge_files, merge_positions
from mirror_pump.engine.rewrite.merge_plan import (
    MergePlan,
    MergeSizes,
    merged_file_rewrite,
    plan_fill,
    plan_merge,
    plan_rewrite,
)
from mirror_pump.lake.commit.file_rewrite import FileRewrite, FileRewriteSuperseded
from mirror_pump.lake.commit.replacement import EveryFile
from mirror_pump.lake.commit.row_delta import LakeTable, RowDelta, SegmentFiles, StagedCommit
from mirror_pump.lake.contents.file_listing import Listing
from mirror_pump.lake.document.metadata_files import next_location, read_any_version
from mirror_pump.lake.document.next_metadata import with_format_version
from mirror_pump.lake.document.snapshot_stats import rows_are_exact
from mirror_pump.lake.document.snapshot_summary import Total
from mirror_pump.lake.format.data_files import FileContent, WrittenFile, write_data_file, write_equality_deletes
from mirror_pump.lake.format.partitioning import UNPARTITIONED, PartitionTuple
from mirror_pump.lake.format.position_deletes import PATH_ID
from mirror_pump.lake.manifests.manifest_files import stored_of
from mirror_pump.lake.manifests.manifest_list import read_list
from mirror_pump.lake.storage import write_all
from mirror_pump.model import LakePartitioning, PartitionedColumn
from mirror_pump.tables.read_plan.plan import read_plan
from mirror_pump.tables.read_plan.scan import Scan
from tests.support.lake_tables import SCHEMA, START_MS, STORAGE, TARGET

Places: TypeAlias = dict[str, list[int]]
BY_ID = LakePartitioning((PartitionedColumn(1, "truncate[1000000]"),))


@dataclass
class VectorTable:
    """A table (id, v), with what it must have."""

    location: str
    drawn: random.Random
    partitioning: LakePartitioning | None = None
    rows: dict[int, str] = field(default_factory=dict)
    last_id: int = 0
    conversions: int = 0
    merges: int = 0
    moved: int = 0
    """Rewrites that landed after other commits had come."""
    superseded: int = 0
    now_ms: int = START_MS
    format_version: int = 3
    last_version: int = 3
    """That which it has after an upgrade."""
    lineage: dict[str, tuple[int, int]] = field(default_factory=dict)
    """ID and sequence number of the last update of each row that ever was, by its value."""
    row_ids: set[int] = field(default_factory=set)
    """All IDs that rows ever had."""
    without_ids: set[str] = field(default_factory=set)
    """The values of rows from before the table got row IDs."""
    checked: int = 0
    """The sequence number of the latest snapshot whose lineage was checked."""
    _pending: tuple[LakeTable, FileRewrite] | None = None
    """A rewrite that has not landed, and its base."""
    _values: int = 0

    def __post_init__(self) -> None:
        created = LakeTable.create(
            SCHEMA,
            self.location,
            STORAGE,
            {},
            self.now_ms,
            partitioning=self.partitioning,
            format_version=self.format_version,
        )
        self.table = created.table
        self.listing = Listing(STORAGE, (1, PATH_ID))

    @property
    def partition(self) -> PartitionTuple:
        return UNPARTITIONED if self.partitioning is None else (0,)

    def commit(self, delta: RowDelta) -> StagedCommit:
        self.now_ms += 1000
        staged = self.table.stage(delta, self.now_ms)
        self.table = staged.table
        return staged

    def data(self, rows: Mapping[int, str]) -> WrittenFile:
        table = pa.table({"id": list(rows), "v": pa.array(rows.values(), pa.string())}, schema=SCHEMA.arrow)
        return write_data_file(table, SCHEMA, self.location, STORAGE, self.partition)

    def places(self) -> dict[int, tuple[str, int]]:
        """Where each live row is."""
        scan = Scan(read_plan(self.table.metadata, STORAGE, columns=["id", "_file", "_pos"]))
        return {row["id"]: (row["_file"], row["_pos"]) for row in scan.to_arrow(1).to_pylist()}

    def value(self) -> str:
        """One that no row has had."""
        self._values += 1
        return f"v{self._values}"

    def chosen(self) -> list[int]:
        share = self.drawn.choice((0, 0.05, 0.3, 1))
        return [number for number in self.rows if self.drawn.random() < share]

    def add(self, keys: Iterable[int]) -> None:
        """Commits a file of new rows."""
        come = {key: self.value() for key in keys}
        self.commit(RowDelta((SegmentFiles((self.data(come),), ()),)))
        self.rows |= come

    def delete(self, keys: Iterable[int]) -> None:
        """Commits the deletion of rows by their places."""
        places, hidden = self.places(), defaultdict[str, list[int]](list)
        for key in keys:
            if key in places:
                hidden[places[key][0]].append(places[key][1])
            self.rows.pop(key, None)
        self.commit(RowDelta((), hidden={path: np.array(sorted(rows), np.int64) for path, rows in hidden.items()}))

    def change(self) -> None:
        """What a batch does: rows go, by their places and by their keys, others come; some come and go in it."""
        places, gone = self.places(), self.chosen()
        hidden: Places = {}
        by_key = [number for number in gone if self.drawn.random() < 0.1]
        for number in gone:
            if number not in by_key:
                path, place = places[number]
                hidden.setdefault(path, []).append(place)
        segments = []
        for keys in (by_key, []):
            come = {number: self.value() for number in gone if self.drawn.random() < 0.3 and number not in by_key}
            gone = [number for number in gone if number not in come]
            come |= {self.last_id + place: self.value() for place in range(self.drawn.choice((0, 1, 20)))}
            self.last_id = max([self.last_id, *(number + 1 for number in come)])
            deletes = (self.deletes(keys),) if keys else ()
            segments.append(SegmentFiles((self.data(come),) if come else (), deletes))
            self.rows = {number: value for number, value in self.rows.items() if number not in {*keys, *gone}} | come
            if come and self.drawn.random() < 0.3:
                lost = [place for place in range(len(come)) if self.drawn.random() < self.drawn.choice((0.3, 1))]
                hidden[segments[-1].data[0].path] = lost
                for place in lost:
                    del self.rows[list(come)[place]]
        self.rows = {number: value for number, value in self.rows.items() if number not in gone}
        self.commit(self.delta(tuple(segments), {path: rows for path, rows in hidden.items() if rows}))

    def delta(self, segments: tuple[SegmentFiles, ...], hidden: Places) -> RowDelta:
        rows = {path: np.array(sorted(numbers), np.int64) for path, numbers in hidden.items()}
        return RowDelta(segments, hidden=rows, partitions=dict.fromkeys(rows, self.partition))

    def deletes(self, keys: Sequence[int]) -> WrittenFile:
        table = pa.table({"id": pa.array(keys, pa.int64())}, schema=SCHEMA.key.arrow)
        return write_equality_deletes(table, SCHEMA, self.location, STORAGE, self.partition)

    def begin(self, *, merges: bool = False) -> None:
        """Computes a rewrite, which lands later. `merges`: a merge, instead of any kind."""
        base = self.table
        pending = self.merge() if merges else self.drawn.choice((self.conversion, self.merge, self.fill))()
        if pending is not None and self._pending is None:
            self._pending = base, pending

    def land(self) -> None:
        """The rewrite that has begun lands, or does not fit the table any more."""
        if self._pending is None:
            self.begin()
        if self._pending is None:
            return
        base, rewrite = self._pending
        self._pending = None
        try:
            is_later = self.table is not base
            self.commit(RowDelta((), replaces=rewrite))
        except FileRewriteSuperseded:
            self.superseded += 1
            return
        self.moved += is_later and self.table.metadata.format_version == self.last_version
        self.merges += bool(rewrite.merged)
        self.conversions += not rewrite.merged and rewrite.complete

    def conversion(self) -> FileRewrite | None:
        """Equality deletes become position deletes."""
        plan = plan_conversion(self.table, self.listing)
        return None if plan is None else file_rewrite_of(plan, [convert_deletes(task) for task in plan.tasks])

    def merge(self) -> FileRewrite | None:
        """Small files become one, without the rows that are deleted by position. Of files that are left, one with many
        deleted rows is written again."""
        sizes = MergeSizes(fanout=2)
        plan = plan_merge(self.table, self.listing, TARGET, sizes) or plan_rewrite(self.table, self.listing, sizes)
        return None if plan is None else _computed(plan)

    def fill(self) -> FileRewrite | None:
        """Some files are written again, each by itself."""
        plan = plan_fill(self.table, self.listing, lambda _: self.drawn.random() < 0.5)
        return None if plan is None else _computed(plan)

    def upgrade(self) -> None:
        """The table gets format version 3."""
        if self.table.metadata.format_version < self.last_version:
            old_location = self.table.metadata_location
            metadata = with_format_version(self.table.metadata, 3, old_location, self.now_ms)
            location = next_location(metadata, old_location)
            write_all([(location, metadata.to_json())], STORAGE)
            self.table = LakeTable(metadata, location, STORAGE, self.table.manifests)

    def truncate(self) -> None:
        if self.drawn.random() < 0.2:
            come = {self.last_id: self.value()}
            self.last_id += 1
            self.commit(RowDelta((SegmentFiles((self.data(come),), ()),), replaces=EveryFile()))
            self.rows = come

    def restart(self) -> None:
        location = self.table.metadata_location
        metadata = read_any_version(location, STORAGE)
        snapshot = metadata.current_snapshot
        assert snapshot is not None
        manifests = read_list(snapshot, STORAGE)
        self.table = LakeTable(metadata, location, STORAGE, manifests)

    def check(self) -> None:
        """The table's rows, their lineage, its counts, and its vectors are what they must be."""
        self._check_rows()
        data: list[str] = []
        vectors: list[str] = []
        counted = dict.fromkeys(Total, 0)
        for manifest in self.table.manifests:
            for entry in stored_of(manifest, STORAGE) if manifest.live_files else ():
                if manifest.content == ManifestContent.DATA:
                    data.append(entry.path)
                    counted[Total.DATA_FILES] += 1
                    counted[Total.RECORDS] += entry.records
                    counted[Total.FILES_SIZE] += entry.size_bytes
                    continue
                counted[Total.DELETE_FILES] += 1
                if entry.content == FileContent.EQUALITY_DELETES:
                    counted[Total.EQUALITY_DELETES] += entry.records
                    counted[Total.FILES_SIZE] += entry.size_bytes
                    continue
                if entry.blob is None:
                    assert self.format_version == 2, "no position-delete file is left"
                else:
                    assert entry.referenced_data_file is not None
                    vectors.append(entry.referenced_data_file)
                counted[Total.POSITION_DELETES] += entry.records
                counted[Total.FILES_SIZE] += entry.size_bytes if entry.blob is None else entry.blob.size
        assert len(set(vectors)) == len(vectors)
        assert set(vectors) <= set(data)
        assert {total: self.table.summary.total(total) for total in Total} == counted
        if vectors and counted[Total.DELETE_FILES] == len(vectors):
            assert rows_are_exact(self.table.metadata, self.table.summary)

    def _check_rows(self) -> None:
        metadata = self.table.metadata
        has_ids = metadata.format_version == 3 and metadata.next_row_id > 0
        columns = ["id", "v", "_row_id", "_last_updated_sequence_number"] if has_ids else None
        rows = Scan(read_plan(metadata, STORAGE, columns=columns)).to_arrow(1).to_pylist()
        assert sorted((row["id"], row["v"]) for row in rows) == sorted(self.rows.items())
        if not self.table.equality_deletes and self.format_version == 3:
            assert self.table.live_rows == len(rows)
        if rows_are_exact(metadata, self.table.summary):
            assert self.table.live_rows == len(rows)
        first, self.checked = self.checked, self.table.sequence_number
        if not has_ids:
            self.without_ids |= set(self.rows.values())
            return
        ids = {row["v"]: (row["_row_id"], row["_last_updated_sequence_number"]) for row in rows}
        assert len({row_id for row_id, _ in ids.values()}) == len(ids)
        for value, lineage in ids.items():
            if value in self.lineage:
                assert lineage == self.lineage[value], "a row that does not change keeps its lineage"
                continue
            row_id, sequence_number = lineage
            assert row_id not in self.row_ids, "a new row has a new ID"
            assert value in self.without_ids or first < sequence_number <= self.checked
        self.lineage |= ids
        self.row_ids |= {row_id for row_id, _ in ids.values()}


def _computed(plan: MergePlan) -> FileRewrite:
    positions = None if plan.positions is None else merge_positions(plan.positions)
    return merged_file_rewrite(plan, [merge_files(task) for task in plan.data], positions)
