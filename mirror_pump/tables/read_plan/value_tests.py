"""Whether some values can match a comparison, from what is known of them: the one rule that all passes prune by.

What is known is the same for the summaries of a manifest, for a file's partition, for a file's column and for a column
of a row group: an interval that holds all values, and whether NULL, NaN or any other value may be among them. A test
answers False only if no value that fits what is known matches.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from pyiceberg.expressions import (
    BoundEqualTo,
    BoundGreaterThan,
    BoundGreaterThanOrEqual,
    BoundIn,
    BoundIsNaN,
    BoundIsNull,
    BoundLessThan,
    BoundLessThanOrEqual,
    BoundLiteralPredicate,
    BoundNotEqualTo,
    BoundNotIn,
    BoundNotNaN,
    BoundNotNull,
    BoundNotStartsWith,
    BoundPredicate,
    BoundSetPredicate,
    BoundStartsWith,
)
from pyiceberg.types import UUIDType

from mirror_pump.tables.read_plan.ordered_values import Ordered, ordered_value


class ValueRange(NamedTuple):
    """What is known of some values. The default knows nothing."""

    low: Ordered | None = None
    """No value is below it, NULL and NaN apart; None if that is not known."""
    high: Ordered | None = None
    """No value is above it."""
    nulls: bool = True
    """Whether NULL may be among them."""
    nans: bool = True
    """Whether NaN may be."""
    values: bool = True
    """Whether anything else may be."""


UNKNOWN = ValueRange()
ONLY_NULL = ValueRange(None, None, nulls=True, nans=False, values=False)
ONLY_NAN = ValueRange(None, None, nulls=False, nans=True, values=False)

RangeTest: TypeAlias = Callable[[ValueRange], bool]


def may_match(predicate: BoundPredicate) -> RangeTest:
    """The test of whether a value may match.

    NULL counts as matching `!=`, `not in` and `not starts with`, since some engines think so; in SQL, and in a scan, it
    matches `is null` alone. A range without any value matches nothing.
    """
    if isinstance(predicate, BoundLiteralPredicate):
        return _compared(predicate)
    if isinstance(predicate, BoundSetPredicate):
        return _among(predicate)
    match predicate:
        case BoundIsNull():
            return lambda value_range: value_range.nulls
        case BoundNotNull():
            return lambda value_range: value_range.values or value_range.nans
        case BoundIsNaN():
            return lambda value_range: value_range.nans
        case BoundNotNaN():
            return lambda value_range: value_range.values or value_range.nulls
    return _unknown


def _unknown(value_range: ValueRange) -> bool:  # noqa: ARG001 - a test
    return True


def _compared(predicate: BoundLiteralPredicate) -> RangeTest:
    kind = predicate.term.ref().field.field_type
    literal = ordered_value(kind, predicate.literal.value)
    unordered = isinstance(kind, UUIDType)
    match predicate:
        case BoundEqualTo():
            return lambda value_range: (
                value_range.values
                and (value_range.low is None or value_range.low <= literal)
                and (value_range.high is None or literal <= value_range.high)
            )
        case BoundNotEqualTo():
            return lambda value_range: (
                value_range.nulls or value_range.nans or (value_range.values and not _always(value_range, literal))
            )
        case BoundStartsWith():
            return _starting(literal)
        case BoundNotStartsWith():
            return _not_starting(literal)
        case _ if unordered:
            return lambda value_range: value_range.values
        case BoundLessThan():
            return lambda value_range: value_range.values and (value_range.low is None or value_range.low < literal)
        case BoundLessThanOrEqual():
            return lambda value_range: value_range.values and (value_range.low is None or value_range.low <= literal)
        case BoundGreaterThan():
            return lambda value_range: value_range.values and (value_range.high is None or literal < value_range.high)
        case BoundGreaterThanOrEqual():
            return lambda value_range: value_range.values and (value_range.high is None or literal <= value_range.high)
    return _unknown


def _always(value_range: ValueRange, literal: Ordered) -> bool:
    """Whether each value is the literal."""
    return value_range.low is not None and bool(value_range.low == value_range.high == literal)


def _starting(prefix: bytes) -> RangeTest:
    # A bound that is no longer than the prefix is compared as a whole. A longer one's rest says nothing more.
    length = len(prefix)
    return lambda value_range: (
        value_range.values
        and (value_range.low is None or value_range.low[:length] <= prefix)
        and (value_range.high is None or value_range.high[:length] >= prefix)
    )


def _not_starting(prefix: bytes) -> RangeTest:
    length = len(prefix)

    def test(value_range: ValueRange) -> bool:
        # All texts between two that begin with the prefix do so too.
        return (
            value_range.nulls
            or value_range.nans
            or (
                value_range.values
                and (
                    value_range.low is None
                    or value_range.high is None
                    or not (value_range.low[:length] == prefix == value_range.high[:length])
                )
            )
        )

    return test


def _among(predicate: BoundSetPredicate) -> RangeTest:
    kind = predicate.term.ref().field.field_type
    literals = sorted({ordered_value(kind, literal.value) for literal in predicate.literals})
    match predicate:
        case BoundIn():

            def test(value_range: ValueRange) -> bool:
                if not value_range.values:
                    return False
                # The first literal that is not below the range.
                place = 0 if value_range.low is None else bisect_left(literals, value_range.low)
                return place < len(literals) and (value_range.high is None or literals[place] <= value_range.high)

            return test
        case BoundNotIn():
            return lambda value_range: (
                value_range.nulls
                or value_range.nans
                or (value_range.values and not any(_always(value_range, value) for value in literals))
            )
    return _unknown


def must_match(predicate: BoundPredicate) -> RangeTest:
    """The test of whether each value matches, where NULL and NaN do not match a comparison. For comparisons with `<`,
    `<=`, `>` and `>=`; others do not say so of any range."""
    if isinstance(predicate, BoundLiteralPredicate):
        kind = predicate.term.ref().field.field_type
        literal = ordered_value(kind, predicate.literal.value)
        match predicate:
            case BoundLessThan():
                return lambda value_range: (
                    _plain(value_range) and value_range.high is not None and value_range.high < literal
                )
            case BoundLessThanOrEqual():
                return lambda value_range: (
                    _plain(value_range) and value_range.high is not None and value_range.high <= literal
                )
            case BoundGreaterThan():
                return lambda value_range: (
                    _plain(value_range) and value_range.low is not None and value_range.low > literal
                )
            case BoundGreaterThanOrEqual():
                return lambda value_range: (
                    _plain(value_range) and value_range.low is not None and value_range.low >= literal
                )
    return lambda value_range: False  # noqa: ARG005 - a test


def _plain(value_range: ValueRange) -> bool:
    return not value_range.nulls and not value_range.nans
