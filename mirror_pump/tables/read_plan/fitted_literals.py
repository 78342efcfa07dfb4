"""Literals of predicates in the type of the column that they are compared with: exactly, beside its values, or refused.

pyiceberg rounds some literals to the column's type. A comparison with the rounded one has other rows: `id < 2.5` would
lose 2. Of real numbers the column's own precision counts, as in all engines: `f = 0.1` finds the 0.1 of a float column.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Context, Decimal, InvalidOperation
from enum import Enum
from typing import Any

from pyiceberg.expressions.literals import (
    AboveMax,
    BelowMin,
    DecimalLiteral,
    DoubleLiteral,
    FloatLiteral,
    Literal,
    LongLiteral,
    StringLiteral,
)
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

_DAY = 86_400_000_000
"""Microseconds."""
_LONGS = (LongType, TimestampType, TimestamptzType, TimeType)


class Beyond(Enum):
    """Where a literal is that the column's type cannot hold."""

    ABOVE = "greater than all values, infinity apart"
    BELOW = "less than all values, infinity apart"


@dataclass(frozen=True)
class Between:
    """Where a literal is that has more decimal places than the column: between two neighbouring values."""

    below: Literal[Any]
    """The lesser one."""


def fitted_literal(literal: Literal[Any], kind: IcebergType) -> Literal[Any] | Beyond | Between:
    """The literal in the column's type. Raises ValueError or TypeError for one that has no place among its values."""
    if isinstance(kind, DecimalType):
        return _decimal(literal, kind)
    if isinstance(kind, DoubleType):
        return _double(literal, kind)
    converted_literal = literal.to(kind)
    if isinstance(kind, FloatType):
        return _single(literal, converted_literal)
    if isinstance(converted_literal, AboveMax):
        return Beyond.ABOVE
    if isinstance(converted_literal, BelowMin):
        return Beyond.BELOW
    if isinstance(kind, IntegerType | LongType) and Decimal(str(literal.value)) != converted_literal.value:
        raise ValueError(f"{literal.value} is not a value of {kind}")
    if isinstance(kind, DateType) and "Timestamp" in type(literal).__name__ and literal.value % _DAY:
        raise ValueError("a date is not compared with a time of day")
    return _within(converted_literal, kind)


def _single(literal: Literal[Any], converted_literal: Literal[Any]) -> Literal[Any] | Beyond:
    """Rounded to 32 bits, as the column's values are."""
    if isinstance(converted_literal, AboveMax | BelowMin):
        if _is_infinite(literal):
            return FloatLiteral(float(literal.value))
        return Beyond.ABOVE if isinstance(converted_literal, AboveMax) else Beyond.BELOW
    return FloatLiteral(struct.unpack("<f", struct.pack("<f", converted_literal.value))[0])


def _double(literal: Literal[Any], kind: DoubleType) -> Literal[Any] | Beyond:
    """Rounded to 64 bits. Only infinity itself is infinity."""
    try:
        converted_literal = literal.to(kind)
    except OverflowError:
        return Beyond.ABOVE if literal.value > 0 else Beyond.BELOW
    if not math.isinf(converted_literal.value) or _is_infinite(literal):
        return converted_literal
    return Beyond.ABOVE if converted_literal.value > 0 else Beyond.BELOW


def _is_infinite(literal: Literal[Any]) -> bool:
    return Decimal(str(literal.value)).is_infinite()


def _decimal(literal: Literal[Any], kind: DecimalType) -> Literal[Any] | Beyond | Between:
    """By its digits. Of a float they are those that Python prints."""
    if not isinstance(literal, DecimalLiteral | LongLiteral | FloatLiteral | DoubleLiteral | StringLiteral):
        # Raises TypeError, or knows how.
        return literal.to(kind)
    try:
        number = Decimal(str(literal.value))
    except InvalidOperation:
        raise ValueError(f"{literal.value} is not a number") from None
    if number.is_nan():
        raise ValueError(f"{literal.value} is not a value of {kind}")
    beyond = Beyond.BELOW if number.is_signed() else Beyond.ABOVE
    if number.is_infinite() or (number and number.adjusted() >= kind.precision - kind.scale):
        return beyond
    # In a context of its own: Python's default one rounds to 28 digits.
    place = Decimal((0, (1,), -kind.scale))
    below = number.quantize(place, ROUND_FLOOR, Context(prec=kind.precision + 1))
    if below < Decimal((1, (9,) * kind.precision, -kind.scale)):
        return beyond
    return DecimalLiteral(below) if below == number else Between(DecimalLiteral(below))


def _within(converted_literal: Literal[Any], kind: IcebergType) -> Literal[Any] | Beyond:
    """Of the types whose range pyiceberg does not look at."""
    if not isinstance(kind, _LONGS):
        return converted_literal
    least, most = -(2**63), 2**63 - 1
    if converted_literal.value > most:
        return Beyond.ABOVE
    return Beyond.BELOW if converted_literal.value < least else converted_literal
