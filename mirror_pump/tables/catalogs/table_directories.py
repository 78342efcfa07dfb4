"""Directories of the tables of catalogs whose rows name tables (RowCatalog).

Invariant: no table has its directory in that of another, whatever tables are renamed, dropped, registered and made
anew, so what removes the files of one leaves those of all others. A new directory's name ends with random digits and
is given once; a commit that adds a table compares its directory with those of all others.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mirror_pump.errors import UsageError
from mirror_pump.lake.document.metadata_files import spelled
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.storage import StorageOptions, join, list_files
from mirror_pump.tables.catalogs.lake_catalog import PointerChange, TableIdentifier

LOCATION = "location"
"""Property of a namespace: URI below which its new tables have their directories; without it that is by its name."""
METADATA_FILE = ".metadata.json"
_DIGITS = re.compile(r".*-[0-9a-f]{12}", re.DOTALL)
_METADATA = "metadata"


@dataclass(frozen=True)
class TableRow:
    """A row of Iceberg's JDBC catalog."""

    catalog_name: str
    table_namespace: str
    table_name: str
    metadata_location: str

    def names(self, catalog: str, table: TableIdentifier) -> bool:
        """Whether it is the row of this table."""
        return (self.catalog_name, self.table_namespace, self.table_name) == (catalog, table.namespace, table.name)


class DirectoryRefused(UsageError):
    """A table would have a directory that is not for it."""


def new_directory(warehouse: str, table: TableIdentifier, properties: Mapping[str, str]) -> str:
    """The directory of a new table. `properties`: of its namespace."""
    parent = properties.get(LOCATION) or join(warehouse, *table.namespace.split("."))
    return with_digits(join(parent, table.name))


def with_digits(location: str) -> str:
    """A directory of this name that no table ever had."""
    return f"{location.rstrip('/')}-{uuid.uuid4().hex[:12]}"


def within_warehouse(location: str, warehouse: str) -> str:
    """A location that a client names, with the warehouse as the catalog spells it."""
    root, given = spelled(warehouse).rstrip("/"), spelled(location).rstrip("/")
    return f"{warehouse.rstrip('/')}{given.removeprefix(root)}" if given.startswith(f"{root}/") else location


def require_new(location: str, warehouse: str, storage: StorageOptions) -> None:
    """Raises DirectoryRefused unless this can be the directory of a new table, and LakeError."""
    require_between(location, warehouse, storage)
    if not _DIGITS.fullmatch(location) or _has_metadata(location, storage):
        raise DirectoryRefused(
            f"{location[:500]} is not the directory of a new table",
            "let the catalog prepare the table (stage-create), and write where its answer says",
        )


def require_between(location: str, warehouse: str, storage: StorageOptions) -> None:
    """Raises DirectoryRefused unless a directory is in the warehouse and in no table's directory, and LakeError."""
    root = warehouse.rstrip("/")
    below = location.removeprefix(f"{root}/").split("/")
    if not location.startswith(f"{root}/") or not {"", ".", ".."}.isdisjoint(below):
        raise DirectoryRefused(f"{location[:500]} is not in {root}", "choose a directory there, or none")
    for count in range(1, len(below)):
        above = join(root, *below[:count])
        if _has_metadata(above, storage):
            raise DirectoryRefused(f"{location[:500]} is in the directory of a table, {above}", "choose another one")


def adds_tables(changes: Iterable[PointerChange]) -> bool:
    """Whether a commit gives names to tables."""
    return any(change.base is None and change.metadata is not None for change in changes)


def require_apart(catalog: str, changes: Sequence[PointerChange], tables: Sequence[TableRow]) -> None:
    """Raises DirectoryRefused if a table that the changes add to the catalog has its directory in another table's, or
    around it. `tables`: all after the changes, of this catalog and of others in the same place."""
    directories = [(row, _directory_of(row.metadata_location)) for row in tables]
    for change in changes:
        if change.base is not None or change.metadata is None:
            continue
        if isinstance(change.metadata, TableMetadata):
            directory = f"{spelled(change.metadata.location).rstrip('/')}/"
        else:
            directory = _directory_of(change.metadata.metadata_location)
        for row, other in directories:
            if not row.names(catalog, change.table) and (directory.startswith(other) or other.startswith(directory)):
                raise DirectoryRefused(
                    f"{change.table} would have its files in {directory}, where those of"
                    f" {row.table_namespace}.{row.table_name} are",
                    "choose another directory, or drop the other table first",
                )


def _directory_of(metadata_location: str) -> str:
    """The directory of the table with this metadata file, unless it keeps such files elsewhere."""
    directory = spelled(metadata_location).rpartition("/")[0]
    return f"{directory.removesuffix(f'/{_METADATA}')}/"


def _has_metadata(directory: str, storage: StorageOptions) -> bool:
    files = list_files(join(directory, _METADATA), storage)
    return any(file.location.endswith(METADATA_FILE) for file in files)
