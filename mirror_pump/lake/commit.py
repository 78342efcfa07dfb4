"""The row-delta commit: ordered segments and copies born in the past, staged as one snapshot of an Iceberg table.

Staging writes manifests, manifest list and metadata; the table changes only when the caller swaps its pointer to the
new metadata location (`mirror_pump.lake.catalog`), in a transaction of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import orjson
from pyiceberg.manifest import ManifestContent

from mirror_pump.errors import LakeError
from mirror_pump.lake.anchor import anchor_number
from mirror_pump.lake.files import FileContent, WrittenFile, write_data_file
from mirror_pump.lake.manifests import (
    LiveFile,
    Manifest,
    ManifestWriter,
    live_data_files,
    live_equality_deletes,
    read_list,
)
from mirror_pump.lake.metadata import (
    DEFAULT_RETENTION,
    Retention,
    current_schema,
    current_snapshot,
    metadata_directory,
    new_metadata,
    new_snapshot_id,
    next_location,
    read_metadata,
    snapshot_of,
    with_snapshot,
)
from mirror_pump.lake.schema import LakeSchema
from mirror_pump.lake.storage import StorageOptions, write_all
from mirror_pump.lake.summary import Tally, summarise
from mirror_pump.model import SequenceNumber, SnapshotId


@dataclass(frozen=True)
class SegmentFiles:
    """The files of one segment of the stream. A later segment's deletes reach the rows of all earlier ones."""

    data: tuple[WrittenFile, ...]
    deletes: tuple[WrittenFile, ...]


@dataclass(frozen=True)
class BornFile:
    """A copied data file that takes its place in the order at `sequence_number` (s0), however late it lands."""

    file: WrittenFile
    sequence_number: int


@dataclass(frozen=True)
class RowDelta:
    """What one commit does to one table, in order."""

    segments: tuple[SegmentFiles, ...]
    born: tuple[BornFile, ...] = ()
    replace: bool = False
    """First remove every file that the table has (TRUNCATE, or a copy that begins again), in the same snapshot."""
    remove_born: int | None = None
    """First remove the data files of this data sequence number: a copy begins again, its former chunks go."""
    summary: Mapping[str, str] = field(default_factory=dict)
    """Added to the snapshot's summary: F, for instance."""


@dataclass(frozen=True)
class StagedCommit:
    """A commit whose files are durable and which nobody sees until the table's pointer moves to `new_location`."""

    table: LakeTable
    """The table after the commit."""
    old_location: str | None
    """The pointer's value that the commit builds on; None for a new table."""
    new_location: str
    snapshot_id: SnapshotId
    sequence_number: SequenceNumber
    files: tuple[str, ...]
    """Files written by staging: to be removed if the publish is known to have failed, and only then."""


@dataclass(frozen=True)
class LakeTable:
    """An Iceberg table as of one metadata file. Immutable: staging returns the next one.

    Holds everything that the next commit needs, so that a commit reads nothing back but small manifests it merges.
    """

    metadata: Mapping[str, Any]
    """The metadata document, as parsed JSON. Not to be changed."""
    metadata_location: str
    storage: StorageOptions
    manifests: tuple[Manifest, ...]
    """Of the current snapshot."""
    retention: Retention = DEFAULT_RETENTION

    @classmethod
    def create(
        cls, schema: LakeSchema, location: str, storage: StorageOptions, properties: Mapping[str, str], now_ms: int
    ) -> StagedCommit:
        """A new table, unpartitioned, v2, with an empty start snapshot; its sequence number is s0.

        Raises LakeError if the storage fails.
        """
        empty = cls(new_metadata(schema, location.rstrip("/"), properties, now_ms), "", storage, ())
        return empty._stage(RowDelta(()), now_ms, frozenset(), None)

    @classmethod
    def load(cls, metadata_location: str, storage: StorageOptions) -> LakeTable:
        """The table that a metadata file of any engine describes.

        Raises LakeError if a file is missing or damaged, or the table is not of format version 2.
        """
        metadata = read_metadata(metadata_location, storage)
        snapshot = current_snapshot(metadata)
        manifests = read_list(snapshot["manifest-list"], storage) if snapshot else ()
        return cls(metadata, metadata_location, storage, manifests)

    def stage(self, delta: RowDelta, now_ms: int, keep: frozenset[int] = frozenset()) -> StagedCommit:
        """Writes the metadata of one snapshot on top of this state.

        Segment i's files get the data sequence number base+1+i, the snapshot base+K, where base is the table's last
        sequence number and K the number of segments, at least 1. Snapshots in `keep` (pinned ones) stay in the
        history. `now_ms` is milliseconds since 1970 UTC; a snapshot is never dated before its parent.

        Raises LakeError if the storage fails, ValueError for a born file that is no data file or not of the past.
        """
        return self._stage(delta, now_ms, keep, self.metadata_location)

    def _stage(self, delta: RowDelta, now_ms: int, keep: frozenset[int], old_location: str | None) -> StagedCommit:
        base = int(self.metadata["last-sequence-number"])
        sequence_number = base + max(len(delta.segments), 1)
        for born in delta.born:
            if born.file.content is not FileContent.DATA or born.sequence_number > sequence_number:
                raise ValueError(
                    f"{born.file.path} cannot be born at {born.sequence_number} in snapshot {sequence_number}"
                )
        data = [(born.file, born.sequence_number) for born in delta.born]
        deletes: list[tuple[WrittenFile, int]] = []
        for number, segment in enumerate(delta.segments, base + 1):
            data.extend((file, number) for file in segment.data)
            deletes.extend((file, number) for file in segment.deletes)
        _check_contents(data, deletes)
        anchors: tuple[WrittenFile, ...] = ()
        if (anchored_at := anchor_number(data, deletes)) is not None:
            anchors = (write_data_file(self.schema.arrow.empty_table(), self.schema, self.location, self.storage),)
            data.extend((anchor, anchored_at) for anchor in anchors)

        snapshot_id = new_snapshot_id(self.metadata)
        writer = ManifestWriter(self.metadata, metadata_directory(self.metadata), snapshot_id, sequence_number)
        removed = Tally()
        if delta.replace or delta.remove_born is not None:
            born_at = None if delta.replace else delta.remove_born
            carried, removed = writer.remove(self.manifests, self.storage, born_at)
        else:
            carried = writer.merge(self.manifests, self.storage)
        new = [writer.add(ManifestContent.DATA, data), writer.add(ManifestContent.DELETES, deletes)]
        manifests = (*(one for one in new if one is not None), *carried)

        added = Tally()
        for file, _ in (*data, *deletes):
            added.count(file.content, file.record_count, file.size_bytes)
        parent = current_snapshot(self.metadata)
        snapshot: dict[str, Any] = {
            "sequence-number": sequence_number,
            "snapshot-id": snapshot_id,
            "timestamp-ms": max(now_ms, int(self.metadata["last-updated-ms"])),
            "summary": summarise(added, removed, parent["summary"] if parent else None, delta.summary),
            "manifest-list": writer.list(manifests, parent["snapshot-id"] if parent else None),
            "schema-id": self.metadata["current-schema-id"],
        }
        if parent:
            snapshot["parent-snapshot-id"] = parent["snapshot-id"]
        metadata = with_snapshot(self.metadata, snapshot, old_location, keep, self.retention)
        new_location = next_location(self.metadata, old_location)
        files = [*writer.files, (new_location, orjson.dumps(metadata))]
        write_all(files, self.storage)
        return StagedCommit(
            table=LakeTable(metadata, new_location, self.storage, manifests, self.retention),
            old_location=old_location,
            new_location=new_location,
            snapshot_id=SnapshotId(snapshot_id),
            sequence_number=SequenceNumber(sequence_number),
            files=(*(location for location, _ in files), *(anchor.path for anchor in anchors)),
        )

    @property
    def location(self) -> str:
        """Root URI of the table's files."""
        return str(self.metadata["location"])

    @cached_property
    def schema(self) -> LakeSchema:
        """The current schema. LakeError if another engine gave the table a type that the mirror does not write."""
        return LakeSchema.from_iceberg_json(current_schema(self.metadata))

    @property
    def snapshot_id(self) -> SnapshotId:
        """The current snapshot. LakeError if the table has none."""
        return SnapshotId(self._current["snapshot-id"])

    @property
    def sequence_number(self) -> SequenceNumber:
        """The current snapshot's sequence number."""
        return SequenceNumber(self._current["sequence-number"])

    def live_data_files(self) -> list[LiveFile]:
        """The current snapshot's data files; reads its manifests."""
        return live_data_files(self.manifests, self.storage)

    def live_equality_deletes(self) -> list[LiveFile]:
        """The current snapshot's equality-delete files; reads its manifests."""
        return live_equality_deletes(self.manifests, self.storage)

    @property
    def data_files(self) -> int:
        """Live data files."""
        return self._total("total-data-files", 0, rows=False)

    @property
    def records(self) -> int:
        """Rows in live data files, those that deletes hide included."""
        return self._total("total-records", 0, rows=True)

    @property
    def delete_files(self) -> int:
        """Live delete files of both kinds."""
        return self._total("total-delete-files", 1, rows=False)

    @property
    def equality_deletes(self) -> int:
        """Rows in live equality-delete files."""
        return self._total("total-equality-deletes", 1, rows=True)

    def has_snapshot(self, snapshot_id: int) -> bool:
        """Whether a snapshot is still in the history."""
        return snapshot_of(self.metadata, snapshot_id) is not None

    @property
    def _current(self) -> dict[str, Any]:
        snapshot = current_snapshot(self.metadata)
        if snapshot is None:
            raise LakeError(f"{self.metadata_location} has no snapshot", "copy the table again")
        return snapshot

    def _total(self, name: str, content: int, *, rows: bool) -> int:
        """A total from the summary, or counted from the manifest list where another engine left it out."""
        stated = self._current.get("summary", {}).get(name)
        if stated is not None:
            return int(stated)
        counted = [one.rows if rows else one.files for one in self.manifests if one.content == content]
        return sum(added + existing for added, existing, _ in counted)


def _check_contents(data: list[tuple[WrittenFile, int]], deletes: list[tuple[WrittenFile, int]]) -> None:
    for file, _ in data:
        if file.content is not FileContent.DATA:
            raise ValueError(f"{file.path} holds deletes, not data")
    for file, _ in deletes:
        if file.content is FileContent.DATA:
            raise ValueError(f"{file.path} holds data, not deletes")
