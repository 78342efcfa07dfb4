"""Logs tables that no maintainer looks at. A pump by itself removes neither files nor snapshots."""

from __future__ import annotations

import time

from mirror_pump.model import TableId
from mirror_pump.pipeline.flow.steps import Observer, Step
from mirror_pump.pipeline.upkeep.database_watch import database_watch
from mirror_pump.service_thread import ThreadedService
from mirror_pump.source.catalog.maintenance import NEGLECTED_AFTER, attention
from mirror_pump.source.connect import PgConnection

_LOOK_INTERVAL = 600.0
"""Seconds between two looks. The first look is immediate, so that a pump that only runs briefly now and then also logs
it."""


class NeglectWatch(ThreadedService):
    """A thread that runs for the duration of the block. It reports each table once a day."""

    def __init__(self, dsn: str, slot: str, observer: Observer) -> None:
        self._slot = slot
        self._observer = observer
        self._reported_at: dict[TableId, float] = {}
        """When each table was last reported: time.monotonic(), in seconds."""
        self._thread = database_watch("neglect-watch", dsn, "mirror-pump-neglect", self._look, _LOOK_INTERVAL)

    def _look(self, connection: PgConnection) -> None:
        neglected = [table for table in attention(connection, self._slot) if table.neglected]
        now = time.monotonic()
        for table in neglected:
            if now - self._reported_at.get(table.table_id, -NEGLECTED_AFTER) < NEGLECTED_AFTER:
                continue
            self._reported_at[table.table_id] = now
            assert table.unattended_seconds is not None
            self._observer(
                Step.TABLE_NEGLECTED,
                table=str(table.name),
                hours=round(table.unattended_seconds / 3600),
                remedy="start `mirror-pump run --maintain`, or have cron run `mirror-pump maintain` daily",
            )
