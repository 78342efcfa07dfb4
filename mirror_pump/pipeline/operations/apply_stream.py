"""Applies changes of the stream.

Lake: each segment gets its own data sequence number, in stream order, so its deletes reach all earlier rows and no
later row. Catalog: nothing, since the frontier moves for all tables of the publish at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mirror_pump.model import Lsn, MirroredTable
from mirror_pump.pipeline.operations.operation import Operation, SegmentChange, TablePlan
from mirror_pump.pipeline.operations.registrations import Registration


@dataclass(frozen=True)
class ApplyStream(Operation):
    segments: tuple[SegmentChange, ...] = ()
    """In stream order."""
    raw_text_columns: frozenset[int] = frozenset()
    """Field IDs of the columns that have a raw text column in the segments' files."""
    not_live_before: Lsn | None = None
    """The table may not go live before the frontier reaches this position, at which a value was read from the heap."""

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(location for segment in self.segments for location in segment.locations)

    def stage(self, plan: TablePlan, table: MirroredTable, registration: Registration) -> TablePlan:
        return replace(
            plan,
            segments=(*plan.segments, *self.segments),
            raw_text_columns=plan.raw_text_columns | self.raw_text_columns,
            not_live_before=self.not_live_before,
        )
