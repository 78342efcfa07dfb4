"""Which files gc does not judge, and the numbers of a path catalog that it leaves."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from mirror_pump.errors import FileMissing, ForeignTable
from mirror_pump.tables import MemoryCatalog, StorageOptions, Table, find_orphans, path_catalog, remove_orphans
from mirror_pump.tables.catalogs.lake_catalog import MetadataPointer, TableIdentifier
from tests.support.catalog_kinds import ROWS, file_of, files_at, rows

_STORAGE = StorageOptions(fsync=False)


def aged(root: Path) -> set[Path]:
    """All files below, which are years old from now on."""
    files = {path for path in root.rglob("*") if path.is_file()}
    for path in files:
        os.utime(path, (10**9, 10**9))
    return files


def test_a_mirrored_table_is_refused(tmp_path: Path) -> None:
    catalog = MemoryCatalog(tmp_path.as_uri(), _STORAGE)
    table = Table.create(catalog, "sales.orders", ROWS)
    table.commit_append([file_of(table, 1)], {"mirror-pump.frontier": "0/1"})
    table.commit_append([file_of(table, 2)])
    with pytest.raises(ForeignTable, match="mirrored"):
        find_orphans(catalog, "sales.orders")


def test_nothing_is_removed_if_a_manifest_cannot_be_read(tmp_path: Path) -> None:
    catalog = MemoryCatalog(tmp_path.as_uri(), _STORAGE)
    table = Table.create(catalog, "sales.orders", ROWS)
    table.commit_append([file_of(table, 1)])
    file_of(table, 2)
    Path(table.manifests[0].path.removeprefix("file://")).unlink()
    before = aged(tmp_path)
    with pytest.raises(FileMissing):
        remove_orphans(catalog, "sales.orders")
    assert aged(tmp_path) == before


def test_a_hundred_numbers_stay(tmp_path: Path) -> None:
    """Of a path catalog: those before are removed once the metadata log does not name them."""
    catalog = path_catalog(tmp_path.as_uri(), _STORAGE)
    table = Table.create(catalog, "sales.orders", ROWS, properties={"write.metadata.previous-versions-max": "2"})
    for _ in range(104):
        table.commit_append([])
    table.commit_append([file_of(table, 1)])
    before = aged(tmp_path)
    removed = {Path(file.location.removeprefix("file://")) for file in remove_orphans(catalog, "sales.orders")}
    assert aged(tmp_path) == before - removed
    assert sorted(path.name for path in removed) == [f"v{number}.metadata.json" for number in range(1, 7)]
    again = Table.open(path_catalog(tmp_path.as_uri(), _STORAGE), "sales.orders")
    assert re.search(r"v106\.metadata\.json$", again.metadata_location)
    assert all(files_at(again, snapshot) is not None for snapshot in again.history())


class _BusyCatalog(MemoryCatalog):
    """Runs a commit of another writer just after a look at the pointer."""

    looks_before = 0
    old_file = ""

    def load(self, table: TableIdentifier) -> MetadataPointer | None:
        found = super().load(table)
        self.looks_before -= 1
        if self.looks_before == 0:
            Table.open(self, table).commit_append([self.old_file])
        return found


@pytest.mark.parametrize("looks", [2, 3])
def test_a_file_that_is_committed_after_it_was_judged_stays(tmp_path: Path, looks: int) -> None:
    """Whether the commit lands before the first file is removed, or between two of them."""
    catalog = _BusyCatalog(tmp_path.as_uri(), _STORAGE)
    table = Table.create(catalog, "sales.orders", ROWS)
    table.append(rows(1))
    others = [file_of(table, number) for number in range(10, 40)]
    catalog.old_file = file_of(table, 2)
    aged(tmp_path)
    os.utime(catalog.old_file.removeprefix("file://"), (10**9 + 1, 10**9 + 1))
    catalog.looks_before = looks
    removed = {file.location for file in remove_orphans(catalog, "sales.orders")}
    assert removed == set(others)
    assert sorted(table.refresh().scan().to_arrow()["id"].to_pylist()) == [1, 2]


def test_files_beside_the_table_are_not_its_own(tmp_path: Path) -> None:
    """A data path may begin as the table's directory does."""
    catalog = MemoryCatalog(tmp_path.as_uri(), _STORAGE)
    beside = f"{tmp_path.as_uri()}/sales/orders_data"
    table = Table.create(catalog, "sales.orders", ROWS, properties={"write.data.path": beside})
    table.append(rows(1))
    foreign = tmp_path / "sales" / "orders_data" / "foreign.parquet"
    foreign.write_bytes(b"")
    aged(tmp_path)
    assert find_orphans(catalog, "sales.orders") == ()


def test_a_warehouse_that_is_named_with_dots(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    for root in (f"{tmp_path.as_uri()}/other/../lake", f"{tmp_path}/other/.././lake"):
        catalog = path_catalog(root, _STORAGE)
        name = f"sales.t{len(root)}"
        table = Table.create(catalog, name, ROWS)
        assert ".." not in table.location
        table.append(rows(1))
        table.commit_append([file_of(table, 2)])
        spelled = f"{tmp_path}/other/../lake/sales/t{len(root)}/data/3.parquet"
        Path(file_of(table, 3).removeprefix("file://")).rename(spelled)
        table.commit_append([spelled])
        again = Table.open(path_catalog(f"{tmp_path.as_uri()}/lake", _STORAGE), name)
        assert sorted(again.scan().to_arrow()["id"].to_pylist()) == [1, 2, 3]
        aged(tmp_path)
        assert find_orphans(catalog, name) == ()
