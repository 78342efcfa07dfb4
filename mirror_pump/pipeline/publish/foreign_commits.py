"""What other engines committed to mirrored tables: a publisher settles it before it stages on their state
(mirror_pump.pipeline.landing.foreign_commit)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from mirror_pump.errors import FileDamaged, FileMissing, ForeignTable, TableError
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.commit.table_head import TableHead, changed_rows
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn, MirroredTable, SnapshotId, TableId, TableName
from mirror_pump.pipeline.flow.steps import Observer, Step
from mirror_pump.pipeline.landing.foreign_commit import ForeignCommit, LockedTransaction
from mirror_pump.pipeline.landing.published_tables import (
    ExaminedState,
    former_head,
    publish_state,
    read_published,
    record_examined,
)
from mirror_pump.pipeline.landing.slot_lock import SlotLock
from mirror_pump.pipeline.operations.registrations import Registration
from mirror_pump.pipeline.operations.requests import FeedRequest, PublishRequest, TableRequest
from mirror_pump.pipeline.operations.table_changes import Failure
from mirror_pump.runtime.table_work import work_for
from mirror_pump.source.catalog.kept_moments import tags_of_table
from mirror_pump.source.catalog.published_state import PublishedState
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection, source_errors


def settle_table(
    table: MirroredTable,
    row: Registration,
    load: Callable[[TableId, str], LakeTable],
    connection: PgConnection,
    locked: LockedTransaction,
    observer: Observer,
) -> Failure | None:
    """Records another engine's rewrite as the table's state, or undoes its change of rows. Returns why the table fails
    if that cannot be undone. `load`: the table that a metadata file describes. `locked`: only the leader gets it.

    Raises CommitConflict if the pointer has moved again, LakeError and SourceError.
    """
    assert row.pointer is not None

    def record(lock: SlotLock, head: TableHead) -> bool:
        return record_examined(lock.connection, [ExaminedState(table.table_id, row.start_lsn, row.head, head)])

    try:
        with work_for(table):
            lake = load(table.table_id, row.pointer)
            tags = lost_tags(connection, table.table_id, lake)
            name, pinned = TableName(row.namespace, row.lake_table), row.snapshots_to_keep(lake.metadata)
            reason = ForeignCommit(table.name, name, lake, row.head, pinned, record, tags).settle(locked)
            if reason is not None:
                observer(Step.FOREIGN_COMMIT_UNDONE, table=str(table.name), reason=reason, metadata=row.pointer)
    except TableError as error:
        return Failure.of(table, error)
    except ForeignTable as error:
        return Failure.of(table, TableError(f"{table.name}: {error}", error.remedy))
    return None


def lost_tags(connection: PgConnection, table_id: TableId, lake: LakeTable) -> dict[str, SnapshotId]:
    """The tags of moments that another engine has removed or moved, with the snapshots that they have to name."""
    refs = lake.metadata.refs
    return {
        tag: snapshot_id
        for tag, snapshot_id in tags_of_table(connection, table_id).items()
        if lake.has_snapshot(snapshot_id) and (tag not in refs or refs[tag].snapshot_id != snapshot_id)
    }


def republish(connection: PgConnection, slot: str, table_id: TableId, start_lsn: Lsn, storage: StorageOptions) -> bool:
    """Publishes the table's current snapshot if it holds the same rows as the published snapshot, while no pump
    publishes the table. Returns whether the published snapshot moved.

    A pump's next publish of a table rebases on whatever the catalog names and moves the published snapshot along. Until
    then readers of the published snapshot would get the files from before another engine's rewrite.

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


def settled_request(
    request: PublishRequest,
    registered: Mapping[TableId, Registration],
    settle: Callable[[MirroredTable, Registration], Failure | None],
) -> PublishRequest | None:
    """Settles the commits of other engines to the request's tables. Returns the request for the state after that, or
    None if there was nothing to settle."""
    failing = {failure.table.table_id for failure in request.failures}
    outcomes = []
    for table in (part.table for part in request.tables if part.table.table_id not in failing):
        row = registered.get(table.table_id)
        if row is not None and row.moved_by_others:
            # Staging meets the same error, and finds out what it means.
            with suppress(FileMissing, FileDamaged):
                outcomes.append(settle(table, row))
    return request.failing(filter(None, outcomes)) if outcomes else None


def examination(connection: PgConnection, table_id: TableId) -> PublishRequest:
    """The publish that does nothing to a table, or its feed, to which another engine has committed: the publisher
    settles that first. It also fails a table whose lake table is gone, and makes the archive branch anew if that was
    moved."""
    table = load_table(connection, table_id)
    tables = () if table is None or table.state.has_ended else (TableRequest(table),)
    return PublishRequest(tables=tables, feeds=(FeedRequest(table_id),))
