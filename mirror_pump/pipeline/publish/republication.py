"""Moves the published snapshot to the result of another engine's rewrite while no pump publishes the table.

A pump's next publish of a table rebases on whatever the catalog names and moves the published snapshot along. Until
then the published snapshot stays where it was. That is correct as long as the snapshot exists, but readers that follow
it get the files from before the rewrite.
"""

from __future__ import annotations

from psycopg.types.json import Jsonb

from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.snapshot_history import only_rewritten_since
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn, TableId
from mirror_pump.source.connect import PgConnection, source_errors
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
        row = connection.execute(_SQL["published"], {"table_id": table_id, "start_lsn": start_lsn}).fetchone()
    if row is None or row[1] == row[2]:
        return False
    snapshot_id, _, location = row
    table = LakeTable.load(location, storage)
    if table.has_snapshot(snapshot_id) and not only_rewritten_since(table.metadata, snapshot_id):
        return False
    with source_errors("publishing a rewritten table"), connection.transaction():
        connection.execute(_PUBLISH_SQL["lock_slot"], {"slot": slot})
        again = connection.execute(_SQL["published"], {"table_id": table_id, "start_lsn": start_lsn}).fetchone()
        if again != row:
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
