"""Metadata files: reading those of any engine, and the locations of new ones."""

from __future__ import annotations

import gzip
import re
import uuid
from collections.abc import Sequence

from mirror_pump.errors import ForeignTable
from mirror_pump.lake.document.document_shape import require_shape
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.format.damaged_files import decoding, file_damaged
from mirror_pump.lake.format.versions import FORMAT_VERSION, VECTOR_VERSION
from mirror_pump.lake.storage import StorageOptions, join, local_path, make_directories, read_bytes, write_all
from mirror_pump.lake.storage.options import Content
from mirror_pump.storage_kinds import one_spelling

_GZIP = b"\x1f\x8b"
_KIND = "valid Iceberg table metadata"


def read_metadata(location: str, storage: StorageOptions) -> TableMetadata:
    """The metadata document of any engine's table.

    Raises FileMissing, FileDamaged if it is damaged or another table's, ForeignTable if it has neither format version 2
    nor 3, and LakeError.
    """
    return metadata_of(read_bytes(location, storage), location)


def metadata_of(content: bytes, location: str) -> TableMetadata:
    """As `read_metadata`, from the content of the file."""
    metadata = any_version_of(content, location)
    version = metadata.format_version
    if version not in (FORMAT_VERSION, VECTOR_VERSION):
        raise ForeignTable(
            f"{location} has Iceberg format version {version}; mirrored tables have version {FORMAT_VERSION} or"
            f" {VECTOR_VERSION}",
            "unregister and register the table; no other engine may upgrade its lake table further",
        )
    if not _belongs(metadata, location):
        raise file_damaged(location, _KIND, f"it is that of another table, at {metadata.location}")
    return metadata


def read_any_version(location: str, storage: StorageOptions) -> TableMetadata:
    """Like read_metadata, for any format version: all versions have the same snapshots and branches. The file may be
    anywhere."""
    return any_version_of(read_bytes(location, storage), location)


def any_version_of(content: bytes, location: str) -> TableMetadata:
    """As `read_any_version`, from the content of the file."""
    with decoding(location, _KIND):
        metadata = TableMetadata.from_json(json_of(content))
        require_shape(metadata.document)
    return metadata


def json_of(content: bytes) -> bytes:
    """The JSON in a metadata file, which may be compressed. Raises ValueError and the like: use it in `decoding`."""
    return gzip.decompress(content) if content.startswith(_GZIP) else content


def _belongs(metadata: TableMetadata, location: str) -> bool:
    """Whether a table with this document has its metadata files there: below its own location, unless it names a place
    for them."""
    places = (metadata.location, metadata.properties.get("write.metadata.path") or metadata.location)
    return any(spelled(location).startswith(spelled(place).rstrip("/") + "/") for place in places)


def spelled(location: str) -> str:
    """One spelling for those of a place that engines use: `file:/` and `file:///`, `s3a://` and `s3://`."""
    path = local_path(location)
    return one_spelling(location) if path is None else str(path)


def metadata_directory(metadata: TableMetadata) -> str:
    """Directory of the table's metadata files."""
    return metadata.properties.get("write.metadata.path") or join(metadata.location, "metadata")


def seam_directory(metadata: TableMetadata) -> str:
    """Directory of the metadata files in which an archive snapshot is the current one. It is beside `metadata`: engines
    that search for a table's newest metadata file (ClickHouse, in all directories below it) must not find them."""
    return join(metadata.location, "seam")


def seam_location(metadata: TableMetadata, sequence_number: int) -> str:
    """A new location for such a metadata file. ClickHouse only opens files named like Iceberg's own: N-uuid, vN or
    vN-uuid."""
    return join(seam_directory(metadata), f"{sequence_number:05d}-{uuid.uuid4()}.metadata.json")


def moment_location(metadata: TableMetadata) -> str:
    """A new location for the metadata file of a moment that is kept. Its number is 0, since the sweep takes a number
    above the table's newest for that of a publish under way."""
    return seam_location(metadata, 0)


def pinned_location(metadata: TableMetadata, pin: str, directory: str) -> str:
    """Where the metadata file is that shows one pinned state of a table.

    Engines take a table's state from the metadata that a catalog answers, but for ClickHouse, which opens the file that
    `metadata-location` names. So each state that is shown has a file, in a `directory` of files that engines which
    search for a table's newest metadata file, in all directories below `metadata`, do not find. ClickHouse opens files
    only that are named as Iceberg's own: N-uuid.metadata.json. The sweep takes a number above the table's newest for
    that of a publish under way, so it is 0.

    It is written once for each `pin`, whose text says what is pinned and shown, so any process finds it, and none that
    a database had under the same number which has been restored since. A process that writes it again writes the same
    state. Sweeps leave it as long as the pin lasts, since it is younger than the pinned snapshot, and delete it as any
    file that nothing refers to once that is over. The name is the pin's, and not the snapshot's, because of a sweep
    that is under way when a reader pins the snapshot again: it may be about to delete the file of the former pin.
    """
    name = uuid.uuid5(uuid.UUID(metadata.table_uuid), pin)
    return join(directory, f"00000-{name}.metadata.json")


def metadata_number(location: str) -> int | None:
    """The number with which the name of a metadata file begins; None for other names."""
    match = re.match(r"v?(\d+)", location.rsplit("/", 1)[-1])
    return int(match[1]) if match else None


def next_location(metadata: TableMetadata, old_location: str | None) -> str:
    """A new location for the next metadata file, numbered after the old one as other engines expect."""
    version = 0
    if old_location is not None:
        number = metadata_number(old_location)
        version = (metadata.metadata_log_length if number is None else number) + 1
    return join(metadata_directory(metadata), f"{version:05d}-{uuid.uuid4()}.metadata.json")


def write_metadata(
    metadata: TableMetadata,
    old_location: str | None,
    storage: StorageOptions,
    files: Sequence[tuple[str, Content]] = (),
) -> str:
    """Writes the document that follows the one at `old_location` (None: the table is new), and with it the files that
    it needs, all at once. Returns its location. After an error none is left. Raises LakeError."""
    location = next_location(metadata, old_location)
    directory = metadata_directory(metadata)
    if old_location is not None and not old_location.startswith(f"{directory}/"):
        # Another engine has just changed the table's metadata directory.
        make_directories([directory], storage)
    write_all([*files, (location, metadata.to_json())], storage)
    return location
