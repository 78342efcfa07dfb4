"""Whether the files are there that a table's metadata names, and whose trouble it is if they are not.

A file that is missing means one of two things. Somebody removed files of this table: no attempt of the pump can succeed
any more, and one built on its memory of the table would commit on top of manifests that are gone. Or the storage as a
whole is not there, a disk that is not mounted or a wrong bucket: that passes, and must set no table aside.

What an unmounted disk and a removed directory have in common is the answer of one look, so one look decides nothing.
The file counts as the table's own trouble only if the warehouse provably answers at the same time, which is shown by a
file of the mirror in it, before and after another look at the missing one:

- the metadata file of any mirrored table in the same warehouse, this one too unless that is what is missing (other
  files may be the pump's own, of the batch that it is about to publish, and show nothing), or,
- where no other table in it could show anything, a warehouse that is there: a directory that is not empty, as a mount
  point is, or a bucket.

In every other case it is an error of the storage, which is tried again until it answers: also if all tables' files are
gone at once, since then nothing tells a person who removed them from a disk that is about to come back. Only "not
found" makes a look fail in this sense. Permission denied, timeouts, I/O errors and 5xx are no answer at all. (To those
who may not list the bucket, S3 says 403 instead of 404: then a missing object is retried for ever, with that error.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from mirror_pump.errors import FileMissing, LakeError
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.file_listing import Listing
from mirror_pump.lake.metadata.manifest_list import read_list
from mirror_pump.lake.metadata.snapshot import Snapshot
from mirror_pump.lake.metadata.table_metadata import TableMetadata
from mirror_pump.lake.storage import (
    StorageOptions,
    directory_answers,
    exists,
    local_path,
    missing_files,
)
from mirror_pump.model import TableId

_REMEDY = "restore it from a backup, or have the table copied again: unregister and register it"


@dataclass(frozen=True)
class StoredTable:
    """A mirrored table as the catalog knows its files."""

    table_id: TableId
    location: str
    """Root URI of its files."""
    metadata_location: str | None
    """The metadata file that the next commit builds on; None if another engine dropped the table."""
    readers_location: str | None
    """The one that readers see: another one while the table is copied again or filled."""
    failed: bool

    @property
    def metadata_files(self) -> frozenset[str]:
        """Both."""
        return frozenset(one for one in (self.metadata_location, self.readers_location) if one is not None)

    @property
    def warehouse(self) -> str:
        """Registration puts tables two levels below: schema and table."""
        return self.location.rsplit("/", 2)[0]


def head_files(table: LakeTable, *, manifests: bool = True) -> list[str]:
    """What a commit on top of this state relies on, and its readers open first: metadata file, manifest lists (of the
    published snapshot too, and the metadata file in which that is current) and, unless told otherwise, the
    manifests."""
    heads = list(_heads(table.metadata))
    named = [head.manifest_list for head in heads]
    named += [location for head in heads if (location := head.summary.seam_metadata) is not None]
    return [table.metadata_location, *named, *((one.path for one in table.manifests) if manifests else ())]


def require_files(locations: Iterable[str], storage: StorageOptions) -> None:
    """Raises FileMissing if one of the files is gone, and LakeError if the storage does not answer."""
    missing = min(missing_files(locations, storage), default=None)
    if missing is not None:
        raise FileMissing(f"{missing} is missing", _REMEDY, missing)


def require_head(location: str, storage: StorageOptions) -> LakeTable:
    """The table of a metadata file, whose head's files are all there. Raises FileMissing, and LakeError."""
    table = LakeTable.load(location, storage)
    require_files(head_files(table), storage)
    return table


def require_all(location: str, storage: StorageOptions) -> None:
    """Every file that readers of the metadata file need is there. Reads the manifests, and looks for each data and
    delete file: some milliseconds for a thousand on a local disk, half a second in an object store. Raises FileMissing,
    and LakeError."""
    require_files(_readers_files(require_head(location, storage)), storage)


def require_known(table: StoredTable, suspect: str, storage: StorageOptions) -> None:
    """Nothing is missing that the table's metadata names, as far as `suspect` is concerned, a file that somebody
    missed: the head, the file's directory, and the file itself if readers need it; one that was exchanged for another
    meanwhile is missed by nobody. Raises FileMissing, and LakeError."""
    if local_path(suspect) is not None:
        require_files([_directory(suspect)], storage)
    for location in sorted(table.metadata_files):
        lake = require_head(location, storage)
        require_files([path for path in _readers_files(lake) if path == suspect], storage)


def require_warehouse(missing: str, table: StoredTable, stored: Sequence[StoredTable], storage: StorageOptions) -> None:
    """Returns if the missing file is the trouble of this table alone (see the module's text); else raises LakeError,
    also if the file is there again. `stored`: all mirrored tables."""
    for _ in range(2):
        if not _answers(missing, table, stored, storage):
            raise LakeError(
                f"{missing} is missing, and so is every other file of the mirror that was looked for in"
                f" {table.warehouse}: it is not mounted, or not the one that it was",
                "make the warehouse available; the pump goes on by itself. If its files are lost, unregister the tables"
                " and register them again",
            )
        if exists(missing, storage):
            raise missed_once(missing)


def missed_once(location: str) -> LakeError:
    """For a file that is there again, or that nobody needs any more."""
    return LakeError(f"{location} was missing for a moment", "try again; a pump does so by itself")


def require_any(warehouse: str, tables: Iterable[StoredTable], storage: StorageOptions) -> None:
    """LakeError if tables are mirrored into the warehouse and it shows no file of any, but of those set aside."""
    witnesses = [one for one in tables if one.warehouse == warehouse.rstrip("/") and one.metadata_location]
    if any(exists(str(one.metadata_location), storage) for one in witnesses) or all(one.failed for one in witnesses):
        return
    raise LakeError(
        f"{warehouse} has no file of any table that is mirrored into it: it is not mounted, or not the one that it was",
        "make the warehouse available. If its files are lost, unregister its tables first",
    )


def vanished(name: str, error: FileMissing, *, only_copy: bool = False) -> tuple[str, str]:
    """What to say of a table of which a file is gone: what happened, and what to do. `only_copy`: the table had rows
    that Postgres does not have any more."""
    gone = _gone_directory(error.location)
    text = f"{name}: {error.location} of its lake table is gone"
    if gone is not None:
        text = f"{name}: the directory {gone} of its lake table is gone"
    if only_copy:
        return text, (
            "the lake had the only copy of rows that left Postgres: restore the files from a backup, and the table can"
            " be read again as it was; to mirror what Postgres holds, unregister it with --keep-lake and register it"
        )
    return text, (
        "unregister the table and register it again, which copies it anew; or restore the files from a backup first, if"
        " its former content has to be read until then"
    )


def _answers(missing: str, table: StoredTable, stored: Iterable[StoredTable], storage: StorageOptions) -> bool:
    in_warehouse = [one for one in stored if one.warehouse == table.warehouse and one.metadata_location]
    if any(exists(str(one.metadata_location), storage) for one in in_warehouse if one.metadata_location != missing):
        return True
    # Tables that were set aside may be so for the same reason.
    alone = all(one.failed for one in in_warehouse if one.table_id != table.table_id)
    return alone and directory_answers(table.warehouse, storage)


def _gone_directory(location: str) -> str | None:
    """The topmost local directory above the file that is not there, if one is not."""
    gone: str | None = None
    while (path := local_path(location := _directory(location))) is not None and not path.exists():
        gone = location
    return gone


def _directory(location: str) -> str:
    return location.rpartition("/")[0]


def _heads(metadata: TableMetadata) -> Iterator[Snapshot]:
    """The snapshots that readers are given: main's, and the published snapshot of a table with heap retention."""
    for snapshot in (metadata.current_snapshot, metadata.archive_snapshot):
        if snapshot is not None:
            yield snapshot


def _readers_files(table: LakeTable) -> list[str]:
    """Manifests, data files and delete files."""
    found = []
    for snapshot in _heads(table.metadata):
        manifests = read_list(snapshot.manifest_list, table.storage)
        found += [one.path for one in manifests]
        require_files(found, table.storage)
        listed = Listing(table.storage).files(manifests)
        found += [file.path for files in listed.values() for file in files]
    return found
