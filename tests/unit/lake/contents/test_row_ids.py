"""The IDs of rows by their places: columns that are kept as runs or not, files without one, and little room."""

from __future__ import annotations

import gc
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_pump.errors import FileMissing
from mirror_pump.lake.commit.row_delta import LakeTable, RowDelta, SegmentFiles
from mirror_pump.lake.contents.row_ids import NO_ID, RowIds, StoredIds
from mirror_pump.lake.format.data_files import write_data_file
from mirror_pump.lake.format.position_deletes import Positions
from mirror_pump.lake.format.row_lineage import with_lineage
from mirror_pump.lake.key_index.leaf_store import LeafStore
from tests.support.lake_tables import SCHEMA, START_MS, STORAGE

_IDS = st.lists(st.tuples(st.integers(-1, 50), st.integers(1, 30)), max_size=8).map(
    lambda runs: [begin + place if begin >= 0 else NO_ID for begin, size in runs for place in range(size)]
)


@given(_IDS)
def test_a_column_has_its_values_however_it_is_kept(ids: list[int]) -> None:
    stored = StoredIds.of(np.array(ids, np.int64))
    assert stored.at(np.arange(len(ids))).tolist() == ids
    assert StoredIds.of(np.arange(10**6)).nbytes == 16


@pytest.mark.parametrize("limit", [0, 3000, 1 << 20])
def test_files_tell_the_ids_of_their_rows(warehouse: str, limit: int) -> None:
    drawn = random.Random(7)
    table = LakeTable.create(SCHEMA, f"{warehouse}/t", STORAGE, {}, START_MS, format_version=3).table
    expected: dict[str, list[int]] = {}
    row_ids = RowIds(STORAGE, limit)
    for _ in range(30):
        rows = drawn.randrange(1, 50)
        ids = [drawn.choice((None, drawn.randrange(1 << 40))) for _ in range(rows)]
        own = pa.table({"id": range(rows), "v": pa.nulls(rows, pa.string())}, schema=SCHEMA.arrow)
        lineage = pa.table([pa.array(ids, pa.int64()), pa.nulls(rows, pa.int64())], names=["_row_id", "updated"])
        columns = [*own.columns, *lineage.columns] if rows % 3 else own.columns
        schema = with_lineage(SCHEMA) if rows % 3 else SCHEMA
        file = write_data_file(pa.table(columns, schema=schema.arrow), schema, table.location, STORAGE)
        first = table.metadata.next_row_id
        table = table.stage(RowDelta((SegmentFiles((file,), ()),)), START_MS).table
        stored = ids if rows % 3 else [None] * rows
        expected[file.path] = [first + place if value is None else value for place, value in enumerate(stored)]
        if drawn.random() < 0.3:
            row_ids.put(
                file.path, StoredIds.of(np.array([NO_ID if value is None else value for value in stored], np.int64))
            )
        asked = {
            path: np.array([drawn.randrange(len(values)) for _ in range(5)])
            for path, values in expected.items()
            if drawn.random() < 0.5
        }
        found = row_ids.of(table.manifests, asked)
        assert {path: values.tolist() for path, values in found.items()} == {
            path: [expected[path][place] for place in places] for path, places in asked.items()
        }
        assert row_ids._bytes <= limit


@pytest.mark.parametrize(
    ("limit", "disk_limit"),
    [
        (0, 0),
        (0, 64 << 20),
        (1 << 20, 2 << 20),
        (3 << 20, 0),
        *(
            pytest.param(*limits, marks=pytest.mark.further)
            for limits in ((0, 2 << 20), (1 << 20, 0), (1 << 20, 64 << 20), (3 << 20, 2 << 20), (3 << 20, 64 << 20))
        ),
    ],
)
def test_columns_without_room_in_memory_are_in_files(warehouse: str, limit: int, disk_limit: int) -> None:
    """Those with room in neither are read again: then their data files must be there."""
    drawn = np.random.default_rng(7)
    table = LakeTable.create(SCHEMA, f"{warehouse}/t", STORAGE, {}, START_MS, format_version=3).table
    schema, rows = with_lineage(SCHEMA), 50_000
    expected: dict[str, Positions] = {}
    store = LeafStore(1 << 30)
    row_ids = RowIds(STORAGE, limit, store.stored, disk_limit)
    for number in range(20):
        # Every other file has runs of IDs that follow each other.
        ids = drawn.integers(0, 1 << 40, rows) if number % 2 else np.repeat(drawn.integers(0, 1 << 40, rows // 5), 5)
        ids = ids if number % 2 else ids + np.tile(np.arange(5), rows // 5)
        columns = [pa.array(range(rows)), pa.nulls(rows, pa.string()), pa.array(ids), pa.nulls(rows, pa.int64())]
        file = write_data_file(pa.table(columns, schema=schema.arrow), schema, table.location, STORAGE)
        table = table.stage(RowDelta((SegmentFiles((file,), ()),)), START_MS).table
        expected[file.path] = ids

    def check(paths: Sequence[str]) -> None:
        places = {path: drawn.integers(0, rows, 50) for path in paths}
        of_rows = row_ids.of(table.manifests, places)
        assert all((of_rows[path] == expected[path][place]).all() for path, place in places.items())
        assert row_ids.nbytes <= limit
        assert row_ids.disk_bytes <= disk_limit
        assert row_ids.disk_bytes <= store.used

    for _ in range(20):
        check([path for path in expected if drawn.random() < 0.5])
    check(list(expected))
    for path in list(expected)[1:]:
        Path(path.removeprefix("file://")).unlink()
    if disk_limit > 8 << 20 and limit:
        check(list(expected))
    else:
        with pytest.raises(FileMissing):
            check(list(expected))
    row_ids.resize(0, 0)
    assert (row_ids.nbytes, row_ids.disk_bytes) == (0, 0)
    gc.collect()
    assert store.used == 0
    check(list(expected)[:1])


def test_rows_have_no_ids_before_the_first_snapshot_that_has_them(warehouse: str) -> None:
    table = LakeTable.create(SCHEMA, f"{warehouse}/t", STORAGE, {}, START_MS).table
    own = pa.table({"id": [1, 2], "v": ["a", "b"]}, schema=SCHEMA.arrow)
    file = write_data_file(own, SCHEMA, table.location, STORAGE)
    table = table.stage(RowDelta((SegmentFiles((file,), ()),)), START_MS).table
    ids = RowIds(STORAGE, 1 << 20).of(table.manifests, {file.path: np.array([1, 0])})
    assert ids[file.path].tolist() == [NO_ID, NO_ID]
