"""Lake schemas: field IDs, key, and the JSON of Iceberg's metadata."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema

from decoders.columns import ColumnType, Kind
from mirror_pump.errors import LakeError
from mirror_pump.lake.format.schema import ELEMENT_IDS_FROM, LakeField, LakeSchema
from mirror_pump.model import Column
from tests.support.table_values import live_table


def _column(field_id: int, name: str, text: str, *, not_null: bool = False) -> Column:
    return Column(field_id, name, 0, -1, "", ColumnType.parse(text), field_id, not_null)


TABLE = live_table(
    (
        _column(1, "note", "string", not_null=True),
        _column(2, "id", "long", not_null=True),
        _column(4, "tags", "list<uuid>"),
        _column(5, "price", "decimal(14,2)"),
        _column(7, "part", "int", not_null=True),
    ),
    ("id", "part"),
)
SCHEMA = LakeSchema.of_table(TABLE)


def test_only_key_columns_are_required() -> None:
    assert [field.required for field in SCHEMA.fields] == [False, True, False, False, True]
    assert SCHEMA.key_ids == (2, 7)
    assert SCHEMA.key.arrow.names == ["id", "part"]
    assert SCHEMA.key.key_ids == SCHEMA.key_ids


def test_arrow_schema_has_the_types_and_field_ids() -> None:
    assert SCHEMA.arrow.types == [column.type.arrow for column in TABLE.columns]
    assert [field.metadata[b"PARQUET:field_id"] for field in SCHEMA.arrow] == [b"1", b"2", b"4", b"5", b"7"]
    element = SCHEMA.arrow.field("tags").type.value_field
    assert element.metadata == {b"PARQUET:field_id": str(ELEMENT_IDS_FROM + 4).encode()}
    assert SCHEMA.last_column_id == ELEMENT_IDS_FROM + 4


def test_json_goes_round_and_is_what_pyiceberg_parses() -> None:
    document = SCHEMA.to_iceberg_json()
    assert LakeSchema.from_iceberg_json(document) == SCHEMA
    parsed = Schema.model_validate(document)
    assert parsed.identifier_field_ids == [2, 7]
    assert str(parsed.find_type("price")) == "decimal(14, 2)"
    assert str(parsed.find_type("tags")) == "list<uuid>"
    assert parsed.find_field("tags.element").field_id == ELEMENT_IDS_FROM + 4


@pytest.mark.parametrize(
    "kind", [kind for kind in Kind if kind not in (Kind.LIST, Kind.DECIMAL, Kind.STRUCT, Kind.MAP)]
)
def test_every_kind_goes_round(kind: Kind) -> None:
    scalar = LakeField(1, "a", ColumnType(kind), required=False)
    several = LakeField(2, "b", ColumnType(Kind.LIST, element=ColumnType(kind)), required=False)
    schema = LakeSchema(3, (scalar,) if kind is Kind.VARIANT else (scalar, several), ())
    assert LakeSchema.from_iceberg_json(schema.to_iceberg_json()) == schema


def test_an_element_id_that_another_engine_chose_is_kept() -> None:
    document = SCHEMA.to_iceberg_json()
    document["fields"][2]["type"]["element-id"] = 9
    schema = LakeSchema.from_iceberg_json(document)
    assert schema.fields[2].list_element_id == 9
    assert schema.to_iceberg_json() == document


@pytest.mark.parametrize(
    "foreign",
    [
        "timestamptz_ns",
        "fixed[4]",
        {"type": "variant"},
        {"type": "list", "element-id": 7, "element": "variant", "element-required": False},
        {"type": "struct", "fields": [{"id": 7, "name": "doc", "type": "variant", "required": False}]},
        {"type": "struct", "fields": []},
        {"type": "map"},
        "decimal(x,2)",
    ],
)
def test_a_type_that_the_mirror_does_not_write_is_an_error_with_a_remedy(foreign: object) -> None:
    document = SCHEMA.to_iceberg_json()
    document["fields"][0]["type"] = foreign
    with pytest.raises(LakeError, match="note") as caught:
        LakeSchema.from_iceberg_json(document)
    assert "drop the column" in caught.value.remedy


def test_a_schema_travels_to_tasks() -> None:
    copy = pickle.loads(pickle.dumps(SCHEMA))
    assert copy == SCHEMA
    assert copy.arrow.equals(SCHEMA.arrow, check_metadata=True)
    assert isinstance(copy.arrow, pa.Schema)
