"""Snapshot summaries: what a commit added and removed, the totals derived from the parent's, and entries of our own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from mirror_pump.model import Lsn, parse_lsn

if TYPE_CHECKING:
    from mirror_pump.lake.format.data_files import WrittenFile
    from mirror_pump.lake.format.partitioning import PartitionTuple

FRONTIER_PROPERTY = "mirror-pump.frontier"
"""Entry: a frontier, in Postgres's notation, at which the table's rows are the snapshot's. Each snapshot of a live
table has it, beginning with that of the publish with which the table goes live."""
TIMELINE_PROPERTY = "mirror-pump.timeline"
"""Entry beside FRONTIER_PROPERTY: the server's timeline on which the frontier was published, a number."""
POSITION_PROPERTY = "mirror-pump.position"
"""Entry that takes the place of FRONTIER_PROPERTY in a tiered table: the mirror's frontier when the snapshot was
published. It says nothing about rows, only when that was."""
COPYING_PROPERTY = "mirror-pump.copying"
"""Entry that takes the place of FRONTIER_PROPERTY: the copy is not complete, or files are being filled. The table had
these rows at no frontier."""
FILLING_PROPERTY = "mirror-pump.filling"
"""Entry, `true`: rows from before a column was added may still lack its value."""
ARCHIVE_CUT_LINE = "mirror-pump.cold-cut"
"""Entry of archive snapshots: their cut-line, a tier value."""
SEAM_METADATA = "mirror-pump.seam-metadata"
"""Entry of archive snapshots: the metadata file in which the snapshot is the current one."""
PENDING_SINCE = "mirror-pump.equality-deletes-since"
"""Entry: commit time of the oldest pending equality delete, in milliseconds since 1970 UTC."""

_CHANGED_PARTITIONS = "changed-partition-count"
OPERATION = "operation"
REPLACE = "replace"
"""The operation of snapshots that replace files without changing rows (Iceberg spec, snapshots)."""


class Total(StrEnum):
    """The entries with totals of the snapshot's live files (Iceberg spec, optional snapshot summary fields)."""

    DATA_FILES = "total-data-files"
    DELETE_FILES = "total-delete-files"
    RECORDS = "total-records"
    """Rows in data files, including those that deletes hide."""
    FILES_SIZE = "total-files-size"
    """Bytes."""
    POSITION_DELETES = "total-position-deletes"
    """Rows in position-delete files."""
    EQUALITY_DELETES = "total-equality-deletes"
    """Rows in equality-delete files."""


class Removed(StrEnum):
    """The entries about what a commit removed. Without one, it removed none."""

    DATA_FILES = "deleted-data-files"
    RECORDS = "deleted-records"
    """Rows in these files, including those that deletes hid."""
    FILES_SIZE = "removed-files-size"
    """Bytes, also of delete files."""


@dataclass(frozen=True, slots=True)
class SnapshotSummary:
    """A view of a snapshot's summary. Not to be changed."""

    entries: Mapping[str, str]

    @property
    def operation(self) -> str | None:
        """Iceberg's name of what the commit did; None if another engine left it out."""
        return self.entries.get(OPERATION)

    @property
    def only_rewrites(self) -> bool:
        """Whether the commit replaced files without changing rows."""
        return self.operation == REPLACE

    @property
    def frontier(self) -> Lsn | None:
        """The frontier at which the table's rows are the snapshot's, if it is recorded."""
        stated = self.entries.get(FRONTIER_PROPERTY)
        return None if stated is None else parse_lsn(stated)

    @property
    def position(self) -> Lsn | None:
        """The mirror's frontier when the snapshot was published, if it is recorded."""
        stated = self.entries.get(FRONTIER_PROPERTY) or self.entries.get(POSITION_PROPERTY)
        return None if stated is None else parse_lsn(stated)

    @property
    def timeline(self) -> int | None:
        """The server's timeline on which the frontier was published, if it is recorded."""
        stated = self.entries.get(TIMELINE_PROPERTY)
        return None if stated is None else int(stated)

    @property
    def copying(self) -> bool:
        """Whether the snapshot is part of a copy or fill, so that the table had its rows at no frontier."""
        return COPYING_PROPERTY in self.entries

    @property
    def archive_cut_line(self) -> str | None:
        """The cut-line of an archive snapshot, a tier value; None for a snapshot of `main`."""
        return self.entries.get(ARCHIVE_CUT_LINE)

    @property
    def seam_metadata(self) -> str | None:
        """The metadata file in which an archive snapshot is the current one; None for a snapshot of `main`."""
        return self.entries.get(SEAM_METADATA)

    @property
    def equality_deletes_since(self) -> int | None:
        """Commit time of the oldest pending equality delete, in milliseconds since 1970 UTC, if it is recorded."""
        since = self.entries.get(PENDING_SINCE)
        return None if since is None else int(since)

    def total(self, name: Total) -> int | None:
        """A total of the snapshot's live files; None if another engine left it out."""
        stated = self.entries.get(name)
        return None if stated is None else int(stated)

    @property
    def changed_partitions(self) -> int:
        """The number of lake partitions with files that the commit added or removed. 0 if it is not recorded."""
        return int(self.entries.get(_CHANGED_PARTITIONS, 0))

    def removed(self, name: Removed) -> int:
        """What the commit removed."""
        return int(self.entries.get(name, 0))

    def get(self, name: str) -> str | None:
        """Any entry; None if the summary lacks it."""
        return self.entries.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self.entries


@dataclass
class FileCounts:
    """Counts of files that a commit adds or removes, or that a snapshot has, as in Iceberg's snapshot summary; sizes in
    bytes."""

    data_files: int = 0
    records: int = 0
    equality_files: int = 0
    equality_deletes: int = 0
    position_files: int = 0
    position_deletes: int = 0
    """Rows of position-delete files and of deletion vectors."""
    vectors: int = 0
    size: int = 0
    partitions: set[PartitionTuple] = field(default_factory=set)
    """The lake partitions of the files."""

    @classmethod
    def of(cls, files: Iterable[WrittenFile]) -> Self:
        """Those of written files."""
        counts = cls()
        counts.add_files(files)
        return counts

    def add_files(self, files: Iterable[WrittenFile]) -> None:
        """Counts written files."""
        for file in files:
            is_vector = file.blob is not None
            self.add(file.content, file.record_count, file.content_bytes, file.partition, is_vector=is_vector)

    def add(
        self, content: int, records: int, size: int, partition: PartitionTuple = (), *, is_vector: bool = False
    ) -> None:
        """Counts one file more. `content`: as in FileContent; `is_vector`: it is a deletion vector."""
        from mirror_pump.lake.format.data_files import FileContent

        self.size += size
        self.partitions.add(partition)
        if content == FileContent.DATA:
            self.data_files += 1
            self.records += records
        elif content == FileContent.EQUALITY_DELETES:
            self.equality_files += 1
            self.equality_deletes += records
        else:
            self.position_files += not is_vector
            self.vectors += is_vector
            self.position_deletes += records

    @property
    def delete_files(self) -> int:
        """Delete files of both kinds, and deletion vectors."""
        return self.equality_files + self.position_files + self.vectors

    def __bool__(self) -> bool:
        return any(getattr(self, member.name) for member in fields(self))


_TOTALS = (
    (Total.DATA_FILES, "data_files"),
    (Total.DELETE_FILES, "delete_files"),
    (Total.RECORDS, "records"),
    (Total.FILES_SIZE, "size"),
    (Total.POSITION_DELETES, "position_deletes"),
    (Total.EQUALITY_DELETES, "equality_deletes"),
)


def operation(added: FileCounts, removed: FileCounts, *, only_rewrites: bool) -> str:
    """Iceberg's name of a commit's operation (spec, snapshots). `only_rewrites`: the commit changes no row.

    Readers of appends may rely on `append`. Engines look for conflicting deletes in `overwrite` and `delete` snapshots
    only, so nothing that adds a delete file may be a `replace`.
    """
    if only_rewrites and not added.delete_files:
        return REPLACE
    if not removed and not added.delete_files:
        return "append"
    return "overwrite" if added.data_files else "delete"


def summarise(
    added: FileCounts,
    removed: FileCounts,
    parent: SnapshotSummary | None,
    extra: Mapping[str, str],
    *,
    only_rewrites: bool = False,
) -> dict[str, str]:
    """The entries of a snapshot's summary: operation, nonzero changes, totals, and `extra`.

    A total that the parent does not have, because another engine left it out, stays unknown. `parent` is None for a
    table's first snapshot. `only_rewrites` tells that the commit changes no row.
    """
    changes = {
        "added-data-files": added.data_files,
        "added-records": added.records,
        "added-delete-files": added.delete_files,
        "added-equality-delete-files": added.equality_files,
        "added-equality-deletes": added.equality_deletes,
        "added-position-delete-files": added.position_files,
        "added-position-deletes": added.position_deletes,
        "added-dvs": added.vectors,
        "added-files-size": added.size,
        "deleted-data-files": removed.data_files,
        "deleted-records": removed.records,
        "removed-delete-files": removed.delete_files,
        "removed-equality-delete-files": removed.equality_files,
        "removed-equality-deletes": removed.equality_deletes,
        "removed-position-delete-files": removed.position_files,
        "removed-position-deletes": removed.position_deletes,
        "removed-dvs": removed.vectors,
        "removed-files-size": removed.size,
    }
    totals = {}
    for name, attribute in _TOTALS:
        before = 0 if parent is None else parent.total(name)
        if before is not None:
            totals[name.value] = before + getattr(added, attribute) - getattr(removed, attribute)
    numbers = {name: value for name, value in changes.items() if value} | totals
    if added or removed:
        numbers[_CHANGED_PARTITIONS] = max(len(added.partitions | removed.partitions), 1)
    return {OPERATION: operation(added, removed, only_rewrites=only_rewrites), **_text(numbers.items()), **extra}


def archive_summary(counts: FileCounts, cut_line: int, seam_at: str, extra: Mapping[str, str]) -> dict[str, str]:
    """The entries of an archive snapshot's summary.

    `counts` are those of the snapshot's live files, `cut_line` is a tier value, `seam_at` the location of the metadata
    file in which the snapshot is the current one.
    """
    totals = _text((name.value, getattr(counts, attribute)) for name, attribute in _TOTALS)
    return {OPERATION: "overwrite", **totals, **extra, ARCHIVE_CUT_LINE: str(cut_line), SEAM_METADATA: seam_at}


def _text(numbers: Iterable[tuple[str, int]]) -> dict[str, str]:
    return {name: str(value) for name, value in numbers}
