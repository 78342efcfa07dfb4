"""The pump's commits to a table of format version 3: random ones against a model of the rows, and what each leaves of
deletion vectors."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.manifest import ManifestContent

from mirror_pump.engine.rewrite.conversion_plan import file_rewrite_of, plan_conversion
from mirror_pump.engine.rewrite.delete_conversion import convert_deletes
from mirror_pump.engine.rewrite.file_merge import merge_files
from mirror_pump.engine.rewrite.merge_plan import MergeSizes, merged_file_rewrite, plan_merge, plan_rewrite
from mirror_pump.errors import LakeError
from mirror_pump.lake.commit.replacement import EveryFile
from mirror_pump.lake.commit.row_delta import LakeTable, RowDelta, SegmentFiles, StagedCommit
from mirror_pump.lake.contents.file_listing import Listing
from mirror_pump.lake.document.metadata_files import read_any_version
from mirror_pump.lake.document.snapshot_summary import Total
from mirror_pump.lake.format.data_files import FileContent, WrittenFile, write_data_file, write_equality_deletes
from mirror_pump.lake.format.partitioning import UNPARTITIONED, PartitionTuple
from mirror_pump.lake.format.position_deletes import PATH_ID, encoded_position_deletes, write_position_deletes
from mirror_pump.lake.manifests.manifest_list import read_list
from mirror_pump.lake.manifests.manifests import stored_of
from mirror_pump.model import LakePartitioning, PartitionedColumn
from mirror_pump.tables.read_plan.plan import read_plan
from mirror_pump.tables.read_plan.scan import Scan
from mirror_pump.testing.lake import read_duckdb
from tests.support.lake_tables import SCHEMA, START_MS, STORAGE, TARGET

Places: TypeAlias = dict[str, list[int]]
_BY_ID = LakePartitioning((PartitionedColumn(1, "truncate[1000000]"),))


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
    now_ms: int = START_MS

    def __post_init__(self) -> None:
        created = LakeTable.create(
            SCHEMA, self.location, STORAGE, {}, self.now_ms, partitioning=self.partitioning, format_version=3
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

    def chosen(self) -> list[int]:
        share = self.drawn.choice((0, 0.05, 0.3, 1))
        return [number for number in self.rows if self.drawn.random() < share]

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
            come = {number: "changed" for number in gone if self.drawn.random() < 0.3 and number not in by_key}
            gone = [number for number in gone if number not in come]
            come |= {self.last_id + place: "new" for place in range(self.drawn.choice((0, 1, 20)))}
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
        """The hidden rows as they are, or in position-delete files, be they written or not."""
        rows = {path: np.array(sorted(numbers), np.int64) for path, numbers in hidden.items()}
        kind = self.drawn.randrange(3)
        if not rows or kind == 0:
            return RowDelta(segments, hidden=rows)
        if kind == 1:
            file, content = encoded_position_deletes(rows, self.location, self.partition)
            return RowDelta(segments, positions=(file,), unwritten={file.path: content})
        return RowDelta(segments, positions=(write_position_deletes(rows, self.location, STORAGE, self.partition),))

    def deletes(self, keys: Sequence[int]) -> WrittenFile:
        table = pa.table({"id": pa.array(keys, pa.int64())}, schema=SCHEMA.key.arrow)
        return write_equality_deletes(table, SCHEMA, self.location, STORAGE, self.partition)

    def convert(self) -> None:
        """Equality deletes become vectors."""
        plan = plan_conversion(self.table, self.listing)
        if plan is not None:
            rewrite = file_rewrite_of(plan, [convert_deletes(task) for task in plan.tasks])
            self.commit(RowDelta((), replaces=rewrite))
            self.conversions += 1
            assert self.table.equality_deletes == 0

    def merge(self) -> None:
        """Small files become one, without the rows that vectors hide. Of files that are left, one with many deleted
        rows is written again."""
        sizes = MergeSizes(fanout=2)
        plan = plan_merge(self.table, self.listing, TARGET, sizes) or plan_rewrite(self.table, self.listing, sizes)
        if plan is not None:
            assert plan.positions is None
            self.merges += 1
            self.commit(
                RowDelta((), replaces=merged_file_rewrite(plan, [merge_files(task) for task in plan.data], None))
            )

    def truncate(self) -> None:
        if self.drawn.random() < 0.2:
            come = {self.last_id: "after"}
            self.last_id += 1
            self.commit(RowDelta((SegmentFiles((self.data(come),), ()),), replaces=EveryFile()))
            self.rows = come

    def restart(self) -> None:
        location = self.table.metadata_location
        metadata = read_any_version(location, STORAGE)
        snapshot = metadata.current_snapshot
        assert snapshot is not None
        manifests = read_list(snapshot.manifest_list, STORAGE)
        self.table = LakeTable(metadata, location, STORAGE, manifests)

    def check(self) -> None:
        scan = Scan(read_plan(self.table.metadata, STORAGE))
        rows = sorted(tuple(row.values()) for row in scan.to_arrow(1).to_pylist())
        assert rows == sorted(self.rows.items())
        if not self.table.equality_deletes:
            assert self.table.live_rows == len(rows)
        data: list[str] = []
        vectors: list[str] = []
        counted = dict.fromkeys(Total, 0)
        for manifest in self.table.manifests:
            for entry in stored_of(manifest, STORAGE) if manifest.live_files else ():
                if manifest.content == ManifestContent.DATA:
                    assert entry.first_row_id is not None
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
                assert entry.blob is not None, "no position-delete file is left"
                assert entry.referenced_data_file is not None
                vectors.append(entry.referenced_data_file)
                counted[Total.POSITION_DELETES] += entry.records
                counted[Total.FILES_SIZE] += entry.blob.size
        assert len(set(vectors)) == len(vectors)
        assert set(vectors) <= set(data)
        assert {total: self.table.summary.total(total) for total in Total} == counted


@pytest.mark.parametrize("partitioning", [None, _BY_ID], ids=["whole", "by id"])
def test_random_commits(warehouse: str, partitioning: LakePartitioning | None) -> None:
    seed = int(os.environ.get("SEED", random.randrange(2**32)))
    print(f"SEED={seed}")
    table = VectorTable(f"{warehouse}/t", random.Random(seed), partitioning)
    for number in range(300):
        if number > 50 and table.conversions and table.merges:
            break
        table.drawn.choice([*3 * [table.change], table.convert, table.merge, table.truncate, table.restart])()
        table.check()
    assert table.conversions
    assert table.merges
    location = table.table.metadata_location
    read = read_duckdb(location, f"SELECT id, v FROM iceberg_scan('{location}') ORDER BY id").to_pylist()
    assert [(row["id"], row["v"]) for row in read] == sorted(table.rows.items())


def test_what_is_not_there_cannot_be_hidden(warehouse: str) -> None:
    table = VectorTable(f"{warehouse}/t", random.Random(0))
    with pytest.raises(LakeError, match="not part of the table"):
        table.commit(RowDelta((), hidden={"file:///gone.parquet": np.array([1])}))
    old = LakeTable.create(SCHEMA, f"{warehouse}/old", STORAGE, {}, START_MS).table
    with pytest.raises(ValueError, match="without vectors"):
        old.stage(RowDelta((), hidden={"file:///gone.parquet": np.array([1])}), START_MS)
    assert old.metadata.format_version == 2
