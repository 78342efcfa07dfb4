"""What commits leave in place while another engine rewrites the table's files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from decoders.columns import ColumnType, Kind
from mirror_pump.lake.commit.row_delta import LakeTable, RowDelta, SegmentFiles
from mirror_pump.lake.format.data_files import write_data_file, write_equality_deletes
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.lake.metadata.snapshot_thinning import HistoryRetention
from mirror_pump.lake.storage import StorageOptions

SCHEMA = LakeSchema(0, (LakeField(1, "id", ColumnType(Kind.LONG), required=True),), (1,))
STORAGE = StorageOptions(fsync=False)
START_MS = 1_760_000_000_000


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    created = LakeTable.create(SCHEMA, (tmp_path / "t").as_uri(), STORAGE, {}, START_MS).table
    return replace(created, retention=HistoryRetention(newest=5, minutes_for_ms=0, hours_for_ms=0))


def commit(table: LakeTable, number: int, rewrite_since: int | None = None) -> LakeTable:
    ids = pa.table({"id": pa.array([number], pa.int64())}, schema=SCHEMA.arrow)
    keys = pa.table({"id": pa.array([number - 1], pa.int64())}, schema=SCHEMA.key.arrow)
    segment = SegmentFiles(
        (write_data_file(ids, SCHEMA, table.location, STORAGE),),
        (write_equality_deletes(keys, SCHEMA, table.location, STORAGE),),
    )
    return table.stage(RowDelta((segment,)), START_MS + number * 1000, rewrite_since=rewrite_since).table


def test_no_snapshot_since_its_beginning_is_thinned_while_a_rewrite_runs(table: LakeTable) -> None:
    for number in range(1, 10):
        table = commit(table, number)
    assert len(table.metadata.snapshots) == 5
    begun = table.sequence_number
    for number in range(10, 40):
        table = commit(table, number, rewrite_since=begun)
    numbers = [snapshot.sequence_number for snapshot in table.metadata.snapshots]
    assert numbers == list(range(begun, table.sequence_number + 1))
    parents = [snapshot.parent_id for snapshot in table.metadata.snapshots]
    assert parents[1:] == [snapshot.snapshot_id for snapshot in table.metadata.snapshots[:-1]], "no gap"
    table = commit(table, 40)
    assert len(table.metadata.snapshots) == 5


def test_manifests_from_before_a_rewrite_are_not_merged_while_it_runs(table: LakeTable) -> None:
    for number in range(1, 8):
        table = commit(table, number)
    before = {manifest.path for manifest in table.manifests}
    begun = int(table.sequence_number)
    for number in range(8, 160):
        table = commit(table, number, rewrite_since=begun)
    assert before <= {manifest.path for manifest in table.manifests}
    assert len(table.manifests) < 2 * 150, "those that are clearly younger are merged as ever"
    for number in range(160, 165):
        table = commit(table, number)
    assert len(table.manifests) < 40
    assert table.data_files == 164
