"""The publish transaction: the only place where the lake, the frontier and the copies' progress change.

Invariant: `mirror_slots.applied_lsn` = A if and only if, in every mirrored table that is not failed, exactly the
transactions that end at or below A are in the lake. It holds because Iceberg's pointers are rows of the same database:
one COMMIT moves them and A. Whoever holds a `LandedPublish` knows that such a COMMIT happened; only this module makes
one, and the slot can be acknowledged with nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TypeVar

import psycopg
import pyiceberg.table  # noqa: F401 - else its first use, in the middle of the first batch, takes the half second it needs
from psycopg.types.json import Jsonb

from mirror_pump.backoff import RetryPolicy
from mirror_pump.errors import (
    CommitConflict,
    ConnectionLost,
    NotLeader,
    OutcomeUnknown,
    SourceError,
    TableError,
)
from mirror_pump.lake.commit.archive_branch import StagedArchive
from mirror_pump.lake.commit.catalog import swap_pointer
from mirror_pump.lake.commit.presence import StoredTable
from mirror_pump.lake.commit.row_delta import LakeTable, StagedCommit
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import (
    Lsn,
    MirroredTable,
    SnapshotId,
    TableId,
    TableState,
)
from mirror_pump.pipeline.key_index.key_indexes import KeyIndexes
from mirror_pump.pipeline.missing_files.missing_files import MissingFiles, stored_tables
from mirror_pump.pipeline.operations.catalog_changes import rename
from mirror_pump.pipeline.operations.operation import Cursor
from mirror_pump.pipeline.operations.registrations import Registration, RegistrationRow
from mirror_pump.pipeline.operations.requests import PublishRequest
from mirror_pump.pipeline.operations.table_changes import Failure
from mirror_pump.pipeline.publish.staged_publish import StagedPublish, StagedTable
from mirror_pump.pipeline.publish.staging import Stager, lake_table_gone, with_due_tables, without_held
from mirror_pump.pipeline.publish.swap_in import DueTable
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import CONNECTS_AGAIN, PgConnection, source_errors
from mirror_pump.source.rows import fetch_row, fetch_rows
from mirror_pump.source.stream.publication import refuse_changed
from mirror_pump.source.stream.slot import flushed_end
from mirror_pump.table_life import TableEvent, state_by, states_before
from sql import queries

_SQL = queries("publish")

_MADE_HERE = object()

_Row = TypeVar("_Row")


@dataclass(frozen=True)
class LandedPublish:
    """Proof that a publish transaction committed. Only `Publisher` makes one."""

    frontier: Lsn
    """Everything that ends at or below it is in the lake."""
    live: tuple[TableId, ...] = ()
    """Tables that went live with this publish."""
    filling: tuple[TableId, ...] = ()
    """Tables whose copy was completed with this publish, and whose files are now being filled."""
    dropped: tuple[TableId, ...] = ()
    """Tables whose changes were left out: unregistered, registered again, or failed meanwhile."""
    refused: tuple[TableId, ...] = ()
    """Tables whose file rewrite was left out because it does not fit their present state."""
    failures: tuple[Failure, ...] = ()
    """Tables that this publish failed: those it was asked to fail, and those whose lake table cannot take their
    columns. Tables that are unregistered or registered again are not among them."""
    tables: Mapping[TableId, LakeTable] = field(default_factory=dict, repr=False)
    """The tables that it committed to, in their new state."""
    snapshots: int = 0
    """Number of Iceberg snapshots committed."""
    recorded_at: Lsn | None = None
    """A WAL position behind the commit record of the publish. None if it could not be read. The slot may be
    acknowledged once the stream has passed it (mirror_pump.pipeline.stream.acknowledgement)."""
    token: object = field(default=None, repr=False)
    """Only this module has the right token."""

    def __post_init__(self) -> None:
        if self.token is not _MADE_HERE:
            raise TypeError("a LandedPublish comes from Publisher.publish() and from nowhere else")


@dataclass(frozen=True)
class _Landed:
    """The outcome for the tables of a publish that landed."""

    live: tuple[TableId, ...]
    failures: tuple[Failure, ...]
    filling: tuple[TableId, ...] = ()


@dataclass(frozen=True)
class LockedSlotRow:
    """A row of the query `lock_slot`."""

    leader_epoch: int
    applied_lsn: Lsn
    publish_id: int | None
    """The random number that the last publish wrote. None before the first one."""
    streams: bool
    """Whether the mirror has a stream."""
    timeline: int
    """The timeline of the server."""


@dataclass(frozen=True)
class _DueRow:
    """A row of the query `due_to_go_live`; see DueTable."""

    table_id: TableId
    staged: str | None
    seen: str | None
    frontier: Lsn
    resync_since: datetime | None


class Publisher:
    """Stages Iceberg commits and publishes them. Only one thread at a time may use it.

    The outcome of a publish is landed, failed or unknown. It is unknown if the connection broke during COMMIT. A new
    connection then finds it out: it locks the slot's row, which waits for the old backend to end, and reads it.
    """

    def __init__(
        self,
        connect: Callable[[], PgConnection],
        slot: str,
        epoch: int,
        storage: StorageOptions,
        retry: RetryPolicy,
        indexes: KeyIndexes,
        staged: Callable[[PublishRequest], None],
        timeline: int,
        *,
        streams: bool = True,
    ) -> None:
        """`timeline`: the server's, as far as the caller has examined its history. `streams`: whether the mirror had a
        stream then."""
        self._connect = connect
        self._connection = connect()
        self._slot = slot
        self._epoch = epoch
        self._timeline = timeline
        self._streams = streams
        self._retry = retry
        self._indexes = indexes
        self._staged = staged
        self.missing = MissingFiles(storage, self._stored_tables)
        """Decides what missing lake files mean."""
        self._stager = Stager(storage, indexes, self._left_to_the_lake, self.missing, timeline)
        self._applied = Lsn(0)
        self._publish_id = 0
        self.may_have_landed = False
        """COMMIT of the last publish was sent, and it may have succeeded. Its files must stay."""

    def close(self) -> None:
        self._connection.close()

    def load(self, table: MirroredTable) -> LakeTable:
        """Loads the table's present state in the lake. Raises TableError if this registration or its lake table no
        longer exists."""
        row = self._read_registrations([table.table_id]).get(table.table_id)
        if row is None or row.start_lsn != table.start_lsn:
            raise TableError(f"{table.name} is not registered any more")
        if row.lake_table_missing:
            raise lake_table_gone(table)
        return self._stager.known(table.table_id, row.metadata_location)

    def publish(self, request: PublishRequest) -> LandedPublish:
        """Carries out the request in one transaction.

        Raises NotLeader if another pump took over, LakeError if the storage fails (CommitConflict if the retries are
        used up), and ConnectionLost (PublicationChanged if the batch may lack changes). In all these cases the publish
        certainly did not happen. Raises OutcomeUnknown if the outcome cannot be determined yet.
        """
        for attempt in self._retry.retrying(
            # A publish that landed must not be repeated, whatever error follows it.
            lambda error: isinstance(error, CommitConflict) and not self.may_have_landed
        ):
            with attempt:
                return self._publish_once(request)
        raise AssertionError("tenacity either returns or raises")

    def _publish_once(self, request: PublishRequest) -> LandedPublish:
        self.may_have_landed = False
        due = self._due_tables(request.frontier)
        request = with_due_tables(request, due)
        registered = self._read_registrations([table_request.table.table_id for table_request in request.tables])
        due = without_held(due, request, registered)
        staged = self._stager.stage(request, registered, due)
        try:
            self._stager.complete(due, staged)
            self._staged(request)
        except BaseException:
            self._stager.discard(staged)
            raise
        request = replace(request, failures=(*request.failures, *staged.failures))
        landed = self._land(request, staged)
        committed = self._stager.landed(staged, landed.live)
        return LandedPublish(
            frontier=self._applied,
            live=landed.live,
            filling=landed.filling,
            dropped=tuple(staged.dropped),
            refused=tuple(staged.refused),
            failures=landed.failures,
            # If a table's request was left out, the table may still go live, by a request of its own.
            tables={table_id: table for table_id, table in committed.items() if table_id not in staged.dropped},
            snapshots=len(committed),
            recorded_at=self._wal_position(),
            token=_MADE_HERE,
        )

    def _land(self, request: PublishRequest, staged: StagedPublish) -> _Landed:
        """Commits what is staged. If it raises and the publish certainly did not happen, it leaves nothing behind."""
        try:
            return self._transaction(request, staged)
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            try:
                return self._read_outcome(error, request)
            except ConnectionLost:
                self._stager.discard(staged)
                raise
        except BaseException:
            # The outcome is unknown for every other error that is raised after COMMIT was sent.
            if not self.may_have_landed:
                self._stager.discard(staged)
            raise

    def _left_to_the_lake(self, table_id: TableId) -> str | None:
        """Returns which of the table's rows only the lake has, or None if there are none."""
        partitions = self._scalar(_SQL["left_to_the_lake"], {"table_id": table_id})
        return None if partitions is None else str(partitions)

    def _stored_tables(self) -> list[StoredTable]:
        with source_errors("reading where the tables' files are"):
            return stored_tables(self._open())

    def _due_tables(self, frontier: Lsn | None) -> list[DueTable]:
        """Returns the tables that go live at this frontier, or at the present one if it is None."""
        rows = self._rows(_DueRow, _SQL["due_to_go_live"], {"slot": self._slot, "frontier": frontier})
        tables = [(load_table(self._open(), row.table_id), row) for row in rows]
        return [
            DueTable(table, row.staged, row.seen, row.frontier, row.resync_since)
            for table, row in tables
            if table is not None
        ]

    def _read_registrations(self, table_ids: Sequence[TableId]) -> dict[TableId, Registration]:
        if not table_ids:
            return {}
        pin_in_hand = bool(self._scalar(_SQL["pin_in_hand"], {}))
        rows = self._rows(RegistrationRow, _SQL["registrations"], {"table_ids": list(table_ids)})
        return {row.table_id: row.registration(pin_in_hand=pin_in_hand) for row in rows}

    def _transaction(self, request: PublishRequest, staged: StagedPublish) -> _Landed:
        """Does everything in one transaction. Raises CommitConflict if nothing was done."""
        self._publish_id = random.getrandbits(63)
        connection = self._open()
        with connection.transaction(), connection.cursor() as cursor:
            applied = self._lock_slot(cursor)
            self._applied = Lsn(max(applied, request.frontier or 0))
            for accepted in staged.accepted:
                self._apply(cursor, accepted, request.written_since)
            failures = tuple(failure for failure in request.failures if _fail(cursor, failure))
            self._move_frontier(cursor, request.commit_time_us)
            rename(cursor, staged.names)
            filling = self._fill_next(cursor)
            self._swap_in(cursor, staged)
            live = self._go_live(cursor, staged.going_live - {failure.table.table_id for failure in failures})
            cursor.execute(_SQL["promise"], {"slot": self._slot, "frontier": self._applied})
            # This check comes last: the later it runs, the fewer changes can be missed between it and the commit
            # record.
            refuse_changed(cursor, self._slot)
            self.may_have_landed = True
        return _Landed(live, failures, filling)

    def _lock_slot(self, cursor: Cursor) -> Lsn:
        """Returns the present frontier and locks it until the transaction ends. Raises NotLeader if another pump
        leads."""
        slot = fetch_row(cursor.connection, LockedSlotRow, _SQL["lock_slot"], {"slot": self._slot})
        if slot is None or slot.leader_epoch != self._epoch:
            present = None if slot is None else slot.leader_epoch
            raise NotLeader(
                f"another pump has taken over slot {self._slot} (epoch {present}, ours is {self._epoch})",
                "Stop one of the two; nothing of this batch was published by this one.",
            )
        if slot.timeline != self._timeline:
            # A connection that was made anew may lead to a server that was promoted meanwhile, and that lacks
            # transactions of the batch.
            raise ConnectionLost(
                f"the server changed from timeline {self._timeline} to {slot.timeline} during the session",
                "mirror-pump begins a new session by itself, and looks first what the server has",
            )
        if slot.streams != self._streams:
            # A frontier from without a stream would pass changes of a table that was registered since.
            raise ConnectionLost(
                "the mirror was given a stream during the session", "mirror-pump begins a new session by itself"
            )
        return slot.applied_lsn

    def _wal_position(self) -> Lsn | None:
        """The end of the WAL after a publish that landed. None if the connection was lost: the next publish tells."""
        try:
            return flushed_end(self._open())
        except (SourceError, psycopg.Error):
            return None

    def _move_frontier(self, cursor: Cursor, commit_time_us: int) -> None:
        cursor.execute(
            _SQL["move_frontier"],
            {
                "slot": self._slot,
                "frontier": self._applied,
                "publish_id": self._publish_id,
                "commit_time": commit_time_us / 1e6,
            },
        )

    def _apply(self, cursor: Cursor, accepted: StagedTable, written_since: float) -> None:
        """Does one table's part of the transaction: its operations, before and after the registration's row and the
        lake's pointer change."""
        operations = accepted.request.operations
        recording = accepted.recording(self._slot, self._applied)
        for operation in operations:
            operation.lock(cursor, recording)
        self._touch(cursor, accepted, written_since)
        for operation in operations:
            operation.describe(cursor, recording)
        self._move_pointer(cursor, accepted)
        for operation in operations:
            operation.complete(cursor, recording)

    def _touch(self, cursor: Cursor, accepted: StagedTable, written_since: float) -> None:
        """Locks the registration. Raises CommitConflict if it is not the one that was staged on."""
        row, plan, table = accepted.registration, accepted.plan, accepted.request.table
        cursor.execute(
            _SQL["touch_table"],
            {
                "table_id": table.table_id,
                "start_lsn": row.start_lsn,
                "generation": row.generation,
                "again": plan.starts_copy,
                "not_live_before": plan.not_live_before,
                "written_since": written_since,
                "read_at": row.read_at,
                "start_sequence": accepted.data_sequence_number,
                "key_index": Jsonb(self._deletes(accepted)),
            },
        )
        if cursor.rowcount != 1:
            raise CommitConflict(f"the registration of {table.name} changed while it was being published")

    def _move_pointer(self, cursor: Cursor, accepted: StagedTable) -> None:
        """Points the catalog at the staged lake table. While readers must not see commits, the pointer moves only once
        the copy or fill is complete (_swap_in). Raises CommitConflict if another engine committed."""
        row, table, staged = accepted.registration, accepted.request.table, accepted.staged
        leaves_readers = row.state is TableState.LIVE and accepted.plan.state is not TableState.LIVE
        if staged is not None and (row.staged or leaves_readers):
            cursor.execute(
                _SQL["stage_snapshot"],
                {
                    "table_id": table.table_id,
                    "old": row.metadata_location if row.staged else None,
                    "new": accepted.table.metadata_location if accepted.table is not None else staged.new_location,
                    "snapshot_id": staged.snapshot_id,
                },
            )
        elif accepted.table is not None:
            new = accepted.table.metadata_location
            if not swap_pointer(cursor, row.namespace, row.lake_table, row.metadata_location, new):
                raise CommitConflict(f"another writer committed to {table.name} in the lake")
            if accepted.archive is not None:
                self._publish_archive(cursor, table, accepted.archive)
            elif staged is not None and row.tier is None:
                self._publish_snapshot(cursor, table, staged.snapshot_id, lake_props(staged))

    def _fill_next(self, cursor: Cursor) -> tuple[TableId, ...]:
        """Returns the tables whose copy from the cut-line on is complete, and whose files are filled now."""
        cursor.execute(
            _SQL["fill_next"],
            {
                "slot": self._slot,
                "frontier": self._applied,
                "former": states_before(TableEvent.COPIED_TO_FILL),
                "state": state_by(TableEvent.COPIED_TO_FILL).value,
            },
        )
        return tuple(TableId(table_id) for (table_id,) in cursor.fetchall())

    def _swap_in(self, cursor: Cursor, staged: StagedPublish) -> None:
        """Shows readers what was copied again or filled, with its archive branch if that was refreshed. Raises
        CommitConflict if another engine committed meanwhile."""
        swaps = staged.swaps
        cursor.execute(
            _SQL["swap_in"],
            {
                "slot": self._slot,
                "frontier": self._applied,
                "table_ids": list(swaps),
                "staged": [swap.staged for swap in swaps.values()],
                "seen": [swap.seen for swap in swaps.values()],
                "locations": [swap.table.metadata_location for swap in swaps.values()],
            },
        )
        if any(not swapped for (swapped,) in cursor.fetchall()):
            raise CommitConflict("another writer committed to a table in the lake that was copied again")
        for accepted in staged.accepted:
            if accepted.archive is not None and accepted.request.table.table_id in swaps:
                self._publish_archive(cursor, accepted.request.table, accepted.archive)

    def _go_live(self, cursor: Cursor, expected: Collection[TableId]) -> tuple[TableId, ...]:
        """Marks the `expected` tables as live and returns them: those whose snapshots say that they go live. Raises
        CommitConflict if one of them is not due any more: its copy, or that of another table of its resync, was given
        up or restarted since these were staged."""
        cursor.execute(
            _SQL["go_live"],
            {
                "slot": self._slot,
                "table_ids": list(expected),
                "frontier": self._applied,
                "former": states_before(TableEvent.COMPLETED),
                "state": state_by(TableEvent.COMPLETED).value,
            },
        )
        live = tuple(TableId(table_id) for (table_id,) in cursor.fetchall())
        if set(live) != set(expected):
            raise CommitConflict("the copy of a table was given up while this was being published")
        return live

    def _deletes(self, accepted: StagedTable) -> dict[str, object]:
        """Returns what `status` shows of a commit: the table's index, and how deletes were written if there were
        any."""
        mode = accepted.encoded.mode if accepted.encoded is not None else None
        return {**self._indexes.report(accepted.request.table.table_id), **({} if mode is None else {"mode": mode})}

    def _publish_archive(self, cursor: Cursor, table: MirroredTable, archive: StagedArchive) -> None:
        """Makes the refreshed archive snapshot the one that readers pin."""
        props = {"metadata_location": archive.seam_location, "snapshot_id": str(archive.snapshot_id)}
        self._publish_snapshot(cursor, table, archive.snapshot_id, props)

    def _publish_snapshot(
        self,
        cursor: Cursor,
        table: MirroredTable,
        snapshot_id: SnapshotId,
        props: Mapping[str, object],
    ) -> None:
        cursor.execute(
            _SQL["publish_snapshot"],
            {"table_id": table.table_id, "snapshot_id": snapshot_id, "props": Jsonb(dict(props))},
        )

    def _read_outcome(self, error: psycopg.Error, request: PublishRequest) -> _Landed:
        """Determines the outcome after the connection broke. Before COMMIT was sent, the publish failed; after that,
        ask the database.

        Every publish writes a random number to the slot's row, and only the leader writes that row. So while this pump
        leads, the row holds its number if and only if its COMMIT happened. Another pump may have replaced the number
        since.
        """
        if not self.may_have_landed:
            raise ConnectionLost(
                f"the connection was lost before the publish was committed: {error}", CONNECTS_AGAIN
            ) from error
        try:
            connection = self._open()
            with connection.transaction():
                slot = fetch_row(connection, LockedSlotRow, _SQL["lock_slot"], {"slot": self._slot})
        except (psycopg.OperationalError, psycopg.InterfaceError, ConnectionLost) as again:
            raise OutcomeUnknown(
                f"the connection was lost during COMMIT, and its outcome could not be read: {again}",
                "The pump reads it back when it reconnects; no file of this publish was deleted.",
            ) from again
        landed = slot is not None and slot.publish_id == self._publish_id
        if not landed and (slot is None or slot.leader_epoch != self._epoch):
            raise OutcomeUnknown(
                "the connection was lost during COMMIT, and another pump took over before its outcome was read",
                "No file of this publish was deleted; what the other pump publishes is right either way.",
            ) from error
        if not landed:
            self.may_have_landed = False
            raise ConnectionLost(
                f"the connection was lost during COMMIT, which did not happen: {error}", CONNECTS_AGAIN
            ) from error
        # When the pump restarts it reads from the catalog which tables went live. Here that is only an optimisation.
        return _Landed((), request.failures)

    def _open(self) -> PgConnection:
        if self._connection.closed or self._connection.broken:
            self._connection = self._connect()
        return self._connection

    def _rows(self, row_class: type[_Row], query: str, parameters: dict[str, object]) -> list[_Row]:
        with _catalog_errors():
            return fetch_rows(self._open(), row_class, query, parameters)

    def _scalar(self, query: str, parameters: dict[str, object]) -> object:
        """Returns the value of a query with one column and one row. None if it has no row."""
        with _catalog_errors():
            row = self._open().execute(query, parameters).fetchone()
        return None if row is None else row[0]


@contextmanager
def _catalog_errors() -> Iterator[None]:
    try:
        yield
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        raise ConnectionLost(f"the connection to the catalog was lost: {error}", CONNECTS_AGAIN) from error


def _fail(cursor: Cursor, failure: Failure) -> bool:
    """Fails the table. Returns False if the registration that failed no longer exists."""
    table = failure.table
    parameters = {
        "table_id": table.table_id,
        "start_lsn": table.start_lsn,
        "error": failure.error,
        "former": states_before(failure.event),
        "state": state_by(failure.event).value,
    }
    return cursor.execute(_SQL["fail"], parameters).rowcount == 1


def lake_props(staged: StagedCommit) -> dict[str, object]:
    """Returns the pointer to the published snapshot, as the seam protocol defines it (docs/catalog-schema.md)."""
    return {"metadata_location": staged.new_location, "snapshot_id": str(staged.snapshot_id)}
