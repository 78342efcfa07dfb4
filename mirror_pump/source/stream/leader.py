"""One leader per slot: a session advisory lock, and an epoch that the publish transaction checks.

The lock prevents two pumps from working at the same time. A pump that loses its connection also loses the lock, perhaps
without noticing. The epoch makes its publishes fail.

A process that hangs, or is cut off from the network, keeps its lock. So the leader lets its session show signs of life:
a statement every two seconds, whose time pg_stat_activity shows to standbys. It writes only which threads of the
process fail, when that has changed.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

from psycopg.types.json import Jsonb

from mirror_pump.errors import ConnectionLost, NotLeader, SourceError
from mirror_pump.model import Lsn
from mirror_pump.runtime.service_thread import ServiceThread, ThreadFailure, thread_failures
from mirror_pump.source.advisory_locks import advisory_key, key_halves
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.source.stream.slot import wal_end
from sql import queries
from sql.mirror_names import SCHEMA

_SQL = queries("leader")

_BEAT_INTERVAL = 2.0
"""Seconds between two signs of life. A standby waits for several (limits.leader_silence)."""
_STOP_GRACE = 1.0
"""Seconds to wait for the end of the thread that gives them. It may wait for a server that does not answer."""


def lock_key(slot: str) -> int:
    """The key of the leader's advisory lock."""
    return advisory_key(f"leader {slot}")


@dataclass(frozen=True)
class Leader:
    """Leadership of a slot. It lasts as long as its connection. A context manager that releases it."""

    connection: PgConnection
    """The connection that holds the lock, in autocommit mode. Only the methods here may use it."""
    slot: str
    epoch: int
    _life: ServiceThread = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        life = ServiceThread("leader", self._show_life, stop_within=_STOP_GRACE)
        object.__setattr__(self, "_life", life)
        life.start()

    def _show_life(self) -> None:
        """Until the leadership ends. A connection that is lost is found out by those who need it."""
        stored: list[ThreadFailure] = []
        with suppress(SourceError):
            while self._life.next_round():
                self.check()
                failures = thread_failures()
                if failures != stored and self._store(failures):
                    stored = failures
                self._life.await_wake(_BEAT_INTERVAL)

    def _store(self, failures: Sequence[ThreadFailure]) -> bool:
        """Stores for `status` which threads fail. Returns False if a publish has locked the row, since it waits for
        nothing, and if the server refuses it, for example while its disk is full: signs of life matter more."""
        parameters = {
            "slot": self.slot,
            "epoch": self.epoch,
            "failing": Jsonb({"failing_threads": list(map(asdict, failures))}),
        }
        try:
            with source_errors("storing which threads fail"):
                return self.connection.execute(_SQL["failing_threads"], parameters).rowcount == 1
        except ConnectionLost:
            raise
        except SourceError:
            return False

    @classmethod
    def acquire(cls, dsn: str, slot: str, former_epoch: int | None = None) -> Self:
        """Become the leader without waiting. Raises NotLeader, with the present leader's name, if there is one.

        Raises SourceError if the slot is not in the catalog, and ConnectionLost if Postgres cannot be reached. Also
        raises ConnectionLost if the caller itself led last, with epoch `former_epoch`, and the server still holds the
        lock for its broken connection: after a network failure the server notices later.
        """
        connection = connect(dsn, autocommit=True, application_name="mirror-pump-leader")
        try:
            return cls(connection, slot, _take_over(connection, slot, former_epoch))
        except BaseException:
            connection.close()
            raise

    @classmethod
    def take_lead(cls, connection: PgConnection, slot: str) -> Self:
        """Become the leader through a connection that already holds the slot's advisory lock. Takes over the
        connection. Raises SourceError if the slot is not in the catalog."""
        return cls(connection, slot, _begin_epoch(connection, slot))

    def check(self) -> None:
        """Raises ConnectionLost if the lock may be gone with its connection."""
        with source_errors("holding the leader's lock"):
            self.connection.execute("SELECT 1")

    def wal_end(self) -> Lsn:
        """The present end of WAL, by a session that is there anyway. Raises SourceError, ConnectionLost."""
        return wal_end(self.connection)

    def release(self) -> None:
        """Release leadership, so that another pump can lead at once. A second call does nothing."""
        self._life.stop()
        if self.connection.closed:
            return
        try:
            with source_errors("giving up leadership"):
                self.connection.execute(
                    f"UPDATE {SCHEMA}.mirror_slots SET leader = NULL WHERE slot_name = %s AND leader_epoch = %s",
                    (self.slot, self.epoch),
                )
                # Closing the connection would release the lock too, but a moment later.
                self.connection.execute("SELECT pg_advisory_unlock(%s)", (lock_key(self.slot),))
        except SourceError:
            # The lock ends with the connection in any case. The row only informs people.
            pass
        finally:
            self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def is_led(conn: PgConnection, slot: str) -> bool:
    """Whether a pump leads the slot at the moment. Does not take the lock."""
    return bool(lock_holders(conn, lock_key(slot)))


def lock_holders(conn: PgConnection, key: int) -> list[tuple[str, datetime | None]]:
    """The sessions that hold the advisory lock with this key, oldest first: application name, and when each connected
    (None if this role may not see that)."""
    with source_errors("looking for the leader"):
        rows = conn.execute(_SQL["holders"], key_halves(key)).fetchall()
    return [(str(application), connected_at) for application, connected_at in rows]


def check_epoch(conn: PgConnection, slot: str, epoch: int) -> None:
    """In the publish transaction: lock the slot's row, and raise NotLeader if another pump has begun a newer epoch,
    ConnectionLost if the connection leads to another server.

    The row lock also makes a new leader wait until a running publish has ended.
    """
    with source_errors("checking leadership"):
        row = conn.execute(
            f"SELECT leader_epoch, leader FROM {SCHEMA}.mirror_slots WHERE slot_name = %s FOR UPDATE", (slot,)
        ).fetchone()
    if row is None:
        raise slot_gone(slot)
    current_epoch, leader = row
    if current_epoch != epoch:
        raise other_epoch(slot, current_epoch, epoch, leader_name(leader))


def slot_gone(slot: str) -> NotLeader:
    """The error for a slot that has left the catalog while a pump led it."""
    return NotLeader(f"slot {slot} is no longer in the catalog", "the mirror was removed: stop this pump")


def other_epoch(slot: str, current_epoch: int, epoch: int, leader: str = "another pump") -> SourceError:
    """The error for a catalog whose epoch `current_epoch` is not this pump's `epoch`. Epochs of one server only grow:
    a newer one is another leader's, an older one is that of a server that this pump does not lead on, to which a
    connection that was made anew has led."""
    if current_epoch < epoch:
        return ConnectionLost(
            f"the server was exchanged during the session: slot {slot} is at epoch {current_epoch} there,"
            f" ours is {epoch}",
            "mirror-pump begins a new session by itself, and looks first what the server has; if it is a former"
            " primary, stop it",
        )
    return NotLeader(
        f"{leader} has taken over slot {slot} (epoch {current_epoch}, ours is {epoch})",
        "this pump stops. No change is lost: the new leader receives again what this pump had not published",
    )


def _take_over(connection: PgConnection, slot: str, former_epoch: int | None) -> int:
    with source_errors("becoming the leader"):
        locked = connection.execute("SELECT pg_try_advisory_lock(%s)", (lock_key(slot),)).fetchone()
        if not (locked and locked[0]):
            raise _refusal(connection, slot, former_epoch)
    return _begin_epoch(connection, slot)


def _begin_epoch(connection: PgConnection, slot: str) -> int:
    """Begins and returns the epoch of a new leader, which already holds the lock."""
    with source_errors("becoming the leader"):
        info = {"host": socket.gethostname(), "pid": os.getpid(), "started_at": datetime.now(UTC).isoformat()}
        row = connection.execute(
            _SQL["enter"],
            (Jsonb(info), slot),
        ).fetchone()
    if row is None:
        raise SourceError(f"slot {slot} is not in the catalog of this database", "run `mirror-pump init` first")
    return int(row[0])


def _refusal(connection: PgConnection, slot: str, former_epoch: int | None) -> SourceError:
    row = connection.execute(
        f"SELECT leader, leader_epoch FROM {SCHEMA}.mirror_slots WHERE slot_name = %s", (slot,)
    ).fetchone()
    leader, epoch = row or (None, None)
    # A new leader takes the lock a moment before it begins its epoch. In that moment this is also raised, and the
    # caller retries.
    if former_epoch is not None and epoch == former_epoch:
        return ConnectionLost(
            f"the server still holds the lead of slot {slot} for this pump's former connection",
            "the server notices within a minute that the connection is gone; mirror-pump retries by itself",
        )
    return NotLeader(
        f"{leader_name(leader)} already leads slot {slot}",
        "only one pump can lead: stop that one first, or let it work. If its machine is gone, try again in a minute,"
        " when the server has noticed",
    )


def leader_name(leader: dict[str, Any] | None) -> str:
    """A leader as the subject of a sentence, from modak.mirror_slots.leader."""
    if not leader:
        return "another pump"
    return f"the pump with process id {leader.get('pid')} on {leader.get('host')}"
