"""Checks that the files of a table exist, and decides whether a missing file is the table's problem or the storage's.

A missing file has one of two causes. Either files of this table were removed. Then no attempt of the pump can succeed,
and a commit that builds on metadata in memory would refer to manifests that are gone. Or the storage as a whole is
unavailable: a disk is not mounted, or the bucket is the wrong one. That problem goes away, and no table may fail
because of it.

A single check cannot tell the two apart. The file counts as lost only if the warehouse provably answers at the same
time, both before and after a second check of the file. The proof is one of these:

- the metadata file of any mirrored table in the same warehouse exists, including this table's unless that is the
  missing file (other files prove nothing: they may belong to the batch that the pump is about to publish);
- if no other table in the warehouse could prove it, the warehouse itself exists: a bucket, or a directory with content
  (the mount point of an unmounted disk is empty).

In every other case the storage is at fault, and the pump tries again until it answers. This includes the case that the
files of all tables are gone at once: nothing distinguishes that from a disk that is about to come back. Only "not
found" counts as missing. Permission denied, timeouts, I/O errors and 5xx are no answer. (S3 answers 403 instead of 404
to clients that may not list the bucket. In that case the pump retries for ever, with that error.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mirror_pump.errors import FileDamaged, FileMissing, LakeError, copy_anew
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.described_files import EntryFacts, entry_contradictions, list_contradictions
from mirror_pump.lake.contents.file_listing import Listing
from mirror_pump.lake.document.snapshot import Snapshot
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.format.damaged_files import file_damaged
from mirror_pump.lake.manifests.manifest_entries import StoredEntry
from mirror_pump.lake.manifests.manifest_files import stored_of
from mirror_pump.lake.manifests.manifest_list import Manifest, read_list
from mirror_pump.lake.storage import (
    StorageOptions,
    directory_answers,
    exists,
    list_files,
    local_path,
    missing_files,
    size_of,
)
from mirror_pump.model import TableId
from mirror_pump.settings.storage_profiles import warehouse_of

_REMEDY = "restore it from a backup, or have the table copied again: unregister and register it"


@dataclass(frozen=True)
class StoredTable:
    """A mirrored table with the locations of its files, from the catalog."""

    table_id: TableId
    location: str
    """Root URI of its files."""
    metadata_location: str | None
    """The metadata file that the next commit builds on. None if another engine dropped the table."""
    readers_location: str | None
    """The metadata file that readers see. It differs while the table is copied again or filled."""
    failed: bool
    """Whether the table is in state `failed`."""

    @property
    def metadata_files(self) -> frozenset[str]:
        """Locations of both metadata files."""
        return frozenset(
            location for location in (self.metadata_location, self.readers_location) if location is not None
        )

    @property
    def warehouse(self) -> str:
        """URI of the warehouse."""
        return warehouse_of(self.location)


def head_files(table: LakeTable, *, manifests: bool = True) -> list[str]:
    """Locations of the files that a commit on this state relies on, and that readers open first.

    These are the metadata file, the manifest lists of the current and the published snapshot, the published snapshot's
    own metadata file and, with `manifests`, the manifests.
    """
    heads = list(heads_of(table.metadata))
    named = [head.manifest_list for head in heads]
    named += [location for head in heads if (location := head.summary.seam_metadata) is not None]
    return [table.metadata_location, *named, *((manifest.path for manifest in table.manifests) if manifests else ())]


def require_files(locations: Iterable[str], storage: StorageOptions) -> None:
    """Raises FileMissing if one of the files does not exist, and LakeError if the storage does not answer."""
    missing = min(missing_files(locations, storage), default=None)
    if missing is not None:
        raise FileMissing(f"{missing} is missing", _REMEDY, missing)


def require_head(location: str, storage: StorageOptions) -> LakeTable:
    """Loads the table of a metadata file. Raises FileMissing if one of its head files does not exist, and LakeError."""
    table = LakeTable.load(location, storage)
    require_files(head_files(table), storage)
    return table


def require_all(location: str, storage: StorageOptions) -> None:
    """Raises the first error of `wrong_files`: FileMissing or FileDamaged. Raises LakeError if the storage does not
    answer."""
    for error in wrong_files(location, storage):
        raise error


@dataclass(frozen=True)
class DescribedEntries:
    """Files that exist with the lengths that a manifest says: its live entries."""

    metadata: TableMetadata
    entries: Sequence[StoredEntry]


def wrong_files(location: str, storage: StorageOptions) -> Iterator[FileMissing | FileDamaged]:
    """What is wrong with the files that readers of a metadata file need: one that does not exist, one of another length
    than its manifest says, and metadata that cannot be read or contradicts itself. Raises LakeError if the storage does
    not answer.

    Reads the manifests, and no data file. A thousand files take some milliseconds on a local disk; in an object store
    they are listed, by one request.
    """
    for result in examined_files(location, storage):
        if not isinstance(result, DescribedEntries):
            yield result


def examined_files(location: str, storage: StorageOptions) -> Iterator[DescribedEntries | FileMissing | FileDamaged]:
    """As `wrong_files`, and manifest by manifest the files of which nothing is wrong so far."""
    try:
        metadata = require_head(location, storage).metadata
        heads = [(snapshot, read_list(snapshot, storage)) for snapshot in heads_of(metadata)]
        main = metadata.refs.get("main")
        if main is not None and main.snapshot_id != metadata.current_snapshot_id:
            raise file_damaged(location, "the metadata of a table", "branch main is not at the current snapshot")
    except (FileMissing, FileDamaged) as error:
        yield error
        return
    lines: dict[str, list[tuple[Snapshot, Manifest]]] = {}
    for snapshot, manifests in heads:
        for manifest in manifests:
            lines.setdefault(manifest.path, []).append((snapshot, manifest))
    # Of files no more than these facts stays in memory.
    facts: dict[str, list[EntryFacts]] = {}
    lengths: dict[str, int] = {}
    if local_path(location) is None:
        lengths = {file.location: file.size_bytes for file in list_files(metadata.location, storage)}
    for *_, (_, manifest) in lines.values():
        try:
            # Also those in which the list counts no live file: it may be wrong.
            entries = stored_of(manifest, storage)
        except (FileMissing, FileDamaged) as error:
            yield error
            continue
        for snapshot, line in lines[manifest.path]:
            yield from list_contradictions(metadata, snapshot, line, entries)
        wrong = {error.location: error for error in _wrong_lengths(entries, lengths, storage)}
        yield from wrong.values()
        yield DescribedEntries(metadata, [entry for entry in entries if entry.path not in wrong])
        facts[manifest.path] = list(map(EntryFacts.of, entries))
    for snapshot, manifests in heads:
        if all(manifest.path in facts for manifest in manifests):
            described = [entry for manifest in manifests for entry in facts[manifest.path]]
            yield from entry_contradictions(metadata, snapshot, described)


def _wrong_lengths(
    entries: Iterable[StoredEntry], lengths: Mapping[str, int], storage: StorageOptions
) -> Iterator[FileMissing | FileDamaged]:
    """`lengths`: by location, of files that were listed. Others are asked for."""
    for path, size in {entry.path: entry.size_bytes for entry in entries}.items():
        length = lengths.get(path)
        if length is None:
            length = size_of(path, storage)
        if length is None:
            yield FileMissing(f"{path} is missing", _REMEDY, path)
        elif length != size:
            yield file_damaged(path, "what was written", f"it has {length} bytes, and its manifest says {size}")


def require_known(table: StoredTable, suspect: str, storage: StorageOptions) -> None:
    """Checks whether the table lost `suspect`, a file that was missed. Raises FileMissing if it did, and LakeError.

    Checks the head files, the directory of `suspect`, and `suspect` itself if readers of the current metadata need it.
    A file that was replaced in the meantime is not needed. Nor is the directory of one outside the table's location:
    the table has been registered again, and the file went with its former registration.
    """
    if local_path(suspect) is not None and suspect.startswith(f"{table.location}/"):
        require_files([_directory(suspect)], storage)
    for location in sorted(table.metadata_files):
        lake = require_head(location, storage)
        require_files([path for path in readers_files(lake) if path == suspect], storage)


def require_warehouse(missing: str, table: StoredTable, stored: Sequence[StoredTable], storage: StorageOptions) -> None:
    """Returns if the missing file is the problem of this table alone (see the module's docstring). Otherwise, and if
    the file is back, raises LakeError. `stored`: all mirrored tables."""
    for _ in range(2):
        if not _answers(missing, table, stored, storage):
            raise LakeError(
                f"{missing} is missing, and so is every other file of the mirror that was looked for in"
                f" {table.warehouse}: it is not mounted, or it is another warehouse",
                "make the warehouse available; the pump continues by itself. If its files are lost, unregister the"
                " tables and register them again",
            )
        if exists(missing, storage):
            raise missed_once(missing)


def missed_once(location: str) -> LakeError:
    """The error for a file that is back, or that is no longer needed."""
    return LakeError(f"{location} was missing for a moment", "try again; a pump does so by itself")


def require_any(warehouse: str, tables: Iterable[StoredTable], storage: StorageOptions) -> None:
    """Raises LakeError if tables are mirrored into the warehouse and none of their metadata files exists. Failed tables
    do not count."""
    witnesses = _witnesses(warehouse, tables)
    if has_any(warehouse, witnesses, storage):
        return
    if all(table.failed for table in witnesses):
        return
    raise LakeError(
        f"{warehouse} has no file of any table that is mirrored into it: it is not mounted, or it is another warehouse",
        "make the warehouse available. If its files are lost, unregister its tables first",
    )


def has_any(warehouse: str, tables: Iterable[StoredTable], storage: StorageOptions) -> bool:
    """Whether a metadata file of one of these tables exists in the warehouse."""
    return any(exists(str(table.metadata_location), storage) for table in _witnesses(warehouse, tables))


def _witnesses(warehouse: str, tables: Iterable[StoredTable]) -> list[StoredTable]:
    return [table for table in tables if table.warehouse == warehouse.rstrip("/") and table.metadata_location]


def vanished(name: str, error: FileMissing, *, only_copy: bool = False) -> tuple[str, str]:
    """The error text and the remedy for a table that lost a file. `only_copy`: the lake had the only copy of some
    rows."""
    gone = _gone_directory(error.location)
    text = f"{name}: {error.location} of its lake table is gone"
    if gone is not None:
        text = f"{name}: the directory {gone} of its lake table is gone"
    return text, copy_anew(name, only_copy=only_copy)


def _answers(missing: str, table: StoredTable, stored: Iterable[StoredTable], storage: StorageOptions) -> bool:
    """Whether the warehouse provably answers."""
    in_warehouse = [
        stored_table
        for stored_table in stored
        if stored_table.warehouse == table.warehouse and stored_table.metadata_location
    ]
    witnesses = [
        str(stored_table.metadata_location)
        for stored_table in in_warehouse
        if stored_table.metadata_location != missing
    ]
    if any(exists(location, storage) for location in witnesses):
        return True
    # Failed tables prove nothing: they may have failed for the same reason.
    alone = all(stored_table.failed for stored_table in in_warehouse if stored_table.table_id != table.table_id)
    return alone and directory_answers(table.warehouse, storage)


def _gone_directory(location: str) -> str | None:
    """The topmost local directory above the file that does not exist. None if all exist."""
    gone: str | None = None
    while (path := local_path(location := _directory(location))) is not None and not path.exists():
        gone = location
    return gone


def _directory(location: str) -> str:
    return location.rpartition("/")[0]


def heads_of(metadata: TableMetadata) -> Iterator[Snapshot]:
    """The snapshots that readers use: the current one, and the published one of a table with heap retention."""
    for snapshot in (metadata.current_snapshot, metadata.archive_snapshot):
        if snapshot is not None:
            yield snapshot


def readers_files(table: LakeTable) -> list[str]:
    """Locations of the manifests, data files and delete files that readers need. Raises FileMissing if a manifest does
    not exist, and LakeError."""
    locations = []
    for snapshot in heads_of(table.metadata):
        manifests = read_list(snapshot, table.storage)
        locations += [manifest.path for manifest in manifests]
        require_files(locations, table.storage)
        listed = Listing(table.storage).files(manifests)
        locations += [file.path for files in listed.values() for file in files]
    return locations
