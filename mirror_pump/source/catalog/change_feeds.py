"""Change feeds in the catalog (modak.change_feeds): which there are, where they begin, and what has expired."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from psycopg.types.json import Jsonb

from mirror_pump.model import FeedMode, Lsn, TableId, TableName
from mirror_pump.source.catalog.former_locations import record_feed_location
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.rows import TypedRow, fetch_row, fetch_rows
from sql import queries

_SQL = queries("change_feeds")

_WRITABLE = (
    " WHERE f.slot_name = %(slot)s AND f.error IS NULL AND i.metadata_location IS NOT NULL"
    " AND (%(feed_id)s::bigint IS NULL OR f.feed_id = %(feed_id)s) ORDER BY f.feed_id"
)
_TO_PUBLISH = (
    " WHERE f.slot_name = %(slot)s AND (f.feed_id = 0 OR f.begins_lsn IS NULL OR f.error IS NOT NULL"
    " OR f.feed_id = ANY (%(feed_ids)s)) ORDER BY f.feed_id"
)


def feed_repair(table: str, mode: FeedMode, keep: timedelta | None, *, of_file: bool = True) -> str:
    """What to do about a feed. `table`: the mirrored table. `of_file`: whether a file of it is lost or damaged;
    otherwise its state or its place in the Iceberg catalog is."""
    restored = "restore the file from a backup, under the same name" if of_file else "put it back from a backup"
    if mode is FeedMode.TRANSACTIONS:
        return f"{restored}; or do without: it begins anew with the first feed after all feeds have ended"
    stays = "" if keep is None else f" --keep-changes {round(keep.total_seconds())}s"
    options = f"--changes={mode.value}{stays}"
    return (
        f"{restored}; or begin the feed anew, without earlier changes: `mirror-pump register {shlex.quote(table)}"
        f" --alter --no-changes`, then `mirror-pump register {shlex.quote(table)} --alter {options}`"
    )


TRANSACTIONS_ID = TableId(0)
"""`feed_id` of the table of transactions, which stands for no mirrored table."""


@dataclass(frozen=True)
class ChangeFeed(TypedRow):
    """A row of the query `select`."""

    feed_id: TableId
    """`table_id` of the mirrored table; TRANSACTIONS_ID for the transactions."""
    mode: FeedMode
    keep: timedelta | None
    """How long changes stay. None: for ever; that of transactions follows from the tables."""
    first_day: int | None
    """The first day, counted from 1970, whose commits have to stay. None: all of them."""
    namespace: str
    name: str
    location: str
    """Root URI of its files, which a feed that is made anew does not share with the former one."""
    begins_lsn: Lsn | None
    """The frontier of its first reset. None: the table has not been live yet."""
    not_before_lsn: Lsn
    """It begins at this frontier or a later one."""
    expired_lsn: Lsn
    """Changes below may be gone."""
    error: str | None
    """Why it could not be written last."""
    metadata_location: str | None
    """The metadata file that the Iceberg catalog names; None if it does not have the table."""
    head: dict[str, Any] | None
    """The state that the mirror left or examined. None: a release that recorded none left it."""
    schema_name: str
    relation_name: str
    """Of the mirrored table. Of the transactions, and a feed whose registration has ended, as in the lake."""
    state: str | None
    """Of the mirrored table. NULL: there is none."""
    applied_lsn: Lsn
    """The mirror's frontier."""
    read_at: datetime
    """By the database's clock."""
    swept_before: float | None
    """Older files that nothing refers to may be gone, seconds since 1970. None: no file was deleted yet."""
    pinned: list[int]
    """The snapshot of each reader."""
    stats: dict[str, Any] | None
    """What the pump counted last. None: nothing yet."""
    damaged_files: list[str]
    """URIs of its files that are lost or damaged."""

    @property
    def lake_name(self) -> TableName:
        """Its name in the lake."""
        return TableName(self.namespace, self.name)

    @property
    def table_name(self) -> TableName:
        """The mirrored table's name."""
        return TableName(self.schema_name, self.relation_name)

    @property
    def pointer(self) -> str:
        """The metadata file of a feed that the Iceberg catalog has."""
        assert self.metadata_location is not None
        return self.metadata_location

    @property
    def moved_by_others(self) -> bool:
        """Whether the pointer is not where the mirror left it. One that is gone has not moved."""
        location = self.metadata_location
        return location is not None and (self.head is None or self.head["location"] != location)

    def repair(self, *, of_file: bool = False) -> str:
        """What to do if it cannot be written. `of_file`: because a file of it is lost or damaged."""
        return feed_repair(str(self.table_name), self.mode, self.keep, of_file=of_file)


def load_feed(connection: PgConnection, feed_id: int) -> ChangeFeed | None:
    """One feed; None if there is none."""
    with source_errors("reading a change feed"):
        return fetch_row(connection, ChangeFeed, _SQL["select"] + " WHERE f.feed_id = %s", (feed_id,))


def load_feeds(connection: PgConnection, slot: str) -> list[ChangeFeed]:
    """All feeds of a mirror."""
    return _feeds(connection, " WHERE f.slot_name = %(slot)s", {"slot": slot})


def _feeds(connection: PgConnection, condition: str, parameters: Mapping[str, Any]) -> list[ChangeFeed]:
    with source_errors("reading the change feeds"):
        # Most mirrors have none, and to plan the query costs each new session much more than this.
        if connection.execute(_SQL["any"], parameters).fetchone() is None:
            return []
        return fetch_rows(connection, ChangeFeed, _SQL["select"] + condition, parameters)


def feed_of_name(connection: PgConnection, name: TableName) -> ChangeFeed | None:
    """The feed that has this name in the lake."""
    with source_errors("reading the change feeds"):
        query = _SQL["select"] + " WHERE f.namespace = %s AND f.name = %s"
        return fetch_row(connection, ChangeFeed, query, (name.schema, name.name))


def writable_feeds(connection: PgConnection, slot: str, feed_id: int | None = None) -> list[ChangeFeed]:
    """The mirror's feeds, or that with this ID, by ID. Without those whose table is not in the lake, and those that
    could not be written last."""
    return _feeds(connection, _WRITABLE, {"slot": slot, "feed_id": feed_id})


def feeds_to_publish(connection: PgConnection, slot: str, feed_ids: Collection[int]) -> list[ChangeFeed]:
    """The feeds that a publish may concern: those with these IDs, those that have not begun or could not be written,
    and that of the transactions."""
    return _feeds(connection, _TO_PUBLISH, {"slot": slot, "feed_ids": list(feed_ids)})


def keep_feed(connection: PgConnection, feed_id: int, keep: timedelta | None) -> None:
    """Changes how long changes stay."""
    with source_errors("altering a change feed"):
        connection.execute(_SQL["keep"], (keep, feed_id))


def insert_feed(
    connection: PgConnection,
    feed_id: int,
    slot: str,
    mode: FeedMode,
    keep: timedelta | None,
    name: TableName,
    location: str,
    head: Mapping[str, Any],
    not_before: Lsn | None = None,
) -> None:
    """Records a feed, in the transaction that creates its Iceberg table. `name` is its name in the lake, and `head` the
    state of the new table. It begins at the frontier `not_before` or a later one."""
    with source_errors("creating a change feed"):
        connection.execute(
            _SQL["insert"],
            {
                "feed_id": feed_id,
                "slot": slot,
                "mode": mode.value,
                "keep": keep,
                "namespace": name.schema,
                "name": name.name,
                "location": location,
                "not_before": not_before,
                "head": Jsonb(dict(head)),
            },
        )


def delete_feed(connection: PgConnection, table_id: int) -> TableName | None:
    """Removes a table's feed from the mirror's catalog, in the caller's transaction, and remembers where its files are.
    Returns its name in the lake; None if the table has no feed."""
    with source_errors("removing a change feed"):
        record_feed_location(connection, table_id)
        return fetch_row(connection, TableName, _SQL["delete"], (table_id,))


def interrupt_feeds(connection: PgConnection, slot: str, reason: str) -> None:
    """Has all feeds of a mirror get a reset with the next publish, since changes may be missing before it. Until then
    readers are told the reason."""
    with source_errors("interrupting the change feeds"):
        connection.execute(_SQL["interrupt"], {"slot": slot, "reason": reason})


def store_feed_stats(connection: PgConnection, feed: ChangeFeed, stats: Mapping[str, int]) -> None:
    """Records what a feed's files are, for `status`."""
    with source_errors("recording a feed's figures"):
        parameters = {"feed_id": feed.feed_id, "location": feed.location, "stats": Jsonb(dict(stats))}
        connection.execute(_SQL["store_stats"], parameters)


def store_feed_problem(connection: PgConnection, feed: ChangeFeed, problem: str) -> None:
    """Records why a feed's files cannot be merged or taken out, until its figures are recorded again."""
    with source_errors("recording a feed's problem"):
        parameters = {"feed_id": feed.feed_id, "location": feed.location, "problem": problem}
        connection.execute(_SQL["store_problem"], parameters)
