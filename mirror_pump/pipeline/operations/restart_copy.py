"""Restarts a copy, because the table's heap was rewritten in the meantime: older chunks do not match newer ones.

Lake: the chunks' files are removed, which are the only ones with the start sequence number. The files of stream changes
stay. Catalog: the copy gets the next generation, so chunks that are still being read become worthless, and the planned
chunks are deleted. Each chunk of a copy may report the rewrite. A report for an older generation has no effect.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mirror_pump.lake.commit.replacement import CopiedFiles
from mirror_pump.model import MirroredTable, TableState
from mirror_pump.pipeline.operations.add_chunks import forget_chunks
from mirror_pump.pipeline.operations.operation import Cursor, Operation, Recording, TablePlan
from mirror_pump.pipeline.operations.registrations import Registration
from mirror_pump.table_life import TableEvent


@dataclass(frozen=True)
class RestartCopy(Operation):
    reads_heap_again = True

    def fitting(self, table: MirroredTable, registration: Registration) -> RestartCopy | None:
        copying = registration.state is TableState.COPYING
        return self if copying and table.generation == registration.generation else None

    def stage(self, plan: TablePlan, table: MirroredTable, registration: Registration) -> TablePlan:
        plan = plan.after(TableEvent.COPY_RESTARTED)
        return replace(
            plan, replaces=CopiedFiles(registration.data_sequence_number), starts_copy=True, forgets_index=True
        )

    def complete(self, cursor: Cursor, recording: Recording) -> None:
        forget_chunks(cursor, recording.table)
