"""Files of a partitioned table: each has rows of one partition, few are open at a time, and none remains after an
error."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoders.columns import ColumnType, Kind
from mirror_pump.lake.format.data_files import FileContent, WrittenFile
from mirror_pump.lake.format.partitioned_files import (
    PartitionedWriter,
    SpilledRows,
    write_data_files,
    write_equality_delete_files,
)
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.lake.storage import StorageOptions, local_path, make_directories
from mirror_pump.model import LakePartitioning, SortedColumn
from tests.support.local_files import path_of

SCHEMA = LakeSchema(
    0,
    (
        LakeField(1, "id", ColumnType(Kind.LONG), required=True),
        LakeField(2, "v", ColumnType(Kind.STRING), required=False),
    ),
    (1,),
)
STORAGE = StorageOptions(fsync=False)
TENS = LakePartitioning.by(1, "truncate[10]")


@pytest.fixture
def location(tmp_path: Path) -> str:
    make_directories([f"{tmp_path.as_uri()}/t/data"], STORAGE)
    return f"{tmp_path.as_uri()}/t"


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "v": [f"v{key}" for key in ids]}, schema=SCHEMA.arrow)


def ids(file: WrittenFile) -> list[int]:
    found: list[int] = pq.read_table(local_path(file.path)).column("id").to_pylist()
    return found


def files_in(location: str) -> list[Path]:
    directory = path_of(f"{location}/data")
    return list(directory.iterdir())


@given(
    batches=st.lists(st.lists(st.integers(-50, 50), max_size=20), max_size=8),
    open_files=st.integers(1, 4),
    gathered_rows=st.sampled_from([1, 30, 1000]),
)
def test_a_stream_of_rows_is_divided(
    batches: list[list[int]], open_files: int, gathered_rows: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    location = tmp_path_factory.mktemp("t").as_uri()
    make_directories([f"{location}/data"], STORAGE)
    writer = PartitionedWriter(SCHEMA, location, STORAGE, TENS, open_files=open_files, gathered_rows=gathered_rows)
    most_open = 0
    with writer:
        for batch in batches:
            writer.write(rows(*batch))
            most_open = max(most_open, len(writer._open))
            assert len(writer._gathered) < gathered_rows
    keys = [key for batch in batches for key in batch]
    assert Counter(key for file in writer.written for key in ids(file)) == Counter(keys)
    for file in writer.written:
        assert {(key // 10 * 10,) for key in ids(file)} == {file.partition}
    assert most_open <= open_files
    assert len(writer.written) == len({key // 10 for key in keys}), "a file for each partition"
    for file in writer.written:
        assert ids(file) == [key for key in keys if (key // 10 * 10,) == file.partition], "in their order"
    assert {local_path(file.path) for file in writer.written} == set(files_in(location))


def test_rows_in_the_order_of_partitions_make_a_file_each(location: str) -> None:
    with PartitionedWriter(SCHEMA, location, STORAGE, TENS, open_files=2) as writer:
        for first in range(0, 1000, 7):
            writer.write(rows(*range(first, first + 7)))
    assert sorted(file.partition for file in writer.written) == [(key,) for key in range(0, 1001, 10)]


@pytest.mark.parametrize("gathered_bytes", [1 << 20, 20_000])
@pytest.mark.parametrize("order", [(), (SortedColumn(2, descending=True), SortedColumn(1))])
def test_rows_in_no_order_make_a_file_for_each_partition(
    location: str, gathered_bytes: int, order: tuple[SortedColumn, ...]
) -> None:
    keys = random.Random(1).sample(range(3000), 3000)
    layout = LakePartitioning(TENS.fields, order)
    writer = PartitionedWriter(SCHEMA, location, STORAGE, layout, open_files=2, gathered_bytes=gathered_bytes)
    with writer:
        for first in range(0, 3000, 30):
            writer.write(rows(*keys[first : first + 30]))
            assert writer._gathered.size_bytes < gathered_bytes
    assert sum(file.record_count for file in writer.written) == 3000
    assert len({file.partition for file in writer.written}) == len(writer.written) == 300
    if order:
        # The files that stay open have a row group for each time that rows were divided.
        unsorted = [file for file in writer.written if ids(file) != sorted(ids(file), key=lambda key: f"v{key}")[::-1]]
        assert len(unsorted) <= 2


def test_without_room_on_the_disk_rows_become_a_file_each_time(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the hundredth part on; what is on the disk before is not lost."""
    room = iter(range(100))
    add = SpilledRows.add
    monkeypatch.setattr(SpilledRows, "add", lambda *given: next(room, None) is not None and add(*given))
    keys = random.Random(1).sample(range(3000), 3000)
    writer = PartitionedWriter(SCHEMA, location, STORAGE, TENS, open_files=2, gathered_bytes=20_000)
    with writer:
        for first in range(0, 3000, 30):
            writer.write(rows(*keys[first : first + 30]))
    assert sorted(key for file in writer.written for key in ids(file)) == list(range(3000))
    assert len(writer.written) > 300


def test_an_unpartitioned_table_gets_one_file(location: str) -> None:
    with PartitionedWriter(SCHEMA, location, STORAGE, None) as writer:
        writer.write(rows(1, 500))
        writer.write(rows(-3).to_batches()[0])
    (file,) = writer.written
    assert (ids(file), file.partition) == ([1, 500, -3], ())
    with PartitionedWriter(SCHEMA, location, STORAGE, None) as writer:
        writer.write(rows())
    assert writer.written == ()


def test_nothing_remains_after_an_error(location: str) -> None:
    writer = PartitionedWriter(SCHEMA, location, STORAGE, TENS, open_files=2, gathered_rows=1)

    def fail() -> None:
        with writer:
            for key in (1, 11, 21, 31, 11):
                writer.write(rows(key))
            writer.write(rows(5).select(["v"]))

    with pytest.raises(ValueError, match="do not fit"):
        fail()
    assert files_in(location) == []
    with pytest.raises(RuntimeError, match="no description"):
        _ = writer.written
    with pytest.raises(ValueError, match="do not fit"):
        write_data_files(rows(1, 11, 21).set_column(1, "v", pa.array([1, 2, 3])), SCHEMA, location, STORAGE, TENS)
    assert files_in(location) == []


def test_keys_are_divided(location: str) -> None:
    deletes = write_equality_delete_files(rows(5, -5, 7).select(["id"]), SCHEMA, location, STORAGE, TENS)
    assert [(file.content, file.partition, ids(file)) for file in deletes] == [
        (FileContent.EQUALITY_DELETES, (-10,), [-5]),
        (FileContent.EQUALITY_DELETES, (0,), [5, 7]),
    ]
