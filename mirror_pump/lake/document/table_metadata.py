"""A view of the table metadata document: that of a new table, and what a document of any engine says.

The view keeps the parsed JSON as it is, so that anything unknown that another engine put in is preserved, and copies
none of its lists to read them: every commit writes the whole document. The next document after a commit is in
mirror_pump.lake.document.next_metadata.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from mirror_pump.errors import LakeError
from mirror_pump.lake.document.snapshot import (
    Snapshot,
    SnapshotList,
    SnapshotRef,
    is_archive_entry,
    sequence_number_of,
)
from mirror_pump.lake.document.snapshot_summary import ARCHIVE_CUT_LINE
from mirror_pump.model import LakePartitioning, SequenceNumber, SnapshotId, SortedColumn

if TYPE_CHECKING:
    from pyiceberg.types import StructType

    from mirror_pump.lake.document.partition_specs import PartitionSpec
    from mirror_pump.lake.format.schema import LakeSchema

MAIN = "main"
"""The branch that `current-snapshot-id` follows."""
ARCHIVE_BRANCH = "cold"
"""The archive branch of a table with heap retention: only the rows below the cut-line
(mirror_pump.lake.commit.archive_branch)."""

NAME_MAPPING = "schema.name-mapping.default"
"""The table property that gives columns of files without field IDs their IDs (Iceberg spec, column projection)."""

_UNSORTED = {"order-id": 0, "fields": []}


@dataclass(frozen=True, slots=True)
class TableMetadata:
    """A view of a table metadata document, of any engine. Immutable. Views of equal documents are equal."""

    document: Mapping[str, Any]
    """As parsed JSON. Not to be changed."""

    @classmethod
    def new(
        cls,
        schema: LakeSchema,
        location: str,
        properties: Mapping[str, str],
        now_ms: int,
        partitioning: LakePartitioning | None = None,
        format_version: int | None = None,
    ) -> TableMetadata:
        """Metadata of a table without snapshots (Iceberg spec, table metadata), of format version 2 or 3, by default 2.
        Raises ValueError for a partitioning that does not apply to the schema."""
        from mirror_pump.lake.document.partition_specs import LAST_PARTITION_ID, specs_of
        from mirror_pump.lake.format.versions import FORMAT_VERSION, VECTOR_VERSION

        specs = specs_of(schema, partitioning)
        version = FORMAT_VERSION if format_version is None else format_version
        return cls(
            {
                "format-version": version,
                **({"next-row-id": 0} if version >= VECTOR_VERSION else {}),
                "table-uuid": str(uuid.uuid4()),
                "location": location,
                "last-sequence-number": 0,
                "last-updated-ms": now_ms,
                "last-column-id": schema.last_column_id,
                "schemas": [schema.to_iceberg_json()],
                "current-schema-id": schema.schema_id,
                "partition-specs": [spec.document for spec in specs],
                "default-spec-id": specs[0].spec_id,
                "last-partition-id": LAST_PARTITION_ID + len(specs[0].fields),
                **_sort_orders(() if partitioning is None else partitioning.order),
                "properties": {**schema.engine_properties, **properties},
                "current-snapshot-id": -1,
                "refs": {},
                "snapshots": [],
                "snapshot-log": [],
                "metadata-log": [],
                "statistics": [],
                "partition-statistics": [],
            }
        )

    @classmethod
    def from_json(cls, content: bytes) -> TableMetadata:
        """The content of a metadata file. ValueError or TypeError for anything but a JSON object."""
        return cls(dict(orjson.loads(content)))

    def to_json(self) -> bytes:
        """The content of a metadata file."""
        return orjson.dumps(self.document)

    def parsed(self) -> dict[str, Any]:
        """The content of a metadata file, as parsed JSON. Not to be changed below its first level."""
        return dict(self.document)

    @property
    def format_version(self) -> int:
        """KeyError if the document is no table metadata."""
        return int(self.document["format-version"])

    @property
    def table_uuid(self) -> str:
        """Stays the same for the table's life."""
        return str(self.document["table-uuid"])

    @property
    def location(self) -> str:
        """Root URI of the table's files."""
        return str(self.document["location"])

    @property
    def last_sequence_number(self) -> SequenceNumber:
        """That of the newest commit to any branch; 0 in a table from format version 1."""
        return SequenceNumber(int(self.document.get("last-sequence-number", 0)))

    @property
    def has_row_lineage(self) -> bool:
        """Whether rows have IDs, and deletes by position are deletion vectors: of format version 3."""
        return "next-row-id" in self.document

    @property
    def next_row_id(self) -> int:
        """The first row ID that the next snapshot may assign; 0 in a table without row lineage."""
        return int(self.document.get("next-row-id") or 0)

    @property
    def last_updated_ms(self) -> int:
        """When the document was written, milliseconds since 1970 UTC."""
        return int(self.document["last-updated-ms"])

    @property
    def properties(self) -> Mapping[str, str]:
        """The table properties."""
        properties: Mapping[str, str] = self.document.get("properties") or {}
        return properties

    @property
    def metadata_log_length(self) -> int:
        """Number of former metadata files that the document names."""
        return len(self.document.get("metadata-log", ()))

    @property
    def former_locations(self) -> list[str]:
        """The former metadata files that the document names, oldest first."""
        return [str(entry["metadata-file"]) for entry in self.document.get("metadata-log", ())]

    @property
    def statistics_locations(self) -> list[str]:
        """The files of statistics that engines made."""
        return [
            str(entry["statistics-path"])
            for key in ("statistics", "partition-statistics")
            for entry in self.document.get(key) or ()
        ]

    # Schemas and partition specs

    @property
    def current_schema_id(self) -> int:
        """The schema of new files."""
        return int(self.document["current-schema-id"])

    def schema(self, schema_id: int) -> LakeSchema:
        """A schema of the table. ForeignTable if it has a type that the mirror does not write."""
        from mirror_pump.lake.format.schema import LakeSchema

        return LakeSchema.from_iceberg_json(self.schema_document(schema_id))

    @property
    def current_schema(self) -> LakeSchema:
        """The current schema. ForeignTable if another engine gave the table a type that the mirror does not write."""
        return self.schema(self.current_schema_id)

    @property
    def last_column_id(self) -> int:
        """The highest field ID that the table has ever used."""
        return int(self.document["last-column-id"])

    @property
    def schema_documents(self) -> Sequence[Mapping[str, Any]]:
        """All schemas, in the form of table metadata."""
        documents: Sequence[Mapping[str, Any]] = self.document["schemas"]
        return documents

    @property
    def readable_schemas(self) -> list[LakeSchema]:
        """All schemas, but those with a type that the mirror does not write: another engine may have added, and
        dropped, such a column."""
        from mirror_pump.lake.format.schema import LakeSchema

        schemas = []
        for document in self.document["schemas"]:
            try:
                schemas.append(LakeSchema.from_iceberg_json(document))
            except LakeError:
                continue
        return schemas

    def schema_document(self, schema_id: int) -> Mapping[str, Any]:
        """A schema in the form of table metadata, as manifests hold it too."""
        for document in self.document["schemas"]:
            if document["schema-id"] == schema_id:
                schema: Mapping[str, Any] = document
                return schema
        raise LakeError(f"the metadata of {self.location} has no schema {schema_id}", "copy the table again")

    def shares_schema(self, schema_id: int | None, other: TableMetadata) -> bool:
        """Whether `other` has what this document has under the ID. Also true if this one has nothing there."""
        documents = (document for document in self.document["schemas"] if document["schema-id"] == schema_id)
        return all(document in other.document["schemas"] for document in documents)

    @property
    def partition_specs(self) -> list[PartitionSpec]:
        """The current one and former ones."""
        from mirror_pump.lake.document.partition_specs import PartitionSpec

        return list(map(PartitionSpec, self.document["partition-specs"]))

    @property
    def default_spec_id(self) -> int:
        """The partition spec of new files."""
        return int(self.document["default-spec-id"])

    @property
    def default_spec(self) -> PartitionSpec:
        """The partition spec of new files."""
        return next(spec for spec in self.partition_specs if spec.spec_id == self.default_spec_id)

    @property
    def global_spec_id(self) -> int | None:
        """The spec of equality deletes that apply to every partition; None if there is none. An unpartitioned table's
        only one."""
        return next((spec.spec_id for spec in self.partition_specs if not spec.fields), None)

    @property
    def own_spec_ids(self) -> frozenset[int]:
        """The specs of files that the mirror writes."""
        default, without = self.default_spec, self.global_spec_id
        partitioning = default.partitioning
        by_key = partitioning is None or partitioning.field_ids <= set(self.current_schema.key_ids)
        return frozenset({default.spec_id} if by_key or without is None else {default.spec_id, without})

    @property
    def sort_order(self) -> tuple[SortedColumn, ...]:
        """How rows of new files are to be sorted; none if they are not, or by something else than columns."""
        default = self.document.get("default-sort-order-id", 0)
        fields = next(
            (order["fields"] for order in self.document.get("sort-orders", ()) if order["order-id"] == default), ()
        )
        if any(field["transform"] != "identity" for field in fields):
            return ()
        return tuple(
            SortedColumn(int(field["source-id"]), field["direction"] == "desc", field["null-order"] == "nulls-last")
            for field in fields
        )

    @property
    def is_partitioned(self) -> bool:
        """Whether new files belong to partitions."""
        default = self.document.get("default-spec-id")
        return any(spec["fields"] for spec in self.document.get("partition-specs", ()) if spec["spec-id"] == default)

    def partition_type(self, spec_id: int) -> StructType | None:
        """The type of partitions under a spec; None for a spec that the mirror does not write. Of a former spec, a
        column may be gone: then a former schema has it."""
        spec = next((spec for spec in self.partition_specs if spec.spec_id == spec_id), None)
        if spec is None:
            return None
        schemas = [self.schema_document(self.current_schema_id)]
        if spec_id != self.default_spec_id:
            schemas += reversed(self.schema_documents)
        return next((kind for schema in schemas if (kind := spec.partition_type(schema)) is not None), None)

    # Snapshots and branches

    @property
    def snapshots(self) -> SnapshotList:
        """The retained snapshots, in the order of the document: usually that of commits."""
        return SnapshotList(self.document.get("snapshots", ()))

    def snapshot(self, snapshot_id: int) -> Snapshot | None:
        """The retained snapshot with this ID; None if there is none."""
        # Newest first, since nearly every caller asks for a recent snapshot.
        for document in reversed(self.document.get("snapshots", ())):
            if document["snapshot-id"] == snapshot_id:
                return Snapshot(document)
        return None

    @property
    def current_snapshot_id(self) -> SnapshotId | None:
        """The snapshot that readers get by default; None in a table without snapshots."""
        snapshot_id = self.document.get("current-snapshot-id")
        return None if snapshot_id in (None, -1) else SnapshotId(int(snapshot_id))

    @property
    def current_snapshot(self) -> Snapshot | None:
        """The snapshot that readers get by default; None in a table without snapshots."""
        snapshot_id = self.current_snapshot_id
        return None if snapshot_id is None else self.snapshot(snapshot_id)

    @property
    def refs(self) -> dict[str, SnapshotRef]:
        """Branches and tags by name."""
        return {name: SnapshotRef(document) for name, document in self.document.get("refs", {}).items()}

    def branch(self, name: str) -> Snapshot | None:
        """The head of a branch; None in a table without the branch."""
        ref = self.refs.get(name)
        return None if ref is None else self.snapshot(ref.snapshot_id)

    @property
    def archive_snapshot(self) -> Snapshot | None:
        """The head of the archive branch; None in a table without one."""
        return self.branch(ARCHIVE_BRANCH)

    @property
    def seam_locations(self) -> frozenset[str]:
        """Metadata files of archive snapshots, in addition to the table's own, that readers of retained snapshots may
        know."""
        return frozenset(location for snapshot in self.snapshots if (location := snapshot.summary.seam_metadata))

    def new_snapshot_id(self) -> SnapshotId:
        """A random positive 63-bit ID that no retained snapshot has."""
        while True:
            candidate = secrets.randbits(63)
            if candidate and self.snapshot(candidate) is None:
                return SnapshotId(candidate)

    def expiry_view(self) -> TableMetadata:
        """What decides which snapshots expire, and no more: to be kept in memory for many tables.

        Of each snapshot it has the IDs, the time, and whether it is an archive snapshot.
        """
        return TableMetadata(
            {
                "current-snapshot-id": self.document.get("current-snapshot-id"),
                "refs": self.document.get("refs", {}),
                "snapshots": [
                    {
                        "snapshot-id": snapshot["snapshot-id"],
                        "sequence-number": sequence_number_of(snapshot),
                        "timestamp-ms": snapshot.get("timestamp-ms", 0),
                        "summary": {ARCHIVE_CUT_LINE: ""} if is_archive_entry(snapshot) else {},
                    }
                    for snapshot in self.document.get("snapshots", ())
                ],
            }
        )


def sort_fields(order: Sequence[SortedColumn]) -> list[dict[str, Any]]:
    """The fields of a sort order (Iceberg spec, sorting)."""
    return [
        {
            "transform": "identity",
            "source-id": column.field_id,
            "direction": "desc" if column.descending else "asc",
            "null-order": "nulls-last" if column.nulls_last else "nulls-first",
        }
        for column in order
    ]


def _sort_orders(order: Sequence[SortedColumn]) -> dict[str, Any]:
    """The part of a new table's document about the order of rows."""
    if not order:
        return {"sort-orders": [_UNSORTED], "default-sort-order-id": 0}
    fields = sort_fields(order)
    return {"sort-orders": [_UNSORTED, {"order-id": 1, "fields": fields}], "default-sort-order-id": 1}
