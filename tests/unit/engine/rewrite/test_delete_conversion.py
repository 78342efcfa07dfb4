"""One conversion task over files of any shape: row groups, renamed and widened columns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from decoders.columns import ColumnType, Kind
from mirror_pump.engine.rewrite.delete_conversion import ConversionTask, OrderedFile, convert_deletes
from mirror_pump.errors import LakeError
from mirror_pump.lake.format.data_files import write_equality_deletes
from mirror_pump.lake.format.schema import FIELD_ID, LakeField, LakeSchema
from mirror_pump.lake.storage import StorageOptions
from tests.support.local_files import path_of
from tests.support.position_delete_files import write_position_deletes

STORAGE = StorageOptions(fsync=False)
SCHEMA = LakeSchema(
    0,
    (
        LakeField(1, "id", ColumnType(Kind.LONG), required=True),
        LakeField(2, "v", ColumnType(Kind.STRING), required=False),
    ),
    (1,),
)


@pytest.fixture
def location(warehouse: str) -> str:
    return f"{warehouse}/t"


def foreign_file(location: str, name: str, column: str, ids: pa.Array, field_id: int = 1, group: int = 10) -> str:
    """A data file as another engine may write it."""
    uri = f"{location}/data/{name}.parquet"
    path = path_of(uri)
    path.parent.mkdir(parents=True, exist_ok=True)
    field = pa.field(column, ids.type, metadata={FIELD_ID: str(field_id).encode()})
    pq.write_table(pa.table([ids], schema=pa.schema([field])), path, row_group_size=group)
    return uri


def deletes(location: str, ids: list[int]) -> str:
    return write_equality_deletes(
        pa.table({"id": pa.array(ids, pa.int64())}, schema=SCHEMA.key.arrow), SCHEMA, location, STORAGE
    ).path


def run(
    data: list[tuple[str, int]],
    removed: list[tuple[str, int]],
    positions: tuple[str, ...] = (),
) -> tuple[dict[str, list[int]], int]:
    result = convert_deletes(
        ConversionTask(
            tuple(OrderedFile(*file) for file in data),
            tuple(OrderedFile(*file) for file in removed),
            positions,
            SCHEMA,
            STORAGE,
        )
    )
    return {path: rows.tolist() for path, rows in result.hidden.items()}, result.rows_read


def test_positions_count_from_the_beginning_of_the_file(location: str) -> None:
    sorted_file = foreign_file(location, "sorted", "id", pa.array(range(100), pa.int64()))
    shuffled = foreign_file(location, "shuffled", "former_name", pa.array([7, 99, 3] * 11, pa.int32()))
    first, second = deletes(location, [3, 55, 56]), deletes(location, [99, 3, 12345])
    found, rows_read = run([(sorted_file, 4), (shuffled, 5)], [(first, 5), (second, 6)])
    assert found == {
        sorted_file: [3, 55, 56, 99],
        shuffled: [place for place in range(33) if place % 3],
    }
    assert rows_read == 3 * 10 + 33, "row groups of the sorted file without a key are not read"
    found, _ = run([(sorted_file, 5), (shuffled, 6)], [(first, 5), (second, 6)])
    assert found == {sorted_file: [3, 99]}, "deletes reach lower numbers only"


def test_what_is_deleted_by_position_already_is_not_repeated(location: str) -> None:
    one = foreign_file(location, "one", "id", pa.array([1, 2, 3, 1], pa.int64()))
    two = foreign_file(location, "two", "id", pa.array([2, 1], pa.int64()))
    known = write_position_deletes({one: np.array([0, 2])}, location, STORAGE).path
    other = write_position_deletes({two: np.array([1]), f"{one}x": np.array([3])}, location, STORAGE).path
    removed = deletes(location, [1])
    assert run([(one, 1), (two, 1)], [(removed, 2)], (known, other))[0] == {one: [3]}
    assert run([(two, 1)], [(removed, 2)], (other,))[0] == {}


def test_nulls_are_nobodys_key(location: str) -> None:
    path = foreign_file(location, "nulls", "id", pa.array([None, 0, None, 5, 1], pa.int64()))
    assert run([(path, 1)], [(deletes(location, [0, 1]), 2)])[0] == {path: [1, 4]}


def test_a_file_without_the_key_column_is_an_error(location: str) -> None:
    path = foreign_file(location, "odd", "id", pa.array([1], pa.int64()), field_id=7)
    with pytest.raises(LakeError, match="no column with field ID 1"):
        run([(path, 1)], [(deletes(location, [1]), 2)])
