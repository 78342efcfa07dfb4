"""Summaries of merged manifests rule out nothing that the summaries of their parts leave open."""

from __future__ import annotations

import math
import struct
from decimal import Decimal

import pytest
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import PartitionFieldSummary
from pyiceberg.types import DecimalType, DoubleType, NestedField, PrimitiveType, StringType, StructType

from mirror_pump.lake.manifests.partition_summaries import Summaries, summaries_of, united


def _summary(
    low: bytes | None, high: bytes | None, *, null: bool = False, nan: bool | None = False
) -> PartitionFieldSummary:
    return PartitionFieldSummary(null, nan, low, high)


def _only(summaries: Summaries | None) -> PartitionFieldSummary:
    assert summaries is not None
    (found,) = summaries
    return found


_KNOWN = _summary(struct.pack("<d", 2.0), struct.pack("<d", 3.0))


def _partition(kind: PrimitiveType) -> StructType:
    return StructType(NestedField(1000, "p", kind, required=False))


@pytest.mark.parametrize(
    "part",
    [
        # A writer that orders NaN above all numbers: its greatest other value is not known.
        _summary(struct.pack("<d", 1.0), struct.pack("<d", math.nan), nan=True),
        # Written without bounds, or without one of them.
        _summary(None, None),
        _summary(struct.pack("<d", 1.0), None),
    ],
    ids=["nan", "no bounds", "one bound"],
)
def test_a_part_that_says_nothing(part: PartitionFieldSummary) -> None:
    assert united(_partition(DoubleType()), [[_KNOWN], [part]]) is None


def test_a_writer_may_leave_out_whether_there_is_nan() -> None:
    silent = _summary(struct.pack("<d", 2.0), struct.pack("<d", 3.0), nan=None)
    found = _only(united(_partition(DoubleType()), [[_KNOWN], [silent]]))
    assert found.contains_nan
    text = _summary(b"a", b"b", null=True, nan=None)
    found = _only(united(_partition(StringType()), [[text], [text]]))
    assert (found.contains_null, found.contains_nan) == (True, False)


def test_the_two_zeros_are_both_within_the_bounds() -> None:
    for values in ([(0.0,), (-0.0,)], [(-0.0,), (0.0,)]):
        found = _only(summaries_of(_partition(DoubleType()), values))
        assert (found.lower_bound, found.upper_bound) == (struct.pack("<d", -0.0), struct.pack("<d", 0.0))


def test_a_decimal_that_another_writer_truncated_to_too_many_digits() -> None:
    """Its bytes are what they were."""
    kind = DecimalType(3, 1)
    low = _summary((-1000).to_bytes(2, "big", signed=True), to_bytes(kind, Decimal("0.5")))
    found = _only(united(_partition(kind), [[low], [low]]))
    assert (found.lower_bound, found.upper_bound) == (low.lower_bound, low.upper_bound)
