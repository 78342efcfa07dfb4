"""Begins a new initial copy of a table whose rows in the lake may be wrong.

Lake: in metadata that readers do not see, all files from before the publish's segments are removed. If the table has
heap retention, only the rows at or above the cut-line are. If only the rows that differ are to be replaced, all files
stay (mirror_pump.pipeline.operations.replace_differing). Catalog: a new registration of the same table with a new
start LSN. Its copy may have to wait until the stream describes the table (state `waiting`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mirror_pump.model import MirroredTable, TableState
from mirror_pump.pipeline.operations.add_chunks import forget_chunks
from mirror_pump.pipeline.operations.catalog_changes import store_change
from mirror_pump.pipeline.operations.operation import Cursor, Operation, Recording, TablePlan
from mirror_pump.pipeline.operations.registrations import Registration
from mirror_pump.pipeline.operations.table_changes import TableChange
from mirror_pump.pipeline.operations.truncate import emptied
from mirror_pump.table_life import TableEvent


@dataclass(frozen=True)
class CopyAgain(Operation):
    reads_heap_again = True

    change: TableChange

    def stage(self, plan: TablePlan, table: MirroredTable, registration: Registration) -> TablePlan:
        event = TableEvent.COPY_AWAITED if table.state is TableState.WAITING else TableEvent.COPIED_AGAIN
        plan = plan.after(event)
        plan = replace(plan, keeps_files=True) if self.change.where_different else emptied(plan, table, registration)
        return replace(plan, changes_columns=True, starts_copy=True, forgets_index=True)

    def describe(self, cursor: Cursor, recording: Recording) -> None:
        store_change(cursor, self.change, recording.registration.state, recording.state, ())

    def complete(self, cursor: Cursor, recording: Recording) -> None:
        forget_chunks(cursor, recording.table)
