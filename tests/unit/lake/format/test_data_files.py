"""Written files and their descriptions, compared with what pyarrow reads back."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from decoders.columns import ColumnType, Kind
from mirror_pump.lake.format.data_files import (
    _IN_MEMORY_BYTES,
    DataFileWriter,
    FileContent,
    WrittenFile,
    write_data_file,
    write_equality_deletes,
)
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.lake.storage import StorageOptions
from tests.support.local_files import path_of

SCHEMA = LakeSchema(
    0,
    (
        LakeField(1, "id", ColumnType(Kind.LONG), required=True),
        LakeField(2, "note", ColumnType(Kind.STRING), required=False),
        LakeField(3, "tags", ColumnType(Kind.LIST, element=ColumnType(Kind.STRING)), required=False),
    ),
    (1,),
)
STORAGE = StorageOptions(fsync=False)


@pytest.fixture
def location(tmp_path: Path) -> str:
    return tmp_path.as_uri()


def _rows(count: int, start: int = 0) -> pa.Table:
    ids = range(start, start + count)
    return pa.table(
        {"id": ids, "note": [f"n{n}" if n % 4 else None for n in ids], "tags": [["a"] for _ in ids]},
        schema=SCHEMA.arrow,
    )


def _read(file: WrittenFile) -> pa.Table:
    path = path_of(file.path)
    assert path.stat().st_size == file.size_bytes
    return pq.read_table(path)


def test_a_data_file_is_described_as_it_is(location: str) -> None:
    file = write_data_file(_rows(10), SCHEMA, location, STORAGE)
    assert _read(file).to_pydict() == _rows(10).to_pydict()
    assert file.content is FileContent.DATA
    assert file.path.startswith(f"{location}/data/")
    assert file.record_count == 10
    assert file.value_counts == {1: 10, 2: 10}
    assert file.null_counts == {1: 0, 2: 3}
    assert set(file.column_sizes) == {1, 2, 100_003}
    assert file.lower_bounds == {1: bytes(8), 2: b"n1"}
    assert file.upper_bounds == {1: (9).to_bytes(8, "little"), 2: b"n9"}
    assert file.equality_ids == ()
    assert file.split_offsets == (4,)
    assert pickle.loads(pickle.dumps(file)) == file


def test_a_delete_file_holds_the_key_alone(location: str) -> None:
    file = write_equality_deletes(_rows(3).select(["id"]), SCHEMA, location, STORAGE)
    assert _read(file).to_pydict() == {"id": [0, 1, 2]}
    assert file.content is FileContent.EQUALITY_DELETES
    assert file.equality_ids == (1,)


def test_batches_are_gathered_into_row_groups(location: str) -> None:
    with DataFileWriter(SCHEMA, location, STORAGE, row_group_rows=100) as writer:
        for start in range(0, 250, 10):
            for batch in _rows(10, start).to_batches():
                writer.write(batch)
    file = writer.written
    assert _read(file).to_pydict() == _rows(250).to_pydict()
    assert len(file.split_offsets) == 3
    assert list(file.split_offsets) == sorted(file.split_offsets)
    assert file.null_counts[2] == _rows(250).column("note").null_count
    assert file.upper_bounds[1] == (249).to_bytes(8, "little")


def test_a_chunk_of_nulls_takes_no_bound_away_but_an_unknown_one_does(location: str) -> None:
    def bounds_of(*notes: str | None) -> bytes | None:
        with DataFileWriter(SCHEMA, location, STORAGE, row_group_rows=1) as writer:
            for note in notes:
                writer.write(pa.table({"id": [1], "note": [note], "tags": [None]}, schema=SCHEMA.arrow))
        return writer.written.upper_bounds.get(2)

    assert bounds_of("b", None) == b"b"
    assert bounds_of(None, None) is None
    assert bounds_of("b", "z" * 10_000) is None, "pyarrow keeps no statistics of values that long"


def test_no_file_remains_of_a_block_that_fails(location: str, tmp_path: Path) -> None:
    writer = DataFileWriter(SCHEMA, location, STORAGE)

    def fail() -> None:
        with writer:
            writer.write(_rows(1000))
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    with pytest.raises(RuntimeError, match="has not ended without error"):
        _ = writer.written
    assert list((tmp_path / "data").iterdir()) == []


def test_more_rows_than_are_encoded_in_memory_are_written_as_they_arrive(location: str) -> None:
    rows = _rows(1).set_column(1, SCHEMA.arrow.field("note"), [["x" * (_IN_MEMORY_BYTES + 1)]])
    file = write_data_file(rows, SCHEMA, location, STORAGE)
    assert _read(file).equals(rows.cast(_read(file).schema))


def test_rows_that_do_not_fit_are_refused(location: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        write_data_file(_rows(1).select(["note", "id", "tags"]), SCHEMA, location, STORAGE)
    with pytest.raises(ValueError, match="do not fit"):
        write_data_file(_rows(1).set_column(0, "id", pa.array([1], pa.int32())), SCHEMA, location, STORAGE)
    keyless = pa.table({"id": pa.array([None], pa.int64()), "note": ["x"], "tags": [["a"]]})
    with pytest.raises(pa.ArrowInvalid, match="non-nullable"):
        write_data_file(
            keyless.cast(pa.schema([f.with_nullable(nullable=True) for f in SCHEMA.arrow])), SCHEMA, location, STORAGE
        )
    assert list(tmp_path.rglob("*.*")) == []


def test_repeating_columns_get_a_dictionary_and_unique_ones_do_not(location: str) -> None:
    file = write_data_file(_rows(5000), SCHEMA, location, STORAGE)
    path = path_of(file.path)
    group = pq.read_metadata(path).row_group(0)
    assert [group.column(index).has_dictionary_page for index in range(3)] == [False, False, True]


def test_only_files_of_some_size_are_worth_zstd(location: str) -> None:
    schema = LakeSchema(0, (LakeField(1, "n", ColumnType(Kind.LONG), required=False),), ())
    codecs = []
    for rows in (1, 100_000):
        file = write_data_file(pa.table([[7] * rows], schema=schema.arrow), schema, location, STORAGE)
        codecs.append(pq.read_metadata(path_of(file.path)).row_group(0).column(0).compression)
    assert codecs == ["SNAPPY", "ZSTD"]
    # However few rows the first row group has, more may come.
    with DataFileWriter(schema, location, STORAGE) as writer:
        writer.write(pa.table([[7]], schema=schema.arrow))
    assert pq.read_metadata(path_of(writer.path)).row_group(0).column(0).compression == "ZSTD"


def test_no_footer_says_how_uuids_order(location: str) -> None:
    """Iceberg's Java code compares them as signed numbers, and would skip row groups that hold a value of both
    halves."""
    kinds = ColumnType(Kind.UUID), ColumnType(Kind.LIST, element=ColumnType(Kind.UUID))
    fields = [LakeField(1, "id", kinds[0], required=True), LakeField(2, "u", kinds[0], required=False)]
    schema = LakeSchema(0, (*fields, LakeField(3, "us", kinds[1], required=False)), (1,))
    low, high = bytes(16), b"\xff" * 16
    with DataFileWriter(schema, location, STORAGE, row_group_rows=2) as writer:
        for other in (None, high):
            rows = {"id": [low, high], "u": [low, other], "us": [[low, high], [other]]}
            writer.write(pa.table(rows, schema=schema.arrow))
    file = writer.written
    path = path_of(file.path)
    footer = pq.read_metadata(path)
    chunks = [footer.row_group(group).column(column) for group in range(2) for column in range(3)]
    assert [chunk.is_stats_set for chunk in chunks] == [False] * 6
    assert file.null_counts == {1: 0, 2: 1}
    assert file.lower_bounds == file.upper_bounds == {}


def test_an_empty_file_is_a_file(location: str) -> None:
    file = write_data_file(_rows(0), SCHEMA, location, STORAGE)
    assert file.record_count == 0
    assert _read(file).num_rows == 0
