"""Entries of any engine's manifest, read whole: what is in the file, what an entry inherits, what it lacks."""

from __future__ import annotations

import uuid
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from pyiceberg.manifest import DATA_FILE_TYPE, MANIFEST_ENTRY_SCHEMAS, manifest_entry_schema_with_data_file
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from mirror_pump.lake.avro.container_files import container, schema_json
from mirror_pump.lake.avro.record_encoder import Encoder
from mirror_pump.lake.format.data_files import FileContent, WrittenFile
from mirror_pump.lake.format.puffin import BlobPlace
from mirror_pump.lake.manifests.entry_reader import Status
from mirror_pump.lake.manifests.manifest_entries import (
    ManifestEntry,
    existing,
    existing_entries,
    file_values,
    formats_of,
    stored_entries,
    written_file,
)

_VALUES: tuple[tuple[Any, Any], ...] = (
    (BooleanType(), True),
    (LongType(), -(2**40)),
    (FloatType(), 0.5),
    (DoubleType(), 0.1),
    (DecimalType(38, 4), Decimal("-9999999999999999999999999999999999.9999")),
    (StringType(), "für"),
    (BinaryType(), b"\0\xff"),
    (FixedType(3), b"abc"),
    (UUIDType(), uuid.UUID(int=2**127)),
    (DateType(), -5),
    (TimeType(), 86_399_999_999),
    (TimestamptzType(), 2**52),
)
PARTITION = StructType(*(NestedField(1000 + n, f"p{n}", kind, required=False) for n, (kind, _) in enumerate(_VALUES)))
FILES = [
    WrittenFile(
        content,
        f"file:/{content.name}",
        7,
        99,
        {1: 2},
        {1: 7, 300: 2**40},
        {1: 0},
        {1: b""},
        {1: b"\xff", 300: bytes(8)},
        (1, 2**20) if content is FileContent.EQUALITY_DELETES else (),
        (4, 2**35),
        {300: 1},
        "file:/data" if content is FileContent.POSITION_DELETES else None,
        tuple(value if place % 3 != content else None for place, (_, value) in enumerate(_VALUES)),
    )
    for content in FileContent
]


def _entry(file: WrittenFile, status: Status, number: int | None) -> ManifestEntry:
    described = formats_of(PARTITION).data_file.encode(*file_values(file))
    return ManifestEntry(
        status,
        5,
        number,  # type: ignore[arg-type]
        number,
        file.content,
        file.path,
        7,
        99,
        file.partition,
        described,
        file.referenced_data_file,
        file.blob,
        file.first_row_id,
    )


def test_what_was_written_is_read_and_written_again() -> None:
    """A value of every partition type; numbers that an entry lacks are its manifest's; removed files are not there."""
    entries = [
        *(_entry(file, Status.ADDED, None) for file in FILES),
        *(_entry(file, Status.DELETED, 3) for file in FILES),
        *(_entry(file, Status.EXISTING, 3) for file in FILES),
    ]
    formats = formats_of(PARTITION)
    partition, stored = stored_entries(container(formats.schema, {}, [*map(formats.entry, entries)]), 8, 11)
    assert partition == PARTITION
    assert [written_file(entry) for entry in stored] == 2 * FILES
    assert [(entry.snapshot_id, entry.sequence_number, entry.file_sequence_number) for entry in stored] == [
        *[(5, 11, 11)] * 3,
        *[(5, 3, 3)] * 3,
    ]
    carried = [entry.encoded(PARTITION) for entry in stored]
    assert carried[3:] == entries[6:]
    assert carried[0].data_file == existing(entries[0], 11).data_file


def test_row_ids_of_files_without_any_follow_the_manifests() -> None:
    """In its order, past removed files; and they stay with the file in later manifests."""
    data = FILES[FileContent.DATA]
    formats = formats_of(PARTITION, 3)
    files = [
        (data, Status.ADDED),
        (replace(data, first_row_id=3), Status.EXISTING),
        (data, Status.DELETED),
        (data, Status.EXISTING),
    ]
    entries = [_entry(file, status, 3) for file, status in files]
    content = container(formats.schema, {}, [*map(formats.entry, entries)])
    _, stored = stored_entries(content, 8, 11, 100)
    assert [entry.first_row_id for entry in stored] == [100, 3, 107]
    live = [entries[0], entries[1], entries[3]]
    carried = [entry.encoded(PARTITION) for entry in stored]
    assert carried == existing_entries(live, 11, 100)
    again = container(formats.schema, {}, [*map(formats.entry, carried)])
    assert [entry.first_row_id for entry in stored_entries(again, 8, 12, 5000)[1]] == [100, 3, 107]
    # In a snapshot from before the upgrade no file has row IDs, whatever is stored.
    assert [entry.first_row_id for entry in stored_entries(content, 8, 11)[1]] == [None] * 3
    assert [entry.first_row_id for entry in existing_entries(live, 11, None)] == [None] * 3


def test_deletion_vectors_are_read_and_written_again() -> None:
    positions = FILES[FileContent.POSITION_DELETES]
    # A vector has no columns to tell of, and none is written.
    vector = WrittenFile(
        FileContent.POSITION_DELETES,
        positions.path,
        7,
        99,
        {},
        {},
        {},
        {},
        {},
        referenced_data_file=positions.referenced_data_file,
        partition=positions.partition,
        blob=BlobPlace(4, 60),
    )
    formats = formats_of(PARTITION, 3)
    entries = [_entry(file, Status.EXISTING, 3) for file in (vector, positions)]
    _, stored = stored_entries(container(formats.schema, {}, [*map(formats.entry, entries)]), 8, 11)
    assert [written_file(entry) for entry in stored] == [vector, positions]
    assert [entry.format for entry in stored] == ["PUFFIN", "PARQUET"]
    assert [entry.encoded(PARTITION) for entry in stored] == entries
    assert [entry.content_bytes for entry in entries] == [60, 99]


def test_of_format_version_1_content_and_numbers_are_the_default() -> None:
    file_type = StructType(
        *(
            NestedField(102, "partition", PARTITION, required=True) if member.field_id == 102 else member
            for member in DATA_FILE_TYPE[1].fields
        )
    )
    schema = manifest_entry_schema_with_data_file(1, file_type)
    values: dict[int, Any] = {100: "file:/old", 101: "avro", 102: Record(*FILES[0].partition), 103: 7, 104: 99, 105: 64}
    file = Record(*(values.get(member.field_id) for member in file_type.fields))
    assert [field.field_id for field in MANIFEST_ENTRY_SCHEMAS[1].fields] == [0, 1, 2]
    content = container(schema_json(schema, "manifest_entry"), {}, [Encoder(schema.as_struct()).encode(1, 5, file)])
    partition, (entry,) = stored_entries(content, 8, 0)
    assert partition == PARTITION
    assert (entry.snapshot_id, entry.sequence_number, entry.file_sequence_number) == (5, 0, 0)
    assert (entry.content, entry.path, entry.format, entry.records, entry.size_bytes) == (0, "file:/old", "AVRO", 7, 99)
    assert entry.partition == FILES[0].partition
    assert (entry.lower_bounds, entry.upper_bounds, entry.equality_ids) == ({}, {}, ())
    assert written_file(entry).content is FileContent.DATA


@pytest.mark.parametrize("field_id", [100, 101, 103, 104])
def test_a_file_without_what_each_has_is_no_manifest(field_id: int) -> None:
    schema = formats_of(PARTITION).schema.replace(f'"field-id": {field_id},', '"field-id": 77777,')
    assert schema != formats_of(PARTITION).schema
    with pytest.raises(KeyError):
        stored_entries(container(schema, {}, []), 8, 11)


def test_vectors_are_encoded_as_other_files_are() -> None:
    """What vectors have in common is encoded once: of one Puffin file, and of partitions that compare as equal."""
    vector = WrittenFile(FileContent.POSITION_DELETES, "file:/a.puffin", 1, 9, {}, {}, {}, {}, {})
    partition = StructType(NestedField(1000, "p", DoubleType(), required=False))
    formats = formats_of(partition)
    encodings = set()
    for path, size in (("file:/a.puffin", 9), ("file:/b.puffin", 9), ("file:/b.puffin", 2**40)):
        for value in (None, 0.0, -0.0, 1.0, float("nan")):
            for records, data_file in ((1, "file:/für"), (2**40, "file:/d"), (1, None)):
                file = replace(
                    vector,
                    path=path,
                    size_bytes=size,
                    partition=(value,),
                    record_count=records,
                    referenced_data_file=data_file,
                    blob=BlobPlace(records, size),
                )
                encoded = formats.file(file)
                assert encoded == formats.data_file.encode(*file_values(file))
                encodings.add(encoded)
    assert len(encodings) == 3 * 5 * 3
