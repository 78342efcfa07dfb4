"""Reports for `status` on the replication slot: position, retained WAL, and whether a pump can resume from it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import psycopg

from mirror_pump.errors import ConnectionLost, HistoryDiverged, SourceError
from mirror_pump.model import Lsn
from mirror_pump.ops.status.status_report import Holder, SlotState
from mirror_pump.source.catalog.catalog_slot import catalog_slot
from mirror_pump.source.catalog.server_change import require_same_server
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.rows import fetch_row
from mirror_pump.source.stream.slot import (
    RECONCILE,
    SlotLost,
    check_publication,
    check_slot,
    system_identity,
)
from mirror_pump.source.stream.wal_room import WalRate, read_wal_room
from sql import queries

_SQL = queries("status")


@dataclass(frozen=True)
class _Slot:
    """A row of the query `slot`."""

    timeline: int
    applied: int
    applied_at: datetime | None
    commit_time: datetime | None
    streams: bool
    exists: bool
    active: bool
    wal_status: str | None
    confirmed: int | None
    invalidation_reason: str | None
    inactive_since: datetime | None


def slot_state(
    connection: PgConnection,
    slot: str,
    publication: str,
    *,
    limit: int = 0,
    rate_window: float = 0.0,
    former_rate: WalRate | None = None,
) -> SlotState:
    """Return the present state of the slot, which does not exist in a mirror without a stream. Raises SourceError if
    the catalog does not know it.

    `limit`: bytes of WAL that the slot may keep, besides max_slot_wal_keep_size; 0 for no limit. The rate of WAL is
    that since the last checkpoint, or `former_rate` as long as that is less than `rate_window` seconds ago.
    """
    row, error = _look(connection, slot)
    if not row.streams:
        return SlotState(
            slot, publication, exists=False, active=False, wal_status=None, retained_bytes=None, confirmed=None
        )
    holder = None
    if row.commit_time is not None:
        holder = fetch_row(connection, Holder, _SQL["holder"], {"before": row.commit_time})
    wal = read_wal_room(connection, slot)
    return SlotState(
        name=slot,
        publication=publication,
        exists=row.exists,
        active=row.active,
        wal_status=row.wal_status,
        retained_bytes=None if wal is None else wal.retained_bytes,
        confirmed=None if row.confirmed is None else Lsn(row.confirmed),
        publication_error=_publication_error(connection, publication),
        invalidation_reason=row.invalidation_reason,
        inactive_since=row.inactive_since,
        error=error,
        safe_wal_bytes=None if wal is None else wal.room(limit),
        wal_rate=former_rate if wal is None else wal.write_rate_since_checkpoint(rate_window) or former_rate,
        held_by=holder,
        wal=wal,
    )


def slot_error(connection: PgConnection, slot: str) -> SourceError | None:
    """Return why no pump can resume from the slot, or None if one can, or if the mirror has no stream.

    Raises SourceError if the catalog does not know the slot.
    """
    return _look(connection, slot)[1]


def _look(connection: PgConnection, slot: str) -> tuple[_Slot, SourceError | None]:
    row = _read(connection, slot)
    error = _error(connection, slot, row)
    if error is not None:
        # A pump that has just started may have moved the frontier and the slot between the two queries. By now it holds
        # the slot.
        row = _read(connection, slot)
        error = _error(connection, slot, row)
    return row, error


def _read(connection: PgConnection, slot: str) -> _Slot:
    row = fetch_row(connection, _Slot, _SQL["slot"], (slot,))
    if row is None:
        raise SourceError(f"the catalog does not know slot {slot}", "run `mirror-pump init` first")
    return row


def _error(connection: PgConnection, slot: str, row: _Slot) -> SourceError | None:
    if row.active or not row.streams:
        # The pump that reads the slot has checked it.
        return None
    try:
        if require_same_server(connection, slot, catalog_slot(connection, slot)) is None:
            check_slot(connection, slot, applied_lsn=Lsn(row.applied), applied_at=row.applied_at)
    except ConnectionLost:
        raise
    except SlotLost as lost:
        return _lost_slot_error(lost, row.timeline, system_identity(connection).timeline)
    except SourceError as error:
        # A reader may not see what tells servers apart: the pump will say.
        return None if isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege) else error
    return None


def _lost_slot_error(lost: SlotLost, recorded: int, timeline: int) -> SourceError:
    """The error for a slot that is lost. After a promotion or a restore, it is not the slot alone that may be."""
    if timeline == recorded:
        return lost
    return HistoryDiverged(
        f"the server was promoted or restored: it writes timeline {timeline}, and the mirror was published on timeline"
        f" {recorded}. Since then {lost}",
        RECONCILE,
    )


def _publication_error(connection: PgConnection, publication: str) -> str | None:
    try:
        check_publication(connection, publication)
    except ConnectionLost:
        raise
    except SourceError as error:
        return f"{error}. {error.remedy}"
    return None
