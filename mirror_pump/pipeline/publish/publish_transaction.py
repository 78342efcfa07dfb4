"""The publish of tables within a transaction: the statements that leader and guests have in common.

A process that publishes takes the slot's lock first, and holds it to the end of the transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from psycopg.types.json import Jsonb

from mirror_pump.errors import CommitConflict
from mirror_pump.lake.commit.archive_branch import StagedArchive
from mirror_pump.lake.commit.row_delta import StagedCommit
from mirror_pump.model import Lsn, MirroredTable, SnapshotId, TableName
from mirror_pump.pipeline.key_index.key_indexes import KeyIndexes
from mirror_pump.pipeline.landing.published_tables import PublishedMove, move_published, stage_snapshot
from mirror_pump.pipeline.landing.slot_lock import SlotLock
from mirror_pump.pipeline.operations.operation import Cursor, Operation
from mirror_pump.pipeline.publish.staged_publish import StagedTable
from sql import queries

_SQL = queries("publish")


@dataclass(frozen=True)
class PublishTransaction:
    """What publishers do to tables, in a transaction that holds the slot's lock. Nothing here moves the frontier."""

    lock: SlotLock
    cursor: Cursor
    slot: str
    frontier: Lsn
    """The frontier after the transaction."""
    indexes: KeyIndexes

    def apply_all(self, tables: Sequence[StagedTable], written_since: float) -> None:
        """Does the tables' parts of the transaction. Those whose operations have no statements of their own, as nearly
        all that a batch changes, take two statements together."""
        plain = [accepted for accepted in tables if _is_plain(accepted)]
        for accepted in tables:
            if not _is_plain(accepted):
                self.apply(accepted, written_since)
        if plain:
            self._touch(plain, written_since)
            self._move_published(
                [
                    (accepted, accepted.staged.snapshot_id, lake_props(accepted.staged))
                    for accepted in plain
                    if accepted.staged is not None
                ]
            )

    def apply(self, accepted: StagedTable, written_since: float) -> None:
        """Does one table's part of the transaction: its operations, before and after the registration's row and the
        lake's pointer change."""
        operations = accepted.request.operations
        recording = accepted.recording(self.slot, self.frontier)
        for operation in operations:
            operation.lock(self.cursor, recording)
        self._touch([accepted], written_since)
        for operation in operations:
            operation.describe(self.cursor, recording)
        self._move_pointer(accepted)
        for operation in operations:
            operation.complete(self.cursor, recording)

    def _touch(self, tables: Sequence[StagedTable], written_since: float) -> None:
        """Locks the registrations. Raises CommitConflict if one is not that which was staged on."""
        rows = [accepted.registration for accepted in tables]
        heads = [accepted.head for accepted in tables]
        self.cursor.execute(
            _SQL["touch_tables"],
            {
                "table_ids": [accepted.request.table.table_id for accepted in tables],
                "start_lsns": [row.start_lsn for row in rows],
                "generations": [row.generation for row in rows],
                "again": [accepted.plan.starts_copy for accepted in tables],
                "not_live_before": [accepted.plan.not_live_before for accepted in tables],
                "written_since": written_since,
                "read_at": [row.read_at for row in rows],
                "start_sequences": [accepted.data_sequence_number for accepted in tables],
                "key_indexes": [Jsonb(self._deletes(accepted)) for accepted in tables],
                "heads": [None if head is None else Jsonb(head.to_json()) for head in heads],
            },
        )
        changed = self._left(tables)
        if changed is not None:
            raise CommitConflict(f"the registration of {changed.name} changed while it was being published")

    def _left(self, tables: Iterable[StagedTable]) -> MirroredTable | None:
        """Returns a table that the last statement did not return, or None if it returned all of them."""
        returned = {table_id for (table_id,) in self.cursor.fetchall()}
        others = (accepted.request.table for accepted in tables)
        return next((table for table in others if table.table_id not in returned), None)

    def _move_pointer(self, accepted: StagedTable) -> None:
        """Points the catalog at the staged lake table. While readers must not see commits, the pointer moves only once
        the copy or fill is complete (`swap_in`). Raises CommitConflict if another engine committed."""
        row, table, staged = accepted.registration, accepted.request.table, accepted.staged
        if staged is not None and accepted.hidden:
            new = accepted.table.metadata_location if accepted.table is not None else staged.new_location
            old = row.metadata_location if row.staged else None
            stage_snapshot(self.lock, table.table_id, old, new, staged.snapshot_id)
        elif accepted.archive is not None:
            self._move_published([(accepted, accepted.archive.snapshot_id, archive_props(accepted.archive))])
        elif staged is not None and row.tier is None:
            self._move_published([(accepted, staged.snapshot_id, lake_props(staged))])
        elif accepted.table is not None:
            lake_name = TableName(row.namespace, row.lake_table)
            self.lock.move(lake_name, row.metadata_location, accepted.table.metadata_location)

    def _move_published(self, snapshots: Sequence[tuple[StagedTable, SnapshotId, Mapping[str, object]]]) -> None:
        """Points the catalog at the staged lake tables, and publishes these snapshots of them, with their properties.
        Raises CommitConflict if another engine committed."""
        moves = [
            PublishedMove(
                accepted.request.table.table_id,
                TableName(accepted.registration.namespace, accepted.registration.lake_table),
                accepted.registration.metadata_location,
                accepted.table.metadata_location,
                snapshot_id,
                props,
            )
            for accepted, snapshot_id, props in snapshots
            if accepted.table is not None
        ]
        if moves:
            move_published(self.lock, moves)

    def _deletes(self, accepted: StagedTable) -> dict[str, object]:
        """Returns what `status` shows of a commit: the table's index, and how deletes were written if there were
        any."""
        mode = accepted.encoded.mode if accepted.encoded is not None else None
        return {**self.indexes.report(accepted.request.table.table_id), **({} if mode is None else {"mode": mode})}


def _is_plain(accepted: StagedTable) -> bool:
    """Whether the table's part is nothing but its registration and its pointer."""
    operations = (type(operation) for operation in accepted.request.operations)
    return (
        accepted.archive is None
        and accepted.registration.tier is None
        and not accepted.hidden
        and all(
            (kind.lock, kind.describe, kind.complete) == (Operation.lock, Operation.describe, Operation.complete)
            for kind in operations
        )
    )


def lake_props(staged: StagedCommit) -> dict[str, object]:
    """Returns the pointer to the published snapshot, as the seam protocol defines it (docs/catalog-schema.md)."""
    return {"metadata_location": staged.new_location, "snapshot_id": str(staged.snapshot_id)}


def archive_props(archive: StagedArchive) -> dict[str, object]:
    """As `lake_props`, to a refreshed archive snapshot."""
    return {"metadata_location": archive.seam_location, "snapshot_id": str(archive.snapshot_id)}
