"""Wakes the pump when a client waits for the frontier, a table was registered, tables were marked to be copied again,
or partitions have to be checked again.

The channel is `mirror_pump`. The payload is the wanted frontier, `copy`, `resync` or `retain`.
"""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable

from mirror_pump.model import parse_lsn
from mirror_pump.pipeline.flow.events import FrontierWanted, TablesMarked
from mirror_pump.pipeline.flow.session_context import SessionContext
from mirror_pump.pipeline.flow.session_threads import session_thread
from mirror_pump.source.connect import PgConnection, source_errors

CHANNEL = "mirror_pump"
COPY = "copy"
"""The payload that tells the pump of a new registration, or of a stream that `init` has added."""
RETAIN = "retain"
"""The payload that asks the pump to retry the postponed steps of heap retention."""
RESYNC = "resync"
"""The payload that tells the pump that tables were marked to be copied again."""

_LOOK_INTERVAL = 5.0
"""Seconds between checks for notifications that libpq has buffered without the socket becoming readable. Other
notifications and a stop request wake the thread at once."""


def notify_pump(connection: PgConnection, payload: str) -> None:
    """Wakes the pump, once the connection's transaction is committed. Raises psycopg.Error.

    `payload`: the wanted frontier as a WAL position in Postgres's notation, or COPY, RESYNC or RETAIN.
    """
    connection.execute("SELECT pg_notify(%s, %s)", (CHANNEL, payload))


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
            while not self._thread.stopping():
                for notice in connection.notifies(timeout=0):
                    self._handle(notice.payload)
                selector.select(_LOOK_INTERVAL)

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
