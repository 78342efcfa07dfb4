"""Change feeds as readers see them."""

from __future__ import annotations

from dataclasses import dataclass

from mirror_pump.model import Lsn, TableName
from mirror_pump.source.catalog.published_state import state_text
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.rows import fetch_rows
from sql import queries

_SQL = queries("feed_reads")


@dataclass(frozen=True)
class ReadFeed:
    """A feed and its mirrored table, as of one moment of the catalog: a row of the query `feeds`."""

    feed_id: int
    """`table_id` of the mirrored table; 0 for the transactions."""
    mode: str
    namespace: str
    name: str
    """The mirrored table's name in the lake."""
    feed_namespace: str
    feed_name: str
    """The feed's own name in the lake."""
    state: str | None
    """Of the mirrored table."""
    paused: bool
    begins_lsn: Lsn | None
    """The frontier at which the feed begins. None: the table has not been live yet."""
    expired_lsn: Lsn
    """Changes below may be gone."""
    error: str | None
    """Why it has not got all changes. None: it has."""
    metadata_location: str | None
    """None if the Iceberg catalog does not have the feed."""
    frontier: Lsn | None
    """The frontier of the table: the feed has all changes below."""
    mirror_frontier: Lsn

    @property
    def table(self) -> TableName:
        """The mirrored table's name in the lake."""
        return TableName(self.namespace, self.name)

    @property
    def obstacle(self) -> str | None:
        """Why the table has no new changes, after its name. None if it follows the stream."""
        return "is paused" if self.paused else state_text(self.state)


def read_feeds(connection: PgConnection, slot: str) -> list[ReadFeed]:
    """All feeds of a mirror. Raises SourceError."""
    with source_errors("reading the change feeds"):
        return fetch_rows(connection, ReadFeed, _SQL["feeds"], {"slot": slot})
