"""Which snapshots a moment consists of: one of each table, all at one frontier.

The caller has read all tables of the catalog by one statement, so what they name is of one publish, and later looks
again whether the histories have what was chosen. At the present frontier it is the published snapshot of each table. At
a frontier of the past the rule is that of `mirror_pump.ops.reads.time_travel`, which gives the rows of that frontier or
refuses. Of a table with heap retention there are two: the published snapshot, with the rows below the cut-line, and
that of `main`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from mirror_pump.errors import TableError
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.document.snapshot import Snapshot
from mirror_pump.model import Lsn, TableId, TableName, TableState, format_lsn
from mirror_pump.ops.reads.time_travel import PastPoint, history, snapshot_at, snapshots_at
from mirror_pump.source.catalog.kept_moments import CandidateTable


@dataclass(frozen=True)
class ChosenTable:
    """A table of a moment."""

    candidate: CandidateTable
    lake: LakeTable
    """The lake table as it is now."""
    snapshot: Snapshot
    main: Snapshot
    """That of `main`. The same but for a table with heap retention."""


@dataclass(frozen=True)
class MomentChoice:
    """The tables of a moment."""

    frontier: Lsn
    tables: tuple[ChosenTable, ...]
    left_out: Mapping[TableName, str]
    """Mirrored tables that cannot be shown at the frontier, and why."""


def newest_frontier(candidates: Collection[CandidateTable], applied: Lsn) -> Lsn:
    """The mirror's frontier. `applied`: that of its slot, for a mirror of tiered tables alone."""
    return max((table.frontier for table in candidates if table.frontier is not None), default=applied)


def why_left_out(table: CandidateTable, frontier: Lsn) -> str | None:
    """Why a table cannot be part of a moment that is kept now, whose present frontier is `frontier`. None if it can."""
    if table.paused:
        return "is paused"
    if not table.is_live:
        states = {
            TableState.FAILED: "has failed",
            TableState.WAITING: "waits to be copied",
            TableState.COPYING: "is being copied",
            TableState.FILLING: "is being filled",
            TableState.DROPPED: "was dropped in Postgres",
        }
        return states[TableState(table.state)]
    if table.metadata_location is None:
        return "has no table in the lake any more"
    if table.frontier is not None and table.frontier < frontier:
        return f"ends at frontier {format_lsn(table.frontier)}"
    return None


def chosen_now(lakes: Mapping[TableId, LakeTable], candidates: Sequence[CandidateTable], frontier: Lsn) -> MomentChoice:
    """The moment of the present frontier. `lakes` has the tables that can be part of it."""
    tables: list[ChosenTable] = []
    left_out: dict[TableName, str] = {}
    for candidate in candidates:
        lake = lakes.get(candidate.table_id)
        if lake is None:
            left_out[candidate.lake_name] = why_left_out(candidate, frontier) or "cannot be read"
            continue
        snapshot = lake.metadata.snapshot(candidate.snapshot_id)
        main = lake.metadata.current_snapshot if candidate.has_cutline else snapshot
        if snapshot is None:
            left_out[candidate.lake_name] = "lacks its published snapshot, which another engine has removed"
        elif candidate.has_cutline and candidate.head_location != candidate.metadata_location:
            left_out[candidate.lake_name] = "has another engine's commit, which no pump has examined yet"
        else:
            tables.append(ChosenTable(candidate, lake, snapshot, main or snapshot))
    return MomentChoice(frontier, tuple(tables), left_out)


def chosen_past(
    lakes: Mapping[TableId, LakeTable],
    candidates: Sequence[CandidateTable],
    when: PastPoint,
    current_frontier: Lsn,
    now_ms: int,
) -> MomentChoice:
    """The moment of the newest published frontier that is not after `when`. Raises TableError if the history of a table
    that can be part of it does not have it; the error names frontiers that can be kept. Raises UsageError if `when` is
    not reached yet."""
    left_out: dict[TableName, str] = {}
    usable: list[CandidateTable] = []
    for candidate in candidates:
        if candidate.is_tiered:
            left_out[candidate.lake_name] = "is a tiered table, which has no frontier: only the present can be kept"
        elif candidate.table_id not in lakes:
            left_out[candidate.lake_name] = why_left_out(candidate, current_frontier) or "cannot be read"
        else:
            usable.append(candidate)
    if not usable:
        return MomentChoice(current_frontier, (), left_out)
    histories = {table.lake_name: history(lakes[table.table_id].metadata, table.complete_from) for table in usable}
    frontier, snapshot_ids = snapshots_at(when, histories, current_frontier, now_ms)
    tables: list[ChosenTable] = []
    for candidate in usable:
        lake = lakes[candidate.table_id]
        main = lake.metadata.snapshot(snapshot_ids[candidate.lake_name])
        assert main is not None
        snapshot = _archive_snapshot(candidate, lake, frontier) if candidate.has_cutline else main
        tables.append(ChosenTable(candidate, lake, snapshot, main))
    return MomentChoice(frontier, tuple(tables), left_out)


def _archive_snapshot(candidate: CandidateTable, lake: LakeTable, frontier: Lsn) -> Snapshot:
    """The published snapshot of a table with heap retention at a past frontier. Raises TableError."""
    past = history(lake.metadata, candidate.complete_from, archive=True)
    chosen = snapshot_at(past.snapshots, frontier)
    snapshot = None if chosen is None else lake.metadata.snapshot(chosen.snapshot_id)
    if snapshot is None:
        raise TableError(
            f"the rows of {candidate.lake_name} below its cut-line at frontier {format_lsn(frontier)} are thinned out",
            "leave out --at to keep the present",
        )
    return snapshot
