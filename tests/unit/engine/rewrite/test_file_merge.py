"""One merge task over files of any shape, and the positions of the rows afterwards."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from decoders.columns import ColumnType, Kind
from mirror_pump.engine.rewrite.delete_conversion import OrderedFile
from mirror_pump.engine.rewrite.file_merge import MergeTask, PositionsTask, merge_files, merge_positions
from mirror_pump.errors import LakeError
from mirror_pump.lake.commit.merged_files import MergedFile, rows_lost_since
from mirror_pump.lake.deletes.hidden_rows import HiddenRows
from mirror_pump.lake.format.data_files import write_data_file
from mirror_pump.lake.format.schema import FIELD_ID, LakeField, LakeSchema
from mirror_pump.lake.storage import StorageOptions, local_path
from tests.support.local_files import path_of
from tests.support.position_delete_files import write_position_deletes

STORAGE = StorageOptions(fsync=False)
SCHEMA = LakeSchema(
    0,
    (
        LakeField(1, "id", ColumnType(Kind.LONG), required=True),
        LakeField(2, "v", ColumnType(Kind.STRING), required=False),
        LakeField(3, "tags", ColumnType(Kind.LIST, element=ColumnType(Kind.UUID)), required=False),
    ),
    (1,),
)


@pytest.fixture
def location(warehouse: str) -> str:
    return f"{warehouse}/t"


def rows(*ids: int) -> pa.Table:
    tags = [[bytes([number % 256]) * 16, None] if number % 2 else ([] if number % 3 else None) for number in ids]
    return pa.table([list(ids), [f"v{number}" for number in ids], tags], schema=SCHEMA.arrow)


def data(location: str, *ids: int) -> str:
    return write_data_file(rows(*ids), SCHEMA, location, STORAGE).path


def foreign(location: str, name: str, columns: dict[int, tuple[str, pa.Array]]) -> str:
    """A data file as another engine may write it: columns by field ID, under other names."""
    uri = f"{location}/data/{name}.parquet"
    path = path_of(uri)
    path.parent.mkdir(parents=True, exist_ok=True)
    fields = [
        pa.field(own, array.type, metadata={FIELD_ID: str(field_id).encode()})
        for field_id, (own, array) in columns.items()
    ]
    pq.write_table(pa.table([array for _, array in columns.values()], schema=pa.schema(fields)), path, row_group_size=2)
    return uri


def merge(location: str, sources: list[tuple[str, int]], positions: tuple[str, ...] = ()) -> MergedFile:
    return merge_files(MergeTask(tuple(OrderedFile(*file) for file in sources), positions, SCHEMA, location, STORAGE))


def content(merged: MergedFile) -> pa.Table:
    assert merged.path is not None
    return pq.read_table(local_path(merged.path), partitioning=None)


def places(merged: MergedFile) -> list[tuple[int, int]]:
    assert merged.source.dtype == np.int32
    assert merged.position.dtype == np.int64
    return list(zip(merged.source.tolist(), merged.position.tolist(), strict=True))


def test_live_rows_in_order_and_where_each_was(location: str) -> None:
    one, two, three = data(location, 1, 2, 3), data(location, 9), data(location, 5, 4, 7)
    hidden = write_position_deletes({one: np.array([0]), two: np.array([0]), three: np.array([1])}, location, STORAGE)
    merged = merge(location, [(one, 3), (two, 4), (three, 7)], (hidden.path,))
    assert content(merged)["id"].to_pylist() == [2, 3, 5, 7]
    assert content(merged)["v"].to_pylist() == ["v2", "v3", "v5", "v7"]
    assert places(merged) == [(0, 1), (0, 2), (2, 0), (2, 2)]
    assert merged.sources == (one, two, three)
    assert merged.sequence_number == 7
    assert merged.file is not None
    assert merged.file.record_count == 4


def test_every_value_of_every_batch(location: str) -> None:
    """More rows than a batch holds, with lists whose offsets do not begin at zero."""
    many = rows(*range(150_000))
    first = write_data_file(many.slice(0, 149_990), SCHEMA, location, STORAGE).path
    second = write_data_file(many.slice(149_990), SCHEMA, location, STORAGE).path
    hidden = write_position_deletes({first: np.arange(0, 149_990, 7)}, location, STORAGE)
    merged = merge(location, [(first, 1), (second, 1)], (hidden.path,))
    kept = [number for number in range(150_000) if number >= 149_990 or number % 7]
    expected = many.take(pa.array(kept))
    found = content(merged)
    assert found["id"].to_pylist() == expected["id"].to_pylist()
    assert found["v"].to_pylist() == expected["v"].to_pylist()
    tags = [None if value is None else [tag and tag.bytes for tag in value] for value in found["tags"].to_pylist()]
    assert tags == expected["tags"].to_pylist()


def test_nothing_alive_leaves_no_file(location: str) -> None:
    one, empty = data(location, 1), data(location)
    hidden = write_position_deletes({one: np.array([0])}, location, STORAGE)
    merged = merge(location, [(empty, 1), (one, 2)], (hidden.path,))
    assert (merged.file, merged.path, places(merged)) == (None, None, [])
    assert rows_lost_since([merged], HiddenRows.read([hidden.path], [one], STORAGE), {one, empty}) == {}


def test_columns_are_found_by_field_id_widened_and_filled(location: str) -> None:
    old = foreign(
        location, "old", {2: ("x_20v", pa.array(["a", None, "c"])), 1: ("nr", pa.array([1, 2, 3], pa.int32()))}
    )
    odd = foreign(location, "odd", {1: ("id", pa.array([4])), 9: ("gone", pa.array([1.5])), 2: ("v", pa.array(["d"]))})
    merged = merge(location, [(old, 1), (odd, 2)])
    assert content(merged).to_pydict() == {"id": [1, 2, 3, 4], "v": ["a", None, "c", "d"], "tags": [None] * 4}


def test_a_file_without_a_required_column_is_an_error(location: str) -> None:
    path = foreign(location, "odd", {2: ("v", pa.array(["d"]))})
    with pytest.raises(LakeError, match="no column with field ID 1, which is required"):
        merge(location, [(path, 1)])


def test_deletes_follow_their_rows(location: str) -> None:
    random = np.random.default_rng(5)
    for _ in range(30):
        sizes = random.integers(0, 12, 4)
        paths = [data(location, *range(100 * number, 100 * number + size)) for number, size in enumerate(sizes)]
        before = {path: np.flatnonzero(random.random(size) < 0.3) for path, size in zip(paths, sizes, strict=True)}
        after = {path: np.flatnonzero(random.random(size) < 0.3) for path, size in zip(paths, sizes, strict=True)}
        other = {f"{location}/data/other.parquet": np.array([0, 1])}
        known = [write_position_deletes(before | other, location, STORAGE).path]
        merged = merge(location, [(path, 1) for path in paths], tuple(known))
        # Some of them in two files, and some of the known ones once more.
        again = {path: np.union1d(found, before[path]) for path, found in after.items()}
        new = [write_position_deletes(positions | other, location, STORAGE).path for positions in (after, again)]
        moved = rows_lost_since([merged], HiddenRows.read(new, paths, STORAGE), set(paths))
        gone = {
            100 * number + place
            for number, path in enumerate(paths)
            for place in [*before[path].tolist(), *after[path].tolist()]
        }
        alive = [100 * number + place for number, size in enumerate(sizes) for place in range(size)]
        assert set(moved) <= {merged.path}
        ids = content(merged)["id"].to_pylist() if merged.path is not None else []
        hidden = moved.get(merged.path or "", np.zeros(0, np.int64)).tolist()
        assert hidden == sorted(set(hidden))
        assert [number for place, number in enumerate(ids) if place not in hidden] == [
            number for number in alive if number not in gone
        ]


def test_merged_positions_are_sorted_and_each_there_once(location: str) -> None:
    files = [
        write_position_deletes({"file:///b": np.array([5, 9]), "file:///a": np.array([1])}, location, STORAGE).path,
        write_position_deletes({"file:///b": np.array([2, 5]), "file:///gone": np.array([1])}, location, STORAGE).path,
    ]
    merged = merge_positions(PositionsTask(tuple(files), frozenset({"file:///a", "file:///b"}), STORAGE))
    assert {path: rows.tolist() for path, rows in merged.hidden.items()} == {"file:///a": [1], "file:///b": [2, 5, 9]}
    assert merged.hidden.rows == 4
    nothing = merge_positions(PositionsTask(tuple(files), frozenset({"file:///x"}), STORAGE))
    assert not nothing.hidden


def test_data_files_of_different_lake_partitions_are_not_merged(location: str) -> None:
    sources = (OrderedFile("file:///a", 1, (0,)), OrderedFile("file:///b", 2, (10,)))
    with pytest.raises(ValueError, match="cannot be merged into one"):
        merge_files(MergeTask(sources, (), SCHEMA, location, STORAGE))


def test_a_merged_file_is_in_the_partition_of_its_sources(location: str) -> None:
    sources = (OrderedFile(data(location, 1), 1, (0,)), OrderedFile(data(location, 2), 2, (0,)))
    merged = merge_files(MergeTask(sources, (), SCHEMA, location, STORAGE))
    assert merged.file is not None
    assert merged.file.partition == (0,)
