"""Prints Arrow arrays as texts that Postgres reads as the same values: the inverse of decoders/text.py.

The texts are for sessions with the pinned settings (DateStyle ISO, TimeZone UTC, array_nulls on). They are not always
what Postgres would print: a float may be `1e+20` here and `1e20` there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from decoders.columns import ColumnType, Kind
from decoders.variant import document_texts

_DAY_US = 86_400_000_000
_FIRST_PLAIN_DAY, _LAST_PLAIN_DAY = -719_162, 2_932_896
"""0001-01-01 and 9999-12-31 in days since 1970-01-01: between them Arrow prints years as Postgres reads them."""


def print_values(
    values: pa.Array,
    type: ColumnType,  # noqa: A002 - as in text.py
    *,
    is_array: bool = True,
    trimmed: bool = False,
) -> pa.Array:
    """Prints `values`, in the type's Arrow type, as strings. NULL stays NULL.

    `is_array`: a list is an array of Postgres (`{1,2}`), and not a vector of pgvector (`[1,2]`). `trimmed`: decimals
    have no zeros at their end, since the column of Postgres may be an integer.
    """
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if type.element is not None:
        return _lists(values, type, is_array=is_array, trimmed=trimmed)
    if type.kind is Kind.DECIMAL and trimmed:
        return pa.array((None if value is None else _trimmed(value) for value in values.to_pylist()), pa.string())
    return _PRINTERS[type.kind](values)


def _trimmed(value: Decimal) -> str:
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _booleans(values: pa.Array) -> pa.Array:
    return pc.if_else(values, "t", "f")


def _cast(values: pa.Array) -> pa.Array:
    return values.cast(pa.string())


def _binary(values: pa.Array) -> pa.Array:
    return pa.array((None if value is None else "\\x" + value.hex() for value in values.to_pylist()), pa.string())


def _uuid(values: pa.Array) -> pa.Array:
    return pa.array((None if value is None else value.hex() for value in values.to_pylist()), pa.string())


def _dates(values: pa.Array) -> pa.Array:
    days = values.cast(pa.int32()).cast(pa.int64())
    return _times(values, days, _FIRST_PLAIN_DAY, _LAST_PLAIN_DAY, lambda day: _calendar(day)[0] + _calendar(day)[1])


def _timestamps(values: pa.Array, zone: str = "") -> pa.Array:
    def unusual(micros: int) -> str:
        day, rest = divmod(micros, _DAY_US)
        date, era = _calendar(day)
        seconds, fraction = divmod(rest, 1_000_000)
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:06}"
        return f"{date} {clock}{zone}{era}"

    micros = values.cast(pa.int64())
    first, last = _FIRST_PLAIN_DAY * _DAY_US, (_LAST_PLAIN_DAY + 1) * _DAY_US - 1
    plain = micros.cast(pa.timestamp("us"))
    return _times(plain, micros, first, last, unusual, zone)


def _times(
    values: pa.Array, numbers: pa.Array, first: int, last: int, unusual: Callable[[int], str], zone: str = ""
) -> pa.Array:
    """Prints times from `first` to `last` by Arrow, and others by `unusual`. `numbers` are the same values."""
    usual = pc.and_(pc.greater_equal(numbers, first), pc.less_equal(numbers, last))
    texts = pc.if_else(usual, values, pa.scalar(None, values.type)).cast(pa.string())
    if zone:
        texts = pc.binary_join_element_wise(texts, zone, "")
    odd = pc.invert(pc.fill_null(usual, fill_value=True))
    if not pc.any(odd).as_py():
        return texts
    return pc.replace_with_mask(texts, odd, pa.array([unusual(value) for value in numbers.filter(odd).to_pylist()]))


def _calendar(day: int) -> tuple[str, str]:
    """The date, in days since 1970-01-01, in the proleptic Gregorian calendar, and ` BC` for years before 1.

    Counts from 0000-03-01, so that the leap day is the last day of a year (Hinnant, "chrono-Compatible Low-Level Date
    Algorithms", civil_from_days).
    """
    era, of_era = divmod(day + 719_468, 146_097)
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    shifted = (5 * of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    year += 400 * era + (month <= 2)
    date = f"{month:02}-{of_year - (153 * shifted + 2) // 5 + 1:02}"
    return (f"{year:04}-{date}", "") if year > 0 else (f"{1 - year:04}-{date}", " BC")


def _lists(
    values: pa.ListArray,
    type: ColumnType,  # noqa: A002 - as above
    *,
    is_array: bool,
    trimmed: bool,
) -> pa.Array:
    assert type.element is not None
    elements = print_values(values.flatten(), type.element, trimmed=trimmed).to_pylist()
    if is_array:
        quote = type.element.facts.quoted_in_array
        elements = [_element(text, quote=quote) for text in elements]
    opening, closing = "{}" if is_array else "[]"
    ends = np.cumsum(pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)).tolist()

    def texts() -> Iterator[str | None]:
        start = 0
        for end, valid in zip(ends, pc.is_valid(values).to_pylist(), strict=True):
            yield opening + ",".join(elements[start:end]) + closing if valid else None
            start = end

    return pa.array(texts(), pa.string())


def _element(text: str | None, *, quote: bool) -> str:
    if text is None:
        return "NULL"
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"' if quote else text


_PRINTERS: dict[Kind, Callable[[pa.Array], pa.Array]] = {
    Kind.BOOLEAN: _booleans,
    Kind.INT: _cast,
    Kind.LONG: _cast,
    Kind.FLOAT: _cast,
    Kind.DOUBLE: _cast,
    Kind.DECIMAL: _cast,
    Kind.STRING: lambda values: values,
    Kind.BINARY: _binary,
    Kind.UUID: _uuid,
    Kind.DATE: _dates,
    Kind.TIME: _cast,
    Kind.TIMESTAMP: _timestamps,
    Kind.TIMESTAMPTZ: lambda values: _timestamps(values, "+00"),
    Kind.VARIANT: document_texts,
}
