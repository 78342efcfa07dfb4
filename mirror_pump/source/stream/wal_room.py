"""How much WAL may still be written before a replication slot is lost, and how soon that is.

The server invalidates a slot at a checkpoint that finds it keeping more than max_slot_wal_keep_size. So the moments
here are the earliest possible ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from mirror_pump.model import Lsn
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.rows import fetch_row
from sql import queries

_SQL = queries("slot")


@dataclass(frozen=True)
class WalRoom:
    """The WAL that a slot keeps and may keep, at one moment. A row of the query `wal_room`."""

    at: datetime
    """By the server's clock."""
    wal_position: Lsn
    """The written end of the WAL."""
    safe_wal_bytes: int | None
    """pg_replication_slots.safe_wal_size: below 0 if the next checkpoint invalidates the slot. None if
    max_slot_wal_keep_size is unlimited, and once the slot is lost."""
    retained_bytes: int | None
    """WAL that the server keeps for the slot. None once the slot is lost."""
    unconfirmed_bytes: int | None
    """WAL behind the acknowledged position. What is retained beyond it belongs to transactions that were open then."""
    active_pid: int | None
    """Process ID of the walsender that streams from the slot."""
    checkpoint_position: Lsn
    """Where the last checkpoint began."""
    checkpoint_at: datetime
    """When it began, to the second."""

    def room(self, limit: int) -> int | None:
        """Bytes of WAL that may be written before the slot is lost, or keeps more than `limit` bytes (0: no such
        limit). 0 if that is so already. None if nothing limits it."""
        rooms = [] if self.safe_wal_bytes is None else [self.safe_wal_bytes]
        if limit and self.retained_bytes is not None:
            rooms.append(limit - self.retained_bytes)
        return max(0, min(rooms)) if rooms else None

    def rate(self, shortest: float) -> WalRate | None:
        """How fast WAL has been written since the last checkpoint began; None if that is less than `shortest` seconds
        ago."""
        seconds = (self.at - self.checkpoint_at).total_seconds()
        if seconds < max(shortest, 0.001):
            return None
        return WalRate(max(0, self.wal_position - self.checkpoint_position) / seconds, seconds)


@dataclass(frozen=True)
class WalRate:
    """How fast the server writes WAL."""

    bytes_per_second: float
    seconds: float
    """How long it was measured."""

    def lasts(self, room: int | None) -> float | None:
        """Seconds until that many bytes are written. None without a limit, and if nothing is written."""
        if room is None or (room and not self.bytes_per_second):
            return None
        return room / self.bytes_per_second if room else 0.0


def read_wal_room(connection: PgConnection, slot: str) -> WalRoom | None:
    """The present values of a slot; None if it does not exist. Raises SourceError."""
    with source_errors(f"reading how much WAL slot {slot} keeps"):
        return fetch_row(connection, WalRoom, _SQL["wal_room"], {"slot": slot})


def growth(first: WalRoom, last: WalRoom) -> WalRate | None:
    """How fast the WAL that the slot keeps has grown between two moments. It shrinks while the slot catches up: then
    the rate is 0. None if no time has passed, or the slot is lost."""
    seconds = (last.at - first.at).total_seconds()
    if seconds <= 0 or first.retained_bytes is None or last.retained_bytes is None:
        return None
    return WalRate(max(0, last.retained_bytes - first.retained_bytes) / seconds, seconds)
