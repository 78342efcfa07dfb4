"""Metadata files that clients bring for tables to be registered.

Invariant: a registered table's files are in a directory of the warehouse that is no other table's, and no pump's.
"""

from __future__ import annotations

from mirror_pump.errors import FileDamaged, FileMissing
from mirror_pump.lake.document.metadata_files import metadata_directory, read_any_version, spelled
from mirror_pump.lake.format.versions import VECTOR_VERSION
from mirror_pump.rest_catalog.protocol import bad_request, forbidden
from mirror_pump.tables.catalogs.lake_catalog import MetadataPointer, RowCatalog
from mirror_pump.tables.catalogs.table_directories import METADATA_FILE, require_between
from mirror_pump.tables.table.orphan_files import is_pumps


def registered_file(location: str, catalog: RowCatalog) -> MetadataPointer:
    """The metadata file for a commit, which compares its directory with those of all tables. Raises ProtocolError,
    DirectoryRefused, and LakeError."""
    directory, _, name = location.rpartition("/")
    root = directory.removesuffix("/metadata")
    if not name.endswith(METADATA_FILE) or root == directory:
        raise bad_request(f"{location[:500]} is no metadata file in the directory `metadata` of a table")
    # Before it is read: no client decides which other files this process reads.
    require_between(root, catalog.warehouse, catalog.storage)
    try:
        metadata = read_any_version(location, catalog.storage)
    except (FileMissing, FileDamaged) as error:
        raise bad_request(str(error)) from error
    if spelled(metadata.location).rstrip("/") != spelled(root) or (
        spelled(metadata_directory(metadata)).rstrip("/") != spelled(directory)
    ):
        raise bad_request(f"{location} is the metadata of a table at {metadata.location}, and is not in its directory")
    if metadata.format_version > VECTOR_VERSION:
        raise bad_request(f"{location} has Iceberg format version {metadata.format_version}, which is only read here")
    if is_pumps(metadata):
        raise forbidden(f"{location} is the metadata of a mirrored table, whose files are the pump's")
    return MetadataPointer(location)
