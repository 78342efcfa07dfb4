"""Manifests and manifest lists: entries with explicit sequence numbers, merged like a log-structured tree.

Entries travel as encoded bytes: the manifests that a commit merges were mostly written here, so merging them is
joining bytes, and what a commit costs does not depend on how many commits came before.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import orjson
from pyiceberg.manifest import MANIFEST_LIST_FILE_SCHEMAS, ManifestContent, ManifestFile, read_manifest_list
from pyiceberg.types import StructType

from mirror_pump.lake.avro import BytesInput, Encoder, container, container_of_block, raw_records, schema_json
from mirror_pump.lake.entries import (
    FORMAT_VERSION,
    NO_PARTITION,
    Entry,
    Status,
    StoredEntry,
    existing,
    file_values,
    formats_of,
    stored_entries,
)
from mirror_pump.lake.files import FileContent, WrittenFile
from mirror_pump.lake.metadata import current_schema
from mirror_pump.lake.storage import StorageOptions, join, read_bytes
from mirror_pump.lake.summary import Tally

FANOUT = 10
"""This many manifests of one size class become one of the next: an entry is rewritten once per power of ten, and a
list names at most nine manifests per class and content."""

FULL = 10_000
"""Entries from which on a manifest is left alone: some 2 MB, a unit of planning that engines can skip by bounds."""

HELD = 100
"""A new manifest with at most this many entries keeps them in memory for its first merge."""


@dataclass(frozen=True)
class Manifest:
    """A line of a manifest list."""

    path: str
    length: int
    spec_id: int
    content: int
    """0 data, 1 deletes."""
    sequence_number: int
    min_sequence_number: int
    added_snapshot_id: int
    files: tuple[int, int, int]
    """Entries by status: added, existing, deleted."""
    rows: tuple[int, int, int]
    partitions: Any = None
    key_metadata: bytes | None = None
    entries: tuple[Entry, ...] | None = None
    """The entries, while it is cheap to hold them."""
    line: bytes = b""
    """This manifest, encoded for a manifest list."""

    @property
    def live_files(self) -> int:
        """Files that a reader of the snapshot sees."""
        return self.files[0] + self.files[1]

    def may_hold_data_of(self, number: int) -> bool:
        """Whether a data file of this data sequence number can be in it; none is younger than its manifest."""
        return self.content == ManifestContent.DATA and self.min_sequence_number <= number <= self.sequence_number


@dataclass(frozen=True)
class LiveFile:
    """A data or equality-delete file of a snapshot."""

    path: str
    sequence_number: int
    """Its data sequence number."""


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

    def add(self, content: ManifestContent, files: Iterable[tuple[WrittenFile, int]]) -> Manifest | None:
        """A manifest of new files, each with its explicit data sequence number; None if there are none."""
        encoder = formats_of(NO_PARTITION).data_file
        entries = tuple(
            Entry(
                Status.ADDED, self._snapshot_id, sequence, None, file.record_count, encoder.encode(*file_values(file))
            )
            for file, sequence in files
        )
        if not entries:
            return None
        spec_id = self._metadata["default-spec-id"]
        manifest = self._write(content, spec_id, NO_PARTITION, entries)
        return replace(manifest, entries=entries) if len(entries) <= HELD else manifest

    def merge(self, manifests: Sequence[Manifest], storage: StorageOptions) -> list[Manifest]:
        """The manifests to carry over from the parent: without those that hold nothing live, small ones merged.

        Amortised: a commit in ten merges ten manifests of one entry or so, one in a hundred ten of ten, and so on.
        """
        unpartitioned = {spec["spec-id"] for spec in self._metadata["partition-specs"] if not spec["fields"]}
        carried: list[Manifest] = []
        classes: dict[tuple[int, int, int], list[Manifest]] = defaultdict(list)
        for manifest in manifests:
            if not manifest.live_files:
                continue
            if manifest.spec_id in unpartitioned and manifest.live_files < FULL and manifest.key_metadata is None:
                classes[manifest.content, manifest.spec_id, _size_class(manifest.live_files)].append(manifest)
            else:
                carried.append(manifest)
        for content, spec_id in sorted({(content, spec_id) for content, spec_id, _ in classes}):
            pending: list[Manifest] = []
            for size_class in range(_size_class(FULL) + 1):
                group = classes.get((content, spec_id, size_class), [])
                # What smaller classes gave counts as one manifest of its new class; written once it joins no other.
                joins = bool(pending) and _size_class(sum(one.live_files for one in pending)) == size_class
                if len(group) + joins < FANOUT:
                    carried.extend(group)
                    continue
                if pending and not joins:
                    carried.append(self._merged(ManifestContent(content), spec_id, pending, storage))
                    pending = []
                pending = [*pending, *group]
            if pending:
                carried.append(self._merged(ManifestContent(content), spec_id, pending, storage))
        return carried

    def remove(
        self, manifests: Sequence[Manifest], storage: StorageOptions, born_at: int | None = None
    ) -> tuple[list[Manifest], Tally]:
        """Manifests that say of every live file that this snapshot deleted it, and what that removes.

        With `born_at`, only of data files of that data sequence number; other files stay.
        """
        removed = Tally()
        result: list[Manifest] = []
        for manifest in manifests:
            if not manifest.live_files:
                continue
            if born_at is not None and not manifest.may_hold_data_of(born_at):
                result.append(manifest)
                continue
            partition, stored = _stored(manifest, storage)
            entries = []
            for one in stored:
                if born_at is None or one.sequence_number == born_at:
                    removed.count(one.content, one.records, one.size_bytes)
                    deleted = one.encoded(partition, Status.DELETED)
                    entries.append(replace(deleted, snapshot_id=self._snapshot_id))
                else:
                    entries.append(one.encoded(partition))
            if all(entry.status is Status.EXISTING for entry in entries):
                result.append(manifest)
                continue
            written = self._write(ManifestContent(manifest.content), manifest.spec_id, partition, entries)
            result.append(_with_line(replace(written, partitions=manifest.partitions)))
        return result, removed

    def list(self, manifests: Sequence[Manifest], parent_id: int | None) -> str:
        """Encodes the manifest list and returns its location."""
        location = join(self._directory, f"snap-{self._snapshot_id}-{uuid.uuid4().hex}.avro")
        metadata = {
            "snapshot-id": str(self._snapshot_id),
            "parent-snapshot-id": "null" if parent_id is None else str(parent_id),
            "sequence-number": str(self._sequence_number),
            "format-version": str(FORMAT_VERSION),
        }
        self.files.append((location, container(_list_schema(), metadata, [one.line for one in manifests])))
        return location

    def _merged(
        self, content: ManifestContent, spec_id: int, manifests: Sequence[Manifest], storage: StorageOptions
    ) -> Manifest:
        """One manifest of all live entries of several, as existing ones with their own numbers."""
        formats = formats_of(NO_PARTITION)
        payloads: list[bytes] = []
        count = rows = 0
        for manifest in manifests:
            if manifest.entries is None:
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
                payloads.extend(formats.entry(existing(entry, manifest.sequence_number)) for entry in manifest.entries)
                count += len(manifest.entries)
            rows += manifest.rows[0] + manifest.rows[1]
        minimum = min(manifest.min_sequence_number for manifest in manifests)
        location, length = self._encode(content, spec_id, NO_PARTITION, count, b"".join(payloads))
        return _with_line(
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
            )
        )

    def _write(
        self, content: ManifestContent, spec_id: int, partition: StructType, entries: Sequence[Entry]
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
        return _with_line(
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


def live_data_files(manifests: Sequence[Manifest], storage: StorageOptions) -> list[LiveFile]:
    """Every data file that a reader of the snapshot sees, whoever added it."""
    return [
        LiveFile(one.path, one.sequence_number)
        for manifest in manifests
        if manifest.content == ManifestContent.DATA and manifest.live_files
        for one in _stored(manifest, storage)[1]
    ]


def live_equality_deletes(manifests: Sequence[Manifest], storage: StorageOptions) -> list[LiveFile]:
    """Every equality-delete file that a reader of the snapshot applies, whoever added it."""
    return [
        LiveFile(one.path, one.sequence_number)
        for manifest in manifests
        if manifest.content == ManifestContent.DELETES and manifest.live_files
        for one in _stored(manifest, storage)[1]
        if one.content == FileContent.EQUALITY_DELETES
    ]


def read_list(location: str, storage: StorageOptions) -> tuple[Manifest, ...]:
    """The manifests of a snapshot, whoever wrote it."""
    return tuple(_from_list(line) for line in read_manifest_list(BytesInput(read_bytes(location, storage))))


def _stored(manifest: Manifest, storage: StorageOptions) -> tuple[StructType, list[StoredEntry]]:
    content = read_bytes(manifest.path, storage)
    return stored_entries(content, manifest.added_snapshot_id, manifest.sequence_number)


@lru_cache(maxsize=1)
def _list_schema() -> str:
    return schema_json(MANIFEST_LIST_FILE_SCHEMAS[FORMAT_VERSION], "manifest_file")


@lru_cache(maxsize=1)
def _list_encoder() -> Encoder:
    return Encoder(MANIFEST_LIST_FILE_SCHEMAS[FORMAT_VERSION].as_struct())


def _size_class(files: int) -> int:
    """Power of ten: 0 for 1 to 9 entries."""
    return len(str(files)) - 1


def _from_list(line: ManifestFile) -> Manifest:
    return _with_line(
        Manifest(
            line.manifest_path,
            line.manifest_length,
            line.partition_spec_id,
            int(line.content),
            line.sequence_number,
            line.min_sequence_number,
            line.added_snapshot_id or 0,
            (line.added_files_count or 0, line.existing_files_count or 0, line.deleted_files_count or 0),
            (line.added_rows_count or 0, line.existing_rows_count or 0, line.deleted_rows_count or 0),
            line.partitions,
            line.key_metadata,
        )
    )


def _with_line(manifest: Manifest) -> Manifest:
    line = _list_encoder().encode(
        manifest.path,
        manifest.length,
        manifest.spec_id,
        manifest.content,
        manifest.sequence_number,
        manifest.min_sequence_number,
        manifest.added_snapshot_id,
        *manifest.files,
        *manifest.rows,
        # An unpartitioned spec has no field summaries; readers want the list all the same.
        manifest.partitions if manifest.partitions is not None else [],
        manifest.key_metadata,
    )
    return replace(manifest, line=line)
