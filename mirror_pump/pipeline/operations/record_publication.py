"""Records how the table is published in Postgres, after that was changed.

Lake: nothing. Catalog: the current row of the table in the publication, stored in the same transaction that begins a
new copy of the table. From then on the stream counts as complete (mirror_pump.source.stream.publication).
"""

from __future__ import annotations

from dataclasses import dataclass

from mirror_pump.pipeline.operations.operation import Cursor, Operation, Recording
from mirror_pump.source.relations.published_rules import PublishedRules, take_over
from mirror_pump.source.stream.publication import record_published


@dataclass(frozen=True)
class RecordPublication(Operation):
    rules: PublishedRules | None = None
    """The publication's column list and row filter, if the table takes them over. If they are changed again,
    the record differs from then on."""

    def describe(self, cursor: Cursor, recording: Recording) -> None:
        if self.rules is None:
            record_published(cursor, recording.slot, [recording.table.table_id])
        else:
            take_over(cursor, recording.table, self.rules)
