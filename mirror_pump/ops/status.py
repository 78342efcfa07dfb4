"""What the mirror holds and how far behind it is: one look at the catalog, and each table's current snapshot."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

import orjson

from mirror_pump.config import Settings
from mirror_pump.errors import ConnectionLost, LakeError, SourceError
from mirror_pump.lake.storage import StorageOptions, read_bytes
from mirror_pump.lake.summary import ledger, live_rows, pending_since
from mirror_pump.model import Lsn, TableId, TableName, TableState, format_lsn
from mirror_pump.ops.retention_state import RetentionState, retention_states
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.source.leader import is_led
from mirror_pump.source.publication import how_to_publish, not_whole
from mirror_pump.source.slot import check_publication
from mirror_pump.source.standby import StandbyProcess, standbys
from mirror_pump.source.tables import GENERATED_LEFT_OUT

# One statement, so that F, the slot and the WAL position belong to one moment. What the slot has confirmed, and what
# the pump reports as applied to its walsender, count as reached: a pump with nothing in hand may report how far it has
# read, and publishes F only now and then (design section 4). The written position, not the insert position: that one is
# past the header of a page on which nothing stands yet, and an idle lag would not be 0.
_MIRROR = """
SELECT (pg_current_wal_lsn() - '0/0')::bigint, clock_timestamp(), current_database(),
       s.applied_lsn, s.applied_commit_time, s.leader, s.leader_epoch,
       r.slot_name IS NOT NULL, r.active, r.wal_status,
       (pg_current_wal_lsn() - r.restart_lsn)::bigint,
       (r.confirmed_flush_lsn - '0/0')::bigint,
       (p.replay_lsn - '0/0')::bigint, p.reply_time
  FROM modak.mirror_slots s LEFT JOIN pg_replication_slots r ON r.slot_name = s.slot_name
  LEFT JOIN pg_stat_replication p ON p.pid = r.active_pid
 WHERE s.slot_name = %s
"""

# A slot keeps the WAL from the beginning of the oldest transaction that is still open, however far F is. One that began
# before the newest published commit is worth a word; other roles' transactions are for pg_read_all_stats to see.
_HOLDER = """
SELECT kind, pid, application, prepared, extract(epoch FROM clock_timestamp() - since)::float8
  FROM (SELECT 'transaction' AS kind, pid, application_name AS application, NULL AS prepared, xact_start AS since
          FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
         UNION ALL
        SELECT 'prepared transaction', NULL, NULL, gid, prepared FROM pg_prepared_xacts) open
 WHERE since < %s ORDER BY since LIMIT 1
"""

_TABLES = f"""
SELECT m.table_id, t.schema_name, t.table_name, m.lake_table, m.state,
       c.replicated_lsn, c.lake_snapshot_id, m.error, i.metadata_location,
       p.total, p.done, p.rows, m.key_index, {GENERATED_LEFT_OUT}
  FROM modak.mirror_tables m
  JOIN modak.tables t USING (table_id)
  LEFT JOIN modak.cutline c USING (table_id)
  LEFT JOIN modak.iceberg_tables i
    ON i.catalog_name = 'lake' AND i.table_namespace = t.schema_name AND i.table_name = m.lake_table
 CROSS JOIN LATERAL (
       SELECT count(*) AS total, count(k.done_at) AS done,
              coalesce(sum(k.rows) FILTER (WHERE k.done_at IS NOT NULL), 0)::bigint AS rows
         FROM modak.copy_chunks k WHERE k.table_id = m.table_id AND k.generation = m.generation) p
 WHERE m.slot_name = %s
 ORDER BY t.schema_name, t.table_name
"""


@dataclass(frozen=True)
class LakeContent:
    """An Iceberg table's current snapshot in figures, from its summary."""

    rows: int
    """Rows in data files less those that position deletes hide. An upper bound while equality deletes are pending."""
    data_files: int
    delete_files: int
    equality_deletes: int
    """Keys in equality-delete files: each hides at most one row of an older file."""
    equality_deletes_since: datetime | None
    """When the oldest of them was committed, by the pump's clock; None if there are none."""
    size_bytes: int
    written_bytes: int
    """Files that commits have brought since the table was created."""
    rewritten_bytes: int
    """Files that resolves and merges have written beside that."""


@dataclass(frozen=True)
class DeleteMode:
    """How the pump wrote the deletes of a table's last commit, and the index that lets it."""

    mode: str = "equality"
    """`position`, or `equality`: by key, which needs no index, and is resolved later."""
    phase: str | None = None
    """The index: `wanted`, `building`, `ready`, `following` (another engine's rewrite); None if there is none."""
    rows: int = 0
    bytes: int = 0
    """Of the pump's memory."""


@dataclass(frozen=True)
class TableStatus:
    """One mirrored table."""

    table: str
    lake_table: str
    state: TableState
    frontier: Lsn | None
    """F; None until the initial copy is complete."""
    lag_bytes: int | None
    lag_seconds: float | None
    snapshot_id: int | None
    metadata_location: str | None
    equality_deletes_age: float | None
    """Seconds since the oldest pending equality delete was committed; 0 if none is pending, None if unknown."""
    content: LakeContent | None
    """None when the storage could not be read; `error` then says why."""
    chunks_total: int
    chunks_done: int
    rows_copied: int
    deletes: DeleteMode
    error: str | None
    generated_left_out: tuple[str, ...] = ()
    """Generated columns that are not mirrored."""
    retention: RetentionState | None = None
    """None: nothing has to be said of old partitions, and no reader pins the table."""


@dataclass(frozen=True)
class Holder:
    """An open transaction, from whose beginning on the slot keeps the WAL."""

    kind: str
    """`transaction` or `prepared transaction`."""
    pid: int | None
    application: str | None
    prepared: str | None
    """The name that it was prepared under."""
    seconds: float
    """How long it has been open."""


@dataclass(frozen=True)
class SlotState:
    """The replication slot, from pg_replication_slots."""

    name: str
    publication: str
    exists: bool
    active: bool
    wal_status: str | None
    """reserved, extended, unreserved or lost."""
    retained_bytes: int | None
    """WAL that the server keeps for the slot."""
    confirmed: Lsn | None
    publication_error: str | None = None
    """Why the pump cannot go on with the publication, and what to do."""
    held_by: Holder | None = None
    """The oldest open transaction, if later ones are published already: it is why the WAL is kept."""


@dataclass(frozen=True)
class Leader:
    """The pump that leads this mirror, or one that was killed while it led."""

    host: str | None
    pid: int | None
    since: str | None
    epoch: int
    alive: bool


@dataclass(frozen=True)
class MirrorStatus:
    """One look at a mirror."""

    database: str
    warehouse: str
    at: datetime
    wal_position: Lsn
    frontier: Lsn
    commit_time: datetime | None
    """When the newest published transaction was committed."""
    lag_bytes: int
    lag_seconds: float | None
    slot: SlotState
    leader: Leader | None
    tables: tuple[TableStatus, ...]
    standbys: tuple[StandbyProcess, ...] = ()
    """Pumps that wait for the lead."""

    def to_json(self) -> dict[str, Any]:
        """The document that docs/cli-json.md describes."""
        return {
            "database": self.database,
            "warehouse": self.warehouse,
            "at": self.at.isoformat(),
            "wal_position": format_lsn(self.wal_position),
            "frontier": format_lsn(self.frontier),
            "commit_time": self.commit_time.isoformat() if self.commit_time else None,
            "lag_bytes": self.lag_bytes,
            "lag_seconds": self.lag_seconds,
            "slot": {
                "name": self.slot.name,
                "publication": self.slot.publication,
                "publication_error": self.slot.publication_error,
                "exists": self.slot.exists,
                "active": self.slot.active,
                "wal_status": self.slot.wal_status,
                "retained_bytes": self.slot.retained_bytes,
                "confirmed_lsn": _lsn(self.slot.confirmed),
                "held_by": None if self.slot.held_by is None else asdict(self.slot.held_by),
            },
            "leader": None
            if self.leader is None
            else {
                "host": self.leader.host,
                "pid": self.leader.pid,
                "since": self.leader.since,
                "epoch": self.leader.epoch,
                "alive": self.leader.alive,
            },
            "standbys": [
                {
                    "host": standby.host,
                    "pid": standby.pid,
                    "since": standby.since.isoformat() if standby.since else None,
                }
                for standby in self.standbys
            ],
            "tables": [_table_json(table) for table in self.tables],
        }


def _table_json(table: TableStatus) -> dict[str, Any]:
    content = table.content
    return {
        "table": table.table,
        "lake_table": table.lake_table,
        "state": table.state.value,
        "frontier": _lsn(table.frontier),
        "lag_bytes": table.lag_bytes,
        "lag_seconds": table.lag_seconds,
        "rows": content.rows if content else None,
        "rows_exact": content.equality_deletes == 0 if content else None,
        "data_files": content.data_files if content else None,
        "delete_files": content.delete_files if content else None,
        "equality_deletes": content.equality_deletes if content else None,
        "delete_mode": table.deletes.mode,
        "index_phase": table.deletes.phase,
        "index_rows": table.deletes.rows,
        "index_bytes": table.deletes.bytes,
        "equality_deletes_age": table.equality_deletes_age,
        "size_bytes": content.size_bytes if content else None,
        "written_bytes": content.written_bytes if content else None,
        "rewritten_bytes": content.rewritten_bytes if content else None,
        "snapshot_id": str(table.snapshot_id) if table.snapshot_id is not None else None,
        "metadata_location": table.metadata_location,
        "copy": {"chunks_total": table.chunks_total, "chunks_done": table.chunks_done, "rows": table.rows_copied},
        "error": table.error,
        "generated_left_out": list(table.generated_left_out),
        "retention": None if table.retention is None else table.retention.to_json(),
    }


def _lsn(position: Lsn | None) -> str | None:
    return None if position is None else format_lsn(position)


class StatusReader:
    """Looks at one mirror over one connection, again and again for --watch. Takes completed settings."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._storage = StorageOptions(settings.storage_properties)
        self._connection = self._connect()
        self._contents: dict[str, LakeContent] = {}
        self._caught_up_at: datetime | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def read(self) -> MirrorStatus:
        """One look. Raises SourceError when the database cannot be asked; unreadable storage is a table's `error`."""
        with source_errors("reading the mirror's status"):
            if self._connection.closed:
                self._connection = self._connect()
            row = self._connection.execute(_MIRROR, (self._settings.slot,)).fetchone()
            if row is None:
                raise SourceError(
                    f"the catalog does not know slot {self._settings.slot}", "run `mirror-pump init` first"
                )
            tables = self._connection.execute(_TABLES.encode(), (self._settings.slot,)).fetchall()
            holder = self._connection.execute(_HOLDER, (row[4],)).fetchone() if row[4] is not None else None
            leader = self._leader(row[5], int(row[6]))
            waiting = standbys(self._connection, self._settings.slot)
            retention = retention_states(self._connection, self._settings.slot)
            error = self._publication_error()
            unpublished = set() if error is not None else not_whole(self._connection, self._settings.slot)
        wal, at, database, applied, commit_time = row[:5]
        slot = SlotState(self._settings.slot, self._settings.publication, row[7], bool(row[8]), *row[9:12])
        slot = replace(slot, publication_error=error)
        if holder is not None:
            slot = replace(slot, held_by=Holder(*holder))
        replayed, replied_at = row[12:14]
        reached = max(applied, slot.confirmed or 0, replayed or 0)
        # Beyond F the pump only reports when nothing is in its hands: until then nothing was left out.
        idle_at = replied_at if replayed is not None and replayed > applied else None
        lag_seconds = self._lag_seconds(at, commit_time, idle_at, caught_up=reached >= wal)
        contents = {str(table[8]): self._content(table[8]) for table in tables if table[8] is not None}
        self._contents = {key: value for key, value in contents.items() if isinstance(value, LakeContent)}
        status = MirrorStatus(
            database=database,
            warehouse=self._settings.require_warehouse(),
            at=at,
            wal_position=Lsn(wal),
            frontier=Lsn(applied),
            commit_time=commit_time,
            lag_bytes=max(0, wal - reached),
            lag_seconds=lag_seconds,
            slot=slot,
            leader=leader,
            tables=(),
            standbys=waiting,
        )
        shown = (
            replace(_table(table, status, contents, unpublished), retention=retention.get(table[0])) for table in tables
        )
        return replace(status, tables=tuple(shown))

    def _connect(self) -> PgConnection:
        return connect(self._settings.require_dsn(), autocommit=True, application_name="mirror-pump-status")

    def _publication_error(self) -> str | None:
        try:
            check_publication(self._connection, self._settings.publication)
        except ConnectionLost:
            raise
        except SourceError as error:
            return f"{error}. {error.remedy}"
        return None

    def _leader(self, leader: Mapping[str, Any] | None, epoch: int) -> Leader | None:
        alive = is_led(self._connection, self._settings.slot)
        if leader is None and not alive:
            return None
        named = leader or {}
        return Leader(named.get("host"), named.get("pid"), named.get("started_at"), epoch, alive)

    def _lag_seconds(
        self, at: datetime, commit_time: datetime | None, idle_at: datetime | None, *, caught_up: bool
    ) -> float | None:
        """0 when everything committed is published, else the age of the newest moment for which that is known.

        That moment is the last published commit, the pump's last report that it had nothing in hand, or the last look
        at which the mirror was caught up; None without any. So it is an upper bound of what a reader misses.
        """
        if caught_up:
            self._caught_up_at = at
            return 0.0
        known = [moment for moment in (commit_time, idle_at, self._caught_up_at) if moment is not None]
        return max(0.0, (at - max(known)).total_seconds()) if known else None

    def _content(self, location: str) -> LakeContent | str:
        """The table's figures; or, in words, why they cannot be had. A metadata file never changes: read once."""
        known = self._contents.get(location)
        if known is not None:
            return known
        try:
            return lake_content(read_bytes(location, self._storage))
        except LakeError as error:
            return f"its metadata cannot be read: {error}"


def _table(
    row: tuple[Any, ...], mirror: MirrorStatus, contents: Mapping[str, LakeContent | str], unpublished: Set[TableId]
) -> TableStatus:
    table_id, schema, table_name, lake_table, state, frontier, snapshot_id, error, location, *rest = row
    total, done, rows, index, left_out = rest
    name = TableName(schema, table_name)
    if table_id in unpublished:
        remedy = how_to_publish(mirror.slot.publication, name)
        error = f"publication {mirror.slot.publication} does not have all of it: {remedy}"
    content = contents.get(location) if location is not None else None
    # All live tables share one F: what holds of the mirror holds of them. A table set aside stays where it stopped.
    live = state == TableState.LIVE and frontier is not None
    behind = mirror.lag_bytes if live else None
    if state == TableState.FAILED and frontier is not None:
        behind = max(0, mirror.wal_position - frontier)
    return TableStatus(
        table=str(name),
        lake_table=str(TableName(schema, lake_table)),
        state=TableState(state),
        frontier=None if frontier is None else Lsn(frontier),
        lag_bytes=behind,
        lag_seconds=mirror.lag_seconds if live else None,
        snapshot_id=snapshot_id,
        metadata_location=location,
        equality_deletes_age=_age(content, mirror.at) if isinstance(content, LakeContent) else None,
        content=content if isinstance(content, LakeContent) else None,
        chunks_total=total,
        chunks_done=done,
        rows_copied=rows,
        deletes=DeleteMode(**(index or {})),
        error=error or (content if isinstance(content, str) else None),
        generated_left_out=tuple(left_out),
    )


def _age(content: LakeContent, now: datetime) -> float:
    since = content.equality_deletes_since
    return 0.0 if since is None else max(0.0, (now - since).total_seconds())


def lake_content(metadata: bytes) -> LakeContent:
    """The figures of the current snapshot in a table's metadata JSON (Iceberg spec, snapshot summary fields)."""
    document = orjson.loads(metadata)
    current = document.get("current-snapshot-id")
    summary: Mapping[str, str] = next(
        (snapshot["summary"] for snapshot in document.get("snapshots", ()) if snapshot["snapshot-id"] == current), {}
    )

    def total(name: str) -> int:
        return int(summary.get(f"total-{name}", 0))

    since = pending_since(document)
    counted = ledger(document)
    return LakeContent(
        rows=live_rows(document, summary),
        data_files=total("data-files"),
        delete_files=total("delete-files"),
        equality_deletes=total("equality-deletes"),
        equality_deletes_since=None if since is None else datetime.fromtimestamp(since / 1000, UTC),
        size_bytes=total("files-size"),
        written_bytes=counted.written,
        rewritten_bytes=counted.rewritten,
    )
