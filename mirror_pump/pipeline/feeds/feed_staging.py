"""The feeds' part of a publish: what they get, staged as Iceberg commits, and the transaction's statements.

Invariant: for published frontiers A < B at which a table is live, its feed has either a reset between them, or replayed
from A to B it turns the rows at A into those at B. It holds because a publish does one of three things to the feed of a
table that is live after it. If the table was live before, and the rows changed by row events alone that are all at
hand, the feed gets these. If no row may have changed, it gets nothing. In all other cases it gets a reset: the table
goes live, the feed has not begun or could not be written last, rows changed without row events, or a segment was
decoded before the pump knew the feed. What a table's segments bring while it is not live is dropped.

A feed whose files or whose place in the catalog are gone gets nothing. The catalog says why (`change_feeds.error`), and
readers are refused until it has its reset. Its table and all others go on.

All pointers move in the publish's transaction, from where they were read. If upkeep committed to a feed in between,
the transaction, which holds the slot's lock, stages that feed's part again on top of it: with many feeds, some is
merged all the time, and neither the tables nor the other feeds are to wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from decoders.change_events import HEAD_SCHEMA
from mirror_pump.engine.ingest.feed_files import write_feed_rows
from mirror_pump.errors import (
    CommitConflict,
    ConnectionLost,
    FileDamaged,
    FileMissing,
    ForeignTable,
    LakeError,
    TableError,
)
from mirror_pump.lake.commit.row_delta import LakeTable, RowDelta, SegmentFiles, StagedCommit
from mirror_pump.lake.commit.schema_evolution import SchemaConflict
from mirror_pump.lake.document.next_metadata import with_own_properties
from mirror_pump.lake.document.snapshot_summary import FRONTIER_PROPERTY, TIMELINE_PROPERTY
from mirror_pump.lake.document.snapshot_thinning import FEED_RETENTION
from mirror_pump.lake.format.data_files import WrittenFile
from mirror_pump.lake.format.feed_schema import (
    BEGINS_PROPERTY,
    FEED_PARTITIONING,
    TRANSACTION_SCHEMA,
    feed_schema,
    raw_text_of_feed,
    table_part,
)
from mirror_pump.lake.format.partitioned_files import write_data_files
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.storage import StagedFiles, StorageOptions, discard, gathered_writes
from mirror_pump.model import FeedMode, Lsn, MirroredTable, TableFeed, TableId, TableName, TableState, format_lsn
from mirror_pump.pipeline.feeds.foreign_feed_commits import (
    FeedPointer,
    FeedsMoved,
    LockedTransaction,
    change_of_rows,
    error_of_feed,
    moved_by_others,
    repair_of,
    settle_feed,
)
from mirror_pump.pipeline.feeds.transaction_rows import transaction_rows
from mirror_pump.pipeline.flow.steps import Observer
from mirror_pump.pipeline.landing.feed_pointers import FeedMove, move_feeds
from mirror_pump.pipeline.landing.slot_lock import SlotLock
from mirror_pump.pipeline.missing_files.missing_files import MissingFiles
from mirror_pump.pipeline.operations.add_chunks import AddChunks
from mirror_pump.pipeline.operations.append_changes import AppendChanges
from mirror_pump.pipeline.operations.apply_stream import ApplyStream
from mirror_pump.pipeline.operations.change_columns import ChangeColumns
from mirror_pump.pipeline.operations.combinations import TableOperation
from mirror_pump.pipeline.operations.record_publication import RecordPublication
from mirror_pump.pipeline.operations.refresh_archive import RefreshArchive
from mirror_pump.pipeline.operations.rewrite_files import RewriteFiles
from mirror_pump.pipeline.operations.truncate import Truncate
from mirror_pump.runtime.table_work import work_for
from mirror_pump.source.catalog.change_feeds import TRANSACTIONS_ID
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.rows import fetch_rows
from sql import queries

_SQL = queries("change_feeds")

_EXAMINE_AGAIN_SECONDS = 60.0
"""After this time a commit that cannot be undone is examined again: a file may be back."""
_KEEP_ROWS = (AddChunks, AppendChanges, ChangeColumns, RecordPublication, RefreshArchive, RewriteFiles)
"""Operations after which the rows of a table that is live are as before."""


@dataclass(frozen=True)
class PublishedTable:
    """What a publish does to a table that may have a feed."""

    table: MirroredTable
    """After the publish."""
    operations: Sequence[TableOperation]
    was_live: bool
    is_live: bool
    """After the publish."""

    @property
    def changes(self) -> AppendChanges | None:
        """The rows for its feed."""
        return next((operation for operation in self.operations if isinstance(operation, AppendChanges)), None)

    @property
    def keeps_rows(self) -> bool:
        """Whether no row changes."""
        return all(isinstance(operation, _KEEP_ROWS) for operation in self.operations)


@dataclass(frozen=True)
class _CatalogFeed:
    """A row of the query `to_publish`."""

    feed_id: TableId
    mode: str
    keep: timedelta | None
    namespace: str
    name: str
    location: str
    begins_lsn: Lsn | None
    not_before_lsn: Lsn
    """It begins at this frontier or a later one."""
    metadata_location: str | None
    head: dict[str, Any] | None
    """The state that the mirror left or examined."""
    schema_name: str | None
    table_name: str | None
    """NULL, as the state: it is that of the transactions, or the registration has ended."""
    state: str | None
    start_lsn: Lsn | None
    applied_lsn: Lsn
    error: str | None
    """Why it could not be written last."""
    read_at: datetime
    """By the database's clock."""
    pinned: list[int]

    @property
    def feed(self) -> TableFeed:
        return TableFeed(FeedMode(self.mode), self.location)


@dataclass(frozen=True)
class _Staged:
    """A feed's part of the publish."""

    row: _CatalogFeed
    files: Sequence[WrittenFile]
    schema: LakeSchema | None
    begins: bool
    """Whether it begins here, unless it has begun."""
    commit: StagedCommit

    @property
    def feed_id(self) -> TableId:
        return self.row.feed_id


@dataclass(frozen=True)
class _Unsettled:
    """Another engine's commit that cannot be undone."""

    location: str
    """Its metadata file."""
    error: LakeError | TableError
    due: float
    """When it is examined again, in seconds of the monotonic clock."""

    def stays(self, location: str | None) -> bool:
        """Whether there is nothing to examine yet, at the place that the catalog has now."""
        return location == self.location and time.monotonic() < self.due


@dataclass
class StagedFeeds:
    """The feeds' part of a publish."""

    feeds: list[_Staged] = field(default_factory=list)
    broken: dict[TableId, str] = field(default_factory=dict)
    """Feeds that cannot be written, and why."""
    written: list[str] = field(default_factory=list)
    """URIs of the files that were written for it."""
    unused: list[str] = field(default_factory=list)
    """URIs of files of tasks that no feed gets."""
    superseded: list[str] = field(default_factory=list)
    """URIs of manifests and metadata that were staged again."""


class FeedStager:
    """Stages the feeds' commits, and keeps their metadata in memory. Only one thread at a time may use it."""

    def __init__(
        self, connection: Callable[[], PgConnection], slot: str, storage: StorageOptions, timeline: int, *, guest: bool
    ) -> None:
        """`guest`: publishes do not move the frontier."""
        self._connection = connection
        self._slot = slot
        self._storage = storage
        self._timeline = timeline
        self._guest = guest
        self._missing = MissingFiles(storage, tuple)
        self._tables: dict[TableId, LakeTable] = {}
        self._unsettled: dict[int, _Unsettled] = {}
        """By feed, another engine's commit that cannot be undone."""

    def settle(
        self,
        feeds: Sequence[FeedPointer],
        locked: LockedTransaction,
        observer: Observer,
    ) -> None:
        """Settles the commits of other engines to feeds. Raises CommitConflict, LakeError and SourceError."""
        for feed in feeds:
            assert feed.metadata_location is not None
            try:
                settle_feed(feed, locked, self._storage, observer)
            except _BROKEN as error:
                due = time.monotonic() + _EXAMINE_AGAIN_SECONDS
                self._unsettled[feed.feed_id] = _Unsettled(feed.metadata_location, error, due)

    def stage(
        self, tables: Mapping[TableId, PublishedTable], failing: Collection[TableId], frontier: Lsn | None
    ) -> StagedFeeds:
        """Writes what the feeds get in a publish that does this to these tables. `failing`: tables that it fails.
        Raises FeedsMoved if other engines have committed to them (`settle`), LakeError and SourceError; then nothing is
        left behind."""
        with source_errors("reading the change feeds"):
            rows = fetch_rows(
                self._connection(), _CatalogFeed, _SQL["to_publish"], {"slot": self._slot, "table_ids": list(tables)}
            )
        self._require_settled(rows)
        result = StagedFeeds()
        missing = self._missing_in_heads(rows, tables)
        kept: list[tuple[str, AppendChanges]] = []
        with StagedFiles(self._storage) as written, gathered_writes():
            for row in rows:
                if row.feed_id != TRANSACTIONS_ID and row.feed_id not in failing:
                    published = tables.get(row.feed_id)
                    try:
                        with work_for(str(TableName(row.namespace, row.name)), remedy=repair_of(row)):
                            self._stage_table(row, published, missing, frontier, result, kept, written)
                    except _BROKEN as error:
                        result.broken[row.feed_id] = error_of_feed(error, row)
            stray = set(tables) - {staged.feed_id for staged in result.feeds}
            for table_id in stray:
                result.unused += _files(tables[table_id])
            transactions = next((row for row in rows if row.feed_id == TRANSACTIONS_ID), None)
            if transactions is not None and result.feeds:
                lake_name = str(TableName(transactions.namespace, transactions.name))
                try:
                    with work_for(lake_name, remedy=repair_of(transactions)):
                        self._stage_transactions(transactions, missing, kept, frontier, result, written)
                except _BROKEN as error:
                    result.broken[transactions.feed_id] = error_of_feed(error, transactions)
            result.written += written.locations
        return result

    def _require_settled(self, rows: Sequence[_CatalogFeed]) -> None:
        for row in rows:
            unsettled = self._unsettled.get(row.feed_id)
            if unsettled is not None and not (moved_by_others(row) and unsettled.stays(row.metadata_location)):
                del self._unsettled[row.feed_id]
        moved = [row for row in rows if moved_by_others(row) and row.feed_id not in self._unsettled]
        if not self._guest and moved:
            raise FeedsMoved(moved)
        for row in moved:
            # Only the leader undoes a change of rows.
            reason = change_of_rows(row, self._lake(row))
            if reason is not None:
                raise TableError(
                    f"another engine {reason} in {TableName(row.namespace, row.name)}",
                    "a pump undoes that within seconds: start one if none runs, and try again",
                )

    def land(self, lock: SlotLock, staged: StagedFeeds, frontier: Lsn | None) -> None:
        """Moves the pointers. Feeds to which upkeep has committed are
        staged again. Raises CommitConflict if another writer has, LakeError and psycopg.Error."""
        if staged.broken:
            parameters: dict[str, object] = {
                "feed_ids": list(staged.broken),
                "errors": list(staged.broken.values()),
            }
            lock.connection.execute(_SQL["broken"], parameters)
        moved = self._move(lock, staged.feeds, frontier)
        left = {part.feed_id: part for part in staged.feeds if part.feed_id not in moved}
        if not left:
            return
        parameters = {"slot": self._slot, "table_ids": list(left)}
        rows = fetch_rows(self._connection(), _CatalogFeed, _SQL["to_publish"], parameters)
        self._require_settled([row for row in rows if row.feed_id in left])
        with StagedFiles(self._storage) as written, gathered_writes():
            again = [
                self._commit(row, part.files, part.schema, frontier, written, begins=part.begins)
                for row in rows
                if (part := left.get(row.feed_id)) is not None and row.location == part.row.location
            ]
            if len(self._move(lock, again, frontier)) != len(left):
                raise CommitConflict("another writer committed to a change feed")
            staged.written += written.locations
        staged.feeds = [part for part in staged.feeds if part.feed_id in moved] + again
        staged.superseded += [file for part in left.values() for file in part.commit.files]

    def _move(self, lock: SlotLock, parts: Sequence[_Staged], frontier: Lsn | None) -> set[TableId]:
        """Moves pointers that are where they were read. Returns the feeds of these."""
        return move_feeds(
            lock,
            [
                FeedMove(part.feed_id, part.commit, self._frontier(part.row, frontier) if part.begins else None)
                for part in parts
            ],
        )

    def landed(self, staged: StagedFeeds) -> None:
        """Takes over the result of a publish that landed."""
        self._tables |= {part.feed_id: part.commit.table for part in staged.feeds}
        discard((*staged.unused, *staged.superseded), self._storage)

    def _stage_table(
        self,
        row: _CatalogFeed,
        published: PublishedTable | None,
        missing: Mapping[TableId, FileMissing],
        frontier: Lsn | None,
        result: StagedFeeds,
        kept: list[tuple[str, AppendChanges]],
        written: StagedFiles,
    ) -> None:
        """Stages one table's feed. Raises one of _BROKEN if it cannot be written."""
        if published is None:
            is_live = was_live = row.state == TableState.LIVE
            changes, keeps_rows, changes_columns = None, True, False
        else:
            is_live, was_live = published.is_live, published.was_live
            changes, keeps_rows = published.changes, published.keeps_rows
            changes_columns = any(isinstance(operation, ChangeColumns) for operation in published.operations)
        if not is_live or (row.begins_lsn is None and self._frontier(row, frontier) < row.not_before_lsn):
            return
        if published is not None and not self._guest:
            _require_known(row, published)
        has_all = keeps_rows if changes is None else changes.is_whole
        resets = not was_live or row.begins_lsn is None or row.error is not None or not has_all
        if not resets and not changes_columns and (changes is None or not changes.changes):
            return
        if row.feed_id in missing:
            raise missing[row.feed_id]
        files = self._reset(row, frontier, written) if resets else changes.changes if changes is not None else ()
        schema = None if published is None else _schema(published, row.feed.mode, self._lake(row), resets=resets)
        result.feeds.append(self._commit(row, files, schema, frontier, written, begins=resets))
        if resets:
            result.unused += [] if published is None else _files(published)
        elif changes is not None and published is not None:
            kept.append((f"{published.table.name.schema}.{published.table.name.name}", changes))

    def _missing_in_heads(
        self, rows: Sequence[_CatalogFeed], tables: Mapping[TableId, PublishedTable]
    ) -> dict[TableId, FileMissing]:
        """The feeds that lack a file on which a commit builds. Metadata in memory would hide the loss."""
        heads = {
            row.feed_id: lake
            for row in rows
            if (row.feed_id in tables or row.feed_id == TRANSACTIONS_ID or row.error is not None)
            and (lake := self._tables.get(row.feed_id)) is not None
            and lake.metadata_location == row.metadata_location
        }
        return self._missing.in_heads(heads)

    def _frontier(self, row: _CatalogFeed, frontier: Lsn | None) -> Lsn:
        return Lsn(max(row.applied_lsn, frontier or 0))

    def _reset(self, row: _CatalogFeed, frontier: Lsn | None, written: StagedFiles) -> tuple[WrittenFile, ...]:
        """Writes a reset. The rows that a guest changes are those of a frontier that was published before, so neither
        who has read up to it nor who has not may miss the reset."""
        new_frontier = self._frontier(row, frontier)
        lsns = [new_frontier - 1, new_frontier] if self._guest else [new_frontier - 1]
        heads = pa.Table.from_pylist(
            [
                {"_op": "reset", "_lsn": lsn, "_seq": 0, "_xid": None, "_committed_at": row.read_at, "_origin": None}
                for lsn in lsns
            ],
            schema=HEAD_SCHEMA,
        )
        columns = table_part(self._lake(row).schema)
        rows = pa.table([pa.nulls(len(lsns), part.type) for part in columns.arrow], names=columns.arrow.names)
        files = write_feed_rows(heads, rows, {}, None, columns, row.feed, self._storage).files
        written.own(*(file.path for file in files))
        return files

    def _lake(self, row: _CatalogFeed) -> LakeTable:
        if row.metadata_location is None:
            raise ForeignTable(
                f"the Iceberg catalog does not have {TableName(row.namespace, row.name)} any more: another engine"
                " dropped or renamed it",
                repair_of(row),
            )
        unsettled = self._unsettled.get(row.feed_id)
        if unsettled is not None:
            raise unsettled.error
        lake = self._tables.get(row.feed_id)
        if lake is None or lake.metadata_location != row.metadata_location:
            lake = replace(LakeTable.load(row.metadata_location, self._storage), retention=FEED_RETENTION)
            self._tables[row.feed_id] = lake
        return lake

    def _commit(
        self,
        row: _CatalogFeed,
        files: Sequence[WrittenFile],
        schema: LakeSchema | None,
        frontier: Lsn | None,
        written: StagedFiles,
        *,
        begins: bool,
    ) -> _Staged:
        base, new_frontier = self._lake(row), self._frontier(row, frontier)
        if begins and row.begins_lsn is None:
            properties = {BEGINS_PROPERTY: format_lsn(new_frontier)}
            base = replace(base, metadata=with_own_properties(base.metadata, properties))
        summary = {FRONTIER_PROPERTY: format_lsn(new_frontier), TIMELINE_PROPERTY: str(self._timeline)}
        delta = RowDelta((SegmentFiles(tuple(files), ()),), schema=schema, summary=summary)
        commit = base.stage(delta, time.time_ns() // 1_000_000, frozenset(row.pinned))
        written.own(*commit.files)
        return _Staged(row, files, schema, begins, commit)

    def _stage_transactions(
        self,
        row: _CatalogFeed,
        missing: Mapping[TableId, FileMissing],
        kept: Sequence[tuple[str, AppendChanges]],
        frontier: Lsn | None,
        result: StagedFeeds,
        written: StagedFiles,
    ) -> None:
        """Stages the rows of the transactions of which feeds get changes."""
        rows = transaction_rows([(name, counts) for name, changes in kept for counts in changes.counts])
        if not rows.num_rows and row.begins_lsn is not None and row.error is None:
            return
        if row.feed_id in missing:
            raise missing[row.feed_id]
        self._lake(row)
        files = write_data_files(rows, TRANSACTION_SCHEMA, row.location, self._storage, FEED_PARTITIONING)
        written.own(*(file.path for file in files))
        result.feeds.append(self._commit(row, files, None, frontier, written, begins=True))


_BROKEN = (SchemaConflict, ForeignTable, FileMissing, FileDamaged, TableError)
"""Errors because of which a feed alone cannot be written."""


def _require_known(row: _CatalogFeed, published: PublishedTable) -> None:
    """Raises ConnectionLost if the table was decoded without its feed, or for a former one: only a new session decodes
    it with the feed. Until then the feed would get nothing but resets."""
    feed = published.table.feed
    decoded = any(isinstance(operation, ApplyStream | Truncate) for operation in published.operations)
    # What ends before the position at which the feed may begin is decoded without it.
    may_be_known = row.begins_lsn is not None or row.applied_lsn >= row.not_before_lsn
    if decoded and published.was_live and may_be_known and (feed is None or feed.location != row.location):
        raise ConnectionLost(
            f"{published.table.name} was given a change feed during the session",
            "mirror-pump begins a new session by itself",
        )


def _files(published: PublishedTable) -> list[str]:
    return [] if published.changes is None else list(published.changes.files)


def _schema(published: PublishedTable, mode: FeedMode, lake: LakeTable, *, resets: bool) -> LakeSchema | None:
    """The feed's columns from this publish on; None if nothing changes."""
    changes = published.changes
    new, old = raw_text_of_feed(lake.schema)
    if changes is not None and not resets:
        new, old = new | changes.raw_text, old | changes.old_raw_text
    schema = feed_schema(published.table, mode, new, old)
    return None if schema.fields == lake.schema.fields else schema
