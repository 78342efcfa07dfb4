"""Literals of predicates in the type of the column that they are compared with: exactly, beyond its range, or refused.

pyiceberg rounds some literals to the column's type. A comparison with the rounded one has other rows: `id < 2.5` would
lose 2. Of real numbers the column's own precision counts, as in all engines: `f = 0.1` finds the 0.1 of a float column.
"""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from enum import Enum
from typing import Any

from pyiceberg.expressions.literals import AboveMax, BelowMin, FloatLiteral, Literal
from pyiceberg.types import (
    DateType,
    DecimalType,
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


def fitted_literal(literal: Literal[Any], kind: IcebergType) -> Literal[Any] | Beyond:
    """The literal in the column's type. Raises ValueError or TypeError for one that has no place among its values."""
    found = literal.to(kind)
    if isinstance(kind, FloatType):
        return _single(literal, found)
    if isinstance(found, AboveMax):
        return Beyond.ABOVE
    if isinstance(found, BelowMin):
        return Beyond.BELOW
    if isinstance(kind, IntegerType | LongType | DecimalType) and Decimal(str(literal.value)) != found.value:
        raise ValueError(f"{literal.value} is not a value of {kind}")
    if isinstance(kind, DateType) and "Timestamp" in type(literal).__name__ and literal.value % _DAY:
        raise ValueError("a date is not compared with a time of day")
    return _within(found, kind)


def _single(literal: Literal[Any], found: Literal[Any]) -> Literal[Any] | Beyond:
    """Rounded to 32 bits, as the column's values are."""
    if isinstance(found, AboveMax | BelowMin):
        if isinstance(literal.value, float) and math.isinf(literal.value):
            return FloatLiteral(literal.value)
        return Beyond.ABOVE if isinstance(found, AboveMax) else Beyond.BELOW
    return FloatLiteral(struct.unpack("<f", struct.pack("<f", found.value))[0])


def _within(found: Literal[Any], kind: IcebergType) -> Literal[Any] | Beyond:
    """Of the types whose range pyiceberg does not look at."""
    least: Any
    most: Any
    if isinstance(kind, DecimalType):
        most = Decimal((0, (9,) * kind.precision, -kind.scale))
        least = Decimal((1, (9,) * kind.precision, -kind.scale))
    elif isinstance(kind, _LONGS):
        least, most = -(2**63), 2**63 - 1
    else:
        return found
    if found.value > most:
        return Beyond.ABOVE
    return Beyond.BELOW if found.value < least else found
