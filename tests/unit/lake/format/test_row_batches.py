"""Whole rows are read some megabytes at a time, whatever their size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoders.columns import ColumnType, Kind
from mirror_pump.engine.rewrite.delete_conversion import OrderedFile
from mirror_pump.engine.rewrite.file_merge import MergeTask, merge_files
from mirror_pump.lake.format.data_files import DataFileWriter, write_data_file
from mirror_pump.lake.format.row_batches import live_rows, row_batches, stored_rows
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.lake.storage import StorageOptions, local_path

STORAGE = StorageOptions(fsync=False)
SCHEMA = LakeSchema(
    0,
    (
        LakeField(1, "id", ColumnType(Kind.LONG), required=True),
        LakeField(2, "v", ColumnType(Kind.STRING), required=False),
    ),
    (1,),
)
GROUP, BATCH = 1 << 20, 1 << 18


def rows(first: int, count: int, size: int) -> pa.Table:
    ids = range(first, first + count)
    return pa.table([ids, [f"{number:0{size}}" for number in ids]], schema=SCHEMA.arrow)


@pytest.fixture
def large_rows(warehouse: str) -> str:
    """400 rows of 20 kB in row groups of 1 MiB."""
    with DataFileWriter(SCHEMA, f"{warehouse}/t", STORAGE, row_group_bytes=GROUP) as writer:
        for first in range(0, 400, 10):
            writer.write(rows(first, 10, 20_000))
    assert len(writer.written.split_offsets) > 5
    return writer.written.path


def test_a_merge_holds_some_large_rows_at_a_time(
    large_rows: str, warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    write = DataFileWriter.write

    def watched(writer: DataFileWriter, table: pa.Table) -> None:
        sizes.append(table.nbytes)
        write(writer, table)

    monkeypatch.setattr(DataFileWriter, "write", watched)
    task = MergeTask((OrderedFile(large_rows, 1),), (), SCHEMA, f"{warehouse}/t", STORAGE, batch_bytes=BATCH)
    merged = merge_files(task)
    assert merged.file is not None
    assert merged.file.record_count == 400
    assert max(sizes) < 2 * BATCH


def test_every_row_is_read_once_and_in_order(large_rows: str, warehouse: str) -> None:
    small = write_data_file(rows(0, 5000, 10), SCHEMA, f"{warehouse}/t", STORAGE).path
    empty = write_data_file(rows(0, 0, 1), SCHEMA, f"{warehouse}/t", STORAGE).path
    for path, most, expected in ((large_rows, 1000, 400), (small, 1000, 5000), (empty, 1000, 0), (large_rows, 1, 400)):
        numbered = list(row_batches(_open(path), most, BATCH))
        found = [batch for _, batch in numbered]
        assert all(batch.column(0)[0].as_py() == first for first, batch in numbered)
        assert [value for batch in found for value in batch.column(0).to_pylist()] == list(range(expected))
        assert all(batch.num_rows <= most for batch in found)
    assert len(list(row_batches(_open(small), 1000, BATCH))) == 5, "small rows are not read in smaller pieces"


def _open(path: str) -> pq.ParquetFile:
    local = local_path(path)
    assert isinstance(local, Path)
    return pq.ParquetFile(local)


def test_chosen_row_groups_keep_their_rows_numbers(large_rows: str) -> None:
    file = _open(large_rows)
    sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    for groups in (set[int](), {0}, {2, 4}, {len(sizes) - 1}):
        expected = [row for number in groups for row in range(sum(sizes[:number]), sum(sizes[: number + 1]))]
        found = list(row_batches(file, 7, BATCH, columns=["id"], groups=groups))
        assert [value for _, batch in found for value in batch.column("id").to_pylist()] == sorted(expected)
        assert all(batch.column("id")[0].as_py() == first for first, batch in found)
        assert all(batch.column_names == ["id"] for _, batch in found)


@given(st.sets(st.integers(0, 40)), st.integers(0, 40), st.integers(0, 40))
def test_rows_at_deleted_positions_are_not_live(deleted: set[int], first: int, rows: int) -> None:
    positions = np.array(sorted(deleted), np.int64)
    expected = [row not in deleted for row in range(first, first + rows)]
    assert live_rows(positions, first, rows).tolist() == expected
    assert live_rows(None, first, rows).all()


def test_stored_rows_have_the_types_of_the_schema_and_lack_what_the_file_lacks(large_rows: str) -> None:
    """The file's columns are found by field ID: one was widened since, one dropped, one added."""
    file = write_data_file(
        pa.table([[1, 2, 3], ["a", None, "c"]], schema=NARROW.arrow),
        NARROW,
        large_rows.rpartition("/data/")[0],
        STORAGE,
    )
    ((first, columns, live),) = stored_rows(file.path, WIDE, np.array([1], np.int64), STORAGE, 100)
    assert (first, live.tolist()) == (0, [True, False, True])
    assert columns.keys() == {1}
    assert columns[1].equals(pa.array([1, 2, 3], pa.int64()))


NARROW = LakeSchema(
    0,
    (
        LakeField(1, "id", ColumnType(Kind.INT), required=True),
        LakeField(2, "v", ColumnType(Kind.STRING), required=False),
    ),
    (1,),
)
WIDE = LakeSchema(
    1,
    (
        LakeField(1, "renamed", ColumnType(Kind.LONG), required=True),
        LakeField(3, "v", ColumnType(Kind.STRING), required=False),
    ),
    (1,),
)
