"""The row-delta commit: ordered segments and backdated copied files, staged as one snapshot of an Iceberg table.

Staging writes manifests, a manifest list and a metadata file. The table changes only when the caller moves its pointer
to the new metadata location (`mirror_pump.lake.commit.catalog`), in its own transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TypeAlias

from mirror_pump.errors import LakeError
from mirror_pump.lake.commit.expired_rows import RowsBelow
from mirror_pump.lake.commit.feed_rewrite import FeedRewrite
from mirror_pump.lake.commit.file_rewrite import FileRewrite, FileRewriteSuperseded
from mirror_pump.lake.commit.forked_rewrite import ForkedRewrite
from mirror_pump.lake.commit.new_snapshot import AddedFiles, NewSnapshot
from mirror_pump.lake.commit.replacement import CopiedFiles, EveryFile, FilesAbove, Replaced
from mirror_pump.lake.commit.schema_evolution import evolved
from mirror_pump.lake.contents.file_listing import LiveFile, live_data_files, live_equality_deletes
from mirror_pump.lake.deletes.commit_cache import CommitCache
from mirror_pump.lake.deletes.delete_form import DeleteForm, Hiding, PresentFiles, RowsToHide
from mirror_pump.lake.deletes.forms import form_of
from mirror_pump.lake.deletes.row_deletes import NO_DELETES
from mirror_pump.lake.document.metadata_files import read_metadata, write_metadata
from mirror_pump.lake.document.next_metadata import with_branch, with_partitioning, with_snapshot
from mirror_pump.lake.document.snapshot import Snapshot
from mirror_pump.lake.document.snapshot_stats import live_rows, pending_after, pending_since, snapshot_stats
from mirror_pump.lake.document.snapshot_summary import FileCounts, SnapshotSummary, Total
from mirror_pump.lake.document.snapshot_thinning import DEFAULT_RETENTION, HistoryRetention
from mirror_pump.lake.document.table_metadata import ARCHIVE_BRANCH, TableMetadata
from mirror_pump.lake.format.data_files import FileContent, WrittenFile, write_data_file
from mirror_pump.lake.format.partitioning import PartitionTuple
from mirror_pump.lake.format.position_deletes import Positions
from mirror_pump.lake.format.row_lineage import has_lineage
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.format.versions import FORMAT_VERSION
from mirror_pump.lake.manifests.manifest_list import Manifest, read_list
from mirror_pump.lake.manifests.manifests import ManifestWriter, Removal
from mirror_pump.lake.storage import StagedFiles, StorageOptions, begin_writes, join, make_directories
from mirror_pump.model import LakePartitioning, SequenceNumber, SnapshotId


@dataclass(frozen=True)
class SegmentFiles:
    """The files of one segment of the stream. A later segment's deletes reach the rows of all earlier ones."""

    data: tuple[WrittenFile, ...]
    deletes: tuple[WrittenFile, ...]


@dataclass(frozen=True)
class BackdatedFile:
    """A file of a copy that gets the data sequence number `sequence_number` (the start sequence number), however late
    it lands: rows, or the keys of rows in older files."""

    file: WrittenFile
    sequence_number: int


Replacement: TypeAlias = EveryFile | FilesAbove | CopiedFiles | FileRewrite | ForkedRewrite | FeedRewrite | RowsBelow
"""What a commit may remove in its snapshot. A commit has at most one of these."""


@dataclass(frozen=True)
class RowDelta:
    """What one commit does to one table, in order. Raises ValueError for a combination that one commit cannot have."""

    segments: tuple[SegmentFiles, ...]
    backdated: tuple[BackdatedFile, ...] = ()
    replaces: Replacement | None = None
    """The earlier files to remove in the same snapshot."""
    hidden: Mapping[str, Positions] = field(default_factory=dict, repr=False)
    """Rows to delete, of older files and of the segments' own files: sorted row numbers by data file URI. Staging
    writes them in the table's form (`LakeTable.deletes`)."""
    partitions: Mapping[str, PartitionTuple] = field(default_factory=dict, repr=False)
    """The lake partitions of these data files, by URI; those of an unpartitioned table may be left out."""
    schema: LakeSchema | None = None
    """The table's columns from this snapshot on. None: they do not change. The commit's files may still have the former
    columns, since readers find columns by field ID."""
    partitioning: LakePartitioning | None = None
    """How files are divided from this snapshot on, those of this commit included; one without fields: not at all. Only
    if it `replaces` every file. None: as before."""
    summary: Mapping[str, str] = field(default_factory=dict)
    """Entries to add to the snapshot's summary, such as the frontier."""

    def __post_init__(self) -> None:
        rewrite = self.replaces
        if isinstance(rewrite, FileRewrite) and (self.backdated or (rewrite.merged and (self.segments or self.hidden))):
            # Position deletes of the segments could name rows that a merge moves.
            raise ValueError("a rewrite goes with segments only, and one that merges data files alone")
        if self.partitioning is not None and not isinstance(rewrite, EveryFile):
            raise ValueError("partitions change only if every file is replaced")


@dataclass(frozen=True)
class StagedCommit:
    """A commit whose files are durable. No reader sees it until the table's pointer moves to `new_location`."""

    table: LakeTable
    """The table after the commit."""
    old_location: str | None
    """The metadata location that the commit builds on. None for a new table."""
    new_location: str
    snapshot_id: SnapshotId
    sequence_number: SequenceNumber
    files: tuple[str, ...]
    """URIs of the files that staging wrote. They may be removed only if the publish certainly failed."""


@dataclass(frozen=True)
class LakeTable:
    """An Iceberg table as of one metadata file. Immutable: staging returns the next state.

    Holds everything that the next commit needs, so that a commit reads nothing but the small manifests that it merges.
    """

    metadata: TableMetadata
    metadata_location: str
    storage: StorageOptions
    manifests: tuple[Manifest, ...]
    """The manifests of the current snapshot."""
    retention: HistoryRetention = DEFAULT_RETENTION
    cache: CommitCache = field(default_factory=CommitCache, repr=False, compare=False)
    """What later commits find again."""

    @classmethod
    def create(
        cls,
        schema: LakeSchema,
        location: str,
        storage: StorageOptions,
        properties: Mapping[str, str],
        now_ms: int,
        *,
        has_retention: bool = False,
        partitioning: LakePartitioning | None = None,
        format_version: int = FORMAT_VERSION,
    ) -> StagedCommit:
        """Stages a new table with an empty start snapshot. The snapshot's sequence number is the table's start sequence
        number.

        `has_retention`: the table has heap retention. The start snapshot is then also the head of the archive branch,
        since no row is below the cut-line yet. Creates the directories of the table's files; nothing else creates
        them. Raises LakeError if the storage fails.
        """
        root = location.rstrip("/")
        make_directories([join(root, name) for name in ("metadata", "data")], storage)
        metadata = TableMetadata.new(schema, root, properties, now_ms, partitioning, format_version)
        empty = cls(metadata, "", storage, ())
        return empty._stage(RowDelta(()), now_ms, frozenset(), None, has_retention=has_retention)

    @classmethod
    def load(cls, metadata_location: str, storage: StorageOptions, cache: CommitCache | None = None) -> LakeTable:
        """Loads the table that a metadata file of any engine describes. `cache`: that of other tables, or of this one
        before.

        Raises LakeError if a file is missing or damaged, and ForeignTable if the table has neither format version 2 nor
        3.
        """
        metadata = read_metadata(metadata_location, storage)
        snapshot = metadata.current_snapshot
        manifests = read_list(snapshot, storage) if snapshot is not None else ()
        commit_cache = CommitCache() if cache is None else cache
        return cls(metadata, metadata_location, storage, manifests, cache=commit_cache)

    def stage(
        self,
        delta: RowDelta,
        now_ms: int,
        keep: frozenset[int] = frozenset(),
    ) -> StagedCommit:
        """Writes the metadata of one snapshot on top of this state.

        The files of segment i get the data sequence number base+1+i, and the snapshot gets base+K, where base is the
        table's last sequence number and K the number of segments, at least 1. Snapshots in `keep` (pinned ones) stay in
        the history. `now_ms` is milliseconds since 1970 UTC. A snapshot never gets an earlier time than its parent.

        Raises LakeError if the storage fails, SchemaConflict if the table cannot get the delta's schema,
        FileRewriteSuperseded if its rewrite does not fit this state, and ValueError if the sequence number of a
        backdated file is above the new snapshot's.
        """
        base = self
        if delta.schema is not None:
            base = replace(
                base, metadata=evolved(self.metadata, delta.schema, replaced=isinstance(delta.replaces, EveryFile))
            )
        if delta.partitioning is not None:
            base = replace(base, metadata=with_partitioning(base.metadata, delta.partitioning))
        return base._stage(delta, now_ms, keep, self.metadata_location)

    def _stage(
        self,
        delta: RowDelta,
        now_ms: int,
        keep: frozenset[int],
        old_location: str | None,
        *,
        has_retention: bool = False,
    ) -> StagedCommit:
        with StagedFiles(self.storage) as written:
            number = self.metadata.last_sequence_number + max(len(delta.segments), 1)
            writer = ManifestWriter(self.metadata, sequence_number=number)
            made = _DeltaSnapshot(
                writer, self.storage, now_ms, delta.summary, self, delta, keep, old_location, written, has_retention
            ).make()
            location = write_metadata(made.metadata, old_location, self.storage, made.files)
            written.add(*made.locations, location)
            table = replace(self, metadata=made.metadata, metadata_location=location, manifests=made.manifests)
            return StagedCommit(
                table=table,
                old_location=old_location,
                new_location=location,
                snapshot_id=made.snapshot.snapshot_id,
                sequence_number=made.snapshot.sequence_number,
                files=written.locations,
            )

    def _replaced(self, delta: RowDelta, added: AddedFiles, written: StagedFiles) -> tuple[Replaced, Hiding]:
        """What the delta removes from this state, and how its rows and those of the removal are hidden."""
        base = self._present_files
        replaced = _NOTHING_REPLACED if delta.replaces is None else delta.replaces.replaced(base, written)
        if replaced.positions and not self.deletes.adds_files:
            raise FileRewriteSuperseded(f"{self.location} has deletion vectors now")
        to_hide = RowsToHide(delta.hidden, delta.partitions)
        data = [*added.data, *replaced.data]
        hiding = self.deletes.of_commit(base, to_hide, replaced.hidden, data, partial(replaced.removed_data, base))
        return replaced.with_hiding(hiding), hiding

    @property
    def _present_files(self) -> PresentFiles:
        return PresentFiles(self.manifests, self.location, self.storage, self.cache, self.spec_id)

    @property
    def location(self) -> str:
        """Root URI of the table's files."""
        return self.metadata.location

    @cached_property
    def schema(self) -> LakeSchema:
        """The current schema. Raises ForeignTable if another engine added a type that the mirror does not write."""
        return self.metadata.current_schema

    @property
    def snapshot_id(self) -> SnapshotId:
        """ID of the current snapshot. Raises LakeError if the table has none."""
        return self._current.snapshot_id

    @property
    def sequence_number(self) -> SequenceNumber:
        """The current snapshot's sequence number."""
        return self._current.sequence_number

    @property
    def partitioning(self) -> LakePartitioning | None:
        """How new files are divided. None if they are not, or in a way that the mirror does not write."""
        return self.metadata.default_spec.partitioning

    @cached_property
    def foreign_partitions(self) -> bool:
        """Whether new files belong to partitions of a kind that the mirror does not write, because another engine
        partitioned the table."""
        return self.metadata.partition_type(self.spec_id) is None

    @property
    def deletes(self) -> DeleteForm:
        """The form in which its rows are hidden by position."""
        return form_of(self.metadata.format_version)

    @property
    def has_lineage(self) -> bool:
        """Whether its rows have IDs, or get them with the next commit."""
        return has_lineage(self.metadata.format_version)

    @property
    def spec_id(self) -> int:
        """ID of the partition spec of new data files."""
        return self.metadata.default_spec_id

    @property
    def spec_ids(self) -> frozenset[int]:
        """IDs of the partition specs of new files: also that of equality deletes, if another."""
        return self.metadata.own_spec_ids

    @property
    def summary(self) -> SnapshotSummary:
        """The current snapshot's summary."""
        return self._current.summary

    def live_data_files(self) -> list[LiveFile]:
        """The current snapshot's data files. Reads its manifests."""
        return live_data_files(self.manifests, self.storage)

    def live_equality_deletes(self) -> list[LiveFile]:
        """The current snapshot's equality-delete files. Reads its manifests."""
        return live_equality_deletes(self.manifests, self.storage)

    @property
    def data_files(self) -> int:
        """Number of live data files."""
        return self._total(Total.DATA_FILES, 0, rows=False)

    @property
    def records(self) -> int:
        """Number of rows in live data files, including deleted ones."""
        return self._total(Total.RECORDS, 0, rows=True)

    @property
    def live_rows(self) -> int:
        """Number of rows that a reader sees if equality deletes are ignored
        (mirror_pump.lake.document.snapshot_stats)."""
        return live_rows(self.metadata, self.summary)

    @property
    def delete_files(self) -> int:
        """Number of live delete files of both kinds."""
        return self._total(Total.DELETE_FILES, 1, rows=False)

    @property
    def position_deletes(self) -> int:
        """Number of rows in live position-delete files."""
        return self._total(Total.POSITION_DELETES, 1, rows=True)

    @property
    def equality_deletes(self) -> int:
        """Number of rows in live equality-delete files."""
        return self._total(Total.EQUALITY_DELETES, 1, rows=True)

    @cached_property
    def equality_deletes_since(self) -> int | None:
        """When the oldest pending equality delete was committed, in milliseconds since 1970 UTC. None if there is none.
        The time is too late only if other engines' commits and a thinned history leave no trace of it."""
        return pending_since(self.metadata)

    def has_snapshot(self, snapshot_id: int) -> bool:
        """Whether a snapshot is still in the history."""
        return self.metadata.snapshot(snapshot_id) is not None

    @property
    def _current(self) -> Snapshot:
        snapshot = self.metadata.current_snapshot
        if snapshot is None:
            raise LakeError(f"{self.metadata_location} has no snapshot", "copy the table again")
        return snapshot

    def _total(self, name: Total, content: int, *, rows: bool) -> int:
        """A total from the summary, or counted from the manifest list if another engine left it out of the summary."""
        stated = self.summary.total(name)
        if stated is not None:
            return stated
        counted = [manifest for manifest in self.manifests if manifest.content == content]
        if name is Total.EQUALITY_DELETES:
            # This is an upper limit: only the content of manifests that this process did not write tells their kind.
            counted = [manifest for manifest in counted if manifest.deletes is not FileContent.POSITION_DELETES]
        numbers = [manifest.rows if rows else manifest.files for manifest in counted]
        return sum(added + existing for added, existing, _ in numbers)


_NOTHING_REPLACED = Replaced(lambda _: False, lambda _: False)


@dataclass
class _DeltaSnapshot(NewSnapshot):
    """The snapshot of a row delta."""

    base: LakeTable
    delta: RowDelta
    keep: frozenset[int]
    old_location: str | None
    written: StagedFiles
    """Owns each file as soon as it exists."""
    has_retention: bool
    replaced: Replaced = field(default=_NOTHING_REPLACED, init=False)
    hiding: Hiding = field(default=Hiding(), init=False)

    def added(self) -> AddedFiles:
        number = self.writer.sequence_number
        numbered = _numbered(self.delta, number)
        replaced, hiding = self.replaced, self.hiding = self.base._replaced(self.delta, numbered, self.written)
        self.written.add(*(location for location, _ in hiding.contents))
        self.files += begin_writes(hiding.contents, self.storage)
        # Data files of which no row is left are not added.
        data = [(file, number) for file, number in numbered.data if file.path not in hiding.deletes.emptied]
        added = AddedFiles(data, numbered.deletes, [(file, number) for file in (*replaced.positions, *hiding.files)])
        self._add_placeholder(added)
        added.data.extend(replaced.data)
        return added

    def _add_placeholder(self, added: AddedFiles) -> None:
        number = added.placeholder_number
        if number is not None:
            # Any partition will do: Iceberg compares the numbers of all data files of the table.
            partition = added.deletes[0][0].partition or (None,) * len(self.metadata.default_spec.fields)
            schema = self.base.schema
            file = write_data_file(schema.arrow.empty_table(), schema, self.base.location, self.storage, partition)
            self.written.add(file.path)
            added.data.append((file, number))

    def removed(self) -> Removal:
        replaced, manifests = self.replaced, self.base.manifests
        if self.delta.replaces is None and self.hiding.deletes is NO_DELETES:
            return Removal(list(manifests), [], FileCounts())
        joining = self.new.positions if self.hiding.joins else ()
        return self.writer.remove(manifests, self.storage, replaced.removes, replaced.may_contain, joining)

    def summary(self) -> dict[str, str]:
        replaced = self.replaced
        self.only_rewrites = replaced.only_rewrites
        summary = super().summary()
        counted = snapshot_stats(self.metadata)
        counted = replace(
            counted,
            dangling=counted.dangling - replaced.dangling,
            uncertain=int(counted.uncertain or replaced.uncounted),
        )
        after = counted.after(self.counts, self.removal.removed, replaced.rewritten_bytes)
        after = self.base.deletes.counted(counted, after, self.base._present_files, self.manifests)
        new_deletes = self.counts.position_deletes if replaced.empties else 0
        if SnapshotSummary(summary).total(Total.POSITION_DELETES) == new_deletes:
            after = replace(after, dangling=0, uncertain=0)
        summary |= after.to_summary()
        return summary | pending_after(self.metadata, summary, replaced.converted_to, self.timestamp_ms)

    def named(self, snapshot: Snapshot) -> TableMetadata:
        metadata = with_snapshot(self.metadata, snapshot, self.old_location, self.keep, self.base.retention)
        return with_branch(metadata, ARCHIVE_BRANCH, snapshot.snapshot_id) if self.has_retention else metadata


def _numbered(delta: RowDelta, sequence_number: int) -> AddedFiles:
    """The delta's own files, with their data sequence numbers in snapshot `sequence_number`. Raises ValueError if a
    file has the wrong content, or a backdated file's sequence number is above the snapshot's."""
    for backdated in delta.backdated:
        if backdated.sequence_number > sequence_number:
            raise ValueError(
                f"{backdated.file.path} cannot have the data sequence number {backdated.sequence_number} in snapshot"
                f" {sequence_number}"
            )
    backdated_files = [(backdated.file, backdated.sequence_number) for backdated in delta.backdated]
    added = AddedFiles(
        [(file, number) for file, number in backdated_files if file.content is FileContent.DATA],
        [(file, number) for file, number in backdated_files if file.content is not FileContent.DATA],
    )
    first = sequence_number - max(len(delta.segments), 1) + 1
    for number, segment in enumerate(delta.segments, first):
        added.data.extend((file, number) for file in segment.data)
        added.deletes.extend((file, number) for file in segment.deletes)
    _check_contents(added.data, FileContent.DATA)
    _check_contents(added.deletes, FileContent.EQUALITY_DELETES)
    return added


def _check_contents(files: Iterable[tuple[WrittenFile, int]], content: FileContent) -> None:
    for file, _ in files:
        if file.content is not content:
            raise ValueError(f"{file.path} holds {file.content.name.lower()}, not {content.name.lower()}")
