"""Folds corrections of rows below the cut-line from modak.delta into the lake.

Lake: a segment that deletes every corrected key and adds its new row. The archive branch is refreshed on top of it,
since that is where readers find rows below the cut-line. Catalog: corrections that still have the folded version are
marked as folded. A row that was corrected again has another version. That correction stays and takes precedence. The
fold is recorded in `op_log`.

Nothing else changes the lake below the cut-line, so a fold never conflicts with stream changes. A fold that arrives
while the table is being copied is left out and tried again later.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from psycopg.types.json import Jsonb

from mirror_pump.model import MirroredTable
from mirror_pump.pipeline.operations.operation import Cursor, Operation, Recording, SegmentChange, TablePlan
from mirror_pump.pipeline.operations.registrations import Registration
from sql import queries

_SQL = queries("publish")
_FOLD_SQL = queries("fold")


@dataclass(frozen=True)
class FoldCorrections(Operation):
    """The newest corrections of some keys, as of the time when they were read."""

    reports_refusal = True

    segment: SegmentChange
    """Deletes every corrected key and adds the corrected rows."""
    versions: tuple[tuple[str, int], ...]
    """(pk, version) of each correction."""
    cut: int
    """The cut-line when they were read."""
    line: int | None = None
    """The retention line when they were read."""
    raw_text_columns: frozenset[int] = frozenset()
    """Field IDs of the columns that have a raw text column in the segment's file."""
    awaits_index: bool = False
    """The fold is refused if the table's key index turns out not to match the table, and made again once it does."""

    @property
    def files(self) -> tuple[str, ...]:
        return self.segment.locations

    def fitting(self, table: MirroredTable, registration: Registration) -> FoldCorrections | None:
        # The cut-line only advances, so the corrections are still below it. A fold that was written before a column was
        # filled is too late: its file lacks the column's value. So is one from before the retention line moved: it may
        # bring back rows that have expired.
        tier, written = registration.tier, {column.field_id for column in table.columns}
        fits = registration.readers_see_commits and tier is not None and self.cut <= tier.cut and self.line == tier.line
        return self if fits and registration.initial_fields <= written else None

    def stage(self, plan: TablePlan, table: MirroredTable, registration: Registration) -> TablePlan:
        return replace(
            plan,
            segments=(*plan.segments, self.segment),
            raw_text_columns=plan.raw_text_columns | self.raw_text_columns,
            archive_due=True,
            awaits_index=plan.awaits_index or self.awaits_index,
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
