"""Manifest entries as bytes: how one is encoded, decoded whoever wrote it, and carried over to later manifests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache
from typing import Any

from pyiceberg.manifest import DATA_FILE_TYPE, MANIFEST_ENTRY_SCHEMAS, manifest_entry_schema_with_data_file
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, ListType, NestedField, StringType, StructType

from mirror_pump.lake.format.avro import Encoder, read_records, schema_json
from mirror_pump.lake.format.data_files import FORMAT_VERSION, FileContent, WrittenFile

NO_PARTITION = StructType()


class Status(IntEnum):
    """A manifest entry's status (Iceberg spec, field 0)."""

    EXISTING = 0
    ADDED = 1
    DELETED = 2


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """A manifest entry; the file's description is kept as the bytes that go into the manifest."""

    status: Status
    snapshot_id: int
    sequence_number: int
    file_sequence_number: int | None
    """None on an added entry: readers take the manifest's, which is the snapshot's own."""
    content: int
    """A `FileContent`."""
    path: str
    records: int
    size_bytes: int
    data_file: bytes


class Formats:
    """Encoders and schema of manifests with one partition type."""

    def __init__(self, partition: StructType) -> None:
        data_file = _data_file_type(partition, IntegerType())
        schema = manifest_entry_schema_with_data_file(FORMAT_VERSION, data_file)
        self.schema = schema_json(schema, "manifest_entry")
        self.data_file = Encoder(data_file)
        self._head = Encoder(StructType(*MANIFEST_ENTRY_SCHEMAS[FORMAT_VERSION].fields[:4]))

    def entry(self, entry: ManifestEntry) -> bytes:
        """The entry's Avro record: its head, then the file's bytes as they are."""
        head = self._head.encode(entry.status, entry.snapshot_id, entry.sequence_number, entry.file_sequence_number)
        return head + entry.data_file


@lru_cache(maxsize=32)
def formats_of(partition: StructType) -> Formats:
    """The encoders for a partition type, made once."""
    return Formats(partition)


def _data_file_type(partition: StructType, equality_id: Any) -> StructType:
    """Field 2 of an entry. pyiceberg 0.12 declares equality_ids as list<long>, the spec and Iceberg's Java code as
    list<int>: Java fails on the former. Field 143 is in the spec's v2 too, and must survive a rewrite."""
    fields = []
    for one in DATA_FILE_TYPE[FORMAT_VERSION].fields:
        if one.field_id == 102:
            one = NestedField(102, "partition", partition, required=True)
        elif one.field_id == 135:
            one = NestedField(135, "equality_ids", ListType(136, equality_id, element_required=True), required=False)
        fields.append(one)
    fields.append(NestedField(143, "referenced_data_file", StringType(), required=False))
    return StructType(*fields)


def file_values(file: WrittenFile) -> tuple[Any, ...]:
    """A new, unpartitioned file in `_data_file_type`'s field order."""
    return (
        int(file.content),
        file.path,
        "PARQUET",
        Record(),
        file.record_count,
        file.size_bytes,
        file.column_sizes,
        file.value_counts,
        file.null_counts,
        file.nan_counts,
        file.lower_bounds,
        file.upper_bounds,
        None,
        list(file.split_offsets),
        list(file.equality_ids) if file.content is FileContent.EQUALITY_DELETES else None,
        # Iceberg spec: position-delete files are sorted by path and position, and name no sort order.
        0 if file.content is not FileContent.POSITION_DELETES else None,
        file.referenced_data_file,
    )


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """A live entry of a manifest file, decoded, with what it inherits from its manifest."""

    snapshot_id: int
    sequence_number: int
    file_sequence_number: int
    file: Record
    """Its data_file in `_data_file_type`'s field order."""

    @property
    def path(self) -> str:
        """URI of the file."""
        return str(self.file[1])

    @property
    def content(self) -> int:
        """What the file holds: a `FileContent`."""
        return int(self.file[0])

    @property
    def format(self) -> str:
        """`PARQUET`, `AVRO` or `ORC`."""
        return str(self.file[2]).upper()

    @property
    def records(self) -> int:
        """Rows in the file."""
        return int(self.file[4])

    @property
    def size_bytes(self) -> int:
        """Length of the file."""
        return int(self.file[5])

    def encoded(self, partition: StructType) -> ManifestEntry:
        """The entry, to be carried into another manifest."""
        file = formats_of(partition).data_file.encode(*(self.file[index] for index in range(len(self.file))))
        return ManifestEntry(
            Status.EXISTING,
            self.snapshot_id,
            self.sequence_number,
            self.file_sequence_number,
            self.content,
            self.path,
            self.records,
            self.size_bytes,
            file,
        )


def stored_entries(content: bytes, snapshot_id: int, manifest_number: int) -> tuple[StructType, list[StoredEntry]]:
    """Partition type and live entries of any engine's manifest file.

    `snapshot_id` and `manifest_number` are the manifest's own, for entries to inherit (Iceberg spec, sequence number
    inheritance).
    """
    partition, records = _decode(content)
    found = []
    for record in records:
        status, own_snapshot_id, sequence_number, file_sequence_number, file = (record[index] for index in range(5))
        if status != Status.DELETED:
            found.append(
                StoredEntry(
                    snapshot_id if own_snapshot_id is None else own_snapshot_id,
                    manifest_number if sequence_number is None else sequence_number,
                    manifest_number if file_sequence_number is None else file_sequence_number,
                    file,
                )
            )
    return partition, found


def _decode(content: bytes) -> tuple[StructType, list[Record]]:
    """A manifest's partition type and its entries, read as `_data_file_type` orders them."""
    partition = NO_PARTITION

    def reading(own: Schema) -> Schema:
        nonlocal partition
        described = own.find_field(2).field_type
        assert isinstance(described, StructType)
        found = next(one.field_type for one in described.fields if one.field_id == 102)
        assert isinstance(found, StructType)
        partition = found
        equality = next((one for one in described.fields if one.field_id == 135), None)
        element = equality.field_type.element_type if equality and isinstance(equality.field_type, ListType) else None
        file_type = _data_file_type(partition, element or IntegerType())
        return manifest_entry_schema_with_data_file(FORMAT_VERSION, file_type)

    _, records = read_records(content, reading)
    return partition, records


def existing(entry: ManifestEntry, manifest_number: int) -> ManifestEntry:
    """An added entry as later manifests carry it; `manifest_number` is the sequence number of its first manifest."""
    number = manifest_number if entry.file_sequence_number is None else entry.file_sequence_number
    return replace(entry, status=Status.EXISTING, file_sequence_number=number)
