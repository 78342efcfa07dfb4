"""Writes manifests with explicit sequence numbers, and merges them like a log-structured merge tree.

Entries are passed on as encoded bytes. Most manifests that a commit merges were written here, so merging them means
joining bytes, and the cost of a commit does not depend on the number of earlier commits.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import orjson
from pyiceberg.manifest import ManifestContent
from pyiceberg.types import StructType

from mirror_pump.errors import ForeignTable
from mirror_pump.lake.format.damaged_files import decoding
from mirror_pump.lake.format.data_files import FORMAT_VERSION, FileContent, WrittenFile
from mirror_pump.lake.metadata.avro import container_of_block, raw_records
from mirror_pump.lake.metadata.manifest_entries import (
    ManifestEntry,
    Status,
    StoredEntry,
    existing,
    file_values,
    formats_of,
    stored_entries,
)
from mirror_pump.lake.metadata.manifest_list import Manifest, encoded_list, with_line
from mirror_pump.lake.metadata.partition_summaries import Summaries, can_unite, summaries_of, united
from mirror_pump.lake.metadata.snapshot_summary import FileCounts
from mirror_pump.lake.metadata.table_metadata import TableMetadata
from mirror_pump.lake.storage import StorageOptions, join, read_bytes

FANOUT = 10
"""This many manifests of one size class are merged into one of the next class. So an entry is rewritten once per power
of ten, and a list names at most nine manifests per class and content."""

FULL = 10_000
"""Manifests with this many entries are no longer merged: at some 2 MB, engines can skip them by their bounds."""

HELD = 100
"""A new manifest keeps its entries in memory up to this many: most small manifests are merged, or lose files, within
minutes."""


_Group: TypeAlias = tuple[ManifestContent, int, FileContent | None]
"""What manifests must have in common to be merged: content, partition spec, and the kind of their deletes."""


@dataclass
class Removal:
    """The manifests of a snapshot after files were removed from it."""

    untouched: list[Manifest]
    rewritten: list[Manifest]
    """Mark the removed files as deleted. Must not be merged in the same snapshot, which would lose these marks."""
    removed: FileCounts


class ManifestWriter:
    """Collects the manifests of one snapshot, encoded in memory, so that all of them can be written in one step.

    `metadata` is the table metadata that they are written under.
    """

    def __init__(
        self,
        metadata: TableMetadata,
        directory: str,
        snapshot_id: int,
        sequence_number: int,
        *,
        full: int = FULL,
        partition_types: Callable[[int], StructType | None] | None = None,
    ) -> None:
        """`full`: manifests with this many entries are no longer merged. `partition_types`: the type of partitions
        under a spec of the table, None for one that cannot be written; by default only the mirror's own can."""
        self._metadata = metadata
        self._partition_types = partition_types or metadata.partition_type
        self._directory = directory
        self._full = full
        self.snapshot_id = snapshot_id
        self.sequence_number = sequence_number
        self.files: list[tuple[str, bytes]] = []
        """Location and content of every file encoded so far; none is written yet."""

    def add(self, content: ManifestContent, files: Sequence[tuple[WrittenFile, int]]) -> Manifest | None:
        """A manifest of new files, each with its explicit data sequence number; None without files.

        Raises ValueError for a file whose partition does not fit the table's partition spec.
        """
        spec_id = self._metadata.default_spec_id
        partition = self._partition_type(spec_id)
        for file, _ in files:
            if len(file.partition) != len(partition.fields):
                raise ValueError(f"{file.path} of partition {file.partition} does not fit partition spec {spec_id}")
        encoder = formats_of(partition).data_file
        entries = tuple(
            ManifestEntry(
                Status.ADDED,
                self.snapshot_id,
                sequence,
                None,
                file.content,
                file.path,
                file.record_count,
                file.size_bytes,
                file.partition,
                encoder.encode(*file_values(file)),
            )
            for file, sequence in files
        )
        if not entries:
            return None
        manifest = self._write(content, spec_id, partition, entries)
        manifest = replace(manifest, deletes=_kind(content, {file.content for file, _ in files}))
        return replace(manifest, entries=entries) if len(entries) <= HELD else manifest

    def merge(self, manifests: Sequence[Manifest], storage: StorageOptions) -> list[Manifest]:
        """The manifests to carry over from the parent: small ones merged, and those without live files left out.

        Amortised cost: one commit in ten merges ten manifests of about one entry each, one in a hundred merges ten of
        ten entries, and so on.
        """
        own_specs = {
            spec.spec_id for spec in self._metadata.partition_specs if self._partition_types(spec.spec_id) is not None
        }
        carried: list[Manifest] = []
        groups: dict[_Group, dict[int, list[Manifest]]] = defaultdict(lambda: defaultdict(list))
        for manifest in manifests:
            if not manifest.live_files:
                continue
            open_to_more = manifest.live_files < self._full and manifest.key_metadata is None
            if manifest.spec_id in own_specs and open_to_more:
                group = ManifestContent(manifest.content), manifest.spec_id, manifest.deletes
                groups[group][_size_class(manifest.live_files)].append(manifest)
            else:
                carried.append(manifest)
        for group, classes in groups.items():
            pending: list[Manifest] = []
            for size_class in range(_size_class(self._full) + 1):
                found = classes.get(size_class, [])
                # Manifests pending from smaller classes count as one of the class that they reach together. They are
                # written as soon as they reach none.
                joins = bool(pending) and _size_class(sum(manifest.live_files for manifest in pending)) == size_class
                if len(found) + joins < FANOUT:
                    carried.extend(found)
                    continue
                if pending and not joins:
                    carried.append(self._merged(group, pending, storage))
                    pending = []
                pending = [*pending, *found]
            if pending:
                carried.append(self._merged(group, pending, storage))
        return carried

    def remove(
        self,
        manifests: Sequence[Manifest],
        storage: StorageOptions,
        doomed: Callable[[ManifestEntry], bool],
        may_hold: Callable[[Manifest], bool],
    ) -> Removal:
        """Marks live files for which `doomed` is true as deleted by this snapshot.

        Reads only manifests for which `may_hold` is true, and of these only those whose entries are not in memory.
        """
        result = Removal([], [], FileCounts())
        for manifest in manifests:
            if not manifest.live_files:
                continue
            if not may_hold(manifest):
                result.untouched.append(manifest)
                continue
            partition, present = self._existing(manifest, storage)
            entries = []
            remaining: set[int] = set()
            for entry in present:
                if doomed(entry):
                    result.removed.add(entry.content, entry.records, entry.size_bytes, entry.partition)
                    entries.append(replace(entry, status=Status.DELETED, snapshot_id=self.snapshot_id))
                else:
                    remaining.add(entry.content)
                    entries.append(entry)
            kind = _kind(manifest.content, remaining)
            if remaining and all(entry.status is Status.EXISTING for entry in entries):
                result.untouched.append(replace(manifest, deletes=kind))
                continue
            written = self._write(ManifestContent(manifest.content), manifest.spec_id, partition, entries, manifest)
            result.rewritten.append(replace(written, deletes=kind))
        return result

    def without(
        self, manifests: Sequence[Manifest], storage: StorageOptions, files: Mapping[str, Collection[str]]
    ) -> list[Manifest]:
        """Manifests for a snapshot that is not a child of theirs, without the live files in `files` (URIs by manifest).

        The files left out are not marked as deleted. Manifests that lose nothing are carried over unchanged.
        """
        kept: list[Manifest] = []
        for manifest in manifests:
            excluded = files.get(manifest.path, ())
            if not manifest.live_files:
                continue
            if not excluded:
                kept.append(manifest)
                continue
            partition, present = self._existing(manifest, storage)
            entries = [entry for entry in present if entry.path not in excluded]
            if entries:
                content = ManifestContent(manifest.content)
                kept.append(self._write(content, manifest.spec_id, partition, entries, manifest))
        return kept

    def list(self, manifests: Sequence[Manifest], parent_id: int | None) -> str:
        """Encodes the manifest list and returns its location."""
        location = join(self._directory, f"snap-{self.snapshot_id}-{uuid.uuid4().hex}.avro")
        metadata = {
            "snapshot-id": str(self.snapshot_id),
            "parent-snapshot-id": "null" if parent_id is None else str(parent_id),
            "sequence-number": str(self.sequence_number),
            "format-version": str(FORMAT_VERSION),
        }
        self.files.append((location, encoded_list(metadata, manifests)))
        return location

    def _existing(self, manifest: Manifest, storage: StorageOptions) -> tuple[StructType, Sequence[ManifestEntry]]:
        """Partition type and live entries, in the form that later manifests hold."""
        if manifest.entries is not None:
            # Only manifests written here keep their entries.
            entries = [existing(entry, manifest.sequence_number) for entry in manifest.entries]
            return self._partition_type(manifest.spec_id), entries
        partition, stored = _stored(manifest, storage)
        return partition, [entry.encoded(partition) for entry in stored]

    def _partition_type(self, spec_id: int) -> StructType:
        """The partition type of a spec. Raises ForeignTable for one that cannot be written."""
        partition = self._partition_types(spec_id)
        if partition is None:
            raise ForeignTable(
                f"partition spec {spec_id} of {self._metadata.location} is not the mirror's",
                "unregister and register the table; no other engine may partition its lake table",
            )
        return partition

    def _merged(self, group: _Group, manifests: Sequence[Manifest], storage: StorageOptions) -> Manifest:
        """One manifest of all live entries of several, which keep their sequence numbers, with status existing."""
        content, spec_id, deletes = group
        partition = self._partition_type(spec_id)
        formats = formats_of(partition)
        cached: list[ManifestEntry] | None = []
        payloads: list[bytes] = []
        summaries: list[Summaries | None] = []
        count = rows = 0
        for manifest in manifests:
            summary = manifest.partitions
            if manifest.entries is None:
                cached = None
                unchanged = manifest.files[0] == manifest.files[2] == 0 and can_unite(partition, summary)
                raw = _raw(manifest, storage, formats.schema) if unchanged else None
                if raw is None:
                    stored = _stored(manifest, storage)[1]
                    payloads.extend(formats.entry(entry.encoded(partition)) for entry in stored)
                    count += len(stored)
                    summary = summaries_of(partition, [entry.partition for entry in stored])
                else:
                    count += raw[0]
                    payloads.append(raw[1])
            else:
                entries = [existing(entry, manifest.sequence_number) for entry in manifest.entries]
                payloads.extend(map(formats.entry, entries))
                count += len(entries)
                summary = summaries_of(partition, [entry.partition for entry in entries])
                if cached is not None:
                    cached.extend(entries)
            summaries.append(summary)
            rows += manifest.rows[0] + manifest.rows[1]
        minimum = min(manifest.min_sequence_number for manifest in manifests)
        location, length = self._encode(content, spec_id, partition, count, b"".join(payloads))
        return with_line(
            Manifest(
                location,
                length,
                spec_id,
                content,
                self.sequence_number,
                minimum,
                self.snapshot_id,
                (0, count, 0),
                (0, rows, 0),
                united(partition, summaries),
                entries=tuple(cached) if cached is not None and len(cached) <= HELD else None,
                deletes=deletes,
            )
        )

    def _write(
        self,
        content: ManifestContent,
        spec_id: int,
        partition: StructType,
        entries: Sequence[ManifestEntry],
        former: Manifest | None = None,
    ) -> Manifest:
        """A manifest of these entries. `former`: the manifest that had them before, if there was one."""
        formats = formats_of(partition)
        payload = b"".join(formats.entry(entry) for entry in entries)
        location, length = self._encode(content, spec_id, partition, len(entries), payload)
        files = dict.fromkeys(Status, 0)
        rows = dict.fromkeys(Status, 0)
        for entry in entries:
            files[entry.status] += 1
            rows[entry.status] += entry.records
        live = [entry.sequence_number for entry in entries if entry.status is not Status.DELETED]
        summaries = summaries_of(partition, [entry.partition for entry in entries])
        if summaries is None and former is not None:
            # Another engine's spec. What holds for all entries holds for some of them.
            summaries = former.partitions
        order = (Status.ADDED, Status.EXISTING, Status.DELETED)
        return with_line(
            Manifest(
                location,
                length,
                spec_id,
                content,
                self.sequence_number,
                min(live, default=self.sequence_number),
                self.snapshot_id,
                (files[order[0]], files[order[1]], files[order[2]]),
                (rows[order[0]], rows[order[1]], rows[order[2]]),
                summaries,
            )
        )

    def _encode(
        self, content: ManifestContent, spec_id: int, partition: StructType, count: int, payload: bytes
    ) -> tuple[str, int]:
        spec = next(spec for spec in self._metadata.partition_specs if spec.spec_id == spec_id)
        schema = self._metadata.schema_document(self._metadata.current_schema_id)
        header = {
            "schema": orjson.dumps(schema).decode(),
            "partition-spec": orjson.dumps(spec.fields).decode(),
            "partition-spec-id": str(spec_id),
            "format-version": str(FORMAT_VERSION),
            "content": "deletes" if content == ManifestContent.DELETES else "data",
        }
        location = join(self._directory, f"{uuid.uuid4().hex}-m{len(self.files)}.avro")
        encoded = container_of_block(formats_of(partition).schema, header, count, payload)
        self.files.append((location, encoded))
        return location, len(encoded)


def stored_of(manifest: Manifest, storage: StorageOptions) -> list[StoredEntry]:
    """The manifest's live entries, with inherited sequence numbers filled in. Raises LakeError."""
    return _stored(manifest, storage)[1]


def entries_of(manifest: Manifest, storage: StorageOptions) -> Sequence[ManifestEntry | StoredEntry]:
    """The manifest's live entries, from memory or else read from storage. Raises LakeError."""
    return stored_of(manifest, storage) if manifest.entries is None else manifest.entries


def _kind(content: int, kinds: Collection[int]) -> FileContent | None:
    """The kind of deletes of a manifest if all its live entries are of one kind, else None."""
    return FileContent(next(iter(kinds))) if content == ManifestContent.DELETES and len(kinds) == 1 else None


def _stored(manifest: Manifest, storage: StorageOptions) -> tuple[StructType, list[StoredEntry]]:
    content = read_bytes(manifest.path, storage)
    with decoding(manifest.path, "a readable manifest"):
        return stored_entries(content, manifest.added_snapshot_id, manifest.sequence_number)


def _raw(manifest: Manifest, storage: StorageOptions, schema: str) -> tuple[int, bytes] | None:
    """The manifest's entries as they are encoded; None if it has another schema. Raises LakeError."""
    content = read_bytes(manifest.path, storage)
    with decoding(manifest.path, "a readable manifest"):
        return raw_records(content, schema)


def _size_class(files: int) -> int:
    """The power of ten: 0 for 1 to 9 entries."""
    return len(str(files)) - 1
