"""Changes a table's columns, key or name, if every row in the lake is still right under the new ones.

Lake: the new schema, on the same field IDs. No file is touched, since readers find columns by field ID. Catalog: the
table's description. All renames of a publish are made together, after its last table
(mirror_pump.pipeline.operations.lake_names).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mirror_pump.model import MirroredTable
from mirror_pump.pipeline.operations.catalog_changes import store_change
from mirror_pump.pipeline.operations.operation import Cursor, Operation, Recording, TablePlan
from mirror_pump.pipeline.operations.registrations import Registration
from mirror_pump.pipeline.operations.table_changes import TableChange


@dataclass(frozen=True)
class ChangeColumns(Operation):
    change: TableChange

    def stage(self, plan: TablePlan, table: MirroredTable, registration: Registration) -> TablePlan:
        return replace(plan, changes_columns=True)

    def describe(self, cursor: Cursor, recording: Recording) -> None:
        store_change(cursor, self.change, recording.registration.state, recording.state, (), recording.values_kept)
