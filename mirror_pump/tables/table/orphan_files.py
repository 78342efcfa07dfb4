"""Finds and removes orphan files: those in a table's directories that no retained snapshot refers to.

Writers that died leave them, and overwrites whose snapshots have expired since. A file stays if the newest metadata, or
any snapshot, branch, tag, statistics or log entry in it, names it, or if it is younger than the grace: a writer may be
about to commit it. The files are listed before the metadata is read, so what a commit names meanwhile is seen. The
newest metadata files of a path catalog stay under their numbers, whatever their age
(docs/lake/metadata-layout.md).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

from mirror_pump.errors import ForeignTable, UsageError
from mirror_pump.lake.contents.referenced_files import referenced_files
from mirror_pump.lake.document.metadata_files import metadata_directory
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.storage import StorageOptions, StoredFile, delete, join, list_files
from mirror_pump.tables.catalogs.lake_catalog import DirectoryClaim, LakeCatalog, RowCatalog, TableIdentifier
from mirror_pump.tables.metadata.table_view import check_readable, manifests_of
from mirror_pump.tables.table.file_names import is_within, require_alone, same_name
from mirror_pump.tables.table.table import Table
from mirror_pump.tables.table.table_errors import TableMissing

DEFAULT_GRACE = 3 * 86400.0
"""Seconds, as in Iceberg's own procedure."""
LEAST_GRACE = 3600.0
"""Seconds. A shorter grace would meet commits under way, and clocks that differ."""
_REMOVED_AT_ONCE = 20
"""Files that are removed between two looks at the table's pointer."""
KEPT_VERSIONS = 100
"""Numbered metadata files that stay: a slow writer may build on one of them, and must not find a number free again."""

NUMBERED = re.compile(r"v(\d+)(\.gz)?\.metadata\.json$")
HINT = "version-hint.text"
_SHARED = "copy one of the two to a new table, and drop it without purge"
_PUMPS = "mirror-pump."
"""Prefix of the entries that a pump writes into the summaries of its snapshots."""


def find_orphans(
    catalog: LakeCatalog, identifier: TableIdentifier | str, grace: float = DEFAULT_GRACE
) -> tuple[StoredFile, ...]:
    """The orphan files that have not changed for `grace` seconds, the oldest first. Memory: all files of the table.

    Raises UsageError for a grace under an hour; ForeignTable for a mirrored table, whose files a pump and its readers
    need for longer, and for a format version of which not all files are known; TableMissing; LakeError if the
    storage fails; and one of LakeError and UsageError if another table is within this one or around it.
    """
    return _find_orphans(catalog, identifier, grace)[1]


def _find_orphans(
    catalog: LakeCatalog, identifier: TableIdentifier | str, grace: float
) -> tuple[Table, tuple[StoredFile, ...]]:
    """The orphan files, and the table as it was when it was asked for them."""
    if grace < LEAST_GRACE:
        raise UsageError(f"a grace of {grace:g} seconds is too short", f"give at least {LEAST_GRACE:g} seconds")
    before = time.time() - grace
    table = Table.open(catalog, identifier)
    listed = [file for root in _roots(table.metadata) for file in list_files(root, catalog.storage)]
    table.refresh()
    metadata = table.metadata
    _require_own(metadata, listed)
    if isinstance(catalog, RowCatalog):
        catalog.require_apart([DirectoryClaim(table.identifier, metadata.location, _SHARED)])
    unreferenced = {same_name(file.location): file for file in listed if file.modified < before}
    for location in (table.metadata_location, *_referenced(metadata, catalog.storage)):
        unreferenced.pop(same_name(location), None)
    newest = max((_number(file) for file in listed), default=0)
    orphans = (file for file in unreferenced.values() if not _stays(file, newest))
    return table, tuple(sorted(orphans, key=lambda file: (file.modified, _number(file))))


def remove_orphans(
    catalog: LakeCatalog, identifier: TableIdentifier | str, grace: float = DEFAULT_GRACE
) -> tuple[StoredFile, ...]:
    """Removes what `find_orphans` finds, the oldest first, and returns it. Raises the same errors.

    Looks at the table's pointer again before every few files: a commit may name files that lay there for long.
    """
    table, files = _find_orphans(catalog, identifier, grace)
    removed: list[StoredFile] = []
    referenced: frozenset[str] = frozenset()
    for begin in range(0, len(files), _REMOVED_AT_ONCE):
        if _has_moved(table):
            referenced = frozenset(
                map(same_name, (table.metadata_location, *_referenced(table.metadata, catalog.storage)))
            )
        for file in files[begin : begin + _REMOVED_AT_ONCE]:
            if same_name(file.location) not in referenced:
                delete(file.location, catalog.storage)
                removed.append(file)
    return tuple(removed)


def _has_moved(table: Table) -> bool:
    """Whether others have committed since; refreshes the table. Raises TableMissing if it is another one now."""
    location, table_uuid = table.metadata_location, table.metadata.table_uuid
    table.refresh()
    if table.metadata.table_uuid != table_uuid:
        raise TableMissing(
            f"{table.identifier} was dropped and made again while its orphan files were removed",
            "run it again for the table that is there now",
        )
    return table.metadata_location != location


def _roots(metadata: TableMetadata) -> list[str]:
    """Directories that only this table uses."""
    directories = (metadata.properties.get("write.data.path"), metadata_directory(metadata))
    roots = {join(metadata.location, "data"), join(metadata.location, "metadata")}
    roots |= {root.rstrip("/") for root in directories if root is not None and is_within(root, metadata.location)}
    # None within another: its files would be listed twice, which does no harm, but takes time.
    return sorted(root for root in roots if not any(root.startswith(join(other, "")) for other in roots))


def _require_own(metadata: TableMetadata, listed: list[StoredFile]) -> None:
    """Raises ForeignTable and LakeError for a table whose files this cannot judge."""
    check_readable(metadata)
    if not metadata.snapshots:
        raise ForeignTable(f"the table in {metadata.location} has no snapshot", "commit to it first")
    if is_pumps(metadata):
        raise ForeignTable(
            f"the table in {metadata.location} is mirrored, and its files may be pinned", "use mirror-pump maintain"
        )
    require_alone(metadata, listed)


def is_pumps(metadata: TableMetadata) -> bool:
    """Whether a pump has committed to the table."""
    return any(key.startswith(_PUMPS) for snapshot in metadata.snapshots for key in snapshot.summary.entries)


def _referenced(metadata: TableMetadata, storage: StorageOptions) -> Iterator[str]:
    """Every file that the metadata names, directly or not; some of them more than once."""
    return referenced_files(metadata, storage, manifests_of)


def _number(file: StoredFile) -> int:
    match = NUMBERED.search(file.location)
    return int(match[1]) if match else 0


def _stays(file: StoredFile, newest: int) -> bool:
    """Whether it is one of the files by which a path catalog finds the newest metadata."""
    number = _number(file)
    return file.location.endswith(f"/{HINT}") or (number > 0 and number > newest - KEPT_VERSIONS)
