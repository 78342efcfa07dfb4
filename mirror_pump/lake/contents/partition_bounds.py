"""Tells which rows were in a partition that no longer exists, from the partition's bounds.

Supports RANGE or LIST partitions by a single key column whose type compares in the lake as in Postgres. A row of the
table is within the bounds if and only if it was in the partition. For other partitions no bounds are derived.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from decoders.columns import ColumnType
from decoders.pgtypes import column_type
from mirror_pump.lake.contents.file_listing import LiveFile
from mirror_pump.model import EVERYTHING_IN_HEAP, Column, MirroredTable, TierKind

_EPOCH_DAYS = 10_957
"""Days from 1970-01-01 to 2000-01-01, Postgres's epoch."""
_EPOCH_MICROSECONDS = _EPOCH_DAYS * 86_400_000_000

_INTEGERS = {
    21: ("<h", 0),
    23: ("<i", 0),
    20: ("<q", 0),
    1082: ("<i", _EPOCH_DAYS),
    1114: ("<q", _EPOCH_MICROSECONDS),
    1184: ("<q", _EPOCH_MICROSECONDS),
}
"""By type OID: struct format of the Datum, and the offset of the epoch."""
_TEXTS = frozenset({25, 1043})
_DATUM_BYTES = 8

_TIER_VALUES = {
    TierKind.BIGINT: (frozenset({2, 4, 8}), 0),
    TierKind.DATE: (frozenset({4}), _EPOCH_DAYS),
    TierKind.TIMESTAMP: (frozenset({8}), _EPOCH_MICROSECONDS),
    TierKind.TIMESTAMPTZ: (frozenset({8}), _EPOCH_MICROSECONDS),
}
"""By kind of tier key: sizes of its types, and the offset of the epoch."""
HIGHEST = 2**63 - 1
"""The tier value of infinity and of MAXVALUE."""

_CONST = re.compile(
    r"\{CONST :consttype (\d+) [^{}\[\]]*?:constisnull (true|false)[^{}\[\]]*?:constvalue (?:<>|\d+ \[ ([-\d ]*)\])\}"
)
_RANGE = re.compile(
    r"\{PARTITIONBOUNDSPEC :strategy r :is_default false .*:lowerdatums \((.*)\) :upperdatums \((.*)\) [^()]*\}",
    re.DOTALL,
)
_LIST = re.compile(
    r"\{PARTITIONBOUNDSPEC :strategy l :is_default false .*:listdatums \((.*)\) :lowerdatums .*\}", re.DOTALL
)
_DATUM = re.compile(r"\{CONST [^{}\[\]]*?:constisnull false[^{}\[\]]*?:constvalue (\d+) \[ ([-\d ]*)\]\}")
"""Of any type, so of a domain too: its size and content."""
_RANGE_DATUM = re.compile(r"\{PARTITIONRANGEDATUM :kind (-?\d+) :value (<>|\{.*\})[^{}]*\}", re.DOTALL)


@dataclass(frozen=True)
class PartitionBounds:
    """Bounds of one partition, of a table with a single column as its partition key."""

    field_id: int
    """Field ID of the partition key column."""
    lower: int | None = None
    """RANGE: lower bound, inclusive, in the lake's integer form; None for no lower bound."""
    upper: int | None = None
    """RANGE: upper bound, exclusive; None for no upper bound."""
    values: tuple[int | str, ...] | None = None
    """LIST: the values. None for RANGE."""

    def to_json(self) -> dict[str, Any]:
        """The JSON for mirror_tables.dropped_rows."""
        values = None if self.values is None else list(self.values)
        return {"field_id": self.field_id, "lower": self.lower, "upper": self.upper, "values": values}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> PartitionBounds:
        """The inverse of `to_json`."""
        values = None if stored["values"] is None else tuple(stored["values"])
        return cls(stored["field_id"], stored["lower"], stored["upper"], values)

    def holds(self, column: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.bool_]:
        """A mask of the values within the bounds; NULL is never within."""
        if self.values is not None and any(isinstance(value, str) for value in self.values):
            mask = pc.is_in(column, value_set=pa.array(self.values, pa.string()))
        else:
            whole = column.cast(pa.int32()) if pa.types.is_date32(column.type) else column
            numbers = whole.cast(pa.int64())
            if self.values is not None:
                mask = pc.is_in(numbers, value_set=pa.array(self.values, pa.int64()))
            else:
                mask = pc.is_valid(numbers)
                if self.lower is not None:
                    mask = pc.and_(mask, pc.greater_equal(numbers, pa.scalar(self.lower, pa.int64())))
                if self.upper is not None:
                    mask = pc.and_(mask, pc.less(numbers, pa.scalar(self.upper, pa.int64())))
        flags = pc.fill_null(mask, False)  # noqa: FBT003
        if isinstance(flags, pa.ChunkedArray):
            flags = flags.combine_chunks()
        return np.asarray(flags.to_numpy(zero_copy_only=False), np.bool_)

    def may_concern(self, file: LiveFile, bounded: ColumnType) -> bool:
        """Whether a row of the file may be within the bounds, judged by the file's column bounds."""
        if self.values is not None and any(isinstance(value, str) for value in self.values):
            return True
        if not bounded.is_ordinal:
            return True
        least = file.lower_bounds.get(self.field_id)
        most = file.upper_bounds.get(self.field_id)
        if least is None or most is None:
            return True
        low, high = int.from_bytes(least, "little", signed=True), int.from_bytes(most, "little", signed=True)
        if self.values is not None:
            return any(low <= int(value) <= high for value in self.values)
        return (self.lower is None or self.lower <= high) and (self.upper is None or low < self.upper)


def bounds_of(table: MirroredTable, shape: Mapping[str, Any], leaf: int) -> PartitionBounds | None:
    """The bounds of the partition `leaf` (its ID) in this shape; None if they cannot be determined exactly."""
    key = shape.get("partition_key")
    text = _bound(shape, leaf)
    if not key or len(key) != 1 or not text:
        return None
    column = next((column for column in table.columns if column.attnum == key[0]), None)
    if column is None or column.name not in table.key:
        return None
    match = _RANGE.fullmatch(text)
    if match is not None:
        lower = _range_value(match[1], column, -1)
        upper = _range_value(match[2], column, 1)
        if lower is _UNKNOWN or upper is _UNKNOWN:
            return None
        return PartitionBounds(column.field_id, lower, upper)
    match = _LIST.fullmatch(text)
    if match is None:
        return None
    constants = _CONST.findall(match[1])
    if len(constants) != match[1].count("{CONST") or not constants:
        return None
    values = [_value(constant, column) for constant in constants]
    if any(value is _UNKNOWN for value in values):
        return None
    return PartitionBounds(column.field_id, values=tuple(values))


def tier_range(shape: Mapping[str, Any], leaf: int, kind: TierKind) -> tuple[int, int] | None:
    """The tier values of the partition `leaf` (its ID), which is partitioned by a tier key, as modak.tier_partitions()
    tells them. None if they cannot be determined exactly: of a deeper level; of the DEFAULT partition; and, in a
    database whose encoding is not UTF8, or whose server's machine is not known to have the lowest byte first, of tier
    keys of eight bytes."""
    match = _RANGE.fullmatch(_bound(shape, leaf) or "")
    if match is None:
        return None
    lower, upper = (_tier_value(shape, datum, kind) for datum in match.groups())
    return None if lower is None or upper is None else (lower, upper)


def _tier_value(shape: Mapping[str, Any], text: str, kind: TierKind) -> int | None:
    datum = _RANGE_DATUM.fullmatch(text)
    if datum is None:
        return None
    if int(datum[1]) != 0:
        return EVERYTHING_IN_HEAP if int(datum[1]) < 0 else HIGHEST
    constant = _DATUM.fullmatch(datum[2])
    sizes, epoch = _TIER_VALUES[kind]
    if constant is None or int(constant[1]) not in sizes:
        return None
    size, content = int(constant[1]), bytes(int(byte) & 0xFF for byte in constant[2].split())
    number = int.from_bytes(content[:size], "little", signed=True)
    # A narrower number fills the Datum with its sign. Read from the wrong end it would not.
    if content != number.to_bytes(_DATUM_BYTES, "little", signed=True) or (
        size == _DATUM_BYTES and not shape.get("partition_key")
    ):
        return None
    if epoch and number in (-(2 ** (8 * size - 1)), 2 ** (8 * size - 1) - 1):
        return EVERYTHING_IN_HEAP if number < 0 else HIGHEST
    return min(number + epoch, HIGHEST - 1) if epoch else number


def is_default(shape: Mapping[str, Any], leaf: int) -> bool:
    """Whether the partition `leaf` (its ID) is the DEFAULT partition in this shape."""
    return ":is_default true" in (_bound(shape, leaf) or "")


def _bound(shape: Mapping[str, Any], leaf: int) -> str | None:
    """The server's node tree of its bounds."""
    return next((entry.get("bound") for entry in shape.get("leaves") or () if entry["id"] == leaf), None)


_UNKNOWN: Any = object()


def _range_value(datums: str, column: Column, end: int) -> Any:
    datum = _RANGE_DATUM.fullmatch(datums)
    if datum is None:
        return _UNKNOWN
    if int(datum[1]) == end:
        return None
    constant = _CONST.fullmatch(datum[2])
    if int(datum[1]) != 0 or constant is None or column.type_oid in _TEXTS:
        return _UNKNOWN
    return _value(constant.groups(default=""), column)


def _value(constant: tuple[str, ...] | Any, column: Column) -> Any:
    """A constant's value in the lake's form; _UNKNOWN if it does not have the column's own, simple type."""
    const_type, is_null, content = int(constant[0]), constant[1] == "true", constant[2]
    if is_null or const_type != column.type_oid or column.type != column_type(column.type_oid):
        return _UNKNOWN
    datum = bytes(int(byte) & 0xFF for byte in content.split())
    if const_type in _TEXTS:
        # A varlena with a four-byte header that holds the total length.
        if len(datum) < 4 or struct.unpack("<I", datum[:4])[0] != len(datum) << 2:
            return _UNKNOWN
        return datum[4:].decode()
    if const_type not in _INTEGERS or len(datum) != _DATUM_BYTES:
        return _UNKNOWN
    packing, epoch = _INTEGERS[const_type]
    (number,) = struct.unpack(packing, datum[: struct.calcsize(packing)])
    # The outermost values are infinities, or out of range after adding the lake's epoch.
    return number + epoch if abs(number) < 2 ** (8 * struct.calcsize(packing) - 2) else _UNKNOWN
