"""What is known of a copy's speed from measurements, and sizes and durations as text for people."""

from __future__ import annotations

from collections.abc import Callable

COPY_SPEEDS = (50 * 10**6, 280 * 10**6)
"""Bytes of the heap a second: tables of numerics, and of texts of a kilobyte, on the slowest machine of
docs/performance.md."""


def copy_seconds(size_bytes: int) -> tuple[float, float]:
    """The shortest and the longest time that copying a heap of this size takes on two cores."""
    slow, fast = COPY_SPEEDS
    return size_bytes / fast, size_bytes / slow


def range_text(least: float, most: float, text: Callable[[float], str]) -> str:
    """Both ends of an estimate; one of them if they look the same."""
    ends = dict.fromkeys((text(least), text(most)))
    return " to ".join(ends)


def size_text(size: float) -> str:
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:,.1f} {name}"
    return f"{size:,.0f} B"


def seconds_text(seconds: float) -> str:
    if seconds < 1:
        return "less than 1 s"
    if seconds >= 7200:
        return f"{seconds / 3600:,.0f} h"
    return f"{seconds / 60:,.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
