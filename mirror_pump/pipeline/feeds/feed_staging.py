"""The feeds' part of a publish: what they get, staged as Iceberg commits, and the transaction's statements.

Invariant: for published frontiers A < B at which a table is live, its feed has either a reset between them, or replayed
from A to B it turns the rows at A into those at B. It holds because a publish does one of three things to the feed of a
table that is live after it. If the table was live before, and the rows changed by row events alone that are all at
hand, the feed gets these. If no row may have changed, it gets nothing. In all other cases it gets a reset: the table
goes live, the feed has not begun or could not be written last, rows changed without row events, or a segment was
decoded before the pump knew the feed. What a table's segments bring while it is not live is dropped.

A feed whose files or whose place in the catalog are gone gets nothing. The catalog says why (`change_feeds.error`), and
readers are refused until it has its reset. Its table and all others go on.

All pointers move in the publish's transaction, from where they were read. While a pump leads, it is the one that
commits to feeds, merges of their files included (FeedRequest). The few commits of others, of maintenance for instance,
are conflicts as those to mirrored tables: the publish is staged again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from decoders.change_events import HEAD_SCHEMA
from mirror_pump.engine.ingest.feed_files import write_feed_rows
from mirror_pump.errors import (
    ConnectionLost,
    FileDamaged,
    FileMissing,
    ForeignTable,
    LakeError,
    TableError,
)
from mirror_pump.lake.commit.file_rewrite import FileRewriteSuperseded
from mirror_pump.lake.commit.row_delta import LakeTable, RowDelta, SegmentFiles
from mirror_pump.lake.commit.schema_evolution import SchemaConflict
from mirror_pump.lake.document.next_metadata import with_own_properties
from mirror_pump.lake.document.snapshot_summary import FRONTIER_PROPERTY, TIMELINE_PROPERTY
from mirror_pump.lake.document.snapshot_thinning import FEED_RETENTION
from mirror_pump.lake.format.data_files import WrittenFile
from mirror_pump.lake.format.feed_schema import (
    BEGINS_PROPERTY,
    FEED_PARTITIONING,
    TABLES,
    TRANSACTION_SCHEMA,
    feed_schema,
    raw_text_of_feed,
    table_part,
)
from mirror_pump.lake.format.partitioned_files import write_data_files
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.storage import StagedFiles, StorageOptions, discard, gathered_writes
from mirror_pump.model import FeedMode, Lsn, MirroredTable, TableFeed, TableId, TableState, format_lsn
from mirror_pump.pipeline.feeds.foreign_feed_commits import FeedsMoved, error_of_feed, foreign_commit, settle_feed
from mirror_pump.pipeline.flow.steps import Observer
from mirror_pump.pipeline.landing.feed_pointers import FeedMove, move_feeds
from mirror_pump.pipeline.landing.foreign_commit import LockedTransaction
from mirror_pump.pipeline.landing.slot_lock import SlotLock
from mirror_pump.pipeline.missing_files.missing_files import MissingFiles
from mirror_pump.pipeline.operations.add_chunks import AddChunks
from mirror_pump.pipeline.operations.append_changes import COUNT, COUNT_SCHEMA, AppendChanges
from mirror_pump.pipeline.operations.apply_stream import ApplyStream
from mirror_pump.pipeline.operations.change_columns import ChangeColumns
from mirror_pump.pipeline.operations.combinations import TableOperation
from mirror_pump.pipeline.operations.record_publication import RecordPublication
from mirror_pump.pipeline.operations.refresh_archive import RefreshArchive
from mirror_pump.pipeline.operations.requests import FeedRequest, PublishRequest
from mirror_pump.pipeline.operations.rewrite_files import RewriteFiles
from mirror_pump.pipeline.operations.truncate import Truncate
from mirror_pump.runtime.table_work import work_for
from mirror_pump.source.catalog.change_feeds import TRANSACTIONS_ID, ChangeFeed, feeds_to_publish
from mirror_pump.source.connect import PgConnection
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

    feeds: list[FeedMove] = field(default_factory=list)
    broken: dict[TableId, str] = field(default_factory=dict)
    """Feeds that cannot be written, and why."""
    written: list[str] = field(default_factory=list)
    """URIs of the files that were written for it."""
    unused: list[str] = field(default_factory=list)
    """URIs of files of tasks that no feed gets."""
    refused: list[TableId] = field(default_factory=list)
    """Feeds whose rewrite was left out."""


class FeedStager:
    """Stages the feeds' commits, and keeps their metadata in memory. Only one thread at a time may use it."""

    def __init__(
        self, connection: Callable[[], PgConnection], slot: str, storage: StorageOptions, timeline: int
    ) -> None:
        self._connection = connection
        self._slot = slot
        self._storage = storage
        self._timeline = timeline
        self._missing = MissingFiles(storage, tuple)
        self._tables: dict[TableId, LakeTable] = {}
        self._unsettled: dict[int, _Unsettled] = {}
        """By feed, another engine's commit that cannot be undone."""
        self._let_be: set[str] = set()
        """Metadata files of other engines' rewrites, on which this builds."""

    def settle(
        self,
        feeds: Sequence[ChangeFeed],
        locked: LockedTransaction,
        observer: Observer,
    ) -> None:
        """Settles the commits of other engines to feeds. Raises CommitConflict, LakeError and SourceError."""
        for feed in feeds:
            try:
                settle_feed(feed, locked, self._storage, observer)
            except _BROKEN as error:
                due = time.monotonic() + _EXAMINE_AGAIN_SECONDS
                self._unsettled[feed.feed_id] = _Unsettled(feed.pointer, error, due)

    def stage(
        self, tables: Mapping[TableId, PublishedTable], failing: Collection[TableId], request: PublishRequest
    ) -> StagedFeeds:
        """Writes what the feeds get in a publish that does this to these tables, and what else the request asks for.
        `failing`: tables that it fails. Raises FeedsMoved if other engines have committed to them (`settle`), LakeError
        and SourceError; then nothing is left behind."""
        requested = [part.feed_id for part in request.feeds]
        rows = feeds_to_publish(self._connection(), self._slot, [*tables, *requested])
        self._require_settled(rows)
        result, frontier = StagedFeeds(), request.frontier
        missing = self._missing_in_heads(rows, {*tables, *requested})
        appended: list[tuple[str, AppendChanges]] = []
        with StagedFiles(self._storage) as written, gathered_writes():
            for row in rows:
                if row.feed_id != TRANSACTIONS_ID and row.feed_id not in failing:
                    published = tables.get(row.feed_id)
                    try:
                        with work_for(str(row.lake_name), remedy=row.repair()):
                            self._stage_table(row, published, missing, frontier, result, appended, written)
                    except _BROKEN as error:
                        result.broken[row.feed_id] = error_of_feed(error, row)
            stray = set(tables) - {staged.feed_id for staged in result.feeds}
            for table_id in stray:
                result.unused += _files(tables[table_id])
            transactions = next((row for row in rows if row.feed_id == TRANSACTIONS_ID), None)
            if transactions is not None and result.feeds:
                try:
                    with work_for(str(transactions.lake_name), remedy=transactions.repair()):
                        self._stage_transactions(transactions, missing, appended, frontier, result, written)
                except _BROKEN as error:
                    result.broken[transactions.feed_id] = error_of_feed(error, transactions)
            self._stage_rewrites(request, {row.feed_id: row for row in rows}, missing, result, written)
            result.written += written.locations
        return result

    def fits(self, staged: StagedFeeds) -> bool:
        """Whether the pointers are where they were when this was staged."""
        feed_ids = [part.feed_id for part in staged.feeds]
        rows = feeds_to_publish(self._connection(), self._slot, feed_ids) if feed_ids else ()
        pointers = {row.feed_id: row.metadata_location for row in rows}
        return all(pointers.get(part.feed_id) == part.feed.metadata_location for part in staged.feeds)

    def _require_settled(self, rows: Sequence[ChangeFeed]) -> None:
        for row in rows:
            unsettled = self._unsettled.get(row.feed_id)
            if unsettled is not None and not (row.moved_by_others and unsettled.stays(row.metadata_location)):
                del self._unsettled[row.feed_id]
        settled = self._unsettled.keys() | {row.feed_id for row in rows if row.metadata_location in self._let_be}
        moved = [row for row in rows if row.moved_by_others and row.feed_id not in settled]
        if moved:
            raise FeedsMoved(moved)

    def let_be(self, feeds: Sequence[ChangeFeed]) -> None:
        """Lets other engines' rewrites of feeds be. Only the leader undoes a change of rows: raises TableError."""
        for feed in feeds:
            reason = foreign_commit(feed, self._lake(feed)).change_of_rows
            if reason is not None:
                raise TableError(
                    f"another engine {reason} in {feed.lake_name}",
                    "a pump undoes that within seconds: start one if none runs, and try again",
                )
            self._let_be.add(feed.pointer)

    def land(self, lock: SlotLock, staged: StagedFeeds) -> None:
        """Moves the pointers. Raises CommitConflict if another writer has committed to a feed, and psycopg.Error."""
        if staged.broken:
            parameters = {"feed_ids": list(staged.broken), "errors": list(staged.broken.values())}
            lock.connection.execute(_SQL["broken"], parameters)
        move_feeds(lock, staged.feeds)

    def landed(self, staged: StagedFeeds) -> dict[TableId, LakeTable]:
        """Takes over the result of a publish that landed. Returns the new state of the feeds that it committed to."""
        states = {part.feed_id: part.table for part in staged.feeds}
        self._tables |= states
        discard(staged.unused, self._storage)
        return states

    def _stage_table(
        self,
        row: ChangeFeed,
        published: PublishedTable | None,
        missing: Mapping[TableId, FileMissing],
        frontier: Lsn | None,
        result: StagedFeeds,
        appended: list[tuple[str, AppendChanges]],
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
        if published is not None:
            _require_known(row, published)
        has_all = keeps_rows if changes is None else changes.is_whole
        resets = not was_live or row.begins_lsn is None or row.error is not None or not has_all
        if not resets and not changes_columns and (changes is None or not changes.changes):
            return
        if row.feed_id in missing:
            raise missing[row.feed_id]
        files = self._reset(row, frontier, written) if resets else changes.changes if changes is not None else ()
        schema = None if published is None else _schema(published, row.mode, self._lake(row), resets=resets)
        delta = RowDelta((SegmentFiles(tuple(files), ()),), schema=schema)
        result.feeds.append(self._commit(row, delta, frontier, written, begins=resets))
        if resets:
            result.unused += [] if published is None else _files(published)
        elif changes is not None and published is not None:
            appended.append((f"{published.table.name.schema}.{published.table.name.name}", changes))

    def _missing_in_heads(self, rows: Sequence[ChangeFeed], changed: Collection[TableId]) -> dict[TableId, FileMissing]:
        """The feeds that lack a file on which a commit builds. Metadata in memory would hide the loss."""
        heads = {
            row.feed_id: lake
            for row in rows
            if (row.feed_id in changed or row.feed_id == TRANSACTIONS_ID or row.error is not None)
            and (lake := self._tables.get(row.feed_id)) is not None
            and lake.metadata_location == row.metadata_location
        }
        return self._missing.in_heads(heads)

    def _frontier(self, row: ChangeFeed, frontier: Lsn | None) -> Lsn:
        return Lsn(max(row.applied_lsn, frontier or 0))

    def _reset(self, row: ChangeFeed, frontier: Lsn | None, written: StagedFiles) -> tuple[WrittenFile, ...]:
        """Writes a reset. A publish that does not move the frontier changes the rows of one that was published before,
        so neither who has read up to it nor who has not may miss the reset."""
        new_frontier = self._frontier(row, frontier)
        lsns = [new_frontier - 1, new_frontier] if frontier is None else [new_frontier - 1]
        heads = pa.Table.from_pylist(
            [
                {"_op": "reset", "_lsn": lsn, "_seq": 0, "_xid": None, "_committed_at": row.read_at, "_origin": None}
                for lsn in lsns
            ],
            schema=HEAD_SCHEMA,
        )
        columns = table_part(self._lake(row).schema)
        rows = pa.table([pa.nulls(len(lsns), part.type) for part in columns.arrow], names=columns.arrow.names)
        files = write_feed_rows(heads, rows, {}, None, columns, TableFeed(row.mode, row.location), self._storage).files
        written.add(*(file.path for file in files))
        return files

    def _lake(self, row: ChangeFeed) -> LakeTable:
        if row.metadata_location is None:
            raise ForeignTable(
                f"the Iceberg catalog does not have {row.lake_name} any more: another engine dropped or renamed it",
                row.repair(),
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
        row: ChangeFeed,
        delta: RowDelta,
        frontier: Lsn | None,
        written: StagedFiles,
        *,
        begins: bool = False,
        expired: Lsn | None = None,
        written_since: float | None = None,
    ) -> FeedMove:
        """Stages a commit to a feed. `begins`: it begins here, unless it has begun. `expired` and `written_since`: as
        of FeedMove."""
        base, new_frontier = self._lake(row), self._frontier(row, frontier)
        if begins and row.begins_lsn is None:
            properties = {BEGINS_PROPERTY: format_lsn(new_frontier)}
            base = replace(base, metadata=with_own_properties(base.metadata, properties))
        if row.error is not None and row.mode is FeedMode.TRANSACTIONS:
            # What could not be written is gone. The feeds of tables have a reset.
            expired = new_frontier
        summary = {FRONTIER_PROPERTY: format_lsn(new_frontier), TIMELINE_PROPERTY: str(self._timeline)}
        commit = base.stage(replace(delta, summary=summary), time.time_ns() // 1_000_000, frozenset(row.pinned))
        written.add(*commit.files)
        return FeedMove(row, commit.table, new_frontier if begins else None, expired, written_since)

    def _stage_rewrites(
        self,
        request: PublishRequest,
        rows: Mapping[TableId, ChangeFeed],
        missing: Mapping[TableId, FileMissing],
        result: StagedFeeds,
        written: StagedFiles,
    ) -> None:
        """Stages the requested rewrites, but for those that do not fit. A feed that gets something else in this publish
        is rewritten by a later one."""
        taken = {*result.broken, *missing, *(part.feed_id for part in result.feeds)}
        for part in request.feeds:
            row, rewrite = rows.get(part.feed_id), part.rewrite
            if rewrite is None:
                unsettled = self._unsettled.get(part.feed_id)
                if row is not None and unsettled is not None:
                    # Readers are told, and it is not asked for again and again.
                    result.broken.setdefault(part.feed_id, error_of_feed(unsettled.error, row))
                continue
            if row is None or row.feed_id in taken or not _may_be_rewritten(row, part, request.written_since):
                result.refused.append(part.feed_id)
                continue
            try:
                with work_for(str(row.lake_name), remedy=row.repair()):
                    delta = RowDelta((), replaces=rewrite)
                    since = request.written_since if part.files else None
                    result.feeds.append(
                        self._commit(
                            row,
                            delta,
                            request.frontier,
                            written,
                            expired=rewrite.expired_lsn,
                            written_since=since,
                        )
                    )
            except (FileRewriteSuperseded, *_BROKEN):
                # What is wrong with the feed is met, and told, by the thread that computes the rewrite again.
                result.refused.append(part.feed_id)

    def _stage_transactions(
        self,
        row: ChangeFeed,
        missing: Mapping[TableId, FileMissing],
        appended: Sequence[tuple[str, AppendChanges]],
        frontier: Lsn | None,
        result: StagedFeeds,
        written: StagedFiles,
    ) -> None:
        """Stages the rows of the transactions of which feeds get changes."""
        rows = transaction_rows([(name, counts) for name, changes in appended for counts in changes.counts])
        if not rows.num_rows and row.begins_lsn is not None and row.error is None:
            return
        if row.feed_id in missing:
            raise missing[row.feed_id]
        self._lake(row)
        files = write_data_files(rows, TRANSACTION_SCHEMA, row.location, self._storage, FEED_PARTITIONING)
        written.add(*(file.path for file in files))
        delta = RowDelta((SegmentFiles(tuple(files), ()),))
        result.feeds.append(self._commit(row, delta, frontier, written, begins=True))


def transaction_rows(counts: Sequence[tuple[str, pa.Table]]) -> pa.Table:
    """Which tables' feeds have how many rows of each transaction: one row for each, in commit order, in the columns of
    TRANSACTION_SCHEMA. `counts`: names of tables with counts of COUNT_SCHEMA; a transaction may be in several for a
    table.

    Without Arrow's own grouping, which takes longer to begin than a publish of a second has rows.
    """
    parts = [(name, table) for name, table in counts if len(table)]
    arrow = TRANSACTION_SCHEMA.arrow
    if not parts:
        return arrow.empty_table()
    rows = pa.concat_tables([table for _, table in parts]).combine_chunks()
    names = sorted({name for name, _ in parts})
    tables = np.repeat([names.index(name) for name, _ in parts], [len(table) for _, table in parts])
    lsns = rows.column("_lsn").to_numpy()
    order = np.lexsort((tables, lsns))
    lsns, tables = lsns[order], tables[order]
    entries = np.concatenate([[0], np.flatnonzero((lsns[1:] != lsns[:-1]) | (tables[1:] != tables[:-1])) + 1])
    begins = np.concatenate([[0], np.flatnonzero(np.diff(lsns[entries])) + 1])
    maps = pa.MapArray.from_arrays(
        pa.array(np.append(begins, len(entries)).astype(np.int32)),
        pa.array(names).take(pa.array(tables[entries])),
        pa.array(np.add.reduceat(rows.column(COUNT).to_numpy()[order], entries)),
    ).cast(arrow.field(TABLES).type)
    heads = rows.take(pa.array(order[entries[begins]]))
    return pa.table([*(heads.column(name) for name in COUNT_SCHEMA.names if name != COUNT), maps], schema=arrow)


_BROKEN = (SchemaConflict, ForeignTable, FileMissing, FileDamaged, TableError)
"""Errors because of which a feed alone cannot be written."""


def _require_known(row: ChangeFeed, published: PublishedTable) -> None:
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


def _may_be_rewritten(row: ChangeFeed, part: FeedRequest, written_since: float) -> bool:
    """Whether it is the feed that was rewritten, all its changes are there, and no sweep may have removed the new
    files."""
    swept = bool(part.files) and row.swept_before is not None and row.swept_before >= written_since
    return row.location == part.location and row.begins_lsn is not None and row.error is None and not swept


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
