"""Standbys of a slot: pumps that wait until the slot has no leader, and then lead it.

A standby polls the leader's advisory lock instead of waiting for it: a waiting statement would hold a snapshot, and so
hold back VACUUM, as long as the leader lives. On the same connection, all standbys hold a shared lock, from which
`status` reads who is standing by.

A leader that hangs or is cut off keeps its lock. A standby that has seen no sign of life from it for long enough ends
the sessions by which it holds the lead, the slot and a publish. It may be alive all the same: the epoch keeps it from
publishing.
"""

from __future__ import annotations

import os
import re
import socket
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

import psycopg

from mirror_pump.errors import SourceError
from mirror_pump.model import Lsn
from mirror_pump.source.advisory_locks import advisory_key, key_halves
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.source.rows import fetch_row
from mirror_pump.source.stream.leader import Leader, leader_name, lock_holders, lock_key
from sql import queries

_SQL = queries("leader")

_APPLICATION = "mirror-pump-standby"
_NAME = re.compile(rf"{_APPLICATION} (\d+)@(.*)", re.DOTALL)


@dataclass(frozen=True)
class StandbyProcess:
    """A pump that waits for the lead."""

    host: str | None
    """Truncated by Postgres if it is long (there are some 35 bytes for it)."""
    pid: int | None
    since: datetime | None
    """When it connected; None if the role that asks may not see that."""


@dataclass(frozen=True)
class Led:
    """The answer to a standby whose turn has not come."""

    leader: str
    """Its name, for people."""
    epoch: int
    frontier: Lsn
    """The frontier of the slot."""
    silent_for: float
    """Seconds for which this standby has seen no sign of life from it."""


@dataclass(frozen=True)
class _Answer:
    """A row of the query `ask`."""

    locked: bool
    """Whether the lock of the lead is ours now."""
    leader: dict[str, Any] | None
    """Who led last; None if it has given up the lead."""
    leader_epoch: int
    applied_lsn: Lsn
    alive_at: datetime | None
    """The last sign of life of who holds the lock. None if this role may not see that."""


class Standby:
    """One standby, while its connection lives. A context manager: closes the connection unless it leads."""

    def __init__(self, dsn: str, slot: str) -> None:
        """Raises ConnectionLost if Postgres cannot be reached."""
        name = f"{_APPLICATION} {os.getpid()}@{socket.gethostname()}"
        self._slot = slot
        self._leads = False
        self._alive_at: datetime | None = None
        self._seen_at = time.monotonic()
        """When the leader's last sign of life was first seen. By this clock, since the server's may jump."""
        self.connection = connect(dsn, autocommit=True, application_name=name)
        """In autocommit."""
        try:
            with source_errors("becoming a standby"):
                self.connection.execute("SELECT pg_advisory_lock_shared(%s)", (standby_key(slot),))
        except BaseException:
            self.connection.close()
            raise

    def ask(self) -> Leader | Led:
        """Take the lead if the slot has no leader. Raises SourceError if the slot is not in the catalog,
        ConnectionLost."""
        with source_errors("waiting for the lead"):
            key = lock_key(self._slot)
            parameters = {"key": key, "slot": self._slot, **key_halves(key)}
            answer = fetch_row(self.connection, _Answer, _SQL["ask"], parameters)
            if answer is None:
                raise SourceError(
                    f"slot {self._slot} is not in the catalog of this database", "run `mirror-pump init` first"
                )
            if not answer.locked:
                silent_for = self._silent_for(answer.alive_at)
                return Led(leader_name(answer.leader), answer.leader_epoch, answer.applied_lsn, silent_for)
            lead = Leader.take_lead(self.connection, self._slot)
            self.connection.execute("SELECT set_config('application_name', 'mirror-pump-leader', false)")
            self.connection.execute("SELECT pg_advisory_unlock_shared(%s)", (standby_key(self._slot),))
        self._leads = True
        return lead

    def _silent_for(self, alive_at: datetime | None) -> float:
        now = time.monotonic()
        if alive_at is None or alive_at != self._alive_at:
            self._alive_at, self._seen_at = alive_at, now
        return now - self._seen_at

    def depose(self) -> bool:
        """End the sessions of the leader that would keep this standby from leading. Returns whether the one that holds
        the lock is among them. It takes the rights of the same role, or of pg_signal_backend. Raises SourceError,
        ConnectionLost."""
        parameters = {"slot": self._slot, **key_halves(lock_key(self._slot))}
        self._seen_at = time.monotonic()
        with source_errors("ending the sessions of a leader that is silent"):
            try:
                rows = self.connection.execute(_SQL["depose"], parameters).fetchall()
            except psycopg.errors.InsufficientPrivilege:
                return False
        return any(kind == "lead" and ended for kind, ended in rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._leads:
            self.connection.close()


def standbys(conn: PgConnection, slot: str) -> tuple[StandbyProcess, ...]:
    """The pumps that wait for the lead of a slot."""
    processes = []
    for application, since in lock_holders(conn, standby_key(slot)):
        named = _NAME.fullmatch(application)
        processes.append(StandbyProcess(named and named[2], int(named[1]) if named else None, since))
    return tuple(processes)


def standby_key(slot: str) -> int:
    """The key of the advisory lock that all standbys share."""
    return advisory_key(f"standby {slot}")
