"""Parses durations that users type: `90`, `90s`, `1.5 min`, `2h 30min`."""

from __future__ import annotations

import re

from mirror_pump.errors import UsageError

_UNITS = {
    "s": 1,
    "sec": 1,
    "second": 1,
    "m": 60,
    "min": 60,
    "minute": 60,
    "h": 3600,
    "hour": 3600,
    "d": 86400,
    "day": 86400,
}
"""Seconds per unit; names in the singular."""
_PART = r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)"


def seconds_of(text: str, option: str) -> float:
    """The duration in seconds, also the unit of a plain number. Raises UsageError, naming the option, if invalid."""
    words = text.strip().lower()
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", words):
        return float(words)
    parts = [(number, unit if unit in _UNITS else unit.removesuffix("s")) for number, unit in re.findall(_PART, words)]
    if not parts or re.sub(_PART + r"|\s", "", words) or any(unit not in _UNITS for _, unit in parts):
        raise UsageError(
            f"{option}: {text!r} is not a duration", "give seconds, or a duration such as 30s, 5min, 2h, 1day"
        )
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
