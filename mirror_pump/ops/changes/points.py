"""The two ends of an interval of changes: how they are named, and which positions they are.

An interval A..B has the changes of all transactions whose commit record begins at A or after it, and before B. A
frontier F has everything committed below it (the change iff its position is below F), so these are the changes after
frontier A up to and including frontier B, whole transactions only. That holds for any two positions up to the mirror's
frontier, published or not, so positions are taken as they are; a time stands for the newest frontier that was published
by then, and the name of a moment that is kept for its frontier.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mirror_pump.errors import UsageError
from mirror_pump.lake.format.feed_schema import LSN
from mirror_pump.model import Lsn, format_lsn
from mirror_pump.ops.reads.time_travel import PastPoint, parse_point, refuse_future, time_text

_POSITION = re.compile(r"([0-9A-Fa-f]{1,8})-([0-9A-Fa-f]{1,8})")
_BETWEEN = ".."
_LATEST = ("latest", "now")
EXAMPLES = "0/1A2B3C..latest, 0/1A2B3C..0/1A2B4D, or 2026-11-20..2026-11-21T12:00:00Z"


@dataclass(frozen=True)
class ChangePoints:
    """The ends of an interval as they are named."""

    since: PastPoint
    until: PastPoint | None
    """None: the frontier of the moment in which this is resolved."""


@dataclass(frozen=True)
class ChangeInterval:
    """The changes after frontier `since`, up to and including frontier `until`."""

    since: Lsn
    until: Lsn

    @property
    def condition(self) -> str:
        """The SQL condition that a row of a feed is inside."""
        return f"{LSN} >= {self.since} AND {LSN} < {self.until}"

    def __str__(self) -> str:
        """As commands take it."""
        return f"{format_lsn(self.since)}{_BETWEEN}{format_lsn(self.until)}"


@dataclass(frozen=True)
class PublishedFrontier:
    """A frontier, and when it was published."""

    frontier: Lsn
    moment_ms: int
    """Milliseconds since 1970 UTC."""


def names_interval(text: str) -> bool:
    """Whether a text looks like the two ends of an interval."""
    return _BETWEEN in text


def parse_points(text: str) -> ChangePoints:
    """What `A..B` names. Raises UsageError."""
    since, between, until = text.partition(_BETWEEN)
    if not (since and between and until):
        raise UsageError(f"{text!r} is no interval of changes", f"give two frontiers, such as {EXAMPLES}")
    return change_points(since, until)


def change_points(since: str, until: str) -> ChangePoints:
    """The two ends, each as it is named. Raises UsageError."""
    if since in _LATEST:
        raise UsageError(f"changes after {since} are none", f"begin with a frontier of the past, such as {EXAMPLES}")
    return ChangePoints(_parsed(since), None if until in _LATEST else _parsed(until))


def _parsed(text: str) -> PastPoint:
    position = _POSITION.fullmatch(text)
    try:
        return parse_point(f"{position[1]}/{position[2]}" if position else text)
    except UsageError:
        raise UsageError(
            f"{text!r} is neither a WAL position, a time nor the name of a moment", f"give it as in {EXAMPLES}"
        ) from None


def resolve(
    points: ChangePoints,
    frontier: Lsn,
    published: Callable[[], Sequence[PublishedFrontier]],
    moment_frontier: Callable[[str], Lsn | None],
    now_ms: int,
) -> ChangeInterval:
    """The positions that the ends stand for.

    `frontier`: the mirror's. `published`: asked for a time only, the frontiers whose times are still known.
    `moment_frontier`: that of the moment that is kept under a name, None without one. `now_ms`: milliseconds since 1970
    UTC. Raises UsageError for an end that is not reached yet or not known any more, and for ends in the wrong order.
    """

    def position(point: PastPoint) -> Lsn:
        refuse_future(point, frontier, now_ms)
        if point.frontier is not None:
            return point.frontier
        if point.name is not None:
            frontier_of_moment = moment_frontier(point.name)
            if frontier_of_moment is None:
                raise UsageError(
                    f"{point.name!r} is neither a WAL position nor a time, and no moment of that name is kept",
                    f"give it as in {EXAMPLES}; `mirror-pump moment list` shows the moments",
                )
            return min(frontier_of_moment, frontier)
        assert point.moment_ms is not None
        return _published_by(point.moment_ms, published())

    since = position(points.since)
    until = frontier if points.until is None else position(points.until)
    if since > until:
        raise UsageError(
            f"an interval of changes cannot begin at {format_lsn(since)}, after its end at {format_lsn(until)}",
            f"name the earlier frontier first, such as {EXAMPLES}",
        )
    return ChangeInterval(since, until)


def _published_by(moment_ms: int, published: Sequence[PublishedFrontier]) -> Lsn:
    by_then = [point.frontier for point in published if point.moment_ms <= moment_ms]
    if by_then:
        return max(by_then)
    if not published:
        raise UsageError("no change has been published yet, so there is no time to begin at", "name a WAL position")
    oldest = min(published, key=lambda point: point.frontier)
    raise UsageError(
        f"the history of the change feeds does not go back to {time_text(moment_ms)}: it begins at"
        f" {time_text(oldest.moment_ms)}",
        f"begin at a later time, or at a WAL position, such as {format_lsn(oldest.frontier)}",
    )
