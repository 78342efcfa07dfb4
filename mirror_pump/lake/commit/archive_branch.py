"""The archive branch (`cold`) of a table with heap retention: a snapshot with only the rows below the cut-line.

Readers that follow the seam protocol take the rows below the cut-line from the archive snapshot, and some scan it
without a filter. So it must not hold rows at or above the cut-line, which they read from the heap. No data file is
rewritten for that. The archive snapshot consists of

- the data files of main that may hold a row below the cut-line, each with its data sequence number in main;
- the delete files of main, except those that concern only rows at or above the cut-line (equality deletes by the bounds
  of the key, position deletes that refer to a single data file which is not in the archive snapshot). So of the rows
  below the cut-line, exactly those are hidden that main hides: both kinds of deletes depend on sequence numbers,
  positions and keys, none of which changes;
- deletes of its own, in the table's form (`mirror_pump.lake.deletes`), for the rows at or above the cut-line in files
  with rows on both sides. They hide nothing else.

Invariant: the archive snapshot holds the rows of main that are below the cut-line, each once. Below the cut-line, main
changes only by folds, since stream changes there are discarded while they are decoded. So the archive snapshot stays
equal to these rows until the next fold or advance of the cut-line, and both refresh it in the same publish. So does the
publish that completes a fill of new columns, which gives rows below the cut-line values in them. In between, the files
of main may be merged, converted or compacted. That changes no row, and the archive snapshot keeps the files that it
names, because it is part of the table's history.

The archive snapshot is the head of a branch, which protects it from every expiry. `cutline.lake_props` names a metadata
file of its own (the seam metadata), in which the archive snapshot is the current and only snapshot, for engines that
scan a metadata file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from mirror_pump.lake.commit.new_snapshot import AddedFiles, NewSnapshot
from mirror_pump.lake.commit.row_delta import LakeTable, StagedCommit
from mirror_pump.lake.contents.cutline import CutLine, Division, Side, divide
from mirror_pump.lake.contents.file_listing import Listing, LiveFile
from mirror_pump.lake.deletes.delete_form import PresentFiles
from mirror_pump.lake.deletes.hidden_rows import NO_ROWS, HiddenRows
from mirror_pump.lake.deletes.row_deletes import RowDeletes
from mirror_pump.lake.document.metadata_files import seam_directory, seam_location, write_metadata
from mirror_pump.lake.document.next_metadata import seam_metadata, with_archive_snapshot
from mirror_pump.lake.document.snapshot import Snapshot
from mirror_pump.lake.document.snapshot_summary import FileCounts, archive_summary
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.format.data_files import FileContent, WrittenFile
from mirror_pump.lake.format.position_deletes import PATH_ID
from mirror_pump.lake.manifests.manifests import ManifestWriter, Removal
from mirror_pump.lake.storage import StorageOptions, make_directories
from mirror_pump.model import EVERYTHING_IN_HEAP

_LeftOut: TypeAlias = tuple[Mapping[str, Collection[str]], Mapping[str, Collection[tuple[str, int]]]]
"""Files and vectors of main, as of ManifestWriter.without."""


@dataclass(frozen=True)
class StagedArchive(StagedCommit):
    """A new published snapshot. The current snapshot of its table does not change."""

    seam_location: str
    """The metadata file in which the archive snapshot is the current snapshot."""


class ArchiveBranch:
    """Refreshes the published snapshot of one table, and caches what it read for that. Only one thread at a time may
    use it."""

    def __init__(self, storage: StorageOptions) -> None:
        self._storage = storage
        self._line: CutLine | None = None
        self._listing: Listing | None = None
        self._sides: Mapping[str, Side] = {}
        """By URI of a data file, on which side of this cut-line its rows are."""
        self._rows_above = NO_ROWS
        """By URI of a data file with rows on both sides, those at or above the cut-line."""

    def stage(
        self,
        table: LakeTable,
        line: CutLine | None,
        now_ms: int,
        keep: frozenset[int] = frozenset(),
        summary: Mapping[str, str] | None = None,
    ) -> StagedArchive:
        """Writes the published snapshot for the table's current snapshot. If `line` is None, no row is below the
        cut-line, and the published snapshot is empty.

        `now_ms` is milliseconds since 1970 UTC. Snapshots in `keep` stay in the history. `summary` is added to the
        snapshot's summary. Raises LakeError if the storage fails. Leaves no file behind after any error.
        """
        parent = table.metadata.archive_snapshot
        if parent is None or parent.summary.seam_metadata is None:
            # The table's first published snapshot. A directory that is missing later was removed by another program.
            make_directories([seam_directory(table.metadata)], self._storage)
        writer = ManifestWriter(table.metadata)
        archive = _ArchiveSnapshot(writer, self._storage, now_ms, summary or {}, self, table, line, keep)
        made = archive.make()
        location = write_metadata(made.metadata, table.metadata_location, self._storage, made.files)
        return StagedArchive(
            table=replace(table, metadata=made.metadata, metadata_location=location),
            old_location=table.metadata_location,
            new_location=location,
            snapshot_id=made.snapshot.snapshot_id,
            sequence_number=made.snapshot.sequence_number,
            files=(*made.locations, location),
            seam_location=archive.seam_location,
        )

    def deletes_of(self, snapshot: _ArchiveSnapshot, table: LakeTable, line: CutLine) -> Sequence[WrittenFile]:
        """The snapshot's own deletes. Tells it what it leaves out of the table, and counts what it has."""
        if self._line != line or self._listing is None:
            self._line, self._listing = line, Listing(self._storage, (line.field_id, PATH_ID))
            self._sides, self._rows_above = {}, NO_ROWS
        # A file that was found to have rows on both sides is read again unless these are in memory.
        sides = {path: side for path, side in self._sides.items() if side is not Side.BOTH or path in self._rows_above}
        division = divide(table.manifests, line, self._listing, self._storage, sides)
        self._sides = division.sides
        self._rows_above = self._rows_above.union(HiddenRows.of(division.hidden)).of_files(division.sides.keys())
        divided = [
            file
            for files in division.files.values()
            for file in files
            if file.content is FileContent.DATA and file.path in self._rows_above
        ]
        above = division.above
        gone = {
            manifest.path: {file.path for file in division.files.get(manifest.path, ()) if _above(file, line, above)}
            for manifest in table.manifests
        }
        state = PresentFiles(table.manifests, table.location, self._storage, table.cache)
        hiding = table.deletes.of_archive(state, divided, self._rows_above, above)
        snapshot.left_out = _left_out(division, gone, hiding.deletes, snapshot.counts)
        snapshot.files += hiding.contents
        return hiding.files


def _left_out(
    division: Division, gone: Mapping[str, Collection[str]], deletes: RowDeletes, counts: FileCounts
) -> _LeftOut:
    """What the published snapshot does not have. Counts the others."""
    files_left_out: dict[str, set[str]] = defaultdict(set)
    vectors_left_out: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for manifest, files in division.files.items():
        excluded = deletes.emptied.union(gone[manifest])
        for file in files:
            if file.vector is not None and (place := (file.path, file.vector.place.offset)) in deletes.superseded:
                vectors_left_out[manifest].add(place)
            elif file.vector is not None:
                counts.add(file.content, file.records, file.vector.place.size, is_vector=True)
            elif file.path in excluded or (file.path, None) in deletes.superseded:
                files_left_out[manifest].add(file.path)
            else:
                counts.add(file.content, file.records, file.size_bytes)
    return files_left_out, vectors_left_out


@dataclass
class _ArchiveSnapshot(NewSnapshot):
    branch: ArchiveBranch
    table: LakeTable
    line: CutLine | None
    keep: frozenset[int]
    left_out: _LeftOut | None = None
    """None: all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.parent = self.metadata.archive_snapshot
        self.seam_location = seam_location(self.metadata, self.writer.sequence_number)

    def added(self) -> AddedFiles:
        deletes = () if self.line is None else self.branch.deletes_of(self, self.table, self.line)
        return AddedFiles(positions=[(file, self.writer.sequence_number) for file in deletes])

    def removed(self) -> Removal:
        left = []
        if self.left_out is not None:
            left = self.writer.without(self.table.manifests, self.storage, *self.left_out)
        return Removal([], left, FileCounts())

    def summary(self) -> dict[str, str]:
        cut = EVERYTHING_IN_HEAP if self.line is None else self.line.cut
        return archive_summary(self.counts, cut, self.seam_location, self.entries)

    def named(self, snapshot: Snapshot) -> TableMetadata:
        location, retention = self.table.metadata_location, self.table.retention
        metadata = with_archive_snapshot(self.metadata, snapshot, location, self.keep, retention)
        self.files.append((self.seam_location, seam_metadata(metadata, snapshot).to_json()))
        return metadata


def _above(file: LiveFile, line: CutLine, above: frozenset[str]) -> bool:
    """Whether a file concerns no row below the cut-line. `above`: URIs of the data files that have no such row."""
    if file.content is FileContent.EQUALITY_DELETES:
        return line.field_id in file.equality_ids and line.side(file) is Side.AT_OR_ABOVE
    return (file.about if file.content is FileContent.POSITION_DELETES else file.path) in above
