"""How the table is published in Postgres is another thing than was recorded, and is recorded anew.

Lake: nothing. Catalog: the publication's row of the table, as it is now, in the transaction that has the table copied
again: from there on the stream is looked at as complete (mirror_pump.source.stream.publication).
"""

from __future__ import annotations

from dataclasses import dataclass

from mirror_pump.pipeline.operations.operation import Cursor, Operation, Recording
from mirror_pump.source.stream.publication import record_published


@dataclass(frozen=True)
class RecordPublication(Operation):
    def describe(self, cursor: Cursor, recording: Recording) -> None:
        record_published(cursor, recording.slot, [recording.table.table_id])
