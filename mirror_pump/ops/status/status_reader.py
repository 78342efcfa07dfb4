"""Reads what the mirror holds and how far it lags, from the catalog and each table's current snapshot."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Self

from mirror_pump.engine.lake_storage import lake_storage
from mirror_pump.errors import FileDamaged, LakeError, is_data_file, repair_of
from mirror_pump.lake.storage import read_bytes
from mirror_pump.model import LakePartitioning, Lsn, SnapshotId, TableId, TableMode, TableName, TableState
from mirror_pump.ops.status.alerts import alerts_of
from mirror_pump.ops.status.feed_status import feed_states
from mirror_pump.ops.status.lake_content import LakeContent, lake_content
from mirror_pump.ops.status.maintenance_due import maintenance_due
from mirror_pump.ops.status.resync_state import resync_states
from mirror_pump.ops.status.retention_state import retention_states
from mirror_pump.ops.status.slot_state import slot_state
from mirror_pump.ops.status.status_report import DeleteMode, LeaderStatus, MirrorStatus, SlotState, TableStatus
from mirror_pump.runtime.service_thread import ThreadFailure
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.followed import followed_patterns, not_joined
from mirror_pump.source.catalog.followers import read_followers
from mirror_pump.source.catalog.former_locations import former_locations
from mirror_pump.source.catalog.kept_moments import read_moments
from mirror_pump.source.catalog.lock_holders import foreign_leads, lock_waits
from mirror_pump.source.catalog.lost_rows import read_lost_rows
from mirror_pump.source.catalog.maintenance import is_served
from mirror_pump.source.catalog.pauses import PAUSED, paused_text
from mirror_pump.source.catalog.pump_error import PumpError, pump_error
from mirror_pump.source.catalog.tables import partitioning_of
from mirror_pump.source.connect import CATALOG_LOCK_TIMEOUT, PgConnection, connect, source_errors
from mirror_pump.source.relations.partition_choices import choices_of, layout_text, sorting_of
from mirror_pump.source.rows import fetch_row, fetch_rows
from mirror_pump.source.stream.leader import is_led
from mirror_pump.source.stream.publication import how_to_publish, not_whole
from mirror_pump.source.stream.slot import published_part
from mirror_pump.source.stream.standby import standbys
from mirror_pump.source.stream.synchronous import synchronous_commits
from mirror_pump.source.stream.wal_room import WalRate
from sql import queries

_SQL = queries("status")

_ENDS_OF_WAL = 4096
"""Reads whose end of WAL is remembered; older ones are forgotten, which makes the bound of the lag no smaller."""
_RECENT = 1.0
"""A lag of fewer seconds is not worth waiting for a better answer."""
_POLL = 0.1
"""Seconds between two looks at how far the mirror has come."""

_WAITS = "it is copied again once the transactions that wrote to it before have ended"

_KEYLESS = "it has no key: give it one, and the pump copies it again"

_WAITS_FOR_OTHERS = "it is copied; readers see its new content together with that of the other tables of the resync"


class EndsOfWal:
    """Where WAL ended at the reads of one reader, and which of these ends the mirror has reached since."""

    def __init__(self) -> None:
        self._ends: deque[tuple[Lsn, datetime]] = deque(maxlen=_ENDS_OF_WAL)
        """Those that it has not reached, oldest first, and in the order of WAL."""
        self.reached_at: datetime | None = None
        """The newest read of whose end everything that was committed before is published."""

    def look(self, end: Lsn, at: datetime, handled: Lsn) -> None:
        """Takes in a read: WAL ends there at that time, and the mirror has dealt with WAL up to `handled`."""
        # After a failover WAL may end before where it has ended on the former primary.
        while self._ends and self._ends[-1][0] > end:
            self._ends.pop()
        self._ends.append((end, at))
        while self._ends and self._ends[0][0] <= handled:
            self.reached_at = self._ends.popleft()[1]


def tells_age(status: MirrorStatus) -> bool:
    """Whether the status says how old the lake is, as far as anything will: the lag is only an upper bound until the
    pump has come to the end of WAL of the first look."""
    leads = status.leader is not None and status.leader.alive and not status.leader.retrying
    return not leads or not status.streams or (status.lag_seconds is not None and status.lag_seconds < _RECENT)


class StatusReader:
    """Reads the status of one mirror over one connection, repeatedly for --watch. Takes completed settings."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._storage = lake_storage(settings)
        self._connection = self._connect()
        self._contents: dict[str, LakeContent] = {}
        self._ends = EndsOfWal()
        self._wal_rate: WalRate | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def read(self) -> MirrorStatus:
        """Read the status once. Raises SourceError if a query fails. Unreadable storage becomes a table's `error`."""
        return self._read(read_files=True)

    def until(self, condition: Callable[[MirrorStatus], bool], seconds: float) -> MirrorStatus:
        """The first status that meets the condition, or the one that is read after so many seconds. Raises as
        `read`."""
        deadline = time.monotonic() + seconds
        while not condition(status := self.read()) and time.monotonic() < deadline:
            time.sleep(_POLL)
        return status

    def read_catalog(self) -> MirrorStatus:
        """Like `read`, but without access to the storage: tables that were committed to since the last `read` have no
        `content` and no `maintenance`. It costs a few queries, however many tables change."""
        return self._read(read_files=False)

    def _read(self, *, read_files: bool) -> MirrorStatus:
        with source_errors("reading the mirror's status"):
            if read_files and not self._contents:
                self._read_first()
            row = self._mirror_row()
            slot = self._slot()
            tables = fetch_rows(self._connection, _StatusTableRow, _SQL["tables"], (self._settings.slot,))
            last_error = pump_error(row.last_error)
            leader = self._leader(row.leader, row.leader_epoch, last_error, row.at)
            waiting = standbys(self._connection, self._settings.slot)
            retention = retention_states(self._connection, self._settings.slot)
            unpublished = set()
            if row.streams and slot.publication_error is None:
                unpublished = not_whole(self._connection, self._settings.slot)
        locations = [table.metadata_location for table in tables if table.metadata_location is not None]
        contents = self._contents_at(locations, read_files)
        status = MirrorStatus(
            database=row.database,
            warehouse=self._settings.require_warehouse(),
            at=row.at,
            wal_position=row.wal_position,
            frontier=row.frontier,
            commit_time=row.commit_time,
            lag_bytes=row.lag_bytes,
            lag_seconds=self._lag_seconds(row),
            slot=slot,
            leader=leader,
            last_error=last_error,
            tables=(),
            standbys=waiting,
            streams=row.streams,
            went_back_at=row.went_back_at,
        )
        with source_errors("reading the mirror's status"):
            readable = {key: value for key, value in contents.items() if isinstance(value, LakeContent)}
            backlog = maintenance_due(self._connection, self._settings.slot, readable, row.at)
            status = replace(
                status,
                served=is_served(self._connection, self._settings.slot),
                former_locations=former_locations(self._connection),
                lost_rows=read_lost_rows(self._connection),
                **self._wishes(),
                feeds=feed_states(self._connection, self._settings.slot),
                resyncs=resync_states(self._connection, self._settings.slot, row.at),
                lock_waits=lock_waits(self._connection),
                foreign_leads=foreign_leads(self._connection, self._settings.slot),
                synchronous=synchronous_commits(self._connection) if row.streams else None,
            )
        shown = (
            replace(
                _table(table, status, contents, unpublished),
                retention=retention.get(table.table_id),
                maintenance=backlog.get(table.table_id),
            )
            for table in tables
        )
        status = replace(status, tables=tuple(shown), mirror=self._settings.mirror)
        return replace(status, alerts=alerts_of(status, self._settings.wal_warn_within))

    def _wishes(self) -> dict[str, Any]:
        """What users have asked for, beside tables: fields of the status."""
        connection, slot = self._connection, self._settings.slot
        return {
            "followed": tuple(followed_patterns(connection, slot)),
            "not_joined": tuple(not_joined(connection, slot)),
            "moments": read_moments(connection, slot),
            "followers": tuple(read_followers(connection, slot)),
        }

    def _read_first(self) -> None:
        """Reads the tables' files, while the pump comes to where WAL ends now: the lag is known afterwards."""
        self._mirror_row()
        tables = fetch_rows(self._connection, _StatusTableRow, _SQL["tables"], (self._settings.slot,))
        locations = [table.metadata_location for table in tables if table.metadata_location is not None]
        self._contents_at(locations, read_files=True)

    def _connect(self) -> PgConnection:
        return connect(
            self._settings.require_dsn(),
            autocommit=True,
            application_name="mirror-pump-status",
            lock_timeout=CATALOG_LOCK_TIMEOUT,
        )

    def _slot(self) -> SlotState:
        settings = self._settings
        slot = slot_state(
            self._connection,
            settings.slot,
            settings.publication,
            limit=settings.wal_guard_bytes,
            rate_window=settings.limits.wal_rate_window,
            former_rate=self._wal_rate,
        )
        self._wal_rate = slot.wal_rate
        return slot

    def _leader(
        self, named: Mapping[str, Any] | None, epoch: int, error: PumpError | None, at: datetime
    ) -> LeaderStatus | None:
        alive = is_led(self._connection, self._settings.slot)
        retrying = error is not None and (error.retry_in is not None if alive else error.expects_retry(at))
        if retrying and not alive:
            assert error is not None
            return LeaderStatus(error.host, error.pid, None, epoch, alive=True, retrying=True)
        if named is None and not alive:
            return None
        named = named or {}
        failing = tuple(ThreadFailure(**thread) for thread in named.get("failing_threads", ()) if alive)
        return LeaderStatus(
            named.get("host"), named.get("pid"), named.get("started_at"), epoch, alive, retrying, failing
        )

    def _mirror_row(self) -> _MirrorRow:
        if self._connection.closed:
            self._connection = self._connect()
        row = fetch_row(self._connection, _MirrorRow, _SQL["mirror"], (self._settings.slot,))
        assert row is not None, "no slot leaves the catalog"
        self._ends.look(row.wal_position, row.at, row.handled)
        return row

    def _lag_seconds(self, row: _MirrorRow) -> float | None:
        """Return 0 if everything committed is published, else the age of the newest time at which that is known.

        That time is the later of two: the last published commit, and the last read whose end of WAL the mirror has
        reached. So the result is an upper bound of what a reader misses, in seconds. The pump's word that it holds
        nothing would not do: the server may not have sent it what was committed long ago. None if there is neither,
        and without a stream.
        """
        if not row.streams:
            return None
        times = [moment for moment in (row.commit_time, self._ends.reached_at) if moment is not None]
        return max(0.0, (row.at - max(times)).total_seconds()) if times else None

    def _contents_at(self, locations: Sequence[str], read_files: bool) -> Mapping[str, LakeContent | LakeError]:
        """Return the figures of tables, or why they cannot be read, by metadata location."""
        if not read_files:
            return {location: self._contents[location] for location in locations if location in self._contents}
        contents = {location: self._content(location) for location in locations}
        self._contents = {key: value for key, value in contents.items() if isinstance(value, LakeContent)}
        return contents

    def _content(self, location: str) -> LakeContent | LakeError:
        """Return the table's figures, or why they cannot be read.

        Each metadata file is read only once, because it never changes.
        """
        cached = self._contents.get(location)
        if cached is not None:
            return cached
        try:
            return lake_content(read_bytes(location, self._storage), location)
        except LakeError as error:
            return error


@dataclass(frozen=True)
class _MirrorRow:
    """A row of the query `mirror`."""

    wal_position: Lsn
    at: datetime
    database: str
    frontier: Lsn
    commit_time: datetime | None
    """When the newest published transaction committed; None before the first publish."""
    leader: dict[str, Any] | None
    leader_epoch: int
    last_error: dict[str, Any] | None
    streams: bool
    """False: the mirror has no slot, for tiered tables only."""
    went_back_at: datetime | None
    reached: int | None
    """The LSN that the pump reports as applied. None while no pump reads the slot."""

    @property
    def handled(self) -> Lsn:
        """Everything that committed at or below it is published, or concerns no mirrored table."""
        return Lsn(max(self.frontier, self.reached or 0))

    @property
    def lag_bytes(self) -> int:
        """WAL that is neither published nor known to hold nothing for the mirror; 0 without a stream."""
        return max(0, self.wal_position - self.handled) if self.streams else 0


@dataclass(frozen=True)
class _StatusTableRow:
    """A row of the query `tables`."""

    table_id: TableId
    schema_name: str
    table_name: str
    lake_table: str
    state: str
    mode: str
    frontier: Lsn | None
    """None until the initial copy is complete."""
    snapshot_id: SnapshotId | None
    error: str | None
    metadata_location: str | None
    """None if the catalog does not name the lake table any more."""
    head_snapshot_id: int | None
    """The current snapshot that the mirror left in the lake table. None if a release that recorded none left it."""
    chunks_total: int
    chunks_done: int
    rows_copied: int
    key_index: dict[str, Any] | None
    """The fields of DeleteMode; None before the first commit."""
    left_out: list[str]
    """Generated columns that are not mirrored."""
    excluded: list[str]
    masked: list[str]
    row_filter: str
    listed: list[str]
    """The column list in the publication; empty for all columns."""
    has_key: bool
    paused_since: datetime | None
    partition_scheme: dict[str, Any]
    field_names: dict[str, str]
    """Of columns, by field ID."""
    snapshot_only: bool
    snapshot_every: timedelta | None
    waits_for_others: bool
    """Whether it is copied, and goes live with other tables of a resync that are not."""
    damaged: list[str]
    """URIs of files that cannot be read."""
    sheds: bool
    """Whether rows have left its heap."""

    @property
    def names(self) -> dict[int, str]:
        """Of columns, by field ID."""
        return {int(number): name for number, name in self.field_names.items()}

    @property
    def partitioning(self) -> LakePartitioning | None:
        """The lake table's."""
        return partitioning_of(self.partition_scheme)


def _publication_error(row: _StatusTableRow, name: TableName, publication: str) -> str:
    """What to do about a table that is not published as it is registered. The pump's error says the same, and why the
    table cannot take over what the publication has."""
    remedy = how_to_publish(publication, name, published_part(row.listed, row.row_filter))
    if row.error is not None and remedy in row.error:
        return row.error
    return f"publication {publication} does not have all of it: {remedy}"


_Contents = Mapping[str, LakeContent | LakeError]
"""The figures of tables, or why they cannot be read, by metadata location."""


def _table(row: _StatusTableRow, mirror: MirrorStatus, contents: _Contents, unpublished: Set[TableId]) -> TableStatus:
    state, frontier, location, error = row.state, row.frontier, row.metadata_location, row.error
    name = TableName(row.schema_name, row.table_name)
    note = None
    if state == TableState.DROPPED:
        note, error = error, None
    elif state == TableState.WAITING and row.has_key:
        # The table has a key now, which is what it waited for.
        note, error = _WAITS, None
    elif state == TableState.WAITING:
        error = error or _KEYLESS
    elif row.waits_for_others:
        note = _WAITS_FOR_OTHERS
    if row.paused_since is not None and state == TableState.WAITING:
        resumed = "" if (row.error or PAUSED).startswith(PAUSED) else f"; not copied again: {row.error}"
        since = paused_text(row.paused_since, snapshot=row.snapshot_only)
        note, error = f"{since}: `mirror-pump resume {name.shell}`{resumed}", None
    elif row.table_id in unpublished:
        note, error = None, _publication_error(row, name, mirror.slot.publication)
    read = contents.get(location) if location is not None else None
    content = read if isinstance(read, LakeContent) else None
    unreadable = f"its metadata cannot be read: {read}" if isinstance(read, LakeError) else None
    live = state == TableState.LIVE and frontier is not None
    return TableStatus(
        table=str(name),
        lake_table=str(TableName(row.schema_name, row.lake_table)),
        state=TableState(state),
        mode=TableMode(row.mode),
        frontier=frontier,
        lag_bytes=_lag_bytes(row, mirror),
        lag_seconds=mirror.lag_seconds if live else None,
        snapshot_id=row.snapshot_id,
        metadata_location=location,
        equality_deletes_age=None if content is None else _age(content, mirror.at),
        content=content,
        chunks_total=row.chunks_total,
        chunks_done=row.chunks_done,
        rows_copied=row.rows_copied,
        deletes=DeleteMode(**(row.key_index or {})),
        error=error or unreadable or _moved(row, content),
        note=note,
        unreadable=unreadable,
        unreadable_remedy=_remedy(row, name, read) if isinstance(read, LakeError) else "",
        metadata_damaged=isinstance(read, FileDamaged),
        generated_left_out=tuple(row.left_out),
        excluded=tuple(row.excluded),
        masked=tuple(row.masked),
        row_filter=row.row_filter,
        paused_since=row.paused_since,
        partition_by=layout_text(choices_of(row.partitioning, row.names)),
        sort_by=layout_text(sorting_of(row.partitioning, row.names)),
        snapshot_only=row.snapshot_only,
        snapshot_every=row.snapshot_every,
        damaged_files=tuple(row.damaged),
        repair=repair_of(name.shell, min(row.damaged, key=is_data_file), only_copy=row.sheds) if row.damaged else "",
    )


def _lag_bytes(row: _StatusTableRow, mirror: MirrorStatus) -> int | None:
    """All live tables share one frontier, so the mirror's lag is theirs. A failed table stays where it stopped."""
    if row.frontier is None:
        return None
    if row.state == TableState.LIVE:
        return mirror.lag_bytes
    stopped = row.state in (TableState.FAILED, TableState.WAITING)
    return max(0, mirror.wal_position - row.frontier) if stopped else None


def _remedy(row: _StatusTableRow, name: TableName, error: LakeError) -> str:
    """What to do about a table whose metadata cannot be read."""
    if isinstance(error, FileDamaged):
        return repair_of(name.shell, error.location, only_copy=row.sheds)
    return error.remedy


def _moved(row: _StatusTableRow, content: LakeContent | None) -> str | None:
    """Returns what other engines did to the lake table of a table that is mirrored, as far as its metadata tells."""
    if TableState(row.state).has_ended or row.head_snapshot_id is None:
        return None
    if row.metadata_location is None:
        return "its lake table is not in the Iceberg catalog any more: another engine dropped or renamed it"
    if content is None or row.head_snapshot_id in content.same_rows:
        return None
    return "another engine changed rows of its lake table: a pump undoes that within seconds, start one if none runs"


def _age(content: LakeContent, now: datetime) -> float:
    since = content.equality_deletes_since
    return 0.0 if since is None else max(0.0, (now - since).total_seconds())
