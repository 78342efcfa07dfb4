"""Copies tables again in the background, while readers keep what they have; with a new slot if the old one is lost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from mirror_pump.engine.lake_storage import lake_storage
from mirror_pump.errors import HistoryDiverged, Interrupted, MirrorPumpError, SourceError, TableError
from mirror_pump.json_documents import JsonDocument
from mirror_pump.model import Lsn, TableId, TableMode, TableName, TableState
from mirror_pump.ops.register.copies import copies_progress, follow_copies
from mirror_pump.ops.register.unregistration import registered_table
from mirror_pump.ops.resync.new_slot import Say, begin_again
from mirror_pump.ops.table_progress import TableProgress
from mirror_pump.pipeline.flow.steps import Observer, unobserved
from mirror_pump.pipeline.schema.comparable_rows import rows_are_comparable
from mirror_pump.pipeline.session.run_state import RunState
from mirror_pump.pipeline.session.stream_start import examine_start
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.catalog_slot import CatalogSlot, catalog_slot, require_stream
from mirror_pump.source.catalog.pauses import paused_text
from mirror_pump.source.catalog.pump_channel import RESYNC, notify_pump
from mirror_pump.source.catalog.resync import (
    RepairedRows,
    ResyncCandidate,
    mark_tables,
    repaired_rows,
    resync_candidates,
)
from mirror_pump.source.catalog.server_change import require_same_server
from mirror_pump.source.catalog.slot_row import lock_slot
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.source.stream.leader import is_led
from mirror_pump.source.stream.slot import COPY_AGAIN, SlotLost, check_publication, check_slot, read_slot, wal_end

_NOT_PART_OF_IT = "it is not part of the resync that is under way; to copy it again, name it"


class ResyncAction(StrEnum):
    """What a resync does about a table."""

    COPY = "copy"
    """It is copied again, from the beginning; or compared, with `--where-different`."""
    CONTINUE = "continue"
    """It is being copied already, and that goes on."""
    LEAVE = "leave"
    """Nothing."""


@dataclass(frozen=True)
class TableResync(JsonDocument, keys={"table_id": None, "replaced": None}):
    """One table of a resync, before or after it."""

    table_id: TableId
    table: str
    action: ResyncAction
    state: TableState
    """Of the table when the command ends."""
    error: MirrorPumpError | None = None
    """Why the table cannot be copied, or not before its owner acts; `remedy` says what to do."""
    note: str | None = None
    """Why nothing is done about the table; None if something is."""
    size_bytes: int = 0
    """What the copy reads from the heap; the server's estimate."""
    rows: int = 0
    """Rows that were copied or compared; before that the server's estimate."""
    kept_below: str | None = None
    """The cut-line, if only the lake has the rows below it: these stay."""
    replaced: RepairedRows | None = None
    """What a comparison replaced. None: there was none, as without `--where-different`, or all rows were copied."""


@dataclass(frozen=True)
class Resync(JsonDocument, keys={"lost": "slot_lost", "position": "new_position"}):
    """What a resync did, or would do."""

    slot: str
    lost: SlotLost | None
    """Why the slot could not be used any more; None if it could."""
    frontier: Lsn
    """The frontier before. Readers of the tables keep it until all are copied."""
    position: Lsn | None
    """Where the new slot's stream begins. None if no slot was made."""
    tables: tuple[TableResync, ...]

    @property
    def failed(self) -> bool:
        """Whether a table cannot be copied."""
        return any(table.error is not None for table in self.tables)


def plan_resync(settings: Settings, names: Sequence[str], *, where_different: bool = False) -> Resync:
    """Return what `resync` would do with these tables, or with all if no name is given. Changes nothing.

    Raises TableError for a name that is not registered, and SourceError as `resync` does.
    """
    with _connect(settings) as connection, source_errors("planning a resync"):
        return _plan(connection, settings, _named(connection, names), where_different=where_different)


def resync(
    settings: Settings,
    tables: Sequence[str] | Collection[TableId],
    *,
    wait: bool,
    say: Say,
    on_progress: Callable[[Sequence[TableProgress]], None],
    observer: Observer = unobserved,
    where_different: bool = False,
) -> Resync:
    """Have these tables copied again, or all if none is given. With `wait`, return once they are live.

    `tables` are names, or the IDs of tables; of these, those that are not registered any more are left out. Readers
    keep what the tables hold now, until one publish shows the new content of all of them. A running pump copies the
    tables; if none runs, a pump within this process does. Tables that are being copied already are not begun again. If
    the slot is lost, a new one is made, which needs all tables: SourceError is raised if some are given, if another
    pump leads, or if the slot cannot be made. `where_different`: tables are compared with their heaps, and only rows
    that differ are replaced; unless the slot is lost, tables are refused whose rows cannot be compared one by one.
    HistoryDiverged is raised, and nothing is changed, if the server was promoted or restored so that `reconcile` has to
    continue. Ctrl-C raises Interrupted; the same command then continues.
    """
    with _connect(settings) as connection, source_errors("having tables copied again"):
        try:
            chosen = _named(connection, tables)
            result = _begin(connection, settings, chosen, say, where_different=where_different)
            going_on = [table.table_id for table in result.tables if table.action is not ResyncAction.LEAVE]
            if wait and going_on:
                follow_copies(connection, settings, going_on, on_progress, observer)
        except KeyboardInterrupt:
            raise Interrupted(
                "interrupted; what was begun goes on with the next pump, and the same command follows it"
            ) from None
        return _outcome(connection, result, going_on, where_different=where_different)


def _named(connection: PgConnection, tables: Sequence[str] | Collection[TableId]) -> frozenset[TableId] | None:
    """The IDs of these tables. None if there are none, which means all. Raises TableError for a name that is not
    registered or tiered."""
    named = [registered_table(connection, name) for name in tables if isinstance(name, str)]
    for table in named:
        if table.mode is TableMode.TIERED:
            raise nothing_streamed(table.name)
    return (
        frozenset([table.table_id for table in named] + [table for table in tables if not isinstance(table, str)])
        or None
    )


def nothing_streamed(name: TableName | str) -> TableError:
    """Why a tiered table is not copied again, nor repaired."""
    return TableError(
        f"{name} is a tiered table: nothing of it comes by the stream",
        "there is nothing to copy again; `mirror-pump verify` compares what heap and lake both hold",
    )


def _connect(settings: Settings) -> PgConnection:
    return connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-resync")


def _plan(
    connection: PgConnection, settings: Settings, chosen: frozenset[TableId] | None, *, where_different: bool
) -> Resync:
    recorded = catalog_slot(connection, settings.slot)
    require_stream(connection, settings.slot, "there is no mirrored table that could be copied again")
    check_publication(connection, recorded.publication)
    lost = _slot_lost(connection, settings, recorded)
    if lost is not None and chosen is not None:
        raise SourceError(str(lost), f"all tables are concerned, not only those that are named: {COPY_AGAIN}")
    candidates = resync_candidates(connection, settings.slot)
    if chosen is not None:
        candidates = [table for table in candidates if table.table_id in chosen]
    goes_on = (
        lost is None and chosen is None and any(table.copied and table.resync_since is not None for table in candidates)
    )
    tables = [_planned(table, lost=lost is not None, goes_on=goes_on) for table in candidates]
    if where_different and lost is None:
        tables = [_compared_by_rows(connection, planned) for planned in tables]
    if chosen is None:
        # "All tables" means those that can be copied, and are not paused.
        tables = [
            replace(planned, error=None, note=str(planned.error))
            if planned.state.has_ended or table.paused_since is not None
            else planned
            for planned, table in zip(tables, candidates, strict=True)
        ]
    return Resync(settings.slot, lost, recorded.applied, None, tuple(tables))


def _slot_lost(connection: PgConnection, settings: Settings, recorded: CatalogSlot) -> SlotLost | None:
    """Return why the slot is lost, or None. Raises HistoryDiverged or another SourceError if the mirror cannot continue
    for another reason, and LakeError if the storage does not answer."""
    try:
        if not is_led(connection, settings.slot):
            storage = lake_storage(settings, make_directories=False)
            examine_start(connection, settings, storage, RunState(Lsn(0)))
            return None
        # A pump examines the server's history itself. What it publishes meanwhile would look like a divergence.
        status = read_slot(connection, settings.slot)
        if status is not None and status.active:
            # The pump that reads it has checked it. The slot may be ahead of what is `recorded`, which was read before.
            return None
        if require_same_server(connection, settings.slot, recorded) is None:
            check_slot(connection, settings.slot, applied_lsn=recorded.applied, applied_at=recorded.applied_at)
    except SlotLost as lost:
        return lost
    except HistoryDiverged:
        if not is_led(connection, settings.slot):
            raise
        # A pump has begun meanwhile.
    return None


def _planned(table: ResyncCandidate, *, lost: bool, goes_on: bool) -> TableResync:
    """Return what happens to a table. `goes_on`: all tables are meant, and a resync is under way, which goes on."""
    planned = TableResync(
        table.table_id,
        str(table.name),
        ResyncAction.COPY,
        table.state,
        size_bytes=table.size_bytes,
        rows=table.rows,
        kept_below=table.kept_text,
    )
    if table.state.has_ended:
        return replace(planned, action=ResyncAction.LEAVE, error=_ended(table))
    if table.paused_since is not None:
        return replace(planned, action=ResyncAction.LEAVE, error=_paused(table, table.paused_since))
    if table.copied and not lost:
        return replace(planned, action=ResyncAction.CONTINUE)
    if goes_on:
        return replace(planned, action=ResyncAction.LEAVE, note=_NOT_PART_OF_IT)
    if table.left_to_the_lake is not None:
        action = ResyncAction.COPY if lost else ResyncAction.LEAVE
        return replace(planned, action=action, error=would_lose(table, lost=lost))
    return planned


def _compared_by_rows(connection: PgConnection, planned: TableResync) -> TableResync:
    """Leaves out a table of which a comparison would copy all rows."""
    table = load_table(connection, planned.table_id) if planned.action is ResyncAction.COPY else None
    if table is None or rows_are_comparable(table, table):
        return planned
    reason = "it has no key" if table.keyless else "a column of its key is a list"
    error = TableError(
        f"{table.name} cannot be repaired row by row: {reason}",
        f"`mirror-pump resync {table.name.shell}` copies it again",
    )
    return replace(planned, action=ResyncAction.LEAVE, error=error)


def _paused(table: ResyncCandidate, since: datetime) -> TableError:
    resume = f"`mirror-pump resume {table.name.shell}` copies it again"
    return TableError(f"{table.name} is {paused_text(since)}", resume)


def _ended(table: ResyncCandidate) -> TableError:
    if table.state is TableState.DROPPED:
        return TableError(
            f"{table.name} was dropped in Postgres: there is nothing to copy",
            "unregister it when no reader needs it any more",
        )
    return TableError(
        f"{table.name} has failed: {table.error}",
        "its changes are not mirrored any more, and a copy does not mend that. When the cause is gone:"
        f" `mirror-pump unregister {table.name.shell}` and `mirror-pump register {table.name.shell}`",
    )


def would_lose(table: ResyncCandidate, *, lost: bool) -> TableError:
    """Why a table with rows in `left_to_the_lake` is not copied again. `lost`: the slot is, so that it fails."""
    happens = "it fails, readable as it is" if lost else "it is left as it is"
    return TableError(
        f"{table.name}: of partitions that were dropped or detached above the cut-line, with tier values in"
        f" {table.left_to_the_lake}, the lake alone has the rows, and a copy would remove them: {happens}",
        f"attach the partition again if you still have it; or `mirror-pump unregister {table.name.shell} --keep-lake`,"
        f" and `mirror-pump register {table.name.shell}`",
    )


def _begin(
    connection: PgConnection,
    settings: Settings,
    chosen: frozenset[TableId] | None,
    say: Say,
    *,
    where_different: bool,
) -> Resync:
    """Mark the tables, with a new slot if the present one is lost. Return what is copied now."""
    plan = _plan(connection, settings, chosen, where_different=where_different)
    if plan.lost is not None:
        position = begin_again(connection, settings, say, where_different=where_different)
        if position is None:
            plan = _plan(connection, settings, chosen, where_different=where_different)
        else:
            notify_pump(connection, RESYNC)
            return replace(plan, position=position)
    table_ids = [table.table_id for table in plan.tables if table.action is ResyncAction.COPY]
    if table_ids:
        with connection.transaction():
            lock_slot(connection, settings.slot)
            marked = mark_tables(
                connection, settings.slot, table_ids, wal_end(connection), gap=False, where_different=where_different
            )
            notify_pump(connection, RESYNC)
        happens = "compared" if where_different else "copied again"
        say(f"{len(marked)} tables are {happens}; readers keep their present content until all are complete")
    return plan


def _outcome(connection: PgConnection, result: Resync, going_on: Sequence[TableId], *, where_different: bool) -> Resync:
    """Return the result with what has become of the tables since."""
    progress = {entry.table: entry for entry in copies_progress(connection, going_on)}
    tables = [_with_progress(table, progress.get(table.table)) for table in result.tables]
    if where_different:
        replaced = repaired_rows(connection, going_on)
        tables = [replace(table, replaced=replaced.get(table.table_id)) for table in tables]
    return replace(result, tables=tuple(tables))


def _with_progress(table: TableResync, progress: TableProgress | None) -> TableResync:
    if progress is None:
        began = table.action is not ResyncAction.LEAVE
        return replace(table, note="it was unregistered meanwhile") if began else table
    error = None if progress.step == TableState.LIVE else table.error
    if progress.detail:
        error = TableError(progress.detail, "`mirror-pump status` shows it until it is mended")
    # A table whose changes are not followed may rest already.
    state = TableState.LIVE if progress.step == "snapshot" else TableState(progress.step)
    return replace(table, state=state, rows=progress.rows, error=error)
