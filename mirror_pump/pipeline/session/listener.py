"""Receives what commands tell the pump by its channel (mirror_pump.source.catalog.pump_channel).

`modak.wait_for` tells it by a message in the stream, since nothing else leaves a transaction that goes on. Before
PostgreSQL 17 the server sends such a message only when another session's commit has flushed it, so there the listener
itself commits something whenever WAL has waited for that through two looks.
"""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable

from mirror_pump.model import parse_lsn
from mirror_pump.pipeline.flow.events import FrontierWanted, TablesMarked
from mirror_pump.pipeline.flow.session_context import SessionContext, session_thread
from mirror_pump.source.catalog.pump_channel import CHANNEL, RESYNC, RETAIN
from mirror_pump.source.connect import PgConnection, source_errors
from sql import queries

_LOOK_INTERVAL = 5.0
"""Seconds between checks for notifications that libpq has buffered without the socket becoming readable. Other
notifications and a stop request wake the thread at once."""
_FLUSHES_MESSAGES = 170000
"""The first version of the server whose messages can ask for a flush."""
_FLUSH_INTERVAL = 0.25
"""Seconds between looks for WAL that is not flushed. Each takes the server 0.1 ms."""
_SQL = queries("wal_flush")


class Listener:
    """A thread that runs LISTEN on its own connection."""

    def __init__(self, context: SessionContext, registered: Callable[[], None], retain: Callable[[], None]) -> None:
        """`registered` is called when a table was registered or a stream added, and once at the beginning; `retain`
        when partitions have to be checked."""
        self._context = context
        self._inbox = context.inbox
        self._registered = registered
        self._retain = retain
        self._wake_read = self._wake_write = -1
        self._thread = session_thread("listener", self._run, context.inbox, interrupt=self._interrupt)

    def start(self) -> None:
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Must be called only once."""
        self._thread.stop()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _interrupt(self) -> None:
        os.write(self._wake_write, b"w")

    def _run(self) -> None:
        with (
            source_errors("listening for waiters"),
            self._context.connect() as connection,
            selectors.DefaultSelector() as selector,
        ):
            selector.register(connection.fileno(), selectors.EVENT_READ)
            selector.register(self._wake_read, selectors.EVENT_READ)
            connection.execute(f"LISTEN {CHANNEL}")
            # Notifications of registrations that committed before LISTEN are lost.
            self._registered()
            flushes = connection.info.server_version < _FLUSHES_MESSAGES
            flushed = None
            while not self._thread.stopping():
                for notice in connection.notifies(timeout=0):
                    self._handle(notice.payload)
                if flushes:
                    flushed = _flush(connection, flushed)
                selector.select(_FLUSH_INTERVAL if flushes else _LOOK_INTERVAL)

    def _handle(self, payload: str) -> None:
        if payload == RETAIN:
            self._retain()
            return
        if payload == RESYNC:
            self._inbox.put(TablesMarked())
            return
        try:
            self._inbox.put(FrontierWanted(parse_lsn(payload)))
        except ValueError:
            self._registered()


def _flush(connection: PgConnection, flushed_before: str | None) -> str | None:
    """Flushes WAL that was flushed up to the same position at the last look. Returns up to where it is flushed now."""
    row = connection.execute(_SQL["flush"], {"flushed_before": flushed_before}).fetchone()
    return None if row is None else str(row[0])
