"""Partition specs in table metadata: the mirror's own, which have one field, and what any engine's document says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import DateType, IcebergType, IntegerType, LongType, NestedField, StructType

from decoders.columns import Kind
from mirror_pump.errors import ForeignTable, LakeError
from mirror_pump.lake.format.partitioning import applies, width_of
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.model import LakePartitioning

NO_PARTITION = StructType()
"""The partition type of unpartitioned tables."""
LAST_PARTITION_ID = 999
"""Partition field IDs begin at 1000 (Iceberg spec)."""
_FIELD_ID = LAST_PARTITION_ID + 1
_SUFFIX = "trunc"
"""Iceberg's own suffix for the name of a field that truncates; other transforms give their names."""


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
        """The partitioning by the spec's only field; None if it has no field, or several."""
        if len(self.fields) != 1:
            return None
        (field,) = self.fields
        return LakePartitioning(int(field["source-id"]), str(field["transform"]))

    def partition_type(self, schema: Mapping[str, Any]) -> StructType | None:
        """The type of partitions under this spec (Iceberg spec, manifests, field 102). `schema`: the table's schema in
        the form of table metadata. None for a spec that the mirror does not write."""
        if not self.fields:
            return NO_PARTITION
        partitioning = self.partitioning
        if partitioning is None:
            return None
        try:
            source = _source(LakeSchema.from_iceberg_json(schema), partitioning)
        except LakeError:
            # Another engine added a column of a type that the mirror does not write.
            return None
        if source is None or not applies(partitioning.transform, source.type):
            return None
        (field,) = self.fields
        result = _result_type(source, partitioning.transform)
        return StructType(NestedField(int(field["field-id"]), str(field["name"]), result, required=False))

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


def spec_of(schema: LakeSchema, partitioning: LakePartitioning | None) -> PartitionSpec:
    """The spec of a new table. Raises ValueError if the schema has no such column or the transform does not apply to
    it."""
    if partitioning is None:
        return PartitionSpec({"spec-id": 0, "fields": []})
    source = _source(schema, partitioning)
    if source is None or not source.required or not applies(partitioning.transform, source.type):
        raise ValueError(f"{partitioning} does not apply to a table of {schema}")
    suffix = partitioning.transform if width_of(partitioning.transform) is None else _SUFFIX
    field = {
        "source-id": source.field_id,
        "field-id": _FIELD_ID,
        "name": _free_name(f"{source.name}_{suffix}", schema),
        "transform": partitioning.transform,
    }
    return PartitionSpec({"spec-id": 0, "fields": [field]})


def named_apart(specs: Sequence[Mapping[str, Any]], schema: LakeSchema) -> list[Mapping[str, Any]]:
    """The specs with partition fields renamed that have the name of a column of `schema`: Iceberg's Java code refuses
    to load such a table. Manifests identify partition fields by ID, so their names may change at any time."""
    return [{**spec, "fields": [_named_apart(field, schema) for field in spec["fields"]]} for spec in specs]


def _named_apart(field: Mapping[str, Any], schema: LakeSchema) -> Mapping[str, Any]:
    if field["transform"] == "identity":
        # Another engine's, which usually has the name of its column.
        return field
    return {**field, "name": _free_name(field["name"], schema)}


def _free_name(name: str, schema: LakeSchema) -> str:
    """The name, with underscores until no column has it. Compared without case, since Spark folds names."""
    taken = {field.name.lower() for field in schema.fields}
    while name.lower() in taken:
        name += "_"
    return name


def _source(schema: LakeSchema, partitioning: LakePartitioning) -> LakeField | None:
    return next((field for field in schema.fields if field.field_id == partitioning.field_id), None)


def _result_type(source: LakeField, transform: str) -> IcebergType:
    """The type of partition values, as in Iceberg's Java code, which has dates for days."""
    if transform == "day":
        return DateType()
    return LongType() if source.type.kind is Kind.LONG else IntegerType()
