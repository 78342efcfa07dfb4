"""Services of a leading pump that look at the catalog every few seconds, and do what they find to be due."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from mirror_pump.errors import MirrorPumpError
from mirror_pump.runtime.service_thread import ServiceThread, ThreadedService
from mirror_pump.runtime.telemetry import get_logger
from mirror_pump.settings.config import Settings
from mirror_pump.source.connect import PgConnection, connect

_LOOK_INTERVAL = 2.0
"""Seconds between two looks."""
_SHARE = 0.01
"""The largest share of time spent looking: with very many tables the pauses get longer. What is done does not count."""

_Due = TypeVar("_Due")
"""What a look finds to be due."""


class CatalogPoll(ThreadedService, ABC, Generic[_Due]):
    """A thread with a connection of its own. Enter it to start, leave it to stop. After a MirrorPumpError of `_due` or
    `_do` it goes on with a new connection; after any other error too, as every ServiceThread."""

    def __init__(self, settings: Settings, name: str) -> None:
        """`name`: of the thread, and of its sessions."""
        self._settings = settings
        self._name = name
        self._thread = ServiceThread(name, self._run)
        self._log = get_logger(name)

    @abstractmethod
    def _due(self, connection: PgConnection) -> Sequence[_Due]:
        """Looks once."""

    @abstractmethod
    def _do(self, connection: PgConnection, due: _Due) -> None:
        """Does one of these things."""

    def _run(self) -> None:
        while self._thread.next_round():
            try:
                with connect(
                    self._settings.require_dsn(), autocommit=True, application_name=f"mirror-pump-{self._name}"
                ) as connection:
                    while self._thread.next_round():
                        began = time.monotonic()
                        due_now = self._due(connection)
                        looking = time.monotonic() - began
                        for due in due_now:
                            if not self._thread.stopping():
                                self._do(connection, due)
                        self._thread.await_wake(max(_LOOK_INTERVAL, looking / _SHARE))
            except MirrorPumpError as error:
                # The pump itself waits for a server that is away, and tells.
                self._log.debug("could not look at the catalog", error=str(error))
                self._thread.await_wake(_LOOK_INTERVAL)
