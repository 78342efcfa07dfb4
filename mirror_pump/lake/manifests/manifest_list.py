"""Reads manifest lists of any engine, and writes those of our own snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from pyiceberg.manifest import MANIFEST_LIST_FILE_SCHEMAS, ManifestContent, PartitionFieldSummary

from mirror_pump.lake.avro.container_files import container, schema_json
from mirror_pump.lake.avro.record_encoder import Encoder, write_integer
from mirror_pump.lake.document.snapshot import Snapshot
from mirror_pump.lake.format.damaged_files import decoding
from mirror_pump.lake.format.data_files import FileContent
from mirror_pump.lake.format.versions import FORMAT_VERSION, VECTOR_VERSION
from mirror_pump.lake.manifests.entry_reader import EntryReader, parsed_schema
from mirror_pump.lake.manifests.manifest_entries import ManifestEntry
from mirror_pump.lake.storage import StorageOptions, read_bytes

_IDS = {
    "path": 500,
    "length": 501,
    "spec_id": 502,
    "content": 517,
    "sequence_number": 515,
    "min_sequence_number": 516,
    "added_snapshot_id": 503,
    "added_files": 504,
    "existing_files": 505,
    "deleted_files": 506,
    "added_rows": 512,
    "existing_rows": 513,
    "deleted_rows": 514,
    "partitions": 507,
    "key_metadata": 519,
    "first_row_id": 520,
}
"""Field IDs (Iceberg spec, manifest lists), in the order of `_from_list`. What a list lacks is None, as in format
versions 1 and 2."""
_KEPT_BYTES = 100_000
"""Of a list that is kept decoded, which takes some ten times as much memory."""
_SUMMARY_IDS = (509, 518, 510, 511)
"""Of a partition's summary: contains NULL, contains NaN, lower and upper bound."""


@dataclass(frozen=True)
class Manifest:
    """A manifest, as described by an entry of a manifest list."""

    path: str
    """URI."""
    length: int
    """Bytes."""
    spec_id: int
    """The partition spec of its files."""
    content: int
    """0 for data, 1 for deletes."""
    sequence_number: int
    """Of the snapshot that it was added in."""
    min_sequence_number: int
    """The least data sequence number of its live files."""
    added_snapshot_id: int
    files: tuple[int, int, int]
    """Number of entries by status: added, existing, deleted."""
    rows: tuple[int, int, int]
    partitions: Any = None
    """For each field of the spec whether it has NULL and NaN, and its bounds as pyiceberg's PartitionFieldSummary; None
    if that is not known."""
    key_metadata: bytes | None = None
    entries: tuple[ManifestEntry, ...] | None = None
    """The live entries, if few enough to be kept in memory."""
    first_entries: tuple[ManifestEntry, ...] = ()
    """Those that its snapshot added, if they are the first of the file and few. The file may have other added ones if
    there are none here."""
    deletes: FileContent | None = None
    """Kind of all live entries of a delete manifest, if known. The kinds are kept in separate manifests, since equality
    deletes are soon converted and removed, while position deletes stay."""
    first_row_id: int | None = None
    """The ID of the first row among its data files without first row IDs. None if none is assigned: of deletes, in
    tables without row lineage, and until a snapshot has the manifest."""
    unassigned_rows: int | None = None
    """Rows of its live data files whose entries have no first row ID; None if that is not known."""
    line: bytes = b""
    """This manifest's entry of a manifest list, encoded, without the field of format version 3, its last one."""

    @property
    def live_files(self) -> int:
        """Number of files that readers of the snapshot see."""
        return self.files[0] + self.files[1]

    @property
    def removed_files(self) -> int:
        """Number of files that its snapshot removed: it has their descriptions, with bounds of columns, until it is
        merged."""
        return self.files[2]

    @property
    def may_contain_position_deletes(self) -> bool:
        """Whether it can name live position-delete files or deletion vectors."""
        is_other = self.content == ManifestContent.DATA or self.deletes is FileContent.EQUALITY_DELETES
        return self.live_files > 0 and not is_other

    def may_contain_data_of(self, number: int) -> bool:
        """Whether it can hold a data file of this data sequence number; no file is newer than its manifest."""
        return self.content == ManifestContent.DATA and self.min_sequence_number <= number <= self.sequence_number


def rows_have_ids(manifests: Iterable[Manifest]) -> bool:
    """Whether a snapshot with these manifests has assigned row IDs (format version 3, row lineage)."""
    return any(manifest.first_row_id is not None for manifest in manifests)


def read_list(snapshot: Snapshot, storage: StorageOptions) -> tuple[Manifest, ...]:
    """The manifests of a snapshot of any engine, with what another list needs. Raises FileDamaged if its list is
    damaged or another snapshot's, FileMissing and LakeError."""
    return tuple(map(with_line, listed_manifests(snapshot, storage)))


def listed_manifests(snapshot: Snapshot, storage: StorageOptions) -> tuple[Manifest, ...]:
    """As `read_list`, without `line`, whose making takes the most time."""
    content = read_bytes(snapshot.manifest_list, storage)
    with decoding(snapshot.manifest_list, "a readable manifest list"):
        decoded = _decoded_once(content) if len(content) <= _KEPT_BYTES else _decoded(content)
        if decoded.snapshot_id not in (None, str(snapshot.snapshot_id)):
            raise ValueError(f"it is that of snapshot {decoded.snapshot_id}, not of {snapshot.snapshot_id}")
        return decoded.manifests


def read_manifest(manifest: Manifest, storage: StorageOptions) -> bytes:
    """The content of a manifest. Raises FileDamaged if it has another length than its list says, FileMissing and
    LakeError."""
    content = read_bytes(manifest.path, storage)
    with decoding(manifest.path, "a readable manifest"):
        if len(content) != manifest.length:
            raise ValueError(f"it has {len(content)} bytes, and its manifest list says {manifest.length}")
    return content


@dataclass(frozen=True, slots=True)
class _DecodedList:
    """What a manifest list says."""

    snapshot_id: str | None
    """The snapshot that it was written for; None if its writer did not say."""
    manifests: tuple[Manifest, ...]


@lru_cache(maxsize=8)
def _decoded_once(content: bytes) -> _DecodedList:
    """By the content, not the location: what is kept is right even if the file is another one now."""
    return _decoded(content)


def _decoded(content: bytes) -> _DecodedList:
    reader = EntryReader(content, None)
    order = _summary_order(reader.metadata["avro.schema"])
    # The place of what a list lacks is behind its fields.
    places = [reader.places.get(field, -1) for field in _IDS.values()]
    rows = ([*row, None] for row in reader.rows())
    manifests = tuple(_from_list([values[place] for place in places], order) for values in rows)
    return _DecodedList(reader.metadata.get("snapshot-id"), manifests)


def encoded_list(metadata: Mapping[str, str], manifests: Sequence[Manifest], version: int = FORMAT_VERSION) -> bytes:
    """The content of a manifest list file of a format version; `metadata` goes into its header."""
    lines = [manifest.line for manifest in manifests]
    if version >= VECTOR_VERSION:
        lines = [line + _optional(manifest.first_row_id) for line, manifest in zip(lines, manifests, strict=True)]
    return container(_list_schema(version), metadata, lines)


def _optional(value: int | None) -> bytes:
    """A union of null and long."""
    encoded = bytearray([0 if value is None else 2])
    if value is not None:
        write_integer(encoded, value)
    return bytes(encoded)


def _summary_order(schema: str) -> list[int | None]:
    """Where the fields of a partition's summary are in a list's own records."""
    field = next(
        (field for field in parsed_schema(schema)["fields"] if field.get("field-id") == _IDS["partitions"]), None
    )
    if field is None:
        return []
    kind = next(kind for kind in field["type"] if kind != "null") if isinstance(field["type"], list) else field["type"]
    ids = [member.get("field-id") for member in kind["items"]["fields"]]
    return [ids.index(summary_id) if summary_id in ids else None for summary_id in _SUMMARY_IDS]


def _from_list(line: Sequence[Any], order: Sequence[int | None]) -> Manifest:
    path, length, spec_id, content, number, least_number, snapshot_id, added, existing, deleted = line[:10]
    added_rows, existing_rows, deleted_rows, summaries, key_metadata, first_row_id = line[10:]
    # Format version 1 allows lists without counts. No reader may pass over such a manifest: it counts as one of a file.
    uncounted = added is None or existing is None
    if summaries is not None:
        summaries = [
            PartitionFieldSummary(*(None if place is None else summary[place] for place in order))
            for summary in summaries
        ]
    return Manifest(
        path,
        length,
        spec_id,
        content or 0,
        number or 0,
        least_number or 0,
        snapshot_id or 0,
        (added or 0, existing or int(uncounted), deleted or 0),
        (added_rows or 0, existing_rows or 0, deleted_rows or 0),
        summaries,
        key_metadata,
        first_row_id=first_row_id,
    )


def with_line(manifest: Manifest) -> Manifest:
    """The manifest with its encoded entry of a manifest list."""
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
        # An unpartitioned spec has no field summaries, but readers require the list.
        manifest.partitions if manifest.partitions is not None else [],
        manifest.key_metadata,
    )
    return replace(manifest, line=line)


@lru_cache(maxsize=2)
def _list_schema(version: int) -> str:
    return schema_json(MANIFEST_LIST_FILE_SCHEMAS[version], "manifest_file")


@lru_cache(maxsize=1)
def _list_encoder() -> Encoder:
    return Encoder(MANIFEST_LIST_FILE_SCHEMAS[FORMAT_VERSION].as_struct())
