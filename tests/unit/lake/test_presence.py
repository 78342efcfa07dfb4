"""Which table fails because of a missing file, and when the warehouse itself is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror_pump.errors import LakeError
from mirror_pump.lake.commit.presence import StoredTable, require_any, require_warehouse
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import TableId

_STORAGE = StorageOptions(fsync=False)


def stored(number: int, warehouse: Path, *, failed: bool = False) -> StoredTable:
    """A table whose metadata file exists."""
    location = warehouse / "public" / f"t-{number}"
    metadata = location / "metadata" / "00000-a.metadata.json"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("{}")
    return StoredTable(TableId(number), location.as_uri(), metadata.as_uri(), metadata.as_uri(), failed)


def remove(*tables: StoredTable) -> None:
    for table in tables:
        Path(str(table.metadata_location).removeprefix("file://")).unlink()


def require(table: StoredTable, *tables: StoredTable) -> None:
    require_warehouse(str(table.metadata_location), table, (table, *tables), _STORAGE)


def test_a_file_that_alone_is_missing_is_its_tables_trouble(tmp_path: Path) -> None:
    gone, other = stored(1, tmp_path), stored(2, tmp_path)
    remove(gone)
    require(gone, other)
    require_any(tmp_path.as_uri(), (gone, other), _STORAGE)


def test_a_file_that_is_there_again_fails_no_table(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="for a moment"):
        require(stored(1, tmp_path), stored(2, tmp_path))


def test_where_no_table_shows_a_file_the_warehouse_is_missing(tmp_path: Path) -> None:
    tables = [stored(1, tmp_path / "one"), stored(2, tmp_path / "one")]
    remove(*tables)
    with pytest.raises(LakeError, match="not mounted"):
        require(*tables)
    with pytest.raises(LakeError, match="not mounted"):
        require_any((tmp_path / "one").as_uri(), tables, _STORAGE)
    # A table in another warehouse proves nothing about this one.
    with pytest.raises(LakeError, match="not mounted"):
        require(*tables, stored(3, tmp_path / "other"))


@pytest.mark.parametrize("others", [0, 1])
def test_a_table_that_nothing_can_be_compared_with(tmp_path: Path, others: int) -> None:
    """The only one, or one of which all others have failed."""
    warehouse = tmp_path / "lake"
    gone = stored(1, warehouse)
    failed = [stored(number + 2, warehouse, failed=True) for number in range(others)]
    remove(gone, *failed)
    require(gone, *failed)
    warehouse.rename(tmp_path / "elsewhere")
    with pytest.raises(LakeError, match="not mounted"):
        require(gone, *failed)
    # Like a directory on which a file system should be mounted.
    (warehouse / "lost+found").mkdir(parents=True)
    with pytest.raises(LakeError, match="not mounted"):
        require(gone, *failed)
