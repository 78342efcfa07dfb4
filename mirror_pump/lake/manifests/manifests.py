"""Writes manifests with explicit sequence numbers, and merges them like a log-structured merge tree.

A snapshot of format version 3 assigns IDs to the rows of data files that have none: each data manifest of its list gets
the ID of the first such row (`ManifestWriter.snapshot`). An entry has its file's first row ID from the next manifest
on. So a row keeps its ID however often its file's entry is carried over.

Most manifests that a commit merges were written here, so merging them means joining bytes
(mirror_pump.lake.manifests.manifest_files), and the cost of a commit does not depend on the number of earlier commits.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from pyiceberg.manifest import ManifestContent
from pyiceberg.types import StructType

from mirror_pump.lake.document.metadata_files import metadata_directory
from mirror_pump.lake.document.snapshot import Snapshot
from mirror_pump.lake.document.snapshot_summary import FileCounts
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.format.data_files import FileContent, WrittenFile
from mirror_pump.lake.format.versions import VECTOR_VERSION
from mirror_pump.lake.manifests.entry_reader import Status
from mirror_pump.lake.manifests.manifest_entries import ManifestEntry
from mirror_pump.lake.manifests.manifest_files import Group, ManifestEncoder, kind_of
from mirror_pump.lake.manifests.manifest_list import Manifest, encoded_list
from mirror_pump.lake.storage import StorageOptions, join

FANOUT = 10
"""This many manifests of one size class are merged into one of the next class. So an entry is rewritten once per power
of ten, and a list names at most nine manifests per class and content."""

FULL = 10_000
"""Manifests with this many entries are no longer merged: at some 2 MB, engines can skip them by their bounds."""

_SizeClasses: TypeAlias = dict[int, list[Manifest]]
"""Manifests by size class."""


@dataclass
class Removal:
    """The manifests of a snapshot after files were removed from it."""

    untouched: list[Manifest]
    rewritten: list[Manifest]
    """Mark the removed files as deleted. Must not be merged in the same snapshot, which would lose these marks."""
    removed: FileCounts
    joined: bool = False
    """Whether one of these has the new deletes, too."""


@dataclass
class _Rewritten:
    """A manifest to write in place of others."""

    source: Manifest
    """One of them."""
    partition: StructType
    kind: FileContent | None
    """As `Manifest.deletes`."""
    entries: list[ManifestEntry]


class ManifestWriter:
    """Collects the manifests of one snapshot, encoded in memory, so that all of them can be written in one step.

    `metadata` is the table metadata that they are written under.
    """

    def __init__(
        self,
        metadata: TableMetadata,
        snapshot_id: int | None = None,
        sequence_number: int | None = None,
        *,
        full: int = FULL,
        partition_types: Callable[[int], StructType | None] | None = None,
        directory: str | None = None,
    ) -> None:
        """By default a new ID, and the table's next sequence number.

        `full`: manifests with this many entries are no longer merged. `partition_types`: the type of partitions
        under a spec of the table, None for one that cannot be written; by default only the mirror's own can.
        `directory`: where its files are to be, by default where the table's metadata is."""
        self.metadata = metadata
        self._full = full
        self.snapshot_id = metadata.new_snapshot_id() if snapshot_id is None else snapshot_id
        self.sequence_number = metadata.last_sequence_number + 1 if sequence_number is None else sequence_number
        self._encoder = ManifestEncoder(
            metadata, self.snapshot_id, self.sequence_number, partition_types, directory or metadata_directory(metadata)
        )

    @property
    def files(self) -> list[tuple[str, bytes]]:
        """Location and content of every file encoded so far; none is written yet."""
        return self._encoder.files

    def next(
        self,
        manifests: Sequence[Manifest],
        added: Mapping[ManifestContent, Sequence[tuple[WrittenFile, int]]],
        storage: StorageOptions,
    ) -> list[Manifest]:
        """The manifests of the new snapshot: those of its parent, small ones merged, and those without live files left
        out; and new files, each with its explicit data sequence number.

        At most one manifest for each content is written: new files go into the one that small manifests are merged
        into, if a merge is due. Two, where equality deletes apply to every partition: these have a spec of their own.

        Amortised cost: one commit in ten merges ten manifests of about one entry each, one in a hundred merges ten of
        ten entries, and so on.

        Raises ValueError for a file whose partition does not fit the table's partition spec, and LakeError.
        """
        carried, groups = self._grouped(manifests)
        written: list[Manifest] = []
        for content in ManifestContent:
            merged: set[str] = set()
            for spec_id, files in self._encoder.by_spec(added.get(content, ())):
                entries = self._encoder.added(files, spec_id)
                group, due = self._due(content, spec_id, entries, groups)
                if entries or due:
                    written.append(self._encoder.merged(group, entries, due, storage))
                merged |= {manifest.path for manifest in due}
            for group_key, classes in groups.items():
                if group_key[0] is content:
                    carried += [one for members in classes.values() for one in members if one.path not in merged]
        return [*written, *carried]

    def merged(self, manifests: Sequence[Manifest], storage: StorageOptions) -> list[Manifest]:
        """The manifests of a snapshot of the same files, as few as they can be: all that are not full are merged until
        they are, and those without live files left out. None that can be written again describes removed files. Raises
        LakeError."""
        never, groups = self._grouped(manifests)
        own_specs = self._own_specs
        carried = [
            self._encoder.merged(_group_of(manifest), (), [manifest], storage)
            if manifest.removed_files and _is_open(manifest, own_specs)
            else manifest
            for manifest in never
        ]
        for group, classes in groups.items():
            pending: list[Manifest] = []
            for manifest in (one for members in classes.values() for one in members):
                pending.append(manifest)
                if sum(one.live_files for one in pending) >= self._full:
                    carried.append(self._encoder.merged(group, (), pending, storage))
                    pending = []
            due = len(pending) > 1 or any(manifest.removed_files for manifest in pending)
            carried += [self._encoder.merged(group, (), pending, storage)] if due else pending
        return carried

    def _due(
        self,
        content: ManifestContent,
        spec_id: int,
        entries: Sequence[ManifestEntry],
        groups: Mapping[Group, _SizeClasses],
    ) -> tuple[Group, list[Manifest]]:
        """The manifests to merge into one now, together with new entries, if there are any, and what the merged one
        has in common with others."""
        target = content, spec_id, kind_of(content, {entry.content for entry in entries})
        if target in groups and (due := _overfull(groups[target], len(entries))):
            return target, due
        for group in groups:
            if group[0] is content and (not entries or group[1] == target[1]) and (due := _overfull(groups[group], 0)):
                # Otherwise it would wait until a commit adds no files: the kinds of deletes are mixed then.
                return (group if not entries else (content, target[1], None)), due
        return target, []

    def _grouped(self, manifests: Sequence[Manifest]) -> tuple[list[Manifest], Mapping[Group, _SizeClasses]]:
        """Manifests that are never merged, and the others by what they must have in common and by size class."""
        own_specs = self._own_specs
        never: list[Manifest] = []
        groups: dict[Group, _SizeClasses] = defaultdict(lambda: defaultdict(list))
        for manifest in manifests:
            if not manifest.live_files:
                continue
            if manifest.live_files < self._full and _is_open(manifest, own_specs):
                groups[_group_of(manifest)][_size_class(manifest.live_files)].append(manifest)
            else:
                never.append(manifest)
        return never, groups

    @property
    def _own_specs(self) -> frozenset[int]:
        """The partition specs of which manifests can be written."""
        specs = (spec.spec_id for spec in self.metadata.partition_specs)
        return frozenset(spec_id for spec_id in specs if self._encoder.partition_types(spec_id) is not None)

    def remove(
        self,
        manifests: Sequence[Manifest],
        storage: StorageOptions,
        removes: Callable[[ManifestEntry], bool],
        may_contain: Callable[[Manifest], bool],
        joining: Sequence[tuple[WrittenFile, int]] = (),
    ) -> Removal:
        """Marks live files for which `removes` is true as deleted by this snapshot. What was in several manifests is
        written to one, as far as it could be merged into one. `joining`: new deletion vectors, with their data sequence
        numbers: those that they replace are mostly in a manifest that is rewritten, so they go there, too.

        Reads only manifests for which `may_contain` is true, and of these only those whose entries are not in memory.
        """
        result = Removal([], [], FileCounts())
        changed: dict[tuple[object, ...], list[_Rewritten]] = defaultdict(list)
        for manifest in manifests:
            if not manifest.live_files:
                continue
            if not may_contain(manifest):
                result.untouched.append(manifest)
                continue
            partition, live_entries = self._encoder.existing(manifest, storage)
            entries = []
            remaining: set[int] = set()
            for entry in live_entries:
                if removes(entry):
                    is_vector = entry.blob is not None
                    result.removed.add(
                        entry.content, entry.records, entry.content_bytes, entry.partition, is_vector=is_vector
                    )
                    entries.append(entry._replace(status=Status.DELETED, snapshot_id=self.snapshot_id))
                else:
                    remaining.add(entry.content)
                    entries.append(entry)
            kind = kind_of(manifest.content, remaining)
            if remaining and all(entry.status is Status.EXISTING for entry in entries):
                result.untouched.append(replace(manifest, deletes=kind))
                continue
            foreign = manifest.path if self._encoder.partition_types(manifest.spec_id) is None else None
            alike = changed[manifest.content, manifest.spec_id, kind, foreign]
            if not alike or len(alike[-1].entries) + len(entries) > self._full:
                alike.append(_Rewritten(manifest, partition, kind, []))
            alike[-1].entries.extend(entries)
        result.joined = self._join(joining, changed)
        for rewritten in (one for alike in changed.values() for one in alike):
            source = rewritten.source
            written = self._encoder.written(
                ManifestContent(source.content), source.spec_id, rewritten.partition, rewritten.entries, source
            )
            result.rewritten.append(replace(written, deletes=rewritten.kind))
        return result

    def _join(
        self, vectors: Sequence[tuple[WrittenFile, int]], changed: Mapping[tuple[object, ...], Sequence[_Rewritten]]
    ) -> bool:
        """Puts new vectors before the entries of a manifest of vectors that is rewritten. Returns whether there is one
        for all of them."""
        specs = {self._encoder.spec_of(file) for file, _ in vectors}
        if len(specs) != 1:
            return False
        (spec_id,) = specs
        for (content, manifest_spec, _, foreign), alike in changed.items():
            rewritten = alike[-1]
            only_vectors = all(entry.blob is not None for entry in rewritten.entries)
            fits = len(rewritten.entries) + len(vectors) <= self._full
            if (content, manifest_spec, foreign) == (ManifestContent.DELETES, spec_id, None) and only_vectors and fits:
                rewritten.entries[:0] = self._encoder.added(vectors, spec_id)
                rewritten.kind = FileContent.POSITION_DELETES
                return True
        return False

    def without(
        self,
        manifests: Sequence[Manifest],
        storage: StorageOptions,
        files: Mapping[str, Collection[str]],
        vectors: Mapping[str, Collection[tuple[str, int]]] | None = None,
    ) -> list[Manifest]:
        """Manifests for a snapshot that is not a child of theirs, without the live files in `files` (URIs by manifest),
        and without `vectors` (URIs with the vectors' offsets, by manifest).

        The files left out are not marked as deleted, and marks of others are left out too. Manifests that lose nothing
        are carried over unchanged, and so are marks in those that cannot be written again.
        """
        rest: list[Manifest] = []
        own_specs = self._own_specs
        for manifest in manifests:
            excluded = files.get(manifest.path, ())
            excluded_vectors = () if vectors is None else vectors.get(manifest.path, ())
            if not manifest.live_files:
                continue
            marked = manifest.removed_files and _is_open(manifest, own_specs)
            if not excluded and not excluded_vectors and not marked:
                rest.append(manifest)
                continue
            partition, live_entries = self._encoder.existing(manifest, storage)
            entries = [
                entry
                for entry in live_entries
                if (
                    entry.path not in excluded
                    if entry.blob is None
                    else (entry.path, entry.blob.offset) not in excluded_vectors
                )
            ]
            if entries:
                content = ManifestContent(manifest.content)
                rest.append(self._encoder.written(content, manifest.spec_id, partition, entries, manifest))
        return rest

    def snapshot(
        self, parent: Snapshot | None, manifests: Sequence[Manifest], summary: Mapping[str, str], timestamp_ms: int
    ) -> tuple[Snapshot, tuple[Manifest, ...]]:
        """The snapshot of these manifests, and the manifests as it has them: with the row IDs that it assigns, if the
        table has row lineage. Also encodes its manifest list. `timestamp_ms`: milliseconds since 1970 UTC."""
        row_ids = None
        if self._encoder.version >= VECTOR_VERSION:
            manifests, row_ids = _with_row_ids(manifests, self.metadata.next_row_id)
        manifest_list = self.list(manifests, None if parent is None else parent.snapshot_id)
        snapshot = Snapshot.new(
            self.snapshot_id,
            parent,
            self.sequence_number,
            timestamp_ms,
            summary,
            manifest_list,
            self.metadata.current_schema_id,
            row_ids,
        )
        return snapshot, tuple(manifests)

    def list(self, manifests: Sequence[Manifest], parent_id: int | None) -> str:
        """Encodes the manifest list and returns its location."""
        location = join(self._encoder.directory, f"snap-{self.snapshot_id}-{uuid.uuid4().hex}.avro")
        metadata = {
            "snapshot-id": str(self.snapshot_id),
            "parent-snapshot-id": "null" if parent_id is None else str(parent_id),
            "sequence-number": str(self.sequence_number),
            "format-version": str(self._encoder.version),
        }
        self.files.append((location, encoded_list(metadata, manifests, self._encoder.version)))
        return location


def _with_row_ids(manifests: Sequence[Manifest], next_row_id: int) -> tuple[list[Manifest], tuple[int, int]]:
    """The manifests of a snapshot, and the first row ID that it may assign with the number of those that it does
    (Iceberg spec, first row ID assignment). Each data manifest that has none gets IDs for its rows without."""
    assigned, first = [], next_row_id
    for manifest in manifests:
        if manifest.content == ManifestContent.DATA and manifest.first_row_id is None:
            rows = manifest.rows[0] + manifest.rows[1]
            if manifest.unassigned_rows is not None:
                rows = manifest.unassigned_rows
            assigned.append(replace(manifest, first_row_id=next_row_id))
            next_row_id += rows
        else:
            assigned.append(manifest)
    return assigned, (first, next_row_id - first)


def _is_open(manifest: Manifest, own_specs: frozenset[int]) -> bool:
    """Whether a manifest of ours can name its files."""
    return manifest.spec_id in own_specs and manifest.key_metadata is None


def _group_of(manifest: Manifest) -> Group:
    return ManifestContent(manifest.content), manifest.spec_id, manifest.deletes


def _overfull(classes: Mapping[int, Sequence[Manifest]], added: int) -> list[Manifest]:
    """The manifests, by size class, that are to be merged into one now, together with this many new entries."""
    due: list[Manifest] = []
    entries = added
    for size_class in sorted(classes):
        members = classes[size_class]
        # What is merged so far counts as one of the class that it reaches.
        joins = entries > 0 and _size_class(entries) == size_class
        if len(members) + joins >= FANOUT:
            due += members
            entries += sum(manifest.live_files for manifest in members)
    return due


def _size_class(files: int) -> int:
    """The power of ten: 0 for 1 to 9 entries."""
    return len(str(files)) - 1
