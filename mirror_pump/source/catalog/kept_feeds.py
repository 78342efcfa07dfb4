"""Change feeds as their upkeep sees them: where they are, how long their changes stay, and which snapshots are read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from psycopg.types.json import Jsonb

from mirror_pump.model import Lsn, TableName
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.rows import fetch_rows
from sql import queries

_SQL = queries("feed_upkeep")


@dataclass(frozen=True)
class KeptFeed:
    """A row of the query `feeds`."""

    feed_id: int
    mode: str
    keep: timedelta | None
    """How long changes stay. None: for ever; that of transactions follows from the tables."""
    namespace: str
    name: str
    location: str
    """Root URI of its files."""
    expired_lsn: Lsn
    """Changes below may be gone."""
    metadata_location: str
    head: dict[str, Any] | None
    """The state that the mirror left or examined. None: a release that recorded none left it."""
    schema_name: str | None
    table_name: str | None
    """Of the mirrored table. NULL: it is that of the transactions, or the registration has ended."""
    first_day: int | None
    """The first day, counted from 1970, whose commits have to stay. None: all of them."""
    swept_before: float | None
    """Older files that nothing refers to may be gone, seconds since 1970. None: no file was deleted yet."""
    pinned: list[int]
    """Snapshots that readers use."""

    @property
    def lake_name(self) -> TableName:
        """Its name in the lake."""
        return TableName(self.namespace, self.name)


def kept_feeds(connection: PgConnection, slot: str, feed_ids: Collection[int] | None = None) -> list[KeptFeed]:
    """The mirror's feeds, or those with these IDs, by ID. Without those whose table is not in the lake, and those that
    could not be written last."""
    with source_errors("reading the change feeds"):
        parameters = {"slot": slot, "feed_ids": None if feed_ids is None else list(feed_ids)}
        return fetch_rows(connection, KeptFeed, _SQL["feeds"], parameters)


def sweep_feed_pins(connection: PgConnection, slot: str) -> None:
    """Removes the rows of readers' pins that have expired."""
    with source_errors("removing expired pins of change feeds"):
        connection.execute(_SQL["sweep_pins"], {"slot": slot})


def store_feed_stats(connection: PgConnection, feed: KeptFeed, stats: Mapping[str, int]) -> None:
    """Records what a feed's files are, for `status`."""
    with source_errors("recording a feed's figures"):
        parameters = {"feed_id": feed.feed_id, "location": feed.location, "stats": Jsonb(dict(stats))}
        connection.execute(_SQL["store_stats"], parameters)


def store_feed_problem(connection: PgConnection, feed: KeptFeed, problem: str) -> None:
    """Records why a feed's files cannot be merged or taken out, until its figures are recorded again."""
    with source_errors("recording a feed's problem"):
        parameters = {"feed_id": feed.feed_id, "location": feed.location, "problem": problem}
        connection.execute(_SQL["store_problem"], parameters)
