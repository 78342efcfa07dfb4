"""Lake partitions: the values are those of Iceberg's transforms, and every row goes to its own partition, once."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.transforms import parse_transform
from pyiceberg.types import DateType, IntegerType, LongType, TimestampType, TimestamptzType

from decoders.columns import ColumnType, Kind
from mirror_pump.lake.format.partitioning import applies, by_partition, divided, partition_values, width_of
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.model import LakePartitioning

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


def values(array: pa.Array, transform: str) -> list[int]:
    found: list[int] = partition_values(array, transform).to_pylist()
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


def test_which_transforms_apply() -> None:
    units = ("hour", "day", "month", "year", "truncate[5]", "truncate[0]", "truncate[1000000001]", "bucket[4]")
    accepted = {
        kind: [unit for unit in units if applies(unit, ColumnType(kind))]
        for kind in (Kind.LONG, Kind.INT, Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ, Kind.STRING)
    }
    times = ["hour", "day", "month", "year"]
    assert accepted == {
        Kind.LONG: ["truncate[5]"],
        Kind.INT: ["truncate[5]"],
        Kind.DATE: times[1:],
        Kind.TIMESTAMP: times,
        Kind.TIMESTAMPTZ: times,
        Kind.STRING: [],
    }
    with pytest.raises(ValueError, match="does not apply"):
        partition_values(pa.array([1]), "day")
    with pytest.raises(ValueError, match="does not apply"):
        partition_values(pa.array([date(2026, 1, 1)]), "hour")


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
