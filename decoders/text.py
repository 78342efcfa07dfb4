"""Parses Postgres's text output into typed Arrow arrays. Stream and copy share these parsers (docs/types.md).

Expects the pinned session settings: DateStyle ISO, TimeZone UTC, extra_float_digits 1, bytea_output hex. Each parser is
vectorised for usual values, and falls back to slower code if that fails.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from decoders.columns import ColumnType, Kind
from decoders.text_array import split_arrays
from decoders.text_time import parse_date, parse_time, parse_timestamp
from decoders.variant import encoded_documents

_SPECIAL_NUMERICS = pa.array(["NaN", "Infinity", "-Infinity"])
_ARROW_DIGITS = 38
"""Digits of a decimal that 128 bits can hold."""
_NUMERIC_PATTERN = r"^-?[0-9]+(\.[0-9]+)?$"
_UUID_LENGTH = 36
_UUID = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_DASHES = (8, 13, 18, 23)
_NO_OFFSETS = np.zeros(1, np.int32)
_HEX_PLACES = np.array([place for place in range(_UUID_LENGTH) if place not in _DASHES])


@dataclass(frozen=True)
class Parsed:
    """A parsed array."""

    values: pa.Array
    """Values in the column type's Arrow type, as many as in the input; NULL if the input is NULL or unrepresentable."""
    unrepresentable: pa.Array | None
    """bool, never NULL: True for a legal Postgres value that the type cannot hold (numeric NaN, infinite or very remote
    dates, 24:00:00, arrays with more dimensions, documents with numbers of many digits). None if there is no such
    value."""


def parse_text(values: pa.Array, type: ColumnType) -> Parsed:  # noqa: A002 - the word callers use
    """Parses `values` (string, string_view or large_string, as printed by Postgres) into `type`, and masks them if that
    has a mask.

    NULL stays NULL. Raises ValueError, with the value, for text that is not a legal value of the type.
    """
    if values.type != pa.string():
        values = values.cast(pa.string())
    parsed, flagged = _PARSERS[type.kind](values, type)
    if type.mask is not None:
        parsed = type.mask.masked(parsed)
    return Parsed(parsed, flagged)


@dataclass(frozen=True)
class ParsedColumn:
    """A parsed column, and the values that its type cannot hold."""

    values: pa.ChunkedArray
    """Like Parsed.values."""
    raw: pa.ChunkedArray | None
    """string: the texts of values that the type cannot hold, NULL elsewhere. None if there is no such value."""


def parse_column(texts: pa.ChunkedArray, type: ColumnType) -> ParsedColumn:  # noqa: A002 - the word callers use
    """`parse_text` for each chunk of `texts`. Raises the same ValueError."""
    parsed = [parse_text(chunk, type) for chunk in texts.chunks]
    values = pa.chunked_array([part.values for part in parsed], type.arrow)
    if not any(part.unrepresentable is not None and pc.any(part.unrepresentable).as_py() for part in parsed):
        return ParsedColumn(values, None)
    raw = [
        pa.nulls(len(chunk), pa.string())
        if part.unrepresentable is None
        else pc.if_else(part.unrepresentable, chunk.cast(pa.string()), pa.scalar(None, pa.string()))
        for chunk, part in zip(texts.chunks, parsed, strict=True)
    ]
    return ParsedColumn(values, pa.chunked_array(raw, pa.string()))


def parse_rows(
    rows: Sequence[Sequence[str | None]], types: Mapping[str, ColumnType]
) -> tuple[dict[str, pa.ChunkedArray], dict[str, pa.ChunkedArray]]:
    """`parse_column` for each column of rows of texts, whose columns are in the order of `types`.

    Returns the values by column name, and raw texts for columns with values that their types cannot hold. Raises the
    same ValueError.
    """
    values, raw = {}, {}
    for place, (name, kind) in enumerate(types.items()):
        parsed = parse_column(pa.chunked_array([pa.array([row[place] for row in rows], pa.string())]), kind)
        values[name] = parsed.values
        if parsed.raw is not None:
            raw[name] = parsed.raw
    return values, raw


_Result = tuple[pa.Array, pa.Array | None]


def _string(values: pa.Array, _: ColumnType) -> _Result:
    return values, None


def _cast(values: pa.Array, column: ColumnType) -> _Result:
    try:
        return values.cast(column.arrow), None
    except pa.ArrowInvalid as error:
        raise _illegal(_first_illegal(values, lambda part: part.cast(column.arrow)), column) from error


def _boolean(values: pa.Array, column: ColumnType) -> _Result:
    true = pc.equal(values, "t")
    legal = pc.or_(true, pc.equal(values, "f"))
    if pc.all(legal).as_py() is False:
        raise _illegal(values.filter(pc.invert(legal))[0].as_py(), column)
    return true, None


def _decimal(values: pa.Array, column: ColumnType) -> _Result:
    if (quick := _cast_decimals(values, column)) is not None:
        return quick, None
    special = pc.is_in(values, value_set=_SPECIAL_NUMERICS)
    plain = pc.if_else(special, pa.scalar(None, pa.string()), values)
    if (quick := _cast_decimals(plain, column)) is not None:
        return quick, special
    legal = pc.match_substring_regex(plain, _NUMERIC_PATTERN)
    if pc.all(legal).as_py() is False:
        raise _illegal(plain.filter(pc.invert(legal))[0].as_py(), column)
    # All are legal numbers, but some have too many digits: for the type or, due to trailing zeros, only for Arrow.
    numbers = [None if text is None else _exact_decimal(text, column) for text in plain.to_pylist()]
    decimals = pa.array(numbers, column.arrow)
    return decimals, pc.or_(special, pc.and_(pc.is_valid(plain), pc.is_null(decimals)))


def _cast_decimals(values: pa.Array, column: ColumnType) -> pa.Array | None:
    """Arrow's cast; None if it fails, or if there are too many digits to scale without overflow: from 38 on, the cast
    silently gives wrong numbers."""
    longest = pc.max(pc.binary_length(values)).as_py() or 0
    if longest + column.scale > _ARROW_DIGITS:
        whole = f"[0-9]{{1,{column.precision - column.scale}}}" if column.precision > column.scale else "0"
        fraction = rf"(\.[0-9]{{1,{column.scale}}})?" if column.scale else ""
        if pc.all(pc.match_substring_regex(values, f"^-?{whole}{fraction}$")).as_py() is False:
            return None
    try:
        return values.cast(column.arrow)
    except pa.ArrowInvalid:
        return None


def _exact_decimal(text: str, column: ColumnType) -> Decimal | None:
    """The number with the type's scale; None if that would change it, or if it has too many digits."""
    exact = Context(prec=column.precision, traps=[Inexact, InvalidOperation])
    try:
        return Decimal(text).quantize(Decimal((0, (1,), -column.scale)), context=exact)
    except (Inexact, InvalidOperation):
        return None


def _binary(values: pa.Array, column: ColumnType) -> _Result:
    """bytea in hex. Decodes the digits of all values, which are contiguous without the prefixes, in one call."""
    content = None
    if pc.all(pc.starts_with(values, "\\x")).as_py() is not False:
        # NULLs get a prefix too, so that the same two bytes can be cut off each value; they are restored below.
        filled = pc.fill_null(values, "\\x")
        _validity, offsets, data = filled.buffers()
        ends = np.frombuffer(offsets, np.int32, len(filled) + 1, 4 * filled.offset) if len(filled) else _NO_OFFSETS
        text = np.frombuffer(data, np.uint8, ends[-1] - ends[0], ends[0]) if len(filled) else np.empty(0, np.uint8)
        ends = ends - ends[0]
        is_digit = np.ones(len(text), bool)
        is_digit[ends[:-1]] = is_digit[ends[:-1] + 1] = False
        ends = ends - 2 * np.arange(len(ends), dtype=np.int32)
        content = None if (ends & 1).any() else _unhex(text[is_digit].tobytes())
    if content is None:
        raise _illegal(next(v for v in _not_null(values) if v[:2] != "\\x" or _unhex(v[2:]) is None), column)
    validity = pc.is_valid(values).buffers()[1] if values.null_count else None
    halves = pa.py_buffer((ends // 2).astype(np.int32))
    return pa.Array.from_buffers(pa.binary(), len(values), [validity, halves, pa.py_buffer(content)]), None


def _uuid(values: pa.Array, column: ColumnType) -> _Result:
    """Reads texts of 36 characters as a matrix and leaves out the columns of the dashes."""
    texts = pa.concat_arrays([values.drop_null()])
    count = len(texts)
    content: bytes | None = b""
    if count:
        _validity, offsets, data = texts.buffers()
        ends = np.frombuffer(offsets, np.int32, count + 1)
        if (np.diff(ends) == _UUID_LENGTH).all():
            text = np.frombuffer(data, np.uint8, _UUID_LENGTH * count, ends[0]).reshape(count, _UUID_LENGTH)
            dashed = (text[:, _DASHES] == ord("-")).all()
            content = _unhex(text[:, _HEX_PLACES].tobytes()) if dashed else None
        else:
            content = None
    if content is None:
        raise _illegal(next(v for v in _not_null(values) if _UUID.fullmatch(v) is None), column)
    packed = pa.Array.from_buffers(pa.binary(16), count, [None, pa.py_buffer(content)])
    if not values.null_count:
        return packed, None
    valid = pc.is_valid(values)
    places = pc.subtract(pc.cumulative_sum(valid.cast(pa.int64())), 1)
    return packed.take(pc.if_else(valid, places, pa.scalar(None, pa.int64()))), None


def _unhex(digits: bytes | memoryview | str) -> bytes | None:
    """The bytes of hexadecimal digits; None for other text."""
    try:
        return binascii.unhexlify(digits)
    except ValueError:
        return None


def _list(values: pa.Array, column: ColumnType) -> _Result:
    """Arrays: splits them in a loop over the values, and parses all elements at once with the element type's parser."""
    assert column.element is not None
    split = split_arrays(values)
    elements = parse_text(pa.array(split.elements, pa.string()), column.element)
    flagged = np.array(split.unrepresentable, bool)
    if elements.unrepresentable is not None:
        bad = np.concatenate([[0], np.cumsum(elements.unrepresentable.to_numpy(zero_copy_only=False))])
        ends = np.array(split.offsets)
        flagged |= (bad[ends[1:]] - bad[ends[:-1]]) > 0
        # Arrow's Parquet writer requires that NULL lists are empty, so elements of flagged lists are left out.
        lengths = np.where(flagged, 0, np.diff(ends))
        is_item = np.repeat(~flagged, np.diff(ends))
        items, offsets = elements.values.filter(pa.array(is_item)), np.concatenate([[0], np.cumsum(lengths)])
    else:
        items, offsets = elements.values, np.array(split.offsets)
    nulls = pc.or_(pc.is_null(values), pa.array(flagged))
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items, type=column.arrow, mask=nulls)
    return lists, pa.array(flagged) if flagged.any() else None


_PARSERS: dict[Kind, Callable[[pa.Array, ColumnType], _Result]] = {
    Kind.BOOLEAN: _boolean,
    Kind.INT: _cast,
    Kind.LONG: _cast,
    Kind.FLOAT: _cast,
    Kind.DOUBLE: _cast,
    Kind.DECIMAL: _decimal,
    Kind.STRING: _string,
    Kind.BINARY: _binary,
    Kind.UUID: _uuid,
    Kind.DATE: lambda values, _: parse_date(values),
    Kind.TIME: lambda values, _: parse_time(values),
    Kind.TIMESTAMP: lambda values, _: parse_timestamp(values, with_zone=False),
    Kind.TIMESTAMPTZ: lambda values, _: parse_timestamp(values, with_zone=True),
    Kind.LIST: _list,
    Kind.VARIANT: lambda values, _: encoded_documents(values),
}


def _not_null(values: pa.Array) -> list[str]:
    return [value for value in values.to_pylist() if value is not None]


def _illegal(value: str, column: ColumnType) -> ValueError:
    return ValueError(f"{value!r} is not a legal Postgres text for {column}")


def _first_illegal(values: pa.Array, parse: Callable[[pa.Array], Any]) -> str:
    """The first value for which `parse` fails, by bisection. Only used to report an error."""
    while len(values) > 1:
        half = len(values) // 2
        try:
            parse(values[:half])
            values = values[half:]
        except (pa.ArrowInvalid, ValueError):
            values = values[:half]
    text: str = values[0].as_py()
    return text
