"""Which sessions hold locks that the mirror waits for: on relations of schema modak, and those by which its processes
find each other.

Readers can take none of the former (docs/design/locks.md). The owner of schema modak, a superuser and the pump's own
role can, and any role can take an advisory lock. So what waits gives up after a while, and who it waited for is named.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg

from mirror_pump.errors import MirrorPumpError, SourceError, TransientRefusal
from mirror_pump.source.advisory_locks import key_halves
from mirror_pump.source.catalog.maintenance import server_key
from mirror_pump.source.connect import CATALOG_LOCK_TIMEOUT, PgConnection, connect, source_errors
from mirror_pump.source.rows import fetch_rows
from mirror_pump.source.stream.leader import lock_key
from mirror_pump.source.stream.standby import standby_key
from sql import queries

_SQL = queries("locks")

_WAITED = 2.0
"""Seconds after which a wait is worth telling. A publish waits for 200 ms at most for what users may lock."""
_NAMED = 3
"""How many sessions a message names."""


@dataclass(frozen=True)
class LockHolder:
    """A session that holds a lock, or has asked for it before others."""

    pid: int
    """0: a prepared transaction."""
    role: str | None
    """None for a prepared transaction, and for a session that has just ended."""
    application: str | None
    since: datetime | None
    """When its last statement began; None if this role may not see that."""
    relation: str
    """The relation, with its schema; empty for an advisory lock."""
    waiting: str
    """Application of a session that waits for it; empty if none was looked for."""
    seconds: float
    """For how long that session has waited."""

    @property
    def text(self) -> str:
        """The session, for people."""
        if self.pid == 0:
            return "a prepared transaction (pg_prepared_xacts)"
        began = (
            "" if self.since is None else f", whose last statement began at {self.since.astimezone(UTC):%H:%M:%S} UTC"
        )
        return f"process {self.pid} of role {self.role} ({self.application or 'no application_name'}{began})"

    @property
    def remedy(self) -> str:
        """How to end it."""
        if self.pid == 0:
            return "COMMIT PREPARED or ROLLBACK PREPARED what pg_prepared_xacts lists"
        return f"end its transaction, or the session: SELECT pg_terminate_backend({self.pid})"


def lock_waits(connection: PgConnection) -> tuple[LockHolder, ...]:
    """The sessions that others have waited for, for 2 s or longer, because of locks on relations of schema modak, or a
    pump because of any. Raises SourceError."""
    with source_errors("looking for sessions that hold locks"):
        return tuple(fetch_rows(connection, LockHolder, _SQL["waits"], {"seconds": _WAITED}))


def foreign_leads(connection: PgConnection, slot: str) -> tuple[LockHolder, ...]:
    """The sessions that hold a lock by which the mirror's processes find each other, and are none of them. Raises
    SourceError."""
    halves = [key_halves(key) for key in (lock_key(slot), standby_key(slot), server_key(slot))]
    parameters = {name: [key[name] for key in halves] for name in ("high", "low")}
    with source_errors("looking for sessions that hold locks"):
        return tuple(fetch_rows(connection, LockHolder, _SQL["foreign_leads"], parameters))


def naming_lock_holders(error: MirrorPumpError, dsn: str) -> MirrorPumpError:
    """`error`; if it is about a lock that was not granted in time, the same with the sessions that hold such locks in
    schema modak, as far as they can be asked for."""
    if not isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
        return error
    try:
        with (
            connect(dsn, autocommit=True, lock_timeout=CATALOG_LOCK_TIMEOUT) as connection,
            source_errors("looking for sessions that hold locks"),
        ):
            holders = fetch_rows(connection, LockHolder, _SQL["holders"])
    except SourceError:
        return error
    if not holders:
        return error
    named = TransientRefusal(f"{error}. {_locked_by(holders[:_NAMED])}", holders[0].remedy)
    named.__cause__ = error.__cause__
    return named


def naming_obstacles(connection: psycopg.Connection[Any]) -> SourceError:
    """The error of an upgrade of the catalog that was not granted a lock in time, with the sessions in its way."""
    with connection.transaction(), source_errors("looking for sessions that hold locks"):
        holders = fetch_rows(connection, LockHolder, _SQL["obstacles"])[:_NAMED]
    failed = "the catalog could not be upgraded, since a lock was not granted in time; nothing was changed"
    if not holders:
        return SourceError(failed, "run `mirror-pump init` again")
    return SourceError(f"{failed}. {_locked_by(holders)}", f"{holders[0].remedy}. Then run `mirror-pump init` again")


def _locked_by(holders: Iterable[LockHolder]) -> str:
    return "; ".join(f"{holder.relation} is locked by {holder.text}" for holder in holders)
