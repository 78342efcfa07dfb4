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

from pyiceberg.manifest import ManifestContent

from mirror_pump.errors import ForeignTable
from mirror_pump.lake.contents.file_slices import Interval, write_slice
from mirror_pump.lake.document.next_metadata import moment_metadata
from mirror_pump.lake.document.snapshot import Snapshot
from mirror_pump.lake.document.snapshot_summary import FileCounts, summarise
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.format.data_files import WrittenFile
from mirror_pump.lake.manifests.manifest_entries import StoredEntry
from mirror_pump.lake.manifests.manifest_files import stored_of
from mirror_pump.lake.manifests.manifest_list import Manifest, read_list
from mirror_pump.lake.manifests.manifests import ManifestWriter
from mirror_pump.lake.storage import StagedFiles, StorageOptions, join, make_directory, write_all, write_bytes

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
    make_directory(directory, storage)
    base = moment_metadata(metadata, snapshot)
    entries = _entries(base, read_list(snapshot, storage), storage)
    counts = FileCounts()
    excluded: dict[str, set[str]] = {}
    across: list[StoredEntry] = []
    for manifest, stored in entries:
        for entry in stored:
            inside = interval.holds(entry)
            if inside:
                counts.add(entry.content, entry.records, entry.size_bytes, entry.partition)
                continue
            excluded.setdefault(manifest.path, set()).add(entry.path)
            if inside is None:
                across.append(entry)
    with StagedFiles(storage) as written:
        slices = _slices(across, interval, directory, written, storage)
        for file, _ in slices:
            counts.add(file.content, file.record_count, file.size_bytes, file.partition)
        writer = ManifestWriter(base, sequence_number=snapshot.sequence_number, directory=directory)
        kept = writer.without([manifest for manifest, _ in entries], storage, excluded)
        manifests = writer.next(kept, {ManifestContent.DATA: slices}, storage)
        entries_of_summary = summarise(counts, FileCounts(), None, summary)
        # DuckDB passes over snapshots that are younger than its transaction. This one may be made in the middle of it.
        oldest_ms = min(entry.timestamp_ms for entry in metadata.snapshots)
        made, _ = writer.snapshot(None, manifests, entries_of_summary, oldest_ms)
        result = moment_metadata(base, made)
        write_all(writer.files, storage)
    # If this fails, the file may be there: what it refers to stays.
    write_bytes(location, result.to_json(), storage)
    return result


def _entries(
    metadata: TableMetadata, manifests: Sequence[Manifest], storage: StorageOptions
) -> list[tuple[Manifest, list[StoredEntry]]]:
    """The manifests and their data files."""
    live = [manifest for manifest in manifests if manifest.live_files]
    if any(manifest.content == ManifestContent.DELETES for manifest in live):
        raise ForeignTable(
            f"{metadata.location} has deletes, and changes are only ever added",
            "another engine wrote to it: unregister the table and register it again, with a new feed",
        )
    return [(manifest, stored_of(manifest, storage)) for manifest in live]


def _slices(
    across: Sequence[StoredEntry], interval: Interval, directory: str, written: StagedFiles, storage: StorageOptions
) -> list[tuple[WrittenFile, int]]:
    """The rows inside of files that lie across an end of the interval, each slice with its data sequence number."""

    def write(entry: StoredEntry) -> tuple[WrittenFile, int] | None:
        path = join(directory, f"{uuid.uuid4().hex}.parquet")
        file = write_slice(entry, interval, path, storage)
        if file is None:
            return None
        written.own(path)
        return file, entry.sequence_number

    with ThreadPoolExecutor(_PARALLEL_SLICES, thread_name_prefix="slice") as pool:
        return [file for file in pool.map(write, across) if file is not None]
