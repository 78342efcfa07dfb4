"""Examines what other engines committed to a lake table before the mirror builds on it. Rewrites stay, changes of rows
are undone, and tags that kept moments need are put back.

Invariant: each commit of the mirror builds on a state that the mirror made, or one that was examined and holds the same
rows (mirror_pump.lake.commit.table_head). It holds because a publish swaps the pointer only from the metadata file that
it was staged on, and stages on nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass

from mirror_pump.errors import CommitConflict, FileDamaged, FileMissing, ForeignTable, TableError
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.commit.table_head import TableHead, changed_rows, restored, tagged
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import MirroredTable, SnapshotId, TableId, TableName
from mirror_pump.pipeline.flow.steps import Observer, Step
from mirror_pump.pipeline.landing.published_tables import ExaminedState, record_examined
from mirror_pump.pipeline.landing.slot_lock import SlotLock
from mirror_pump.pipeline.landing.written_files import WrittenFiles
from mirror_pump.pipeline.operations.registrations import Registration
from mirror_pump.pipeline.operations.requests import FeedRequest, PublishRequest, TableRequest
from mirror_pump.pipeline.operations.table_changes import Failure
from mirror_pump.runtime.table_work import work_for
from mirror_pump.source.catalog.kept_moments import tags_of_table
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection, source_errors


@dataclass(frozen=True)
class ForeignCommits:
    """Settles commits of other engines for one publisher."""

    load: Callable[[TableId, str], LakeTable]
    """The table that a metadata file describes."""
    connection: Callable[[], PgConnection]
    locked: Callable[[WrittenFiles, str], AbstractContextManager[SlotLock]]
    """A transaction that lands these files, and that holds the slot's lock: only the leader gets it. The text completes
    "while ..." in errors."""
    storage: StorageOptions
    observer: Observer

    def settle(self, table: MirroredTable, row: Registration) -> Failure | None:
        """Records another engine's rewrite as the table's state, or undoes its change of rows. Returns why the table
        fails if that cannot be undone.

        Raises CommitConflict if the pointer has moved again, LakeError and SourceError.
        """
        assert row.pointer is not None
        try:
            with work_for(table):
                lake = self.load(table.table_id, row.pointer)
                reason = None if row.head is None else changed_rows(row.head, lake, row.kept(lake.metadata))
                tags = lost_tags(self.connection(), table.table_id, lake)
                if row.head is None or (reason is None and not tags):
                    with source_errors("recording another engine's rewrite"):
                        state = ExaminedState(table.table_id, row.start_lsn, row.head, TableHead.of(lake))
                        record_examined(self.connection(), [state])
                    return None
                self._undo(table, row, row.head, lake, reason, tags)
        except TableError as error:
            return Failure.of(table, error)
        except ForeignTable as error:
            return Failure.of(table, TableError(f"{table.name}: {error}", error.remedy))
        return None

    def _undo(
        self,
        table: MirroredTable,
        row: Registration,
        head: TableHead,
        lake: LakeTable,
        reason: str | None,
        tags: Mapping[str, SnapshotId],
    ) -> None:
        """Makes the head's snapshot the current one, if `reason` says what was done to the rows, and restores tags."""
        now_ms, after = time.time_ns() // 1_000_000, lake
        with WrittenFiles(self.storage) as files:
            if reason is not None:
                after = restored(head, lake, now_ms, row.kept(lake.metadata))
                files.own(after.metadata_location)
            if tags:
                after = tagged(after, tags, now_ms)
                files.own(after.metadata_location)
            with self.locked(files, f"undoing another engine's commit to {table.name}") as lock:
                _swap(lock, table, row, head, after)
        reason = reason or f"took {', '.join(sorted(tags))} from the snapshots of moments"
        self.observer(Step.FOREIGN_COMMIT_UNDONE, table=str(table.name), reason=reason, metadata=row.pointer)


def lost_tags(connection: PgConnection, table_id: TableId, lake: LakeTable) -> dict[str, SnapshotId]:
    """The tags of moments that another engine has removed or moved, with the snapshots that they have to name."""
    refs = lake.metadata.refs
    return {
        tag: snapshot_id
        for tag, snapshot_id in tags_of_table(connection, table_id).items()
        if lake.has_snapshot(snapshot_id) and (tag not in refs or refs[tag].snapshot_id != snapshot_id)
    }


def _swap(lock: SlotLock, table: MirroredTable, row: Registration, head: TableHead, after: LakeTable) -> None:
    """Makes `after` what readers see. Raises CommitConflict if another writer has committed since."""
    assert row.pointer is not None
    lock.move(TableName(row.namespace, row.lake_table), row.pointer, after.metadata_location)
    if not record_examined(lock.connection, [ExaminedState(table.table_id, row.start_lsn, head, TableHead.of(after))]):
        raise CommitConflict(f"another writer committed to {table.name} in the lake")


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
