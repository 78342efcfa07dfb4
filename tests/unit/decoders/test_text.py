"""Postgres text to Arrow, value by value; a real server's output of the same types is in the integration tests."""

from __future__ import annotations

import datetime as dt
import math
import re
import tracemalloc
import uuid
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoders.columns import ColumnType
from decoders.text import parse_text
from decoders.text_array import split_arrays

UTC = dt.UTC


def parse(texts: Sequence[str | None], kind: str, source: pa.DataType | None = None) -> tuple[pa.Array, list[bool]]:
    column = ColumnType.parse(kind)
    parsed = parse_text(pa.array(texts, source or pa.string()), column)
    assert parsed.values.type == column.arrow
    assert len(parsed.values) == len(texts)
    parsed.values.validate(full=True)
    flags = [False] * len(texts) if parsed.unrepresentable is None else parsed.unrepresentable.to_pylist()
    for text, value, flag in zip(texts, parsed.values, flags, strict=True):
        assert value.is_valid == (text is not None and not flag)
    return parsed.values, flags


@pytest.mark.parametrize(
    ("kind", "texts", "values"),
    [
        ("boolean", ["t", "f", None], [True, False, None]),
        ("int", ["0", "-2147483648", "2147483647", None], [0, -(2**31), 2**31 - 1, None]),
        ("long", ["-9223372036854775808", None, "4294967295"], [-(2**63), None, 2**32 - 1]),
        ("float", ["1.5", "1e-45", None], [1.5, float(np.float32(1e-45)), None]),
        ("double", ["0.1", "5e-324", "1.7976931348623157e+308", "1e+20"], [0.1, 5e-324, 1.7976931348623157e308, 1e20]),
        ("decimal(5,2)", ["-0.05", "999.99", "7", None], [Decimal("-0.05"), Decimal("999.99"), Decimal("7.00"), None]),
        ("decimal(38,0)", ["9" * 38, "-" + "9" * 38], [Decimal("9" * 38), Decimal("-" + "9" * 38)]),
        ("string", ["", "NULL", "\\N", "ä\n🙂", None], ["", "NULL", "\\N", "ä\n🙂", None]),
        ("binary", ["\\x", "\\x00ff", None, "\\xDEad"], [b"", b"\0\xff", None, b"\xde\xad"]),
        ("date", ["0001-01-01", "9999-12-31", None], [dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
        ("time", ["00:00:00", "23:59:59.999999", "01:02:03.5", None],
         [dt.time(0), dt.time(23, 59, 59, 999999), dt.time(1, 2, 3, 500000), None]),
        ("timestamp", ["1969-12-31 23:59:59.9", "2024-02-29 12:00:00", None],
         [dt.datetime(1969, 12, 31, 23, 59, 59, 900000), dt.datetime(2024, 2, 29, 12), None]),  # noqa: DTZ001
        ("timestamptz", ["2024-01-01 10:00:00.12345+00", "2024-01-01 10:00:00+05:30", "2024-01-01 10:00:00-08", None],
         [dt.datetime(2024, 1, 1, 10, 0, 0, 123450, UTC), dt.datetime(2024, 1, 1, 4, 30, tzinfo=UTC),
          dt.datetime(2024, 1, 1, 18, tzinfo=UTC), None]),
        ("list<int>", ["{1,NULL,-3}", "{}", None, "{7}"], [[1, None, -3], [], None, [7]]),
        ("list<string>", ['{a,"b,c","d\\"e\\\\f","",NULL,"NULL","{x}"," y "}', '{"a\nb"}', "{ä,🙂}"],
         [["a", "b,c", 'd"e\\f', "", None, "NULL", "{x}", " y "], ["a\nb"], ["ä", "🙂"]]),
        # array_out only quotes because of ASCII's white space.
        ("list<string>", ['{"a b",x\u00a0y,\u3000,\u2009,\x85,\x1c\x1f}', '{"\\\\\\"","\\\\\\\\","\\"\\\\\\\\\\""}'],
         [["a b", "x\u00a0y", "\u3000", "\u2009", "\x85", "\x1c\x1f"], ['\\"', "\\\\", '"\\\\"']]),
        ("list<binary>", ['{"\\\\x00ff"}'], [[b"\0\xff"]]),
        ("list<timestamptz>", ['{"2024-01-01 10:00:00+00",NULL}'], [[dt.datetime(2024, 1, 1, 10, tzinfo=UTC), None]]),
        ("list<boolean>", ["{t,f}"], [[True, False]]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("source", [pa.string(), pa.string_view()], ids=str)
def test_values(kind: str, texts: list[str | None], values: list[Any], source: pa.DataType) -> None:
    parsed, flags = parse(texts, kind, source)
    assert parsed.to_pylist() == values
    assert not any(flags)


@pytest.mark.parametrize("kind", ["float", "double"])
def test_special_floats(kind: str) -> None:
    nan, high, low, zero = parse(["NaN", "Infinity", "-Infinity", "-0"], kind)[0].to_pylist()
    assert math.isnan(nan)
    assert (high, low) == (math.inf, -math.inf)
    assert math.copysign(1, zero) == -1


@given(st.lists(st.none() | st.uuids()))
def test_uuids(values: list[uuid.UUID | None]) -> None:
    parsed, _ = parse([None if value is None else str(value) for value in values], "uuid")
    assert parsed.to_pylist() == [None if value is None else value.bytes for value in values]


@given(st.lists(st.none() | st.binary(max_size=20)), st.integers(0, 3))
def test_bytea_of_a_slice(values: list[bytes | None], start: int) -> None:
    texts = pa.array([None if value is None else "\\x" + value.hex() for value in values], pa.string())
    assert parse_text(texts[start:], ColumnType.parse("binary")).values.to_pylist() == values[start:]


@given(st.lists(st.none() | st.datetimes(min_value=dt.datetime(1, 1, 1))))  # noqa: DTZ001
def test_timestamps_against_python(values: list[dt.datetime | None]) -> None:
    parsed, _ = parse([None if value is None else value.isoformat(" ") for value in values], "timestamp")
    assert parsed.to_pylist() == values


@given(st.dates(), st.integers(1, 700))
def test_far_years_repeat_the_calendar_every_400_years(day: dt.date, periods: int) -> None:
    near = (day - dt.date(1970, 1, 1)).days
    texts = [f"{day.year + 400 * periods:04}-{day:%m-%d}"]
    past = day.year - 400 * (periods + 25)
    texts.append(f"{1 - past:04}-{day:%m-%d} BC")
    parsed, _ = parse(texts, "date")
    assert parsed.cast(pa.int32()).to_pylist() == [near + 146_097 * periods, near - 146_097 * (periods + 25)]


def test_timestamps_that_arrow_does_not_parse() -> None:
    texts = [
        "2024-01-01 00:00:00",
        "infinity",
        "10000-01-01 00:00:00.5",
        "0001-12-31 23:59:59 BC",
        "4714-11-24 00:00:00 BC",
        "294246-12-31 23:59:59.999999",
        "294276-12-31 23:59:59.999999",
        None,
        "-infinity",
    ]
    parsed, flags = parse(texts, "timestamp")
    # Postgres: SELECT extract(epoch FROM timestamp '...') * 1000000.
    assert parsed.cast(pa.int64()).to_pylist() == [
        1_704_067_200_000_000,
        None,
        253_402_300_800_500_000,
        -62_135_596_801_000_000,
        -210_866_803_200_000_000,
        9_223_371_244_799_999_999,
        None,
        None,
        None,
    ]
    assert flags == [False, True, False, False, False, False, True, False, True]


def test_time_zones_with_seconds_and_before_christ() -> None:
    texts = ["1880-01-01 00:00:00+00:19:32", "0001-01-01 00:00:00+00 BC", "1970-01-01 00:00:00-00:00:01"]
    near, first, odd = parse(texts, "timestamptz")[0].cast(pa.int64()).to_pylist()
    assert near == dt.datetime(1879, 12, 31, 23, 40, 28, tzinfo=UTC).timestamp() * 1_000_000
    assert (first, odd) == (-62_167_219_200_000_000, 1_000_000)


@pytest.mark.parametrize(
    ("kind", "texts", "flags"),
    [
        ("decimal(4,2)", ["1.00", "NaN", "Infinity", "-Infinity", None], [False, True, True, True, False]),
        ("decimal(4,2)", ["100.00", "99.99", "1.001", "1.100", "0.00", "NaN"], [True, False, True, False, False, True]),
        ("decimal(4,0)", ["1" + "0" * 50, "9999"], [True, False]),
        ("decimal(5,5)", ["0.99999", "1", "0", "0.000010", "-0.000001"], [False, True, False, False, True]),
        ("date", ["infinity", "2024-01-01", "-infinity", None], [True, False, True, False]),
        ("timestamptz", ["infinity", "2024-01-01 00:00:00+00", None], [True, False, False]),
        ("time", ["24:00:00", "23:00:00", None], [True, False, False]),
        ("list<int>", ["{{1,2},{3,4}}", "[0:1]={1,2}", "[2:2][1:1]={{1}}", "{1}"], [True, True, True, False]),
        ("list<date>", ["{infinity,2024-01-01}", "{2024-01-01}", None, "{}"], [True, False, False, False]),
        ("list<decimal(4,2)>", ["{1.00}", "{2.00,NaN}", "{3.00}"], [False, True, False]),
    ],
)  # fmt: skip
def test_what_the_type_cannot_hold_is_flagged(kind: str, texts: list[str | None], flags: list[bool]) -> None:
    assert parse(texts, kind)[1] == flags


def test_the_values_beside_flagged_ones_are_right() -> None:
    assert parse(["{1.00}", "{2.00,NaN}", "{3.00,NULL}"], "list<decimal(4,2)>")[0].to_pylist() == [
        [Decimal("1.00")],
        None,
        [Decimal("3.00"), None],
    ]
    assert parse(["1.00", "NaN", "100.00", "-2.50"], "decimal(4,2)")[0].to_pylist() == [
        Decimal("1.00"),
        None,
        None,
        Decimal("-2.50"),
    ]


_DECIMALS = ("0", "0." + "0" * 60, "1." + "0" * 40, "-12.5" + "0" * 16_000, "9" * 29 + "." + "9" * 9 + "0" * 9)
_NO_DECIMALS = {
    "fraction": "1.23456789012345",
    "tiny": "0." + "0" * 16_000 + "1",
    "large": "7" * 30,
    "huge": "1" + "0" * 100_000,
    "special": "NaN",
}


@pytest.mark.parametrize("beside", [(), *((text,) for text in _NO_DECIMALS.values())], ids=["nothing", *_NO_DECIMALS])
def test_a_decimal_is_what_it_is_whatever_stands_beside_it(beside: tuple[str, ...]) -> None:
    """numeric keeps trailing zeros; a type that the user chose for it holds the value all the same."""
    for texts in (*((text,) for text in _DECIMALS), _DECIMALS):
        values, flags = parse([*texts, *beside, None], "decimal(38,9)")
        assert values.to_pylist() == [*map(Decimal, texts), *(None for _ in beside), None]
        assert flags == [*(False for _ in texts), *(True for _ in beside), False]


@given(
    st.lists(st.from_regex(r"-?(0|[1-9][0-9]{0,80})(\.[0-9]{1,80})?", fullmatch=True), min_size=1, max_size=3),
    st.sampled_from([(38, 0), (38, 9), (38, 38), (38, 37), (19, 18), (5, 5), (4, 2)]),
)
def test_decimals_of_any_length(texts: list[str], kind: tuple[int, int]) -> None:
    """Arrow's own cast returns other numbers for some of them."""
    precision, scale = kind
    values, flags = parse(texts, f"decimal({precision},{scale})")
    for text, value, flag in zip(texts, values.to_pylist(), flags, strict=True):
        scaled = Fraction(text) * 10**scale
        assert flag is (scaled.denominator != 1 or abs(scaled) >= 10**precision)
        assert flag or value == Decimal(text)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("boolean", "true"),
        ("int", "2147483648"),
        ("long", "1.0"),
        ("double", "one"),
        ("decimal(4,2)", "one"),
        ("binary", "00"),
        ("binary", "\\x0"),
        ("binary", "\\xzz"),
        ("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a1"),
        ("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a1g"),
        ("uuid", "a0eebc999c0b-4ef8-bb6d-6bb9-bd380a11"),
        ("date", "2024-02-30"),
        ("date", "2023-02-29 BC"),
        ("date", "10000-13-01"),
        ("date", "01/02/2024"),
        ("time", "25:00:00"),
        ("timestamp", "2024-01-01 00:00:00+00"),
        ("timestamp", "10000-01-01 24:00:00"),
        ("timestamptz", "2024-01-01 00:00:00"),
        ("timestamptz", "2024-01-01 00:00:00 UTC"),
        ("list<int>", "1"),
        ("list<int>", "{1"),
        ("list<int>", "{x}"),
        ("list<string>", '{"a}'),
        ("list<string>", '{"a"b}'),
        ("list<string>", '{"a",}'),
    ],
)
def test_what_is_no_value_is_an_error_that_names_it(kind: str, text: str) -> None:
    good = {
        "boolean": "t", "uuid": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "binary": "\\x00", "date": "2024-01-01",
        "time": "10:00:00", "timestamp": "2024-01-01 00:00:00", "timestamptz": "2024-01-01 00:00:00+00",
        "list<int>": "{1}", "list<string>": "{1}",
    }.get(kind, "1")  # fmt: skip
    named = "x" if text == "{x}" else text
    with pytest.raises(ValueError, match=re.escape(named.replace("\\", "\\\\"))):
        parse_text(pa.array([good, None, text, good], pa.string()), ColumnType.parse(kind))


def test_a_large_quoted_element_needs_memory_as_its_text_does() -> None:
    """A document within an array: up to a gigabyte, in quotes because of its quotes."""
    document = '[{"key": "value"}, ' + '{"key": "value"},' * 200_000 + "0]"
    text = '{"' + document.replace('"', '\\"') + '"}'
    values = pa.array([text])
    tracemalloc.start()
    try:
        split = split_arrays(values)
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert split.elements == [document]
    assert peak < 8 * len(text)


@pytest.mark.parametrize(
    "kind",
    ["boolean", "int", "long", "float", "double", "decimal(4,2)", "string", "binary", "uuid", "date", "time",
     "timestamp", "timestamptz", "list<int>", "list<string>"],
)  # fmt: skip
def test_no_values_and_only_nulls(kind: str) -> None:
    assert parse([], kind)[0].to_pylist() == []
    assert parse([None, None], kind)[0].to_pylist() == [None, None]
