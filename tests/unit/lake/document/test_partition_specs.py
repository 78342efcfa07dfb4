"""Partition specs: what a new table has, as pyiceberg parses it, and names that no column has."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.transforms import parse_transform
from pyiceberg.types import NestedField

from decoders.columns import ColumnType, Kind
from mirror_pump.lake.document.next_metadata import with_schema
from mirror_pump.lake.document.partition_specs import NO_PARTITION, PartitionSpec, specs_of
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.model import LakePartitioning


def schema(kind: Kind, *names: str) -> LakeSchema:
    others = [LakeField(number, name, ColumnType(Kind.STRING), required=False) for number, name in enumerate(names, 2)]
    return LakeSchema(0, (LakeField(1, "at", ColumnType(kind), required=True), *others), (1,))


def table(kind: Kind, transform: str, *names: str) -> TableMetadata:
    return TableMetadata.new(schema(kind, *names), "file:///t", {}, 0, LakePartitioning.by(1, transform))


@pytest.mark.parametrize(
    ("kind", "transform", "name"),
    [
        (Kind.TIMESTAMPTZ, "hour", "at_hour"),
        (Kind.TIMESTAMP, "day", "at_day"),
        (Kind.DATE, "day", "at_day"),
        (Kind.DATE, "month", "at_month"),
        (Kind.TIMESTAMPTZ, "year", "at_year"),
        (Kind.LONG, "truncate[100]", "at_trunc"),
        (Kind.INT, "truncate[7]", "at_trunc"),
        (Kind.STRING, "truncate[7]", "at_trunc"),
        (Kind.STRING, "identity", "at_identity"),
        (Kind.TIMESTAMP, "identity", "at_identity"),
        (Kind.BOOLEAN, "identity", "at_identity"),
        (Kind.UUID, "bucket[5]", "at_bucket"),
        (Kind.DATE, "bucket[5]", "at_bucket"),
    ],
)
def test_partition_types_are_those_of_pyiceberg(kind: Kind, transform: str, name: str) -> None:
    metadata = table(kind, transform)
    parsed = TableMetadataUtil.parse_raw(metadata.to_json().decode())
    (field,) = parsed.spec().fields
    assert (field.name, field.transform, field.source_id) == (name, parse_transform(transform), 1)
    found = metadata.partition_type(0)
    assert found is not None
    (wanted,) = parsed.spec().partition_type(parsed.schema()).fields
    # Java has partition fields optional, whatever their source is.
    assert found.fields == (NestedField(wanted.field_id, wanted.name, wanted.field_type, required=False),)
    assert (parsed.last_partition_id, metadata.default_spec.partitioning) == (1000, LakePartitioning.by(1, transform))
    assert metadata.is_partitioned


def test_an_unpartitioned_table_has_an_empty_spec() -> None:
    metadata = TableMetadata.new(schema(Kind.LONG), "file:///t", {}, 0)
    assert metadata.partition_type(0) == NO_PARTITION
    assert metadata.partition_type(1) is None
    assert metadata.default_spec.partitioning is None
    assert not metadata.is_partitioned


@pytest.mark.parametrize(
    ("kind", "partitioning"),
    [
        (Kind.LONG, LakePartitioning.by(1, "day")),
        (Kind.DATE, LakePartitioning.by(1, "hour")),
        (Kind.STRING, LakePartitioning.by(1, "day")),
        (Kind.DATE, LakePartitioning.by(2, "day")),
        (Kind.DATE, LakePartitioning.by(9, "day")),
    ],
)
def test_a_partitioning_that_does_not_fit_is_refused(kind: Kind, partitioning: LakePartitioning) -> None:
    with pytest.raises(ValueError, match="does not apply"):
        specs_of(schema(kind, "other"), partitioning)


@pytest.mark.parametrize(
    "fields",
    [
        [{"source-id": 1, "field-id": 1000, "name": "at_void", "transform": "void"}],
        [{"source-id": 7, "field-id": 1000, "name": "at_day", "transform": "day"}],
        [
            {"source-id": 1, "field-id": 1000 + n, "name": f"f{n}", "transform": ("day", "truncate[2]")[n]}
            for n in (0, 1)
        ],
    ],
)
def test_specs_of_other_engines_have_no_type_that_the_mirror_writes(fields: list[dict[str, object]]) -> None:
    document = schema(Kind.TIMESTAMP).to_iceberg_json()
    assert PartitionSpec({"spec-id": 3, "fields": fields}).partition_type(document) is None


def test_a_partition_field_has_the_name_of_no_column() -> None:
    metadata = table(Kind.DATE, "day", "at_day", "AT_DAY_")
    assert metadata.default_spec.fields[0]["name"] == "at_day__"
    metadata = table(Kind.DATE, "day", "other")
    assert metadata.default_spec.fields[0]["name"] == "at_day"
    columns = metadata.current_schema
    added = replace(columns, fields=(*columns.fields, LakeField(5, "at_Day", ColumnType(Kind.LONG), required=False)))
    after = with_schema(metadata, added, None, columns)
    assert [spec.fields[0]["name"] for spec in after.partition_specs] == ["at_day_"]
    assert after.default_spec.partitioning == metadata.default_spec.partitioning
    assert with_schema(after, columns, 0, added).default_spec.fields[0]["name"] == "at_day_", "names stay"


def test_an_identity_of_another_engine_keeps_the_name_of_its_column() -> None:
    metadata = table(Kind.DATE, "day", "other")
    identity = {"source-id": 2, "field-id": 1001, "name": "other", "transform": "identity"}
    specs = [*metadata.document["partition-specs"], {"spec-id": 1, "fields": [identity]}]
    changed = TableMetadata({**metadata.document, "partition-specs": specs})
    after = with_schema(changed, replace(changed.current_schema, schema_id=1), None, changed.current_schema)
    assert after.partition_specs[1].fields == [identity]
