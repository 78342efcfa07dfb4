"""Reads a heap by columns: PostgreSQL collects the values that a column has in 64 blocks into one value.

A row of the result stands for a range of blocks. It has the number of their rows, and for each column what `string_agg`
makes of the bytes of its values; where columns of fixed size have NULLs, a mask of these. So neither the server nor the
client handles a message for each row: together they take two thirds of the CPU that rows one by one take.

All aggregates of a query see the same rows in the same order. That is what makes rows of columns again, and it is
checked as far as it can be: in each range, each column has to have as many values as there are rows, and as many bytes
as these say; where a mask says NULL, the column has to have zeros, which stand for it. Masks may come from a scan of
their own, which sees the rows in the same order since both follow the heap's blocks
(mirror_pump.source.heap.packed_read).

Only types of a fixed size, text, bytea and numeric come in this form, and only from heaps without out-of-line values,
since the values of a range have to fit into a bytea (1 GB) and into the server's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from decoders.columns import ColumnType, Kind
from mirror_pump.database.quoting import identifier
from mirror_pump.errors import SourceError
from mirror_pump.model import Column

RANGE_BYTES = 512 << 10
"""Most bytes of heap in a range. The server puts the values of each column together in a buffer, and copies it twice:
those of a larger range leave the processor's cache. With 2 MiB it takes a seventh more of its time for texts of 1 KB or
for 200 columns, with 128 KiB it begins scans too often. Values that are compressed within their rows, at least four in
a block, may take 255 times as much when they are put together: an eighth of what a bytea can hold."""

_EPOCH_DAYS = 10_957
"""From 1970-01-01, where Arrow begins to count, to 2000-01-01, where PostgreSQL does (datatype/timestamp.h)."""
_EPOCH_MICROSECONDS = _EPOCH_DAYS * 86_400_000_000
_MASK_BITS = 31
"""Columns in one mask of NULLs, an int4."""
_MOST_COLUMNS = 500
"""A column takes up to two of the 1,664 columns that a query of PostgreSQL can have, and a part of a mask."""
_LINE, _POINT = b"\n."
"""The former follows the text of each number."""
_INT64_DIGITS = 18
"""All numbers with so many digits fit into an int64."""

REPORTED = "nothing was copied or proven by it: report this, it is a bug"

_Bytes = npt.NDArray[np.uint8]
_Sizes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Fixed:
    """A type whose values all have the same number of bytes."""

    send: str
    """The function that PostgreSQL makes the bytes with; formatted with the column's name."""
    zero: str
    """A value that stands for NULL, so that each row has one."""
    dtype: str
    """What the bytes are, in network byte order, for numpy."""
    epoch: int = 0
    """What to add, modulo the type's range. As with ADBC, infinities and what Arrow's range lacks become numbers below
    the earliest date."""


_FIXED = {
    (16, Kind.BOOLEAN): _Fixed("boolsend({})", "false", "?"),
    (20, Kind.LONG): _Fixed("int8send({})", "0", ">i8"),
    (21, Kind.INT): _Fixed("int4send({}::int4)", "0", ">i4"),
    (23, Kind.INT): _Fixed("int4send({})", "0", ">i4"),
    (700, Kind.FLOAT): _Fixed("float4send({})", "0", ">f4"),
    (701, Kind.DOUBLE): _Fixed("float8send({})", "0", ">f8"),
    (1082, Kind.DATE): _Fixed("date_send({})", "'2000-01-01'", ">i4", _EPOCH_DAYS),
    (1114, Kind.TIMESTAMP): _Fixed("timestamp_send({})", "'2000-01-01'", ">i8", _EPOCH_MICROSECONDS),
    (1184, Kind.TIMESTAMPTZ): _Fixed("timestamptz_send({})", "'2000-01-01 00:00+00'", ">i8", _EPOCH_MICROSECONDS),
    (2950, Kind.UUID): _Fixed("uuid_send({})", "'00000000-0000-0000-0000-000000000000'", "V16"),
}
"""By the type's OID, which is the same in every database, and the kind of the lake's column."""
_NUMBERS = frozenset({(1700, Kind.DECIMAL)})
_TEXTS = frozenset({(25, Kind.STRING), (1043, Kind.STRING), (17, Kind.BINARY)})
"""Not char(n): as a text it would lose its blanks."""


def packable(columns: Sequence[Column]) -> bool:
    """Whether the columns can be read in this form: by their types, and by their number."""
    return len(columns) <= _MOST_COLUMNS and all(
        (column.type_oid, column.type.kind) in (_FIXED.keys() | _NUMBERS | _TEXTS) for column in columns
    )


class PackedColumns:
    """The query of some columns, and what its rows mean. Without I/O."""

    def __init__(self, columns: Sequence[Column], *, nulls_expected: bool = False) -> None:
        """The columns must be `packable`. `nulls_expected`: most ranges have NULLs in columns of fixed size. That makes
        the query cheaper for them, and dearer for others."""
        self._columns = columns
        self._nulls_expected = nulls_expected
        # Also those that had no NULL when the mirror saw them last.
        self._masked = [column for column in columns if (column.type_oid, column.type.kind) in _FIXED]

    @property
    def masked(self) -> list[str]:
        """Names of the columns whose NULLs are in masks."""
        return [column.name for column in self._masked]

    def select(self, table: str, lo: int, hi: int, blocks: int) -> str:
        """SQL for the blocks lo .. hi - 1 of a table, whose name is quoted, with a row for each `blocks` of them."""
        missing = " OR ".join(f"{_named(column)} IS NULL" for column in self._masked) or "false"
        aggregates = ["pg_catalog.count(*)", f"pg_catalog.count(*) FILTER (WHERE {missing})"]
        for column in self._columns:
            aggregates += _aggregates(column)
        end = f"least(b.lo + {blocks}, {hi})"
        ranges = f"pg_catalog.generate_series({lo}, {hi - 1}, {blocks}) AS b(lo)"
        first, last = (f"pg_catalog.format('(%s,0)', {block})::pg_catalog.tid" for block in ("b.lo", end))
        rows = f"FROM ONLY {table} AS t WHERE t.ctid >= {first} AND t.ctid < {last}"
        masks = self._masks()
        if self._nulls_expected or not masks:
            whole = f"LATERAL (SELECT {_listed(aggregates + masks)} {rows}) AS g"
            return f"SELECT b.lo, {end} AS hi, g.* FROM {ranges}, {whole}"
        # Masks take as much time as a column. So a second look at the range makes them, if it has any NULL at all.
        first_look = f"LATERAL (SELECT {_listed(aggregates)} {rows}) AS g"
        second_look = f"LATERAL (SELECT {_listed(masks)} {rows} AND g.a1 > 0) AS m"
        return f"SELECT b.lo, {end} AS hi, g.*, m.* FROM {ranges}, {first_look}, {second_look}"

    def arrays(self, batch: pa.RecordBatch) -> list[pa.Array] | None:
        """The columns of a batch of the result, whose ranges follow each other: as ADBC would deliver them if it sent
        the rows, but numbers in the type of the lake where that is quick. None if the ranges have no rows. Raises
        SourceError.

        Ranges are decoded together: with 200 columns, a range has no more than 1,000 rows, and a call for each range
        and column takes longer than its values do."""
        rows, with_nulls = (batch.column(place).to_numpy() for place in (2, 3))
        ends = np.cumsum(rows)
        if not ends.size or not ends[-1]:
            return None
        parts = iter([_PackedPart.of(column, rows, ends) for column in batch.columns[4:]])
        values = [_decoder(column, parts) for column in self._columns]
        valid: dict[str, pa.Array] = {}
        has_null = np.zeros(ends[-1], np.bool_)
        for begin, part in zip(range(0, len(self._masked), _MASK_BITS), parts, strict=True):
            mask = part.mask(with_nulls)
            if mask.any():
                has_null |= mask != 0
                for bit, column in enumerate(self._masked[begin : begin + _MASK_BITS]):
                    valid[column.name] = pa.array((mask >> bit) & 1 == 0)
        counted = np.diff(_from_zero(np.cumsum(has_null))[_from_zero(ends)])
        _require(bool((counted == with_nulls).all()), "with NULLs")
        return [decode(valid) for decode in values]

    def _masks(self) -> list[str]:
        """The aggregates that make the masks of NULLs."""
        masks = []
        for begin in range(0, len(self._masked), _MASK_BITS):
            bits = " + ".join(
                f"CASE WHEN {_named(column)} IS NULL THEN {1 << bit} ELSE 0 END"
                for bit, column in enumerate(self._masked[begin : begin + _MASK_BITS])
            )
            masks.append(_together(f"pg_catalog.int4send({bits})", "bytea"))
        return masks


def _listed(aggregates: Sequence[str]) -> str:
    return ", ".join(f"{aggregate} AS a{place}" for place, aggregate in enumerate(aggregates))


def _aggregates(column: Column) -> list[str]:
    kind, name = (column.type_oid, column.type.kind), _named(column)
    if kind in _FIXED:
        fixed = _FIXED[kind]
        value = fixed.send.format(f"coalesce({name}, {fixed.zero})")
        return [_together(f"pg_catalog.{value}", "bytea")]
    if kind in _NUMBERS:
        printed = f"pg_catalog.textin(pg_catalog.numeric_out({name}))"
        # Ranges follow each other, so the last number of each needs a line feed as well.
        return [f"pg_catalog.textcat(pg_catalog.string_agg(coalesce({printed}, ''), E'\\n'), E'\\n')"]
    length = f"pg_catalog.int4send(coalesce(pg_catalog.octet_length({name}), -1))"
    return [_together(length, "bytea"), _together(name, "bytea" if column.type.kind is Kind.BINARY else "text")]


def _named(column: Column) -> str:
    return f"t.{identifier(column.name)}"


def _together(value: str, kind: str) -> str:
    return f"pg_catalog.string_agg({value}, ''::pg_catalog.{kind})"


@dataclass(frozen=True)
class _PackedPart:
    """What a column of the result holds: a value for each range, one after the other."""

    content: _Bytes
    sizes: _Sizes
    """Bytes of each range."""
    rows: _Sizes
    """Rows of each range."""
    ends: _Sizes
    """Rows up to the end of each range."""

    @classmethod
    def of(cls, column: pa.Array, rows: _Sizes, ends: _Sizes) -> Self:
        """`column`: binary or string. NULLs have no bytes."""
        _, offsets, content = column.buffers()
        bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
        part_bytes = np.frombuffer(b"" if content is None else content, np.uint8)[bounds[0] : bounds[-1]]
        return cls(part_bytes, (bounds[1:] - bounds[:-1]).astype(np.int64), rows, ends)

    def numbers(self, dtype: str) -> npt.NDArray[Any]:
        """Values of a fixed size."""
        _require(bool((self.sizes == self.rows * np.dtype(dtype).itemsize).all()), "of fixed size")
        return self.content.view(dtype)

    def mask(self, with_nulls: _Sizes) -> npt.NDArray[Any]:
        """A mask of NULLs, which ranges without any may lack. `with_nulls`: rows of each range that have one."""
        has_mask = self.sizes > 0
        complete = (self.sizes == self.rows * 4) | ~(has_mask | (with_nulls > 0))
        _require(bool(complete.all()), "of fixed size")
        mask = np.zeros(self.ends[-1], np.int32)
        mask[np.repeat(has_mask, self.rows)] = self.content.view(">i4")
        return mask

    def require_bounds(self, offsets: npt.NDArray[Any], what: str) -> None:
        """Raises SourceError unless values with these offsets fill each range."""
        _require(bool((offsets[self.ends] == np.cumsum(self.sizes)).all()), what)


def _decoder(column: Column, parts: Iterator[_PackedPart]) -> Callable[[dict[str, pa.Array]], pa.Array]:
    """Takes the column's parts. The result gets the masks of columns with NULLs, which come after all columns."""
    kind = column.type_oid, column.type.kind
    if kind in _FIXED:
        numbers = next(parts).numbers(_FIXED[kind].dtype)
        return lambda valid: _fixed(numbers, column, valid.get(column.name))
    array = _lines(next(parts), column) if kind in _NUMBERS else _texts(next(parts), next(parts), column)
    return lambda _: array


def _fixed(numbers: npt.NDArray[Any], column: Column, valid: pa.Array | None) -> pa.Array:
    fixed, arrow = _FIXED[column.type_oid, column.type.kind], column.type.arrow
    validity = None if valid is None else valid.buffers()[1]
    if valid is not None:
        stand_ins = numbers[~valid.to_numpy(zero_copy_only=False)]
        _require(not stand_ins.view(np.uint8).any(), column.name)
    if column.type.kind is Kind.BOOLEAN:
        data = pa.array(numbers).buffers()[1]
    else:
        native = numbers if column.type.kind is Kind.UUID else numbers.astype(numbers.dtype.newbyteorder("="))
        if fixed.epoch:
            native = native + native.dtype.type(fixed.epoch)
        data = pa.py_buffer(native.view(np.uint8))
    return pa.Array.from_buffers(arrow, len(numbers), [validity, data])


def _texts(lengths: _PackedPart, texts: _PackedPart, column: Column) -> pa.Array:
    """Texts, or bytes, one after the other. A NULL has the length -1."""
    sizes = lengths.numbers(">i4").astype(np.int32)
    not_null = sizes >= 0
    complete = bool(not_null.all())
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes if complete else np.maximum(sizes, 0), out=offsets[1:])
    texts.require_bounds(offsets, column.name)
    validity = None if complete else pa.array(not_null).buffers()[1]
    content = pa.py_buffer(texts.content)
    return pa.Array.from_buffers(column.type.arrow, len(sizes), [validity, pa.py_buffer(offsets), content])


def _lines(part: _PackedPart, column: Column) -> pa.Array:
    """Numbers with a line feed after each. A NULL is empty."""
    content = part.content
    lines = content == _LINE
    bounds = _from_zero(np.flatnonzero(lines) + 1)
    _require(len(bounds) == part.ends[-1] + 1, "of numbers")
    part.require_bounds(bounds, "of numbers")
    sizes = np.diff(bounds) - 1
    not_null = sizes > 0
    validity = None if not_null.all() else pa.array(not_null).buffers()[1]
    if (points := _points(content, bounds[1:][not_null] - 1, sizes[not_null], column.type)) is not None:
        digits = _strings(content[~(lines | points)], sizes - (not_null & (column.type.scale > 0)), validity)
        if (decimals := _decimals(digits, column.type)) is not None:
            return decimals
    return _strings(content[~lines], sizes, validity)


def _strings(content: _Bytes, sizes: _Sizes, validity: pa.Buffer | None) -> pa.Array:
    offsets = _from_zero(np.cumsum(sizes)).astype(np.int32)
    return pa.Array.from_buffers(pa.string(), len(sizes), [validity, pa.py_buffer(offsets), pa.py_buffer(content)])


def _points(content: _Bytes, ends: _Sizes, sizes: _Sizes, decimal: ColumnType) -> npt.NDArray[np.bool_] | None:
    """Where the decimal points are, if all numbers have `decimal.scale` digits behind them, as those of a numeric(p,s)
    have. None if not, and if the numbers may have more digits than an int64. `ends` and `sizes`: of the numbers."""
    points = content == _POINT
    if decimal.precision > _INT64_DIGITS:
        return None
    if not decimal.scale:
        return None if points.any() else points
    right = len(ends) > 0 and sizes.min() > decimal.scale and points[ends - decimal.scale - 1].all()
    return points if right and np.count_nonzero(points) == len(ends) else None


def _decimals(digits: pa.Array, decimal: ColumnType) -> pa.Array | None:
    """Numbers without their points, in half the time that Arrow takes for decimals. None if the type cannot hold them,
    or if there are others than numbers, such as NaN."""
    try:
        integers = digits.cast(pa.int64())
    except pa.ArrowInvalid:
        return None
    extremes = pc.min_max(integers)
    lowest, highest = extremes["min"].as_py() or 0, extremes["max"].as_py() or 0
    if max(-lowest, highest) >= 10**decimal.precision:
        return None
    return integers.cast(pa.decimal128(_INT64_DIGITS + 1)).view(decimal.arrow)


def _from_zero(sums: npt.NDArray[Any]) -> _Sizes:
    """Cumulative sums with a zero before them."""
    return np.concatenate((np.zeros(1, np.int64), sums))


def _require(right: bool, what: str) -> None:
    if not right:
        raise SourceError(
            f"PostgreSQL returned another number of values of a column ({what}) than of rows",
            REPORTED,
        )
