"""Manifests: entries with explicit sequence numbers, merged like a log-structured tree.

Entries travel as encoded bytes: the manifests that a commit merges were mostly written here, so merging them is
joining bytes, and what a commit costs does not depend on how many commits came before.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import orjson
from pyiceberg.manifest import ManifestContent
from pyiceberg.types import StructType

from mirror_pump.lake.format.avro import container_of_block, raw_records
from mirror_pump.lake.format.data_files import FORMAT_VERSION, FileContent, WrittenFile
from mirror_pump.lake.format.manifest_entries import (
    NO_PARTITION,
    ManifestEntry,
    Status,
    StoredEntry,
    existing,
    file_values,
    formats_of,
    stored_entries,
)
from mirror_pump.lake.format.manifest_list import Manifest, encoded_list, with_line
from mirror_pump.lake.format.metadata import current_schema
from mirror_pump.lake.format.snapshot_summary import FileTally
from mirror_pump.lake.storage import StorageOptions, join, read_bytes

FANOUT = 10
"""This many manifests of one size class become one of the next: an entry is rewritten once per power of ten, and a
list names at most nine manifests per class and content."""

FULL = 10_000
"""Entries from which on a manifest is left alone: some 2 MB, a unit of planning that engines can skip by bounds."""

HELD = 100
"""A manifest made here of at most this many entries keeps them in memory: most of its kind are merged, or lose files,
within minutes."""


_Group: TypeAlias = tuple[ManifestContent, int, FileContent | None]
"""What manifests have to share to be merged: content, partition spec, and the kind of their deletes."""


@dataclass
class Removal:
    """Manifests after files were removed from them."""

    untouched: list[Manifest]
    rewritten: list[Manifest]
    """Name the removed files as deleted; not to be merged in the same snapshot, which would hide that."""
    removed: FileTally


class ManifestWriter:
    """Collects the manifests of one snapshot: encodes them in memory, so that their writing can be one step.

    `metadata` is the table metadata they are written under.
    """

    def __init__(self, metadata: Mapping[str, Any], directory: str, snapshot_id: int, sequence_number: int) -> None:
        self._metadata = metadata
        self._directory = directory
        self._snapshot_id = snapshot_id
        self._sequence_number = sequence_number
        self.files: list[tuple[str, bytes]] = []
        """Location and content of everything encoded so far, not yet written."""

    def add(self, content: ManifestContent, files: Sequence[tuple[WrittenFile, int]]) -> Manifest | None:
        """A manifest of new files, each with its explicit data sequence number; None if there are none."""
        encoder = formats_of(NO_PARTITION).data_file
        entries = tuple(
            ManifestEntry(
                Status.ADDED,
                self._snapshot_id,
                sequence,
                None,
                file.content,
                file.path,
                file.record_count,
                file.size_bytes,
                encoder.encode(*file_values(file)),
            )
            for file, sequence in files
        )
        if not entries:
            return None
        spec_id = self._metadata["default-spec-id"]
        manifest = self._write(content, spec_id, NO_PARTITION, entries)
        manifest = replace(manifest, deletes=_kind(content, {file.content for file, _ in files}))
        return replace(manifest, entries=entries) if len(entries) <= HELD else manifest

    def merge(self, manifests: Sequence[Manifest], storage: StorageOptions) -> list[Manifest]:
        """The manifests to carry over from the parent: without those that hold nothing live, small ones merged.

        Amortised: a commit in ten merges ten manifests of one entry or so, one in a hundred ten of ten, and so on.
        """
        unpartitioned = {spec["spec-id"] for spec in self._metadata["partition-specs"] if not spec["fields"]}
        carried: list[Manifest] = []
        groups: dict[_Group, dict[int, list[Manifest]]] = defaultdict(lambda: defaultdict(list))
        for manifest in manifests:
            if not manifest.live_files:
                continue
            if manifest.spec_id in unpartitioned and manifest.live_files < FULL and manifest.key_metadata is None:
                group = ManifestContent(manifest.content), manifest.spec_id, manifest.deletes
                groups[group][_size_class(manifest.live_files)].append(manifest)
            else:
                carried.append(manifest)
        for group, classes in groups.items():
            pending: list[Manifest] = []
            for size_class in range(_size_class(FULL) + 1):
                found = classes.get(size_class, [])
                # What smaller classes gave counts as one manifest of its new class; written once it joins no other.
                joins = bool(pending) and _size_class(sum(one.live_files for one in pending)) == size_class
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
        """Has manifests say of the live files that are `doomed` that this snapshot deleted them.

        Only manifests that `may_hold` such a file are read, and those only whose entries are not in memory.
        """
        result = Removal([], [], FileTally())
        for manifest in manifests:
            if not manifest.live_files:
                continue
            if not may_hold(manifest):
                result.untouched.append(manifest)
                continue
            partition, present = _existing(manifest, storage)
            entries = []
            left: set[int] = set()
            for one in present:
                if doomed(one):
                    result.removed.count(one.content, one.records, one.size_bytes)
                    entries.append(replace(one, status=Status.DELETED, snapshot_id=self._snapshot_id))
                else:
                    left.add(one.content)
                    entries.append(one)
            kind = _kind(manifest.content, left)
            if left and all(entry.status is Status.EXISTING for entry in entries):
                result.untouched.append(replace(manifest, deletes=kind))
                continue
            written = self._write(ManifestContent(manifest.content), manifest.spec_id, partition, entries)
            result.rewritten.append(with_line(replace(written, partitions=manifest.partitions, deletes=kind)))
        return result

    def without(
        self, manifests: Sequence[Manifest], storage: StorageOptions, files: Mapping[str, Collection[str]]
    ) -> list[Manifest]:
        """Manifests for a snapshot that is no child of theirs, without some of their live files: `files` has the URIs
        by manifest. Nothing is said of what is left out; manifests that lose nothing are carried over as they are."""
        kept: list[Manifest] = []
        for manifest in manifests:
            gone = files.get(manifest.path, ())
            if not manifest.live_files:
                continue
            if not gone:
                kept.append(manifest)
                continue
            partition, present = _existing(manifest, storage)
            entries = [one for one in present if one.path not in gone]
            if entries:
                written = self._write(ManifestContent(manifest.content), manifest.spec_id, partition, entries)
                kept.append(with_line(replace(written, partitions=manifest.partitions)))
        return kept

    def list(self, manifests: Sequence[Manifest], parent_id: int | None) -> str:
        """Encodes the manifest list and returns its location."""
        location = join(self._directory, f"snap-{self._snapshot_id}-{uuid.uuid4().hex}.avro")
        metadata = {
            "snapshot-id": str(self._snapshot_id),
            "parent-snapshot-id": "null" if parent_id is None else str(parent_id),
            "sequence-number": str(self._sequence_number),
            "format-version": str(FORMAT_VERSION),
        }
        self.files.append((location, encoded_list(metadata, manifests)))
        return location

    def _merged(self, group: _Group, manifests: Sequence[Manifest], storage: StorageOptions) -> Manifest:
        """One manifest of all live entries of several, as existing ones with their own numbers."""
        content, spec_id, deletes = group
        formats = formats_of(NO_PARTITION)
        held: list[ManifestEntry] | None = []
        payloads: list[bytes] = []
        count = rows = 0
        for manifest in manifests:
            if manifest.entries is None:
                held = None
                unchanged = manifest.files[0] == manifest.files[2] == 0
                raw = raw_records(read_bytes(manifest.path, storage), formats.schema) if unchanged else None
                if raw is None:
                    stored = _stored(manifest, storage)[1]
                    payloads.extend(formats.entry(one.encoded(NO_PARTITION)) for one in stored)
                    count += len(stored)
                else:
                    count += raw[0]
                    payloads.append(raw[1])
            else:
                entries = [existing(entry, manifest.sequence_number) for entry in manifest.entries]
                payloads.extend(map(formats.entry, entries))
                count += len(entries)
                if held is not None:
                    held.extend(entries)
            rows += manifest.rows[0] + manifest.rows[1]
        minimum = min(manifest.min_sequence_number for manifest in manifests)
        location, length = self._encode(content, spec_id, NO_PARTITION, count, b"".join(payloads))
        return with_line(
            Manifest(
                location,
                length,
                spec_id,
                content,
                self._sequence_number,
                minimum,
                self._snapshot_id,
                (0, count, 0),
                (0, rows, 0),
                entries=tuple(held) if held is not None and len(held) <= HELD else None,
                deletes=deletes,
            )
        )

    def _write(
        self, content: ManifestContent, spec_id: int, partition: StructType, entries: Sequence[ManifestEntry]
    ) -> Manifest:
        formats = formats_of(partition)
        payload = b"".join(formats.entry(entry) for entry in entries)
        location, length = self._encode(content, spec_id, partition, len(entries), payload)
        files = dict.fromkeys(Status, 0)
        rows = dict.fromkeys(Status, 0)
        for entry in entries:
            files[entry.status] += 1
            rows[entry.status] += entry.records
        live = [entry.sequence_number for entry in entries if entry.status is not Status.DELETED]
        order = (Status.ADDED, Status.EXISTING, Status.DELETED)
        return with_line(
            Manifest(
                location,
                length,
                spec_id,
                content,
                self._sequence_number,
                min(live, default=self._sequence_number),
                self._snapshot_id,
                (files[order[0]], files[order[1]], files[order[2]]),
                (rows[order[0]], rows[order[1]], rows[order[2]]),
            )
        )

    def _encode(
        self, content: ManifestContent, spec_id: int, partition: StructType, count: int, payload: bytes
    ) -> tuple[str, int]:
        spec = next(one for one in self._metadata["partition-specs"] if one["spec-id"] == spec_id)
        header = {
            "schema": orjson.dumps(current_schema(self._metadata)).decode(),
            "partition-spec": orjson.dumps(spec["fields"]).decode(),
            "partition-spec-id": str(spec_id),
            "format-version": str(FORMAT_VERSION),
            "content": "deletes" if content == ManifestContent.DELETES else "data",
        }
        location = join(self._directory, f"{uuid.uuid4().hex}-m{len(self.files)}.avro")
        encoded = container_of_block(formats_of(partition).schema, header, count, payload)
        self.files.append((location, encoded))
        return location, len(encoded)


def stored_of(manifest: Manifest, storage: StorageOptions) -> list[StoredEntry]:
    """The manifest's live entries, with the sequence numbers that count. Raises LakeError."""
    return _stored(manifest, storage)[1]


def entries_of(manifest: Manifest, storage: StorageOptions) -> Sequence[ManifestEntry | StoredEntry]:
    """Paths and sequence numbers of the manifest's live files; reads it unless they are in memory. Raises LakeError."""
    return stored_of(manifest, storage) if manifest.entries is None else manifest.entries


def _kind(content: int, kinds: Collection[int]) -> FileContent | None:
    """What a manifest may be said to hold: a kind of deletes if all its live entries are of it."""
    return FileContent(next(iter(kinds))) if content == ManifestContent.DELETES and len(kinds) == 1 else None


def _existing(manifest: Manifest, storage: StorageOptions) -> tuple[StructType, list[ManifestEntry]]:
    """Partition type and live entries, as later manifests carry them."""
    if manifest.entries is not None:
        # Those made here, which are unpartitioned.
        return NO_PARTITION, [existing(entry, manifest.sequence_number) for entry in manifest.entries]
    partition, stored = _stored(manifest, storage)
    return partition, [one.encoded(partition) for one in stored]


def _stored(manifest: Manifest, storage: StorageOptions) -> tuple[StructType, list[StoredEntry]]:
    content = read_bytes(manifest.path, storage)
    return stored_entries(content, manifest.added_snapshot_id, manifest.sequence_number)


def _size_class(files: int) -> int:
    """Power of ten: 0 for 1 to 9 entries."""
    return len(str(files)) - 1
