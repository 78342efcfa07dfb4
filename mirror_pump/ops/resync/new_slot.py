"""Makes a new replication slot in place of one that was lost, and lets the mirror begin again at its position.

The steps are made by the leader, so no pump publishes meanwhile. Each may be the last one before a crash: until the
transaction at the end, the catalog names the former frontier, from which no pump can continue with the new slot. So the
command finds the slot still lost when it is run again, and adopts what it made.
"""

from __future__ import annotations

from collections.abc import Callable

from mirror_pump.engine.lake_storage import lake_storage
from mirror_pump.errors import NotLeader, SourceError
from mirror_pump.model import Lsn, TableId, format_lsn
from mirror_pump.pipeline.session.run_state import RunState
from mirror_pump.pipeline.session.stream_start import examine_start
from mirror_pump.runtime.backoff import Backoff
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.catalog_slot import catalog_slot
from mirror_pump.source.catalog.resync import (
    ResyncCandidate,
    begin_stream,
    mark_tables,
    resync_candidates,
)
from mirror_pump.source.catalog.server_change import forget_drain
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.stream.leader import Leader, check_epoch
from mirror_pump.source.stream.slot import ANEW, SlotLost, SlotStatus, create_slot, drop_slot, read_slot

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 1.0

Say = Callable[[str], None]


def begin_again(connection: PgConnection, settings: Settings, say: Say, *, where_different: bool = False) -> Lsn | None:
    """Makes the slot and marks every table that has not ended. Returns the slot's position, the frontier from then on.
    `where_different`: only rows that differ are replaced.

    Returns None if the slot turns out to be usable: another command made it meanwhile. Raises NotLeader if a pump leads
    for longer than a moment, HistoryDiverged if more than the slot is wrong, and SourceError if the slot cannot be
    made.
    """
    with _lead(settings) as leader:
        try:
            # What was examined before may have changed: no other program changes it from here on.
            storage = lake_storage(settings, make_directories=False)
            examine_start(connection, settings, storage, RunState(Lsn(0)))
        except SlotLost:
            position = _new_position(connection, settings.slot, say)
        else:
            return None
        applied = catalog_slot(connection, settings.slot).applied
        if position < applied:
            raise SourceError(
                f"the new slot stands at {format_lsn(position)}, before the frontier {format_lsn(applied)}: WAL"
                " positions of this server went back, as after pg_resetwal, and the frontier must not",
                f"a mirror cannot continue here: {ANEW}",
            )
        with connection.transaction():
            check_epoch(connection, settings.slot, leader.epoch)
            tables = [table.table_id for table in resync_candidates(connection, settings.slot) if may_be_copied(table)]
            begin_stream(connection, settings.slot, position)
            marked = mark_tables(connection, settings.slot, tables, position, gap=True, where_different=where_different)
            _require_all(tables, marked)
    happens = "compared" if where_different else "copied again"
    say(f"slot {settings.slot}: the stream begins at {format_lsn(position)}; {len(marked)} tables are {happens}")
    return position


def may_be_copied(table: ResyncCandidate) -> bool:
    """Whether a resync may copy the table. One that has failed or was dropped stays as it is."""
    return not table.state.has_ended


def _require_all(tables: list[TableId], marked: list[TableId]) -> None:
    """A live table that was left out would be promised a frontier that its content does not have."""
    if sorted(tables) != sorted(marked):
        raise SourceError(
            "the tables of the mirror changed meanwhile: nothing was done", "run `mirror-pump resync --all` again"
        )


def _lead(settings: Settings) -> Leader:
    return Backoff(_FIRST_PAUSE, _LONGEST_PAUSE).call(
        lambda: Leader.acquire(settings.require_dsn(), settings.slot),
        lambda error: isinstance(error, NotLeader),
        seconds=settings.limits.resync_lead_patience,
    )


def _new_position(connection: PgConnection, slot: str, say: Say) -> Lsn:
    """Makes the slot, or adopts one that stands ahead of the frontier. Returns its position."""
    forget_drain(connection, slot)
    status = read_slot(connection, slot)
    if status is not None:
        _refuse_active(status)
        if status.invalidated:
            drop_slot(connection, slot)
            status = None
    if status is None:
        say(f"slot {slot}: creating; this waits for the transactions that are open now")
        status, _ = create_slot(connection, slot)
    if status.confirmed_flush_lsn is None:
        drop_slot(connection, slot)
        raise SourceError(f"slot {slot} has no consistent point", "run `mirror-pump resync --all` again")
    return status.confirmed_flush_lsn


def _refuse_active(slot: SlotStatus) -> None:
    if slot.active:
        raise SourceError(
            f"replication slot {slot.name} is being read by process {slot.active_pid} of the server, which is not the"
            " leading pump",
            f"see pg_stat_activity for whom it serves, and end it (SELECT pg_terminate_backend({slot.active_pid})):"
            " whatever it takes from the slot is lost to the mirror",
        )
