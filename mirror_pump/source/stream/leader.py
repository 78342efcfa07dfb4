"""One leader per slot: a session advisory lock, and an epoch that the publish transaction checks.

The lock keeps two pumps from working side by side. The epoch protects against the one that lost its lock with its
connection and does not know yet: its publishes fail.
"""

from __future__ import annotations

import hashlib
import os
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from psycopg.types.json import Jsonb

from mirror_pump.errors import ConnectionLost, NotLeader, SourceError
from mirror_pump.source.connect import PgConnection, connect, source_errors
from sql import queries

_SQL = queries("leader")


def lock_key(slot: str) -> int:
    """The advisory lock's key: 64 bits of a digest, so that unrelated users of advisory locks hardly collide."""
    digest = hashlib.sha256(f"mirror-pump leader {slot}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


@dataclass(frozen=True)
class Leader:
    """Leadership of a slot, held as long as its connection lives. A context manager that gives it up."""

    connection: PgConnection
    """Holds the lock; in autocommit. For `check` only."""
    slot: str
    epoch: int

    @classmethod
    def acquire(cls, dsn: str, slot: str, former: int | None = None) -> Self:
        """Becomes the leader, or raises NotLeader, at once, naming who is.

        Raises SourceError if the slot is not in the catalog, ConnectionLost if Postgres cannot be reached, or if it
        holds the lock for the caller itself, who led with epoch `former` through a connection that broke: the server
        hears of that later when the network was cut.
        """
        connection = connect(dsn, autocommit=True, application_name="mirror-pump-leader")
        try:
            return cls(connection, slot, _take_over(connection, slot, former))
        except BaseException:
            connection.close()
            raise

    @classmethod
    def take_lead(cls, connection: PgConnection, slot: str) -> Self:
        """The leader, over a connection that holds the slot's advisory lock, which it keeps from now on."""
        return cls(connection, slot, _enter(connection, slot))

    def check(self) -> None:
        """Raises ConnectionLost if the lock may be gone with its connection."""
        with source_errors("holding the leader's lock"):
            self.connection.execute("SELECT 1")

    def release(self) -> None:
        """Gives leadership up, so that another pump may start at once. Does nothing the second time."""
        if self.connection.closed:
            return
        try:
            with source_errors("giving up leadership"):
                self.connection.execute(
                    "UPDATE modak.mirror_slots SET leader = NULL WHERE slot_name = %s AND leader_epoch = %s",
                    (self.slot, self.epoch),
                )
                # A closed connection lets go of its locks too, but a moment later.
                self.connection.execute("SELECT pg_advisory_unlock(%s)", (lock_key(self.slot),))
        except SourceError:
            # The lock ends with the connection whatever happens to the row, which only informs people.
            pass
        finally:
            self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def is_led(conn: PgConnection, slot: str) -> bool:
    """Whether some pump leads the slot at the moment; without taking the lock."""
    return bool(lock_holders(conn, lock_key(slot)))


def lock_holders(conn: PgConnection, key: int) -> list[tuple[str, datetime | None]]:
    """The sessions that hold the advisory lock with this key: application name, and when it connected (None if the
    role may not see that). The oldest first, as far as it is known."""
    unsigned = key & 0xFFFF_FFFF_FFFF_FFFF
    with source_errors("looking for the leader"):
        rows = conn.execute(_SQL["holders"], {"high": unsigned >> 32, "low": unsigned & 0xFFFF_FFFF}).fetchall()
    return [(str(application), connected_at) for application, connected_at in rows]


def check_epoch(conn: PgConnection, slot: str, epoch: int) -> None:
    """Inside the publish transaction: locks the slot's row, and raises NotLeader if `epoch` is not its epoch.

    The row lock also makes a new leader's take-over wait for the publish that is under way.
    """
    with source_errors("checking leadership"):
        row = conn.execute(
            "SELECT leader_epoch, leader FROM modak.mirror_slots WHERE slot_name = %s FOR UPDATE", (slot,)
        ).fetchone()
    if row is None:
        raise NotLeader(f"slot {slot} is not in the catalog any more", "the mirror was removed; stop this pump")
    present, leader = row
    if present != epoch:
        raise NotLeader(
            f"{leader_name(leader)} took over slot {slot} (epoch {present}, ours is {epoch})",
            "this pump stops; nothing that it had not published is lost",
        )


def _take_over(connection: PgConnection, slot: str, former: int | None) -> int:
    with source_errors("becoming the leader"):
        locked = connection.execute("SELECT pg_try_advisory_lock(%s)", (lock_key(slot),)).fetchone()
        if not (locked and locked[0]):
            raise _led(connection, slot, former)
    return _enter(connection, slot)


def _enter(connection: PgConnection, slot: str) -> int:
    """The epoch of a new leader, which holds the lock already."""
    with source_errors("becoming the leader"):
        info = {"host": socket.gethostname(), "pid": os.getpid(), "started_at": datetime.now(UTC).isoformat()}
        row = connection.execute(
            _SQL["enter"],
            (Jsonb(info), slot),
        ).fetchone()
    if row is None:
        raise SourceError(f"slot {slot} is not in the catalog of this database", "run `mirror-pump init` first")
    return int(row[0])


def _led(connection: PgConnection, slot: str, former: int | None) -> SourceError:
    row = connection.execute(
        "SELECT leader, leader_epoch FROM modak.mirror_slots WHERE slot_name = %s", (slot,)
    ).fetchone()
    leader, epoch = row or (None, None)
    # A new leader has the lock a moment before its epoch: then we ask once more.
    if former is not None and epoch == former:
        return ConnectionLost(
            f"the server holds the lead of slot {slot} for this pump's former connection still",
            "it notices within a minute that the connection is gone; mirror-pump tries again by itself",
        )
    return NotLeader(
        f"{leader_name(leader)} leads slot {slot} already",
        "one pump per database: stop that one first, or let it work. If its machine is gone, try again in a minute: the"
        " server has not noticed yet",
    )


def leader_name(leader: dict[str, Any] | None) -> str:
    """Names a leader, by what modak.mirror_slots.leader says of it, in a sentence."""
    if not leader:
        return "another pump"
    return f"the pump with process id {leader.get('pid')} on {leader.get('host')}"
