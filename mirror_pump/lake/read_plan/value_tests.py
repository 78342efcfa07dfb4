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

from mirror_pump.lake.read_plan.ordered_values import Ordered, ordered_value


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
            return lambda known: known.nulls
        case BoundNotNull():
            return lambda known: known.values or known.nans
        case BoundIsNaN():
            return lambda known: known.nans
        case BoundNotNaN():
            return lambda known: known.values or known.nulls
    return _unknown


def _unknown(known: ValueRange) -> bool:  # noqa: ARG001 - a test
    return True


def _compared(predicate: BoundLiteralPredicate) -> RangeTest:
    kind = predicate.term.ref().field.field_type
    literal = ordered_value(kind, predicate.literal.value)
    unordered = isinstance(kind, UUIDType)
    match predicate:
        case BoundEqualTo():
            return lambda known: (
                known.values
                and (known.low is None or known.low <= literal)
                and (known.high is None or literal <= known.high)
            )
        case BoundNotEqualTo():
            return lambda known: known.nulls or known.nans or (known.values and not _always(known, literal))
        case BoundStartsWith():
            return _starting(literal)
        case BoundNotStartsWith():
            return _not_starting(literal)
        case _ if unordered:
            return lambda known: known.values
        case BoundLessThan():
            return lambda known: known.values and (known.low is None or known.low < literal)
        case BoundLessThanOrEqual():
            return lambda known: known.values and (known.low is None or known.low <= literal)
        case BoundGreaterThan():
            return lambda known: known.values and (known.high is None or literal < known.high)
        case BoundGreaterThanOrEqual():
            return lambda known: known.values and (known.high is None or literal <= known.high)
    return _unknown


def _always(known: ValueRange, literal: Ordered) -> bool:
    """Whether each value is the literal."""
    return known.low is not None and bool(known.low == known.high == literal)


def _starting(prefix: bytes) -> RangeTest:
    # A bound that is no longer than the prefix is compared as a whole. A longer one's rest says nothing more.
    length = len(prefix)
    return lambda known: (
        known.values
        and (known.low is None or known.low[:length] <= prefix)
        and (known.high is None or known.high[:length] >= prefix)
    )


def _not_starting(prefix: bytes) -> RangeTest:
    length = len(prefix)

    def test(known: ValueRange) -> bool:
        # All texts between two that begin with the prefix do so too.
        return (
            known.nulls
            or known.nans
            or (
                known.values
                and (
                    known.low is None or known.high is None or not (known.low[:length] == prefix == known.high[:length])
                )
            )
        )

    return test


def _among(predicate: BoundSetPredicate) -> RangeTest:
    kind = predicate.term.ref().field.field_type
    literals = sorted({ordered_value(kind, literal.value) for literal in predicate.literals})
    match predicate:
        case BoundIn():

            def test(known: ValueRange) -> bool:
                if not known.values:
                    return False
                # The first literal that is not below the range.
                place = 0 if known.low is None else bisect_left(literals, known.low)
                return place < len(literals) and (known.high is None or literals[place] <= known.high)

            return test
        case BoundNotIn():
            return lambda known: (
                known.nulls or known.nans or (known.values and not any(_always(known, value) for value in literals))
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
                return lambda known: _plain(known) and known.high is not None and known.high < literal
            case BoundLessThanOrEqual():
                return lambda known: _plain(known) and known.high is not None and known.high <= literal
            case BoundGreaterThan():
                return lambda known: _plain(known) and known.low is not None and known.low > literal
            case BoundGreaterThanOrEqual():
                return lambda known: _plain(known) and known.low is not None and known.low >= literal
    return lambda known: False  # noqa: ARG005 - a test


def _plain(known: ValueRange) -> bool:
    return not known.nulls and not known.nans
