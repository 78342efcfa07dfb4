"""Texts of typed values, from which PostgreSQL reads the same values again."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from mirror_pump.ops.row_files.json_texts import array_text, document

_FIRST, _END = -62_135_596_800_000_000, 253_402_300_800_000_000
"""The years 1 to 9999, in microseconds since 1970: what Arrow prints as PostgreSQL reads it."""
_DAY = 86_400_000_000


def texts_of(values: pa.Array) -> pa.Array:
    """The values as strings. NULL stays NULL."""
    kind = values.type
    if isinstance(values, pa.ExtensionArray):
        return texts_of(values.storage)
    if pa.types.is_dictionary(kind):
        return texts_of(values.dictionary_decode())
    if pa.types.is_string(kind):
        return values
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or kind == pa.binary_view():
        return _hex(values, "\\x")
    if pa.types.is_fixed_size_binary(kind):
        return _hex(values, "" if kind.byte_width == 16 else "\\x")
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return _times(values)
    if pa.types.is_nested(kind):
        return _nested(values)
    return values.cast(pa.string())


def _hex(values: pa.Array, prefix: str) -> pa.Array:
    return pa.array([None if value is None else prefix + value.hex() for value in values.to_pylist()], pa.string())


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


def _nested(values: pa.Array) -> pa.Array:
    """Lists as array literals, structs and maps as JSON."""
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        lists = []
        for index in range(len(values)):
            scalar = values[index]
            lists.append(array_text(_elements(scalar.values)) if scalar.is_valid else None)
        return pa.array(lists, pa.string())
    plain = [
        None if value is None else document(_jsonable(value)) for value in values.to_pylist(maps_as_pydicts="strict")
    ]
    return pa.array(plain, pa.string())


def _elements(values: pa.Array) -> list[object]:
    """The elements of one list, as texts or lists of these."""
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        return [_elements(values[index].values) if values[index].is_valid else None for index in range(len(values))]
    return list(texts_of(values).to_pylist())


def _jsonable(value: object) -> object:
    if isinstance(value, dict):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_jsonable(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
