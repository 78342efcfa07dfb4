"""Position-delete files: the Iceberg spec's rules for their rows, bounds and entries."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mirror_pump.lake.format.data_files import FileContent
from mirror_pump.lake.format.position_deletes import (
    PATH_ID,
    POSITION_ID,
    read_position_deletes,
)
from mirror_pump.lake.manifests.manifest_entries import file_values
from mirror_pump.lake.storage import StorageOptions, local_path
from tests.support.local_files import path_of
from tests.support.position_delete_files import write_position_deletes

STORAGE = StorageOptions(fsync=False)


def long(value: int) -> bytes:
    return struct.pack("<q", value)


def test_a_file_about_one_data_file_says_so(warehouse: str) -> None:
    target = f"{warehouse}/t/data/{'x' * 40}.parquet"
    written = write_position_deletes({target: np.array([3, 7, 10_000_000_000])}, f"{warehouse}/t", STORAGE)
    assert written.content is FileContent.POSITION_DELETES
    assert written.record_count == 3
    assert written.lower_bounds == {PATH_ID: target.encode(), POSITION_ID: long(3)}
    assert written.upper_bounds == {PATH_ID: target.encode(), POSITION_ID: long(10_000_000_000)}
    assert written.referenced_data_file == target
    assert written.equality_ids == ()
    values = file_values(written)
    assert values[0] == 1
    assert values[-3:] == (None, None, target), "no equality_ids, no sort order, field 143"
    path = path_of(written.path)
    assert written.size_bytes == path.stat().st_size
    schema = pq.read_schema(path)
    assert [(field.name, field.type, field.nullable, field.metadata[b"PARQUET:field_id"]) for field in schema] == [
        ("file_path", pa.string(), False, b"2147483546"),
        ("pos", pa.int64(), False, b"2147483545"),
    ]


def test_rows_are_sorted_across_row_groups(warehouse: str) -> None:
    positions = {f"file:///{name}": np.arange(count) * 3 for name, count in [("c", 1), ("a", 9), ("b", 2), ("none", 0)]}
    written = write_position_deletes(positions, f"{warehouse}/t", STORAGE, row_group_rows=4)
    table = pq.read_table(local_path(written.path))
    rows = list(zip(table["file_path"].to_pylist(), table["pos"].to_pylist(), strict=True))
    assert rows == sorted(rows)
    assert len(rows) == written.record_count == 12
    assert len(written.split_offsets) == 3
    assert written.lower_bounds == {PATH_ID: b"file:///a", POSITION_ID: long(0)}
    assert written.upper_bounds == {PATH_ID: b"file:///c", POSITION_ID: long(24)}
    assert written.referenced_data_file is None
    found = read_position_deletes([written.path], {"file:///a", "file:///c", "file:///z"}, STORAGE)
    assert {path: rows.tolist() for path, rows in found.items()} == {
        "file:///a": [0, 3, 6, 9, 12, 15, 18, 21, 24],
        "file:///c": [0],
    }


def test_an_empty_file_is_refused(warehouse: str) -> None:
    with pytest.raises(ValueError, match="needs at least one position"):
        write_position_deletes({"file:///a": np.zeros(0, np.int64)}, f"{warehouse}/t", STORAGE)


def test_files_with_deleted_rows_and_plain_paths_are_read(warehouse: str) -> None:
    """Other engines may also store the deleted row, and need not use a dictionary."""
    uri = f"{warehouse}/foreign.parquet"
    row = pa.array([{"id": 1, "pos": 9}, {"id": 2, "pos": 9}])
    pq.write_table(
        pa.table({"row": row, "pos": [4, 1], "file_path": ["file:///a", "file:///b"]}),
        local_path(uri),
        use_dictionary=False,
    )
    assert {path: rows.tolist() for path, rows in read_position_deletes([uri], {"file:///b"}, STORAGE).items()} == {
        "file:///b": [1]
    }
