"""Tables that are mirrored by copies only (`register --snapshot-only`): paused once they are copied, resumed when due.

So such a table is an ordinary one while it is copied, with the stream's changes, and its copy is complete at one
frontier; and a paused one in between, of which readers see that frontier. It is copied again beside what they see.
"""

from __future__ import annotations

import time

from mirror_pump.errors import ConnectionLost, MirrorPumpError, TableError, one_line_of, with_remedy
from mirror_pump.model import TableId
from mirror_pump.ops.catalog_poll import CatalogPoll
from mirror_pump.ops.resync.pausing import pause, resume
from mirror_pump.runtime.table_work import REPORT, work_for
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.pauses import SnapshotDue, due_tables, note_not_resumed
from mirror_pump.source.connect import PgConnection, connect, source_errors

_RETRY_INTERVAL = 600.0
"""Seconds until a table that cannot be copied again is tried once more."""


def rest(settings: Settings) -> None:
    """Pause the tables whose copies are complete. A running pump does that too."""
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-snapshots") as connection:
        for table in _due_tables(connection, settings):
            if not table.rests:
                _pause(settings, table)


def _due_tables(connection: PgConnection, settings: Settings) -> list[SnapshotDue]:
    with source_errors("reading which tables are to be copied again"):
        return due_tables(connection, settings.slot)


def _pause(settings: Settings, table: SnapshotDue) -> None:
    try:
        with work_for(table.table, remedy=REPORT):
            pause(settings, str(table.table))
    except TableError:
        # Its state has changed since it was read: another process acts on it.
        return


class SnapshotKeeper(CatalogPoll[SnapshotDue]):
    """Does both for a leading pump. Its role may always pause; to resume, it needs the rights that `register` needs."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, "snapshots")
        self._next_try: dict[TableId, float] = {}
        """By table that could not be resumed, the time of time.monotonic() to try it again."""

    def _due(self, connection: PgConnection) -> list[SnapshotDue]:
        now = time.monotonic()
        tables = _due_tables(connection, self._settings)
        return [table for table in tables if not table.rests or now >= self._next_try.get(table.table_id, now)]

    def _do(self, connection: PgConnection, due: SnapshotDue) -> None:
        if due.rests:
            self._resume(connection, due)
        else:
            _pause(self._settings, due)

    def _resume(self, connection: PgConnection, table: SnapshotDue) -> None:
        try:
            with work_for(table.table, remedy=REPORT):
                resume(self._settings, str(table.table))
        except ConnectionLost:
            raise
        except MirrorPumpError as error:
            text = one_line_of(with_remedy(error))
            with source_errors("recording a table that is not copied again"):
                note_not_resumed(connection, table.table_id, text)
            self._next_try[table.table_id] = time.monotonic() + _RETRY_INTERVAL
            self._log.warning("a table is not copied again", table=str(table.table), error=text)
        else:
            self._next_try.pop(table.table_id, None)
