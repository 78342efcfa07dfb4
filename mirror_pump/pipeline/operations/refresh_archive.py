"""Refreshes an archive branch that still refers to files which the table has replaced.

Lake: a new head of the branch with the same rows. The main branch gets no snapshot. Catalog: the new head becomes the
published snapshot, as in every publish that refreshes the branch.
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
