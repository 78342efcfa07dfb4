"""Lake partitions: the partition of a row by Iceberg's transforms, and rows divided by their partitions.

Each file of a partitioned table is in exactly one partition: data files because their rows were divided, a position
delete because its data file is. Iceberg applies a delete only to data files of its own partition, but for equality
deletes of a spec without fields, which apply to the files of every partition (spec, scan planning).

If all partition fields are of key columns, as with heap retention, a row and whatever deletes it have the same key,
hence the same partition: equality deletes are divided like rows, and nothing changes that a reader sees. Otherwise a
deleted key does not tell where its row is, and equality deletes belong to no partition (`partitioning_of_deletes`).

The values are those of Iceberg's Java code, in which Spark rewrites files: floored, so a moment before 1970 belongs to
the day that holds it, and wrapped around at the ends of the result's type.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final, Protocol, Self, TypeAlias, TypeVar

import mmh3
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from decoders.columns import ColumnType
from mirror_pump.lake.format.columns import plain
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.model import LakePartitioning

PartitionTuple: TypeAlias = tuple[Any, ...]
"""A lake partition, as in manifests: one value for each field of the partition spec, in the form of manifests: days,
months, years, hours or microseconds since 1970 are integers. None for NULL."""

UNPARTITIONED: Final[PartitionTuple] = ()
"""The partition of every file of an unpartitioned table, and of equality deletes that apply to every partition."""

MAX_WIDTH = 1_000_000_000
"""Largest W of `truncate[W]`, and N of `bucket[N]`. Iceberg's Java code computes with 32 bits: a larger one could
overflow."""

_MICROSECONDS = {"hour": 3_600_000_000, "day": 86_400_000_000}
_CALENDAR = {"month": "datetime64[M]", "year": "datetime64[Y]"}
_CALENDAR_UNITS = ("day", *_CALENDAR)
_DAY = _MICROSECONDS["day"]
_TRUNCATE = re.compile(r"truncate\[([1-9]\d{0,9})\]")
_BUCKET = re.compile(r"bucket\[([1-9]\d{0,9})\]")
_NUMBERED = ("bucket", "truncate")
"""Transforms with a parameter."""
Values: TypeAlias = npt.NDArray[np.int64]
_Value = TypeVar("_Value")


def partition_key(partition: PartitionTuple) -> Hashable:
    """Equal for what is one partition: all NaN are one, and the two zeros are two, as in Java."""
    return tuple(
        ("NaN" if value != value else struct.pack("<d", value)) if isinstance(value, float) else value
        for value in partition
    )


def partition_order(partition: PartitionTuple) -> tuple[tuple[bool, Any], ...]:
    """By which partitions of one spec are sorted: NULL first."""
    return tuple((value is not None, value) for value in partition)


def width_of(transform: str) -> int | None:
    """W of `truncate[W]`; None for other transforms."""
    matched = _TRUNCATE.fullmatch(transform)
    return None if matched is None else int(matched[1])


def buckets_of(transform: str) -> int | None:
    """N of `bucket[N]`; None for other transforms."""
    matched = _BUCKET.fullmatch(transform)
    return None if matched is None else int(matched[1])


def applies(transform: str, column_type: ColumnType) -> bool:
    """Whether a column of this type can be partitioned by the transform."""
    parameter = buckets_of(transform) or width_of(transform)
    name = transform if parameter is None else transform.partition("[")[0]
    fits = parameter is None if name not in _NUMBERED else parameter is not None and parameter <= MAX_WIDTH
    return fits and name in column_type.facts.transforms


def partitioning_of_deletes(partitioning: LakePartitioning | None, schema: LakeSchema) -> LakePartitioning | None:
    """How equality deletes are divided: like rows if their key tells the partition, else not at all."""
    if partitioning is None or not partitioning.fields or not partitioning.field_ids <= set(schema.key_ids):
        return None
    return LakePartitioning(partitioning.fields)


def same_partitions(left: LakePartitioning | None, right: LakePartitioning | None) -> bool:
    """Whether rows are divided alike, whatever their order is."""
    return (() if left is None else left.fields) == (() if right is None else right.fields)


def partition_values(column: pa.Array | pa.ChunkedArray, transform: str) -> pa.Array:
    """The partition value of each value, NULL for NULL, in the form of a PartitionTuple's. Raises ValueError for a
    transform that does not apply to the column's type."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    parts = [_of_array(plain(chunk), transform) for chunk in chunks]
    return pa.concat_arrays(parts) if parts else pa.array([], pa.int64())


def divided(
    rows: pa.Table, schema: LakeSchema, partitioning: LakePartitioning | None
) -> Iterator[tuple[PartitionTuple, pa.Table]]:
    """Divides rows, or keys, by their lake partitions: each partition with its rows, in ascending order of partitions.
    Rows of one partition keep their order. `schema` has the columns of `rows`.

    Yields nothing without rows. An unpartitioned table has a single partition.
    """
    for partition, places in places_by_partition(rows, schema, partitioning):
        yield partition, taken(rows, places)


def taken(rows: pa.Table, places: Values) -> pa.Table:
    """The rows at these places, without a copy if they are all rows in their order."""
    in_order = len(places) == rows.num_rows and bool((places[1:] > places[:-1]).all())
    return rows if in_order else rows.take(pa.array(places))


def places_by_partition(
    rows: pa.Table, schema: LakeSchema, partitioning: LakePartitioning | None
) -> Iterator[tuple[PartitionTuple, Values]]:
    """As `divided`, with the rows' indexes, ascending."""
    if not rows.num_rows:
        return
    if partitioning is None:
        yield UNPARTITIONED, np.arange(rows.num_rows)
        return
    columns = [
        _Ranked.of(partition_values(rows.column(schema.name_of(field.field_id)), field.transform))
        for field in partitioning.fields
    ]
    ranks: Values = np.zeros(rows.num_rows, np.int64)
    for column in columns:
        # Dense again after each field, so that the product does not overflow.
        ranks = np.unique(ranks, return_inverse=True)[1] * len(column.values) + column.ranks

    def partition(place: int) -> PartitionTuple:
        return tuple(column.values[column.ranks[place]] for column in columns)

    sorted_by = sort_keys(partitioning, schema)
    if not sorted_by and ranks[0] == ranks[-1] and (ranks == ranks[0]).all():
        yield partition(0), np.arange(rows.num_rows)
        return
    order = sorted_places(rows, sorted_by, ranks)
    ranks = ranks[order]
    limits = [0, *(np.flatnonzero(ranks[1:] != ranks[:-1]) + 1).tolist(), len(ranks)]
    for begin, end in pairwise(limits):
        yield partition(order[begin]), order[begin:end]


SortKeys: TypeAlias = list[tuple[str, str, str]]
"""Names of columns, with Arrow's words for their order and for the place of NULL."""


def sort_keys(partitioning: LakePartitioning | None, schema: LakeSchema) -> SortKeys:
    """By what rows are sorted; empty if they stay as they come."""
    names = {field.field_id: field.name for field in schema.fields}
    return [
        (
            names[column.field_id],
            "descending" if column.descending else "ascending",
            "at_end" if column.nulls_last else "at_start",
        )
        for column in (() if partitioning is None else partitioning.order)
        if column.field_id in names
    ]


def sorted_places(rows: pa.Table, sorted_by: SortKeys, ranks: Values | None = None) -> Values:
    """The rows' indexes in their order: by `ranks`, if there are any, then by the keys. Equal rows stay in order."""
    if not sorted_by:
        return np.argsort(np.zeros(rows.num_rows) if ranks is None else ranks, kind="stable")
    columns = [rows.column(name) for name, _, _ in sorted_by]
    keys = [(str(number), order, nulls) for number, (_, order, nulls) in enumerate(sorted_by)]
    if ranks is not None:
        columns.append(pa.chunked_array([pa.array(ranks)]))
        keys.insert(0, (str(len(sorted_by)), "ascending", "at_start"))
    table = pa.table(columns, names=[str(number) for number in range(len(columns))])
    places: Values = pc.sort_indices(table, sort_keys=keys).to_numpy().astype(np.int64)
    return places


@dataclass(frozen=True)
class _Ranked:
    """A column of partition values: each distinct value, ascending, NULL first, and each row's index among them."""

    values: list[Any]
    ranks: Values

    @classmethod
    def of(cls, column: pa.Array) -> Self:
        encoded = column.dictionary_encode(null_encoding="encode")
        values = encoded.dictionary.to_pylist()
        order = sorted(range(len(values)), key=lambda place: (values[place] is not None, values[place]))
        rank = np.empty(len(values), np.int64)
        rank[order] = np.arange(len(values))
        return cls([values[place] for place in order], rank[encoded.indices.to_numpy(zero_copy_only=False)])


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


def _of_array(column: pa.Array, transform: str) -> pa.Array:
    """The values of one array. Raises ValueError if the transform does not apply to its type."""
    kind = column.type
    if column.null_count and not (transform == "identity" or buckets_of(transform) or pa.types.is_string(kind)):
        dense = _of_array(column.drop_null(), transform)
        return pc.replace_with_mask(pa.nulls(len(column), dense.type), column.is_valid(), dense)
    if (count := buckets_of(transform)) is not None:
        return _buckets(column, count)
    if transform == "identity":
        return _numbers(column) if pa.types.is_temporal(kind) else column
    if pa.types.is_integer(kind):
        width = width_of(transform)
        if width is not None:
            return pa.array(_truncated(column, width))
    elif pa.types.is_string(kind) and (width := width_of(transform)) is not None:
        # Java counts code points, and so does Arrow.
        return pc.utf8_slice_codeunits(column, 0, width)
    elif pa.types.is_date32(kind) and transform in _CALENDAR_UNITS:
        return pa.array(calendar_units(_numbers(column).to_numpy(zero_copy_only=False), transform))
    elif pa.types.is_timestamp(kind) and transform in ("hour", *_CALENDAR_UNITS):
        microseconds = _numbers(column).to_numpy(zero_copy_only=False)
        if transform in _MICROSECONDS:
            # Java has 32 bits for hours, which end in the year 246953.
            units: Values = (microseconds // _MICROSECONDS[transform]).astype(np.int32).astype(np.int64)
            return pa.array(units)
        return pa.array(calendar_units(microseconds // _DAY, transform))
    raise ValueError(f"the partition transform {transform} does not apply to {kind}")


def _numbers(column: pa.Array) -> pa.Array:
    """Dates as days, and timestamps as microseconds since 1970, int64."""
    if pa.types.is_date32(column.type):
        return column.view(pa.int32()).cast(pa.int64())
    return (column if column.type.unit == "us" else column.cast(pa.timestamp("us", column.type.tz))).view(pa.int64())


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


def _buckets(column: pa.Array, count: int) -> pa.Array:
    """The bucket of each value by its 32-bit Murmur3 hash (Iceberg spec, appendix B), worked out once for each distinct
    value. NULL for NULL."""
    encode = _hashed_bytes(column.type)
    if pa.types.is_temporal(column.type):
        column = _numbers(column)
    encoded = column.dictionary_encode()
    hashes = (mmh3.hash(encode(value)) & 0x7FFFFFFF for value in encoded.dictionary.to_pylist())
    return pa.array([number % count for number in hashes], pa.int64()).take(encoded.indices)


def _hashed_bytes(kind: pa.DataType) -> Callable[[Any], bytes]:
    """What is hashed of a value. Raises ValueError for a type without buckets."""
    if pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        return struct.Struct("<q").pack
    if pa.types.is_string(kind):
        return str.encode
    if pa.types.is_decimal(kind):
        return _unscaled
    if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return bytes
    raise ValueError(f"a bucket transform does not apply to {kind}")


def _unscaled(value: Decimal) -> bytes:
    """The unscaled number in as few bytes as hold it, as Java's BigInteger writes it."""
    sign, digits, _ = value.as_tuple()
    number = int("".join(map(str, digits)))
    number = -number if sign else number
    return number.to_bytes(((number if number >= 0 else ~number).bit_length() + 8) // 8, "big", signed=True)
