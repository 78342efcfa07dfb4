"""A copy begins again: the table's heap was rewritten while it was read, so chunks of before and after do not fit.

Lake: the chunks' files go, by the sequence number that only they have; what the stream brought stays. Catalog: the
copy's generation counts up, which makes chunks that are still being read worthless, and its chunks are forgotten, to be
planned anew. Each chunk of a copy may report the rewrite; what reports it for an older generation changes nothing.
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
