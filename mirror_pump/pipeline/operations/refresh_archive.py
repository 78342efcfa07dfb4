"""The archive branch is made anew: it holds on to files that the table has exchanged since.

Lake: a new head of the branch, of the same rows; main gets no snapshot. Catalog: the published snapshot follows it, as
with every publish that makes the branch anew.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mirror_pump.model import MirroredTable
from mirror_pump.pipeline.operations.operation import Operation, TablePlan
from mirror_pump.pipeline.operations.registrations import Registration


@dataclass(frozen=True)
class RefreshArchive(Operation):
    def stage(self, plan: TablePlan, table: MirroredTable, registration: Registration) -> TablePlan:
        return replace(plan, archive_due=True)
