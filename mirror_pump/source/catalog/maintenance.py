"""Maintenance's access to the catalog: the tables and what protects their files, requests, journal, locks, statistics.

A maintainer holds the advisory lock of the table that it works on, so that two never work on the same table. Every
operation has a row in modak.op_log. A heartbeat keeps the rows of running operations fresh. If a maintainer dies, the
next one that gets the lock marks its rows as `abandoned`.

While files of the table are rewritten, the row's phase is `rewriting`. `since_sequence` in its details is the table's
sequence number at its beginning. A pump that sees such a row, refreshed within 60 s, must not commit position deletes
for files that it did not add since then, nor remove or merge data files, because the rewrite could not land. Equality
deletes and new data files do no harm.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg import errors
from psycopg.types.json import Jsonb

from mirror_pump.database.catalog_cursor import mirror_on
from mirror_pump.errors import SourceError, TableError
from mirror_pump.model import Lsn, TableId, TableName, TableState
from mirror_pump.operation_life import OperationPhase
from mirror_pump.source.advisory_locks import advisory_key, key_halves
from mirror_pump.source.catalog.slot_row import lock_slot
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.rows import TypedRow, fetch_row, fetch_rows
from mirror_pump.source.server import server_time
from sql import queries

_SQL = queries("maintenance")

COMPACTION = "compaction"
"""op_log.op_kind of operations that rewrite files."""
MAINTENANCE = "maintenance"
"""op_log.op_kind of whole passes, and of operations that remove unneeded files and snapshots."""

NEGLECTED_AFTER = 86400.0
"""Seconds after which a table with new commits counts as neglected, if no maintainer has examined it."""


class TableUnregistered(TableError):
    """The table was unregistered while it was maintained: nothing is left to be done for it."""


@contextmanager
def _of_registered(doing: str) -> Iterator[None]:
    """As `source_errors`, for what refers to a registration. Raises TableUnregistered if that has ended meanwhile."""
    with source_errors(doing):
        try:
            yield
        except errors.ForeignKeyViolation as error:
            raise TableUnregistered("the table was unregistered meanwhile") from error


@dataclass(frozen=True)
class MaintainedTable(TypedRow):
    """A mirrored table as maintenance finds it at one moment. A row of the query `tables`."""

    table_id: TableId
    name: TableName
    lake_table: str
    location: str
    state: TableState
    start_lsn: Lsn
    policy: Mapping[str, Any] | None
    """The overrides in modak.tables.maintenance_policy. None: there are none."""
    metadata_location: str
    previous_metadata_location: str | None
    published_snapshot: int
    """cutline.lake_snapshot_id."""
    published_location: str
    """The metadata file that cutline.lake_props names; empty if none."""
    pinned: frozenset[int]
    """Snapshots of unexpired read pins."""
    kept_snapshots: frozenset[int]
    """Snapshots of moments that are kept. They stay, and hold no other snapshot."""
    kept_files: frozenset[str]
    """Metadata files of moments."""
    moments: tuple[str, ...]
    """Names of the moments that have the table."""
    copy_planned: bool
    copied_files: frozenset[str]
    """URIs of files of a tiered table's partitions that are not in the lake yet."""

    @property
    def copying(self) -> bool:
        """Whether its initial copy is not complete: nothing may be rewritten or removed."""
        return self.copy_planned or self.state in (TableState.WAITING, TableState.COPYING, TableState.FILLING)

    @property
    def protected(self) -> frozenset[int]:
        """Snapshots that readers may be using, or may be directed to."""
        return self.pinned | self.kept_snapshots | {self.published_snapshot}

    @property
    def locations_in_use(self) -> frozenset[str]:
        """Metadata files that the catalog names."""
        named = {self.metadata_location, self.published_location, self.previous_metadata_location or ""}
        return frozenset(named - {""}) | self.kept_files


def read_tables(
    connection: PgConnection, slot: str, table_ids: Collection[TableId] | None = None
) -> tuple[MaintainedTable, ...]:
    """The slot's tables, or those of them with these IDs, ordered by table_id."""
    with source_errors("reading the tables to maintain"):
        parameters = {"slot": slot, "table_ids": None if table_ids is None else list(table_ids)}
        return tuple(fetch_rows(connection, MaintainedTable, _SQL["tables"], parameters))


@dataclass(frozen=True)
class Attention(TypedRow):
    """The state of a table's maintenance. A row of the query `attention`."""

    table_id: TableId
    name: TableName
    stats: Mapping[str, Any] | None
    """The statistics of the last examination (mirror_pump.lake.contents.table_stats), and its `metadata_location`.
    None before the first one."""
    collected_at: datetime | None
    """When that was."""
    unattended_seconds: float | None
    """How long the table has had commits that no maintainer has examined. None if it has none, or if its maintenance is
    disabled."""
    swept_at_sequence: int | None
    """Sequence number at the last sweep. None before the first."""
    last_phase: OperationPhase | None
    last_errors: list[Any] | None
    """Of the last pass. None before the first."""

    @property
    def failure(self) -> str | None:
        """The error of the last pass; None if it succeeded."""
        failed = self.last_phase is OperationPhase.FAILED
        return "; ".join(map(str, self.last_errors or ())) if failed else None

    @property
    def neglected(self) -> bool:
        """Whether a maintainer should have examined the table by now."""
        return self.unattended_seconds is not None and self.unattended_seconds >= NEGLECTED_AFTER


def attention(connection: PgConnection, slot: str) -> list[Attention]:
    """The maintenance state of all tables of the slot that are in the lake, by name. Runs one query on the catalog."""
    with source_errors("looking at the tables' maintenance"):
        return fetch_rows(connection, Attention, _SQL["attention"], {"slot": slot})


def change_policy(connection: PgConnection, table_id: TableId, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Sets the given keys of a table's policy, and removes those whose value is None. Returns the stored policy."""
    with source_errors("changing the maintenance policy"), connection.transaction():
        row = connection.execute(_SQL["policy"], {"table_id": table_id}).fetchone()
        if row is None:
            raise TableError("the table is not registered any more")
        (stored,) = row
        policy = {key: value for key, value in {**(stored or {}), **changes}.items() if value is not None}
        connection.execute(_SQL["store_policy"], {"table_id": table_id, "policy": Jsonb(policy) if policy else None})
    return policy


def file_request(connection: PgConnection, table_id: TableId, by: str) -> datetime:
    """Requests maintenance of a table. Returns the database's time; the pass that answers begins at or after it. Raises
    TableUnregistered."""
    with _of_registered("filing a maintenance request"), connection.transaction():
        moment = server_time(connection)
        connection.execute(_SQL["request"], {"table_id": table_id, "by": by})
    return moment


def safe_time(connection: PgConnection) -> float:
    """The present, seconds since 1970: the earlier one of the server's clock and this machine's. What is old by it is
    old, although one of the two may have jumped ahead."""
    return min(time.time(), server_time(connection).timestamp())


def withdraw_requests(connection: PgConnection, table_ids: Collection[TableId], by: str) -> None:
    """Withdraws the requests of `by` that no maintainer has claimed."""
    with source_errors("withdrawing maintenance requests"):
        connection.execute(_SQL["withdraw"], {"table_ids": list(table_ids), "by": by})


def requested(connection: PgConnection, slot: str) -> list[TableId]:
    """Tables with maintenance requests, in the order of the requests. Includes requests that were claimed by a
    maintainer whose last heartbeat is more than 60 s old."""
    with source_errors("looking for maintenance requests"):
        return [TableId(row[0]) for row in connection.execute(_SQL["requested"], {"slot": slot}).fetchall()]


def answer_to(
    connection: PgConnection, table_id: TableId, since: datetime
) -> tuple[OperationPhase, dict[str, Any]] | None:
    """Phase and details of the first pass that began at or after `since` and has ended; None while there is none."""
    with source_errors("waiting for maintenance"):
        row = connection.execute(_SQL["result"], {"table_id": table_id, "since": since}).fetchone()
    if row is None:
        return None
    phase, details = row
    return OperationPhase(phase), dict(details)


@contextmanager
def table_lock(connection: PgConnection, table_id: TableId) -> Iterator[bool]:
    """Tries to lock the table for the block; yields whether that succeeded. The lock also ends with the connection."""
    # Each mirror of the database has a lake table of its own of the table.
    mirror = mirror_on(connection)
    key = _lock_key(f"table {table_id}" if mirror is None else f"table {table_id} in {mirror}")
    with source_errors("locking a table for maintenance"):
        row = connection.execute("SELECT pg_try_advisory_lock(%s)", (key,)).fetchone()
    granted = bool(row and row[0])
    try:
        yield granted
    finally:
        if granted and not connection.closed:
            with source_errors("unlocking a table"):
                connection.execute("SELECT pg_advisory_unlock(%s)", (key,))


def announce_server(connection: PgConnection, slot: str) -> None:
    """Announces, until the connection ends, that a maintainer serves requests."""
    with source_errors("announcing the maintainer"):
        connection.execute("SELECT pg_advisory_lock_shared(%s)", (server_key(slot),))


def is_served(connection: PgConnection, slot: str) -> bool:
    """Whether a maintainer serves requests at the moment."""
    with source_errors("looking for a maintainer"):
        row = connection.execute(_SQL["served"], key_halves(server_key(slot))).fetchone()
    return bool(row and row[0])


def server_key(slot: str) -> int:
    """The key of the advisory lock that the maintainers which serve requests share."""
    return _lock_key(f"server {slot}")


def _lock_key(what: str) -> int:
    return advisory_key(f"maintenance {what}")


def claim(connection: PgConnection, table_id: TableId, details: Mapping[str, Any]) -> tuple[uuid.UUID, str] | None:
    """Claims the table's request and journals the begin of the pass that answers it, in one transaction. Returns the
    operation's ID and the requester. None if there is no request (any more)."""
    with source_errors("claiming a maintenance request"), connection.transaction():
        row = connection.execute(_SQL["claim"], {"table_id": table_id}).fetchone()
        if row is None:
            return None
        by = str(row[0])
        return begin(connection, table_id, MAINTENANCE, OperationPhase.RUNNING, {**details, "requested_by": by}), by


def begin(
    connection: PgConnection, table_id: TableId, kind: str, phase: OperationPhase, details: Mapping[str, Any]
) -> uuid.UUID:
    """Enters an operation into the journal. Raises TableUnregistered."""
    op_id = uuid.uuid4()
    with _of_registered("journalling"):
        connection.execute(
            _SQL["begin"],
            {
                "op_id": op_id,
                "table_id": table_id,
                "kind": kind,
                "phase": phase,
                "details": Jsonb(dict(details)),
            },
        )
    return op_id


def finish(
    connection: PgConnection,
    op_id: uuid.UUID,
    phase: OperationPhase,
    details: Mapping[str, Any],
    snapshot_id: int | None = None,
) -> None:
    """Ends an operation in the journal; `details` are added to what is there."""
    with source_errors("journalling"):
        connection.execute(
            _SQL["finish"],
            {"op_id": op_id, "phase": phase, "details": Jsonb(dict(details)), "snapshot_id": snapshot_id},
        )


def beat(connection: PgConnection, op_ids: Collection[uuid.UUID]) -> None:
    """Refreshes the heartbeat of these operations."""
    with source_errors("journalling"):
        connection.execute(_SQL["beat"], {"op_ids": list(op_ids)})


def clear_up(connection: PgConnection, table_id: TableId) -> None:
    """Marks operations of a dead maintainer as abandoned, files its unanswered request again, and deletes journal rows
    that ended 30 days ago. The caller must hold the table's lock."""
    with _of_registered("clearing up the journal"), connection.transaction():
        for operation, requested_by in connection.execute(_SQL["abandon"], {"table_id": table_id}).fetchall():
            if operation == "pass" and requested_by is not None:
                connection.execute(_SQL["request"], {"table_id": table_id, "by": requested_by})
        connection.execute(_SQL["prune"], {"table_id": table_id})


def last(connection: PgConnection, table_id: TableId, operation: str) -> tuple[str, dict[str, Any], float] | None:
    """Phase, details and age in seconds of the newest finished operation of that name; None if there is none."""
    with source_errors("reading the journal"):
        parameters = {"table_id": table_id, "operation": operation}
        row = fetch_row(connection, _LastRow, _SQL["last"], parameters)
    return None if row is None else (row.phase, row.details, row.age)


@dataclass(frozen=True)
class _LastRow:
    """A row of the query `last`."""

    phase: str
    details: dict[str, Any]
    age: float
    """Seconds."""


def store_stats(
    connection: PgConnection,
    table_id: TableId,
    stats: Mapping[str, Any],
    warnings: Collection[str],
    policy: Mapping[str, Any],
) -> None:
    """Refreshes the table's row of modak.lake_stats. Raises TableUnregistered."""
    with _of_registered("storing the table's figures"):
        connection.execute(
            _SQL["store_stats"],
            {
                "table_id": table_id,
                "stats": Jsonb(dict(stats)),
                "warnings": Jsonb(list(warnings)),
                "policy": Jsonb(dict(policy)),
            },
        )


def may_delete_files(connection: PgConnection, slot: str) -> bool:
    """Whether the mirror continues on this server, so that files that its catalog does not refer to are its own."""
    return bool(connection.execute(_SQL["follows"], {"slot": slot}).fetchone() == (True,))


def begin_sweep(connection: PgConnection, slot: str, table: MaintainedTable, before: float) -> bool:
    """Declares that unreferenced files of the table older than `before` (seconds since 1970) may be deleted from now
    on.

    Publishes that committed earlier are visible to everybody who reads the pointer afterwards. A later publish that
    contains a file as old as that fails, and its batch is received again. So no publish can refer to a file that is
    being swept, no matter how long it was delayed. Returns False if the table was registered again or is being copied.

    Raises SourceError on a server that no pump has followed to since it was promoted or restored: it may be a copy, and
    what its catalog does not refer to are the files of the original.
    """
    with _declaring(connection, slot, table.name):
        done = connection.execute(
            _SQL["begin_sweep"], {"table_id": table.table_id, "start_lsn": table.start_lsn, "before": before}
        )
        return done.rowcount == 1


def begin_feed_sweep(connection: PgConnection, slot: str, name: TableName, before: float) -> None:
    """As `begin_sweep`, for the files of change feeds, which the publishes of all tables with a feed bring. Tables
    being copied bring none. `name` is the feed's. Raises SourceError."""
    with _declaring(connection, slot, name):
        connection.execute(_SQL["begin_feed_sweep"], {"slot": slot, "before": before})


@contextmanager
def _declaring(connection: PgConnection, slot: str, name: TableName) -> Iterator[None]:
    with source_errors("declaring a sweep"), connection.transaction():
        lock_slot(connection, slot)
        if not may_delete_files(connection, slot):
            raise SourceError(
                f"no file of {name} is deleted: the server was promoted or restored since the last publish, or"
                f" its slot {slot} is gone, and files that its catalog does not know may be another server's",
                "start a pump: it continues, or says what to do, and so does `mirror-pump status`. A copy for other"
                " purposes needs its own warehouse",
            )
        yield
