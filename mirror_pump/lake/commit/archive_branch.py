"""The archive branch (`cold`) of a table with heap retention: a snapshot with only the rows below the cut-line.

Readers that follow the seam protocol take the rows below the cut-line from the archive snapshot, and some scan it
without a filter. So it must not hold rows at or above the cut-line, which they read from the heap. No data file is
rewritten for that. The archive snapshot consists of

- the data files of main that may hold a row below the cut-line, each with its data sequence number in main;
- the delete files of main, except those that concern only rows at or above the cut-line (equality deletes by the bounds
  of the key, position deletes that refer to a single data file which is not in the archive snapshot). So of the rows
  below the cut-line, exactly those are hidden that main hides: both kinds of deletes depend on sequence numbers,
  positions and keys, none of which changes;
- one more position-delete file (of a partitioned table, for each lake partition), for the rows at or above the
  cut-line in files with rows on both sides. It hides nothing else. Rows that main hides may be hidden twice. In a table
  of format version 3, files with rows on both sides have deletion vectors instead, in the place of main's, whose rows
  these have too: a file has at most one in a snapshot.

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

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from pyiceberg.manifest import ManifestContent

from mirror_pump.lake.commit.row_deletes import TouchedFile, row_deletes
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.cutline import CutLine, Division, Side, divide
from mirror_pump.lake.contents.file_listing import Listing, LiveFile
from mirror_pump.lake.document.metadata_files import (
    next_location,
    seam_directory,
    seam_location,
)
from mirror_pump.lake.document.next_metadata import seam_metadata, with_archive_snapshot
from mirror_pump.lake.document.snapshot_summary import FileCounts, archive_summary
from mirror_pump.lake.format.data_files import FileContent, WrittenFile
from mirror_pump.lake.format.deletion_vectors import DeletionVector, encoded_deletion_vectors
from mirror_pump.lake.format.partitioning import by_partition
from mirror_pump.lake.format.position_deletes import PATH_ID, write_position_deletes
from mirror_pump.lake.manifests.manifest_list import Manifest
from mirror_pump.lake.manifests.manifests import ManifestWriter
from mirror_pump.lake.storage import StagedFiles, StorageOptions, make_directory, write_all
from mirror_pump.model import EVERYTHING_IN_HEAP, SequenceNumber, SnapshotId


@dataclass(frozen=True)
class StagedArchive:
    """A new published snapshot. Its files are durable, and no reader sees it before the catalog names it."""

    table: LakeTable
    """The table with the new snapshot. The table's current snapshot does not change."""
    new_location: str
    """The table's metadata file."""
    snapshot_id: SnapshotId
    """The published snapshot."""
    sequence_number: SequenceNumber
    seam_location: str
    """The metadata file in which the archive snapshot is the current snapshot."""
    files: tuple[str, ...]
    """URIs of the files that staging wrote. They may be removed only if the publish certainly failed."""


class ArchiveBranch:
    """Refreshes the published snapshot of one table, and caches what it read for that. Only one thread at a time may
    use it."""

    def __init__(self, storage: StorageOptions) -> None:
        self._storage = storage
        self._line: CutLine | None = None
        self._listing: Listing | None = None
        self._sides: Mapping[str, Side] = {}
        """By URI of a data file, on which side of this cut-line its rows are."""
        self._hiding: dict[str, WrittenFile] = {}
        """By URI of a data file, the position-delete file that hides its rows at or above the cut-line. Several data
        files may share one."""
        self._rows_above: dict[str, DeletionVector] = {}
        """With deletion vectors: by URI of a data file with rows on both sides, those at or above the cut-line."""

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
        try:
            with StagedFiles(self._storage) as written:
                return self._written(table, line, now_ms, keep, summary, written)
        except BaseException:
            # The cache may refer to files that were just removed.
            self.forget()
            raise

    def _written(
        self,
        table: LakeTable,
        line: CutLine | None,
        now_ms: int,
        keep: frozenset[int],
        summary: Mapping[str, str] | None,
        written: StagedFiles,
    ) -> StagedArchive:
        """Stages the published snapshot. `written` owns each file as soon as it exists."""
        metadata = table.metadata
        writer = ManifestWriter(metadata)
        seam_at = seam_location(metadata, writer.sequence_number)
        parent = metadata.archive_snapshot
        if parent is None or parent.summary.seam_metadata is None:
            # The table's first published snapshot. A directory that is missing later was removed by another program.
            make_directory(seam_directory(metadata), self._storage)
        manifests, counts, vectors = self._content(table, line, writer, written)
        cut = line.cut if line is not None else EVERYTHING_IN_HEAP
        content = archive_summary(counts, cut, seam_at, summary or {})
        snapshot, _ = writer.snapshot(parent, manifests, content, max(now_ms, metadata.last_updated_ms))
        after = with_archive_snapshot(metadata, snapshot, table.metadata_location, keep, table.retention)
        location = next_location(metadata, table.metadata_location)
        files = [
            *vectors,
            *writer.files,
            (seam_at, seam_metadata(after, snapshot).to_json()),
            (location, after.to_json()),
        ]
        write_all(files, self._storage)
        return StagedArchive(
            table=replace(table, metadata=after, metadata_location=location),
            new_location=location,
            snapshot_id=SnapshotId(writer.snapshot_id),
            sequence_number=SequenceNumber(writer.sequence_number),
            seam_location=seam_at,
            files=(*(location for location, _ in files), *written.locations),
        )

    def forget(self) -> None:
        """Forget files that were removed, because the last staged snapshot certainly was not published."""
        self._hiding.clear()

    def _content(
        self, table: LakeTable, line: CutLine | None, writer: ManifestWriter, written: StagedFiles
    ) -> tuple[list[Manifest], FileCounts, tuple[tuple[str, bytes], ...]]:
        """The published snapshot's manifests, the counts of their files, and URI and content of the file that has its
        own deletion vectors, which is still to be written. `written` owns new position-delete files."""
        counts = FileCounts()
        if line is None:
            return [], counts, ()
        if self._line != line or self._listing is None:
            self._line, self._listing = line, Listing(self._storage, (line.field_id, PATH_ID))
            self._sides, self._hiding, self._rows_above = {}, {}, {}
        has_vectors = table.has_vectors
        # A file that was found to have rows on both sides is read again unless it is certain what hides these.
        certain = self._rows_above.keys() if has_vectors else self._hiding.keys()
        sides = {path: side for path, side in self._sides.items() if side is not Side.BOTH or path in certain}
        division = divide(table.manifests, line, self._listing, self._storage, sides)
        above = division.above
        gone = {
            manifest.path: {file.path for file in division.files.get(manifest.path, ()) if _above(file, line, above)}
            for manifest in table.manifests
        }
        if has_vectors:
            return self._with_vectors(table, division, gone, writer, counts)
        kept = writer.without(table.manifests, self._storage, gone)
        for path, files in division.files.items():
            for live in files:
                if live.path not in gone[path]:
                    counts.add(live.content, live.records, live.size_bytes)
        self._sides = division.sides
        self._hiding = {path: file for path, file in self._hiding.items() if path in division.sides}
        for partition, hidden in by_partition(division.hidden, division.partitions):
            file = write_position_deletes(hidden, table.location, self._storage, partition)
            written.own(file.path)
            self._hiding |= dict.fromkeys(hidden, file)
        hiding = list({file.path: file for file in self._hiding.values()}.values())
        new = {ManifestContent.DELETES: [(file, writer.sequence_number) for file in hiding]}
        added = writer.next((), new, self._storage)
        for file in hiding:
            counts.add(file.content, file.record_count, file.size_bytes)
        return [*added, *kept], counts, ()

    def _with_vectors(
        self,
        table: LakeTable,
        division: Division,
        gone: Mapping[str, Collection[str]],
        writer: ManifestWriter,
        counts: FileCounts,
    ) -> tuple[list[Manifest], FileCounts, tuple[tuple[str, bytes], ...]]:
        """As `_content`. `gone`: URIs of the files of main that the snapshot does not have, by manifest. For vectors,
        which share files, that is decided here."""
        self._sides = division.sides
        rows_above = self._rows_above | {path: DeletionVector.of(rows) for path, rows in division.hidden.items()}
        self._rows_above = {path: vector for path, vector in rows_above.items() if path in division.sides}
        touched = [
            TouchedFile(
                file.path,
                file.sequence_number,
                file.records,
                file.partition,
                file.spec_id,
                self._rows_above[file.path].positions,
            )
            for files in division.files.values()
            for file in files
            if file.content is FileContent.DATA and file.path in self._rows_above
        ]
        deletes = row_deletes(table.manifests, touched, division.above, self._storage, cache=table.cache)
        lost_vectors: dict[str, set[tuple[str, int]]] = {}
        lost: dict[str, set[str]] = {}
        for manifest, files in division.files.items():
            for file in files:
                if file.vector is not None:
                    place = file.path, file.vector.place.offset
                    if place in deletes.superseded:
                        lost_vectors.setdefault(manifest, set()).add(place)
                    else:
                        counts.add(file.content, file.records, file.vector.place.size, is_vector=True)
                elif (
                    file.path in gone[manifest]
                    or file.path in deletes.emptied
                    or (file.path, None) in deletes.superseded
                ):
                    lost.setdefault(manifest, set()).add(file.path)
                else:
                    counts.add(file.content, file.records, file.size_bytes)
        kept = writer.without(table.manifests, self._storage, lost, lost_vectors)
        if not deletes.vectors:
            return kept, counts, ()
        vectors, puffin = encoded_deletion_vectors(deletes.vectors, table.location)
        for vector in vectors:
            counts.add(vector.content, vector.record_count, vector.content_bytes, is_vector=True)
        new = {ManifestContent.DELETES: [(vector, writer.sequence_number) for vector in vectors]}
        return [*writer.next((), new, self._storage), *kept], counts, (puffin,)


def _above(file: LiveFile, line: CutLine, above: frozenset[str]) -> bool:
    """Whether a file concerns no row below the cut-line. `above`: URIs of the data files that have no such row."""
    if file.content is FileContent.EQUALITY_DELETES:
        return line.field_id in file.equality_ids and line.side(file) is Side.AT_OR_ABOVE
    return (file.about if file.content is FileContent.POSITION_DELETES else file.path) in above
