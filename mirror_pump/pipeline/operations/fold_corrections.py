"""Corrections of rows below the cut-line come from modak.delta into the lake.

Lake: a segment that deletes every corrected key and brings the rows that they have now, and the archive branch made
anew on top of it, since that is where readers find rows below the cut-line. Catalog: corrections are marked that still
have the version that was folded; one that was corrected again since has another version, stays, and wins. The operation
is written down in `op_log`.

Below the cut-line nothing else changes the lake, so a fold races with no stream change. It may come while the table is
being copied, though: then it is left out, and tried again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from psycopg.types.json import Jsonb

from mirror_pump.model import MirroredTable
from mirror_pump.pipeline.operations.operation import Cursor, Operation, Recording, TablePlan
from mirror_pump.pipeline.operations.registrations import Registration
from mirror_pump.pipeline.operations.segments import SegmentChange
from sql import queries

_SQL = queries("publish")
_FOLD_SQL = queries("fold")


@dataclass(frozen=True)
class FoldCorrections(Operation):
    """The newest corrections of their keys as of the time that they were read."""

    reports_refusal = True

    segment: SegmentChange
    """Deletes every key of them, and brings the rows that they put in their place."""
    versions: tuple[tuple[str, int], ...]
    """(pk, version) of each."""
    cut: int
    """The cut-line when they were read."""
    sidecars: frozenset[int] = frozenset()
    """Field IDs of the columns that have a sidecar in its file."""

    @property
    def files(self) -> tuple[str, ...]:
        return self.segment.locations

    def fitting(self, table: MirroredTable, registration: Registration) -> FoldCorrections | None:
        # The cut-line only grows, so what was below it is. A fold that was written before a column was filled comes too
        # late: its file lacks the value.
        tier, written = registration.tier, {column.field_id for column in table.columns}
        fits = registration.readers_see_commits and tier is not None and self.cut <= tier.cut
        return self if fits and registration.initial_fields <= written else None

    def stage(self, plan: TablePlan, table: MirroredTable, registration: Registration) -> TablePlan:
        return replace(
            plan,
            segments=(*plan.segments, self.segment),
            raw_text_columns=plan.raw_text_columns | self.sidecars,
            archive_due=True,
        )

    def complete(self, cursor: Cursor, recording: Recording) -> None:
        archive, table_id = recording.archive, recording.table.table_id
        if archive is None:
            return
        cursor.execute(
            _SQL["mark_folded"],
            {
                "table_id": table_id,
                "sequence": archive.sequence_number,
                "pks": [pk for pk, _ in self.versions],
                "versions": [version for _, version in self.versions],
            },
        )
        details = {"operation": "fold", "kind": "fold", "rows": len(self.versions)}
        cursor.execute(
            _FOLD_SQL["journal"],
            {"table_id": table_id, "snapshot_id": archive.snapshot_id, "details": Jsonb(details)},
        )
