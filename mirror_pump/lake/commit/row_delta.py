"""The row-delta commit: ordered segments and copies born in the past, staged as one snapshot of an Iceberg table.

Staging writes manifests, manifest list and metadata; the table changes only when the caller swaps its pointer to the
new metadata location (`mirror_pump.lake.commit.catalog`), in a transaction of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import orjson
from pyiceberg.manifest import ManifestContent

from mirror_pump.errors import LakeError
from mirror_pump.lake.commit.concurrent_rewrites import needed_manifests, needed_snapshots, placeholder_number
from mirror_pump.lake.commit.file_rewrite import FileRewrite, deletes_moved
from mirror_pump.lake.commit.schema_evolution import with_schema
from mirror_pump.lake.contents.cutline import CutLine, Division, divide
from mirror_pump.lake.contents.file_listing import Listing, LiveFile, live_data_files, live_equality_deletes
from mirror_pump.lake.format.data_files import FileContent, WrittenFile, write_data_file
from mirror_pump.lake.format.manifest_list import Manifest, read_list
from mirror_pump.lake.format.manifests import ManifestWriter, Removal
from mirror_pump.lake.format.metadata import (
    COLD,
    DEFAULT_RETENTION,
    HistoryRetention,
    current_schema,
    current_snapshot,
    metadata_directory,
    new_metadata,
    new_snapshot_id,
    next_location,
    read_metadata,
    snapshot_of,
    with_branch,
    with_snapshot,
)
from mirror_pump.lake.format.position_deletes import write_position_deletes
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.format.snapshot_summary import (
    REPLACE,
    FileTally,
    live_rows,
    pending_after,
    pending_since,
    snapshot_stats,
    summarise,
)
from mirror_pump.lake.storage import StagedFiles, StorageOptions, write_all
from mirror_pump.model import SequenceNumber, SnapshotId


@dataclass(frozen=True)
class SegmentFiles:
    """The files of one segment of the stream. A later segment's deletes reach the rows of all earlier ones."""

    data: tuple[WrittenFile, ...]
    deletes: tuple[WrittenFile, ...]


@dataclass(frozen=True)
class BackdatedFile:
    """A copied data file that takes its place in the order at `sequence_number` (s0), however late it lands."""

    file: WrittenFile
    sequence_number: int


@dataclass(frozen=True)
class RowDelta:
    """What one commit does to one table, in order."""

    segments: tuple[SegmentFiles, ...]
    backdated: tuple[BackdatedFile, ...] = ()
    replace: bool = False
    """First remove every file that the table has (TRUNCATE, or a copy that begins again), in the same snapshot."""
    keep_below: CutLine | None = None
    """What `replace` leaves: the rows below T, with every file that they or their deletes are in."""
    remove_backdated: int | None = None
    """First remove the data files of this data sequence number: a copy begins again, its former chunks go."""
    positions: tuple[WrittenFile, ...] = ()
    """Position deletes, of rows of older files and of the segments' own: each of them goes, whatever the order."""
    resolution: FileRewrite | None = None
    """Files in place of others; no row changes by it. One that merges data files comes without segments."""
    schema: LakeSchema | None = None
    """The table's columns from this snapshot on; None leaves them. Files of the delta may have the former columns:
    readers go by field ID."""
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
    retention: HistoryRetention = DEFAULT_RETENTION

    @classmethod
    def create(
        cls,
        schema: LakeSchema,
        location: str,
        storage: StorageOptions,
        properties: Mapping[str, str],
        now_ms: int,
        *,
        divided: bool = False,
    ) -> StagedCommit:
        """A new table, unpartitioned, v2, with an empty start snapshot; its sequence number is s0.

        `divided`: of a table with heap retention. The start snapshot is what it has below T so far, nothing, and hence
        the head of the branch `cold` too. Raises LakeError if the storage fails.
        """
        empty = cls(new_metadata(schema, location.rstrip("/"), properties, now_ms), "", storage, ())
        return empty._stage(RowDelta(()), now_ms, frozenset(), None, divided=divided)

    @classmethod
    def load(cls, metadata_location: str, storage: StorageOptions) -> LakeTable:
        """The table that a metadata file of any engine describes.

        Raises LakeError if a file is missing or damaged, and ForeignTable if the table is not of format version 2.
        """
        metadata = read_metadata(metadata_location, storage)
        snapshot = current_snapshot(metadata)
        manifests = read_list(snapshot["manifest-list"], storage) if snapshot else ()
        return cls(metadata, metadata_location, storage, manifests)

    def stage(
        self,
        delta: RowDelta,
        now_ms: int,
        keep: frozenset[int] = frozenset(),
        rewrite_since: int | None = None,
    ) -> StagedCommit:
        """Writes the metadata of one snapshot on top of this state.

        Segment i's files get the data sequence number base+1+i, the snapshot base+K, where base is the table's last
        sequence number and K the number of segments, at least 1. Snapshots in `keep` (pinned ones) stay in the
        history. `now_ms` is milliseconds since 1970 UTC; a snapshot is never dated before its parent. `rewrite_since`
        is the sequence number at which another engine's rewrite began that has not committed yet: what its commit
        relies on stays in place (mirror_pump.lake.commit.concurrent_rewrites).

        Raises LakeError if the storage fails, SchemaConflict if the delta's schema cannot follow the table's,
        Superseded if its resolution does not fit this state, and ValueError for a born file that is no data file or not
        of the past.
        """
        if rewrite_since is not None:
            keep |= needed_snapshots(self.metadata, rewrite_since)
        under = self
        if delta.schema is not None:
            replaced = delta.replace and delta.keep_below is None
            metadata = with_schema(self.metadata, delta.schema, replaced=replaced)
            under = LakeTable(metadata, self.metadata_location, self.storage, self.manifests, self.retention)
        return under._stage(delta, now_ms, keep, self.metadata_location, rewrite_since)

    def _stage(
        self,
        delta: RowDelta,
        now_ms: int,
        keep: frozenset[int],
        old_location: str | None,
        rewrite_since: int | None = None,
        *,
        divided: bool = False,
    ) -> StagedCommit:
        with StagedFiles(self.storage) as written:
            return self._written(delta, now_ms, keep, old_location, rewrite_since, written, divided=divided)

    def _written(
        self,
        delta: RowDelta,
        now_ms: int,
        keep: frozenset[int],
        old_location: str | None,
        rewrite_since: int | None,
        written: StagedFiles,
        *,
        divided: bool,
    ) -> StagedCommit:
        """Stages the delta. Each file is `written`'s as soon as it is there."""
        base = int(self.metadata["last-sequence-number"])
        sequence_number = base + max(len(delta.segments), 1)
        for backdated in delta.backdated:
            if backdated.file.content is not FileContent.DATA or backdated.sequence_number > sequence_number:
                raise ValueError(
                    f"{backdated.file.path} cannot be born at {backdated.sequence_number} in snapshot {sequence_number}"
                )
        data = [(backdated.file, backdated.sequence_number) for backdated in delta.backdated]
        deletes: list[tuple[WrittenFile, int]] = []
        for number, segment in enumerate(delta.segments, base + 1):
            data.extend((file, number) for file in segment.data)
            deletes.extend((file, number) for file in segment.deletes)
        _check_contents(data, FileContent.DATA)
        _check_contents(deletes, FileContent.EQUALITY_DELETES)
        resolution = delta.resolution
        if resolution is not None and (
            delta.replace
            or delta.backdated
            or delta.remove_backdated is not None
            or (resolution.merged and (delta.segments or delta.positions))
        ):
            # Position deletes among the segments' files could name rows that a merge moves.
            raise ValueError("a resolution goes with segments only, and one that merges data files alone")
        moved = () if resolution is None else deletes_moved(resolution, self.manifests, self.location, self.storage)
        written.own(*(file.path for file in moved))
        resolved = resolution.added if resolution is not None else ()
        division = self._division(delta)
        parted: tuple[WrittenFile, ...] = ()
        if division is not None and division.hidden:
            parted = (write_position_deletes(division.hidden, self.location, self.storage),)
            written.own(parted[0].path)
        positions = [(file, sequence_number) for file in (*delta.positions, *resolved, *moved, *parted)]
        if (placeholder_at := placeholder_number(data, deletes)) is not None:
            placeholder = write_data_file(self.schema.arrow.empty_table(), self.schema, self.location, self.storage)
            written.own(placeholder.path)
            data.append((placeholder, placeholder_at))
        merged = resolution.merged if resolution is not None else ()
        data.extend((one.file, one.sequence_number) for one in merged if one.file is not None)
        snapshot_id = new_snapshot_id(self.metadata)
        writer = ManifestWriter(self.metadata, metadata_directory(self.metadata), snapshot_id, sequence_number)
        removal = self._removal(delta, division, writer)
        needed, others = needed_manifests(removal.untouched, rewrite_since)
        carried = [*writer.merge(others, self.storage), *needed, *removal.rewritten]
        new = [
            writer.add(ManifestContent.DATA, data),
            writer.add(ManifestContent.DELETES, deletes),
            writer.add(ManifestContent.DELETES, positions),
        ]
        manifests = (*(one for one in new if one is not None), *carried)

        added = FileTally()
        for file, _ in (*data, *deletes, *positions):
            added.count(file.content, file.record_count, file.size_bytes)
        parent = current_snapshot(self.metadata)
        timestamp = max(now_ms, int(self.metadata["last-updated-ms"]))
        summary = summarise(added, removal.removed, parent["summary"] if parent else None, delta.summary)
        again = None if resolution is None else resolution.size_bytes + sum(file.size_bytes for file in moved)
        counted = snapshot_stats(self.metadata)
        if delta.replace and division is None:
            counted = replace(counted, dangling=0)
        summary |= counted.after(added, removal.removed, again).to_summary()
        if merged and not added.delete_files and not (resolution is not None and resolution.drops_rows):
            summary["operation"] = REPLACE
        resolved_to = resolution.sequence_number if resolution is not None and resolution.complete else None
        summary |= pending_after(self.metadata, summary, resolved_to, timestamp)
        snapshot: dict[str, Any] = {
            "sequence-number": sequence_number,
            "snapshot-id": snapshot_id,
            "timestamp-ms": timestamp,
            "summary": summary,
            "manifest-list": writer.list(manifests, parent["snapshot-id"] if parent else None),
            "schema-id": self.metadata["current-schema-id"],
        }
        if parent:
            snapshot["parent-snapshot-id"] = parent["snapshot-id"]
        metadata = with_snapshot(self.metadata, snapshot, old_location, keep, self.retention)
        if divided:
            metadata = with_branch(metadata, COLD, snapshot_id)
        new_location = next_location(self.metadata, old_location)
        files = [*writer.files, (new_location, orjson.dumps(metadata))]
        write_all(files, self.storage)
        return StagedCommit(
            table=LakeTable(metadata, new_location, self.storage, manifests, self.retention),
            old_location=old_location,
            new_location=new_location,
            snapshot_id=SnapshotId(snapshot_id),
            sequence_number=SequenceNumber(sequence_number),
            files=(*(location for location, _ in files), *written.locations),
        )

    def _division(self, delta: RowDelta) -> Division | None:
        """This state's files divided at T, if the delta replaces what is at or above it."""
        if not delta.replace or delta.keep_below is None:
            return None
        return divide(
            self.manifests, delta.keep_below, Listing(self.storage, (delta.keep_below.field_id,)), self.storage
        )

    def _removal(self, delta: RowDelta, division: Division | None, writer: ManifestWriter) -> Removal:
        """Takes out of this state's manifests what the delta removes."""
        if division is not None:
            above = division.above
            return writer.remove(
                self.manifests,
                self.storage,
                lambda one: one.path in above,
                lambda manifest: any(file.path in above for file in division.files.get(manifest.path, ())),
            )
        born_at = delta.remove_backdated
        change = delta.resolution
        if change is not None:
            return writer.remove(self.manifests, self.storage, lambda one: one.path in change.removed, change.concerns)
        if delta.replace:
            return writer.remove(self.manifests, self.storage, lambda _: True, lambda _: True)
        if born_at is not None:
            return writer.remove(
                self.manifests,
                self.storage,
                lambda one: one.sequence_number == born_at,
                lambda manifest: manifest.may_hold_data_of(born_at),
            )
        return Removal(list(self.manifests), [], FileTally())

    @property
    def location(self) -> str:
        """Root URI of the table's files."""
        return str(self.metadata["location"])

    @cached_property
    def schema(self) -> LakeSchema:
        """The current schema. ForeignTable if another engine gave the table a type that the mirror does not write."""
        return LakeSchema.from_iceberg_json(current_schema(self.metadata))

    @property
    def snapshot_id(self) -> SnapshotId:
        """The current snapshot. LakeError if the table has none."""
        return SnapshotId(self._current["snapshot-id"])

    @property
    def sequence_number(self) -> SequenceNumber:
        """The current snapshot's sequence number."""
        return SequenceNumber(self._current["sequence-number"])

    @property
    def partitioned(self) -> bool:
        """Whether new files of the table belong to partitions: another engine made it so."""
        return any(spec["spec-id"] == self.spec_id and spec["fields"] for spec in self.metadata["partition-specs"])

    @property
    def spec_id(self) -> int:
        """The partition spec of new files."""
        return int(self.metadata["default-spec-id"])

    @property
    def summary(self) -> Mapping[str, str]:
        """The current snapshot's summary."""
        return dict(self._current.get("summary", {}))

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
    def live_rows(self) -> int:
        """Rows that a reader finds, equality deletes aside (mirror_pump.lake.format.snapshot_summary)."""
        return live_rows(self.metadata, self._current.get("summary", {}))

    @property
    def delete_files(self) -> int:
        """Live delete files of both kinds."""
        return self._total("total-delete-files", 1, rows=False)

    @property
    def position_deletes(self) -> int:
        """Rows in live position-delete files."""
        return self._total("total-position-deletes", 1, rows=True)

    @property
    def equality_deletes(self) -> int:
        """Rows in live equality-delete files."""
        return self._total("total-equality-deletes", 1, rows=True)

    @property
    def equality_deletes_since(self) -> int | None:
        """When the oldest of them was committed, milliseconds since 1970 UTC; None if there are none. Later than that
        only where other engines' commits and a thinned history leave no trace of it."""
        return pending_since(self.metadata)

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
        counted = [one for one in self.manifests if one.content == content]
        if name == "total-equality-deletes":
            # At most so many: of manifests that this process did not write, only a reader knows the kind of deletes.
            counted = [one for one in counted if one.deletes is not FileContent.POSITION_DELETES]
        numbers = [one.rows if rows else one.files for one in counted]
        return sum(added + existing for added, existing, _ in numbers)


def _check_contents(files: Iterable[tuple[WrittenFile, int]], wanted: FileContent) -> None:
    for file, _ in files:
        if file.content is not wanted:
            raise ValueError(f"{file.path} holds {file.content.name.lower()}, not {wanted.name.lower()}")
