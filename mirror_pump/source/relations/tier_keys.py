"""Tier values, which represent tier keys in the catalog, and the text form of lags and widths. No I/O.

The axis is that of the seam protocol: integers unchanged, times in microseconds and dates in days since 1970-01-01 UTC.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from mirror_pump.errors import UsageError
from mirror_pump.model import EVERYTHING_IN_HEAP, FIRST_YEAR, TierKind

END = 2**63 - 1
"""The upper end of the axis: infinity, and MAXVALUE in a partition's bound."""
NEVER = END
"""A lag that no partition ever reaches: retention is switched off. The catalog does not use NULL for it, because
connectors take NULL to mean a complete heap."""

DROP_GRACE = timedelta(hours=1)
"""How long partitions stay in the heap unless the user chose otherwise. This is the time to correct a wrong choice of
the lag."""

_SECOND = 1_000_000
_UNITS = {
    "s": 1, "sec": 1, "secs": 1, "second": 1, "seconds": 1,
    "m": 60, "min": 60, "mins": 60, "minute": 60, "minutes": 60,
    "h": 3600, "hour": 3600, "hours": 3600,
    "d": 86400, "day": 86400, "days": 86400,
    "w": 604800, "week": 604800, "weeks": 604800,
}  # fmt: skip
"""Seconds per unit. There are no months and years, because their length varies."""
_LONGEST = {
    "mon": 31 * 86400, "month": 31 * 86400, "months": 31 * 86400,
    "y": 366 * 86400, "yr": 366 * 86400, "year": 366 * 86400, "years": 366 * 86400,
}  # fmt: skip
"""Seconds of the longest month and year."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def first_cut(kind: TierKind, lowest: int) -> int:
    """The first cut-line of a table whose partitions hold no key below `lowest`. It is below every row of the heap, and
    has a literal if possible."""
    return FIRST_YEAR[kind] if lowest >= FIRST_YEAR[kind] else EVERYTHING_IN_HEAP


def parse_span(kind: TierKind, text: str, what: str, *, longest: bool = False) -> int:
    """A lag or width in tier values, 0 or more. Raises UsageError for an invalid text. `what` names the option.

    `longest`: months and years are allowed, and count as 31 and 366 days: the span is never too short.
    """
    units = _UNITS | _LONGEST if longest else _UNITS
    words = text.strip().lower()
    if kind is TierKind.BIGINT:
        if not re.fullmatch(r"[0-9]{1,18}", words):
            raise UsageError(f"{what} {text!r} is not a whole number", "the tier key is an integer: give its units")
        return int(words)
    parts = re.findall(r"([0-9]+)\s*([a-z]+)", words)
    if not parts or re.sub(r"[0-9]+\s*[a-z]+|[\s,]", "", words) or any(unit not in units for _, unit in parts):
        hint = "weeks, days, hours, minutes and seconds, such as '90 days' or '36h'"
        if not longest and re.search(r"[0-9]\s*(mon|y)", words):
            raise UsageError(f"{what} {text!r}: months and years have no fixed length", f"give {hint}")
        raise UsageError(f"{what} {text!r} is not a duration", f"the tier key is a {kind.value}: give {hint}")
    seconds = sum(int(number) * units[unit] for number, unit in parts)
    if kind is TierKind.DATE:
        if seconds % 86400:
            raise UsageError(f"{what} {text!r} is not a number of whole days", "the tier key is a date")
        return _within_range(seconds // 86400, what, text)
    return _within_range(seconds * _SECOND, what, text)


def parse_grace(text: str, what: str) -> timedelta:
    """How long a partition that could be dropped stays. Raises UsageError for a text that is not a duration."""
    if text.strip() == "0":
        return timedelta(0)
    return timedelta(microseconds=parse_span(TierKind.TIMESTAMP, text, what))


def parse_lake_retention(kind: TierKind, text: str, what: str) -> int:
    """How far behind the cut-line rows stay in the lake, in tier values, 1 or more. Raises UsageError for an invalid
    text."""
    span = parse_span(kind, text, what, longest=True)
    if not span:
        raise UsageError(f"{what} {text!r}: rows would expire as soon as they are in the lake", "give a distance")
    return span


def _within_range(value: int, what: str, text: str) -> int:
    if value >= 2**62:
        raise UsageError(f"{what} {text!r} is out of range")
    return value


def span_text(kind: TierKind, span: int) -> str:
    """The text of a span: the inverse of `parse_span`."""
    if kind is TierKind.BIGINT:
        return str(span)
    left = timedelta(days=span) if kind is TierKind.DATE else timedelta(microseconds=span)
    days, seconds = left.days, left.seconds
    parts = [
        f"{number} {unit}{'s' if number > 1 else ''}"
        for number, unit in (
            (days, "day"),
            (seconds // 3600, "hour"),
            (seconds // 60 % 60, "minute"),
            (seconds % 60, "second"),
        )
        if number
    ]
    return " ".join(parts) or "0 seconds"


def duration_text(duration: timedelta) -> str:
    """A duration as `parse_span` reads it: `90 days`, `1 hour 30 minutes`."""
    return span_text(TierKind.TIMESTAMP, duration // timedelta(microseconds=1))


def literal(kind: TierKind, value: int) -> str | None:
    """The SQL literal of a tier value. None if it is outside of the years 1 to 9999, or an end of the axis."""
    if kind is TierKind.BIGINT:
        return f"{value}::bigint" if value >= 0 else f"'{value}'::bigint"
    moment = moment_of(kind, value)
    if moment is None:
        return None
    if kind is TierKind.DATE:
        return f"date '{moment.date().isoformat()}'"
    zone = "+00" if kind is TierKind.TIMESTAMPTZ else ""
    return f"{kind.value} '{moment.replace(tzinfo=None).isoformat(sep=' ')}{zone}'"


def shown(kind: TierKind, value: int) -> str:
    """A tier value for display."""
    if value in (EVERYTHING_IN_HEAP, END):
        return "-infinity" if value < 0 else "infinity"
    moment = moment_of(kind, value)
    if moment is None:
        return str(value)
    if kind is TierKind.DATE:
        return moment.date().isoformat()
    return moment.replace(tzinfo=None).isoformat(sep=" ") + ("+00" if kind is TierKind.TIMESTAMPTZ else "")


def name_token(kind: TierKind, value: int) -> str:
    """A tier value as part of a partition's name: `20260131`, `20260131_1200`, `n5`."""
    moment = moment_of(kind, value)
    if moment is None:
        return str(value).replace("-", "n")
    if kind is TierKind.DATE or (moment.hour, moment.minute, moment.second, moment.microsecond) == (0, 0, 0, 0):
        return moment.strftime("%Y%m%d")
    return moment.strftime("%Y%m%d_%H%M" if not moment.second and not moment.microsecond else "%Y%m%d_%H%M%S%f")


def now_value(kind: TierKind, moment: datetime) -> int | None:
    """The present as a tier value. None if the tier key is not a time."""
    if kind is TierKind.BIGINT:
        return None
    passed = moment - _EPOCH
    return passed.days if kind is TierKind.DATE else passed // timedelta(microseconds=1)


def moment_of(kind: TierKind, value: int) -> datetime | None:
    """A tier value as a time in UTC. None if it is not a time, or outside of the years 1 to 9999."""
    if kind is TierKind.BIGINT:
        return None
    try:
        return _EPOCH + (timedelta(days=value) if kind is TierKind.DATE else timedelta(microseconds=value))
    except OverflowError:
        return None
