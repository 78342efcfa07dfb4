"""The partition of a data file, by the transforms of any partition spec.

From the footer's bounds where these show that all rows have one value, else from the column itself. A file whose rows
belong to several partitions is refused: readers that ask for one of them would get the rows of the others, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TimeTransform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
    parse_transform,
)
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    IcebergType,
    IntegerType,
    LongType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from pyiceberg.utils.decimal import unscaled_to_decimal

from mirror_pump.lake.document.partition_specs import PartitionSpec
from mirror_pump.lake.format.bounds import ColumnStatistics
from mirror_pump.lake.format.columns import plain
from mirror_pump.lake.format.damaged_files import open_parquet
from mirror_pump.lake.format.partitioning import PartitionTuple, calendar_units, partition_key
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.tables.table.file_columns import FittedFile
from mirror_pump.tables.table.file_footers import FileFooter
from mirror_pump.tables.table.table_errors import FileRefused

_MONOTONIC = (IdentityTransform, TruncateTransform, YearTransform, MonthTransform, DayTransform, HourTransform)
"""If two values have the same result, so have all values between them."""
_EXACT = (BooleanType, IntegerType, LongType, DateType, TimestampType, TimestamptzType, TimeType, DecimalType)
"""Types whose bounds are values of the column. Those of text may have been shortened by the file's writer."""
_DAY, _HOUR = 86_400_000_000, 3_600_000_000
"""Microseconds."""


class PartitionOutOfRange(FileRefused):
    """A row's partition is no value of the partition field's type."""


@dataclass(frozen=True)
class PartitionColumn:
    """A field of a partition spec."""

    name: str
    source_id: int
    source_type: IcebergType
    transform: Any
    """pyiceberg's."""

    @property
    def function(self) -> Callable[[Any], Any]:
        """From a column's value, in the form of `plain_values`, to the partition's. As in Java, integers wrap around at
        the ends of their type. Raises PartitionOutOfRange where Java refuses a decimal."""
        if isinstance(self.transform, TimeTransform):
            return self._unit_of_time
        function: Callable[[Any], Any] = self.transform.transform(self.source_type)
        if not isinstance(self.transform, TruncateTransform):
            return function
        match self.source_type:
            case IntegerType():
                return lambda value: _wrapped(function(value), 32)
            case LongType():
                return lambda value: _wrapped(function(value), 64)
            case DecimalType():
                return lambda value: self._require_digits(value, function(value))
        return function

    def _unit_of_time(self, value: int) -> int:
        """Not by pyiceberg, which only knows the years 1 to 9999."""
        if isinstance(self.transform, HourTransform):
            return _wrapped(value // _HOUR, 32)
        days = value if isinstance(self.source_type, DateType) else value // _DAY
        return int(calendar_units(np.asarray(days), str(self.transform)))

    def _require_digits(self, value: Decimal, partition: Decimal) -> Decimal:
        assert isinstance(self.source_type, DecimalType)
        if len(partition.as_tuple().digits) > self.source_type.precision:
            raise PartitionOutOfRange(
                f"{value} belongs to partition {partition} of {self.name}, which has too many digits for"
                f" {self.source_type}",
                "leave the row out, or partition by the column itself or by bucket[N] of it",
            )
        return partition


def partition_columns(spec: PartitionSpec, schema: Schema) -> tuple[PartitionColumn, ...]:
    """The fields of a spec. Raises FileRefused for a field of UUIDs: engines order these differently, and would skip
    manifests that hold matching rows."""
    fields = []
    for field in spec.fields:
        source = schema.find_field(int(field["source-id"]))
        transform = parse_transform(field["transform"])
        if isinstance(source.field_type, UUIDType) and isinstance(transform, IdentityTransform):
            raise FileRefused(
                f"partition field {field['name']} holds UUIDs, whose order is not the same for all engines",
                "partition by bucket[N] of the column",
            )
        fields.append(PartitionColumn(str(field["name"]), source.field_id, source.field_type, transform))
    return tuple(fields)


def partition_of(
    file: FileFooter, fitted: FittedFile, columns: Sequence[PartitionColumn], storage: StorageOptions
) -> PartitionTuple:
    """The partition that all rows of the file belong to. Raises FileRefused if they belong to several, or if the file
    has none, and LakeError if the storage fails."""
    try:
        return tuple(_value(file, fitted, column, storage) for column in columns)
    except PartitionOutOfRange as error:
        raise FileRefused(f"{file.path}: {error}", error.remedy) from None


def _wrapped(number: int, bits: int) -> int:
    half = 1 << (bits - 1)
    return (number + half) % (2 * half) - half


def plain_values(column: pa.ChunkedArray | pa.Array, kind: IcebergType) -> list[Any]:
    """The values in the form that pyiceberg's transforms take: days and microseconds are numbers."""
    if isinstance(kind, DateType):
        column = column.cast(pa.int32())
    elif isinstance(kind, TimestampType | TimestamptzType):
        column = column.cast(pa.timestamp("us", getattr(column.type, "tz", None))).cast(pa.int64())
    elif isinstance(kind, TimeType):
        column = column.cast(pa.time64("us")).cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values


def _value(file: FileFooter, fitted: FittedFile, column: PartitionColumn, storage: StorageOptions) -> Any:
    file_column = fitted.columns.get(column.source_id)
    if isinstance(column.transform, VoidTransform) or file_column is None:
        # A column that the file lacks is NULL in all its rows.
        return None
    statistics = file_column.statistics
    if statistics is None:
        raise FileRefused(f"{file.path}: partition field {column.name} is of a nested column", "add it by an engine")
    if statistics.nulls == file.rows and file.rows:
        return None
    function = column.function
    bounds = _bounds(statistics, column.source_type)
    if bounds is not None and statistics.nulls == 0:
        first, last = function(bounds[0]), function(bounds[1])
        # Hours that are 2^32 apart are one partition.
        wraps = isinstance(column.transform, HourTransform) and bounds[1] - bounds[0] >= _HOUR
        if bounds[0] == bounds[1] or (isinstance(column.transform, _MONOTONIC) and first == last and not wraps):
            return first
    return _only_value(file, file_column.field.name, column, function, storage)


def _bounds(statistics: ColumnStatistics, kind: IcebergType) -> tuple[Any, Any] | None:
    """Least and greatest value of a column, both of which occur in it; None if that is not known."""
    minima: Sequence[Any] = statistics.minima
    maxima: Sequence[Any] = statistics.maxima
    if not minima or not isinstance(kind, _EXACT):
        return None
    if isinstance(kind, DecimalType):
        minima, maxima = ([_decimal(raw, kind.scale) for raw in values] for values in (minima, maxima))
    return min(minima), max(maxima)


def _decimal(raw: Any, scale: int) -> Decimal:
    number = int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else int(raw)
    return unscaled_to_decimal(number, scale)


def _only_value(
    file: FileFooter, name: str, column: PartitionColumn, function: Callable[[Any], Any], storage: StorageOptions
) -> Any:
    """The value of all rows, from the column itself."""
    with open_parquet(file.path, storage) as opened:
        values = pc.unique(plain(opened.read(columns=[name]).column(0).combine_chunks()))
    partitions = [None if value is None else function(value) for value in plain_values(values, column.source_type)]
    by_key = {partition_key((value,)): value for value in partitions}
    if len(by_key) == 1:
        return by_key.popitem()[1]
    if not by_key:
        raise FileRefused(f"{file.path} has no rows, and so belongs to no partition", "leave it out")
    shown = ", ".join(sorted(map(str, by_key.values()))[:3])
    raise FileRefused(
        f"{file.path} has rows of {len(by_key)} partitions by {column.name}: {shown}",
        "write a file for each partition, or let append() of rows do that",
    )
