"""Tables and manifests as JSON documents, for people and programs that want to see what is in a table."""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from mirror_pump.errors import UsageError
from mirror_pump.lake.document.metadata_files import metadata_number, read_any_version
from mirror_pump.lake.document.snapshot import Snapshot
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.format.damaged_files import decoding
from mirror_pump.lake.manifests.entry_reader import (
    COLUMN_SIZES,
    CONTENT,
    CONTENT_OFFSET,
    CONTENT_SIZE,
    EQUALITY_IDS,
    FILE_SEQUENCE_NUMBER,
    FIRST_ROW_ID,
    FORMAT,
    LOWER_BOUNDS,
    METRICS,
    NAN_COUNTS,
    NULL_COUNTS,
    PARTITION,
    PATH,
    RECORDS,
    REFERENCED_DATA_FILE,
    SEQUENCE_NUMBER,
    SIZE_BYTES,
    SNAPSHOT_ID,
    SPLIT_OFFSETS,
    STATUS,
    UPPER_BOUNDS,
    VALUE_COUNTS,
    EntryReader,
    Status,
)
from mirror_pump.lake.storage import StorageOptions, join, list_files, local_path, read_bytes

Json = dict[str, Any]

_METADATA = ".metadata.json"
_ENTRY_FIELDS = {
    "snapshot_id": SNAPSHOT_ID,
    "sequence_number": SEQUENCE_NUMBER,
    "file_sequence_number": FILE_SEQUENCE_NUMBER,
    "path": PATH,
    "format": FORMAT,
    "records": RECORDS,
    "size_bytes": SIZE_BYTES,
    "equality_ids": EQUALITY_IDS,
    "referenced_data_file": REFERENCED_DATA_FILE,
    "split_offsets": SPLIT_OFFSETS,
    "first_row_id": FIRST_ROW_ID,
    "content_offset": CONTENT_OFFSET,
    "content_size_in_bytes": CONTENT_SIZE,
}
_BY_COLUMN = {
    "column_sizes": COLUMN_SIZES,
    "value_counts": VALUE_COUNTS,
    "null_counts": NULL_COUNTS,
    "nan_counts": NAN_COUNTS,
    "lower_bounds": LOWER_BOUNDS,
    "upper_bounds": UPPER_BOUNDS,
}


def metadata_location(location: str, storage: StorageOptions) -> str:
    """The location itself, if it is that of a metadata file; else the metadata file of the highest number below a
    table's directory, which its catalog may not know yet. Raises UsageError."""
    if location.endswith(_METADATA):
        return location
    directory = join(location, "metadata")
    path = local_path(directory)
    if path is None and "://" not in directory:
        raise UsageError(f"{location} is no URI and no absolute path", "give one of these")
    files = [file for file in list_files(directory, storage) if file.location.endswith(_METADATA)]
    if not files:
        raise UsageError(
            f"{location} has no metadata files", "give the directory of a table, or the URI of a metadata file"
        )
    return max(files, key=lambda file: (metadata_number(file.location) or 0, file.modified)).location


def table_document(location: str, storage: StorageOptions) -> Json:
    """What a metadata file says of its table."""
    metadata = read_any_version(location, storage)
    document = metadata.document
    snapshot = metadata.current_snapshot
    schemas = document.get("schemas") or [document["schema"]]
    current = next(
        (schema for schema in schemas if schema.get("schema-id") == document.get("current-schema-id")), schemas[0]
    )
    specs = document.get("partition-specs") or [{"spec-id": 0, "fields": document.get("partition-spec", [])}]
    return {
        "metadata_location": location,
        "location": metadata.location,
        "format_version": metadata.format_version,
        "table_uuid": document.get("table-uuid"),
        "updated_at": _time(metadata.last_updated_ms),
        "schema": current,
        "partition_spec": next(
            (spec for spec in specs if spec["spec-id"] == document.get("default-spec-id", 0)), specs[-1]
        ),
        "properties": dict(metadata.properties),
        "snapshots": len(metadata.snapshots),
        "current_snapshot": None if snapshot is None else snapshot_document(snapshot),
        "refs": {name: str(ref.snapshot_id) for name, ref in metadata.refs.items()},
    }


def history_document(metadata: TableMetadata) -> list[Json]:
    """The snapshots from the current one back to the first that is retained, along their parents."""
    documents = []
    snapshot = metadata.current_snapshot
    while snapshot is not None:
        documents.append(snapshot_document(snapshot))
        parent = snapshot.parent_id
        snapshot = None if parent is None else metadata.snapshot(parent)
    return documents


def manifest_document(location: str, storage: StorageOptions) -> Json:
    """All entries of a manifest, removed ones too. Numbers that an entry inherits from its manifest are null."""
    content = read_bytes(location, storage)
    with decoding(location, "a readable manifest"):
        reader = EntryReader(content, METRICS | {COLUMN_SIZES, SPLIT_OFFSETS})
        entries = [_entry(reader, row) for row in reader.rows()]
    metadata = reader.metadata
    return {
        "path": location,
        "content": metadata.get("content", "data"),
        "format_version": int(metadata.get("format-version", 1)),
        "spec_id": int(metadata.get("partition-spec-id", 0)),
        "entries": entries,
    }


def _entry(reader: EntryReader, row: Sequence[Any]) -> Json:
    def value(field_id: int) -> Any:
        place = reader.places.get(field_id)
        return None if place is None else row[place]

    entry: Json = {
        "status": Status(value(STATUS)).name.lower(),
        "content": ("data", "position_deletes", "equality_deletes")[value(CONTENT) or 0],
    }
    entry |= {name: value(field_id) for name, field_id in _ENTRY_FIELDS.items()}
    if entry["snapshot_id"] is not None:
        entry["snapshot_id"] = str(entry["snapshot_id"])
    entry["partition"] = {
        field.name: plain_value(partition_value)
        for field, partition_value in zip(reader.partition, value(PARTITION) or (), strict=True)
    }
    return entry | {name: _by_column(value(field_id)) for name, field_id in _BY_COLUMN.items()}


def _by_column(values: Mapping[int, Any] | None) -> Json | None:
    return None if values is None else {str(field_id): plain_value(value) for field_id, value in values.items()}


def snapshot_document(snapshot: Snapshot) -> Json:
    """What table metadata says of a snapshot."""
    parent = snapshot.parent_id
    return {
        "snapshot_id": str(snapshot.snapshot_id),
        "parent_id": None if parent is None else str(parent),
        "sequence_number": snapshot.sequence_number,
        "time": _time(snapshot.timestamp_ms),
        "summary": dict(snapshot.document.get("summary") or {}),
        "manifest_list": snapshot.document.get("manifest-list"),
    }


def _time(milliseconds: int) -> str:
    return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC).isoformat(timespec="milliseconds")


def plain_value(value: Any) -> Any:
    """JSON has no bytes and no decimals: base64 and text."""
    if isinstance(value, tuple):
        return [plain_value(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def table_lines(document: Json) -> list[str]:
    """A table's document for people."""
    lines = [f"{document['location']}, format version {document['format_version']}"]
    lines.append(f"metadata: {document['metadata_location']}")
    lines += [
        f"  {field['name']} {field['type']}{' not null' if field['required'] else ''}"
        for field in document["schema"]["fields"]
    ]
    parts = [f"{field['transform']} of field {field['source-id']}" for field in document["partition_spec"]["fields"]]
    lines.append(f"partitioned by {', '.join(parts) or 'nothing'}; {document['snapshots']:,} snapshots")
    if document["current_snapshot"] is not None:
        lines.append(snapshot_line(document["current_snapshot"]))
    return lines


def snapshot_line(snapshot: Json) -> str:
    """A snapshot of a table's history for people."""
    operation = snapshot["summary"].get("operation", "?")
    return f"{snapshot['snapshot_id']} {snapshot['time']} {operation}, sequence number {snapshot['sequence_number']}"
