"""The width of partitions that are created ahead: a fixed span, or calendar months. No I/O.

The bounds of calendar months depend on a time zone: a month begins at another instant in Berlin than in UTC, and March
has another number of hours. So a width in months includes the name of a time zone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from mirror_pump.errors import UsageError
from mirror_pump.model import TierKind
from mirror_pump.source.relations.tier_keys import moment_of, now_value, parse_span, span_text

_MONTHS = {"mon": 1, "mons": 1, "month": 1, "months": 1, "y": 12, "year": 12, "years": 12}
_LAST_COMMON_DAY = 28
"""The last day that every month has."""
_COMPARED = 4
"""The number of newest partitions that must agree on a calendar width. February alone looks like four weeks."""


@dataclass(frozen=True)
class Width:
    """The width of a partition: `span` tier values, or `months` calendar months in `zone`."""

    span: int = 0
    months: int = 0
    zone: str = "UTC"

    def after(self, kind: TierKind, bound: int) -> int | None:
        """The upper bound of the partition that begins at `bound`. None outside of the years 1 to 9999."""
        if not self.months:
            return bound + self.span
        return _shifted(kind, bound, self.months, _zone_of(self.zone))

    def floor(self, kind: TierKind, value: int) -> int | None:
        """The lower bound of the partition for this value, if no partition exists yet."""
        if not self.months:
            return value // self.span * self.span
        moment = moment_of(kind, value)
        if moment is None:
            return None
        local = moment.astimezone(_zone_of(self.zone))
        month = (local.month - 1) // self.months * self.months + 1 if self.months < 12 else 1
        return _value_of(kind, local.replace(month=month, day=1, hour=0, minute=0, second=0, microsecond=0))

    def text(self, kind: TierKind) -> str:
        """The width in a form that `parse_width` accepts."""
        if not self.months:
            return span_text(kind, self.span)
        number, unit = (self.months // 12, "year") if self.months % 12 == 0 else (self.months, "month")
        return f"{number} {unit}{'s' if number > 1 else ''}"

    def to_json(self) -> Any:
        """The form stored in the catalog."""
        return {"months": self.months, "zone": self.zone} if self.months else self.span

    @classmethod
    def from_json(cls, stored: Any) -> Width | None:
        """The width from its stored form. None for None."""
        if stored is None:
            return None
        if isinstance(stored, dict):
            return cls(months=int(stored["months"]), zone=str(stored["zone"]))
        return cls(span=int(stored))


def parse_width(kind: TierKind, text: str, what: str, zone: str) -> Width:
    """A width from a user's text: a span as in `parse_span`, or months and years. Raises UsageError for an invalid
    text."""
    words = re.fullmatch(r"([0-9]{1,5})\s*([a-z]+)", text.strip().lower())
    if kind is not TierKind.BIGINT and words is not None and words[2] in _MONTHS:
        width = Width(months=int(words[1]) * _MONTHS[words[2]], zone=zone)
    else:
        width = Width(span=parse_span(kind, text, what))
    if not (width.span or width.months):
        raise UsageError(f"{what} {text!r} is not a partition's width", "give a width such as '1 day' or '1 month'")
    return width


def usual_width(kind: TierKind, bounds: Sequence[tuple[int, int]], zone: str) -> Width | None:
    """The width that the newest partitions have in common; None if there are none. `bounds`: those of all partitions
    with finite bounds, in order. `zone`: the time zone in which the bounds were probably written."""
    if not bounds:
        return None
    for name in (zone, "UTC") if kind is TierKind.TIMESTAMPTZ else ("UTC",):
        months = [_months_between(kind, lo, hi, _zone_of(name)) for lo, hi in bounds[-_COMPARED:]]
        if months[-1] and all(count == months[-1] for count in months):
            return Width(months=months[-1], zone=name)
    lo, hi = bounds[-1]
    return Width(span=hi - lo)


def _months_between(kind: TierKind, lo: int, hi: int, zone: tzinfo) -> int:
    """The number of whole calendar months between these bounds; 0 if there is none."""
    first, last = moment_of(kind, lo), moment_of(kind, hi)
    if first is None or last is None:
        return 0
    first, last = first.astimezone(zone), last.astimezone(zone)
    months = (last.year - first.year) * 12 + last.month - first.month
    return months if months > 0 and _shifted(kind, lo, months, zone) == hi else 0


def _shifted(kind: TierKind, bound: int, months: int, zone: tzinfo) -> int | None:
    moment = moment_of(kind, bound)
    if moment is None:
        return None
    local = moment.astimezone(zone)
    year, month = divmod(local.year * 12 + local.month - 1 + months, 12)
    if year > 9999 or local.day > _LAST_COMMON_DAY:
        return None
    return _value_of(kind, local.replace(year=year, month=month + 1))


def _value_of(kind: TierKind, local: datetime) -> int | None:
    try:
        return now_value(kind, local.astimezone(UTC))
    except OverflowError:
        return None


def _zone_of(name: str) -> tzinfo:
    """The time zone. UTC for one that only the server knows."""
    try:
        return ZoneInfo(name) if name != "UTC" else UTC
    except (ZoneInfoNotFoundError, ValueError):
        return UTC
