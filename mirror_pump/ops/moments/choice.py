"""Which snapshots a moment consists of: one of each table, all at one frontier.

The caller has read all tables of the catalog by one statement, so what they name is of one publish, and later looks
again whether the histories have what was chosen. Of a table with heap retention there are two snapshots: the published
one, with the rows below the cut-line, and that of `main`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.document.snapshot import Snapshot
from mirror_pump.model import Lsn, SnapshotId, TableId, TableName
from mirror_pump.ops.reads.state_choice import LeftOutTable, Reason, TablePast, require_all, state_at
from mirror_pump.ops.reads.time_travel import PastPoint, history
from mirror_pump.source.catalog.published_state import PublishedState


@dataclass(frozen=True)
class ChosenTable:
    """A table of a moment."""

    state: PublishedState
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
    left_out: Mapping[TableName, LeftOutTable]
    """Mirrored tables that cannot be shown at the frontier, and why."""


def cannot_be_kept(state: PublishedState) -> LeftOutTable | None:
    """Why a table cannot be part of any moment now. None if it can."""
    if state.obstacle is not None:
        return LeftOutTable(state.lake_name, Reason.NOT_FOLLOWED, state=state)
    return LeftOutTable(state.lake_name, Reason.NOT_IN_LAKE) if state.metadata_location is None else None


def moment_at(
    states: Sequence[PublishedState],
    lakes: Mapping[TableId, LakeTable],
    when: PastPoint | None,
    applied: Lsn,
    now_ms: int,
) -> MomentChoice:
    """The moment of the newest published frontier that is not after `when` (None: the present one).

    `lakes` has the tables that can be part of a moment. `applied`: the frontier of the mirror's slot, for a mirror of
    tiered tables alone. Raises UsageError if `when` is not reached yet, TableError if a history does not have it; the
    error names frontiers that can be kept.
    """
    obstacles = {state.lake_name: reason for state in states if (reason := cannot_be_kept(state)) is not None}
    usable = {state.lake_name: state for state in states if state.lake_name not in obstacles}
    tables = [_past(state, lakes[state.table_id]) for state in usable.values()]
    choice = state_at(tables, when, now_ms)
    if any(left_out.reason.is_of_history for left_out in choice.left_out.values()):
        require_all(choice, tables)
    frontier = applied if choice.frontier is None else choice.frontier
    chosen = [
        _chosen_now(usable[name], lakes[usable[name].table_id], snapshot_id)
        if when is None
        else _chosen_then(usable[name], lakes[usable[name].table_id], snapshot_id, frontier)
        for name, snapshot_id in choice.chosen.items()
    ]
    left_out = {each.table: each for each in chosen if isinstance(each, LeftOutTable)}
    return MomentChoice(
        frontier,
        tuple(table for table in chosen if isinstance(table, ChosenTable)),
        obstacles | dict(choice.left_out) | left_out,
    )


def _past(state: PublishedState, lake: LakeTable, *, archive: bool = False) -> TablePast:
    past = None if state.is_tiered else history(lake.metadata, state.complete_from, archive=archive)
    return TablePast(state.lake_name, state, past)


def _chosen_now(state: PublishedState, lake: LakeTable, snapshot_id: SnapshotId) -> ChosenTable | LeftOutTable:
    snapshot = lake.metadata.snapshot(snapshot_id)
    if snapshot is None:
        return LeftOutTable(state.lake_name, Reason.NOT_PUBLISHED)
    if not state.has_cutline:
        return ChosenTable(state, lake, snapshot, snapshot)
    if not state.examined:
        return LeftOutTable(state.lake_name, Reason.NOT_EXAMINED)
    return ChosenTable(state, lake, snapshot, lake.metadata.current_snapshot or snapshot)


def _chosen_then(state: PublishedState, lake: LakeTable, main_id: SnapshotId, frontier: Lsn) -> ChosenTable:
    """With the archive's snapshot of that frontier, of a table with heap retention. Raises TableError if there is
    none."""
    snapshot_id = main_id
    if state.has_cutline:
        archive = _past(state, lake, archive=True)
        choice = state_at([archive], frontier)
        require_all(choice, [archive])
        snapshot_id = choice.chosen[state.lake_name]
    snapshot, main = lake.metadata.snapshot(snapshot_id), lake.metadata.snapshot(main_id)
    assert snapshot is not None
    assert main is not None
    return ChosenTable(state, lake, snapshot, main)
