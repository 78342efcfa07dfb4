"""Time travel: finds the snapshot that shows a table as of a past frontier.

Each publish moves all tables to its frontier at once. It writes a snapshot, with the frontier in its summary, for each
table that it changes or that goes live with it. The state of a table at a published frontier is therefore its newest
snapshot whose frontier is not beyond that frontier. Invariant: no other snapshot is ever returned for it. A snapshot
that was thinned out of the history leaves a gap, which shows in the parent ID of the next snapshot. If such a gap
directly follows the snapshot in question, the table may have changed before the requested frontier, so there is none.
`mirror_pump.ops.reads.state_choice` chooses for several tables, and says why one is left out.

A table's history begins with the snapshot with which it went live. `mirror_pump.pipeline.publish.staging.Stager.stage`
explains why this snapshot, and no earlier one, is the table at its frontier. Snapshots of a copy are marked and are not
part of the history. For a table that was copied again, snapshots from before the copy are refused too, because its
columns may have been different.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from mirror_pump.errors import UsageError
from mirror_pump.lake.document.snapshot import Snapshot
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.model import Lsn, format_lsn, parse_lsn
from mirror_pump.source.catalog.kept_moments import is_moment_name


@dataclass(frozen=True)
class PastPoint:
    """The point that `--at` asks for: a frontier, a time, or a moment that is kept. The other ones are None."""

    frontier: Lsn | None
    moment_ms: int | None
    """Milliseconds since 1970 UTC."""
    name: str | None = None
    """The name of a moment that is kept, of which no history has to be asked."""


@dataclass(frozen=True)
class PastSnapshot:
    """A snapshot of `main`."""

    snapshot_id: int
    frontier: Lsn
    """The frontier of the publish that made it. A snapshot that only rewrites files has that of the one before it."""
    followed: bool
    """True if the next snapshot is its child, so that none was thinned out in between. Also true of the newest one."""
    moment_ms: int


@dataclass(frozen=True)
class SnapshotHistory:
    """The snapshots that remain of a table's past."""

    snapshots: tuple[PastSnapshot, ...]
    """The snapshots, oldest first."""
    begins: bool
    """True if the table went live with the oldest of them. False if older ones may have been removed."""


def parse_when(text: str) -> PastPoint:
    """Parse a WAL position (16/B374D848) or an ISO time. A time without an offset is in UTC.

    Raises UsageError for any other text.
    """
    try:
        return PastPoint(parse_lsn(text), None)
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
    return PastPoint(None, round(moment.timestamp() * 1000))


def parse_point(text: str) -> PastPoint:
    """As `parse_when`, or the name of a moment that is kept. Whether it is, the read finds out."""
    return PastPoint(None, None, text) if is_moment_name(text) else parse_when(text)


def history(metadata: TableMetadata, complete_from: Lsn, *, archive: bool = False) -> SnapshotHistory:
    """Return the history of the table's branch `main`, or of its archive branch.

    Before the position `complete_from` the table was incomplete, because its copy was still running. A new archive
    snapshot is published with each change of the rows below the cut-line, so what is said of `main` holds for it, too.
    """
    main = [snapshot for snapshot in metadata.snapshots.oldest_first() if snapshot.is_archive == archive]
    snapshots: list[PastSnapshot] = []
    frontier: Lsn | None = None
    before: Snapshot | None = None
    begins = False
    for place, snapshot in enumerate(main):
        summary = snapshot.summary
        if summary.copying:
            frontier, snapshots = None, []
        elif summary.frontier is not None:
            frontier = summary.frontier
        # Other engines that rewrite files do not record the frontier: it is that of the snapshot before. If the
        # beginning of the history is gone, that frontier is unknown.
        if frontier is not None and frontier >= complete_from:
            if not snapshots:
                begins = before is not None and _copied(before) and _follows(snapshot, before)
            following = main[place + 1] if place + 1 < len(main) else None
            followed = following is None or _follows(following, snapshot)
            snapshots.append(PastSnapshot(snapshot.snapshot_id, frontier, followed, snapshot.timestamp_ms))
        before = snapshot
    return SnapshotHistory(tuple(snapshots), begins)


def _copied(snapshot: Snapshot) -> bool:
    """Return whether the snapshot is part of a copy, or the empty one with which a table is created."""
    return snapshot.summary.copying or snapshot.parent_id is None


def _follows(snapshot: Snapshot, predecessor: Snapshot) -> bool:
    return snapshot.parent_id == predecessor.snapshot_id


def not_after(snapshot: PastSnapshot, when: PastPoint) -> bool:
    """Return whether the snapshot was published at `when`, or before."""
    if when.frontier is not None:
        return snapshot.frontier <= when.frontier
    assert when.moment_ms is not None
    return snapshot.moment_ms <= when.moment_ms


def refuse_future(when: PastPoint, current_frontier: Lsn, now_ms: int) -> None:
    """Raise UsageError if `when` is not reached yet."""
    if when.frontier is not None and when.frontier > current_frontier:
        raise UsageError(
            f"the frontier has not reached {format_lsn(when.frontier)}: it is {format_lsn(current_frontier)}",
            f"`mirror-pump wait --lsn {format_lsn(when.frontier)} --timeout 60` returns when it has",
        )
    if when.moment_ms is not None and when.moment_ms > now_ms:
        raise UsageError(
            f"{time_text(when.moment_ms)} is in the future: it is {time_text(now_ms)}",
            "leave out --at to read the present; a time without an offset is in UTC",
        )


def time_text(moment_ms: int) -> str:
    """Format a time as `--at` accepts it: 2026-11-20T16:00:00.123Z."""
    try:
        moment = datetime.datetime.fromtimestamp(moment_ms / 1000, datetime.UTC)
    except (OverflowError, ValueError):
        return f"{moment_ms} ms after 1970"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def snapshot_at(steps: Sequence[PastSnapshot], frontier: Lsn) -> PastSnapshot | None:
    """Return the snapshot that shows the table at a published frontier. None if no remaining one certainly does."""
    earlier = [step for step in steps if step.frontier <= frontier]
    if not earlier:
        return None
    newest = earlier[-1]
    return newest if newest.followed or newest.frontier == frontier else None
