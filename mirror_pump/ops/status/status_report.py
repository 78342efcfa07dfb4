"""The status of a mirror at one time, and the JSON document that docs/cli-json.md describes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from mirror_pump.errors import SourceError
from mirror_pump.model import Lsn, TableMode, TableState, format_lsn
from mirror_pump.ops.status.lake_content import LakeContent
from mirror_pump.ops.status.maintenance_due import MaintenanceDue
from mirror_pump.ops.status.resync_state import ResyncState
from mirror_pump.ops.status.retention_state import RetentionState
from mirror_pump.source.catalog.former_locations import FormerLocation
from mirror_pump.source.catalog.pump_error import PumpError
from mirror_pump.source.stream.standby import StandbyProcess
from mirror_pump.source.stream.wal_room import WalRate, WalRoom, max_outage_seconds


@dataclass(frozen=True)
class DeleteMode:
    """How the pump wrote the deletes of a table's last commit, and the index that position deletes need."""

    mode: str = "equality"
    """`position` or `equality`. Equality deletes name keys: they need no index and are converted later."""
    phase: str | None = None
    """The index: `wanted`, `building`, `ready` or `following` (another engine's rewrite). None without an index."""
    rows: int = 0
    bytes: int = 0
    """Bytes of the pump's memory that the index takes."""


@dataclass(frozen=True)
class TableStatus:
    """The status of one mirrored table."""

    table: str
    lake_table: str
    state: TableState
    frontier: Lsn | None
    """None until the initial copy is complete, and for a tiered table, which no stream concerns."""
    lag_bytes: int | None
    lag_seconds: float | None
    snapshot_id: int | None
    metadata_location: str | None
    equality_deletes_age: float | None
    """Seconds since the oldest pending equality delete was committed; 0 if none is pending, None if unknown."""
    content: LakeContent | None
    """None if the storage could not be read; `error` then says why."""
    chunks_total: int
    chunks_done: int
    rows_copied: int
    deletes: DeleteMode
    error: str | None
    note: str | None = None
    """Information that requires no action, such as that the table was dropped, or what it waits for."""
    generated_left_out: tuple[str, ...] = ()
    """Generated columns that are not mirrored."""
    retention: RetentionState | None = None
    """None if the table has no cut-line and no reader pins it."""
    maintenance: MaintenanceDue | None = None
    """None while the table is being copied, or if its metadata could not be read."""
    mode: TableMode = TableMode.MIRRORED


@dataclass(frozen=True)
class Holder:
    """An open transaction. The slot keeps the WAL from the start of this transaction."""

    kind: str
    """`transaction` or `prepared transaction`."""
    pid: int | None
    application: str | None
    prepared: str | None
    """The identifier of the prepared transaction; None for other transactions."""
    seconds: float
    """How long the transaction has been open."""


@dataclass(frozen=True)
class SlotState:
    """The replication slot, from pg_replication_slots."""

    name: str
    publication: str
    exists: bool
    active: bool
    wal_status: str | None
    """`reserved`, `extended`, `unreserved` or `lost`."""
    retained_bytes: int | None
    """WAL that the server keeps for the slot."""
    confirmed: Lsn | None
    publication_error: str | None = None
    """Why the pump cannot use the publication, and what to do; None if it can."""
    invalidation_reason: str | None = None
    """Why the server invalidated the slot. None if it did not, and before PostgreSQL 17."""
    inactive_since: datetime | None = None
    """When the slot was last read. None while it is being read, and before PostgreSQL 17."""
    error: SourceError | None = None
    """Why no pump can resume from the slot; None if one can."""
    safe_wal_bytes: int | None = None
    """WAL that may be written before the slot may be lost, or keeps more than `wal_guard_bytes`; None without such a
    limit, and once the slot is lost."""
    wal_rate: WalRate | None = None
    """How fast the server writes WAL; None if that is not known yet."""
    held_by: Holder | None = None
    """The oldest open transaction if it keeps the WAL, that is, if it started before the newest published commit."""
    wal: WalRoom | None = None
    """What the two figures about WAL were computed from; None if the slot does not exist."""

    @property
    def max_outage_seconds(self) -> float | None:
        """How many seconds the slot survives without a pump. None without a limit, if the server writes nothing, and if
        the rate is unknown."""
        return max_outage_seconds(self.safe_wal_bytes, self.wal_rate)


@dataclass(frozen=True)
class LeaderStatus:
    """The pump that leads this mirror, is about to lead it again, or was killed while it led."""

    host: str | None
    pid: int | None
    since: str | None
    epoch: int
    alive: bool
    retrying: bool = False
    """True if the pump's last attempts failed. It waits for the next attempt, without leading, or is making it."""


class Severity(StrEnum):
    """How urgent an alert is."""

    CRITICAL = "critical"
    """The problem does not go away by itself: an operator must act. `status --check` exits with 1."""
    WARNING = "warning"
    """Nothing has stopped, but the problem grows if nobody acts."""


@dataclass(frozen=True)
class Alert:
    """A problem that an operator should know about."""

    severity: Severity
    message: str
    """What happened. It does not repeat the table's name."""
    remedy: str = ""
    """What to do; empty if the message says so already."""
    table: str | None = None
    """None if the alert concerns the whole mirror."""


@dataclass(frozen=True)
class MirrorStatus:
    """The status of a mirror at one time."""

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
    leader: LeaderStatus | None
    last_error: PumpError | None
    """Why the pump cannot continue, or why it stopped; None if it has been successful since."""
    tables: tuple[TableStatus, ...]
    standbys: tuple[StandbyProcess, ...] = ()
    """Pumps that wait for leadership."""
    served: bool = False
    """True if a maintainer runs."""
    former_locations: tuple[FormerLocation, ...] = ()
    """Locations that hold files of former registrations."""
    resyncs: tuple[ResyncState, ...] = ()
    """Tables that are copied again together, by resync."""
    alerts: tuple[Alert, ...] = ()
    """All alerts, critical ones first."""

    @property
    def backlogs(self) -> tuple[MaintenanceDue, ...]:
        """The maintenance states of all tables for which they are known."""
        return tuple(table.maintenance for table in self.tables if table.maintenance is not None)

    def to_json(self) -> dict[str, Any]:
        """Return the document that docs/cli-json.md describes."""
        return {
            "database": self.database,
            "warehouse": self.warehouse,
            "at": self.at.isoformat(),
            "wal_position": format_lsn(self.wal_position),
            "frontier": format_lsn(self.frontier),
            "commit_time": _time(self.commit_time),
            "lag_bytes": self.lag_bytes,
            "lag_seconds": self.lag_seconds,
            "slot": {
                "name": self.slot.name,
                "publication": self.slot.publication,
                "publication_error": self.slot.publication_error,
                "exists": self.slot.exists,
                "active": self.slot.active,
                "wal_status": self.slot.wal_status,
                "invalidation_reason": self.slot.invalidation_reason,
                "inactive_since": _time(self.slot.inactive_since),
                "error": None if self.slot.error is None else str(self.slot.error),
                "remedy": None if self.slot.error is None else self.slot.error.remedy,
                "retained_bytes": self.slot.retained_bytes,
                "confirmed_lsn": _lsn(self.slot.confirmed),
                "safe_wal_bytes": self.slot.safe_wal_bytes,
                "wal_bytes_per_second": None if self.slot.wal_rate is None else self.slot.wal_rate.bytes_per_second,
                "wal_rate_seconds": None if self.slot.wal_rate is None else self.slot.wal_rate.seconds,
                "max_outage_seconds": self.slot.max_outage_seconds,
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
                "retrying": self.leader.retrying,
            },
            "standbys": [
                {
                    "host": standby.host,
                    "pid": standby.pid,
                    "since": standby.since.isoformat() if standby.since else None,
                }
                for standby in self.standbys
            ],
            "last_error": None if self.last_error is None else _error_json(self.last_error),
            "maintenance": {
                "served": self.served,
                "tables_due": sum(bool(backlog.due) for backlog in self.backlogs),
                "tables_neglected": sum(backlog.neglected for backlog in self.backlogs),
                "unattended_commits": sum(backlog.commits for backlog in self.backlogs),
            },
            "resyncs": [resync.to_json() for resync in self.resyncs],
            "alerts": [asdict(alert) for alert in self.alerts],
            "tables": [_table_json(table) for table in self.tables],
            "former_locations": [former.to_json() for former in self.former_locations],
        }


def _error_json(error: PumpError) -> dict[str, Any]:
    return asdict(error) | {"at": error.at.isoformat(), "since": error.since.isoformat()}


def _table_json(table: TableStatus) -> dict[str, Any]:
    content = table.content
    return {
        "table": table.table,
        "lake_table": table.lake_table,
        "state": table.state.value,
        "mode": table.mode.value,
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
        "note": table.note,
        "generated_left_out": list(table.generated_left_out),
        "retention": None if table.retention is None else table.retention.to_json(),
        "maintenance": None if table.maintenance is None else table.maintenance.to_json(),
    }


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _lsn(position: Lsn | None) -> str | None:
    return None if position is None else format_lsn(position)
