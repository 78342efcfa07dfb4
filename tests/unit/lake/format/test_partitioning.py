"""Lake partitions: the values are those of Iceberg's transforms, and every row goes to its own partition, once."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from decoders.columns import ColumnType, Kind
from mirror_pump.lake.format.partitioning import applies, by_partition, divided, partition_values, width_of
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.model import LakePartitioning, PartitionedColumn

_DAY = 86_400_000_000
_SCHEMA = LakeSchema(
    0,
    (
        LakeField(1, "v", ColumnType(Kind.STRING), required=False),
        LakeField(2, "at", ColumnType(Kind.LONG), required=True),
    ),
    (2,),
)

_DAYS = st.integers((date.min - date(1970, 1, 1)).days, (date.max - date(1970, 1, 1)).days)
_MOMENTS = st.builds(
    lambda days, within: days * _DAY + within, _DAYS, st.integers(0, _DAY - 1) | st.sampled_from([0, _DAY - 1])
)
"""Microseconds from the year 1 to 9999: pyiceberg's months and years are those of Python's calendar."""


def values(array: pa.Array, transform: str) -> list[Any]:
    found: list[Any] = partition_values(array, transform).to_pylist()
    return found


def wanted(numbers: list[int], transform: str, source: Any) -> list[Any]:
    function = parse_transform(transform).transform(source)
    return [function(number) for number in numbers]


@given(numbers=st.lists(_DAYS, max_size=20), transform=st.sampled_from(["day", "month", "year"]))
def test_dates_are_in_the_partitions_of_iceberg(numbers: list[int], transform: str) -> None:
    assert values(pa.array(numbers, pa.int32()).view(pa.date32()), transform) == wanted(numbers, transform, DateType())


@given(
    numbers=st.lists(_MOMENTS, max_size=20),
    transform=st.sampled_from(["hour", "day", "month", "year"]),
    zone=st.sampled_from([None, "UTC"]),
)
def test_times_are_in_the_partitions_of_iceberg(numbers: list[int], transform: str, zone: str | None) -> None:
    array = pa.array(numbers, pa.int64()).view(pa.timestamp("us", zone))
    source = TimestampType() if zone is None else TimestamptzType()
    assert values(array, transform) == wanted(numbers, transform, source)


@given(numbers=st.lists(st.integers(-(2**62), 2**62), max_size=20), width=st.integers(1, 10**9))
def test_bigints_are_in_the_partitions_of_iceberg(numbers: list[int], width: int) -> None:
    transform = f"truncate[{width}]"
    assert values(pa.array(numbers, pa.int64()), transform) == wanted(numbers, transform, LongType())
    assert width_of(transform) == width


@given(numbers=st.lists(st.integers(-(2**30), 2**31 - 1), max_size=20), width=st.integers(1, 10**9))
def test_integers_are_in_the_partitions_of_iceberg(numbers: list[int], width: int) -> None:
    transform = f"truncate[{width}]"
    assert values(pa.array(numbers, pa.int32()), transform) == wanted(numbers, transform, IntegerType())


@pytest.mark.parametrize(
    ("moment", "hour", "day", "month", "year"),
    [
        (0, 0, 0, 0, 0),
        (-1, -1, -1, -1, -1),
        (-_DAY, -24, -1, -1, -1),
        (-_DAY - 1, -25, -2, -1, -1),
        # In 4713 BC, where Postgres's timestamps begin, and in 294247, where Iceberg's end. Hours wrap around there.
        (-2_440_550 * _DAY, -2_440_550 * 24, -2_440_550, -80_184, -6682),
        (106_751_990 * _DAY, 106_751_990 * 24 - 2**32, 106_751_990, 3_507_324, 292_277),
    ],
)
def test_partitions_before_1970_and_at_the_ends(moment: int, hour: int, day: int, month: int, year: int) -> None:
    array = pa.array([moment], pa.int64()).view(pa.timestamp("us", "UTC"))
    assert [values(array, unit) for unit in ("hour", "day", "month", "year")] == [[hour], [day], [month], [year]]
    assert values(pa.array([day], pa.int32()).view(pa.date32()), "month") == [month]


@pytest.mark.parametrize(("kind", "least"), [(pa.int32(), -(2**31)), (pa.int64(), -(2**63))])
def test_truncation_wraps_around_below_the_least_multiple_as_in_java(kind: pa.DataType, least: int) -> None:
    assert values(pa.array([least, -11, -10, -1, 0, 9], kind), "truncate[10]") == [
        least - least % 10 - 2 * least,
        -20,
        -10,
        -10,
        0,
        0,
    ]


_STRINGS = st.text(max_size=8) | st.sampled_from(["", "iceberg", "\U0001f9ca\U0001f9ca ice", "e\u0301"])
_DECIMALS = st.decimals(-(10**20), 10**20, places=2)


@pytest.mark.parametrize(
    ("kind", "source", "elements"),
    [
        (pa.int32(), IntegerType(), st.integers(-(2**31), 2**31 - 1)),
        (pa.int64(), LongType(), st.integers(-(2**63), 2**63 - 1)),
        (pa.string(), StringType(), _STRINGS),
        (pa.binary(), BinaryType(), st.binary(max_size=8)),
        (pa.decimal128(38, 2), DecimalType(38, 2), _DECIMALS),
        (pa.date32(), DateType(), _DAYS),
        (pa.timestamp("us"), TimestampType(), _MOMENTS),
        (pa.timestamp("us", "UTC"), TimestamptzType(), _MOMENTS),
    ],
)
@given(data=st.data(), count=st.integers(1, 10**9))
def test_buckets_are_those_of_iceberg(
    kind: pa.DataType, source: Any, elements: st.SearchStrategy[Any], data: st.DataObject, count: int
) -> None:
    numbers = data.draw(st.lists(st.none() | elements, max_size=20))
    function = parse_transform(f"bucket[{count}]").transform(source)
    integers = pa.types.is_temporal(kind)
    array = pa.array(numbers, (pa.int32() if kind == pa.date32() else pa.int64()) if integers else kind)
    found = values(array.view(kind) if integers else array, f"bucket[{count}]")
    assert found == [None if number is None else function(number) for number in numbers]


def test_a_uuid_has_the_bucket_of_its_bytes() -> None:
    """The value of the Iceberg spec, appendix B."""
    number = UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7")
    array = pa.array([number.bytes], pa.binary(16))
    assert values(array, "bucket[1000000]") == [(1488055340 & 0x7FFFFFFF) % 1_000_000]


@given(texts=st.lists(st.none() | _STRINGS, max_size=20), width=st.integers(1, 6))
def test_texts_are_in_the_partitions_of_iceberg(texts: list[str | None], width: int) -> None:
    function = parse_transform(f"truncate[{width}]").transform(StringType())
    array = pa.array(texts, pa.string())
    assert values(array, f"truncate[{width}]") == [None if text is None else function(text) for text in texts]
    assert values(array, "identity") == texts


@given(moments=st.lists(st.none() | _MOMENTS, min_size=1, max_size=20))
def test_null_is_a_partition(moments: list[int | None]) -> None:
    array = pa.array(moments, pa.int64()).view(pa.timestamp("us"))
    assert values(array, "identity") == moments
    assert values(array, "day") == [None if moment is None else moment // _DAY for moment in moments]
    years = values(array, "year")
    assert [year is None for year in years] == [moment is None for moment in moments]


def test_which_transforms_apply() -> None:
    units = ("hour", "day", "month", "year", "truncate[5]", "truncate[0]", "truncate[1000000001]", "bucket[4]")
    accepted = {
        kind: [
            unit
            for unit in (*units, "identity", "bucket[0]", "bucket", "truncate", "void")
            if applies(unit, ColumnType(kind))
        ]
        for kind in Kind
        if kind not in (Kind.DECIMAL, Kind.LIST, Kind.STRUCT, Kind.MAP, Kind.VARIANT)
    }
    times = ["hour", "day", "month", "year", "bucket[4]", "identity"]
    numbers = ["truncate[5]", "bucket[4]", "identity"]
    assert accepted == {
        Kind.BOOLEAN: ["identity"],
        Kind.LONG: numbers,
        Kind.INT: numbers,
        Kind.FLOAT: [],
        Kind.DOUBLE: [],
        Kind.DATE: times[1:],
        Kind.TIME: [],
        Kind.TIMESTAMP: times,
        Kind.TIMESTAMPTZ: times,
        Kind.STRING: numbers,
        Kind.BINARY: ["bucket[4]"],
        Kind.UUID: ["bucket[4]"],
    }
    for column, name in (
        (pa.array([1]), "day"),
        (pa.array([date(2026, 1, 1)]), "hour"),
        (pa.array([1.5]), "bucket[2]"),
    ):
        with pytest.raises(ValueError, match="does not apply"):
            partition_values(column, name)


@given(
    rows=st.lists(
        st.tuples(st.none() | st.integers(-3, 3), st.none() | st.sampled_from(["a", "b", "ab", ""])), max_size=40
    )
)
def test_rows_are_divided_by_several_fields(rows: list[tuple[int | None, str | None]]) -> None:
    fields = [("n", Kind.LONG), ("s", Kind.STRING), ("place", Kind.LONG)]
    schema = LakeSchema(
        0, tuple(LakeField(n, name, ColumnType(kind), required=False) for n, (name, kind) in enumerate(fields, 1)), ()
    )
    table = pa.table(
        {"n": [n for n, _ in rows], "s": [s for _, s in rows], "place": range(len(rows))}, schema=schema.arrow
    )
    by = LakePartitioning((PartitionedColumn(1, "truncate[2]"), PartitionedColumn(2, "identity")))
    parts = [(partition, part.column("place").to_pylist()) for partition, part in divided(table, schema, by)]
    expected: dict[tuple[int | None, str | None], list[int]] = {}
    for place, (number, text) in enumerate(rows):
        expected.setdefault((None if number is None else number // 2 * 2, text), []).append(place)
    assert dict(parts) == expected
    assert len(parts) == len(expected)


@given(keys=st.lists(st.integers(-30, 30), max_size=60), width=st.integers(1, 20))
def test_every_row_is_in_its_partition_once_and_rows_keep_their_order(keys: list[int], width: int) -> None:
    rows = pa.table({"v": [str(number) for number in range(len(keys))], "at": keys}, schema=_SCHEMA.arrow)
    parts = list(divided(rows, _SCHEMA, LakePartitioning.by(2, f"truncate[{width}]")))
    assert [partition for partition, _ in parts] == sorted({(math.floor(key / width) * width,) for key in keys})
    for partition, part in parts:
        expected = [
            {"v": str(number), "at": key} for number, key in enumerate(keys) if key - key % width == partition[0]
        ]
        assert part.to_pylist() == expected
    whole = list(divided(rows, _SCHEMA, None))
    assert whole == ([((), rows)] if keys else [])


def test_a_moment_belongs_to_its_day_in_utc() -> None:
    moment = datetime(2026, 3, 29, 1, 30, tzinfo=UTC)
    array = pa.array([moment, moment - timedelta(hours=2)], pa.timestamp("us", "Europe/Berlin"))
    assert values(array, "day") == [20_541, 20_540]


def test_what_is_known_by_files_is_grouped_by_their_partitions() -> None:
    grouped = dict(by_partition({"a": 1, "b": 2, "c": 3}, {"a": (7,), "c": (7,), "b": (-1,)}))
    assert grouped == {(7,): {"a": 1, "c": 3}, (-1,): {"b": 2}}
    assert dict(by_partition({"a": 1, "b": 2}, {})) == {(): {"a": 1, "b": 2}}
