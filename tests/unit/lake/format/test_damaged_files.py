"""Every reader of a damaged file says which file it is."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mirror_pump.engine.lake_reads.index_keys import KeysTask, read_keys
from mirror_pump.engine.lake_reads.lookup import LookupTask, find_rows
from mirror_pump.engine.rewrite.delete_conversion import ConversionTask, OrderedFile, convert_deletes
from mirror_pump.engine.rewrite.file_merge import MergeTask, merge_files
from mirror_pump.errors import FileDamaged, LakeError
from mirror_pump.lake.commit.row_delta import LakeTable, RowDelta
from mirror_pump.lake.format.damaged_files import open_parquet
from mirror_pump.lake.format.position_deletes import read_position_deletes
from mirror_pump.lake.key_index.packed_keys import KeyPacking
from tests.support.damage import DAMAGES, Damage
from tests.support.lake_tables import SCHEMA, STORAGE, SmallTable
from tests.support.local_files import path_of
from tests.support.position_delete_files import write_position_deletes

PACKING = KeyPacking.of(SCHEMA, b"secret")


@pytest.fixture
def table(tmp_path: Path) -> SmallTable:
    """20 rows, one of which was deleted."""
    made = SmallTable((tmp_path / "t").as_uri())
    made.commit(RowDelta((made.segment({key: f"v{key}" for key in range(20)}),)))
    made.commit(RowDelta((made.segment({}, [3]),)))
    return made


def spoil(location: str, damage: Damage) -> None:
    path = path_of(location)
    damage(path)


def assert_named(read: Callable[[], Any], location: str) -> None:
    with pytest.raises(FileDamaged, match="is damaged") as raised:
        read()
    # As it comes back from a Spark worker.
    error = pickle.loads(pickle.dumps(raised.value))
    assert (error.location, error.remedy) == (location, raised.value.remedy)
    assert location in str(error)
    assert "restore this file" in error.remedy


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_reader_of_a_data_file_names_it(table: SmallTable, damage: Damage) -> None:
    assert PACKING is not None
    (path,) = (file.path for file in table.table.live_data_files() if file.records)
    (deletes,) = (file.path for file in table.table.live_equality_deletes())
    data = (OrderedFile(path, 2),)
    conversion = ConversionTask(data, (OrderedFile(deletes, 3),), (), SCHEMA, STORAGE)
    keys = pa.table({"id": pa.array([1], pa.int64())})
    readers: tuple[Callable[[], Any], ...] = (
        lambda: merge_files(MergeTask(data, (), SCHEMA, table.location, STORAGE)),
        lambda: convert_deletes(conversion),
        lambda: read_keys(KeysTask((path,), (), SCHEMA, PACKING, STORAGE)),
        lambda: find_rows(LookupTask((path,), keys, ("v",), SCHEMA, STORAGE, table.location)),
    )
    for read in readers:
        assert read()
    spoil(path, damage)
    for read in readers:
        assert_named(read, path)


@pytest.mark.parametrize("damage", DAMAGES)
def test_delete_files_are_named_too(table: SmallTable, damage: Damage) -> None:
    (data,) = (file.path for file in table.table.live_data_files() if file.records)
    (deletes,) = (file.path for file in table.table.live_equality_deletes())
    spoil(deletes, damage)
    task = ConversionTask((OrderedFile(data, 2),), (OrderedFile(deletes, 3),), (), SCHEMA, STORAGE)
    assert_named(lambda: convert_deletes(task), deletes)
    positions = write_position_deletes({data: np.array([1])}, table.location, STORAGE).path
    assert read_position_deletes([positions], [data], STORAGE)[data].tolist() == [1]
    spoil(positions, damage)
    assert_named(lambda: read_position_deletes([positions], [data], STORAGE), positions)


@pytest.mark.parametrize("damage", DAMAGES)
def test_manifest_lists_and_manifests_are_named(table: SmallTable, damage: Damage) -> None:
    location = table.table.metadata_location
    loaded = LakeTable.load(location, STORAGE)
    manifest = loaded.manifests[0].path
    spoil(manifest, damage)
    assert_named(lambda: [*loaded.live_data_files(), *loaded.live_equality_deletes()], manifest)
    manifest_list = loaded.metadata.snapshots[-1].manifest_list
    spoil(manifest_list, damage)
    assert_named(lambda: LakeTable.load(location, STORAGE), manifest_list)
    spoil(location, damage)
    assert_named(lambda: LakeTable.load(location, STORAGE), location)


def test_an_error_of_the_storage_is_no_damage(tmp_path: Path) -> None:
    """A directory can be opened, but not read."""
    with pytest.raises(LakeError, match="cannot read") as raised, open_parquet(tmp_path.as_uri(), STORAGE):
        pass
    assert not isinstance(raised.value, FileDamaged)
