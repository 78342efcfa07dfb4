"""Takes the slot past everything that is committed, also past the mirror's own commits, as pg_upgrade demands.

pg_upgrade (binary_upgrade_logical_slot_has_caught_up, PostgreSQL 17 and later) refuses a slot of whose database any
transaction that wrote has ended behind the slot's position, whatever it wrote. The commit that records a frontier is
such a transaction, and it is always behind that frontier: so a pump that stops leaves the slot behind by at least one.

Invariant: the slot is ahead of the frontier only at `drained_lsn` of the catalog, and nothing that the mirror needs was
committed between the two. For `drained_lsn` is recorded first, as a position ahead of all WAL, by the last commit. Then
messages that belong to no transaction fill the WAL up to there. Then the slot is asked for what it has before that
position, and goes there if there is nothing. A commit by another session in between is among that, or behind it. If the
program ends before the slot has moved, the slot stays where it was, and the position means nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from mirror_pump.database.quoting import identifier
from mirror_pump.errors import NotLeader, SourceError
from mirror_pump.model import Lsn
from mirror_pump.source.connect import connect, source_errors
from mirror_pump.source.rows import fetch_row
from mirror_pump.source.stream.leader import lock_key
from mirror_pump.source.stream.slot import flushed_end
from sql import queries

_SQL = queries("slot")

_ROOM = 256 * 1024
"""Bytes of WAL from the statement that records the position to the position: much more than a commit of one row
takes, also with images of its pages."""
_FLUSH_SECONDS = 60.0
"""Time for the server to flush what no commit waits for. Its WAL writer looks several times a second."""
_FLUSH_POLL = 0.02


@dataclass(frozen=True)
class DrainedSlot:
    """The slot stands at a position of `drained_lsn`."""

    position: Lsn
    quiet: bool
    """No session has written since. Otherwise pg_upgrade would refuse the slot again."""


@dataclass(frozen=True)
class _Mark:
    """What `note_drain` returns."""

    position: Lsn
    transaction: int
    """ID of the transaction that recorded the position."""


def drain_slot(dsn: str, slot: str, publication: str) -> DrainedSlot | None:
    """Take the slot, which no pump reads, past all that is committed. None if the pump has to publish first: a change
    was committed behind the frontier.

    Raises NotLeader while a pump leads, and SourceError.
    """
    with (
        connect(dsn, autocommit=True, application_name="mirror-pump-drain") as connection,
        source_errors(f"draining slot {slot}"),
    ):
        # To give it up takes no commit, unlike Leader.release.
        if connection.execute(_SQL["lock_lead"], {"key": lock_key(slot)}).fetchone() != (True,):
            raise NotLeader("another pump has begun to lead meanwhile", "stop all pumps, and run it again")
        mark = fetch_row(connection, _Mark, _SQL["note_drain"], {"slot": slot, "room": _ROOM})
        if mark is None:
            raise SourceError(f"slot {slot} is not in the catalog", "run `mirror-pump init` first")
        here = {"slot": slot, "publication": identifier(publication), "position": mark.position}
        connection.execute(_SQL["fill_wal"], here)
        deadline = time.monotonic() + _FLUSH_SECONDS
        while flushed_end(connection) < mark.position:
            if time.monotonic() > deadline:
                raise SourceError("the server does not flush its WAL", "see its log, and run it again")
            time.sleep(_FLUSH_POLL)
        if connection.execute(_SQL["left_in_slot"], here).fetchone() != (False,):
            return None
        connection.execute(_SQL["advance"], here)
        quiet = connection.execute(_SQL["quiet_since"], {"transaction": mark.transaction}).fetchone() == (True,)
        return DrainedSlot(mark.position, quiet)
