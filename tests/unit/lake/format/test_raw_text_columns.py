"""The raw text columns of a schema, their names, and rows with and without them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoders.columns import ColumnType
from mirror_pump.lake.format.raw_text_columns import (
    RAW_TEXT_IDS_FROM,
    every_raw_text,
    narrowed,
    raw_text_fields,
    widened,
    with_raw_text,
    without_raw_text,
)
from mirror_pump.lake.format.schema import LakeField, LakeSchema


def schema(**columns: str) -> LakeSchema:
    """Fields 1, 2, ... of these types; the first is the key."""
    fields = tuple(
        LakeField(number, name, ColumnType.parse(type_), required=number == 1)
        for number, (name, type_) in enumerate(columns.items(), 1)
    )
    return LakeSchema(0, fields, (1,))


def names(schema: LakeSchema) -> dict[int, str]:
    return {field.field_id: field.name for field in schema.fields if field.field_id >= RAW_TEXT_IDS_FROM}


def test_only_columns_that_may_lack_values_have_one() -> None:
    own = schema(id="long", v="string", m="decimal(9,2)", f="double", d="date", l="list<int>", u="uuid", b="binary")
    assert names(every_raw_text(own)) == {200_003: "m__raw", 200_005: "d__raw", 200_006: "l__raw"}
    assert names(with_raw_text(own, {5, 2, 77})) == {200_005: "d__raw"}


def test_names_give_way_in_any_case_and_do_not_depend_on_who_came_first() -> None:
    own = schema(id="long", m="date", M__RAW="string", m__raw_="date")
    every = {200_002: "m__raw__", 200_004: "m__raw___raw"}
    assert names(every_raw_text(own)) == every
    for column in (2, 4):
        (name,) = names(with_raw_text(own, {column})).values()
        assert name == every[RAW_TEXT_IDS_FROM + column]


def test_a_rename_renames_both() -> None:
    before = with_raw_text(schema(id="long", m="date"), {2})
    after = with_raw_text(schema(id="long", total="date"), raw_text_fields(before))
    assert names(after) == {200_002: "total__raw"}


@given(st.sets(st.integers(1, 8)))
def test_there_and_back(columns: set[int]) -> None:
    own = schema(id="long", a="date", b="date", c="list<date>", d="string", e="timestamp", f="decimal(3,1)")
    grown = with_raw_text(own, columns)
    assert raw_text_fields(grown) == columns & {2, 3, 4, 6, 7}
    assert without_raw_text(grown) == own
    assert with_raw_text(grown, raw_text_fields(grown)) == grown
    assert LakeSchema.from_iceberg_json(grown.to_iceberg_json()) == grown
    assert grown.key == own.key


@pytest.mark.parametrize(
    "raw", [{}, {"m": ["NaN", None]}, {"m": [None, None]}, {"m": ["NaN", "NaN"], "d": ["infinity", None]}]
)
def test_a_file_has_the_raw_text_columns_that_hold_something(raw: dict[str, list[str | None]]) -> None:
    own = schema(id="long", m="decimal(9,2)", d="date")
    rows = pa.table(
        [pa.array([1, 2]), pa.nulls(2, pa.decimal128(9, 2)), pa.nulls(2, pa.date32())], names=["id", "m", "d"]
    )
    texts = {name: pa.chunked_array([pa.array(values, pa.string())]) for name, values in raw.items()}
    wide = widened(rows, texts, own)
    assert wide.column_names == ["id", "m", "d", "m__raw", "d__raw"]
    narrow, file_schema = narrowed(wide, own)
    holding = [name for name, values in raw.items() if any(values)]
    assert narrow.column_names == file_schema.arrow.names == ["id", "m", "d", *(f"{name}__raw" for name in holding)]
    assert {name: narrow.column(f"{name}__raw").to_pylist() for name in holding} == {
        name: raw[name] for name in holding
    }
