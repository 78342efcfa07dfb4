"""Column bounds for manifests: from a Parquet footer's raw statistics to Iceberg's single-value bytes."""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq

from decoders.columns import ColumnType, Kind

TRUNCATED_TO = 16
"""Characters of text and bytes of binary kept in a bound: Iceberg's default, `truncate(16)`."""

Raw = bool | int | float | bytes
"""A footer statistic as pyarrow's `Statistics.min_raw` gives it: the Parquet physical value."""


@dataclass(frozen=True)
class ColumnStatistics:
    """What a footer says of a leaf column."""

    size_bytes: int
    """Compressed."""
    nulls: int | None
    """None if the footer does not say."""
    minima: Sequence[Raw]
    """Of the row groups that have values; empty unless all of these say theirs. Bounds: of text they may be cut."""
    maxima: Sequence[Raw]

    @classmethod
    def of(cls, groups: Sequence[pq.RowGroupMetaData], leaf: int) -> ColumnStatistics:
        """`leaf`: index among the leaf columns of the file with these row groups."""
        size = 0
        nulls: int | None = 0
        minima: list[Raw] = []
        maxima: list[Raw] = []
        is_bounded = True
        for group in groups:
            chunk = group.column(leaf)
            size += chunk.total_compressed_size
            statistics = chunk.statistics
            if statistics is None or not statistics.has_null_count:
                nulls = None
            elif nulls is not None:
                nulls += statistics.null_count
            if statistics is not None and statistics.has_min_max:
                minima.append(statistics.min_raw)
                maxima.append(statistics.max_raw)
            elif group.num_rows and (statistics is None or statistics.null_count != group.num_rows):
                is_bounded = False
        return cls(size, nulls, minima, maxima) if is_bounded else cls(size, nulls, (), ())

    def bounds(self, column_type: ColumnType) -> tuple[bytes | None, bytes | None]:
        """The column's lower and upper bound, for a manifest."""
        if not self.minima:
            return None, None
        return lower_bound(column_type, self.minima), upper_bound(column_type, self.maxima)


def split_offsets(groups: Sequence[pq.RowGroupMetaData]) -> tuple[int, ...]:
    """The byte at which each row group begins."""
    first = [group.column(0) for group in groups]
    return tuple(int(chunk.dictionary_page_offset or chunk.data_page_offset) for chunk in first)


def lower_bound(column_type: ColumnType, minima: Sequence[Raw]) -> bytes | None:
    """The smallest of several row groups' minima, serialised (Iceberg spec, appendix D); None for no bound."""
    if not column_type.facts.has_bounds:
        return None
    smallest = min(physical_order(column_type, value) for value in minima)
    if column_type.kind is Kind.STRING:
        assert isinstance(smallest, bytes)
        return smallest.decode()[:TRUNCATED_TO].encode()
    if column_type.kind is Kind.BINARY:
        assert isinstance(smallest, bytes)
        return smallest[:TRUNCATED_TO]
    return _serialised(column_type, smallest)


def upper_bound(column_type: ColumnType, maxima: Sequence[Raw]) -> bytes | None:
    """The largest of several row groups' maxima, serialised; truncated bounds are rounded up. None for no bound."""
    if not column_type.facts.has_bounds:
        return None
    largest = max(physical_order(column_type, value) for value in maxima)
    if column_type.kind is Kind.STRING:
        assert isinstance(largest, bytes)
        return _text_above(largest.decode())
    if column_type.kind is Kind.BINARY:
        assert isinstance(largest, bytes)
        return _bytes_above(largest)
    return _serialised(column_type, largest)


def physical_order(column_type: ColumnType, value: Raw) -> Raw:
    """The statistic as a value that orders as the column does.

    Wide decimals come as big-endian bytes, which do not order as numbers. UTF-8 bytes do order as text.
    """
    if column_type.kind is Kind.DECIMAL and isinstance(value, bytes):
        return int.from_bytes(value, "big", signed=True)
    return value


def _serialised(column_type: ColumnType, value: Raw) -> bytes:
    if column_type.kind is Kind.DECIMAL:
        assert isinstance(value, int)
        # Two's complement in the fewest bytes that leave room for the sign.
        magnitude = value if value >= 0 else ~value
        return value.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)
    packing = column_type.facts.packing
    assert packing is not None, column_type
    return struct.pack(packing, value)


def _text_above(text: str) -> bytes | None:
    if len(text) <= TRUNCATED_TO:
        return text.encode()
    prefix = text[:TRUNCATED_TO]
    while prefix:
        successor = ord(prefix[-1]) + 1
        if successor == 0xD800:  # Surrogates are not characters.
            successor = 0xE000
        if successor <= sys.maxunicode:
            return (prefix[:-1] + chr(successor)).encode()
        prefix = prefix[:-1]
    return None


def _bytes_above(value: bytes) -> bytes | None:
    if len(value) <= TRUNCATED_TO:
        return value
    prefix = value[:TRUNCATED_TO].rstrip(b"\xff")
    return prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else None


def ordered(column_type: ColumnType, bound: bytes | None) -> Any:
    """A serialised bound as a value that orders as the column does; None without a reliable bound.

    UUIDs have no reliable bound, since engines order them differently. Bounds from before a column was widened may be
    shorter.
    """
    if bound is None or not column_type.facts.has_bounds:
        return None
    match column_type.kind:
        case Kind.STRING | Kind.BINARY:
            # UTF-8 bytes order as their characters do.
            return bound
        case Kind.DECIMAL:
            return int.from_bytes(bound, "big", signed=True)
        case _ if column_type.is_floating:
            return struct.unpack("<f" if len(bound) == struct.calcsize("<f") else "<d", bound)[0]
        case _:
            return int.from_bytes(bound, "little", signed=True)
