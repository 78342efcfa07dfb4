"""Wakes the pump: somebody waits for F, a table was registered, or old partitions are to be looked at again.

Channel `mirror_pump`; F travels as the payload.
"""

from __future__ import annotations

import os
import selectors
import threading
from collections.abc import Callable
from queue import SimpleQueue

from mirror_pump.model import parse_lsn
from mirror_pump.pipeline.flow.events import Event, FrontierWanted
from mirror_pump.pipeline.flow.thread_end import reporting
from mirror_pump.source.connect import PgConnection, source_errors

CHANNEL = "mirror_pump"
"""NOTIFY payloads: a WAL position in Postgres's notation that F is wanted at, `copy` for a new registration, or
RETAIN."""
RETAIN = "retain"
"""Steps of heap retention that were put off are to be tried again."""

_LOOK_INTERVAL = 5.0
"""Seconds between looks at what libpq may have without the socket's saying so. Notices and the stop wake the thread."""


class Listener:
    """A thread on a connection of its own that LISTENs."""

    def __init__(
        self,
        connect: Callable[[], PgConnection],
        inbox: SimpleQueue[Event],
        registered: Callable[[], None],
        retain: Callable[[], None],
    ) -> None:
        self._connect = connect
        self._inbox = inbox
        self._registered = registered
        self._retain = retain
        self._stopping = threading.Event()
        self._wake_read = self._wake_write = -1
        self._thread = threading.Thread(target=self._run, name="listener", daemon=True)

    def start(self) -> None:
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Not twice."""
        self._stopping.set()
        os.write(self._wake_write, b"w")
        self._thread.join()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _run(self) -> None:
        with (
            reporting(self._inbox),
            source_errors("listening for waiters"),
            self._connect() as connection,
            selectors.DefaultSelector() as selector,
        ):
            selector.register(connection.fileno(), selectors.EVENT_READ)
            selector.register(self._wake_read, selectors.EVENT_READ)
            connection.execute(f"LISTEN {CHANNEL}")
            # Registrations that committed before we listened.
            self._registered()
            while not self._stopping.is_set():
                for notice in connection.notifies(timeout=0):
                    self._take(notice.payload)
                selector.select(_LOOK_INTERVAL)

    def _take(self, payload: str) -> None:
        if payload == RETAIN:
            self._retain()
            return
        try:
            self._inbox.put(FrontierWanted(parse_lsn(payload)))
        except ValueError:
            self._registered()
