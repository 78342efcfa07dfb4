"""Partition specs in table metadata: the mirror's own, and what any engine's document says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import DateType, IcebergType, IntegerType, NestedField, StructType

from mirror_pump.column_names import folded, free_name
from mirror_pump.errors import ForeignTable, LakeError
from mirror_pump.lake.format.partitioning import applies, buckets_of, partitioning_of_deletes, width_of
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.model import LakePartitioning, PartitionedColumn

NO_PARTITION = StructType()
"""The partition type of unpartitioned tables."""
LAST_PARTITION_ID = 999
"""Partition field IDs begin at 1000 (Iceberg spec)."""


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """A view of a partition spec."""

    document: Mapping[str, Any]

    @property
    def spec_id(self) -> int:
        """Manifests name their spec by it."""
        return int(self.document["spec-id"])

    @property
    def fields(self) -> Sequence[Mapping[str, Any]]:
        """As in the document; none in the spec of an unpartitioned table."""
        fields: Sequence[Mapping[str, Any]] = self.document["fields"]
        return fields

    @property
    def partitioning(self) -> LakePartitioning | None:
        """The partitioning by the spec's fields; None if it has none."""
        fields = tuple(PartitionedColumn(int(field["source-id"]), str(field["transform"])) for field in self.fields)
        return LakePartitioning(fields) if fields else None

    def partition_type(self, schema: Mapping[str, Any]) -> StructType | None:
        """The type of partitions under this spec (Iceberg spec, manifests, field 102). `schema`: the table's schema in
        the form of table metadata. None for a spec that the mirror does not write."""
        if not self.fields:
            return NO_PARTITION
        partitioning = self.partitioning
        assert partitioning is not None
        try:
            lake_schema = LakeSchema.from_iceberg_json(schema)
        except LakeError:
            # Another engine added a column of a type that the mirror does not write.
            return None
        types = []
        for field, divided in zip(self.fields, partitioning.fields, strict=True):
            source = _source(lake_schema, divided)
            if source is None or not applies(divided.transform, source.type):
                return None
            result = _result_type(source, divided.transform)
            types.append(NestedField(int(field["field-id"]), str(field["name"]), result, required=False))
        return StructType(*types)

    def any_partition_type(self, schema: Schema) -> StructType:
        """As `partition_type`, for a spec of any engine. `schema`: the table's, with a column for each field. Raises
        ForeignTable for a field whose column is gone."""
        fields = []
        for field in self.fields:
            source = schema._lazy_id_to_field.get(int(field["source-id"]))
            if source is None:
                raise ForeignTable(
                    f"the column of partition field {field['name']} was dropped",
                    "drop the partition field, too, with the engine that dropped the column",
                )
            result = parse_transform(field["transform"]).result_type(source.field_type)
            fields.append(NestedField(int(field["field-id"]), str(field["name"]), result, required=False))
        return StructType(*fields)


def specs_of(schema: LakeSchema, partitioning: LakePartitioning | None) -> list[PartitionSpec]:
    """The specs of a new table, first that of its data files. Another one, without fields, is for equality deletes
    that apply to every partition, if keys do not tell the partition. Raises ValueError if the schema has no such column
    or a transform does not apply to it."""
    return list(map(PartitionSpec, changed_specs((), LAST_PARTITION_ID, schema, partitioning).documents))


@dataclass(frozen=True)
class ChangedSpecs:
    """The partition specs of a table after its partitioning changed."""

    documents: list[Mapping[str, Any]]
    """The former ones, which files of old snapshots have, and new ones."""
    default_id: int
    """That of new data files."""
    last_partition_id: int
    """The highest ID that a partition field has ever had."""


def changed_specs(
    specs: Sequence[Mapping[str, Any]], last_id: int, schema: LakeSchema, partitioning: LakePartitioning | None
) -> ChangedSpecs:
    """The specs with those that `partitioning` needs, as in `specs_of`. `last_id`: the highest ID that a partition
    field has ever had. A spec that was there before is used again, and so is the ID of a field (Iceberg spec,
    partition evolution). Raises ValueError as `specs_of`."""
    documents = list(specs)
    fields = _fields_of(specs, last_id, schema, partitioning)
    default_id = _spec_of(documents, fields)
    if fields and partitioning_of_deletes(partitioning, schema) is None:
        _spec_of(documents, [])
    last_ids = [last_id, *(int(field["field-id"]) for field in fields)]
    return ChangedSpecs(documents, default_id, max(last_ids))


def _spec_of(documents: list[Mapping[str, Any]], fields: Sequence[Mapping[str, Any]]) -> int:
    """The ID of the spec with these fields, whatever their names; it is added if there is none."""
    for spec in documents:
        if list(map(_identity, spec["fields"])) == list(map(_identity, fields)):
            return int(spec["spec-id"])
    spec_id = max((int(spec["spec-id"]) for spec in documents), default=-1) + 1
    documents.append({"spec-id": spec_id, "fields": list(fields)})
    return spec_id


def _identity(field: Mapping[str, Any]) -> tuple[int, str]:
    """What a partition field is, but for its name and ID."""
    return int(field["source-id"]), str(field["transform"])


def _fields_of(
    specs: Sequence[Mapping[str, Any]], last_id: int, schema: LakeSchema, partitioning: LakePartitioning | None
) -> list[dict[str, Any]]:
    """The fields of a spec for this partitioning. Raises ValueError as `specs_of`."""
    ids = {_identity(field): int(field["field-id"]) for spec in specs for field in spec["fields"]}
    fields: list[dict[str, Any]] = []
    for divided in () if partitioning is None else partitioning.fields:
        source = _source(schema, divided)
        if source is None or not applies(divided.transform, source.type):
            raise ValueError(f"{divided} does not apply to a table of {schema}")
        taken = _columns(schema) | {folded(field["name"]) for field in fields}
        name = free_name(f"{source.name}_{_suffix(divided.transform)}", taken)
        field_id = ids.get((source.field_id, divided.transform))
        if field_id is None:
            field_id = last_id = last_id + 1
        fields.append(
            {"source-id": source.field_id, "field-id": field_id, "name": name, "transform": divided.transform}
        )
    return fields


def same_specs(left: Sequence[Mapping[str, Any]], right: Sequence[Mapping[str, Any]]) -> bool:
    """Whether each spec in `left` is also in `right`, under the same ID, whatever the names of fields are."""
    fields = {int(spec["spec-id"]): list(map(_numbered, spec["fields"])) for spec in right}
    return all(fields.get(int(spec["spec-id"])) == list(map(_numbered, spec["fields"])) for spec in left)


def _numbered(field: Mapping[str, Any]) -> tuple[int, int, str]:
    """A field without its name."""
    return int(field["field-id"]), *_identity(field)


def _suffix(transform: str) -> str:
    """For the name of a field, as in Iceberg."""
    if width_of(transform) is not None:
        return "trunc"
    return "bucket" if buckets_of(transform) is not None else transform


def named_apart(specs: Sequence[Mapping[str, Any]], schema: LakeSchema) -> list[Mapping[str, Any]]:
    """The specs with partition fields renamed that have the name of a column of `schema`: Iceberg's Java code refuses
    to load such a table. Manifests identify partition fields by ID, so their names may change at any time."""
    return [{**spec, "fields": [_named_apart(field, schema) for field in spec["fields"]]} for spec in specs]


def _named_apart(field: Mapping[str, Any], schema: LakeSchema) -> Mapping[str, Any]:
    source = _source(schema, PartitionedColumn(int(field["source-id"]), str(field["transform"])))
    if field["transform"] == "identity" and source is not None and field["name"] == source.name:
        # Another engine's, which usually has the name of its column.
        return field
    return {**field, "name": free_name(field["name"], _columns(schema))}


def _columns(schema: LakeSchema) -> set[str]:
    """The folded names of the columns."""
    return {folded(field.name) for field in schema.fields}


def _source(schema: LakeSchema, divided: PartitionedColumn) -> LakeField | None:
    return next((field for field in schema.fields if field.field_id == divided.field_id), None)


def _result_type(source: LakeField, transform: str) -> IcebergType:
    """The type of partition values, as in Iceberg's Java code, which has dates for days."""
    if transform == "day":
        return DateType()
    if transform == "identity" or width_of(transform) is not None:
        return IcebergType.model_validate("string" if source.type.mask is not None else str(source.type))
    return IntegerType()
