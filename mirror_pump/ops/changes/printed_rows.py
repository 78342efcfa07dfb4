"""Prints values of a feed as PostgreSQL prints them, for JSON.

NULL, booleans and integers have an exact counterpart in JSON. Every other value is the text that PostgreSQL's output
function gives in a session with DateStyle ISO, TimeZone UTC, IntervalStyle postgres, bytea_output hex and
extra_float_digits 1. What the lake's type cannot hold is in the raw text column, as the server printed it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from decoders.columns import ColumnType, Kind
from decoders.printing import print_values
from mirror_pump.lake.format.raw_text_columns import is_raw_text, raw_text_id
from mirror_pump.lake.format.schema import LakeField

_AS_JSON = frozenset({Kind.BOOLEAN, Kind.INT, Kind.LONG})
_CLOCK_ZEROS = re.compile(r"(:\d\d)(?:(\.\d*[1-9])0*|\.0*)(?!\d)")
"""A fraction of seconds, without the zeros at its end."""
_QUOTED_IN_ARRAY = re.compile(r'[ \t\n\r\v\f"\\{},]')
_FLOAT_DIGITS, _DOUBLE_DIGITS = 6, 15
"""From this exponent on PostgreSQL prints floats with one (FLT_DIG, DBL_DIG)."""


def printed_rows(
    fields: Collection[LakeField], arrays: Mapping[int, pa.Array], vectors: Collection[str], trimmed: Collection[str]
) -> list[dict[str, Any]]:
    """The values of each row by the columns' names, without raw text columns.

    `arrays`: the columns by field ID. `vectors`: names of columns that are lists here, and no arrays in PostgreSQL.
    `trimmed`: names of columns of which decimals may stand for integers.
    """
    by_name: dict[str, list[Any]] = {}
    for field in fields:
        if is_raw_text(field):
            continue
        values = printed(
            arrays[field.field_id],
            field.type,
            is_array=field.name not in vectors,
            is_trimmed=field.name in trimmed,
        )
        raw = arrays.get(raw_text_id(field.field_id))
        if raw is not None and raw.null_count < len(raw):
            values = [value if text is None else text for value, text in zip(values, raw.to_pylist(), strict=True)]
        by_name[field.name] = values
    names = list(by_name)
    return [dict(zip(names, row, strict=True)) for row in zip(*by_name.values(), strict=True)]


def printed(
    values: pa.Array,
    type: ColumnType,  # noqa: A002 - as in decoders.printing
    *,
    is_array: bool = True,
    is_trimmed: bool = False,
) -> list[Any]:
    """The values as JSON has them: None, bool, int, or str."""
    return values.to_pylist() if type.kind in _AS_JSON else _texts(values, type, is_array=is_array, trimmed=is_trimmed)


def _texts(
    values: pa.Array,
    type: ColumnType,  # noqa: A002 - as above
    *,
    is_array: bool,
    trimmed: bool,
) -> list[str | None]:
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if type.element is not None:
        return _lists(values, type, is_array=is_array, trimmed=trimmed)
    if type.is_floating:
        return [None if value is None else _float(value, type.kind) for value in values.to_pylist()]
    if type.precision and not trimmed:
        # Not by Arrow, which prints small ones with an exponent.
        return [None if value is None else format(value, "f") for value in values.to_pylist()]
    finish = _FINISHES.get(type.kind)
    texts: list[str | None] = print_values(values, type, trimmed=trimmed).to_pylist()
    return texts if finish is None else [None if text is None else finish(text) for text in texts]


def _without_zeros(text: str) -> str:
    return _CLOCK_ZEROS.sub(r"\1\2", text)


def _uuid(text: str) -> str:
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


_FINISHES: dict[Kind, Callable[[str], str]] = {
    Kind.UUID: _uuid,
    Kind.TIME: _without_zeros,
    Kind.TIMESTAMP: _without_zeros,
    Kind.TIMESTAMPTZ: _without_zeros,
}


def _float(value: float, kind: Kind) -> str:
    """The shortest digits that are this value again, as float4out and float8out have them."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    number = np.float32(value) if kind is Kind.FLOAT else np.float64(value)
    mantissa, _, exponent_text = np.format_float_scientific(number, unique=True, trim="-").partition("e")
    exponent = int(exponent_text)
    if -4 <= exponent < (_FLOAT_DIGITS if kind is Kind.FLOAT else _DOUBLE_DIGITS):
        return np.format_float_positional(number, unique=True, trim="-")
    return f"{mantissa}e{'-' if exponent < 0 else '+'}{abs(exponent):02}"


def _lists(
    values: pa.ListArray,
    type: ColumnType,  # noqa: A002 - as above
    *,
    is_array: bool,
    trimmed: bool,
) -> list[str | None]:
    assert type.element is not None
    element = type.element
    inner = _texts(values.flatten(), element, is_array=True, trimmed=trimmed)
    elements = [_element(text) if is_array else str(text) for text in inner]
    opening, closing = "{}" if is_array else "[]"
    texts: list[str | None] = []
    start = 0
    for length in values.value_lengths().to_pylist():
        if length is None:
            texts.append(None)
            continue
        texts.append(opening + ",".join(elements[start : start + length]) + closing)
        start += length
    return texts


def _element(text: str | None) -> str:
    """An element of an array, as array_out prints it."""
    if text is None:
        return "NULL"
    if text and text.upper() != "NULL" and not _QUOTED_IN_ARRAY.search(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
