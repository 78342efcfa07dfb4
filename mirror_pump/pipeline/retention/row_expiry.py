"""Has the session's loop move the retention line of tables with lake retention, once it is due and no reader is in the
way.

The line is due as soon as the cut-line has advanced and the heap no longer holds what lies below, or the lag got
shorter (`modak.due_retention_line`). The caller looks here in each of the table's turns: partitions may be due without
end.
"""

from __future__ import annotations

from collections.abc import Callable

from mirror_pump.model import TableId
from mirror_pump.partition_life import Refused
from mirror_pump.pipeline.flow.events import PublishWanted
from mirror_pump.pipeline.flow.session_context import SessionContext
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.flow.tasks import publish_outcome
from mirror_pump.pipeline.operations.expire_rows import ExpireRows
from mirror_pump.runtime.backoff import Backoff, Retries
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.relations.tier_keys import END
from mirror_pump.source.retention import partitions as source
from mirror_pump.source.retention.partitions import Noted


class RowExpiry:
    """Moves retention lines, one at a time. Used by one thread."""

    def __init__(self, context: SessionContext, backoff: Backoff, stopping: Callable[[], bool]) -> None:
        self._context = context
        self._observer = context.observer
        self._backoff = backoff
        self._stopping = stopping
        self._refusals: dict[TableId, Retries] = {}
        """Refusals in a row, by table."""

    def forget_pauses(self) -> None:
        """Retries what was put off."""
        self._refusals.clear()

    def look(self, connection: PgConnection, table_id: TableId) -> bool:
        """Moves the table's line if it is due. Returns whether it moved. Raises ThreadStopped."""
        pause = self._refusals.get(table_id)
        if pause is not None and not pause.due:
            return False
        line = source.due_retention_line(connection, table_id)
        if line is None:
            self._note(connection, table_id, None)
            return False
        if (reader := source.reader_in_the_way(connection, table_id, END)) is not None:
            # Without a pause: the line moves as soon as the reader is done.
            self._note(connection, table_id, reader)
            return False
        # As it is now: the cut-line may have moved in this turn.
        table = load_table(connection, table_id)
        if table is None:
            return False
        result = publish_outcome(self._context, PublishWanted(table, ExpireRows(line)), self._stopping)
        if isinstance(result, Refused):
            self._note(connection, table_id, result.reason)
            self._refusals.setdefault(table_id, Retries(self._backoff)).failed()
            self._observer(Step.RETENTION_REFUSED, table=str(table.name), partition="", reason=result.reason)
            return False
        self._note(connection, table_id, None)
        self._refusals.pop(table_id, None)
        return True

    @staticmethod
    def _note(connection: PgConnection, table_id: TableId, reason: str | None) -> None:
        """Stores why the line does not move, for `status`."""
        source.note(connection, table_id, Noted.NOT_EXPIRED, reason)
