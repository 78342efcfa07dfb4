"""Which snapshot shows each table at one frontier, and why a table is left out: said once for SQL, moments and REST.

`state_at` is pure. Its callers read what is published of all tables by one statement, and the histories of those whose
past they ask for; afterwards they pin what it chose, and look whether the histories still have that.

    published_states -> TablePast -> state_at -> StateChoice(frontier, chosen, left_out) -> pins

Invariant: what is chosen of a table are its rows at the frontier of the choice, for each table alike. At the present it
is the published snapshot. Of the past it is the snapshot that `mirror_pump.ops.reads.time_travel.snapshot_at` gives; a
history that has lost it leaves the table out, and no other snapshot takes its place.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from mirror_pump.errors import TableError
from mirror_pump.model import Lsn, SnapshotId, TableName, format_lsn
from mirror_pump.ops.reads.time_travel import (
    PastPoint,
    PastSnapshot,
    SnapshotHistory,
    not_after,
    refuse_future,
    snapshot_at,
    time_text,
)
from mirror_pump.source.catalog.published_state import PublishedState

_NAMED = 3
"""The number of readable frontiers that an error names."""


class Reason(Enum):
    """Why a table is left out: what is said of it, after its name. `LeftOutTable` fills the places of a text."""

    COPYING = "is still being copied into the lake: wait until `mirror-pump status` shows it live"
    NOT_FOLLOWED = "{state}"
    NOT_IN_LAKE = "has no table in the lake any more"
    DAMAGED = "cannot be read, since the metadata of {table} is lost or damaged; see `mirror-pump status`"
    BEHIND = "{state}: its lake ends at frontier {end}, so it cannot be read at {frontier}"
    TIERED = "is a tiered table, which has no frontier: it can only be read as it is now"
    NOT_LIVE_YET = "has been live since frontier {since} ({time}): before that it was being copied"
    BEFORE_HISTORY = "cannot be read: the history of {table} does not go back that far"
    THINNED_OUT = "cannot be read: the history of {table} is thinned out around frontier {frontier}"
    THINNED_MEANWHILE = "cannot be read: the history of {table} was thinned out while it was being pinned; try again"
    NOT_PUBLISHED = "lacks its published snapshot, which another engine has removed"
    NOT_EXAMINED = "has another engine's commit, which no pump has examined yet"
    NOT_LEASED = "was not part of the moment when it was attached"

    @property
    def is_of_history(self) -> bool:
        """Whether the table can be read at other frontiers."""
        return self in (Reason.NOT_LIVE_YET, Reason.BEFORE_HISTORY, Reason.THINNED_OUT)


@dataclass(frozen=True)
class LeftOutTable:
    """A table that is not part of a choice."""

    table: TableName
    reason: Reason
    frontier: Lsn | None = None
    """The frontier at which it was to be shown."""
    first: PastSnapshot | None = None
    """With this snapshot it went live."""
    state: PublishedState | None = None

    @property
    def since(self) -> Lsn:
        """Since when it is live, if that is why."""
        return Lsn(0) if self.first is None else self.first.frontier

    def __str__(self) -> str:
        values = {"table": str(self.table)}
        if self.frontier is not None:
            values["frontier"] = format_lsn(self.frontier)
        if self.first is not None:
            values |= {"since": format_lsn(self.since), "time": time_text(self.first.moment_ms)}
        if self.state is not None:
            state = "was dropped in Postgres" if self.state.dropped else self.state.obstacle or "is behind"
            values |= {"state": state, "end": format_lsn(self.state.frontier or Lsn(0))}
        return f"{self.table} {self.reason.value.format(**values)}"


@dataclass(frozen=True)
class TablePast:
    """A table and what is left of its past."""

    name: TableName
    """What its readers call it."""
    state: PublishedState
    past: SnapshotHistory | None = None
    """None: it was not read, or its metadata is lost or damaged."""

    @property
    def published(self) -> list[PastSnapshot]:
        """The snapshots that remain, oldest first, without those that no publish has promised to readers yet."""
        promised = self.state.frontier or 0
        return [] if self.past is None else [step for step in self.past.snapshots if step.frontier <= promised]

    def shows(self, frontier: Lsn) -> bool:
        """Whether the table can be read at a published frontier."""
        return not isinstance(_published_then(self, frontier), LeftOutTable)


@dataclass(frozen=True)
class StateChoice:
    """One state of several tables."""

    frontier: Lsn | None
    """None: nothing was published by then, or no table has a frontier."""
    chosen: Mapping[TableName, SnapshotId]
    left_out: Mapping[TableName, LeftOutTable]
    """Those whose histories lack the frontier come first, and of these the one that went live last."""


def state_at(tables: Sequence[TablePast], when: PastPoint | Lsn | None, now_ms: int = 0) -> StateChoice:
    """The state of the tables at the newest published frontier that is not after `when`.

    `when`: None for the present; an LSN for exactly that frontier, which a reader has read before: at another one there
    may be other rows. `now_ms`: milliseconds since 1970 UTC. Raises UsageError if `when` is not reached yet.
    """
    newest = max((table.state.frontier for table in tables if table.state.frontier is not None), default=None)
    frontier: Lsn | None
    if isinstance(when, PastPoint):
        if newest is not None:
            refuse_future(when, newest, now_ms)
        frontier = newest if when.frontier == newest else _published_by(tables, when)
    else:
        frontier = newest if when is None else when
    chosen: dict[TableName, SnapshotId] = {}
    left_out = []
    for table in tables:
        choice = _published_now(table, frontier) if when is None else _published_then(table, frontier)
        if isinstance(choice, LeftOutTable):
            left_out.append(choice)
        else:
            chosen[table.name] = choice
    left_out.sort(key=lambda each: (not each.reason.is_of_history, -each.since))
    return StateChoice(frontier, chosen, {each.table: each for each in left_out})


def _published_by(tables: Collection[TablePast], when: PastPoint) -> Lsn | None:
    steps = (step for table in tables for step in table.published if not_after(step, when))
    return max((step.frontier for step in steps), default=None)


def _published_now(table: TablePast, frontier: Lsn | None) -> SnapshotId | LeftOutTable:
    state = table.state
    if not state.is_readable:
        return LeftOutTable(table.name, Reason.COPYING)
    if state.metadata_location is None:
        return LeftOutTable(table.name, Reason.NOT_IN_LAKE)
    if state.frontier is not None and frontier is not None and state.frontier < frontier:
        return LeftOutTable(table.name, Reason.BEHIND, frontier, state=state)
    return state.snapshot_id


def _published_then(table: TablePast, frontier: Lsn | None) -> SnapshotId | LeftOutTable:
    if table.state.is_tiered:
        return LeftOutTable(table.name, Reason.TIERED)
    reason = _published_now(table, frontier)
    if isinstance(reason, LeftOutTable):
        return reason
    if table.past is None:
        return LeftOutTable(table.name, Reason.DAMAGED)
    step = None if frontier is None else snapshot_at(table.past.snapshots, frontier)
    if step is not None:
        return SnapshotId(step.snapshot_id)
    first = table.past.snapshots[0] if table.past.begins and table.past.snapshots else None
    if first is not None and (frontier is None or frontier < first.frontier):
        return LeftOutTable(table.name, Reason.NOT_LIVE_YET, frontier, first)
    return LeftOutTable(table.name, Reason.BEFORE_HISTORY if frontier is None else Reason.THINNED_OUT, frontier)


def readable_frontiers(tables: Collection[TablePast], around: Lsn | None) -> list[Lsn]:
    """Some of the published frontiers at which all of the tables can be read, in order: those nearest to `around`.
    Tables without a history are not considered."""
    points = [
        point
        for point in sorted({step.frontier for table in tables for step in table.published})
        if all(table.shows(point) for table in tables if table.past is not None)
    ]
    if around is not None:
        points.sort(key=lambda point: abs(point - around))
    return sorted(points[:_NAMED])


def require_all(choice: StateChoice, tables: Collection[TablePast]) -> Lsn:
    """The frontier of a choice that has all tables. Raises TableError if one is left out; it names frontiers at which
    none is."""
    reason = next(iter(choice.left_out.values()), None)
    if reason is None:
        assert choice.frontier is not None
        return choice.frontier
    raise refusal(reason, tables)


def refusal(left_out: LeftOutTable, tables: Collection[TablePast] = ()) -> TableError:
    """The error of a statement that cannot do without the table. `tables`: all that it names."""
    return TableError(str(left_out), _remedy(left_out.reason, tables, left_out.frontier))


def _remedy(reason: Reason, tables: Collection[TablePast], frontier: Lsn | None) -> str:
    if reason is Reason.TIERED:
        return "read it without --at, in a statement of its own"
    if reason is Reason.COPYING:
        return "read the heap until then (mode heap)"
    if not reason.is_of_history:
        return "see `mirror-pump status`, or read the tables one by one"
    points = readable_frontiers(tables, frontier)
    if not points:
        return "no frontier of the past is left for all of these tables; read them one by one"
    return f"readable, for example: --at {', '.join(map(format_lsn, points))}"
