"""Column bounds for manifests: from a Parquet footer's raw statistics to Iceberg's single-value bytes."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any

from decoders.columns import ColumnType, Kind

TRUNCATED_TO = 16
"""Characters of text and bytes of binary kept in a bound: Iceberg's default, `truncate(16)`."""

_PACK: dict[Kind, Callable[..., bytes]] = {
    Kind.BOOLEAN: struct.Struct("<?").pack,
    Kind.INT: struct.Struct("<i").pack,
    Kind.LONG: struct.Struct("<q").pack,
    Kind.FLOAT: struct.Struct("<f").pack,
    Kind.DOUBLE: struct.Struct("<d").pack,
    Kind.DATE: struct.Struct("<i").pack,
    Kind.TIME: struct.Struct("<q").pack,
    Kind.TIMESTAMP: struct.Struct("<q").pack,
    Kind.TIMESTAMPTZ: struct.Struct("<q").pack,
}

# UUIDs get none: released engines compare them signed, the footer unsigned, and a key's bounds that compare the wrong
# way make a reader skip a delete file. Random UUIDs would not prune anything anyway.
_UNBOUNDED = frozenset({Kind.UUID, Kind.LIST})

Raw = bool | int | float | bytes
"""A footer statistic as pyarrow's `Statistics.min_raw` gives it: the Parquet physical value."""


def lower_bound(column_type: ColumnType, minima: Sequence[Raw]) -> bytes | None:
    """The smallest of several row groups' minima, serialised (Iceberg spec, appendix D); None: no bound."""
    if column_type.kind in _UNBOUNDED:
        return None
    smallest = min(_comparable(column_type, value) for value in minima)
    if column_type.kind is Kind.STRING:
        assert isinstance(smallest, bytes)
        return smallest.decode()[:TRUNCATED_TO].encode()
    if column_type.kind is Kind.BINARY:
        assert isinstance(smallest, bytes)
        return smallest[:TRUNCATED_TO]
    return _serialised(column_type, smallest)


def upper_bound(column_type: ColumnType, maxima: Sequence[Raw]) -> bytes | None:
    """The largest of several row groups' maxima, serialised; a truncated one is rounded up. None: no bound."""
    if column_type.kind in _UNBOUNDED:
        return None
    largest = max(_comparable(column_type, value) for value in maxima)
    if column_type.kind is Kind.STRING:
        assert isinstance(largest, bytes)
        return _text_above(largest.decode())
    if column_type.kind is Kind.BINARY:
        assert isinstance(largest, bytes)
        return _bytes_above(largest)
    return _serialised(column_type, largest)


def _comparable(column_type: ColumnType, value: Raw) -> Raw:
    """Wide decimals come as big-endian bytes, which do not order as numbers; UTF-8 bytes do order as text."""
    if column_type.kind is Kind.DECIMAL and isinstance(value, bytes):
        return int.from_bytes(value, "big", signed=True)
    return value


def _serialised(column_type: ColumnType, value: Raw) -> bytes:
    if column_type.kind is Kind.DECIMAL:
        assert isinstance(value, int)
        # Two's complement in the fewest bytes that leave room for the sign.
        magnitude = value if value >= 0 else ~value
        return value.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)
    return _PACK[column_type.kind](value)


def _text_above(text: str) -> bytes | None:
    if len(text) <= TRUNCATED_TO:
        return text.encode()
    kept = text[:TRUNCATED_TO]
    while kept:
        successor = ord(kept[-1]) + 1
        if successor == 0xD800:  # Surrogates are no characters.
            successor = 0xE000
        if successor <= sys.maxunicode:
            return (kept[:-1] + chr(successor)).encode()
        kept = kept[:-1]
    return None


def _bytes_above(value: bytes) -> bytes | None:
    if len(value) <= TRUNCATED_TO:
        return value
    kept = value[:TRUNCATED_TO].rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def ordered(column_type: ColumnType, bound: bytes | None) -> Any:
    """A serialised bound as a value that orders as the column does; None where there is no bound to rely on.

    Engines order UUIDs differently. Columns that were widened since may have shorter bounds.
    """
    if bound is None or column_type.kind in _UNBOUNDED:
        return None
    match column_type.kind:
        case Kind.STRING | Kind.BINARY:
            # UTF-8 bytes order as characters do.
            return bound
        case Kind.DECIMAL:
            return int.from_bytes(bound, "big", signed=True)
        case Kind.FLOAT | Kind.DOUBLE:
            return struct.unpack("<f" if len(bound) == struct.calcsize("<f") else "<d", bound)[0]
        case _:
            return int.from_bytes(bound, "little", signed=True)
