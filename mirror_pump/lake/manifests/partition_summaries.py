"""The partition summaries of manifests in a manifest list, by which engines skip whole manifests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.manifest import PartitionFieldSummary
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    PrimitiveType,
    StructType,
    UUIDType,
)
from pyiceberg.utils.decimal import decimal_to_bytes

from mirror_pump.lake.format.partitioning import PartitionTuple

Summaries: TypeAlias = list[PartitionFieldSummary]
"""One for each field of the partition spec (Iceberg spec, manifest lists, field 507)."""

_ENDS = ((-(2**31), 2**31 - 1), (-(2**63), 2**63 - 1))
"""The least and greatest value of an integer or date, and of a long."""
_INTEGERS = (IntegerType, DateType, LongType)
_FLOATS = (FloatType, DoubleType)


def summaries_of(partition: StructType, values: Sequence[PartitionTuple]) -> Summaries | None:
    """The summaries of a manifest whose files, at least one, have these partitions. None if a field holds UUIDs, which
    engines order differently, or what does not fit its type."""
    summaries = []
    for place, field in enumerate(partition.fields):
        if isinstance(field.field_type, UUIDType):
            return None
        non_null = [value[place] for value in values if value[place] is not None]
        if isinstance(field.field_type, _INTEGERS) and not all(type(value) is int for value in non_null):
            return None
        numbers = [value for value in non_null if not _is_nan(value)]
        nan = len(numbers) < len(non_null)
        summaries.append(
            _summary(field.field_type, numbers, contains_null=len(non_null) < len(values), contains_nan=nan)
        )
    return summaries


def can_unite(partition: StructType, part: Summaries | None) -> bool:
    """Whether `united` can do with these summaries of one manifest: of integers it needs none."""
    is_complete = part is not None and len(part) == len(partition.fields)
    return is_complete or all(isinstance(field.field_type, _INTEGERS) for field in partition.fields)


def united(partition: StructType, parts: Sequence[Summaries | None]) -> Summaries | None:
    """The summaries of a manifest that is merged from others with these summaries. A manifest without summaries, or
    with one that says nothing, may hold any partition. None if a field with such a manifest has other values than
    integers."""
    summaries = []
    for place, field in enumerate(partition.fields):
        integers = isinstance(field.field_type, _INTEGERS)
        values: list[Any] = []
        null = nan = False
        for part in parts:
            bounds = None if part is None or place >= len(part) else _bounds(field.field_type, part[place])
            if part is None or bounds is None:
                if not integers:
                    return None
                values += _ENDS[type(field.field_type) is LongType]
                null = True
                continue
            values += bounds
            null = null or part[place].contains_null
            # Writers may leave it out.
            may_be_nan = isinstance(field.field_type, _FLOATS) and part[place].contains_nan is not False
            nan = nan or may_be_nan
        summaries.append(_summary(field.field_type, values, contains_null=null, contains_nan=nan))
    return summaries


def are_summaries_of(partition: StructType, stored: Summaries | None, values: Sequence[PartitionTuple]) -> bool:
    """Whether no engine that skips manifests by these summaries passes over a file of one of these partitions."""
    expected = summaries_of(partition, values)
    if stored is None or expected is None or len(stored) != len(expected):
        return True
    for field, summary, of_values in zip(partition.fields, stored, expected, strict=True):
        bounds = _bounds(field.field_type, summary)
        numbers = _bounds(field.field_type, of_values) or []
        if bounds is not None and numbers and not (bounds and bounds[0] <= numbers[0] and numbers[1] <= bounds[1]):
            return False
        if of_values.contains_null and not summary.contains_null:
            return False
    return True


def _bounds(field_type: object, summary: PartitionFieldSummary) -> list[Any] | None:
    """The least and the greatest value; none if all values are NULL or NaN. None if that is not known."""
    bounds = [bound for bound in (summary.lower_bound, summary.upper_bound) if bound is not None]
    values = [_value(field_type, bound, isinstance(field_type, _INTEGERS)) for bound in bounds]
    empty = not values and (summary.contains_null or summary.contains_nan is not False)
    return values if empty or (len(values) == 2 and not any(map(_is_nan, values))) else None


def _value(field_type: object, bound: bytes, integers: bool) -> Any:
    """A bound as a value. Bounds from before an integer column was widened are shorter."""
    if integers:
        return int.from_bytes(bound, "little", signed=True)
    assert isinstance(field_type, PrimitiveType)
    return from_bytes(field_type, bound)


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _summary(
    field_type: object, values: Sequence[Any], *, contains_null: bool, contains_nan: bool
) -> PartitionFieldSummary:
    if not values:
        return PartitionFieldSummary(contains_null, contains_nan, None, None)
    # Of the two zeros, -0.0 is the lesser one, as in Java.
    order = (lambda value: (value, math.copysign(1, value))) if isinstance(field_type, _FLOATS) else None
    bounds = [_encoded(field_type, value) for value in (min(values, key=order), max(values, key=order))]
    return PartitionFieldSummary(contains_null, contains_nan, *bounds)


def _encoded(field_type: object, value: Any) -> bytes:
    assert isinstance(field_type, PrimitiveType)
    # Other writers' decimals may have more digits than their type, if they were truncated.
    return decimal_to_bytes(value) if isinstance(field_type, DecimalType) else to_bytes(field_type, value)
