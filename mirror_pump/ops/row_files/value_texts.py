"""Texts of typed values, from which PostgreSQL reads the same values again."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from decoders.variant import VARIANT_ARROW, document_texts
from mirror_pump.ops.row_files.json_texts import array_text, document, parse_json
from mirror_pump.source.relations.target_columns import TargetColumn

_FIRST, _END = -62_135_596_800_000_000, 253_402_300_800_000_000
"""The years 1 to 9999, in microseconds since 1970: what Arrow prints as PostgreSQL reads it."""
_DAY = 86_400_000_000
_ARRAYS = ("array", "uuid array")


class Unfit(ValueError):
    """A typed value, or a type, that the column cannot hold without loss. The text says why."""


def column_texts(values: pa.Array, column: TargetColumn) -> pa.Array:
    """The texts of a column's values in the input, as strings. NULL stays NULL. Raises Unfit."""
    values = plain_values(values)
    kind = values.type
    if pa.types.is_string(kind):
        # A JSON array is an array of PostgreSQL; other texts are PostgreSQL's own.
        in_array = column.kind in _ARRAYS
        return _each(values, _array_of_json) if in_array and pc.any(pc.starts_with(values, "[")).as_py() else values
    try:
        if pa.types.is_nested(kind) and column.kind == "json":
            return _each(values, lambda value: document(_jsonable(value)))
        if _is_list(kind) and column.kind in _ARRAYS:
            return _lists(values, uuids=column.kind == "uuid array")
        binary = _is_binary(kind)
        if pa.types.is_nested(kind) or (binary and column.kind not in ("bytes", "uuid")):
            raise Unfit(f"{kind} does not fit into {column.type_sql}")
        return _hex(values, "" if column.kind == "uuid" else "\\x") if binary else texts_of(values)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Unfit(f"{kind} does not fit into {column.type_sql} without loss: {error}") from error


def plain_values(values: pa.Array) -> pa.Array:
    """The values without what only says how they are stored; texts of any layout as strings."""
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_large_string(values.type) or values.type == pa.string_view():
        return values.cast(pa.string())
    return values


def texts_of(values: pa.Array, *, uuids: bool = True) -> pa.Array:
    """The values as strings. NULL stays NULL. `uuids`: 16 bytes are a UUID, as in the lake. Raises pa.ArrowInvalid for
    times that are finer than microseconds, Unfit for structs with what JSON has no values for."""
    values = plain_values(values)
    kind = values.type
    if pa.types.is_string(kind):
        return values
    if _is_binary(kind):
        return _hex(values, "" if uuids and kind == pa.binary(16) else "\\x")
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return _times(values)
    if kind == pa.time64("ns"):
        values = values.cast(pa.time64("us"))
    elif pa.types.is_duration(kind):
        return pc.binary_join_element_wise(
            values.cast(pa.duration("us")).cast(pa.int64()).cast(pa.string()), "microseconds", " "
        )
    elif pa.types.is_float16(kind):
        values = values.cast(pa.float32())
    elif _is_list(kind):
        return _lists(values, uuids=uuids)
    elif kind == VARIANT_ARROW:
        return document_texts(values)
    elif pa.types.is_nested(kind):
        return _each(values, lambda value: document(_jsonable(value)))
    return values.cast(pa.string())


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or kind == pa.binary_view()
    )


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _each(values: pa.Array, text: Callable[[Any], str]) -> pa.Array:
    plain = values.to_pylist(maps_as_pydicts="strict")
    return pa.array([None if value is None else text(value) for value in plain], pa.string())


def _hex(values: pa.Array, prefix: str) -> pa.Array:
    return _each(values, lambda value: prefix + value.hex())


def _times(values: pa.Array) -> pa.Array:
    """Dates and times, of which PostgreSQL knows the year 0 as 1 BC, and years of more than four digits."""
    is_date = pa.types.is_date(values.type)
    zoned = not is_date and values.type.tz is not None
    if is_date:
        micros = pc.multiply(values.cast(pa.date32()).view(pa.int32()).cast(pa.int64()), _DAY)
    else:
        micros = values.cast(pa.timestamp("us", values.type.tz)).view(pa.int64())
    usual = pc.and_(pc.greater_equal(micros, _FIRST), pc.less(micros, _END))
    if pc.all(usual).as_py() is not False:
        plain = values.cast(pa.date32()) if is_date else micros.view(pa.timestamp("us", "UTC" if zoned else None))
        return plain.cast(pa.string())
    return pa.array(
        [None if number is None else _moment(number, date=is_date, zoned=zoned) for number in micros.to_pylist()],
        pa.string(),
    )


def _moment(micros: int, *, date: bool, zoned: bool) -> str:
    """A moment of any year, in the proleptic Gregorian calendar."""
    days, rest = divmod(micros, _DAY)
    year, month, day = _civil(days)
    era = "" if year > 0 else " BC"
    text = f"{year if year > 0 else 1 - year:04d}-{month:02d}-{day:02d}"
    if date:
        return text + era
    seconds, fraction = divmod(rest, 1_000_000)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction:06d}"
    return f"{text} {clock}{'+00' if zoned else ''}{era}"


def _civil(days: int) -> tuple[int, int, int]:
    """Year, month and day of a number of days since 1970-01-01. Eras of 400 years begin in March, so that leap days
    are at the end of years."""
    era, day_of_era = divmod(days + 719_468, 146_097)
    year = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year + year // 4 - year // 100)
    shifted = (5 * day_of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    return year + era * 400 + (month <= 2), month, day_of_year - (153 * shifted + 2) // 5 + 1


def _lists(values: pa.Array, *, uuids: bool) -> pa.Array:
    """Lists as array literals."""
    scalars = (values[index] for index in range(len(values)))
    texts = [array_text(_elements(scalar.values, uuids=uuids)) if scalar.is_valid else None for scalar in scalars]
    return pa.array(texts, pa.string())


def _elements(values: pa.Array, *, uuids: bool) -> list[object]:
    """The elements of one list, as texts or lists of these."""
    if _is_list(values.type):
        scalars = (values[index] for index in range(len(values)))
        return [_elements(scalar.values, uuids=uuids) if scalar.is_valid else None for scalar in scalars]
    return list(texts_of(values, uuids=uuids).to_pylist())


def _array_of_json(text: str) -> str:
    """A JSON array as an array of PostgreSQL; another text as it is, such as `[0:1]={1,2}`, an array with bounds."""
    if not text.startswith("["):
        return text
    try:
        return array_text(parse_json(text.encode()))
    except ValueError:
        return text


def _jsonable(value: object) -> object:
    if isinstance(value, dict):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_jsonable(item) for item in value]
    if isinstance(value, bytes | Decimal):
        raise Unfit(f"a value of type {type(value).__name__} within a JSON document cannot be written")
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
