"""Values in a form that orders as their Iceberg type does: of literals, of serialised bounds, of partitions.

Text is its UTF-8 bytes, whose order is that of code points, so that a bound which was cut within a character needs no
decoding. Decimals are their unscaled integers. UUIDs have no order here, since engines do not agree on one.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeAlias

from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

Ordered: TypeAlias = Any
"""An int, float, bool or bytes."""

_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_INTEGERS = (IntegerType, LongType, DateType, TimeType, TimestampType, TimestamptzType)


def is_float(kind: IcebergType) -> bool:
    """Whether values of the type may be NaN."""
    return isinstance(kind, FloatType | DoubleType)


def ordered_value(kind: IcebergType, value: Any) -> Ordered:
    """The value of a literal, or of a partition, that is not NULL. TypeError for a type that is not known here."""
    if isinstance(kind, StringType):
        # A lone surrogate is no text, and equals none. But a literal may have one, and has its place in the order.
        return str(value).encode("utf-8", "surrogatepass")
    if isinstance(kind, DecimalType):
        return _unscaled(value, kind.scale)
    if isinstance(kind, UUIDType):
        return value.bytes if isinstance(value, uuid.UUID) else bytes(value)
    if isinstance(kind, BinaryType | FixedType):
        return bytes(value)
    if isinstance(kind, (*_INTEGERS, FloatType, DoubleType, BooleanType)):
        return value
    raise TypeError(f"values of {kind} have no order")


def bound_reader(kind: IcebergType) -> Callable[[bytes], Ordered | None] | None:
    """What reads a serialised bound (Iceberg spec, appendix D) of a column that has this type now, and may have been
    narrower when the bound was written; it gives None for bytes that are no such bound. None for a type whose bounds
    are not relied on."""
    if isinstance(kind, StringType | BinaryType | FixedType):
        return bytes
    if isinstance(kind, _INTEGERS):
        return _integer
    if is_float(kind):
        return _real
    if isinstance(kind, DecimalType):
        return _big_endian
    if isinstance(kind, BooleanType):
        return _boolean
    return None


def _integer(bound: bytes) -> int | None:
    return int.from_bytes(bound, "little", signed=True) if len(bound) in (4, 8) else None


def _big_endian(bound: bytes) -> int | None:
    return int.from_bytes(bound, "big", signed=True) if bound else None


def _real(bound: bytes) -> float | None:
    for form in (_FLOAT, _DOUBLE):
        if len(bound) == form.size:
            number: float = form.unpack(bound)[0]
            return number
    return None


def _boolean(bound: bytes) -> bool | None:
    return bound != b"\0" if len(bound) == 1 else None


def _unscaled(value: Decimal, scale: int) -> int:
    """The value times 10 to the power of `scale`. A partition's value may have been written with fewer places."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    number: int = int("".join(map(str, digits))) * 10 ** max(exponent + scale, 0) // 10 ** max(-exponent - scale, 0)
    return -number if sign else number
