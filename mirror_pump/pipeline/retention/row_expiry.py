"""Has the session's loop move the retention line of tables with lake retention, once it is due and no reader is in the
way.

The line is due as soon as the cut-line has advanced, or the lag got shorter (`modak.due_retention_line`). So it moves
by whole partitions, and once for all those that the cut-line passes in a row: the caller looks here only when no
partition takes a step.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Future

import psycopg

from mirror_pump.backoff import Backoff, Retries
from mirror_pump.errors import MirrorPumpError
from mirror_pump.model import MirroredTable, TableId
from mirror_pump.pipeline.flow.events import ExpiryWanted
from mirror_pump.pipeline.flow.session_context import SessionContext
from mirror_pump.pipeline.flow.session_threads import ThreadStopped
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.flow.tasks import outcome
from mirror_pump.pipeline.operations.expire_rows import ExpireRows
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.relations.tier_keys import END
from mirror_pump.source.retention import partitions as source


class RowExpiry:
    """Moves retention lines, one at a time. Used by one thread."""

    def __init__(self, context: SessionContext, backoff: Backoff, stopping: Callable[[], bool]) -> None:
        self._inbox = context.inbox
        self._observer = context.observer
        self._backoff = backoff
        self._stopping = stopping
        self._refusals: dict[TableId, Retries] = {}
        """Refusals in a row, by table."""

    def forget_pauses(self) -> None:
        """Retries what was put off."""
        self._refusals.clear()

    def look(self, connection: PgConnection, table: MirroredTable) -> bool:
        """Moves the table's line if it is due. Returns whether it moved. Raises ThreadStopped."""
        pause = self._refusals.get(table.table_id)
        if pause is not None and not pause.due:
            return False
        line = source.due_retention_line(connection, table.table_id)
        if line is None:
            self._note(connection, table, None)
            return False
        if (reader := source.reader_in_the_way(connection, table.table_id, END)) is not None:
            # Without a pause: the line moves as soon as the reader is done.
            self._note(connection, table, reader)
            return False
        refused = self._publish(table, line)
        self._note(connection, table, refused)
        if refused is not None:
            self._refusals.setdefault(table.table_id, Retries(self._backoff)).failed()
            self._observer(Step.RETENTION_REFUSED, table=str(table.name), partition="", reason=refused)
            return False
        self._refusals.pop(table.table_id, None)
        return True

    def _publish(self, table: MirroredTable, line: int) -> str | None:
        """Returns None if the line moved, otherwise why not."""
        answer: Future[str | None] = Future()
        self._inbox.put(ExpiryWanted(table, ExpireRows(line), answer))
        try:
            return outcome(answer, self._stopping)
        except (CancelledError, MirrorPumpError, psycopg.Error):
            # The session ends for some reason. The catalog records whether the line has moved.
            raise ThreadStopped from None

    @staticmethod
    def _note(connection: PgConnection, table: MirroredTable, reason: str | None) -> None:
        """Stores why the line does not move, for `status`."""
        source.run(connection, "not_expired", {"table_id": table.table_id, "reason": reason})
