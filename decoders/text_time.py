"""Parses dates and times as printed by Postgres with DateStyle ISO (PostgreSQL documentation, section 8.5; datetime.c).

Arrow's own parser handles years 1 to 9999. Infinities are masked out in one step. Years beyond, BC, and time zones with
seconds go through a loop that only processes these values.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

_NO_TEXT = pa.scalar(None, pa.string())
_INFINITIES = pa.array(["infinity", "-infinity"])
_MIDNIGHT_AFTER = pa.array(["24:00:00"])

_PLAIN_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_PLAIN_TIMESTAMP = r"^[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
_PLAIN = {False: _PLAIN_TIMESTAMP + "$", True: _PLAIN_TIMESTAMP + r"[+-][0-9]{2}(:[0-9]{2})?$"}

_DATE = re.compile(r"(\d{4,7})-(\d\d)-(\d\d)( BC)?", re.ASCII)
_TIMESTAMP = re.compile(
    r"(\d{4,7})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?"
    r"(?:([+-])(\d\d)(?::(\d\d))?(?::(\d\d))?)?( BC)?",
    re.ASCII,
)

_DAYS_OF_MONTH = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_DAY_US = 86_400_000_000

INFINITE_MICROSECONDS = 2**63 - 1
"""294247-01-10 04:00:54.775807. A valid moment in Postgres, Arrow and Spark, but infinity in DuckDB: out of range."""

_Result = tuple[pa.Array, pa.Array | None]


def parse_date(values: pa.Array) -> _Result:
    """date32, and flags for values that it cannot hold (infinities). Raises ValueError, with the value, if illegal."""
    return _parse(values, pa.date32(), pa.int32(), _PLAIN_DATE, _INFINITIES, _unusual_date)


def parse_timestamp(values: pa.Array, *, with_zone: bool) -> _Result:
    """timestamp[us], in UTC if `with_zone`, and flags for values that int64 microseconds since 1970 cannot hold."""
    arrow = pa.timestamp("us", tz="UTC") if with_zone else pa.timestamp("us")

    def parse_unusual(text: str) -> int | None:
        return _unusual_timestamp(text, with_zone)

    return _parse(values, arrow, pa.int64(), _PLAIN[with_zone], _INFINITIES, parse_unusual)


def parse_time(values: pa.Array) -> _Result:
    """time64[us], and flags for 24:00:00, which is legal in Postgres but not in Arrow and Iceberg."""
    stamps = pc.binary_join_element_wise("1970-01-01 ", values, "")

    def parse_unusual(text: str) -> int:
        raise ValueError(f"{text.removeprefix('1970-01-01 ')!r} is not a legal Postgres time")

    midnight = pa.array(["1970-01-01 " + text.as_py() for text in _MIDNIGHT_AFTER])
    parsed, flagged = _parse(stamps, pa.timestamp("us"), pa.int64(), _PLAIN[False], midnight, parse_unusual)
    return parsed.cast(pa.int64()).cast(pa.time64("us")), flagged


def _parse(
    values: pa.Array,
    arrow: pa.DataType,
    number: pa.DataType,
    plain: str,
    unrepresentable: pa.Array,
    parse_unusual: Callable[[str], int | None],
) -> _Result:
    """Casts all values; else all except `unrepresentable`; else uses `parse_unusual` for texts unlike `plain`."""
    try:
        return values.cast(arrow), None
    except pa.ArrowInvalid:
        special = pc.is_in(values, value_set=unrepresentable)
    finite = pc.if_else(special, _NO_TEXT, values)
    try:
        return finite.cast(arrow), special
    except pa.ArrowInvalid:
        usual = pc.coalesce(pc.match_substring_regex(finite, plain), pa.scalar(value=True))
    texts = finite.filter(pc.invert(usual)).to_pylist()
    numbers = [parse_unusual(text) for text in texts]
    places = pc.indices_nonzero(pc.invert(usual)).to_pylist()
    try:
        parsed = pc.if_else(usual, finite, _NO_TEXT).cast(arrow).cast(number)
    except pa.ArrowInvalid as error:
        raise ValueError(f"not a legal Postgres text for {arrow}: {error}") from error
    parsed = pc.replace_with_mask(parsed, pc.invert(usual), pa.array(numbers, number)).cast(arrow)
    overflow = {place for place, value in zip(places, numbers, strict=True) if value is None}
    if overflow:
        special = pc.or_(special, pa.array([place in overflow for place in range(len(values))]))
    return parsed, special if pc.any(special).as_py() else None


def _unusual_date(text: str) -> int | None:
    match = _DATE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a legal Postgres date")
    days = _days(text, match[1], match[2], match[3], match[4])
    return days if -(2**31) <= days < 2**31 else None


def _unusual_timestamp(text: str, with_zone: bool) -> int | None:
    match = _TIMESTAMP.fullmatch(text)
    if match is None or (match[8] is not None) != with_zone:
        raise ValueError(f"{text!r} is not a legal Postgres timestamp {'with' if with_zone else 'without'} time zone")
    hour, minute, second = int(match[4]), int(match[5]), int(match[6])
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError(f"{text!r} is not a valid time of day")
    seconds = hour * 3600 + minute * 60 + second
    if with_zone:
        offset = int(match[9]) * 3600 + int(match[10] or 0) * 60 + int(match[11] or 0)
        seconds += offset if match[8] == "-" else -offset
    fraction = int((match[7] or "").ljust(6, "0"))
    micros = _days(text, match[1], match[2], match[3], match[12]) * _DAY_US + seconds * 1_000_000 + fraction
    return micros if -(2**63) <= micros < INFINITE_MICROSECONDS else None


def _days(text: str, year_text: str, month_text: str, day_text: str, era: str | None) -> int:
    """Days since 1970-01-01 in the proleptic Gregorian calendar, in which year 1 follows 1 BC."""
    year, month, day = int(year_text), int(month_text), int(day_text)
    if era:
        year = 1 - year
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if not 1 <= month <= 12 or not 1 <= day <= _DAYS_OF_MONTH[month - 1] + (leap and month == 2):
        raise ValueError(f"{text!r} is not a day of the calendar")
    before = year - 1
    days = before * 365 + before // 4 - before // 100 + before // 400
    days += sum(_DAYS_OF_MONTH[: month - 1]) + (leap and month > 2) + day - 1
    return days - 719_162  # days from 0001-01-01 to 1970-01-01
