"""What a plan needs of table metadata of format versions 1 to 3: schemas and partition specs, as pyiceberg's types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson
from pyiceberg.schema import Schema
from pyiceberg.transforms import Transform, parse_transform

from mirror_pump.errors import ForeignTable, LakeError, UsageError, one_line_of
from mirror_pump.lake.document.snapshot import Snapshot
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.format.damaged_files import decoding
from mirror_pump.lake.manifests.entry_reader import EntryReader
from mirror_pump.lake.manifests.manifest_list import Manifest, listed_manifests
from mirror_pump.lake.storage import StorageOptions, read_bytes
from mirror_pump.tables.metadata.variant_type import schema_of, variants_of

_FIRST_PARTITION_ID = 1000
"""Format version 1 allows specs without field IDs, which then count from here."""
_READABLE = (1, 2, 3)


@dataclass(frozen=True)
class SpecField:
    """A field of a partition spec."""

    field_id: int
    source_id: int
    name: str
    transform: Transform[Any, Any]

    @property
    def is_time(self) -> bool:
        """Whether it counts years, months, days or hours."""
        return str(self.transform) in ("year", "month", "day", "hour")

    @property
    def is_identity(self) -> bool:
        """Whether partitions have the column's own values."""
        return str(self.transform) == "identity"


def check_readable(metadata: TableMetadata) -> None:
    """Raises ForeignTable for a table of a format version that cannot be planned."""
    if metadata.format_version not in _READABLE:
        raise ForeignTable(
            f"{metadata.location} has Iceberg format version {metadata.format_version}; versions 1 to 3 can be read",
            "read the table with an engine that knows this version",
        )


def chosen_snapshot(metadata: TableMetadata, snapshot_id: int | None) -> Snapshot | None:
    """The snapshot of this ID, or the current one; None in a table without snapshots. Raises UsageError."""
    if snapshot_id is None:
        return metadata.current_snapshot
    snapshot = metadata.snapshot(snapshot_id)
    if snapshot is None:
        raise UsageError(
            f"{metadata.location} has no snapshot {snapshot_id}",
            "choose one of its history: it may have been removed since",
        )
    return snapshot


def read_schema(metadata: TableMetadata, snapshot_id: int | None) -> Schema:
    """The schema in which a snapshot is read: the table's current one, or, for a snapshot that is asked for by its ID,
    the one that it was made under."""
    document = metadata.document
    schemas: Sequence[Mapping[str, Any]] = document.get("schemas") or [document["schema"]]
    schema_id = document.get("current-schema-id")
    snapshot = None if snapshot_id is None else metadata.snapshot(snapshot_id)
    if snapshot is not None and snapshot.schema_id is not None:
        schema_id = snapshot.schema_id
    for schema in schemas:
        if schema_id is None or schema.get("schema-id", 0) == schema_id:
            return _schema(orjson.dumps(schema))
    raise LakeError(
        f"the metadata of {metadata.location} has no schema {schema_id}", "repair it with the table's engine"
    )


def parsed_schema(document: bytes) -> Schema:
    """A schema from its JSON. Raises ForeignTable for a type that is not known here."""
    try:
        schema = schema_of(document)
    except (ValueError, TypeError) as error:
        raise ForeignTable(
            f"the table has columns that cannot be read here: {one_line_of(error)}",
            "read the table with an engine that knows their types",
        ) from error
    variants_of(schema)
    return schema


@lru_cache(maxsize=64)
def _schema(document: bytes) -> Schema:
    """A schema from its JSON; the making of one takes as long as that of a manifest list. Raises ForeignTable."""
    return parsed_schema(document)


def partition_specs(metadata: TableMetadata) -> dict[int, tuple[SpecField, ...]]:
    """The fields of each partition spec, the current one and former ones, by the spec's ID."""
    document = metadata.document
    specs = document.get("partition-specs") or [{"spec-id": 0, "fields": document.get("partition-spec", [])}]
    return {int(spec["spec-id"]): spec_fields(spec["fields"]) for spec in specs}


def spec_fields(documents: Sequence[Mapping[str, Any]]) -> tuple[SpecField, ...]:
    """Fields of a spec from their JSON."""
    return tuple(
        SpecField(
            int(field.get("field-id", _FIRST_PARTITION_ID + place)),
            int(field["source-id"]),
            str(field["name"]),
            parse_transform(field["transform"]),
        )
        for place, field in enumerate(documents)
    )


def manifests_of(snapshot: Snapshot, storage: StorageOptions) -> tuple[Manifest, ...]:
    """The manifests of any engine's snapshot; early ones of format version 1 name them without a list. Raises
    LakeError."""
    if "manifest-list" in snapshot.document:
        return listed_manifests(snapshot, storage)
    manifests = []
    for location in snapshot.document.get("manifests", ()):
        content = read_bytes(location, storage)
        with decoding(location, "a readable manifest"):
            spec_id = int(EntryReader(content).metadata.get("partition-spec-id", 0))
        manifests.append(Manifest(location, len(content), spec_id, 0, 0, 0, 0, (0, 1, 0), (0, 0, 0)))
    return tuple(manifests)
