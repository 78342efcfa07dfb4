"""The partition summaries of manifests in a manifest list, by which engines skip whole manifests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import PartitionFieldSummary
from pyiceberg.types import LongType, PrimitiveType, StructType

from mirror_pump.lake.format.partitioning import PartitionTuple

Summaries: TypeAlias = list[PartitionFieldSummary]
"""One for each field of the partition spec (Iceberg spec, manifest lists, field 507)."""

_ENDS = ((-(2**31), 2**31 - 1), (-(2**63), 2**63 - 1))
"""The least and greatest value of an integer or date, and of a long."""


def summaries_of(partition: StructType, values: Sequence[PartitionTuple]) -> Summaries | None:
    """The summaries of a manifest whose files, at least one, have these partitions. None if a field has other values
    than integers, as another engine's partitions may have."""
    found = []
    for place, field in enumerate(partition.fields):
        present = [value[place] for value in values if value[place] is not None]
        if not all(type(value) is int for value in present):
            return None
        found.append(_summary(field.field_type, present, contains_null=len(present) < len(values)))
    return found


def united(partition: StructType, parts: Sequence[Summaries | None]) -> Summaries:
    """The summaries of a manifest that is merged from others with these summaries. `partition` has integer fields. A
    manifest without summaries may hold any partition."""
    found = []
    for place, field in enumerate(partition.fields):
        values: list[int] = []
        null = False
        for part in parts:
            if part is None or place >= len(part):
                values += _ENDS[type(field.field_type) is LongType]
                null = True
                continue
            # Bounds from before the tier key was widened are shorter. Without bounds, all values are NULL.
            bounds = (part[place].lower_bound, part[place].upper_bound)
            values += [int.from_bytes(bound, "little", signed=True) for bound in bounds if bound is not None]
            null = null or part[place].contains_null
        found.append(_summary(field.field_type, values, contains_null=null))
    return found


def _summary(field_type: object, values: Sequence[int], *, contains_null: bool) -> PartitionFieldSummary:
    assert isinstance(field_type, PrimitiveType)
    bounds = (to_bytes(field_type, min(values)), to_bytes(field_type, max(values))) if values else (None, None)
    return PartitionFieldSummary(contains_null, False, *bounds)  # noqa: FBT003 - a record's fields, in their order
