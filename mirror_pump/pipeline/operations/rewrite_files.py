"""Replaces files by others without changing a row: converted deletes, merged small files, or files without deleted
rows.

Lake: the replacement, if it still fits the table (mirror_pump.lake.commit.file_rewrite argues why it changes no row).
Catalog: nothing. The rewrite was computed while the stream went on, so it may come too late. Then it is left out, and
the thread that computed it is notified.
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
