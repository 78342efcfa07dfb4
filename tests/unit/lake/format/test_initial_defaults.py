"""Defaults of columns as Iceberg's schemas have them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from decoders.columns import ColumnType
from decoders.text import parse_text
from mirror_pump.lake.format.initial_defaults import default_array, default_of_text
from mirror_pump.lake.format.schema import LakeField, LakeSchema

_DEFAULTS = [
    ("boolean", "t", True),
    ("int", "-7", -7),
    ("long", "9223372036854775807", 2**63 - 1),
    ("float", "0.1", 0.10000000149011612),
    ("double", "5e-324", 5e-324),
    ("decimal(9,2)", "14.20", "14.20"),
    ("decimal(38,0)", "-99999999999999999999999999999999999999", "-99999999999999999999999999999999999999"),
    ("decimal(38,10)", "0", "0.0000000000"),
    ("string", "grüße '", "grüße '"),
    ("string", "", ""),
    ("binary", r"\x00ff5c", "00ff5c"),
    ("uuid", "80000000-0000-4000-8000-000000000000", "80000000-0000-4000-8000-000000000000"),
    ("date", "1582-10-15", "1582-10-15"),
    ("timestamp", "1969-12-31 23:59:59.999999", "1969-12-31T23:59:59.999999"),
    ("timestamptz", "2026-01-01 00:00:00+00", "2026-01-01T00:00:00.000000+00:00"),
]


@pytest.mark.parametrize(("kind", "text", "default"), _DEFAULTS)
def test_a_default_is_the_value_that_postgres_printed(kind: str, text: str, default: object) -> None:
    column_type = ColumnType.parse(kind)
    stored = default_of_text(text, column_type)
    assert stored == default
    assert type(stored) is type(default)
    value = parse_text(pa.array([text], pa.string()), column_type).values
    assert default_array(stored, column_type).equals(value)
    field = LakeField(1, "c", column_type, required=False, initial_default=stored)
    schema = LakeSchema(0, (field,), ())
    assert LakeSchema.from_iceberg_json(schema.to_iceberg_json()) == schema


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("float", "NaN"),
        ("double", "-Infinity"),
        ("decimal(9,2)", "NaN"),
        ("date", "infinity"),
        ("date", "0044-03-15 BC"),
        ("timestamp", "0044-03-15 12:00:00 BC"),
        ("timestamptz", "infinity"),
        ("list<int>", "{1,2}"),
    ],
)
def test_there_is_none_for_what_iceberg_cannot_write(kind: str, text: str) -> None:
    assert default_of_text(text, ColumnType.parse(kind)) is None
