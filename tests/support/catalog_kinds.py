"""The catalogs that one suite runs over, and how another process opens the same one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from mirror_pump.lake.commit.catalog import CATALOG
from mirror_pump.lake.contents.file_listing import live_data_files
from mirror_pump.lake.document.snapshot import Snapshot
from mirror_pump.lake.manifests.manifest_list import read_list
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.tables.catalogs.lake_catalog import StoredCatalog
from mirror_pump.tables.catalogs.memory_catalog import MemoryCatalog
from mirror_pump.tables.catalogs.postgres_catalog import PostgresCatalog
from mirror_pump.tables.catalogs.sqlite_catalog import SqliteCatalog
from mirror_pump.tables.catalogs.transaction_log import path_catalog
from mirror_pump.tables.table.row_files import write_rows
from mirror_pump.tables.table.table import LAKE_RETRIES, Table

KINDS = ("memory", "sqlite", "postgres", "path", "log")
PROCESSES = ("sqlite", "postgres", "path", "log")
"""Those that several processes can share."""
TRANSACTIONS = ("memory", "sqlite", "postgres", "log")
NO_TURNS = replace(LAKE_RETRIES, longest_turn=0.0)
"""Retries of a writer that does not wait for the others of this machine, as if each were on one of its own."""
ROWS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])


@dataclass(frozen=True)
class CatalogPlace:
    """Where a catalog is. Picklable."""

    kind: str
    warehouse: str
    """URI."""
    dsn: str = ""
    properties: dict[str, str] = field(default_factory=dict)
    """Of an object store."""
    catalog: str = CATALOG
    """The catalog's name in a database, which several can share."""

    def open(self) -> StoredCatalog:
        """A catalog object of its own, as another process has it. Not for the kind memory."""
        # Nothing here survives a power failure, and each fsync costs.
        storage = StorageOptions(self.properties, fsync=False)
        match self.kind:
            case "sqlite":
                file = Path(self.warehouse.removeprefix("file://")) / "catalog.db"
                file.parent.mkdir(parents=True, exist_ok=True)
                return SqliteCatalog(file, self.warehouse, storage)
            case "postgres":
                return PostgresCatalog(self.dsn, self.warehouse, storage, name=self.catalog)
            case "memory":
                return MemoryCatalog(self.warehouse, storage)
            case _:
                return path_catalog(self.warehouse, storage, transactions=self.kind == "log")


def rows(*numbers: int) -> pa.Table:
    """Rows with these IDs."""
    return pa.table({"id": list(numbers), "name": [f"n{number}" for number in numbers]}, schema=ROWS)


def file_of(table: Table, *numbers: int) -> str:
    """A data file with these rows in the table's directory, which the table does not have yet."""
    (path,) = write_rows(rows(*numbers), table.metadata, table.storage)
    return path


def files_at(table: Table, snapshot: Snapshot | None = None) -> frozenset[str]:
    """URIs of the data files of a snapshot, by default of the current one. Fails if one is named twice."""
    snapshot = snapshot or table.current_snapshot()
    assert snapshot is not None
    storage = table.storage
    found = [file.path for file in live_data_files(read_list(snapshot, storage), storage)]
    assert len(found) == len(set(found)), "a file is in the table twice"
    return frozenset(found)


def left_behind(table: Table, among: Iterable[Path]) -> list[Path]:
    """Files of a local table that no snapshot and no metadata file refers to."""
    storage = table.storage
    named = {table.metadata_location, *table.metadata.former_locations}
    for snapshot in table.metadata.snapshots:
        manifests = read_list(snapshot, storage)
        named |= {snapshot.manifest_list, *(manifest.path for manifest in manifests), *files_at(table, snapshot)}
    return [path for path in among if path.is_file() and path.as_uri() not in named]
