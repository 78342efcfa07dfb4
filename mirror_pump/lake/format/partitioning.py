"""Lake partitions: the partition of a tier key by Iceberg's transforms, and rows divided by their partitions.

A partitioned lake table has one partition field, a transform of the tier key. The tier key is part of the table's key,
and every row and every delete has one. So each file of the table is in exactly one partition: data files because their
rows were divided, equality deletes because their keys were, and a position delete because its data file is. Iceberg
applies a delete only to data files of its own partition (spec, scan planning). A row and whatever deletes it have the
same key, hence the same partition: dividing deletes by partition changes nothing that a reader sees.

The values are those of Iceberg's Java code, in which Spark rewrites files: floored, so a moment before 1970 belongs to
the day that holds it, and wrapped around at the ends of the result's type.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from decoders.columns import ColumnType, Kind
from mirror_pump.lake.format.columns import plain
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.model import LakePartitioning

PartitionTuple: TypeAlias = tuple[Any, ...]
"""A lake partition, as in manifests: one value for each field of the partition spec. The mirror's own partitions have
one field, an integer (hours, days, months or years since 1970, or the truncated key)."""

UNPARTITIONED: Final[PartitionTuple] = ()
"""The partition of every file of an unpartitioned table."""

MAX_WIDTH = 1_000_000_000
"""Largest W of `truncate[W]`. Iceberg's Java code computes with 32 bits: a larger one could overflow."""

_MICROSECONDS = {"hour": 3_600_000_000, "day": 86_400_000_000}
_CALENDAR = {"month": "datetime64[M]", "year": "datetime64[Y]"}
_DAY = _MICROSECONDS["day"]
_TIMES = (Kind.TIMESTAMP, Kind.TIMESTAMPTZ)
_UNITS: Mapping[Kind, Collection[str]] = {
    Kind.DATE: ("day", "month", "year"),
    **dict.fromkeys(_TIMES, ("hour", "day", "month", "year")),
}
_TRUNCATE = re.compile(r"truncate\[([1-9]\d{0,9})\]")

Values: TypeAlias = npt.NDArray[np.int64]
_Value = TypeVar("_Value")


def partition_key(partition: PartitionTuple) -> Hashable:
    """Equal for what is one partition: all NaN are one, and the two zeros are two, as in Java."""
    return tuple(
        ("NaN" if value != value else struct.pack("<d", value)) if isinstance(value, float) else value
        for value in partition
    )


def truncation(width: int) -> str:
    """Iceberg's name of the transform that truncates integers to multiples of `width`."""
    return f"truncate[{width}]"


def width_of(transform: str) -> int | None:
    """W of `truncate[W]`; None for other transforms."""
    matched = _TRUNCATE.fullmatch(transform)
    return None if matched is None else int(matched[1])


def applies(transform: str, column_type: ColumnType) -> bool:
    """Whether a column of this type can be partitioned by the transform."""
    if column_type.kind in (Kind.INT, Kind.LONG):
        width = width_of(transform)
        return width is not None and width <= MAX_WIDTH
    return transform in _UNITS.get(column_type.kind, ())


def partition_values(column: pa.Array | pa.ChunkedArray, transform: str) -> Values:
    """The partition value of each tier key, none of which may be NULL. Raises ValueError for a transform that does not
    apply to the column's type."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    parts = [_of_array(plain(chunk), transform) for chunk in chunks]
    return np.concatenate([np.zeros(0, np.int64), *parts])


def divided(
    rows: pa.Table, schema: LakeSchema, partitioning: LakePartitioning | None
) -> Iterator[tuple[PartitionTuple, pa.Table]]:
    """Divides rows, or keys, by their lake partitions: each partition with its rows, in ascending order of partitions.
    Rows of one partition keep their order. `schema` has the columns of `rows`.

    Yields nothing without rows. An unpartitioned table has a single partition.
    """
    for partition, places in places_by_partition(rows, schema, partitioning):
        yield partition, rows if len(places) == rows.num_rows else rows.take(pa.array(places))


def places_by_partition(
    rows: pa.Table, schema: LakeSchema, partitioning: LakePartitioning | None
) -> Iterator[tuple[PartitionTuple, Values]]:
    """As `divided`, with the rows' indexes, ascending."""
    if not rows.num_rows:
        return
    if partitioning is None:
        yield UNPARTITIONED, np.arange(rows.num_rows)
        return
    values = partition_values(rows.column(schema.name_of(partitioning.field_id)), partitioning.transform)
    if values[0] == values[-1] and (values == values[0]).all():
        yield (int(values[0]),), np.arange(rows.num_rows)
        return
    order = np.argsort(values, kind="stable")
    values = values[order]
    limits = [0, *(np.flatnonzero(values[1:] != values[:-1]) + 1).tolist(), len(values)]
    for begin, end in pairwise(limits):
        yield (int(values[begin]),), order[begin:end]


def by_partition(
    by_path: Mapping[str, _Value], partitions: Mapping[str, PartitionTuple]
) -> Iterator[tuple[PartitionTuple, dict[str, _Value]]]:
    """Groups what is known by URIs of data files, such as positions, by the partitions of these files. `partitions`:
    their partitions by URI; those of an unpartitioned table may be left out."""
    groups: dict[PartitionTuple, dict[str, _Value]] = {}
    for path, value in by_path.items():
        groups.setdefault(partitions.get(path, UNPARTITIONED), {})[path] = value
    yield from groups.items()


class InPartition(Protocol):
    """A file with its partition."""

    @property
    def path(self) -> str:
        """URI of the file."""
        ...

    @property
    def partition(self) -> PartitionTuple:
        """The lake partition that it belongs to."""
        ...


def partitions_of(files: Iterable[InPartition]) -> dict[str, PartitionTuple]:
    """The partitions of files, by URI."""
    return {file.path: file.partition for file in files}


def _of_array(column: pa.Array, transform: str) -> Values:
    """The values of one array. Raises ValueError if the transform does not apply to its type."""
    kind = column.type
    if pa.types.is_integer(kind):
        width = width_of(transform)
        if width is not None:
            return _truncated(column, width)
    elif pa.types.is_date32(kind) and transform in _UNITS[Kind.DATE]:
        days = column.view(pa.int32()).to_numpy(zero_copy_only=False).astype(np.int64)
        return calendar_units(days, transform)
    elif pa.types.is_timestamp(kind) and transform in _UNITS[Kind.TIMESTAMP]:
        numbers = column if kind.unit == "us" else column.cast(pa.timestamp("us", kind.tz))
        microseconds = numbers.view(pa.int64()).to_numpy(zero_copy_only=False)
        if transform in _MICROSECONDS:
            # Java has 32 bits for hours, which end in the year 246953.
            units: Values = (microseconds // _MICROSECONDS[transform]).astype(np.int32).astype(np.int64)
            return units
        return calendar_units(microseconds // _DAY, transform)
    raise ValueError(f"the partition transform {transform} does not apply to {kind}")


def calendar_units(days: Values, transform: str) -> Values:
    """Days since 1970-01-01 as days, or as months or years since 1970, floored."""
    if transform == "day":
        return days
    return days.astype("datetime64[D]").astype(_CALENDAR[transform]).astype(np.int64)


def _truncated(column: pa.Array, width: int) -> Values:
    """The integers, each rounded down to a multiple of `width`."""
    numbers = column.to_numpy(zero_copy_only=False)
    # In the column's own type, in which Java wraps around below the least multiple.
    with np.errstate(over="ignore"):
        result: Values = (numbers - np.mod(numbers, numbers.dtype.type(width))).astype(np.int64)
    return result
