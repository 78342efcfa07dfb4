"""Moves the published snapshot to the result of another engine's rewrite while no pump publishes the table.

A pump's next publish of a table rebases on whatever the catalog names and moves the published snapshot along. Until
then the published snapshot stays where it was. That is correct as long as the snapshot exists, but readers that follow
it get the files from before the rewrite.
"""

from __future__ import annotations

from dataclasses import dataclass

from psycopg.types.json import Jsonb

from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.snapshot_history import only_rewritten_since
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn, TableId
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.rows import fetch_row
from sql import queries

_SQL = queries("maintenance")
_PUBLISH_SQL = queries("publish")


def republish(connection: PgConnection, slot: str, table_id: TableId, start_lsn: Lsn, storage: StorageOptions) -> bool:
    """Publishes the table's current snapshot if it holds the same rows as the published snapshot. Returns whether the
    published snapshot moved.

    The rows are the same if the catalog's snapshot descends from the published snapshot by rewrites alone. If the
    published snapshot no longer exists (somebody expired it), the catalog's snapshot is the only one there is and is
    published too. The check runs under the lock that publishes take, so a publish that came in between is never undone.
    """
    with source_errors("reading what is published"):
        published = _read_published(connection, table_id, start_lsn)
    if published is None or published.published_location == published.metadata_location:
        return False
    location, former_snapshot = published.metadata_location, published.published_snapshot
    table = LakeTable.load(location, storage)
    if table.has_snapshot(former_snapshot) and not only_rewritten_since(table.metadata, former_snapshot):
        return False
    with source_errors("publishing a rewritten table"), connection.transaction():
        connection.execute(_PUBLISH_SQL["lock_slot"], {"slot": slot})
        if _read_published(connection, table_id, start_lsn) != published:
            return False
        connection.execute(
            _PUBLISH_SQL["publish_snapshot"],
            {
                "table_id": table_id,
                "snapshot_id": table.snapshot_id,
                "props": Jsonb({"metadata_location": location, "snapshot_id": str(table.snapshot_id)}),
            },
        )
    return True


@dataclass(frozen=True)
class _Published:
    """A row of the query `published`."""

    published_snapshot: int
    published_location: str | None
    """The metadata file of the published snapshot. None if the catalog does not name one."""
    metadata_location: str
    """The metadata file that the catalog's pointer names."""


def _read_published(connection: PgConnection, table_id: TableId, start_lsn: Lsn) -> _Published | None:
    return fetch_row(connection, _Published, _SQL["published"], {"table_id": table_id, "start_lsn": start_lsn})
