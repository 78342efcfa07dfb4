"""Rows in the lake may be wrong: the table's present content is to take their place, once it is copied.

Lake: everything that exists before the publish's segments goes, in metadata that readers do not see; of a table with
heap retention what is at or above the cut-line. Catalog: a new registration of the same table (another start LSN),
whose copy begins. It may have to wait until the stream says what the table is like (the state `waiting`).
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
        plan = emptied(plan.after(event), table, registration)
        return replace(plan, changes_columns=True, starts_copy=True, forgets_index=True)

    def describe(self, cursor: Cursor, recording: Recording) -> None:
        store_change(cursor, self.change, recording.registration.state, recording.state, ())

    def complete(self, cursor: Cursor, recording: Recording) -> None:
        forget_chunks(cursor, recording.table)
