"""The status of a mirror at one time, and the JSON document that docs/cli-json.md describes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from mirror_pump.errors import SourceError, of_this_mirror
from mirror_pump.json_documents import JsonDocument
from mirror_pump.model import Lsn, SnapshotId, TableMode, TableState
from mirror_pump.ops.status.feed_status import FeedStatus
from mirror_pump.ops.status.lake_content import LakeContent
from mirror_pump.ops.status.maintenance_due import MaintenanceDue
from mirror_pump.ops.status.resync_state import ResyncState
from mirror_pump.ops.status.retention_state import RetentionState
from mirror_pump.runtime.service_thread import ThreadFailure
from mirror_pump.source.catalog.followed import NewTablePattern, NotJoined
from mirror_pump.source.catalog.followers import Follower
from mirror_pump.source.catalog.former_locations import FormerLocation
from mirror_pump.source.catalog.kept_moments import KeptMoment
from mirror_pump.source.catalog.lock_holders import LockHolder
from mirror_pump.source.catalog.lost_rows import LostRow
from mirror_pump.source.catalog.pump_error import PumpError
from mirror_pump.source.stream.standby import StandbyProcess
from mirror_pump.source.stream.synchronous import SynchronousCommits
from mirror_pump.source.stream.wal_room import WalRate, WalRoom, max_outage_seconds


@dataclass(frozen=True)
class DeleteMode:
    """How the pump wrote the deletes of a table's last commit, and the index that position deletes need."""

    mode: str = "equality"
    """How its last commit with deletes wrote them: `position`, which every engine reads fast, or `equality`, some or
    all by key, to be converted later. `equality` before the first delete."""
    phase: str | None = None
    """The key index of the pump: `wanted` (it begins with the next commit), `building`, `ready`, `following` (reading
    the files of another engine's rewrite). None where there is none: no deletes yet, no room in `index_memory` and
    `index_disk`, or a key that cannot be indexed."""
    rows: int = 0
    """Rows of the key index, as of the last commit."""
    bytes: int = 0
    """Bytes of the pump's memory that the key index takes."""
    disk_bytes: int = 0
    """Bytes of its temporary files: it does not fit into `index_memory`."""


_TABLE_PARTS = (
    "content",
    "chunks_total",
    "chunks_done",
    "rows_copied",
    "deletes",
    "unreadable",
    "unreadable_remedy",
    "metadata_damaged",
    "repair",
)
"""Fields that JSON does not have, or not under their names."""
_CONTENT = (
    "rows",
    "rows_exact",
    "data_files",
    "delete_files",
    "equality_deletes",
    "size_bytes",
    "written_bytes",
    "rewritten_bytes",
)
"""Fields of LakeContent that JSON has."""


@dataclass(frozen=True)
class TableStatus(JsonDocument, keys=dict.fromkeys(_TABLE_PARTS)):
    """The status of one mirrored table."""

    table: str
    lake_table: str
    state: TableState
    """What the states mean is in docs/schema-changes.md#the-life-of-a-mirrored-table."""
    frontier: Lsn | None
    """None until its initial copy is complete. It stays where it was while the table waits or is copied again, and once
    it has failed or was dropped."""
    lag_bytes: int | None
    lag_seconds: float | None
    """None for tables that are not live."""
    snapshot_id: SnapshotId | None
    metadata_location: str | None
    """The Iceberg metadata file of the current snapshot."""
    equality_deletes_age: float | None
    """Seconds since the oldest pending equality delete was committed; 0 if none is pending, None if unknown."""
    content: LakeContent | None
    """None if the storage could not be read; `error` then says why."""
    chunks_total: int
    chunks_done: int
    rows_copied: int
    deletes: DeleteMode
    error: str | None
    """Why the table failed, what its owner has to do before it is copied again (it has no key, or is not published
    whole), or why its files could not be read, whose figures are None then. None if all is well."""
    note: str | None = None
    """What is to be known though no operator has to act: that the table was dropped, or what it waits for."""
    generated_left_out: tuple[str, ...] = ()
    """Generated columns that are not mirrored: virtual ones, and stored ones before PostgreSQL 18."""
    excluded: tuple[str, ...] = ()
    """Columns that are left out: excluded at registration, or added later to a table with masks."""
    masked: tuple[str, ...] = ()
    """Columns with masks."""
    row_filter: str = ""
    """The condition of the rows that are mirrored; empty for all rows."""
    paused_since: datetime | None = None
    """Since when the table is paused. None: it is not."""
    partition_by: str = ""
    """By what the lake's files are partitioned, as `--partition-by` takes it; empty: they are not."""
    sort_by: str = ""
    """By what the rows of the lake's files are sorted, as `--sort-by` takes it; empty: they are not."""
    snapshot_only: bool = False
    """Whether it is copied from time to time, and its changes are not followed."""
    snapshot_every: timedelta | None = None
    """How long after its last copy the next one begins. None: on request."""
    retention: RetentionState | None = None
    """None if the table has no cut-line and no reader pins it."""
    maintenance: MaintenanceDue | None = None
    """None while the table is being copied, or if its metadata could not be read."""
    mode: TableMode = TableMode.MIRRORED
    """`mirrored`, or `tiered`: no stream concerns it, so it has no frontier and no lag."""
    unreadable: str | None = None
    """Why its metadata cannot be read; None if it can. Also the `error` of a table without another one."""
    unreadable_remedy: str = ""
    """What to do about that."""
    metadata_damaged: bool = False
    """Whether it cannot be read because it is damaged, and not because the storage lacks it or does not answer."""
    damaged_files: tuple[str, ...] = ()
    """URIs of files of its lake table that a job of the pump could not read
    (docs/maintenance.md#when-files-of-the-lake-are-damaged)."""
    repair: str = ""
    """What to do about them."""

    def to_json(self) -> dict[str, Any]:
        deletes = self.deletes
        return {
            **super().to_json(),
            **{name: None if self.content is None else getattr(self.content, name) for name in _CONTENT},
            "delete_mode": deletes.mode,
            "index_phase": deletes.phase,
            "index_rows": deletes.rows,
            "index_bytes": deletes.bytes,
            "index_disk_bytes": deletes.disk_bytes,
            "copy": {"chunks_total": self.chunks_total, "chunks_done": self.chunks_done, "rows": self.rows_copied},
        }


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
class SlotState(
    JsonDocument, keys={"confirmed": "confirmed_lsn", "wal_rate": None, "wal": None}, also=("max_outage_seconds",)
):
    """The replication slot, from pg_replication_slots."""

    name: str
    publication: str
    exists: bool
    active: bool
    wal_status: str | None
    """As in pg_replication_slots: `reserved`, `extended`, `unreserved` or `lost`; None when the slot does not exist."""
    retained_bytes: int | None
    """WAL that the server keeps for the slot."""
    confirmed: Lsn | None
    publication_error: str | None = None
    """Why the pump cannot use the publication (it is gone, or has other settings), and what to do; None if it can."""
    invalidation_reason: str | None = None
    """Why the server invalidated the slot, as in pg_replication_slots. None if it did not, and before PostgreSQL 17."""
    inactive_since: datetime | None = None
    """When the slot was last read. None while it is being read, and before PostgreSQL 17."""
    error: SourceError | None = None
    """Why no pump can resume from the slot (it is gone, was invalidated, moved or re-created), since when as far as
    that is known; `remedy` says what to do. None if one can."""
    safe_wal_bytes: int | None = None
    """WAL that the server may write before the slot can be lost (`safe_wal_size` of pg_replication_slots), or before it
    keeps more than `wal_guard_bytes`, if that is less; at least 0. None without such a limit, and once the slot is
    lost."""
    wal_rate: WalRate | None = None
    """How fast the server writes WAL, over how many seconds that was measured: since its last checkpoint began. None
    for 10 s after that. docs/monitoring.md#historyjson has the rate over the last minute."""
    held_by: Holder | None = None
    """The oldest open transaction, if transactions that were committed after it began are published: the slot keeps the
    WAL from its beginning on. `kind` is `transaction` (with `pid` and `application`) or `prepared transaction` (with
    its name in `prepared`), `seconds` how long it has been open. None if there is none, and if the role may not see
    other roles' sessions (`pg_read_all_stats`)."""
    wal: WalRoom | None = None
    """What the two figures about WAL were computed from; None if the slot does not exist."""

    @property
    def max_outage_seconds(self) -> float | None:
        """`safe_wal_bytes` at that rate: how long an outage of the pump may take before the slot is lost. None without
        a limit, if nothing is written, and if the rate is unknown."""
        return max_outage_seconds(self.safe_wal_bytes, self.wal_rate)

    def to_json(self) -> dict[str, Any]:
        rate = self.wal_rate
        return super().to_json() | {
            "wal_bytes_per_second": None if rate is None else rate.bytes_per_second,
            "wal_rate_seconds": None if rate is None else rate.seconds,
        }


@dataclass(frozen=True)
class LeaderStatus:
    """The pump that leads this mirror, is about to lead it again, or was killed while it led."""

    host: str | None
    pid: int | None
    since: str | None
    """When it took the lead; None between two attempts."""
    epoch: int
    """Counts leaders."""
    alive: bool
    """False for one that was killed."""
    retrying: bool = False
    """True if the pump's last attempts failed. It waits for the next attempt, without leading, or is making it."""
    failing_threads: tuple[ThreadFailure, ...] = ()
    """Its threads that have ended by an error that no code expects. Each works again after a pause."""


class Severity(StrEnum):
    """How urgent an alert is."""

    CRITICAL = "critical"
    """The problem does not go away by itself: an operator must act. `status --check` exits with 1."""
    WARNING = "warning"
    """Nothing has stopped, but the problem grows if no operator acts."""


@dataclass(frozen=True)
class Alert:
    """A problem that an operator should know about."""

    severity: Severity
    """`critical`: the problem does not go away by itself. `warning`: it grows if no operator acts."""
    message: str
    """What happened. It does not repeat the table's name."""
    remedy: str = ""
    """What to do; empty if the message says so already."""
    table: str | None = None
    """None if the alert concerns the whole mirror."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", of_this_mirror(self.message))
        object.__setattr__(self, "remedy", of_this_mirror(self.remedy))


@dataclass(frozen=True)
class MirrorStatus(
    JsonDocument,
    keys=dict.fromkeys(("served", "lock_waits", "foreign_leads", "synchronous", "lost_rows", "not_joined")),
):
    """The status of a mirror at one time."""

    database: str
    warehouse: str
    at: datetime
    """The database's clock at the time of the query. Everything but what is read from files is of this moment."""
    wal_position: Lsn
    """End of the WAL at that moment."""
    frontier: Lsn
    """Every transaction that ends at or below it is in the lake, in all live tables."""
    commit_time: datetime | None
    """When the newest published transaction was committed; None before the first."""
    lag_bytes: int
    """WAL between what the mirror has dealt with (the frontier, or further what the pump has read and found to hold
    nothing for the mirror) and `wal_position`. WAL of other databases and of tables that are not mirrored counts until
    the pump has read past it."""
    lag_seconds: float | None
    """0 when `lag_bytes` is 0. Otherwise the age of `commit_time`, or of the reader's last look at an end of WAL
    that the mirror has reached since: a reader of the lake misses nothing that was committed earlier. An upper
    bound: while others write WAL and nothing else tells, `status` waits up to 3 s for the pump to reach what it saw
    first. None if there is neither, and without a stream."""
    slot: SlotState
    leader: LeaderStatus | None
    """The pump that leads the mirror; None when none leads."""
    last_error: PumpError | None
    """Why the pump cannot continue, or why it stopped. None once the frontier has moved, or there was nothing to
    publish for 10 s. An error that came while the database could not be reached is not in it."""
    tables: tuple[TableStatus, ...]
    standbys: tuple[StandbyProcess, ...] = ()
    """Pumps that wait to take over when the leader has ended."""
    served: bool = False
    """True if a maintainer runs."""
    former_locations: tuple[FormerLocation, ...] = ()
    """As `unregister --list --json` prints them, without `files` and `size_bytes`."""
    resyncs: tuple[ResyncState, ...] = ()
    """What is being copied again by a resync (docs/operations.md#copying-everything-again)."""
    streams: bool = True
    """False for a mirror without a stream (docs/operations.md#a-mirror-without-a-stream): `lag_bytes` is 0,
    `slot.exists` is False without an error, and `frontier` is the end of the WAL at the last publish."""
    went_back_at: datetime | None = None
    """Without a stream: when a pump found that the lake has publishes which the database has lost
    (docs/operations.md#after-a-restore). None otherwise, and once that is reconciled."""
    lost_rows: tuple[LostRow, ...] = ()
    """Rows of schema modak that are gone although others need them (docs/faults.md#lost-rows-of-schema-modak). Each is
    an alert."""
    followed: tuple[NewTablePattern, ...] = ()
    """Patterns of tables that join by themselves (docs/tables.md#whole-schemas)."""
    not_joined: tuple[NotJoined, ...] = ()
    """Tables that match such a pattern and are refused. Each is an alert."""
    moments: tuple[KeptMoment, ...] = ()
    """Moments that are kept (docs/moments.md): expiry, sweeps and lake retention leave their files until they are
    dropped. `moment list --json` has what they cost."""
    feeds: tuple[FeedStatus, ...] = ()
    """Change feeds (docs/changes.md)."""
    followers: tuple[Follower, ...] = ()
    """Other catalogs that show the tables (docs/followers.md)."""
    lock_waits: tuple[LockHolder, ...] = ()
    """Sessions that others wait for because of locks in schema modak, or a pump because of any. Each is an alert."""
    foreign_leads: tuple[LockHolder, ...] = ()
    """Sessions that hold a lock by which pumps and maintainers find each other, and are none. Each is an alert."""
    synchronous: SynchronousCommits | None = None
    """Set if users' commits may wait for the mirror: an alert."""
    alerts: tuple[Alert, ...] = ()
    """What a person should look at, the most urgent first; empty when all is well."""
    mirror: str | None = None
    """The mirror's name; None for the one without a name."""

    @property
    def backlogs(self) -> tuple[MaintenanceDue, ...]:
        """The maintenance states of all tables for which they are known."""
        return tuple(table.maintenance for table in self.tables if table.maintenance is not None)

    def to_json(self) -> dict[str, Any]:
        """Return the document that docs/cli-json.md describes."""
        return super().to_json() | {
            "maintenance": {
                "served": self.served,
                "tables_due": sum(bool(backlog.due) for backlog in self.backlogs),
                "tables_neglected": sum(backlog.neglected for backlog in self.backlogs),
                "unattended_commits": sum(backlog.commits for backlog in self.backlogs),
            },
            "lost_rows": [{"relation": row.relation, "table": row.table_name} for row in self.lost_rows],
            "not_joined": [{"table": str(refused.table), "error": refused.error} for refused in self.not_joined],
        }
