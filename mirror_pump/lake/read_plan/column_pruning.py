"""Third pass: whether a data file may have matching rows, by the counts and bounds of its columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from pyiceberg.expressions import BooleanExpression, BoundPredicate

from mirror_pump.lake.read_plan.ordered_values import bound_reader, is_float
from mirror_pump.lake.read_plan.predicates import folded
from mirror_pump.lake.read_plan.value_tests import ValueRange, may_match

NumbersByColumn: TypeAlias = Mapping[int, int] | None
BytesByColumn: TypeAlias = Mapping[int, bytes] | None
ColumnMetrics: TypeAlias = tuple[NumbersByColumn, NumbersByColumn, NumbersByColumn, BytesByColumn, BytesByColumn]
"""Numbers of values, NULLs and NaNs, lower and upper bounds, each by field ID. Any may be missing, as a whole or for a
column: one that was added later, one whose metrics are switched off."""


def file_test(predicate: BooleanExpression) -> Callable[[ColumnMetrics], bool]:
    """The test of a bound predicate; `always` itself for one that asks nothing."""
    return folded(predicate, _column_test)


def _column_test(predicate: BoundPredicate) -> Callable[[ColumnMetrics], bool]:
    test = may_match(predicate)
    field = predicate.term.ref().field
    field_id, kind = field.field_id, field.field_type
    read = bound_reader(kind)
    floats = is_float(kind)

    def column_test(metrics: ColumnMetrics) -> bool:
        value_counts, null_counts, nan_counts, lower, upper = metrics
        values = value_counts.get(field_id) if value_counts else None
        nulls = null_counts.get(field_id) if null_counts else None
        nans = nan_counts.get(field_id) if nan_counts and floats else None
        low = high = None
        if read is not None:
            low_bytes = lower.get(field_id) if lower else None
            high_bytes = upper.get(field_id) if upper else None
            low = None if low_bytes is None else read(low_bytes)
            high = None if high_bytes is None else read(high_bytes)
            if floats and (low != low or high != high):  # NaN differs from itself.
                # Of a writer that took NaN for a value: its bounds say nothing.
                low = high = None
        return test(
            ValueRange(
                low,
                high,
                nulls=nulls != 0,
                nans=floats and nans != 0 and not (values and nulls is not None and nulls >= values),
                # Without a positive number of values nothing follows from the other counts.
                values=not (values and (nulls or 0) + (nans or 0) >= values),
            )
        )

    return column_test
