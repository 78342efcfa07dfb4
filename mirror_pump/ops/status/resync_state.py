"""Reports for `status` on tables that are copied again together: how far they are, and what readers keep until then."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from mirror_pump.json_documents import JsonDocument
from mirror_pump.model import Lsn
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.rows import fetch_rows
from sql import queries

_SQL = queries("status")


@dataclass(frozen=True)
class ResyncState(JsonDocument):
    """Tables that are copied again, and go live in one publish."""

    since: datetime
    slot_lost: bool
    """True if the slot was lost: all tables are concerned, and the mirror's `frontier` and lag say only how far the
    stream is."""
    tables: int
    """Tables that are not live yet."""
    tables_copied: int
    """Tables that are complete, and wait for the others."""
    frontier: Lsn | None
    """The frontier that readers of the tables keep; the lowest one. None if no table was live before."""
    copied: float
    """The share of the heap that is copied, 0 to 1."""
    seconds_left: float | None
    """At the speed so far; None until something is copied."""

    @property
    def progress(self) -> str:
        return f"{self.tables_copied} of {self.tables} tables are copied ({self.copied:.0%} of their heap)"


@dataclass(frozen=True)
class _ResyncRow:
    """A row of the query `resyncs`."""

    since: datetime
    slot_lost: bool
    tables: int
    tables_copied: int
    frontier: Lsn | None
    copied: float


def resync_states(connection: PgConnection, slot: str, at: datetime) -> tuple[ResyncState, ...]:
    """Return the resyncs that are under way at the time `at`, oldest first."""
    return tuple(
        ResyncState(
            row.since,
            row.slot_lost,
            row.tables,
            row.tables_copied,
            row.frontier,
            round(row.copied, 4),
            _seconds_left(row.copied, (at - row.since).total_seconds()),
        )
        for row in fetch_rows(connection, _ResyncRow, _SQL["resyncs"], (slot,))
    )


def _seconds_left(copied: float, elapsed: float) -> float | None:
    return round(max(0.0, elapsed) * (1 - copied) / copied, 1) if copied > 0 else None
