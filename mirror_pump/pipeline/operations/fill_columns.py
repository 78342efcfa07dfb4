"""Files are to be written anew: rows from before have a value in a new column, or went with their partition.

Lake: the new schema, in metadata that readers do not see until every file has been written anew
(mirror_pump.pipeline.schema.column_fill). Catalog: the table is `filling`, and knows up to which sequence number rows
of which bounds are gone.
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
    """Rows within these bounds, of so many of the publish's segments and of all that exists before, are gone."""

    def stage(self, plan: TablePlan, table: MirroredTable, registration: Registration) -> TablePlan:
        plan = plan.after(TableEvent.FILL_NEEDED)
        # Keys of rows that went with their partition may be in the table twice until these are gone.
        forgets_index = plan.forgets_index or bool(self.dropped)
        return replace(plan, changes_columns=True, fills=True, forgets_index=forgets_index)

    def dropped_rows(self, base_sequence: int) -> tuple[DroppedRows, ...]:
        """Which rows are gone, with the publish's segments numbered from `base_sequence` + 1."""
        return tuple(DroppedRows(base_sequence + before, bounds) for before, bounds in self.dropped)

    def describe(self, cursor: Cursor, recording: Recording) -> None:
        gone = self.dropped_rows(recording.base_sequence)
        store_change(cursor, self.change, recording.registration.state, recording.state, gone)
