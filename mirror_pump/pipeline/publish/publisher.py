"""The publish transaction: the only place where the lake, the frontier and the copies' progress change.

Invariant: `mirror_slots.applied_lsn` = A if and only if, in every mirrored table that is not failed, exactly the
transactions that end at or below A are in the lake. It holds because Iceberg's pointers are rows of the same database:
one COMMIT moves them and A. A `LandedPublish` is the proof that such a COMMIT happened; only this module makes one,
and the slot can be acknowledged with nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import psycopg

from mirror_pump.errors import (
    CommitConflict,
    ConnectionLost,
    OutcomeUnknown,
    SourceError,
)
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.key_index.whole_rows import RemovedRows
from mirror_pump.lake.storage import StorageOptions, gathered_writes
from mirror_pump.model import Lsn, MirroredTable, TableId
from mirror_pump.pipeline.feeds.feed_staging import FeedStager
from mirror_pump.pipeline.feeds.foreign_feed_commits import FeedsMoved
from mirror_pump.pipeline.flow.steps import Observer, unobserved
from mirror_pump.pipeline.key_index.key_indexes import KeyIndexes
from mirror_pump.pipeline.key_index.whole_rows import RowReading
from mirror_pump.pipeline.landing.landing import Landing
from mirror_pump.pipeline.landing.slot_lock import SlotLock
from mirror_pump.pipeline.landing.written_files import WrittenFiles
from mirror_pump.pipeline.operations.lake_names import settle_names
from mirror_pump.pipeline.operations.registrations import Registration
from mirror_pump.pipeline.operations.requests import PublishRequest
from mirror_pump.pipeline.operations.table_changes import Failure
from mirror_pump.pipeline.publish.catalog_tables import CatalogTables
from mirror_pump.pipeline.publish.due_tables import TableGoingLive
from mirror_pump.pipeline.publish.foreign_commits import settle_table, settled_request
from mirror_pump.pipeline.publish.frontier_transaction import FrontierTransaction, TablePartFailed
from mirror_pump.pipeline.publish.staged_publish import StagedPublish
from mirror_pump.pipeline.publish.staging import Stager, with_tables_going_live, without_delayed
from mirror_pump.runtime.backoff import RetryPolicy
from mirror_pump.source.catalog.change_feeds import ChangeFeed
from mirror_pump.source.connect import CONNECTS_AGAIN, PgConnection, as_source_error, source_errors
from mirror_pump.source.stream.leader import other_epoch, slot_gone
from mirror_pump.source.stream.publication import PublicationCheck
from mirror_pump.source.stream.slot import flushed_end
from sql import queries

_SQL = queries("publish")

_MADE_HERE = object()


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
    feeds: Mapping[TableId, LakeTable] = field(default_factory=dict, repr=False)
    """The change feeds that it committed to, in their new state."""
    refused_feeds: tuple[TableId, ...] = ()
    """Change feeds whose rewrite was left out."""
    snapshots: int = 0
    """Number of Iceberg snapshots committed."""
    files: Sequence[str] = field(default=(), repr=False)
    """URIs of the files that tasks and staging wrote for it."""
    recorded_at: Lsn | None = None
    """A WAL position behind the commit record of the publish. None if it could not be read. The slot may be
    acknowledged once the stream has passed it (mirror_pump.pipeline.stream.receiver)."""
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


class Publisher(Landing[None, StagedPublish]):
    """Stages Iceberg commits and publishes them, one request at a time. Only one thread at a time may use it.

    The outcome of a publish is landed, failed or unknown. It is unknown if the connection broke during COMMIT. A new
    connection then finds it out: it locks the slot's row, which waits for the old backend to end, and reads it.
    """

    stopped_seconds = None

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
        observer: Observer = unobserved,
        publication: PublicationCheck | None = None,
    ) -> None:
        """`timeline`: the server's, as far as the caller has examined its history. `streams`: whether the mirror had a
        stream then. `publication`: a check that others of the session share."""
        super().__init__(connect(), slot, WrittenFiles(storage), "publishing")
        self.tries = retry.attempts
        self._connect = connect
        self._epoch = epoch
        self._timeline = timeline
        self._streams = streams
        self._retry = retry
        self._indexes = indexes
        self._observe_staged = staged
        self._publication = publication or PublicationCheck(slot)
        self._tables = CatalogTables(self._open, slot, storage)
        self.missing = self._tables.missing
        self._stager = Stager(storage, indexes, self._tables.left_to_the_lake, self.missing, timeline)
        self._feeds = FeedStager(self._open, slot, storage, timeline)
        self._observer = observer
        self._requested = self._request = PublishRequest()
        """What was asked for, and what becomes of it in the present try."""
        self._registered: dict[TableId, Registration] = {}
        self._due: list[TableGoingLive] = []
        self._moved_feeds: Sequence[ChangeFeed] = ()
        self._applied = Lsn(0)
        self._publish_id = 0
        self._outcome = _Landed((), ())

    def close(self) -> None:
        self.connection.close()

    def load(self, table: MirroredTable) -> LakeTable:
        """Loads the table's present state in the lake. Raises TableError if this registration or its lake table no
        longer exists."""
        return self._tables.load(table, self._stager.load_state, self._settle)

    def row_reading(self, table: MirroredTable, lake: LakeTable, rows: Sequence[RemovedRows]) -> RowReading | None:
        """What has to be read before the publish of such deletes of a table without a key, in this state. None if it is
        little. Raises LakeError and TableError."""
        return self._stager.row_reading(table, lake, rows)

    def later_reading(self, table: MirroredTable, lake: LakeTable) -> RowReading | None:
        """What later deletes of a table without a key may need in this state. None if it is little, or no row of it was
        ever deleted. Raises LakeError and TableError."""
        return self._stager.later_reading(table, lake)

    def publish(self, request: PublishRequest) -> LandedPublish:
        """Carries out the request in one transaction.

        Raises NotLeader if another pump took over, LakeError if the storage fails (CommitConflict if the retries are
        used up), and ConnectionLost (PublicationChanged if the batch may lack changes). In all these cases the publish
        certainly did not happen, and the request's files are gone. Raises OutcomeUnknown if the outcome cannot be
        determined yet.
        """
        self._requested, self._moved_feeds = request, ()
        with WrittenFiles(self.files.storage) as self.files:
            self.files.add(*request.files)
            while True:
                try:
                    return self._landed(self.land())
                except FeedsMoved as moved:
                    # On the last try: what other engines did to feeds is settled, however few tries there are.
                    self.supersede(moved)
                except TablePartFailed as part:
                    self.start_over()
                    self._requested = self._requested.failing([part.failure])

    def read(self) -> None:
        """Settles the commits of other engines first."""
        feeds, self._moved_feeds = self._moved_feeds, ()
        self._feeds.settle(feeds, self._locked, self._observer)
        settled: PublishRequest | None = self._requested
        while settled is not None:
            due = self._tables.due(settled.frontier)
            request = with_tables_going_live(settled, due)
            self._registered = self._tables.registrations([part.table.table_id for part in request.tables])
            settled = settled_request(request, self._registered, self._settle)
        self._request, self._due = request, without_delayed(due, request, self._registered)

    def look(self) -> None:
        """Nothing: the statements of the transaction fail if what was read has changed."""

    def stage(self, _base: None) -> StagedPublish:
        request, staged = self._request, StagedPublish()
        try:
            # Tables and feeds wait for the storage together.
            with gathered_writes():
                staged = self._stager.stage(request, self._registered, self._due)
                self._stager.complete(self._due, staged)
                failing = {failure.table.table_id for failure in (*request.failures, *staged.failures)}
                staged.feeds = self._feeds.stage(staged.feed_tables, failing, request)
            self._observe_staged(request)
        finally:
            self.files.add(*staged.written)
        self._request = replace(request, failures=(*request.failures, *staged.failures))
        return staged

    def supersede(self, conflict: CommitConflict) -> None:
        super().supersede(conflict)
        if isinstance(conflict, FeedsMoved):
            self._moved_feeds = conflict.feeds

    def pause(self, conflicts: int) -> None:
        if not self._moved_feeds:
            self._retry.wait(conflicts)

    def _landed(self, staged: StagedPublish) -> LandedPublish:
        """Takes over the result of the publish."""
        committed = self._stager.landed(staged, self._outcome.live)
        return LandedPublish(
            frontier=self._applied,
            live=self._outcome.live,
            filling=self._outcome.filling,
            dropped=tuple(staged.dropped),
            refused=tuple(staged.refused),
            failures=self._outcome.failures,
            # If a table's request was left out, the table may still go live, by a request of its own.
            tables={table_id: table for table_id, table in committed.items() if table_id not in staged.dropped},
            feeds=self._feeds.landed(staged.feeds),
            refused_feeds=tuple(staged.feeds.refused),
            snapshots=len(committed),
            files=staged.files,
            recorded_at=self._wal_position(),
            token=_MADE_HERE,
        )

    def _settle(self, table: MirroredTable, row: Registration) -> Failure | None:
        """Records or undoes what another engine committed to the table. Returns why the table fails if that is not
        possible."""
        registered = replace(table, start_lsn=row.start_lsn)
        load = self._stager.load_state
        return settle_table(registered, row, load, self._open(), self._locked, self._observer)

    @contextmanager
    def _locked(self, files: WrittenFiles, doing: str) -> Iterator[SlotLock]:
        """A transaction of its own, which lands these files, and begins with the slot's lock."""
        connection = self._open()
        with source_errors(doing), files.committing(connection, connection.cancel):
            yield self.take_lock()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        connection = self._open()
        try:
            with self.files.committing(connection, connection.cancel):
                yield
        except psycopg.InterfaceError as error:
            raise ConnectionLost(str(as_source_error(error, self.doing)), CONNECTS_AGAIN) from error

    def swap(self, lock: SlotLock, _base: None, staged: StagedPublish) -> None:
        """Does everything in one transaction."""
        request, self._publish_id = self._request, random.getrandbits(63)
        assert lock.row is not None
        self._applied = Lsn(max(lock.row.applied_lsn, request.frontier or 0))
        with self.connection.cursor() as cursor:
            transaction = FrontierTransaction(lock, cursor, self.slot, self._applied, self._indexes)
            transaction.apply_all(staged.accepted, request.written_since)
            failures = tuple(failure for failure in request.failures if transaction.fail(failure))
            filling = transaction.move_frontier(self._publish_id, request.commit_time_us)
            self._feeds.land(lock, staged.feeds)
            settle_names(lock, staged.names)
            transaction.swap_in(staged)
            live = transaction.go_live(staged.going_live - {failure.table.table_id for failure in failures})
            cursor.execute(_SQL["promise"], {"slot": self.slot, "frontier": self._applied})
            # This check comes last: the later it runs, the fewer changes can be missed between it and the commit
            # record.
            self._publication.refuse_changed(cursor)
        self._outcome = _Landed(live, failures, filling)

    def take_lock(self) -> SlotLock:
        """Raises NotLeader if another pump leads, ConnectionLost if the session has to begin anew."""
        lock = super().take_lock()
        slot = lock.row
        if slot is not None and slot.timeline != self._timeline:
            # A connection that was made anew may lead to a server that was promoted meanwhile, and that lacks
            # transactions of the batch, or to a former primary, whose epoch says nothing of who leads now.
            raise ConnectionLost(
                f"the server changed from timeline {self._timeline} to {slot.timeline} during the session",
                "mirror-pump begins a new session by itself, and looks first what the server has",
            )
        if slot is None:
            raise slot_gone(self.slot)
        if not slot.accepted_server:
            raise ConnectionLost(
                "the connection leads to another server than the mirror was published on",
                "mirror-pump begins a new session by itself, and looks first what the server is",
            )
        if slot.leader_epoch != self._epoch:
            raise other_epoch(self.slot, slot.leader_epoch, self._epoch)
        if slot.streams != self._streams:
            # A frontier from without a stream would pass changes of a table that was registered since.
            raise ConnectionLost(
                "the mirror was given a stream during the session", "mirror-pump begins a new session by itself"
            )
        return lock

    def _wal_position(self) -> Lsn | None:
        """The end of the WAL after a publish that landed. None if the connection was lost: the next publish tells."""
        try:
            return flushed_end(self._open())
        except (SourceError, psycopg.Error):
            return None

    def has_landed(self, error: SourceError) -> bool:
        """Asks the database. Raises ConnectionLost if the publish certainly failed.

        Every publish writes a random number to the slot's row, and only the leader writes that row. So while this pump
        leads, the row holds its number if and only if its COMMIT happened. Another pump may have replaced the number
        since.
        """
        try:
            connection = self._open()
            with connection.transaction():
                slot = SlotLock.take(connection, self.slot).row
        except (psycopg.Error, SourceError) as again:
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
            self.files.may_have_landed = False
            raise ConnectionLost(
                f"the connection was lost during COMMIT, which did not happen: {error}", CONNECTS_AGAIN
            ) from error
        # When the pump restarts it reads from the catalog which tables went live. Here that is only an optimisation.
        self._outcome = _Landed((), self._request.failures)
        return True

    def _open(self) -> PgConnection:
        if self.connection.closed or self.connection.broken:
            self.connection = self._connect()
        return self.connection
