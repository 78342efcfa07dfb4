"""Manifest entries as bytes: encoding, decoding entries of any engine, and carrying entries over to later manifests.

Format version 3 adds three fields, which are the last ones here. So what describes a file under version 2 is the same
bytes in both, and entries are carried over into manifests of either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import orjson
from pyiceberg.manifest import DATA_FILE_TYPE, MANIFEST_ENTRY_SCHEMAS, manifest_entry_schema_with_data_file
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, ListType, LongType, NestedField, StringType, StructType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from mirror_pump.lake.avro.container_files import schema_json
from mirror_pump.lake.avro.record_encoder import Encoder, write_integer, write_optional_string
from mirror_pump.lake.document.partition_specs import NO_PARTITION
from mirror_pump.lake.format.data_files import FileContent, WrittenFile
from mirror_pump.lake.format.partitioning import PartitionTuple, partition_key
from mirror_pump.lake.format.puffin import BlobPlace
from mirror_pump.lake.format.versions import FORMAT_VERSION, VECTOR_VERSION
from mirror_pump.lake.manifests.entry_reader import (
    CONTENT_OFFSET,
    CONTENT_SIZE,
    DATA_FILE,
    FILE_SEQUENCE_NUMBER,
    FIRST_ROW_ID,
    FORMAT,
    PARTITION,
    PATH,
    RECORDS,
    SEQUENCE_NUMBER,
    SIZE_BYTES,
    SNAPSHOT_ID,
    EntryReader,
    Status,
)


class ManifestEntry(NamedTuple):
    """A manifest entry. The file's description is kept as the encoded bytes that go into the manifest."""

    status: Status
    snapshot_id: int
    sequence_number: int
    file_sequence_number: int | None
    """None for an added entry: readers take the manifest's number, which is the snapshot's."""
    content: int
    """A `FileContent`."""
    path: str
    records: int
    size_bytes: int
    partition: PartitionTuple
    data_file: bytes
    """Without the fields of format version 3."""
    referenced_data_file: str | None = None
    """Of deletes that concern one data file its URI."""
    blob: BlobPlace | None = None
    """Of a deletion vector its place in the Puffin file `path`."""
    first_row_id: int | None = None
    """Of a data file the ID of its first row. None if its manifest's has to tell, and in tables without row lineage."""

    @property
    def content_bytes(self) -> int:
        """Bytes of what the entry describes: of a vector those of its blob."""
        return self.size_bytes if self.blob is None else self.blob.size


class Formats:
    """Encoders and schema of manifests with one partition type, of one format version."""

    def __init__(self, partition: StructType, version: int = FORMAT_VERSION) -> None:
        data_file = _data_file_type(partition)
        self.data_file = Encoder(data_file)
        self._vector_parts = Encoder(StructType(*data_file.fields[:4])), Encoder(StructType(*data_file.fields[5:16]))
        self._vectors: dict[tuple[object, ...], tuple[bytes, bytes]] = {}
        """By what a vector has in common with others, the encoding of that before and after its number of rows."""
        self._has_last = version >= VECTOR_VERSION
        if self._has_last:
            data_file = StructType(*data_file.fields, *_LAST_FIELDS.fields)
        schema = manifest_entry_schema_with_data_file(FORMAT_VERSION, data_file)
        self.schema = schema_json(schema, "manifest_entry")

    def file(self, file: WrittenFile) -> bytes:
        """A new file as a manifest's bytes. The vectors of a Puffin file differ in two fields."""
        if file.blob is None:
            return self.data_file.encode(*file_values(file))
        common = file.path, file.size_bytes, partition_key(file.partition)
        parts = self._vectors.get(common)
        if parts is None:
            if len(self._vectors) >= _VECTOR_PARTS:
                self._vectors.clear()
            before, after = self._vector_parts
            values = file_values(file)
            parts = self._vectors[common] = before.encode(*values[:4]), after.encode(*values[5:16])
        encoded = bytearray(parts[0])
        write_integer(encoded, file.record_count)
        encoded += parts[1]
        write_optional_string(encoded, file.referenced_data_file)
        return bytes(encoded)

    def entry(self, entry: ManifestEntry) -> bytes:
        """The entry's Avro record: its encoded head, followed by the file's bytes."""
        head = _head(entry.status, entry.snapshot_id, entry.sequence_number, entry.file_sequence_number)
        if not self._has_last:
            return head + entry.data_file
        blob = entry.blob
        last = _last(entry.first_row_id) if blob is None else _last(entry.first_row_id, blob.offset, blob.size)
        return head + entry.data_file + last


_LAST_FIELDS = StructType(
    NestedField(FIRST_ROW_ID, "first_row_id", LongType(), required=False),
    NestedField(CONTENT_OFFSET, "content_offset", LongType(), required=False),
    NestedField(CONTENT_SIZE, "content_size_in_bytes", LongType(), required=False),
)
"""The fields of format version 3."""
_VECTOR_PARTS = 1_000
"""Lake partitions, or Puffin files, for which `Formats` keeps what their vectors have in common."""
_ENCODED_PARTS = 16_384
"""Of entries, which are kept encoded. A commit with thousands of deletion vectors writes most of their entries again,
and many have a part in common."""


@lru_cache(maxsize=1)
def _head_encoder() -> Encoder:
    return Encoder(StructType(*MANIFEST_ENTRY_SCHEMAS[FORMAT_VERSION].fields[:4]))


@lru_cache(maxsize=_ENCODED_PARTS)
def _head(status: Status, snapshot_id: int, sequence_number: int, file_sequence_number: int | None) -> bytes:
    return _head_encoder().encode(status, snapshot_id, sequence_number, file_sequence_number)


@lru_cache(maxsize=1)
def _last_encoder() -> Encoder:
    return Encoder(_LAST_FIELDS)


@lru_cache(maxsize=_ENCODED_PARTS)
def _last(first_row_id: int | None, offset: int | None = None, size: int | None = None) -> bytes:
    return _last_encoder().encode(first_row_id, offset, size)


@lru_cache(maxsize=32)
def formats_of(partition: StructType, version: int = FORMAT_VERSION) -> Formats:
    """The encoders for a partition type, cached."""
    return Formats(partition, version)


def _data_file_type(partition: StructType) -> StructType:
    """Field 2 of an entry.

    pyiceberg 0.12 declares equality_ids as list<long>. The spec and Iceberg's Java code have list<int>, and Java fails
    on the former. Field 143 is in the spec's v2 too, and must survive a rewrite.
    """
    fields = []
    for member in DATA_FILE_TYPE[FORMAT_VERSION].fields:
        if member.field_id == 102:
            member = NestedField(102, "partition", partition, required=True)
        elif member.field_id == 135:
            member = NestedField(
                135, "equality_ids", ListType(136, IntegerType(), element_required=True), required=False
            )
        fields.append(member)
    fields.append(NestedField(143, "referenced_data_file", StringType(), required=False))
    return StructType(*fields)


_FILE_FIELDS = [member.field_id for member in (*_data_file_type(NO_PARTITION).fields, *_LAST_FIELDS.fields)]
_REQUIRED = frozenset({PATH, FORMAT, PARTITION, RECORDS, SIZE_BYTES})


def file_values(file: WrittenFile) -> tuple[Any, ...]:
    """A new file as values in the field order of `_data_file_type`. A vector has no columns to tell of."""
    is_vector = file.blob is not None
    columns = (
        file.column_sizes,
        file.value_counts,
        file.null_counts,
        file.nan_counts,
        file.lower_bounds,
        file.upper_bounds,
    )
    return (
        int(file.content),
        file.path,
        "PUFFIN" if is_vector else "PARQUET",
        Record(*file.partition),
        file.record_count,
        file.size_bytes,
        *([None] * len(columns) if is_vector else columns),
        None,
        None if is_vector else list(file.split_offsets),
        list(file.equality_ids) if file.content is FileContent.EQUALITY_DELETES else None,
        # Iceberg spec: position-delete files are sorted by path and position, and must not name a sort order.
        0 if file.content is not FileContent.POSITION_DELETES else None,
        file.referenced_data_file,
    )


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """A live, decoded entry of a manifest file, with the values that it inherits from its manifest."""

    snapshot_id: int
    sequence_number: int
    file_sequence_number: int
    file: Sequence[Any]
    """Its data_file, in the field order of `_data_file_type`, then that of `_LAST_FIELDS`."""
    first_row_id: int | None = None
    """Of a data file the ID of its first row, inherited too. None in snapshots without row lineage."""

    @property
    def path(self) -> str:
        """URI of the file."""
        return str(self.file[1])

    @property
    def content(self) -> int:
        """Kind of the file's content, a `FileContent`."""
        return int(self.file[0] or 0)

    @property
    def format(self) -> str:
        """`PARQUET`, `AVRO` or `ORC`; `PUFFIN` of deletion vectors."""
        return str(self.file[2]).upper()

    @property
    def partition(self) -> PartitionTuple:
        """The lake partition of the file, under the partition spec of its manifest."""
        partition: PartitionTuple = self.file[3]
        return partition

    @property
    def records(self) -> int:
        """Rows in the file."""
        return int(self.file[4])

    @property
    def size_bytes(self) -> int:
        """Length of the file."""
        return int(self.file[5])

    @property
    def value_counts(self) -> Mapping[int, int]:
        """Values of each column, NULL included, by field ID."""
        counts: Mapping[int, int] = self.file[7] or {}
        return counts

    @property
    def null_counts(self) -> Mapping[int, int]:
        """As `value_counts`, of NULL."""
        counts: Mapping[int, int] = self.file[8] or {}
        return counts

    @property
    def lower_bounds(self) -> Mapping[int, bytes]:
        """Iceberg single-value serialisation by field ID."""
        bounds: Mapping[int, bytes] = self.file[10] or {}
        return bounds

    @property
    def upper_bounds(self) -> Mapping[int, bytes]:
        """As `lower_bounds`."""
        bounds: Mapping[int, bytes] = self.file[11] or {}
        return bounds

    @property
    def equality_ids(self) -> tuple[int, ...]:
        """Field IDs of the columns that an equality delete compares."""
        return tuple(self.file[14] or ())

    @property
    def referenced_data_file(self) -> str | None:
        """Of deletes that concern one data file its URI, if the entry says so."""
        path: str | None = self.file[16]
        return path

    @property
    def blob(self) -> BlobPlace | None:
        """Of a deletion vector its place in the Puffin file `path`."""
        offset, size = self.file[18:20]
        return None if offset is None else BlobPlace(int(offset), int(size))

    def encoded(self, partition: StructType) -> ManifestEntry:
        """The entry, encoded to be carried over to another manifest."""
        file = (self.content, *self.file[1:3], Record(*self.partition), *self.file[4:17])
        return ManifestEntry(
            Status.EXISTING,
            self.snapshot_id,
            self.sequence_number,
            self.file_sequence_number,
            self.content,
            self.path,
            self.records,
            self.size_bytes,
            self.partition,
            formats_of(partition).data_file.encode(*file),
            self.referenced_data_file,
            self.blob,
            self.first_row_id,
        )


def written_file(entry: StoredEntry) -> WrittenFile:
    """Describes a file of any engine as one that was written here, so that another commit can add it."""
    sizes, values, nulls, nans, low, high = (entry.file[index] or {} for index in range(6, 12))
    return WrittenFile(
        FileContent(entry.content),
        entry.path,
        entry.records,
        entry.size_bytes,
        sizes,
        values,
        nulls,
        low,
        high,
        entry.equality_ids,
        tuple(entry.file[13] or ()),
        nans,
        entry.referenced_data_file,
        entry.partition,
        blob=entry.blob,
        first_row_id=entry.first_row_id,
    )


def stored_entries(
    content: bytes, snapshot_id: int, manifest_number: int, first_row_id: int | None = None
) -> tuple[StructType, list[StoredEntry]]:
    """Partition type and live entries of any engine's manifest file.

    `snapshot_id`, `manifest_number` and `first_row_id` are those of the manifest. Entries inherit them (Iceberg spec,
    sequence number inheritance, first row ID inheritance).
    """
    reader = EntryReader(content, None)
    # The place of what a manifest lacks is behind its fields; those that each has must be there.
    places = [reader.places[field] if field in _REQUIRED else reader.places.get(field, -1) for field in _FILE_FIELDS]
    heads = [reader.places.get(field, -1) for field in (SNAPSHOT_ID, SEQUENCE_NUMBER, FILE_SEQUENCE_NUMBER)]
    entries = []
    for row in reader.live_rows():
        row.append(None)
        own_snapshot_id, sequence_number, file_sequence_number = [row[place] for place in heads]
        entries.append(
            StoredEntry(
                snapshot_id if own_snapshot_id is None else own_snapshot_id,
                manifest_number if sequence_number is None else sequence_number,
                manifest_number if file_sequence_number is None else file_sequence_number,
                [row[place] for place in places],
            )
        )
    if first_row_id is not None:
        ids = inherited_row_ids(
            [entry.file[17] for entry in entries], [entry.records for entry in entries], first_row_id
        )
        entries = [replace(entry, first_row_id=row_id) for entry, row_id in zip(entries, ids, strict=True)]
    return _partition_type(reader.metadata["avro.schema"]), entries


@lru_cache(maxsize=256)
def _partition_type(schema: str) -> StructType:
    """The partition type of manifests with this Avro schema."""
    described = AvroSchemaConversion().avro_to_iceberg(orjson.loads(schema)).find_type(DATA_FILE)
    assert isinstance(described, StructType)
    partition = described.field(PARTITION)
    assert partition is not None
    assert isinstance(partition.field_type, StructType)
    return partition.field_type


def inherited_row_ids(
    row_ids: Sequence[int | None], records: Sequence[int], first_row_id: int | None
) -> Sequence[int | None]:
    """The first row IDs of a manifest's live data files, in its order, from those that their entries have and their
    numbers of rows. `first_row_id`: the manifest's; without one none of its files has row IDs, whatever is stored."""
    if first_row_id is None:
        return [None] * len(row_ids)
    ids = []
    for row_id, rows in zip(row_ids, records, strict=True):
        ids.append(first_row_id if row_id is None else row_id)
        first_row_id += rows if row_id is None else 0
    return ids


def existing(entry: ManifestEntry, manifest_number: int) -> ManifestEntry:
    """An added entry in the form that later manifests hold; `manifest_number` is that of its first manifest."""
    number = manifest_number if entry.file_sequence_number is None else entry.file_sequence_number
    if entry.status is Status.EXISTING and number == entry.file_sequence_number:
        return entry
    return entry._replace(status=Status.EXISTING, file_sequence_number=number)


def existing_entries(
    entries: Sequence[ManifestEntry], manifest_number: int, first_row_id: int | None
) -> list[ManifestEntry]:
    """As `existing`, of all live entries of a manifest, in its order, with the row IDs that they inherit of it."""
    carried = [existing(entry, manifest_number) for entry in entries]
    if first_row_id is None and all(entry.first_row_id is None for entry in carried):
        return carried
    ids = inherited_row_ids(
        [entry.first_row_id for entry in entries], [entry.records for entry in entries], first_row_id
    )
    return [
        entry if entry.first_row_id == row_id else entry._replace(first_row_id=row_id)
        for entry, row_id in zip(carried, ids, strict=True)
    ]
