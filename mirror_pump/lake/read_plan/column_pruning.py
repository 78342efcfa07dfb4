"""Third pass: whether a data file may have matching rows, by the counts and bounds of its columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyiceberg.expressions import BooleanExpression, BoundPredicate

from mirror_pump.lake.metadata.entry_patterns import COLUMN_MAPS
from mirror_pump.lake.metadata.file_entries import FileMetrics
from mirror_pump.lake.read_plan.ordered_values import bound_reader, is_float
from mirror_pump.lake.read_plan.predicates import folded
from mirror_pump.lake.read_plan.value_tests import ValueRange, may_match


def file_test(predicate: BooleanExpression, columns: Sequence[int]) -> Callable[[FileMetrics], bool]:
    """The test of a bound predicate on the metrics of these columns, which it refers to; `always` itself for one that
    asks nothing."""
    places = {column: place * len(COLUMN_MAPS) for place, column in enumerate(columns)}
    return folded(predicate, lambda comparison: _column_test(comparison, places))


def _column_test(predicate: BoundPredicate, places: Mapping[int, int]) -> Callable[[FileMetrics], bool]:
    test = may_match(predicate)
    field = predicate.term.ref().field
    begin = places[field.field_id]
    end = begin + len(COLUMN_MAPS)
    read = bound_reader(field.field_type)
    floats = is_float(field.field_type)

    def column_test(metrics: FileMetrics) -> bool:
        values, nulls, nans, low, high = metrics[begin:end]
        if not floats:
            nans = None
        if read is None:
            low = high = None
        else:
            low = None if low is None else read(low)
            high = None if high is None else read(high)
            if floats and (low != low or high != high):  # NaN differs from itself.
                # Of a writer that took NaN for a value: its bounds say nothing.
                low = high = None
        return test(
            ValueRange(
                low,
                high,
                nulls != 0,
                floats and nans != 0 and not (values and nulls is not None and nulls >= values),
                # Without a positive number of values nothing follows from the other counts.
                not (values and (nulls or 0) + (nans or 0) >= values),
            )
        )

    return column_test
