"""Writes a metadata file in which a table has only the rows of an interval of one of its columns.

Invariant: the current and only snapshot of that metadata has exactly the rows of the given snapshot that lie in the
interval, as long as the files of both are there. Data files that lie inside by their bounds are named as they are; of
those that lie across one of its ends the rows inside are copied (mirror_pump.lake.contents.file_slices); all others are
left out. Deletes would change rows that are copied, so a table that has some is refused.

Everything that is written is in one directory, and nothing there is written twice under the same name but the metadata
file, which refers to files of its own each time. So two processes may make the same interval at the same time: both
metadata files show the same rows, and either may stay.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pyiceberg.manifest import ManifestContent

from mirror_pump.errors import ForeignTable
from mirror_pump.lake.commit.new_snapshot import AddedFiles, NewSnapshot, SequencedFile
from mirror_pump.lake.contents.file_slices import Interval, write_slice
from mirror_pump.lake.document.next_metadata import moment_metadata
from mirror_pump.lake.document.snapshot import Snapshot
from mirror_pump.lake.document.snapshot_summary import FileCounts
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.manifests.manifest_entries import StoredEntry
from mirror_pump.lake.manifests.manifest_files import stored_of
from mirror_pump.lake.manifests.manifest_list import Manifest, read_list
from mirror_pump.lake.manifests.manifests import ManifestWriter, Removal
from mirror_pump.lake.storage import StagedFiles, StorageOptions, join, make_directories, write_all, write_bytes

_PARALLEL_SLICES = 4
"""Slices that are written at once. There are two of most intervals, one at each end."""


def write_interval(
    metadata: TableMetadata,
    snapshot: Snapshot,
    interval: Interval,
    location: str,
    summary: Mapping[str, str],
    storage: StorageOptions,
) -> TableMetadata:
    """Writes the metadata file at `location`, and what it refers to into the same directory. Returns its content.

    `metadata`: a document of the table that has the snapshot. `summary`: entries to add to the new snapshot's summary.
    Raises ForeignTable for a snapshot with deletes, and LakeError: then nothing refers to what was written.
    """
    directory = location.rpartition("/")[0]
    make_directories([directory], storage)
    base = moment_metadata(metadata, snapshot)
    writer = ManifestWriter(base, sequence_number=snapshot.sequence_number, directory=directory)
    # DuckDB passes over snapshots that are younger than its transaction. This one may be made in the middle of it.
    oldest_ms = min(entry.timestamp_ms for entry in metadata.snapshots)
    with StagedFiles(storage) as written:
        made = _IntervalSnapshot(
            writer, storage, oldest_ms, summary, read_list(snapshot, storage), interval, directory, written
        ).make()
        write_all(made.files, storage)
    # If this fails, the file may be there: what it refers to stays.
    write_bytes(location, made.metadata.to_json(), storage)
    return made.metadata


@dataclass
class _IntervalSnapshot(NewSnapshot):
    """The snapshot of the rows in the interval."""

    table_manifests: Sequence[Manifest]
    interval: Interval
    directory: str
    written: StagedFiles
    """Owns the slices."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.parent = None
        self.timestamp_ms = self.now_ms
        self.excluded: dict[str, set[str]] = {}
        """URIs of the files that it does not have, by manifest."""

    def added(self) -> AddedFiles:
        """Slices of the files that lie across an end of the interval, each with its source's data sequence number."""
        live = [manifest for manifest in self.table_manifests if manifest.live_files]
        if any(manifest.content == ManifestContent.DELETES for manifest in live):
            raise ForeignTable(
                f"{self.metadata.location} has deletes, and changes are only ever added",
                "another engine wrote to it: unregister the table and register it again, with a new feed",
            )
        across: list[StoredEntry] = []
        for manifest in live:
            for entry in stored_of(manifest, self.storage):
                inside = self.interval.holds(entry)
                if inside:
                    self.counts.add(entry.content, entry.records, entry.size_bytes, entry.partition)
                    continue
                self.excluded.setdefault(manifest.path, set()).add(entry.path)
                if inside is None:
                    across.append(entry)
        with ThreadPoolExecutor(_PARALLEL_SLICES, thread_name_prefix="slice") as pool:
            return AddedFiles([file for file in pool.map(self._slice, across) if file is not None])

    def _slice(self, entry: StoredEntry) -> SequencedFile | None:
        path = join(self.directory, f"{uuid.uuid4().hex}.parquet")
        file = write_slice(entry, self.interval, self.metadata.current_schema, path, self.storage)
        if file is None:
            return None
        self.written.add(path)
        return file, entry.sequence_number

    def removed(self) -> Removal:
        return Removal(self.writer.without(self.table_manifests, self.storage, self.excluded), [], FileCounts())

    def named(self, snapshot: Snapshot) -> TableMetadata:
        return moment_metadata(self.metadata, snapshot)
