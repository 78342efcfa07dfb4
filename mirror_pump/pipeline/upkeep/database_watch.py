"""Threads that look at the database again and again, and that no error ends, such as the neglect watch."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import psycopg

from mirror_pump.errors import SourceError
from mirror_pump.model import TableId
from mirror_pump.pipeline.flow.session_context import SessionContext, SharedConnection, session_thread
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.runtime.service_thread import ServiceThread, ThreadedService
from mirror_pump.source.catalog.maintenance import NEGLECTED_AFTER, attention
from mirror_pump.source.connect import PgConnection, connect, limited

_STOP_GRACE = 1.0
"""Seconds that stopping waits for the thread. It may be connecting to a server that does not answer."""


def database_watch(
    name: str, dsn: str, application_name: str, look: Callable[[PgConnection], None], interval: float
) -> ServiceThread:
    """A thread that calls `look` with a new connection in autocommit mode, at once and then every `interval` seconds.

    It says nothing of a connection that cannot be made or is lost, since the pump itself reports that: the next look is
    soon enough.
    """

    def run() -> None:
        while thread.next_round():
            with (
                suppress(SourceError, psycopg.Error),
                connect(dsn, autocommit=True, application_name=application_name) as connection,
            ):
                look(connection)
            thread.await_wake(interval)

    thread = ServiceThread(name, run, stop_within=_STOP_GRACE)
    return thread


_LOOK_INTERVAL = 600.0
"""Seconds between two looks. The first look is immediate, so that a pump that only runs briefly now and then also logs
it."""


class NeglectWatch(ThreadedService):
    """A thread of a session that logs tables that no maintainer looks at, each once a day: a pump by itself removes
    neither files nor snapshots."""

    def __init__(self, context: SessionContext, shared: SharedConnection, reported_at: dict[TableId, float]) -> None:
        """`shared`: for short queries of this thread and others. `reported_at`: when earlier sessions reported each
        table, time.monotonic() in seconds. Only this thread changes it."""
        self._slot = context.slot
        self._observer = context.observer
        self._shared = shared
        self._reported_at = reported_at
        self._thread = session_thread("neglect watch", self._run, context.inbox)

    def _run(self) -> None:
        while self._thread.next_round():
            # A lost connection is reported by other threads, and the next session looks again.
            with suppress(SourceError, psycopg.Error):
                self._look()
            self._thread.await_wake(_LOOK_INTERVAL)

    def _look(self) -> None:
        # Other threads would wait behind a lock for which this one waits.
        with self._shared.use() as connection, limited(connection):
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
