"""How wide the partitions are that are made ahead: a fixed span, or calendar months. No I/O.

A calendar's bounds are those of a time zone: midnight of the first is another instant in Berlin than in UTC, and in
March another number of hours after the one before. So months carry the name of a time zone.
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
"""Every month has it."""
_COMPARED = 4
"""Partitions, the newest, that have to agree on a calendar: February alone looks like four weeks."""


@dataclass(frozen=True)
class Width:
    """Of partitions: `span` tier values, or so many `months` of the calendar of `zone`."""

    span: int = 0
    months: int = 0
    zone: str = "UTC"

    def after(self, kind: TierKind, bound: int) -> int | None:
        """The upper bound of the partition that begins at `bound`; None beyond the years 1 to 9999."""
        if not self.months:
            return bound + self.span
        return _shifted(kind, bound, self.months, _zone_of(self.zone))

    def floor(self, kind: TierKind, value: int) -> int | None:
        """The lower bound of the partition with this value, where there is none yet to go by."""
        if not self.months:
            return value // self.span * self.span
        moment = moment_of(kind, value)
        if moment is None:
            return None
        local = moment.astimezone(_zone_of(self.zone))
        month = (local.month - 1) // self.months * self.months + 1 if self.months < 12 else 1
        return _value_of(kind, local.replace(month=month, day=1, hour=0, minute=0, second=0, microsecond=0))

    def text(self, kind: TierKind) -> str:
        """As `parse_width` reads it."""
        if not self.months:
            return span_text(kind, self.span)
        number, unit = (self.months // 12, "year") if self.months % 12 == 0 else (self.months, "month")
        return f"{number} {unit}{'s' if number > 1 else ''}"

    def to_json(self) -> Any:
        """For the catalog."""
        return {"months": self.months, "zone": self.zone} if self.months else self.span

    @classmethod
    def from_json(cls, stored: Any) -> Width | None:
        """None for none."""
        if stored is None:
            return None
        if isinstance(stored, dict):
            return cls(months=int(stored["months"]), zone=str(stored["zone"]))
        return cls(span=int(stored))


def parse_width(kind: TierKind, text: str, what: str, zone: str) -> Width:
    """A width as people write it: that of `parse_span`, or months and years. UsageError for text that is none."""
    words = re.fullmatch(r"(\d{1,5})\s*([a-z]+)", text.strip().lower())
    if kind is not TierKind.BIGINT and words is not None and words[2] in _MONTHS:
        width = Width(months=int(words[1]) * _MONTHS[words[2]], zone=zone)
    else:
        width = Width(span=parse_span(kind, text, what))
    if not (width.span or width.months):
        raise UsageError(f"{what} {text!r} makes no partition", "give the width of one, such as '1 day' or '1 month'")
    return width


def usual_width(kind: TierKind, bounds: Sequence[tuple[int, int]], zone: str) -> Width | None:
    """What the newest partitions have in common. `bounds`: of all with finite ones, in their order; `zone`: the one in
    which whoever made them is likely to have written them. None without any."""
    if not bounds:
        return None
    for name in (zone, "UTC") if kind is TierKind.TIMESTAMPTZ else ("UTC",):
        months = [_months_between(kind, lo, hi, _zone_of(name)) for lo, hi in bounds[-_COMPARED:]]
        if months[-1] and all(count == months[-1] for count in months):
            return Width(months=months[-1], zone=name)
    lo, hi = bounds[-1]
    return Width(span=hi - lo)


def _months_between(kind: TierKind, lo: int, hi: int, zone: tzinfo) -> int:
    """How many whole months of the calendar these bounds are apart; 0 if it is no such number."""
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
    """UTC for a zone that only the server knows."""
    try:
        return ZoneInfo(name) if name != "UTC" else UTC
    except (ZoneInfoNotFoundError, ValueError):
        return UTC
