"""Columns and partition fields as people write them."""

from __future__ import annotations

import pytest

from mirror_pump.errors import UsageError
from mirror_pump.tables.table.column_texts import partition_spec_of, schema_of


def test_columns() -> None:
    schema = schema_of(["id long not null", "price decimal(9, 2)", "At TIMESTAMPTZ NOT NULL"])
    assert [(field.field_id, field.name, str(field.field_type), field.required) for field in schema.fields] == [
        (1, "id", "long", True),
        (2, "price", "decimal(9, 2)", False),
        (3, "At", "timestamptz", True),
    ]


@pytest.mark.parametrize("column", ["id", "", "id bigint", "id long null"])
def test_what_is_no_column(column: str) -> None:
    with pytest.raises(UsageError):
        schema_of([column])


def test_partition_fields_have_icebergs_names() -> None:
    spec = partition_spec_of(["region", "day(at)", "bucket[16](id)", "truncate[3](region)"], ["id", "at", "region"])
    assert [(field.source_id, field.field_id, field.name, str(field.transform)) for field in spec.fields] == [
        (3, 1000, "region", "identity"),
        (2, 1001, "at_day", "day"),
        (1, 1002, "id_bucket", "bucket[16]"),
        (3, 1003, "region_trunc", "truncate[3]"),
    ]
    assert partition_spec_of([], ["id"]).is_unpartitioned()


@pytest.mark.parametrize("field", ["other", "day()", "fortnight(at)", "void(at)", "bucket(id)", "bucket[4]"])
def test_what_is_no_partition_field(field: str) -> None:
    with pytest.raises(UsageError):
        partition_spec_of([field], ["id", "at"])
