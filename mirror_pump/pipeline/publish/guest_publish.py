"""Publishes within a transaction of a process that does not lead, under the slot's lock.

Only the leader moves the frontier. A guest moves the pointer and the published snapshot of
one table, for an operation that has nothing to do with the stream. It is safe beside a leader for three reasons:

- Every publish takes the lock of the slot's row first, and holds it to its end, and so does a guest. So the two come
  one after the other.
- The leader reads each table's registration before it stages, and moves the pointer only if it is where it was read. A
  commit of a guest in between is a conflict like that of any other engine, and the leader stages again. It drops the
  table's key index, which knows nothing of the guest's files.
- A guest does not touch `publish_id`, `applied_lsn` or the epoch, from which the leader and its successors tell what
  has landed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mirror_pump.errors import SourceError, TableError
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.commit.table_head import changed_rows
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import MirroredTable, TableId
from mirror_pump.pipeline.feeds.feed_staging import FeedStager
from mirror_pump.pipeline.feeds.foreign_feed_commits import FeedsMoved
from mirror_pump.pipeline.key_index.key_indexes import KeyIndexes
from mirror_pump.pipeline.landing.slot_lock import SlotLock
from mirror_pump.pipeline.landing.written_files import WrittenFiles
from mirror_pump.pipeline.operations.registrations import Registration
from mirror_pump.pipeline.operations.requests import PublishRequest
from mirror_pump.pipeline.operations.table_changes import Failure
from mirror_pump.pipeline.publish.catalog_tables import CatalogTables
from mirror_pump.pipeline.publish.publish_transaction import PublishTransaction
from mirror_pump.pipeline.publish.staged_publish import StagedPublish
from mirror_pump.pipeline.publish.staging import Stager
from mirror_pump.source.connect import PgConnection
from sql import queries

_SQL = queries("publish")


@dataclass(frozen=True)
class GuestPublish:
    """A request whose commit is staged."""

    request: PublishRequest
    staged: StagedPublish
    registrations: Mapping[TableId, object]
    """What it was staged on."""


class GuestPublisher:
    """Publishes in the open transaction of `connection`, which is the caller's to commit."""

    def __init__(self, connection: PgConnection, slot: str, storage: StorageOptions) -> None:
        row = connection.execute(_SQL["timeline"]).fetchone()
        assert row is not None
        self.slot = slot
        self._indexes = KeyIndexes(0, storage)
        self._tables = CatalogTables(lambda: connection, slot, storage)
        self._stager = Stager(
            storage, self._indexes, self._tables.left_to_the_lake, self._tables.missing, timeline=int(row[0])
        )
        self._feeds = FeedStager(lambda: connection, slot, storage, int(row[0]))

    def load(self, table: MirroredTable) -> LakeTable:
        """Loads the table's present state in the lake. Raises TableError if this registration or its lake table no
        longer exists, or another engine has changed its rows."""
        return self._tables.load(table, self._stager.load_state, self._let_be)

    def stage(self, request: PublishRequest, files: WrittenFiles) -> GuestPublish:
        """Writes the lake's commit, for the catalog as it is now. Raises TableError if the table cannot take it."""
        registered = self._tables.registrations([part.table.table_id for part in request.tables])
        for part in request.tables:
            row = registered.get(part.table.table_id)
            if row is not None and row.moved_by_others:
                self._let_be(part.table, row)
        staged = self._stager.stage(request, registered, ())
        files.add(*staged.written)
        _require_whole(staged, request)
        try:
            staged.feeds = self._feeds.stage(staged.feed_tables, (), request)
        except FeedsMoved as moved:
            self._feeds.let_be(moved.feeds)
            staged.feeds = self._feeds.stage(staged.feed_tables, (), request)
        files.add(*staged.written)
        return GuestPublish(request, staged, _without_time(registered))

    def has_moved(self, publish: GuestPublish) -> bool:
        """Whether what was staged does not fit the catalog as it is now."""
        registered = self._tables.registrations(list(publish.registrations))
        return _without_time(registered) != publish.registrations or not self._feeds.fits(publish.staged.feeds)

    def _let_be(self, table: MirroredTable, row: Registration) -> Failure | None:
        """Lets another engine's rewrite be. Only the leader undoes a change of rows: raises TableError."""
        assert row.pointer is not None
        if row.head is not None:
            lake = self._stager.load_state(table.table_id, row.pointer)
            reason = changed_rows(row.head, lake, row.snapshots_to_keep(lake.metadata))
            if reason is not None:
                raise TableError(
                    f"another engine {reason} in the lake table of {table.name}",
                    "a pump undoes that within seconds: start one if none runs, and try again",
                )
        return None

    def land(self, lock: SlotLock, publish: GuestPublish) -> None:
        """Carries out what was staged. Raises CommitConflict if another engine committed meanwhile, SourceError if the
        slot is gone."""
        if lock.row is None:
            raise SourceError(f"the catalog no longer knows slot {self.slot}", "run `mirror-pump init` again")
        with lock.connection.cursor() as cursor:
            transaction = PublishTransaction(lock, cursor, self.slot, lock.row.applied_lsn, self._indexes)
            for accepted in publish.staged.accepted:
                transaction.apply(accepted, publish.request.written_since)
        self._feeds.land(lock, publish.staged.feeds)


def _without_time(registered: Mapping[TableId, Registration]) -> dict[TableId, object]:
    return {table_id: replace(row, read_at=None) for table_id, row in registered.items()}  # type: ignore[arg-type]


def _require_whole(staged: StagedPublish, request: PublishRequest) -> None:
    """Raises TableError, unless everything that was requested is staged."""
    if staged.failures:
        raise TableError(staged.failures[0].error)
    if staged.dropped or staged.refused:
        names = ", ".join(str(part.table.name) for part in request.tables)
        raise TableError(
            f"{names} is being copied or filled, was altered, or was registered again",
            "try again when `mirror-pump status` shows it as live",
        )
