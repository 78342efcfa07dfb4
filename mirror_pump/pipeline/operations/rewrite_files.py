"""Files in place of others, without a change of rows: deletes converted, small files merged, worn files renewed.

Lake: the exchange, if it still fits the table (mirror_pump.lake.resolution says why it changes no row). Catalog:
nothing of its own. It was computed beside the stream, so it may come too late: then it is left out, and whoever
computed it is told.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mirror_pump.lake.resolution import Resolution
from mirror_pump.model import MirroredTable
from mirror_pump.pipeline.operations.operation import Operation, TablePlan
from mirror_pump.pipeline.standing import Standing


@dataclass(frozen=True)
class RewriteFiles(Operation):
    reports_refusal = True

    rewrite: Resolution

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(file.path for file in self.rewrite.written)

    def fitting(self, table: MirroredTable, registration: Standing) -> RewriteFiles | None:
        return self if registration.resolvable else None

    def stage(self, plan: TablePlan, table: MirroredTable, registration: Standing) -> TablePlan:
        return replace(plan, replaces=self.rewrite)
