"""Moves the published snapshot to the result of another engine's rewrite while no pump publishes the table.

A pump's next publish of a table rebases on whatever the catalog names and moves the published snapshot along. Until
then the published snapshot stays where it was. That is correct as long as the snapshot exists, but readers that follow
it get the files from before the rewrite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.commit.table_head import TableHead, changed_rows
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn, TableId
from mirror_pump.pipeline.publish.foreign_commits import lost_tags, record_examined
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.rows import fetch_row
from sql import queries

_SQL = queries("maintenance")
_PUBLISH_SQL = queries("publish")


def republish(connection: PgConnection, slot: str, table_id: TableId, start_lsn: Lsn, storage: StorageOptions) -> bool:
    """Publishes the table's current snapshot if it holds the same rows as the published snapshot. Returns whether the
    published snapshot moved.

    Both have the rows of the table's head, which the catalog's snapshot descends from by rewrites alone
    (mirror_pump.lake.commit.table_head). It becomes the head, also of a table with a cut-line. The check runs under the
    lock that publishes take, so a publish that came in between is never undone.
    """
    with source_errors("reading what is published"):
        published = read_published(connection, table_id, start_lsn)
    if published is None or not published.moved:
        return False
    location, former_head = published.metadata_location, published.former_head
    table = LakeTable.load(location, storage)
    if (
        former_head is None
        or changed_rows(former_head, table, ()) is not None
        or lost_tags(connection, table_id, table)
    ):
        # The next pump records the first, and undoes the others.
        return False
    with source_errors("publishing a rewritten table"), connection.transaction():
        connection.execute(_PUBLISH_SQL["lock_slot"], {"slot": slot})
        if read_published(connection, table_id, start_lsn) != published:
            return False
        record_examined(connection, table_id, start_lsn, former_head, TableHead.of(table))
        if published.has_cutline:
            return False
        publish_state(connection, table_id, table)
    return True


def publish_state(connection: PgConnection, table_id: TableId, table: LakeTable) -> None:
    """Names the table's state as the published one. The caller holds the slot's lock."""
    connection.execute(
        _PUBLISH_SQL["publish_snapshot"],
        {
            "table_id": table_id,
            "snapshot_id": table.snapshot_id,
            "props": Jsonb({"metadata_location": table.metadata_location, "snapshot_id": str(table.snapshot_id)}),
        },
    )


@dataclass(frozen=True)
class Published:
    """A row of the query `published`."""

    published_location: str | None
    """The metadata file of the published snapshot. None if the catalog does not name one."""
    metadata_location: str
    """The metadata file that the catalog's pointer names."""
    head: dict[str, Any] | None
    has_cutline: bool
    """Whether the published snapshot is on branch cold, which a rewrite of main does not touch."""

    @property
    def former_head(self) -> TableHead | None:
        """The state that the mirror left or examined."""
        return None if self.head is None else TableHead.from_json(self.head)

    @property
    def moved(self) -> bool:
        """Whether the catalog names another state than the recorded ones."""
        at_head = self.former_head is not None and self.former_head.location == self.metadata_location
        return not at_head or (not self.has_cutline and self.published_location != self.metadata_location)


def read_published(connection: PgConnection, table_id: TableId, start_lsn: Lsn) -> Published | None:
    """What is published of a registration. None if it has ended, or while its table is copied."""
    return fetch_row(connection, Published, _SQL["published"], {"table_id": table_id, "start_lsn": start_lsn})
