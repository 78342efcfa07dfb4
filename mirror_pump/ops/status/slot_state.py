"""What `status` says of the replication slot: where it stands, what it keeps, and whether a pump can go on from it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from mirror_pump.errors import ConnectionLost, SourceError
from mirror_pump.model import Lsn
from mirror_pump.ops.status.status_report import Holder, SlotState
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.stream.slot import SystemIdentity, check_publication, check_slot

# Columns that not every version has are looked up by name in the row as a whole.
_SLOT = """
SELECT s.system_identifier, s.timeline, s.database_name, s.applied_lsn, s.applied_at, s.applied_commit_time,
       r.slot_name IS NOT NULL, coalesce(r.active, false), r.wal_status,
       (pg_current_wal_lsn() - r.restart_lsn)::bigint, (r.confirmed_flush_lsn - '0/0')::bigint,
       to_jsonb(r) ->> 'invalidation_reason', (to_jsonb(r) ->> 'inactive_since')::timestamptz
  FROM modak.mirror_slots s LEFT JOIN pg_replication_slots r ON r.slot_name = s.slot_name
 WHERE s.slot_name = %s
"""

# A slot keeps the WAL from the beginning of the oldest transaction that is still open, however far F is. One that began
# before the newest published commit is worth a word; other roles' transactions are for pg_read_all_stats to see.
_HOLDER = """
SELECT kind, pid, application, prepared, extract(epoch FROM clock_timestamp() - since)::float8
  FROM (SELECT 'transaction' AS kind, pid, application_name AS application, NULL AS prepared, xact_start AS since
          FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
         UNION ALL
        SELECT 'prepared transaction', NULL, NULL, gid, prepared FROM pg_prepared_xacts) open
 WHERE since < %s ORDER BY since LIMIT 1
"""


@dataclass(frozen=True)
class _Slot:
    """A row of _SLOT."""

    system_identifier: str
    timeline: int
    database: str
    applied: int
    applied_at: datetime | None
    commit_time: datetime | None
    exists: bool
    active: bool
    wal_status: str | None
    retained_bytes: int | None
    confirmed: int | None
    invalidation_reason: str | None
    inactive_since: datetime | None


def slot_state(connection: PgConnection, slot: str, publication: str) -> SlotState:
    """The slot as it is now. SourceError if the catalog does not know it."""
    row, error = _look(connection, slot)
    holder = connection.execute(_HOLDER, (row.commit_time,)).fetchone() if row.commit_time is not None else None
    return SlotState(
        name=slot,
        publication=publication,
        exists=row.exists,
        active=row.active,
        wal_status=row.wal_status,
        retained_bytes=row.retained_bytes,
        confirmed=None if row.confirmed is None else Lsn(row.confirmed),
        publication_error=_publication_error(connection, publication),
        invalidation_reason=row.invalidation_reason,
        inactive_since=row.inactive_since,
        error=error,
        held_by=None if holder is None else Holder(*holder),
    )


def slot_error(connection: PgConnection, slot: str) -> SourceError | None:
    """Why no pump can go on from the slot; None if one can. SourceError if the catalog does not know the slot."""
    return _look(connection, slot)[1]


def _look(connection: PgConnection, slot: str) -> tuple[_Slot, SourceError | None]:
    row = _read(connection, slot)
    error = _error(connection, slot, row)
    if error is not None:
        # A pump that has just begun may have moved F and the slot between the two questions; now it holds the slot.
        row = _read(connection, slot)
        error = _error(connection, slot, row)
    return row, error


def _read(connection: PgConnection, slot: str) -> _Slot:
    row = connection.execute(_SLOT, (slot,)).fetchone()
    if row is None:
        raise SourceError(f"the catalog does not know slot {slot}", "run `mirror-pump init` first")
    return _Slot(*row)


def _error(connection: PgConnection, slot: str, row: _Slot) -> SourceError | None:
    if row.active:
        # Whoever reads it has looked at it.
        return None
    identity = SystemIdentity(row.system_identifier, row.timeline, row.database)
    try:
        check_slot(connection, slot, applied_lsn=Lsn(row.applied), identity=identity, applied_at=row.applied_at)
    except ConnectionLost:
        raise
    except SourceError as error:
        return error
    return None


def _publication_error(connection: PgConnection, publication: str) -> str | None:
    try:
        check_publication(connection, publication)
    except ConnectionLost:
        raise
    except SourceError as error:
        return f"{error}. {error.remedy}"
    return None
