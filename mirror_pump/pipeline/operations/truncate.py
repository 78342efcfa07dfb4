"""Applies a TRUNCATE: removes all rows from before the stream changes of the same publish.

Lake: every file is removed in the snapshot that adds the segments after the TRUNCATE. If the table has heap retention,
the rows below the cut-line stay, since the TRUNCATE of the heap did not concern them. Catalog: a copy that is under way
restarts, because a chunk that was read before the TRUNCATE would bring back removed rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mirror_pump.lake.commit.replacement import EveryFile, FilesAbove
from mirror_pump.model import MirroredTable, TableState
from mirror_pump.pipeline.operations.add_chunks import AddChunks, forget_chunks
from mirror_pump.pipeline.operations.operation import Cursor, Operation, Recording, TablePlan
from mirror_pump.pipeline.operations.registrations import Registration, line_of
from mirror_pump.table_life import TableEvent


@dataclass(frozen=True)
class Truncate(Operation):
    supersedes = (AddChunks,)

    def stage(self, plan: TablePlan, table: MirroredTable, registration: Registration) -> TablePlan:
        plan = emptied(plan, table, registration)
        if registration.state is TableState.COPYING:
            plan = replace(plan.after(TableEvent.COPY_RESTARTED), starts_copy=True)
        return plan

    def complete(self, cursor: Cursor, recording: Recording) -> None:
        if recording.registration.state is TableState.COPYING:
            forget_chunks(cursor, recording.table)


def emptied(plan: TablePlan, table: MirroredTable, registration: Registration) -> TablePlan:
    """The plan with all rows at or above the cut-line removed; without heap retention, all rows. Raises TableError if
    the tier key is mirrored as a type that orders differently."""
    line = line_of(table, registration.tier)
    if line is None:
        return replace(plan, replaces=EveryFile())
    # The rows below the cut-line stay, and their keys may be in the table twice until the other rows are removed.
    return replace(plan, replaces=FilesAbove(line), forgets_index=True)
