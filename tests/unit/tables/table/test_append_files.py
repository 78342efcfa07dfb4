"""What becomes of the files of an append that ends in an error: they go only if certainly no snapshot names them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from mirror_pump.tables import MemoryCatalog, StorageOptions, Table
from mirror_pump.tables.catalogs.lake_catalog import MetadataPointer, PointerChange, TableIdentifier
from tests.support.catalog_kinds import ROWS, rows


class _InterruptedCatalog(MemoryCatalog):
    """Ctrl-C at one of two moments."""

    while_loading = after_commit = False

    def load(self, table: TableIdentifier) -> MetadataPointer | None:
        if self.while_loading:
            raise KeyboardInterrupt
        return super().load(table)

    def commit(self, changes: Sequence[PointerChange]) -> Sequence[MetadataPointer | None]:
        done = super().commit(changes)
        if self.after_commit:
            raise KeyboardInterrupt
        return done


def test_an_append_that_is_interrupted(tmp_path: Path) -> None:
    catalog = _InterruptedCatalog(tmp_path.as_uri(), StorageOptions(fsync=False))
    table = Table.create(catalog, "a.b", ROWS)
    before = sorted(tmp_path.rglob("*.*"))
    catalog.while_loading = True
    with pytest.raises(KeyboardInterrupt):
        table.append(rows(1))
    assert sorted(tmp_path.rglob("*.*")) == before
    catalog.while_loading, catalog.after_commit = False, True
    with pytest.raises(KeyboardInterrupt):
        table.append(rows(2))
    catalog.after_commit = False
    assert Table.open(catalog, "a.b").scan().to_arrow()["id"].to_pylist() == [2]
