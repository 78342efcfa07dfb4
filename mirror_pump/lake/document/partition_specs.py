"""Partition specs in table metadata: the mirror's own, and what any engine's document says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import DateType, IcebergType, IntegerType, NestedField, StructType

from mirror_pump.errors import ForeignTable, LakeError
from mirror_pump.lake.format.partitioning import applies, buckets_of, partitioning_of_deletes, width_of
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.model import LakePartitioning, PartitionedColumn

NO_PARTITION = StructType()
"""The partition type of unpartitioned tables."""
LAST_PARTITION_ID = 999
"""Partition field IDs begin at 1000 (Iceberg spec)."""
_FIELD_ID = LAST_PARTITION_ID + 1


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
    if partitioning is None or not partitioning.fields:
        return [PartitionSpec({"spec-id": 0, "fields": []})]
    fields: list[dict[str, Any]] = []
    for number, divided in enumerate(partitioning.fields):
        source = _source(schema, divided)
        if source is None or not applies(divided.transform, source.type):
            raise ValueError(f"{divided} does not apply to a table of {schema}")
        name = _free_name(f"{source.name}_{_suffix(divided.transform)}", schema)
        while any(field["name"].lower() == name.lower() for field in fields):
            name += "_"
        fields.append(
            {
                "source-id": source.field_id,
                "field-id": _FIELD_ID + number,
                "name": name,
                "transform": divided.transform,
            }
        )
    specs = [PartitionSpec({"spec-id": 0, "fields": fields})]
    if partitioning_of_deletes(partitioning, schema) is None:
        specs.append(PartitionSpec({"spec-id": 1, "fields": []}))
    return specs


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
    return {**field, "name": _free_name(field["name"], schema)}


def _free_name(name: str, schema: LakeSchema) -> str:
    """The name, with underscores until no column has it. Compared without case, since Spark folds names."""
    taken = {field.name.lower() for field in schema.fields}
    while name.lower() in taken:
        name += "_"
    return name


def _source(schema: LakeSchema, divided: PartitionedColumn) -> LakeField | None:
    return next((field for field in schema.fields if field.field_id == divided.field_id), None)


def _result_type(source: LakeField, transform: str) -> IcebergType:
    """The type of partition values, as in Iceberg's Java code, which has dates for days."""
    if transform == "day":
        return DateType()
    if transform == "identity" or width_of(transform) is not None:
        return IcebergType.model_validate("string" if source.type.mask is not None else str(source.type))
    return IntegerType()
