"""How much WAL may still be written before a replication slot is lost, and how soon that is.

Two times answer two questions. Both divide the same room by a rate:

- `max_outage_seconds`: how long an outage of the pump may take. The rate is that at which the server writes WAL, since
  nothing is acknowledged during an outage. It needs a single look at the slot.
- `seconds_to_invalidation`: when the slot is lost if it goes on as at present. The rate is that at which the WAL that
  the slot keeps grows. It needs two looks, and is None for a slot that keeps up, however fast the server writes.

The server invalidates a slot at a checkpoint that finds it keeping more than max_slot_wal_keep_size. So both times are
the shortest possible ones.
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

    def write_rate_since_checkpoint(self, shortest: float) -> WalRate | None:
        """How fast the server has written WAL since its last checkpoint began. None if that is less than `shortest`
        seconds ago."""
        seconds = (self.at - self.checkpoint_at).total_seconds()
        if seconds < max(shortest, 0.001):
            return None
        return WalRate(max(0, self.wal_position - self.checkpoint_position) / seconds, seconds)


@dataclass(frozen=True)
class WalRate:
    """How fast the server writes WAL, or the WAL that a slot keeps grows."""

    bytes_per_second: float
    seconds: float
    """The time over which it was measured."""


def read_wal_room(connection: PgConnection, slot: str) -> WalRoom | None:
    """Returns the present values of a slot, or None if it does not exist. Raises SourceError."""
    with source_errors(f"reading how much WAL slot {slot} keeps"):
        return fetch_row(connection, WalRoom, _SQL["wal_room"], {"slot": slot})


def write_rate(first: WalRoom, last: WalRoom) -> WalRate | None:
    """Returns how fast the server wrote WAL between two moments, or None if no time has passed."""
    seconds = (last.at - first.at).total_seconds()
    return WalRate(max(0, last.wal_position - first.wal_position) / seconds, seconds) if seconds > 0 else None


def retained_growth(first: WalRoom, last: WalRoom) -> WalRate | None:
    """Returns how fast the WAL that the slot keeps grew between two moments: 0 if it shrank, because the slot caught
    up. None if no time has passed, or the slot is lost."""
    seconds = (last.at - first.at).total_seconds()
    if seconds <= 0 or first.retained_bytes is None or last.retained_bytes is None:
        return None
    return WalRate(max(0, last.retained_bytes - first.retained_bytes) / seconds, seconds)


def max_outage_seconds(room: int | None, rate: WalRate | None) -> float | None:
    """Returns how many seconds a slot survives without a pump, if the server goes on writing WAL at `rate`.

    `room`: see WalRoom.room. None without a limit, and if nothing is written or the rate is unknown.
    """
    if room == 0:
        return 0.0
    return _seconds(room, rate)


def seconds_to_invalidation(first: WalRoom, last: WalRoom, room: int | None) -> float | None:
    """Returns the seconds until a slot has no room left, if the WAL that it keeps goes on growing as between the two
    moments.

    `room`: that of the last moment, see WalRoom.room. None without a limit, if the slot is lost, and if the WAL that it
    keeps does not grow.
    """
    return _seconds(room, retained_growth(first, last))


def _seconds(room: int | None, rate: WalRate | None) -> float | None:
    if room is None or rate is None or not rate.bytes_per_second:
        return None
    return room / rate.bytes_per_second
