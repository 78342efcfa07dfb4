"""What a server does by itself, measured between two moments, and what it has that a slot is hindered by or hinders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.rows import fetch_row, fetch_rows
from sql import queries

_SQL = queries("plan")

SHORTEST = 1.0
"""Seconds. What is written within less tells no rate."""


@dataclass(frozen=True)
class PlanSettings:
    """A row of the query `settings`."""

    version: str
    database: str
    decoding_bytes: int
    """logical_decoding_work_mem"""
    connections: int
    used_connections: int
    sees_sessions: bool
    """Whether the role sees since when other roles' transactions are open (pg_read_all_stats)"""
    pending: list[str]
    """Settings that have been changed, for which a restart is missing"""


@dataclass(frozen=True)
class ServerCounters:
    """What the server has counted, at one moment. A row of the query `counters`."""

    at: datetime
    wal_position: int
    transactions: int
    changes: int
    catalog_changes: int
    since: datetime


@dataclass(frozen=True)
class ServerLoad:
    """What the server writes"""

    seconds: float
    """How long was measured; 0: not at all, and the rates of rows are means since `since`"""
    since: str
    """When the server began to count"""
    wal_bytes_per_hour: float | None
    """WAL of the whole server; None if it was not measured"""
    changes_per_second: float
    """Rows of this database that are inserted, updated or deleted"""
    transactions_per_second: float | None
    """Transactions of the whole server that write; None if it was not measured"""
    catalog_changes_per_hour: float
    """Rows of system catalogs that are updated or deleted, by DDL and temporary tables"""


@dataclass(frozen=True)
class OpenTransaction:
    """A transaction that has written something and is still open. A row of the query `transactions`"""

    pid: int
    """0: a prepared transaction"""
    database: str | None
    role: str | None
    application: str
    prepared_as: str
    """The name of a prepared transaction"""
    transaction_id: str
    seconds: float | None
    """How long it has been open; None if this role may not see that"""


@dataclass(frozen=True)
class ExistingSlot:
    """A replication slot that the server has. A row of the query `slots`"""

    slot: str
    kind: str
    """`logical` or `physical`"""
    active: bool
    wal_status: str | None
    retained_bytes: int | None
    """WAL that it keeps"""
    xmin_age: int | None
    """Transactions since the oldest whose dead rows it keeps from VACUUM, in all tables"""
    catalog_xmin_age: int | None
    """The same, in system catalogs alone"""
    spilled_transactions: int
    """Transactions that did not fit into `logical_decoding_work_mem` while they were decoded"""
    spilled_bytes: int


def read_settings(connection: PgConnection) -> PlanSettings:
    """Raises SourceError."""
    with source_errors("reading the server's settings"):
        settings = fetch_row(connection, PlanSettings, _SQL["settings"])
    assert settings is not None
    return settings


def read_counters(connection: PgConnection) -> ServerCounters:
    """Raises SourceError."""
    with source_errors("reading the server's counters"):
        counters = fetch_row(connection, ServerCounters, _SQL["counters"])
    assert counters is not None
    return counters


def read_transactions(connection: PgConnection) -> list[OpenTransaction]:
    """Raises SourceError."""
    with source_errors("looking for open transactions"):
        return fetch_rows(connection, OpenTransaction, _SQL["transactions"])


def read_slots(connection: PgConnection) -> tuple[ExistingSlot, ...]:
    """Raises SourceError."""
    with source_errors("looking for replication slots"):
        return tuple(fetch_rows(connection, ExistingSlot, _SQL["slots"]))


def still_open(first: Sequence[OpenTransaction], last: Sequence[OpenTransaction]) -> list[OpenTransaction]:
    """Those of `last` that were open before, the oldest first: others come and go."""
    before = {(transaction.pid, transaction.transaction_id) for transaction in first}
    both_times = (each for each in last if (each.pid, each.transaction_id) in before)
    return sorted(both_times, key=lambda each: -(each.seconds or 0.0))


def measured_seconds(first: ServerCounters, last: ServerCounters) -> float:
    """The time between two moments; 0 if it is too short to tell a rate."""
    seconds = (last.at - first.at).total_seconds()
    return seconds if seconds >= SHORTEST else 0.0


def counted_seconds(counters: ServerCounters) -> float:
    """How long the server has counted."""
    return max(SHORTEST, (counters.at - counters.since).total_seconds())


def load_between(first: ServerCounters, last: ServerCounters) -> ServerLoad:
    """What was written between two moments; without time between them, rows since the server began to count."""
    seconds = measured_seconds(first, last)
    span = seconds or counted_seconds(last)
    before = first if seconds else None

    def rate(now: int, then: int) -> float:
        # Below 0 if the counters were reset meanwhile.
        return max(0, now - then) / span

    return ServerLoad(
        seconds=round(seconds, 1),
        since=last.since.isoformat(),
        wal_bytes_per_hour=max(0, last.wal_position - first.wal_position) * 3600 / seconds if seconds else None,
        changes_per_second=rate(last.changes, before.changes if before else 0),
        transactions_per_second=rate(last.transactions, before.transactions) if before else None,
        catalog_changes_per_hour=rate(last.catalog_changes, before.catalog_changes if before else 0) * 3600,
    )
