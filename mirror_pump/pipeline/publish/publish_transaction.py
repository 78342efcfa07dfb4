"""The publish of tables within a transaction: the statements that leader and guests have in common.

A process that publishes locks the slot's row first (`lock_slot`), and holds it to the end of the transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from psycopg.types.json import Jsonb

from mirror_pump.errors import CommitConflict
from mirror_pump.lake.commit.archive_branch import StagedArchive
from mirror_pump.lake.commit.catalog import swap_pointer
from mirror_pump.lake.commit.row_delta import StagedCommit
from mirror_pump.model import Lsn, SnapshotId
from mirror_pump.pipeline.key_index.key_indexes import KeyIndexes
from mirror_pump.pipeline.operations.operation import Cursor
from mirror_pump.pipeline.publish.staged_publish import StagedTable
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.rows import fetch_row
from sql import queries

_SQL = queries("publish")


@dataclass(frozen=True)
class LockedSlotRow:
    """A row of the query `lock_slot`."""

    leader_epoch: int
    applied_lsn: Lsn
    publish_id: int | None
    """The random number that the last publish wrote. None before the first one."""
    streams: bool
    """Whether the mirror has a stream."""
    timeline: int
    """The timeline of the server."""


def lock_slot(connection: PgConnection, slot: str) -> LockedSlotRow | None:
    """Locks the slot's row until the transaction ends. None if the slot is not in the catalog."""
    return fetch_row(connection, LockedSlotRow, _SQL["lock_slot"], {"slot": slot})


@dataclass(frozen=True)
class PublishTransaction:
    """What publishers do to tables, in a transaction that holds the slot's lock. Nothing here moves the frontier."""

    cursor: Cursor
    slot: str
    frontier: Lsn
    """The frontier after the transaction."""
    indexes: KeyIndexes

    def apply(self, accepted: StagedTable, written_since: float) -> None:
        """Does one table's part of the transaction: its operations, before and after the registration's row and the
        lake's pointer change."""
        operations = accepted.request.operations
        recording = accepted.recording(self.slot, self.frontier)
        for operation in operations:
            operation.lock(self.cursor, recording)
        self._touch(accepted, written_since)
        for operation in operations:
            operation.describe(self.cursor, recording)
        self._move_pointer(accepted)
        for operation in operations:
            operation.complete(self.cursor, recording)

    def _touch(self, accepted: StagedTable, written_since: float) -> None:
        """Locks the registration. Raises CommitConflict if it is not the one that was staged on."""
        row, plan, table = accepted.registration, accepted.plan, accepted.request.table
        self.cursor.execute(
            _SQL["touch_table"],
            {
                "table_id": table.table_id,
                "start_lsn": row.start_lsn,
                "generation": row.generation,
                "again": plan.starts_copy,
                "not_live_before": plan.not_live_before,
                "written_since": written_since,
                "read_at": row.read_at,
                "start_sequence": accepted.data_sequence_number,
                "key_index": Jsonb(self._deletes(accepted)),
                "head": None if (head := accepted.head) is None else Jsonb(head.to_json()),
            },
        )
        if self.cursor.rowcount != 1:
            raise CommitConflict(f"the registration of {table.name} changed while it was being published")

    def _move_pointer(self, accepted: StagedTable) -> None:
        """Points the catalog at the staged lake table. While readers must not see commits, the pointer moves only once
        the copy or fill is complete (`swap_in`). Raises CommitConflict if another engine committed."""
        row, table, staged = accepted.registration, accepted.request.table, accepted.staged
        if staged is not None and accepted.hidden:
            self.cursor.execute(
                _SQL["stage_snapshot"],
                {
                    "table_id": table.table_id,
                    "old": row.metadata_location if row.staged else None,
                    "new": accepted.table.metadata_location if accepted.table is not None else staged.new_location,
                    "snapshot_id": staged.snapshot_id,
                },
            )
        elif accepted.table is not None:
            new = accepted.table.metadata_location
            published: tuple[SnapshotId, Mapping[str, object]] | None = None
            if accepted.archive is not None:
                published = accepted.archive.snapshot_id, archive_props(accepted.archive)
            elif staged is not None and row.tier is None:
                published = staged.snapshot_id, lake_props(staged)
            if published is None:
                moved = swap_pointer(self.cursor, row.namespace, row.lake_table, row.metadata_location, new)
            else:
                self.cursor.execute(
                    _SQL["move_pointer"],
                    {
                        "table_id": table.table_id,
                        "namespace": row.namespace,
                        "lake_table": row.lake_table,
                        "old": row.metadata_location,
                        "new": new,
                        "snapshot_id": published[0],
                        "props": Jsonb(dict(published[1])),
                    },
                )
                moved = self.cursor.rowcount == 1
            if not moved:
                raise CommitConflict(f"another writer committed to {table.name} in the lake")

    def _deletes(self, accepted: StagedTable) -> dict[str, object]:
        """Returns what `status` shows of a commit: the table's index, and how deletes were written if there were
        any."""
        mode = accepted.encoded.mode if accepted.encoded is not None else None
        return {**self.indexes.report(accepted.request.table.table_id), **({} if mode is None else {"mode": mode})}


def lake_props(staged: StagedCommit) -> dict[str, object]:
    """Returns the pointer to the published snapshot, as the seam protocol defines it (docs/catalog-schema.md)."""
    return {"metadata_location": staged.new_location, "snapshot_id": str(staged.snapshot_id)}


def archive_props(archive: StagedArchive) -> dict[str, object]:
    """As `lake_props`, to a refreshed archive snapshot."""
    return {"metadata_location": archive.seam_location, "snapshot_id": str(archive.snapshot_id)}
