"""Time travel: which snapshots of several tables show them as of one F of the past.

Each publish moves all tables to its F at once, and leaves a snapshot, with F in its summary, of those that it changed.
So the mirror's state at a published F is, for each table, its newest snapshot with at most that F. Invariant: nothing
else is ever taken for it. A snapshot that was thinned out of the history leaves a gap between the ones around it, seen
by the next one's parent; a table that has such a gap right behind the snapshot in question may have been changed by
then, and is refused there.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mirror_pump.errors import TableError, UsageError
from mirror_pump.lake.metadata import COLD_CUT
from mirror_pump.model import Lsn, TableName, format_lsn, parse_lsn
from mirror_pump.pipeline.staging import FRONTIER_PROPERTY

_NAMED = 3
"""Readable points that a refusal names."""


@dataclass(frozen=True)
class When:
    """What `--at` asks for: one of the two."""

    frontier: Lsn | None
    moment_ms: int | None
    """Milliseconds since 1970 UTC."""


@dataclass(frozen=True)
class PastSnapshot:
    """A snapshot of `main`."""

    snapshot_id: int
    frontier: Lsn
    """F of the publish that made it; of the one before where it only exchanged files."""
    followed: bool
    """The next snapshot is its child: nothing was thinned out in between. True of the newest."""
    moment_ms: int


def parse_when(text: str) -> When:
    """A WAL position (16/B374D848) or an ISO time, with an offset or else in UTC. UsageError for anything else."""
    try:
        return When(parse_lsn(text), None)
    except ValueError:
        pass
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"{text!r} is neither a WAL position nor a time", "give it as 16/B374D848 or 2026-11-20T16:00:00Z"
        ) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return When(None, round(moment.timestamp() * 1000))


def history(metadata: Mapping[str, Any]) -> list[PastSnapshot]:
    """The snapshots of `main` that are left, oldest first."""
    main = [one for one in metadata["snapshots"] if COLD_CUT not in one.get("summary", {})]
    main.sort(key=lambda one: int(one.get("sequence-number", 0)))
    found: list[PastSnapshot] = []
    # A table's first snapshots come with its copy, which moves no F. Where the beginning is gone, what has no F of its
    # own may be from any.
    frontier = Lsn(0) if main and main[0].get("parent-snapshot-id") is None else None
    for place, one in enumerate(main):
        said = one.get("summary", {}).get(FRONTIER_PROPERTY)
        frontier = frontier if said is None else parse_lsn(said)
        if frontier is None:
            continue
        following = main[place + 1] if place + 1 < len(main) else None
        followed = following is None or following.get("parent-snapshot-id") == one["snapshot-id"]
        found.append(PastSnapshot(int(one["snapshot-id"]), frontier, followed, int(one["timestamp-ms"])))
    return found


def snapshots_at(
    when: When, histories: Mapping[TableName, Sequence[PastSnapshot]], complete_from: Lsn, present: Lsn
) -> tuple[Lsn, dict[TableName, int]]:
    """The newest F that is published and not after `when`, and each table's snapshot at it.

    `complete_from` is the position from which on the tables were whole: before, their copies were under way. `present`
    is the tables' F now. UsageError for a point that is not reached yet, TableError where the history does
    not tell any more; both name what can be read.
    """
    if when.frontier is not None and when.frontier > present:
        raise UsageError(
            f"F has not reached {format_lsn(when.frontier)}: it is {format_lsn(present)}", "see `mirror-pump wait`"
        )
    published = sorted({one.frontier for steps in histories.values() for one in steps if one.frontier >= complete_from})
    if when.frontier is not None:
        reached = [frontier for frontier in published if frontier <= when.frontier]
    else:
        assert when.moment_ms is not None
        earlier = {one.frontier for steps in histories.values() for one in steps if one.moment_ms <= when.moment_ms}
        reached = [frontier for frontier in published if frontier in earlier]
    if when.frontier == present or (when.moment_ms is not None and when.moment_ms >= time.time() * 1000):
        reached.append(present)
    if not reached:
        raise TableError("the history does not go back that far", _readable(histories, published))
    chosen = max(reached)
    found = {}
    for name, steps in histories.items():
        snapshot = _at(steps, chosen)
        if snapshot is None:
            raise TableError(
                f"the history of {name} is thinned out around F = {format_lsn(chosen)}",
                _readable(histories, published, chosen),
            )
        found[name] = snapshot.snapshot_id
    return Lsn(chosen), found


def _at(steps: Sequence[PastSnapshot], frontier: Lsn) -> PastSnapshot | None:
    """The snapshot that shows the table at a published F; None if none is left that certainly does."""
    earlier = [one for one in steps if one.frontier <= frontier]
    if not earlier:
        return None
    newest = earlier[-1]
    return newest if newest.followed or newest.frontier == frontier else None


def _readable(
    histories: Mapping[TableName, Sequence[PastSnapshot]], published: Collection[Lsn], around: Lsn | None = None
) -> str:
    points = [one for one in published if all(_at(steps, one) is not None for steps in histories.values())]
    if not points:
        return "no F of the past is left for all of these tables; read them one by one"
    if around is not None:
        points.sort(key=lambda one: abs(one - around))
    return f"readable, for example: --at {', '.join(format_lsn(one) for one in sorted(points[:_NAMED]))}"
