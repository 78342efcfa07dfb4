"""Wakes the pump: somebody waits for F, or a table was registered. Channel `mirror_pump`; F travels as the payload."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from mirror_pump.errors import MirrorPumpError
from mirror_pump.model import parse_lsn
from mirror_pump.pipeline.work import FrontierWanted, ThreadFailed, Work
from mirror_pump.source.connect import PgConnection, source_errors

CHANNEL = "mirror_pump"
"""NOTIFY payloads: a WAL position in Postgres's notation that F is wanted at, or `copy` for a new registration."""

_LOOK_INTERVAL = 0.5
"""Seconds until the thread notices that it has to end."""


class Listener:
    """A thread on a connection of its own that LISTENs."""

    def __init__(
        self, connect: Callable[[], PgConnection], inbox: SimpleQueue[Work], registered: Callable[[], None]
    ) -> None:
        self._connect = connect
        self._inbox = inbox
        self._registered = registered
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="listener", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with source_errors("listening for waiters"), self._connect() as connection:
                connection.execute(f"LISTEN {CHANNEL}")
                # Registrations that committed before we listened.
                self._registered()
                while not self._stopping.is_set():
                    for notice in connection.notifies(timeout=_LOOK_INTERVAL):
                        self._take(notice.payload)
        except MirrorPumpError as error:
            self._inbox.put(ThreadFailed(error))

    def _take(self, payload: str) -> None:
        try:
            self._inbox.put(FrontierWanted(parse_lsn(payload)))
        except ValueError:
            self._registered()
