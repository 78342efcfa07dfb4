"""Change feeds in the catalog (modak.change_feeds): which there are, where they begin, and what has expired."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from psycopg.types.json import Jsonb

from mirror_pump.model import FeedMode, Lsn, TableName
from mirror_pump.source.catalog.former_locations import record_feed_location
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.rows import fetch_row
from sql import queries

_SQL = queries("change_feeds")


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


TRANSACTIONS_ID = 0
"""`feed_id` of the table of transactions, which stands for no mirrored table."""


@dataclass(frozen=True)
class ChangeFeed:
    """A row of the query `select`."""

    feed_id: int
    """`table_id` of the mirrored table; TRANSACTIONS_ID for the transactions."""
    slot_name: str
    mode: FeedMode
    keep: timedelta | None
    """How long changes stay. None: for ever."""
    namespace: str
    name: str
    location: str
    """Root URI of its files."""
    begins_lsn: Lsn | None
    """The frontier of its first reset. None: the table has not been live yet."""
    expired_lsn: Lsn
    """Changes below may be gone."""
    created_at: datetime
    metadata_location: str | None
    """The metadata file that the Iceberg catalog names; None if it does not have the table."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "mode", FeedMode(self.mode))

    @property
    def lake_name(self) -> TableName:
        """Its name in the lake."""
        return TableName(self.namespace, self.name)


def load_feed(connection: PgConnection, feed_id: int) -> ChangeFeed | None:
    """One feed; None if there is none."""
    with source_errors("reading a change feed"):
        return fetch_row(connection, ChangeFeed, _SQL["select"] + " WHERE f.feed_id = %s", (feed_id,))


def feed_of_name(connection: PgConnection, name: TableName) -> ChangeFeed | None:
    """The feed that has this name in the lake."""
    with source_errors("reading the change feeds"):
        query = _SQL["select"] + " WHERE f.namespace = %s AND f.name = %s"
        return fetch_row(connection, ChangeFeed, query, (name.schema, name.name))


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


def expire_feed(connection: PgConnection, feed_id: int, lsn: Lsn) -> None:
    """Records that changes below a position may be gone."""
    with source_errors("recording what has expired from a change feed"):
        connection.execute(_SQL["expire"], {"feed_id": feed_id, "lsn": lsn})


def interrupt_feeds(connection: PgConnection, slot: str, reason: str) -> None:
    """Has all feeds of a mirror get a reset with the next publish, since changes may be missing before it. Until then
    readers are told the reason."""
    with source_errors("interrupting the change feeds"):
        connection.execute(_SQL["interrupt"], {"slot": slot, "reason": reason})
