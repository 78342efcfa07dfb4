"""Whole rows are read some megabytes at a time, whatever their size."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from decoders.columns import ColumnType, Kind
from mirror_pump.engine.lake_reads.row_batches import read_batches
from mirror_pump.engine.rewrite.delete_conversion import OrderedFile
from mirror_pump.engine.rewrite.file_merge import MergeTask, merge_files
from mirror_pump.lake.format.data_files import DataFileWriter, write_data_file
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
        found = list(read_batches(_open(path), most, BATCH))
        assert [value for batch in found for value in batch.column(0).to_pylist()] == list(range(expected))
        assert all(batch.num_rows <= most for batch in found)
    assert len(list(read_batches(_open(small), 1000, BATCH))) == 5, "small rows are not read in smaller pieces"


def _open(path: str) -> pq.ParquetFile:
    local = local_path(path)
    assert isinstance(local, Path)
    return pq.ParquetFile(local)
