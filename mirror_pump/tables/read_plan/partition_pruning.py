"""First and second pass: whether a manifest, or a partition of its files, may have matching rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    BoundIsNaN,
    BoundIsNull,
    BoundNotEqualTo,
    BoundNotIn,
    BoundNotNaN,
    BoundNotNull,
    BoundNotStartsWith,
    BoundPredicate,
    Or,
)
from pyiceberg.manifest import PartitionFieldSummary
from pyiceberg.schema import Schema
from pyiceberg.transforms import TimeResolution, TimeTransform, TruncateTransform
from pyiceberg.types import IcebergType, IntegerType, LongType, NestedField

from mirror_pump.lake.format.partitioning import PartitionTuple
from mirror_pump.tables.metadata.table_view import SpecField
from mirror_pump.tables.read_plan.ordered_values import bound_reader, is_float, ordered_value
from mirror_pump.tables.read_plan.predicates import always, columns_of, folded, never
from mirror_pump.tables.read_plan.value_tests import (
    ONLY_NAN,
    ONLY_NULL,
    UNKNOWN,
    RangeTest,
    ValueRange,
    may_match,
    must_match,
)

_Ranges: TypeAlias = Sequence[ValueRange]
_GREATEST: dict[type[IcebergType], int] = {IntegerType: 2**31 - 1, LongType: 2**63 - 1}
_WRAPPED_HOURS = 1_700_000_000
"""Hours from 1970 that may also stand for a time at the other end: 64 bits of microseconds are more than 32 bits of
hours."""
_CACHED = 100_000
"""Distinct partitions whose result is kept, some 20 MB."""


class PartitionFilter:
    """A predicate as it applies to the partitions of one spec. Not thread-safe: it caches by partition."""

    def __init__(self, predicate: BooleanExpression, schema: Schema, fields: Sequence[SpecField]) -> None:
        """`predicate` is bound to `schema`."""
        self._predicate = predicate
        self._fields = fields
        self._kinds = [self._kind(field, schema, columns_of(predicate)) for field in fields]
        self._test: Callable[[_Ranges], bool] = folded(predicate, self._projected)
        self._matching: dict[PartitionTuple, bool] = {}
        self._residuals: dict[PartitionTuple, BooleanExpression] = {}

    @staticmethod
    def _kind(field: SpecField, schema: Schema, columns: frozenset[int]) -> IcebergType | None:
        """The type of the partition's values, if the predicate can say something about them."""
        if field.source_id not in columns:
            return None
        try:
            return field.transform.result_type(schema.find_type(field.source_id))
        except (AttributeError, TypeError, ValueError):
            return None

    def may_contain(self, summaries: Sequence[PartitionFieldSummary] | None) -> bool:
        """Whether a manifest with these summaries may name files with matching rows; always without summaries."""
        if self._test is never:
            return False
        return not summaries or self._test([self._summarised(place, summaries) for place in range(len(self._fields))])

    def may_match(self, partition: PartitionTuple) -> bool:
        """Whether files of the partition may have matching rows."""
        if self._test is always:
            return True
        matches = self._matching.get(partition)
        if matches is None:
            matches = self._test(self._ranges(partition))
            if len(self._matching) < _CACHED:
                self._matching[partition] = matches
        return matches

    def residual(self, partition: PartitionTuple) -> BooleanExpression:
        """What rows of the partition have yet to be asked; bound like the predicate."""
        residual = self._residuals.get(partition)
        if residual is None:
            residual = self._predicate
            if self._fields:
                residual = self._remaining(self._predicate, self._ranges(partition))
            if len(self._residuals) < _CACHED:
                self._residuals[partition] = residual
        return residual

    # What is known of partitions

    def _ranges(self, partition: PartitionTuple) -> list[ValueRange]:
        return [
            UNKNOWN if kind is None else _range_of(kind, value, field)
            for kind, value, field in zip(self._kinds, partition, self._fields, strict=True)
        ]

    def _summarised(self, place: int, summaries: Sequence[PartitionFieldSummary]) -> ValueRange:
        kind = self._kinds[place]
        if kind is None or place >= len(summaries):
            return UNKNOWN
        summary = summaries[place]
        nulls = summary.contains_null is not False
        nans = is_float(kind) and summary.contains_nan is not False
        read = bound_reader(kind)
        low = None if read is None or summary.lower_bound is None else read(summary.lower_bound)
        high = None if read is None or summary.upper_bound is None else read(summary.upper_bound)
        if low != low or high != high:  # NaN differs from itself.
            low = high = None
        low, high = _stood_for(self._fields[place], kind, low, high)
        # Only if all values are NULL or NaN there is no bound. A writer that claims neither did not write bounds.
        values = summary.lower_bound is not None or summary.upper_bound is not None or not (nulls or nans)
        return ValueRange(low, high, nulls, nans, values)

    # Projections

    def _projected(self, predicate: BoundPredicate) -> Callable[[_Ranges], bool]:
        """What a comparison says of the partition: all that it says of any of the fields made of its column."""
        tests = [test for place in range(len(self._fields)) if (test := self._on_field(place, predicate)) is not always]
        if never in tests:
            return never
        return always if not tests else (lambda ranges: all(test(ranges) for test in tests))

    def _on_field(self, place: int, predicate: BoundPredicate) -> Callable[[_Ranges], bool]:
        field, kind = self._fields[place], self._kinds[place]
        if kind is None or field.source_id != predicate.term.ref().field.field_id:
            return always
        projected = _bound_projection(field, kind, predicate, strict=False)
        return always if projected is None else _at(place, may_match(projected))

    def _remaining(self, expression: BooleanExpression, ranges: _Ranges) -> BooleanExpression:
        if isinstance(expression, And):
            return And(self._remaining(expression.left, ranges), self._remaining(expression.right, ranges))
        if isinstance(expression, Or):
            return Or(self._remaining(expression.left, ranges), self._remaining(expression.right, ranges))
        if isinstance(expression, BoundPredicate):
            return self._remaining_of(expression, ranges)
        return expression

    def _remaining_of(self, predicate: BoundPredicate, ranges: _Ranges) -> BooleanExpression:
        """True or False if the partition decides the comparison for each row, else the comparison."""
        for place, field in enumerate(self._fields):
            kind = self._kinds[place]
            if kind is None or field.source_id != predicate.term.ref().field.field_id:
                continue
            if field.is_identity:
                return AlwaysTrue() if _is_true(predicate, ranges[place]) else AlwaysFalse()
            if not self._on_field(place, predicate)(ranges):
                return AlwaysFalse()
            strict = _bound_projection(field, kind, predicate, strict=True)
            if strict is not None and must_match(strict)(ranges[place]):
                return AlwaysTrue()
        return predicate


def _at(place: int, test: RangeTest) -> Callable[[_Ranges], bool]:
    return lambda ranges: test(ranges[place])


def _bound_projection(
    field: SpecField, kind: IcebergType, predicate: BoundPredicate, *, strict: bool
) -> BoundPredicate | None:
    """The comparison of the partition's values that follows from a comparison of the column's (or, if `strict`, from
    which that follows). None if there is none."""
    transform = field.transform
    try:
        projection = transform.strict_project("p", predicate) if strict else transform.project("p", predicate)
        if projection is None:
            return None
        # May be NULL, whatever the column is: with a transform that is not known, or in a row of an older spec.
        schema = Schema(NestedField(field.field_id, "p", kind, required=False))
        bound = projection.bind(schema, case_sensitive=True)
    except (ArithmeticError, AttributeError, TypeError, ValueError):
        # A literal at the end of its type's range has no neighbour; a type has no such transform.
        return None
    # A constant: the transformed literal is beyond the type's range, where partitions wrap around.
    return bound if isinstance(bound, BoundPredicate) else None


def _range_of(kind: IcebergType, value: Any, field: SpecField) -> ValueRange:
    if value is None:
        return ONLY_NULL
    if isinstance(value, float) and math.isnan(value):
        return ONLY_NAN
    ordered = ordered_value(kind, value)
    low, high = _stood_for(field, kind, ordered, ordered)
    return ValueRange(low, high, nulls=False, nans=False)


def _stood_for(field: SpecField, kind: IcebergType, low: Any, high: Any) -> tuple[Any, Any]:
    """The interval of what rows' transformed values really are, from that of the partitions' values."""
    if low is None or high is None:
        return low, high
    if isinstance(field.transform, TruncateTransform):
        # The lowest integers wrap around to the greatest, in Java and in our own files.
        most = _GREATEST.get(type(kind))
        return (None, None) if most is not None and high > most - field.transform.width else (low, high)
    if not isinstance(field.transform, TimeTransform):
        return low, high
    if field.transform.granularity is TimeResolution.HOUR and (low < -_WRAPPED_HOURS or high > _WRAPPED_HOURS):
        return None, None
    # Older engines rounded times before 1970 up to the next year, month, day or hour: rows of day -1 may be in the
    # partition of day 0.
    return (low - 1 if low <= 0 else low), high


def _is_true(predicate: BoundPredicate, value_range: ValueRange) -> bool:
    """Whether the one value of a partition matches, as in SQL: a NULL matches none but `is null`."""
    match predicate:
        case BoundIsNull():
            return value_range.nulls
        case BoundNotNull():
            return not value_range.nulls
        case BoundIsNaN():
            return value_range.nans
        case BoundNotNaN():
            return value_range.values
        case BoundNotEqualTo() | BoundNotIn() | BoundNotStartsWith() if value_range.nulls:
            return False
    return may_match(predicate)(value_range)
