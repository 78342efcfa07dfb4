"""Manifest files: reads their entries, and encodes new ones.

Entries are passed on as encoded bytes. Most manifests that a commit merges were written here, so merging them means
joining bytes.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache, lru_cache
from typing import NamedTuple, TypeAlias

import orjson
from pyiceberg.manifest import ManifestContent
from pyiceberg.types import StructType

from mirror_pump.errors import ForeignTable
from mirror_pump.lake.avro.container_files import container_of_block, file_header, raw_records
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.format.damaged_files import decoding
from mirror_pump.lake.format.data_files import FileContent, WrittenFile
from mirror_pump.lake.format.partitioning import UNPARTITIONED
from mirror_pump.lake.format.versions import FORMAT_VERSION
from mirror_pump.lake.manifests.entry_reader import Status
from mirror_pump.lake.manifests.manifest_entries import (
    Formats,
    ManifestEntry,
    StoredEntry,
    existing_entries,
    formats_of,
    stored_entries,
)
from mirror_pump.lake.manifests.manifest_list import Manifest, read_manifest, with_line
from mirror_pump.lake.manifests.partition_summaries import Summaries, can_unite, summaries_of, united
from mirror_pump.lake.storage import StorageOptions, join

MOST_ENTRIES_IN_MEMORY = 100
"""A new manifest keeps its live entries in memory up to this many: most small manifests are merged, or lose files,
within minutes. Of deletion vectors it keeps all, since the next commit that hides rows of the same files replaces
them."""

_MOST_CACHED_BYTES = 32 << 10
"""Of a schema whose header stays in memory."""

Group: TypeAlias = tuple[ManifestContent, int, FileContent | None]
"""What manifests should have in common to be merged: content, partition spec, and the kind of their deletes."""


class ManifestEncoder:
    """Encodes the manifests of one snapshot in memory, so that all of them can be written in one step."""

    def __init__(
        self,
        metadata: TableMetadata,
        snapshot_id: int,
        sequence_number: int,
        partition_types: Callable[[int], StructType | None] | None,
        directory: str,
    ) -> None:
        """As of ManifestWriter (mirror_pump.lake.manifests.manifests). `directory`: where the files are to be."""
        self._metadata = metadata
        self.partition_types = cache(partition_types or metadata.partition_type)
        self.directory = directory
        self.version = max(metadata.format_version, FORMAT_VERSION)
        self._snapshot_id = snapshot_id
        self._sequence_number = sequence_number
        self.files: list[tuple[str, bytes]] = []
        """Location and content of every file encoded so far; none is written yet."""

    def added(self, files: Sequence[tuple[WrittenFile, int]], spec_id: int) -> tuple[ManifestEntry, ...]:
        """The entries of new files of a partition spec."""
        if not files:
            return ()
        partition = self.partition_type(spec_id)
        for file, _ in files:
            if len(file.partition) != len(partition.fields):
                raise ValueError(f"{file.path} of partition {file.partition} does not fit partition spec {spec_id}")
        formats = formats_of(partition)
        return tuple(
            ManifestEntry(
                Status.ADDED,
                self._snapshot_id,
                sequence,
                None,
                file.content,
                file.path,
                file.record_count,
                file.size_bytes,
                file.partition,
                formats.file(file),
                file.referenced_data_file,
                file.blob,
                file.first_row_id,
            )
            for file, sequence in files
        )

    def spec_of(self, file: WrittenFile) -> int:
        """The partition spec of a new file: its own, or else that of data files, but for equality deletes that apply to
        every partition."""
        if file.spec_id is not None:
            return file.spec_id
        if file.content is FileContent.EQUALITY_DELETES and file.partition == UNPARTITIONED:
            without = self._metadata.global_spec_id
            if without is not None and without in self._metadata.own_spec_ids:
                return without
        return self._metadata.default_spec_id

    def by_spec(self, files: Sequence[tuple[WrittenFile, int]]) -> Iterator[tuple[int, list[tuple[WrittenFile, int]]]]:
        """The files by their partition specs; the default one, and an empty list, for none."""
        specs: dict[int, list[tuple[WrittenFile, int]]] = defaultdict(list)
        for file in files:
            specs[self.spec_of(file[0])].append(file)
        yield from specs.items() or [(self._metadata.default_spec_id, [])]

    def existing(self, manifest: Manifest, storage: StorageOptions) -> tuple[StructType, Sequence[ManifestEntry]]:
        """Partition type and live entries, in the form that later manifests hold."""
        if manifest.entries is not None:
            # Only manifests written here keep their entries.
            entries = existing_entries(manifest.entries, manifest.sequence_number, manifest.first_row_id)
            return self.partition_type(manifest.spec_id), entries
        partition, stored = _stored(manifest, storage)
        return partition, [entry.encoded(partition) for entry in stored]

    def partition_type(self, spec_id: int) -> StructType:
        """The partition type of a spec. Raises ForeignTable for one that cannot be written."""
        partition = self.partition_types(spec_id)
        if partition is None:
            raise ForeignTable(
                f"partition spec {spec_id} of {self._metadata.location} is not the mirror's",
                "unregister and register the table; no other engine may partition its lake table",
            )
        return partition

    def merged(
        self,
        group: Group,
        added: Sequence[ManifestEntry],
        manifests: Sequence[Manifest],
        storage: StorageOptions,
    ) -> Manifest:
        """One manifest of new entries, which come first, and all live entries of several manifests, which keep their
        sequence numbers, with status existing."""
        content, spec_id, deletes = group
        partition = self.partition_type(spec_id)
        formats = formats_of(partition, self.version)
        cached: list[ManifestEntry] | None = list(added)
        payloads = list(map(formats.entry, added))
        summaries = [summaries_of(partition, [entry.partition for entry in added])] if added else []
        count = rows = 0
        unassigned = _rows_without_ids(content, added)
        for manifest in manifests:
            if manifest.entries is None:
                cached = None
                number, payload, summary, without_ids = _carried(manifest, storage, partition, formats)
                payloads.append(payload)
                unassigned += without_ids
            else:
                entries = existing_entries(manifest.entries, manifest.sequence_number, manifest.first_row_id)
                unassigned += _rows_without_ids(content, entries)
                payloads.extend(map(formats.entry, entries))
                number = len(entries)
                summary = summaries_of(partition, [entry.partition for entry in entries])
                if cached is not None:
                    cached.extend(entries)
            count += number
            summaries.append(summary)
            rows += manifest.rows[0] + manifest.rows[1]
        numbers = [entry.sequence_number for entry in added]
        numbers += [manifest.min_sequence_number for manifest in manifests]
        location, length = self._encode(content, spec_id, partition, len(added) + count, b"".join(payloads))
        return with_line(
            Manifest(
                location,
                length,
                spec_id,
                content,
                self._sequence_number,
                min(numbers),
                self._snapshot_id,
                (len(added), count, 0),
                (sum(entry.records for entry in added), rows, 0),
                united(partition, summaries),
                entries=tuple(cached) if cached is not None and _is_kept(cached) else None,
                first_entries=tuple(added) if len(added) <= MOST_ENTRIES_IN_MEMORY else (),
                deletes=deletes,
                unassigned_rows=unassigned,
            )
        )

    def written(
        self,
        content: ManifestContent,
        spec_id: int,
        partition: StructType,
        entries: Sequence[ManifestEntry],
        source: Manifest | None = None,
    ) -> Manifest:
        """A manifest of these entries. `source`: the manifest that had them before, if there was one."""
        formats = formats_of(partition, self.version)
        payload = b"".join(formats.entry(entry) for entry in entries)
        location, length = self._encode(content, spec_id, partition, len(entries), payload)
        files = dict.fromkeys(Status, 0)
        rows = dict.fromkeys(Status, 0)
        for entry in entries:
            files[entry.status] += 1
            rows[entry.status] += entry.records
        live = tuple(entry for entry in entries if entry.status is not Status.DELETED)
        summaries = summaries_of(partition, [entry.partition for entry in entries])
        if summaries is None and source is not None:
            # Another engine's spec. What holds for all entries holds for some of them.
            summaries = source.partitions
        order = (Status.ADDED, Status.EXISTING, Status.DELETED)
        return with_line(
            Manifest(
                location,
                length,
                spec_id,
                content,
                self._sequence_number,
                min((entry.sequence_number for entry in live), default=self._sequence_number),
                self._snapshot_id,
                (files[order[0]], files[order[1]], files[order[2]]),
                (rows[order[0]], rows[order[1]], rows[order[2]]),
                summaries,
                entries=live if _is_kept(live) and self.partition_types(spec_id) is not None else None,
                unassigned_rows=_rows_without_ids(content, live),
            )
        )

    def _encode(
        self, content: ManifestContent, spec_id: int, partition: StructType, count: int, payload: bytes
    ) -> tuple[str, int]:
        spec = next(spec for spec in self._metadata.partition_specs if spec.spec_id == spec_id)
        schema = self._metadata.schema_document(self._metadata.current_schema_id)
        record = formats_of(partition, self.version).schema
        is_data = content != ManifestContent.DELETES
        document = orjson.dumps(schema)
        header_of = _header if len(document) <= _MOST_CACHED_BYTES else _header.__wrapped__
        header = header_of(record, document, orjson.dumps(spec.fields), spec_id, self.version, is_data)
        location = join(self.directory, f"{uuid.uuid4().hex}-m{len(self.files)}.avro")
        encoded = container_of_block(header, count, payload)
        self.files.append((location, encoded))
        return location, len(encoded)


@lru_cache(maxsize=1000)
def _header(record: str, schema: bytes, fields: bytes, spec_id: int, version: int, is_data: bool) -> bytes:
    """What a manifest begins with: that of a table's next commit is the same."""
    metadata = {
        "schema": schema.decode(),
        "partition-spec": fields.decode(),
        "partition-spec-id": str(spec_id),
        "format-version": str(version),
        "content": "data" if is_data else "deletes",
    }
    return file_header(record, metadata)


def stored_of(manifest: Manifest, storage: StorageOptions) -> list[StoredEntry]:
    """The manifest's live entries, with inherited sequence numbers filled in. Raises LakeError."""
    return _stored(manifest, storage)[1]


def entries_of(manifest: Manifest, storage: StorageOptions) -> Sequence[ManifestEntry | StoredEntry]:
    """The manifest's live entries, from memory or else read from storage. Raises LakeError."""
    return stored_of(manifest, storage) if manifest.entries is None else manifest.entries


def kind_of(content: int, kinds: Collection[int]) -> FileContent | None:
    """The kind of deletes of a manifest if all its live entries are of one kind, else None."""
    return FileContent(next(iter(kinds))) if content == ManifestContent.DELETES and len(kinds) == 1 else None


def _stored(manifest: Manifest, storage: StorageOptions) -> tuple[StructType, list[StoredEntry]]:
    content = read_manifest(manifest, storage)
    with decoding(manifest.path, "a readable manifest"):
        return stored_entries(content, manifest.added_snapshot_id, manifest.sequence_number, manifest.first_row_id)


def _is_kept(entries: Sequence[ManifestEntry]) -> bool:
    return len(entries) <= MOST_ENTRIES_IN_MEMORY or all(entry.blob is not None for entry in entries)


def _rows_without_ids(content: int, entries: Sequence[ManifestEntry]) -> int:
    """Rows of live data files whose entries have no first row ID."""
    if content != ManifestContent.DATA:
        return 0
    return sum(entry.records for entry in entries if entry.first_row_id is None)


class _Carried(NamedTuple):
    """The live entries of a manifest file, with status existing."""

    number: int
    payload: bytes
    """Their encoding."""
    summaries: Summaries | None
    """Of their partitions."""
    rows_without_ids: int
    """As `Manifest.unassigned_rows`."""


def _carried(manifest: Manifest, storage: StorageOptions, partition: StructType, formats: Formats) -> _Carried:
    first = manifest.first_entries
    added, _, deleted = manifest.files
    inherit = manifest.content == ManifestContent.DATA and manifest.first_row_id is not None
    # Without row IDs of their own, entries that are not in memory would need those that they inherit.
    only_first = not inherit or manifest.unassigned_rows == _rows_without_ids(manifest.content, first)
    if added == len(first) and not deleted and only_first and can_unite(partition, manifest.partitions):
        raw = _raw(manifest, storage, formats.schema)
        if raw is not None:
            number, payload = raw
            entries = existing_entries(first, manifest.sequence_number, manifest.first_row_id)
            changed = b"".join(map(formats.entry, entries))
            # All other entries are what they were, so their bytes stay.
            rest = payload[sum(len(formats.entry(entry)) for entry in first) :]
            unassigned = 0 if inherit else manifest.unassigned_rows or 0
            return _Carried(number, changed + rest, manifest.partitions, unassigned)
    _, stored = _stored(manifest, storage)
    entries = [entry.encoded(partition) for entry in stored]
    payload = b"".join(map(formats.entry, entries))
    summaries = summaries_of(partition, [entry.partition for entry in entries])
    return _Carried(len(entries), payload, summaries, _rows_without_ids(manifest.content, entries))


def _raw(manifest: Manifest, storage: StorageOptions, schema: str) -> tuple[int, bytes] | None:
    """The manifest's entries as they are encoded; None if it has another schema. Raises LakeError."""
    content = read_manifest(manifest, storage)
    with decoding(manifest.path, "a readable manifest"):
        return raw_records(content, schema)
