"""Reads a heap by columns: PostgreSQL collects the values that a column has in some hundred blocks into one value.

A row of the result stands for a range of blocks. It has the number of their rows, and for each column what `string_agg`
makes of the bytes of its values; where columns of fixed size have NULLs, a mask of these. So neither the server nor the
client handles a message for each row: together they take two thirds of the CPU that rows one by one take
(docs/performance.md).

All aggregates of a query see the same rows in the same order. That is what makes rows of columns again, and it is
checked as far as it can be: each column has to have as many values as there are rows, and as many bytes as these say;
where a mask says NULL, the column has to have zeros, which stand for it. Masks may come from a scan of their own, which
sees the rows in the same order since both follow the heap's blocks (mirror_pump.source.heap.packed_read).

Only types of a fixed size, text, bytea and numeric come in this form, and only from heaps without out-of-line values,
since the values of a range have to fit into a bytea (1 GB) and into the server's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from decoders.columns import Kind
from mirror_pump.errors import SourceError
from mirror_pump.model import Column
from mirror_pump.quoting import identifier

RANGE_BYTES = 2 << 20
"""Bytes of heap in a range. Values that are compressed within their rows, at least four in a block, may take 255 times
as much when PostgreSQL puts them together: half of what a bytea can hold."""

_EPOCH_DAYS = 10_957
"""From 1970-01-01, where Arrow begins to count, to 2000-01-01, where PostgreSQL does (datatype/timestamp.h)."""
_EPOCH_MICROSECONDS = _EPOCH_DAYS * 86_400_000_000
_MASK_BITS = 31
"""Columns in one mask of NULLs, an int4."""
_MOST_COLUMNS = 500
"""A column takes up to two of the 1,664 columns that a query of PostgreSQL can have, and a part of a mask."""
_LINE = 10
"""Separates the texts of numbers, which do not contain it."""

REPORTED = "nothing was copied or proven by it: report this, it is a bug"

_Bytes = npt.NDArray[np.uint8]


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

    def ranges(self, batch: pa.RecordBatch) -> Iterator[tuple[int, int, list[pa.Array] | None]]:
        """For each row of the result, the first block of its range, the first one behind it, and its columns as ADBC
        would deliver them: numbers as texts, all others in the types of the lake. None if it has no rows. Raises
        SourceError."""
        for row in range(batch.num_rows):
            lo, hi, rows, with_nulls = (batch.column(place)[row].as_py() for place in range(4))
            parts = iter([_bytes_of(column[row]) for column in batch.columns[4:]])
            yield lo, hi, self._arrays(rows, with_nulls, parts) if rows else None

    def _arrays(self, rows: int, with_nulls: int, parts: Iterator[_Bytes]) -> list[pa.Array]:
        """`with_nulls`: rows that have a NULL in a column with a mask."""
        values = [_decoder(column, rows, parts) for column in self._columns]
        valid: dict[str, pa.Array] = {}
        found = np.zeros(rows, np.bool_)
        for begin, content in zip(range(0, len(self._masked), _MASK_BITS), parts, strict=True):
            if not with_nulls and not len(content):
                continue
            mask = _numbers(content, ">i4", rows)
            if mask.any():
                found |= mask != 0
                for bit, column in enumerate(self._masked[begin : begin + _MASK_BITS]):
                    valid[column.name] = pa.array((mask >> bit) & 1 == 0)
        _require(np.count_nonzero(found) == with_nulls, "with NULLs")
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
        return [f"pg_catalog.string_agg(coalesce({printed}, ''), E'\\n')"]
    length = f"pg_catalog.int4send(coalesce(pg_catalog.octet_length({name}), -1))"
    return [_together(length, "bytea"), _together(name, "bytea" if column.type.kind is Kind.BINARY else "text")]


def _named(column: Column) -> str:
    return f"t.{identifier(column.name)}"


def _together(value: str, kind: str) -> str:
    return f"pg_catalog.string_agg({value}, ''::pg_catalog.{kind})"


def _decoder(column: Column, rows: int, parts: Iterator[_Bytes]) -> Callable[[dict[str, pa.Array]], pa.Array]:
    """Takes the column's parts. The result gets the masks of columns with NULLs, which come after all columns."""
    kind = column.type_oid, column.type.kind
    if kind in _FIXED:
        found = _numbers(next(parts), _FIXED[kind].dtype, rows)
        return lambda valid: _fixed(found, column, valid.get(column.name))
    array = _lines(next(parts), rows) if kind in _NUMBERS else _texts(next(parts), next(parts), rows, column)
    return lambda _: array


def _fixed(found: npt.NDArray[Any], column: Column, valid: pa.Array | None) -> pa.Array:
    fixed, arrow = _FIXED[column.type_oid, column.type.kind], column.type.arrow
    validity = None if valid is None else valid.buffers()[1]
    if valid is not None:
        stand_ins = found[~valid.to_numpy(zero_copy_only=False)]
        _require(not stand_ins.view(np.uint8).any(), column.name)
    if column.type.kind is Kind.BOOLEAN:
        data = pa.array(found).buffers()[1]
    else:
        native = found if column.type.kind is Kind.UUID else found.astype(found.dtype.newbyteorder("="))
        if fixed.epoch:
            native = native + native.dtype.type(fixed.epoch)
        data = pa.py_buffer(native.view(np.uint8))
    return pa.Array.from_buffers(arrow, len(found), [validity, data])


def _texts(lengths: _Bytes, content: _Bytes, rows: int, column: Column) -> pa.Array:
    """Texts, or bytes, one after the other. A NULL has the length -1."""
    sizes = _numbers(lengths, ">i4", rows).astype(np.int32)
    present = sizes >= 0
    complete = bool(present.all())
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(sizes if complete else np.maximum(sizes, 0), out=offsets[1:])
    _require(int(offsets[-1]) == len(content), column.name)
    validity = None if complete else pa.array(present).buffers()[1]
    return pa.Array.from_buffers(column.type.arrow, rows, [validity, pa.py_buffer(offsets), pa.py_buffer(content)])


def _lines(content: _Bytes, rows: int) -> pa.Array:
    """Texts with a line feed between each two. A NULL is empty."""
    ends = np.append(np.flatnonzero(content == _LINE), len(content))
    _require(len(ends) == rows, "of numbers")
    offsets = np.zeros(rows + 1, np.int32)
    offsets[1:] = ends - np.arange(rows)
    present = np.diff(offsets) > 0
    validity = None if present.all() else pa.array(present).buffers()[1]
    kept = content[content != _LINE]
    return pa.Array.from_buffers(pa.string(), rows, [validity, pa.py_buffer(offsets), pa.py_buffer(kept)])


def _numbers(content: _Bytes, dtype: str, rows: int) -> npt.NDArray[Any]:
    kind = np.dtype(dtype)
    _require(len(content) == rows * kind.itemsize, "of fixed size")
    return content.view(kind)


def _bytes_of(value: pa.Scalar) -> _Bytes:
    """The bytes of a binary or text value; none for NULL."""
    buffer = value.as_buffer()
    return np.frombuffer(buffer if buffer is not None else b"", np.uint8)


def _require(right: bool, what: str) -> None:
    if not right:
        raise SourceError(
            f"PostgreSQL returned another number of values of a column ({what}) than of rows",
            REPORTED,
        )
