"""Mirrors of Iceberg's format version 3: which tables have it, and how tables come to it that had version 2."""

from __future__ import annotations

import pytest
from pyiceberg.table import StaticTable

from mirror_pump.errors import TableError
from mirror_pump.lake.document.metadata_files import read_metadata
from mirror_pump.lake.format.data_files import FileContent
from mirror_pump.lake.manifests.manifest_list import read_list
from mirror_pump.lake.manifests.manifests import stored_of
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.ops.resync.format_upgrade import upgrade
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.pending_deletes import await_index

STORAGE = StorageOptions(fsync=False)


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, v text)",
        "INSERT INTO orders SELECT g, 'row ' || g FROM generate_series(1, 1000) g",
        "CREATE TABLE old (id int PRIMARY KEY, v text)",
        "INSERT INTO old SELECT g, 'row ' || g FROM generate_series(1, 1000) g",
    )
    return Mirror.create(database, warehouse, tasks)


def delete_formats(mirror: Mirror, table: str, since: int = 0) -> set[str]:
    """The formats of the files of position deletes that the table's snapshots have, without those of commits up to
    sequence number `since`."""
    return {
        entry.format
        for snapshot in read_metadata(mirror.location(table), STORAGE).snapshots
        for manifest in read_list(snapshot.manifest_list, STORAGE)
        for entry in stored_of(manifest, STORAGE)
        if entry.content == FileContent.POSITION_DELETES and entry.sequence_number > since
    }


def test_a_table_of_either_version_is_mirrored(mirror: Mirror, database: Database) -> None:
    mirror.register("orders", format_version=3)
    mirror.register("old")
    with mirror.pumping() as running:
        mirror.await_live("public.orders", "public.old")
        for table in ("orders", "old"):
            await_index(mirror, running.steps, f"public.{table}", f"UPDATE {table} SET v = 'y' WHERE id = 1")
        for table in ("orders", "old"):
            database.execute(f"DELETE FROM {table} WHERE id % 10 = 0", f"UPDATE {table} SET v = 'x' WHERE id < 50")
        mirror.await_frontier()
        mirror.assert_equal("public.orders", "public.old")
    assert StaticTable.from_metadata(mirror.location("public.orders")).metadata.format_version == 3
    assert StaticTable.from_metadata(mirror.location("public.old")).metadata.format_version == 2
    assert delete_formats(mirror, "public.orders") == {"PUFFIN"}
    assert delete_formats(mirror, "public.old") == {"PARQUET"}


def test_a_table_is_upgraded_while_the_pump_runs(mirror: Mirror, database: Database) -> None:
    mirror.register("old")
    with mirror.pumping() as running:
        mirror.await_live("public.old")
        await_index(mirror, running.steps, "public.old", "UPDATE old SET v = 'y' WHERE id = 1")
        database.execute("DELETE FROM old WHERE id % 10 = 0")
        mirror.await_frontier()
        with pytest.raises(TableError, match="there is no way back but a copy"):
            upgrade(mirror.settings, "old", 3, confirmed=False)
        assert delete_formats(mirror, "public.old") == {"PARQUET"}
        assert upgrade(mirror.settings, "old", 3, confirmed=True)
        since = read_metadata(mirror.location("public.old"), STORAGE).last_sequence_number
        assert not upgrade(mirror.settings, "old", 3, confirmed=False)
        mirror.assert_equal("public.old")
        database.execute("UPDATE old SET v = 'x' WHERE id < 50", "INSERT INTO old VALUES (2000, 'y')")
        mirror.await_frontier()
        mirror.assert_equal("public.old")
        with pytest.raises(TableError, match="has format version 3: there is no way back"):
            upgrade(mirror.settings, "old", 2, confirmed=True)
    assert delete_formats(mirror, "public.old", since) == {"PUFFIN"}
