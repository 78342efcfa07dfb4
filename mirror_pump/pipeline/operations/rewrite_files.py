"""Files take the place of others, and no row changes: deletes are converted, small or much-deleted files rewritten.

Lake: the exchange, if it still fits the table (mirror_pump.lake.commit.file_rewrite says why it changes no row).
Catalog: nothing of its own. The rewrite was computed beside the stream, so it may come too late. Then it is left out,
and whoever computed it is told.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mirror_pump.lake.commit.file_rewrite import FileRewrite
from mirror_pump.model import MirroredTable
from mirror_pump.pipeline.operations.operation import Operation, TablePlan
from mirror_pump.pipeline.operations.registrations import Registration


@dataclass(frozen=True)
class RewriteFiles(Operation):
    reports_refusal = True

    rewrite: FileRewrite

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(file.path for file in self.rewrite.written)

    def fitting(self, table: MirroredTable, registration: Registration) -> RewriteFiles | None:
        return self if registration.files_may_be_rewritten else None

    def stage(self, plan: TablePlan, table: MirroredTable, registration: Registration) -> TablePlan:
        return replace(plan, replaces=self.rewrite)
