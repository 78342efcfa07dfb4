"""The partition summaries of manifests in a manifest list, by which engines skip whole manifests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.manifest import PartitionFieldSummary
from pyiceberg.types import DateType, IntegerType, LongType, PrimitiveType, StructType, UUIDType

from mirror_pump.lake.format.partitioning import PartitionTuple

Summaries: TypeAlias = list[PartitionFieldSummary]
"""One for each field of the partition spec (Iceberg spec, manifest lists, field 507)."""

_ENDS = ((-(2**31), 2**31 - 1), (-(2**63), 2**63 - 1))
"""The least and greatest value of an integer or date, and of a long."""
_INTEGERS = (IntegerType, DateType, LongType)


def summaries_of(partition: StructType, values: Sequence[PartitionTuple]) -> Summaries | None:
    """The summaries of a manifest whose files, at least one, have these partitions. None if a field holds UUIDs, which
    engines order differently, or what does not fit its type."""
    found = []
    for place, field in enumerate(partition.fields):
        if isinstance(field.field_type, UUIDType):
            return None
        present = [value[place] for value in values if value[place] is not None]
        if isinstance(field.field_type, _INTEGERS) and not all(type(value) is int for value in present):
            return None
        numbers = [value for value in present if not _is_nan(value)]
        nan = len(numbers) < len(present)
        found.append(_summary(field.field_type, numbers, contains_null=len(present) < len(values), contains_nan=nan))
    return found


def can_unite(partition: StructType, part: Summaries | None) -> bool:
    """Whether `united` can do with these summaries of one manifest: of integers it needs none."""
    known = part is not None and len(part) == len(partition.fields)
    return known or all(isinstance(field.field_type, _INTEGERS) for field in partition.fields)


def united(partition: StructType, parts: Sequence[Summaries | None]) -> Summaries | None:
    """The summaries of a manifest that is merged from others with these summaries. A manifest without summaries may
    hold any partition. None if a field with such a manifest has other values than integers."""
    found = []
    for place, field in enumerate(partition.fields):
        integers = isinstance(field.field_type, _INTEGERS)
        values: list[Any] = []
        null = nan = False
        for part in parts:
            if part is None or place >= len(part):
                if not integers:
                    return None
                values += _ENDS[type(field.field_type) is LongType]
                null = True
                continue
            # Without bounds, all values are NULL or NaN.
            bounds = (part[place].lower_bound, part[place].upper_bound)
            values += [_value(field.field_type, bound, integers) for bound in bounds if bound is not None]
            null = null or part[place].contains_null
            nan = nan or bool(part[place].contains_nan)
        found.append(_summary(field.field_type, values, contains_null=null, contains_nan=nan))
    return found


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
    assert isinstance(field_type, PrimitiveType)
    bounds = (to_bytes(field_type, min(values)), to_bytes(field_type, max(values))) if values else (None, None)
    return PartitionFieldSummary(contains_null, contains_nan, *bounds)
