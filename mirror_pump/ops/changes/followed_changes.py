"""`mirror-pump changes`: one table's changes in order, and the frontiers from which a reader may go on.

Invariant: what is yielded after a frontier, up to and including the next, are all changes of the table between the two,
each once. Of an interval nothing is yielded before it is pinned, and from then on only files are read that stay; so
after a lost connection the follower goes on at the last frontier that it yielded, and repeats nothing. Where that
cannot be, because changes have expired, it ends with an error.

The end of an interval is the frontier of the table itself. That of one which has failed or is copied stays behind the
mirror's: a follower waits until it is live again, and then yields the reset with which its changes go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import pyarrow as pa

from mirror_pump.engine.lake_storage import lake_storage
from mirror_pump.errors import ConnectionLost, TableError, TransientRefusal
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.file_slices import Interval, rows_inside, slice_rows
from mirror_pump.lake.contents.ordered_rows import in_commit_order, place_columns, places_of, sorted_batches
from mirror_pump.lake.document.metadata_files import read_metadata
from mirror_pump.lake.format.columns import names_by_id
from mirror_pump.lake.format.damaged_files import open_parquet
from mirror_pump.lake.format.feed_schema import (
    COMMITTED_AT,
    LSN,
    LSN_ID,
    OLD,
    OLD_IDS_FROM,
    OP,
    ORIGIN,
    SEQ,
    XID,
    table_fields,
)
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.lake.manifests.manifest_files import stored_of
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn, MirroredTable, format_lsn
from mirror_pump.ops.changes.interval_tables import why_left_out
from mirror_pump.ops.changes.pinned_feeds import BEGIN_FEED, PinnedChanges
from mirror_pump.ops.changes.points import ChangeInterval, ChangePoints
from mirror_pump.ops.changes.printed_rows import printed_rows
from mirror_pump.ops.reads.time_travel import PastPoint
from mirror_pump.runtime.backoff import Backoff, Retries
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.consistent_snapshot import mirrored_ids
from mirror_pump.source.catalog.feed_reads import ReadFeed, read_feeds
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.source.retention.restored_tables import columns_of

_RETRY = Backoff(0.5, 10.0, jitter=0.5)
_POLL = Backoff(0.05, 1.0)
"""Between two looks whether the frontier has moved: soon after it did, then rarer."""


@dataclass(frozen=True)
class RowChange:
    """One change of a row, or of all: a line of `mirror-pump changes --json`."""

    op: str
    """`insert`, `update` or `delete` of a row; `truncate` of all; `reset`: the table's content is another from here on
    (it was copied again, for example), and has to be read from the mirror"""
    lsn: Lsn
    """Position of the commit"""
    seq: int
    """Order in the transaction, over all tables; ascending, with gaps"""
    xid: int | None
    """Transaction; None of a reset"""
    committed_at: datetime | None
    """Time of the commit; of a reset, of its publish"""
    origin: str | None
    """Replication origin that the transaction came from; None if it was committed here"""
    row: Mapping[str, Any] | None
    """The new values by column; of a delete, the key; None of a truncate and a reset. NULL, booleans and integers are
    JSON's, all else is text as PostgreSQL prints it, with TimeZone UTC and DateStyle ISO"""
    old: Mapping[str, Any] | None
    """The old row of an update or delete, if the feed keeps them (`--changes=rows`)"""

    def to_json(self) -> dict[str, Any]:
        """Its line."""
        return {
            "op": self.op,
            "lsn": format_lsn(self.lsn),
            "seq": self.seq,
            "xid": self.xid,
            "committed_at": None if self.committed_at is None else self.committed_at.isoformat(),
            "origin": self.origin,
            "row": self.row,
            "old": self.old,
        }


@dataclass(frozen=True)
class ReachedFrontier:
    """All changes up to and including this frontier have been yielded: a reader may remember it, and go on from
    there."""

    frontier: Lsn
    """Where to go on"""

    def to_json(self) -> dict[str, Any]:
        """Its line."""
        return {"frontier": format_lsn(self.frontier)}


@dataclass(frozen=True)
class FollowedTable:
    """What is followed, and how long."""

    name: str
    """As PostgreSQL reads names."""
    points: ChangePoints
    follow: bool
    """Go on at each new frontier. Only without an end."""


def followed_changes(
    settings: Settings,
    followed: FollowedTable,
    pause: Callable[[float], bool],
    warn: Callable[[str], Any],
) -> Iterator[Sequence[RowChange] | ReachedFrontier]:
    """The table's changes, some at a time, and the frontiers. `pause` waits for some seconds, and returns whether to
    stop; `warn` takes what a reader should see. `settings` are complete.

    Raises UsageError, TableError if the table has no feed or changes have expired, SourceError, LakeError.
    """
    feed_id = _feed_of(settings, followed.name)
    points = followed.points
    retries = Retries(_RETRY)
    waits_for = ""
    while True:
        try:
            with _pinned(settings, points) as changes:
                step = _next_step(settings, followed, changes, feed_id, points)
                retries.succeeded()
                if isinstance(step, _AwaitedFeed):
                    if step.reason != waits_for:
                        warn(f"{step.reason}: waiting")
                    waits_for = step.reason
                else:
                    yield from step.changes()
                    yield ReachedFrontier(step.interval.until)
                    points = ChangePoints(PastPoint(step.interval.until, None), points.until)
                    waits_for = ""
            stopped = not followed.follow or _await_change(settings, feed_id, points, pause)
        except (ConnectionLost, TransientRefusal) as error:
            # Nothing of an interval has been yielded: from then on only the lake is read.
            if not followed.follow:
                raise
            if not retries.failures:
                warn(f"{error}; trying again")
            retries.failed()
            stopped = pause(max(0.0, retries.not_before - time.monotonic()))
        if stopped:
            return


@dataclass(frozen=True)
class _AwaitedFeed:
    """The table has no new changes, and may have some later."""

    reason: str


@dataclass(frozen=True)
class _PinnedInterval:
    """An interval that is pinned."""

    interval: ChangeInterval
    location: str | None
    """A metadata file whose current snapshot has its changes, and others; None if it is empty."""
    form: _RowPrinter
    storage: StorageOptions

    def changes(self) -> Iterator[Sequence[RowChange]]:
        """The changes, some at a time. Reads the lake alone."""
        if self.location is not None:
            for rows in ordered_changes(self.location, self.interval, self.storage):
                yield self.form.changes(rows)


def _next_step(
    settings: Settings, followed: FollowedTable, changes: PinnedChanges, feed_id: int, points: ChangePoints
) -> _PinnedInterval | _AwaitedFeed:
    feed = next((feed for feed in changes.feeds.values() if feed.feed_id == feed_id), None)
    if feed is None:
        raise TableError(f"{followed.name} has no change feed any more")
    interval = _interval(changes.interval, points, feed)
    reason = f"{feed.table} {feed.obstacle or 'is live'}, and has no new changes"
    if interval is not None:
        left_out = why_left_out(feed, interval)
        if left_out is None:
            storage = lake_storage(settings, fsync=False)
            location = changes.locate(feed, interval) if interval.since < interval.until else None
            schema = read_metadata(location or feed.metadata_location or "", storage).current_schema
            return _PinnedInterval(interval, location, _RowPrinter.of(changes.pinning, feed, schema), storage)
        if not followed.follow or feed.expired_lsn > interval.since or feed.metadata_location is None:
            raise TableError(left_out)
        reason = left_out
    if not followed.follow:
        raise TableError(reason, "see `mirror-pump status`")
    return _AwaitedFeed(reason)


def _feed_of(settings: Settings, name: str) -> int:
    """The feed of a table. Raises UsageError, TableError."""
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-changes") as connection:
        (table_id,) = mirrored_ids(connection, [name])
        feeds = {feed.feed_id for feed in read_feeds(connection, settings.slot)}
        table = load_table(connection, table_id)
    if table_id not in feeds and table is not None:
        raise TableError(f"{table.name} has no change feed", BEGIN_FEED.replace("TABLE", table.name.shell))
    return int(table_id)


def _pinned(settings: Settings, points: ChangePoints) -> PinnedChanges:
    storage = lake_storage(settings, fsync=False)
    return PinnedChanges(settings.require_dsn(), settings.slot, points, storage, time.time_ns() // 1_000_000)


def _interval(resolved: ChangeInterval, points: ChangePoints, feed: ReadFeed) -> ChangeInterval | None:
    """The interval of one table: without an end, up to its own frontier. None if that is before the beginning."""
    if points.until is not None:
        return resolved
    end = min(resolved.until, feed.frontier or Lsn(0))
    return None if end < resolved.since else ChangeInterval(resolved.since, Lsn(end))


def _await_change(settings: Settings, feed_id: int, points: ChangePoints, pause: Callable[[float], bool]) -> bool:
    """Waits until the table's frontier is beyond the position from which to go on, or the feed is gone. Returns whether
    to stop."""
    looks = 0
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-changes") as connection:
        while True:
            feeds = {feed.feed_id: feed for feed in read_feeds(connection, settings.slot)}
            feed, since = feeds.get(feed_id), points.since.frontier
            if feed is None or since is None or (feed.frontier or 0) > since or feed.expired_lsn > since:
                return False
            looks += 1
            if pause(_POLL.pause(looks)):
                return True


_MOST_ROWS = 20_000
"""Rows of a batch of one file."""
_MOST_PLACES = 1_000_000
_BATCH_BYTES = 4 << 20


def ordered_changes(location: str, interval: ChangeInterval, storage: StorageOptions) -> Iterator[pa.Table]:
    """The rows of an interval of the feed with this metadata file, in order, with the columns of its current schema.
    Raises LakeError."""
    table = LakeTable.load(location, storage)
    positions = Interval(LSN_ID, interval.since, interval.until)
    content = _FeedRows(table.schema, positions, storage)
    yield from in_commit_order(
        (max(positions.lowest_of(entry), interval.since), partial(content.sorted_batches, entry.path))
        for manifest in table.manifests
        if manifest.live_files
        for entry in stored_of(manifest, storage)
        if positions.holds(entry) is not False
    )


@dataclass(frozen=True)
class _FeedRows:
    """What is read of the files."""

    schema: LakeSchema
    positions: Interval
    storage: StorageOptions

    def sorted_batches(self, path: str) -> Iterator[pa.Table]:
        """The rows of a file that are inside, in order."""
        yield from sorted_batches(partial(self._batches, path), partial(self._places, path))

    def _places(self, path: str) -> Iterator[pa.Table]:
        with open_parquet(path, self.storage) as parquet:
            names = names_by_id(parquet)
            for batch in rows_inside(parquet, self.positions, _MOST_PLACES, columns=place_columns(names)):
                yield places_of(batch, names)

    def _batches(self, path: str) -> Iterator[pa.Table]:
        """The rows of a file that are inside, with the columns of the schema."""
        return slice_rows(path, self.positions, self.schema, self.storage, _MOST_ROWS, _BATCH_BYTES)


@dataclass(frozen=True)
class _RowPrinter:
    """How rows of a feed become changes."""

    schema: LakeSchema
    key: frozenset[str]
    """Names of the key columns. Empty: unknown or none, so all columns are shown."""
    vectors: frozenset[str]
    trimmed: frozenset[str]

    @classmethod
    def of(cls, connection: PgConnection, feed: ReadFeed, schema: LakeSchema) -> _RowPrinter:
        """By the registration, as far as it still has the columns."""
        with source_errors("reading the table's columns"):
            table = load_table(connection, feed.feed_id)  # type: ignore[arg-type]  # a feed's ID is its table's
            arrays = {column.attnum: column.is_array for column in columns_of(connection, feed.feed_id)}
        names = {field.field_id: field.name for field in table_fields(schema)}
        columns = () if table is None else tuple(column for column in table.columns if column.field_id in names)
        vectors = [
            names[column.field_id]
            for column in columns
            if column.type.element is not None and not arrays.get(column.attnum, column.type_sql.endswith("]"))
        ]
        trimmed = [names[column.field_id] for column in columns if column.chosen]
        return cls(schema, _key(table, names), frozenset(vectors), frozenset(trimmed))

    def changes(self, rows: pa.Table) -> list[RowChange]:
        """The rows as changes."""
        rows = rows.combine_chunks()
        arrays = {field.field_id: _array(rows.column(field.name)) for field in self.schema.fields}
        values = printed_rows(table_fields(self.schema), arrays, self.vectors, self.trimmed)
        old_values = self._old(rows) if OLD in rows.column_names else [None] * rows.num_rows
        metadata_values = [rows.column(name).to_pylist() for name in (OP, LSN, SEQ, XID, COMMITTED_AT, ORIGIN)]
        return [
            RowChange(op, lsn, seq, xid, committed_at, origin, self._shown(op, row), old)
            for op, lsn, seq, xid, committed_at, origin, row, old in zip(
                *metadata_values, values, old_values, strict=True
            )
        ]

    def _old(self, rows: pa.Table) -> list[dict[str, Any] | None]:
        field = next(field for field in self.schema.fields if field.name == OLD)
        struct = _array(rows.column(OLD))
        children = [_of_table(child) for child in field.children]
        arrays = {child.field_id: values for child, values in zip(children, struct.flatten(), strict=True)}
        values = printed_rows(children, arrays, self.vectors, self.trimmed)
        return [row if valid else None for row, valid in zip(values, struct.is_valid().to_pylist(), strict=True)]

    def _shown(self, operation: str, row: dict[str, Any]) -> dict[str, Any] | None:
        if operation in ("insert", "update"):
            return row
        if operation != "delete":
            return None
        return {name: value for name, value in row.items() if name in self.key} if self.key else row


def _key(table: MirroredTable | None, names: Mapping[int, str]) -> frozenset[str]:
    columns = () if table is None else table.key_columns
    return frozenset(names[column.field_id] for column in columns if column.field_id in names)


def _of_table(field: LakeField) -> LakeField:
    """A field of the old row, with the ID of its column."""
    return LakeField(field.field_id - OLD_IDS_FROM, field.name, field.type, field.required, field.element_id)


def _array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
