"""Files that are encoded before they are written: described, divided and written as if they were written at once."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from decoders.columns import ColumnType, Kind
from mirror_pump.errors import FileMissing
from mirror_pump.lake.format.partitioned_files import write_data_files
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.lake.format.unwritten_files import UnwrittenFiles, encoded_data_files
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import LakePartitioning
from tests.support.local_files import path_of

STORAGE = StorageOptions(fsync=False)
SCHEMA = LakeSchema(0, (LakeField(1, "id", ColumnType(Kind.LONG), required=True),), (1,))
TENS = LakePartitioning.by(1, "truncate[10]")


def ids(*numbers: int) -> pa.Table:
    return pa.table({"id": list(numbers)}, schema=SCHEMA.arrow)


@pytest.mark.parametrize("partitioning", [None, TENS])
def test_they_are_what_would_have_been_written(warehouse: str, partitioning: LakePartitioning | None) -> None:
    rows = ids(7, 12, 3)
    files, unwritten = encoded_data_files(rows, SCHEMA, warehouse, partitioning)
    written = write_data_files(rows, SCHEMA, warehouse, STORAGE, partitioning)
    assert [replace(file, path="") for file in files] == [replace(file, path="") for file in written]
    assert unwritten.nbytes == sum(file.size_bytes for file in files)
    assert not any(path_of(file.path).exists() for file in files)
    assert unwritten.write(STORAGE) == tuple(file.path for file in files)
    for file, other in zip(files, written, strict=True):
        assert path_of(file.path).read_bytes() == path_of(other.path).read_bytes()
    assert pq.read_table(path_of(files[0].path))["id"].to_pylist() == ([7, 12, 3] if partitioning is None else [7, 3])
    assert encoded_data_files(ids(), SCHEMA, warehouse, partitioning) == ((), UnwrittenFiles())


def test_one_that_gets_a_copy_is_not_written(warehouse: str) -> None:
    (first,), left_out = encoded_data_files(ids(1), SCHEMA, warehouse, None)
    (second,), other = encoded_data_files(ids(2), SCHEMA, warehouse, None)
    unwritten = UnwrittenFiles.joined([left_out, other])
    assert unwritten.write(STORAGE, without={first.path}) == (second.path,)
    assert not path_of(first.path).exists()
    assert bytes(unwritten.content(first.path, STORAGE)) == bytes(left_out.content(first.path, STORAGE))
    assert bytes(UnwrittenFiles().content(second.path, STORAGE)) == bytes(other.content(second.path, STORAGE))
    with pytest.raises(FileMissing):
        UnwrittenFiles().content(first.path, STORAGE)
