"""Receives what commands tell the pump by its channel (mirror_pump.source.catalog.pump_channel)."""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable

from mirror_pump.model import parse_lsn
from mirror_pump.pipeline.flow.events import FrontierWanted, TablesMarked
from mirror_pump.pipeline.flow.session_context import SessionContext, session_thread
from mirror_pump.source.catalog.pump_channel import CHANNEL, RESYNC, RETAIN
from mirror_pump.source.connect import source_errors

_LOOK_INTERVAL = 5.0
"""Seconds between checks for notifications that libpq has buffered without the socket becoming readable. Other
notifications and a stop request wake the thread at once."""


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
