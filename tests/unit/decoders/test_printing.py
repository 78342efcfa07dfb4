"""Values that were printed are read as the same values."""

from __future__ import annotations

import math
import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoders.columns import ColumnType
from decoders.printing import print_values
from decoders.text import parse_text


@pytest.mark.parametrize(
    ("type", "texts"),
    [
        ("boolean", ["t", "f", None]),
        ("long", ["-9223372036854775808", "9223372036854775807", None]),
        ("decimal(20,10)", ["1.5", "-0.0000000001", "1234567890.0123456789", None, "0"]),
        ("decimal(38,0)", ["9" * 38, "-1"]),
        ("string", ["", "NULL", None, "\\x", '"']),
        ("binary", ["\\x00ff", "\\x", None]),
        ("uuid", ["00000000-0000-0000-0000-0000000000ff", None]),
        (
            "date",
            ["0001-01-01", "0001-12-31 BC", "0005-02-28 BC", "4714-11-24 BC", "9999-12-31", "5874897-12-31", None],
        ),
        ("timestamp", ["2026-01-01 00:00:00.000001", "0044-03-15 12:00:00.5 BC", "294246-12-31 23:59:59.999999", None]),
        ("timestamptz", ["2026-01-01 00:00:00+00", "10000-01-01 00:00:00+00", "4714-11-24 00:00:00+00 BC", None]),
        ("list<string>", ['{a,NULL,"NULL","","q\\"x","b\\\\s","{}"," x ","a,b"}', None, "{}"]),
        ("list<decimal(10,2)>", ["{1.25,NULL,-3.00}"]),
        ("list<timestamptz>", ['{"2026-01-01 00:00:00+00",NULL}', '{"0044-03-15 12:00:00+00 BC"}']),
        ("list<binary>", ['{"\\\\x00ff",NULL}']),
        ("list<boolean>", ["{t,f,NULL}"]),
    ],
)
def test_texts_lead_back_to_the_values(type: str, texts: list[str | None]) -> None:  # noqa: A002 - a type
    kind = ColumnType.parse(type)
    values = parse_text(pa.array(texts, pa.string()), kind).values
    printed = print_values(values, kind)
    if type == "uuid":
        # Postgres reads hexadecimal digits without dashes.
        assert printed.to_pylist() == [None if text is None else text.replace("-", "") for text in texts]
        return
    assert parse_text(printed, kind).values.equals(values), printed.to_pylist()
    # A part of an array is printed like the whole.
    assert print_values(values[1:], kind).equals(printed[1:])


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1))
def test_every_day_leads_back(days: list[int]) -> None:
    values = pa.array(days, pa.int32()).cast(pa.date32())
    kind = ColumnType.parse("date")
    assert parse_text(print_values(values, kind), kind).values.equals(values)


@given(st.lists(st.integers(-(2**63), 2**63 - 2), min_size=1))
def test_every_moment_leads_back(micros: list[int]) -> None:
    for name, zone in (("timestamp", None), ("timestamptz", "UTC")):
        kind = ColumnType.parse(name)
        values = pa.array(micros, pa.int64()).cast(pa.timestamp("us", tz=zone))
        assert parse_text(print_values(values, kind), kind).values.equals(values)


@given(st.integers(0, 2**64 - 1))
def test_every_float_leads_back(bits: int) -> None:
    for name, arrow, form, size in (("double", pa.float64(), "d", 8), ("float", pa.float32(), "f", 4)):
        (value,) = struct.unpack(form, (bits >> (64 - 8 * size)).to_bytes(size, "little"))
        text = print_values(pa.array([value], arrow), ColumnType.parse(name))[0].as_py()
        if math.isnan(value):
            assert text == "nan"
        else:
            assert struct.pack(form, float(text)) == struct.pack(form, value)


def test_vectors_and_integers_that_were_chosen_as_decimals() -> None:
    floats = pa.array([[1.0, 0.5], None], pa.list_(pa.float32()))
    assert print_values(floats, ColumnType.parse("list<float>"), is_array=False).to_pylist() == ["[1,0.5]", None]
    decimals = parse_text(pa.array(["5", "-10.50", "0", "100"]), ColumnType.parse("decimal(38,20)")).values
    trimmed = print_values(decimals, ColumnType.parse("decimal(38,20)"), trimmed=True)
    assert trimmed.to_pylist() == ["5", "-10.5", "0", "100"]
