"""Names of warehouses, by which clients say what they attach, and the prefixes of paths that stand for it.

    mirror                  each load gives the newest state of its table
    mirror@latest           all tables at the frontier of the moment in which the client attaches; so does `mirror@now`
    mirror@0-1A2B           all tables at the newest published frontier up to that position; 0/1A2B is the same
    mirror@2026-11-20T16:00:00Z    all tables at the newest frontier that was published by then
    mirror@month-end        the tables of the moment that is kept under this name
    mirror.main...          the same five, with branch `main` of tables with heap retention in place of the rows that
                            have left PostgreSQL
    mirror@0-1A2B..latest   the changes after one frontier up to another, of each table that has a change feed. Both are
                            named as above

A prefix is a part of each path. It has no character that an engine encodes, nor a slash: `mirror`, `mirror.at=0-1A2B`,
`mirror.main.at=0-1A2B`, `mirror.moment=month-end.at=0-1A2B`, `mirror.changes.from=0-1A2B.to=0-2C3D`. That of a moment
has the frontier, too: a moment may be dropped, and another one kept under its name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from mirror_pump.errors import UsageError
from mirror_pump.model import Lsn, format_lsn, parse_lsn
from mirror_pump.ops.changes.points import ChangeInterval, ChangePoints, names_interval, parse_points
from mirror_pump.ops.reads.time_travel import PastPoint, parse_when
from mirror_pump.source.catalog.kept_moments import is_moment_name

_PREFIX = re.compile(
    r"(?P<view>mirror(?:\.main)?)(?:(?:\.moment=(?P<name>[A-Za-z0-9_-]+))?\.at=(?P<high>[0-9A-Fa-f]{1,8})-(?P<low>[0-9A-Fa-f]{1,8}))?"
)
_CHANGES_PREFIX = re.compile(
    r"mirror\.changes\.from=([0-9A-Fa-f]{1,8})-([0-9A-Fa-f]{1,8})\.to=([0-9A-Fa-f]{1,8})-([0-9A-Fa-f]{1,8})"
)
_POSITION = re.compile(r"([0-9A-Fa-f]{1,8})-([0-9A-Fa-f]{1,8})")


class View(StrEnum):
    """Which rows of tables with heap retention are shown. All others are the same in both."""

    PUBLISHED = "mirror"
    """Those below the cut-line: the published snapshot."""
    MAIN = "mirror.main"
    """Branch `main`: the rows as of the frontier, without corrections that are not folded yet."""


@dataclass(frozen=True)
class Attachment:
    """What one client reads: a view, of one moment or of none."""

    view: View
    frontier: Lsn | None
    """None: each load gives the newest state."""
    name: str | None = None
    """The name of a moment that is kept."""

    @property
    def warehouse(self) -> str:
        """The warehouse that stands for it."""
        if self.frontier is None:
            return str(self.view)
        return f"{self.view}@{self.name or _dashed(self.frontier)}"

    @property
    def prefix(self) -> str:
        """The part of paths that stands for it."""
        if self.frontier is None:
            return str(self.view)
        named = "" if self.name is None else f".moment={self.name}"
        return f"{self.view}{named}.at={_dashed(self.frontier)}"


@dataclass(frozen=True)
class ChangesAttachment:
    """What a client reads that attached the changes of an interval."""

    interval: ChangeInterval

    @property
    def prefix(self) -> str:
        """The part of paths that stands for it."""
        return f"mirror.changes.from={_dashed(self.interval.since)}.to={_dashed(self.interval.until)}"


def _dashed(position: Lsn) -> str:
    return format_lsn(position).replace("/", "-")


class Latest:
    """The frontier of the moment in which the client attaches."""


@dataclass(frozen=True)
class NamedMoment:
    """The moment that is kept under a name."""

    name: str


def parse_warehouse(text: str) -> tuple[View, PastPoint | Latest | NamedMoment | ChangePoints | None] | None:
    """What a client asks for; None if the text names no warehouse of the mirror. Raises UsageError for a name with a
    moment that cannot be understood."""
    name, at, moment = text.partition("@")
    if name not in tuple(View):
        return None
    if names_interval(moment):
        if name != View.PUBLISHED:
            raise UsageError(
                f"{name} has no changes of its own: they are the same with and without retention",
                f"attach {View.PUBLISHED}@{moment}",
            )
        return View(name), parse_points(moment)
    if not at:
        return View(name), None
    if moment in ("latest", "now"):
        return View(name), Latest()
    if is_moment_name(moment):
        return View(name), NamedMoment(moment)
    position = _POSITION.fullmatch(moment)
    try:
        return View(name), parse_when(f"{position[1]}/{position[2]}" if position else moment)
    except UsageError:
        raise UsageError(
            f"{moment!r} in the warehouse's name is no moment",
            f"attach {name}@latest, {name}@0-1A2B (a WAL position), {name}@2026-11-20T16:00:00Z, or {name}@ and"
            " the name of a moment that is kept",
        ) from None


def parse_prefix(text: str) -> Attachment | ChangesAttachment | None:
    """What a prefix stands for; None if it is none of the mirror's."""
    changes = _CHANGES_PREFIX.fullmatch(text)
    if changes is not None:
        since, until = (parse_lsn(f"{changes[place]}/{changes[place + 1]}") for place in (1, 3))
        return ChangesAttachment(ChangeInterval(since, until))
    match = _PREFIX.fullmatch(text)
    if match is None:
        return None
    frontier = None if match["high"] is None else parse_lsn(f"{match['high']}/{match['low']}")
    return Attachment(View(match["view"]), frontier, match["name"])
