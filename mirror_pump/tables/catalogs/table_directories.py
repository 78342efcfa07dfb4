"""Directories of the tables of catalogs whose rows name tables (RowCatalog).

Invariant: no table gets its directory in that of another, whatever tables are renamed, dropped, registered and made
anew, and what removes the files of one leaves those of all others. A new directory's name ends with random digits and
is given once; a commit that adds a table compares its directory with those of all others. Other engines, and earlier
versions, do not: so what removes files compares, too.
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
from mirror_pump.tables.catalogs.lake_catalog import DirectoryClaim, PointerChange, TableIdentifier

LOCATION = "location"
"""Property of a namespace: URI below which its new tables have their directories; without it that is by its name."""
METADATA_FILE = ".metadata.json"
_DIGITS = re.compile(r".*-[0-9a-f]{12}", re.DOTALL)
_METADATA = "metadata"
_LONGEST_NAME = 255
"""Bytes of a directory's name, in file systems."""


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
    by_name = join(warehouse, *table.namespace.split("."), table.name)
    parent = properties.get(LOCATION)
    location = within_warehouse(join(parent, table.name), warehouse) if parent else by_name
    # Another engine may have set any location.
    return with_digits(location if _is_below(location, warehouse) else by_name)


def with_digits(location: str) -> str:
    """A directory of this name that no table ever had. Raises DirectoryRefused for a name that is too long."""
    directory = f"{location.rstrip('/')}-{uuid.uuid4().hex[:12]}"
    if len(directory.rpartition("/")[2].encode()) > _LONGEST_NAME:
        raise DirectoryRefused(f"{location[-500:]} is too long to name a directory", "choose a shorter name")
    return directory


def _is_below(location: str, warehouse: str) -> bool:
    root = f"{warehouse.rstrip('/')}/"
    return location.startswith(root) and {"", ".", ".."}.isdisjoint(location.removeprefix(root).split("/"))


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
    if not _is_below(location, root) or any(len(name.encode()) > _LONGEST_NAME for name in below):
        reason = f"{location[:500]} is not in {root}, or a name in it has more than {_LONGEST_NAME} bytes"
        raise DirectoryRefused(reason, "choose a directory there, or none")
    for count in range(1, len(below)):
        above = join(root, *below[:count])
        if _has_metadata(above, storage):
            raise DirectoryRefused(f"{location[:500]} is in the directory of a table, {above}", "choose another one")


def claims_of(changes: Iterable[PointerChange]) -> Sequence[DirectoryClaim]:
    """Of the tables that a commit adds or whose files are removed after it. A rename moves no directory."""
    dropped = [change.base for change in changes if change.metadata is None]
    claims = []
    for change in changes:
        remedy = "choose another directory, or drop the other table first"
        if change.emptied is not None:
            directory, remedy = change.emptied, "drop the table without purge: its files stay"
        elif change.base is not None or change.metadata is None:
            continue
        elif change.metadata in dropped:
            # Of one name only.
            dropped.remove(change.metadata)
            continue
        elif isinstance(change.metadata, TableMetadata):
            directory = change.metadata.location
        else:
            directory = _directory_of(change.metadata.metadata_location)
        claims.append(DirectoryClaim(change.table, directory, remedy))
    return claims


def require_apart(catalog: str, claims: Sequence[DirectoryClaim], tables: Iterable[TableRow]) -> None:
    """Raises DirectoryRefused if another table has its directory in a claimed one, or around it. `tables`: all after
    the changes, of this catalog and of others in the same place."""
    directories = [(row, _directory_of(row.metadata_location)) for row in tables]
    for claim in claims:
        directory = f"{spelled(claim.directory).rstrip('/')}/"
        for row, other in directories:
            if not row.names(catalog, claim.table) and (directory.startswith(other) or other.startswith(directory)):
                # Clients of this catalog learn no names of others.
                name = (
                    f"{row.table_namespace}.{row.table_name}"
                    if row.catalog_name == catalog
                    else "another catalog's table"
                )
                raise DirectoryRefused(f"{directory} of {claim.table} has files of {name}", claim.remedy)


def _directory_of(metadata_location: str) -> str:
    """The directory of the table with this metadata file, unless it keeps such files elsewhere."""
    directory = spelled(metadata_location).rpartition("/")[0]
    return f"{directory.removesuffix(f'/{_METADATA}')}/"


def _has_metadata(directory: str, storage: StorageOptions) -> bool:
    files = list_files(join(directory, _METADATA), storage, recursive=False)
    return any(file.location.endswith(METADATA_FILE) for file in files)
