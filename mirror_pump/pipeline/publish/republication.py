"""Moves the published snapshot to the result of another engine's rewrite while no pump publishes the table.

A pump's next publish of a table rebases on whatever the catalog names and moves the published snapshot along. Until
then the published snapshot stays where it was. That is correct as long as the snapshot exists, but readers that follow
it get the files from before the rewrite.
"""

from __future__ import annotations

from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.commit.table_head import TableHead, changed_rows
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn, TableId
from mirror_pump.pipeline.landing.published_tables import (
    ExaminedState,
    former_head,
    publish_state,
    read_published,
    record_examined,
)
from mirror_pump.pipeline.landing.slot_lock import SlotLock
from mirror_pump.pipeline.publish.foreign_commits import lost_tags
from mirror_pump.source.catalog.published_state import PublishedState
from mirror_pump.source.connect import PgConnection, source_errors


def republish(connection: PgConnection, slot: str, table_id: TableId, start_lsn: Lsn, storage: StorageOptions) -> bool:
    """Publishes the table's current snapshot if it holds the same rows as the published snapshot. Returns whether the
    published snapshot moved.

    Both have the rows of the table's head, which the catalog's snapshot descends from by rewrites alone
    (mirror_pump.lake.commit.table_head). It becomes the head, also of a table with a cut-line. The check runs under the
    lock that publishes take, so a publish that came in between is never undone.
    """
    with source_errors("reading what is published"):
        published = read_published(connection, {table_id: start_lsn}).get(table_id)
    if published is None or not _has_moved(published):
        return False
    head = former_head(published)
    table = LakeTable.load(published.pointer, storage)
    if head is None or changed_rows(head, table, ()) is not None or lost_tags(connection, table_id, table):
        # The next pump records the first, and undoes the others.
        return False
    with source_errors("publishing a rewritten table"), connection.transaction():
        lock = SlotLock.take(connection, slot)
        if read_published(connection, {table_id: start_lsn}).get(table_id) != published:
            return False
        record_examined(connection, [ExaminedState(table_id, start_lsn, head, TableHead.of(table))])
        if published.has_cutline:
            return False
        publish_state(lock, table_id, table)
    return True


def _has_moved(state: PublishedState) -> bool:
    """Whether the catalog names another state than the recorded ones."""
    return not state.examined or (not state.has_cutline and state.published_location != state.metadata_location)
