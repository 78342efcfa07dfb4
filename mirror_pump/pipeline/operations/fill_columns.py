"""Begins a fill: files have to be rewritten with the value of a new column, or without the rows of a dropped partition.

Lake: the new schema, in metadata that readers do not see until every file has been rewritten
(mirror_pump.pipeline.schema.column_fill). Catalog: the state `filling`, and the bounds of the dropped rows with the
highest sequence number of their files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mirror_pump.lake.contents.dropped_rows import DroppedRows
from mirror_pump.lake.contents.partition_bounds import PartitionBounds
from mirror_pump.model import MirroredTable
from mirror_pump.pipeline.operations.catalog_changes import store_change
from mirror_pump.pipeline.operations.operation import Cursor, Operation, Recording, TablePlan
from mirror_pump.pipeline.operations.registrations import Registration
from mirror_pump.pipeline.operations.table_changes import TableChange
from mirror_pump.table_life import TableEvent


@dataclass(frozen=True)
class FillColumns(Operation):
    change: TableChange
    dropped: tuple[tuple[int, PartitionBounds], ...] = ()
    """For each dropped partition, its bounds and a number of segments. Rows within the bounds are removed from that
    many leading segments of the publish, and from all older files."""

    def stage(self, plan: TablePlan, table: MirroredTable, registration: Registration) -> TablePlan:
        plan = plan.after(TableEvent.FILL_NEEDED)
        # Until the dropped rows are removed, their keys may be in the table twice.
        forgets_index = plan.forgets_index or bool(self.dropped)
        return replace(plan, changes_columns=True, fills=True, forgets_index=forgets_index)

    def dropped_rows(self, base_sequence: int) -> tuple[DroppedRows, ...]:
        """The dropped rows. The publish's segments have the sequence numbers from `base_sequence` + 1 on."""
        return tuple(DroppedRows(base_sequence + before, bounds) for before, bounds in self.dropped)

    def describe(self, cursor: Cursor, recording: Recording) -> None:
        gone = self.dropped_rows(recording.base_sequence)
        store_change(cursor, self.change, recording.registration.state, recording.state, gone)
