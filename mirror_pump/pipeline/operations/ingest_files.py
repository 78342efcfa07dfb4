"""Adds ingested rows below the cut-line, and deletes the rows that they replace.

Lake: a segment of data files without deletes of its own, and the rows that had these keys are deleted by position. The
archive branch is refreshed on top of it, since that is where readers find rows below the cut-line. Catalog: the
ingest's row in `op_log` becomes `done`.

Nothing but folds and ingests changes the lake below the cut-line. An ingest conflicts with neither: the process
that publishes it has looked, under the slot's lock, at every file that may hold one of its keys, and has written a
correction of its own for each key that has one (mirror_pump.ops.ingest.commit.ingest_commit). So a fold that lands
later with an older value is overruled by that correction, as if the row had been written by an INSERT.

The first rows below the cut-line of a tiered table may come before any partition has left. Then the cut-line gets its
first value in this publish (`begins`, modak.begin_cutline). It is below everything that the heap holds, so no row
changes sides: there is nothing to copy, and nothing to prove.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import psycopg
from psycopg.types.json import Jsonb

from mirror_pump.errors import CommitConflict, TableError
from mirror_pump.lake.commit.row_delta import SegmentFiles
from mirror_pump.lake.format.data_files import WrittenFile
from mirror_pump.lake.format.partitioning import PartitionTuple
from mirror_pump.lake.format.position_deletes import Positions
from mirror_pump.model import MirroredTable
from mirror_pump.pipeline.operations.operation import Cursor, Operation, Recording, SegmentChange, TablePlan, refusal_of
from mirror_pump.pipeline.operations.registrations import Registration
from sql import queries

_SQL = queries("ingest")


@dataclass(frozen=True)
class IngestFiles(Operation):
    reports_refusal = True

    op_id: str
    """modak.op_log.op_id, a UUID."""
    data: tuple[WrittenFile, ...]
    """Files of the rows below the cut-line."""
    replaced: Mapping[str, Positions]
    """The rows that they replace: as `RowDelta.hidden`."""
    partitions: Mapping[str, PartitionTuple]
    """As `RowDelta.partitions`."""
    cut: int
    """The cut-line when the rows were divided."""
    details: tuple[tuple[str, int], ...]
    """Counts for the journal."""
    raw_text_columns: frozenset[int] = frozenset()
    """Field IDs of the columns that have a raw text column in the files."""
    begins: bool = False
    """The cut-line has not moved, and becomes `cut`."""

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(file.path for file in self.data)

    def fitting(self, table: MirroredTable, registration: Registration) -> IngestFiles | None:
        tier, written = registration.tier, {column.field_id for column in table.columns}
        if not registration.readers_see_commits or tier is None or not registration.initial_fields <= written:
            return None
        # The cut-line only advances, so the rows are still below it.
        begins = self.begins and not tier.moved
        return replace(self, begins=begins) if begins or self.cut <= tier.cut else None

    def stage(self, plan: TablePlan, table: MirroredTable, registration: Registration) -> TablePlan:
        return replace(
            plan,
            segments=(*plan.segments, SegmentChange(SegmentFiles(self.data, ()))),
            hidden=self.replaced,
            partitions=self.partitions,
            raw_text_columns=plan.raw_text_columns | self.raw_text_columns,
            archive_due=True,
            cut=self.cut if self.begins else plan.cut,
        )

    def lock(self, cursor: Cursor, recording: Recording) -> None:
        """Gives the cut-line its first value, if it begins here. Raises CommitConflict if that may work in a moment."""
        if not self.begins:
            return
        parameters = {"table_id": recording.table.table_id, "cut": self.cut}
        try:
            reason = refusal_of(cursor, _SQL["begin_cutline"], parameters, "it is not registered any more")
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
            raise CommitConflict(f"{recording.table.name}: its partitions are locked by others") from error
        if reason is not None:
            raise TableError(f"{recording.table.name}: older rows cannot go to the lake: {reason}", "ingest again")

    def complete(self, cursor: Cursor, recording: Recording) -> None:
        archive = recording.archive
        snapshot = None if archive is None else archive.snapshot_id
        details = {"kind": "ingest", **dict(self.details)}
        cursor.execute(_SQL["done"], {"op_id": self.op_id, "snapshot_id": snapshot, "details": Jsonb(details)})
        if cursor.rowcount != 1:
            raise TableError(f"{recording.table.name}: the ingest was undone by another one", "ingest again")
