"""Adds ingested rows below the cut-line, and deletes the rows that they replace.

Lake: a segment of data files without deletes of its own, and position deletes of the rows that had these keys. The
archive branch is refreshed on top of it, since that is where readers find rows below the cut-line. Catalog: the
ingest's row in `op_log` becomes `done`.

Nothing but folds and ingests changes the lake below the cut-line. An ingest conflicts with neither: whoever publishes
it has looked, under the slot's lock, at every file that may hold one of its keys, and has written a correction of its
own for each key that has one (mirror_pump.ops.ingest.ingest_commit). So a fold that lands later with an older value is
overruled by that correction, as if the row had been written by an INSERT.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from psycopg.types.json import Jsonb

from mirror_pump.errors import TableError
from mirror_pump.lake.commit.row_delta import SegmentFiles
from mirror_pump.lake.format.data_files import WrittenFile
from mirror_pump.model import MirroredTable
from mirror_pump.pipeline.operations.operation import Cursor, Operation, Recording, TablePlan
from mirror_pump.pipeline.operations.registrations import Registration
from mirror_pump.pipeline.operations.segments import SegmentChange
from sql import queries

_SQL = queries("ingest")


@dataclass(frozen=True)
class IngestFiles(Operation):
    reports_refusal = True

    op_id: str
    """modak.op_log.op_id, a UUID."""
    data: tuple[WrittenFile, ...]
    """Files of the rows below the cut-line."""
    positions: tuple[WrittenFile, ...]
    """Position deletes of the rows that they replace."""
    cut: int
    """The cut-line when the rows were divided."""
    details: tuple[tuple[str, int], ...]
    """Counts for the journal."""
    raw_text_columns: frozenset[int] = frozenset()
    """Field IDs of the columns that have a raw text column in the files."""

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(file.path for file in (*self.data, *self.positions))

    def fitting(self, table: MirroredTable, registration: Registration) -> IngestFiles | None:
        # The cut-line only advances, so the rows are still below it.
        tier, written = registration.tier, {column.field_id for column in table.columns}
        fits = registration.readers_see_commits and tier is not None and self.cut <= tier.cut
        return self if fits and registration.initial_fields <= written else None

    def stage(self, plan: TablePlan, table: MirroredTable, registration: Registration) -> TablePlan:
        return replace(
            plan,
            segments=(*plan.segments, SegmentChange(SegmentFiles(self.data, ()))),
            positions=(*plan.positions, *self.positions),
            raw_text_columns=plan.raw_text_columns | self.raw_text_columns,
            archive_due=True,
        )

    def complete(self, cursor: Cursor, recording: Recording) -> None:
        archive = recording.archive
        snapshot = None if archive is None else archive.snapshot_id
        details = {"kind": "ingest", **dict(self.details)}
        cursor.execute(_SQL["done"], {"op_id": self.op_id, "snapshot_id": snapshot, "details": Jsonb(details)})
        if cursor.rowcount != 1:
            raise TableError(f"{recording.table.name}: the ingest was undone by another one", "ingest again")
