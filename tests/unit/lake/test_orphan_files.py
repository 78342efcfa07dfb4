"""Which files gc does not judge, and the numbers of a path catalog that it leaves."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from mirror_pump.errors import FileMissing, ForeignTable
from mirror_pump.lake import MemoryCatalog, StorageOptions, Table, find_orphans, path_catalog, remove_orphans
from tests.support.catalog_kinds import ROWS, file_of, files_at

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
