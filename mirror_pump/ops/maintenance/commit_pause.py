"""Pauses the pump's publishes while Spark commits, since Spark would otherwise rarely succeed.

An Iceberg commit is optimistic: it reads the pointer, writes metadata, and swaps the pointer if it has not changed. The
slower writer starves. Spark takes some tenths of a second where the pump takes hundredths: with 20 publishes a second,
50 attempts of Spark failed.

So while Spark commits, the maintainer locks the slot's row, and publishes wait. They wait for at most half of the time:
for two seconds at first, and twice as long after each pause that was too short. The limit has to grow, because each
attempt reads all commits since the rewrite began, and takes longer the more there are. The pause ends as soon as the
table's pointer has changed. If this process dies, the server ends its session and thereby the pause.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from mirror_pump.errors import SourceError
from mirror_pump.lake.commit.catalog import load_pointer
from mirror_pump.model import TableName
from mirror_pump.service_thread import ServiceThread, ThreadedService
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.telemetry import get_logger
from sql import queries

_LOCK = queries("publish")["lock_slot"]

_POLL = 0.02
"""Seconds between two checks of Spark's jobs and of the pointer."""
_FIRST_PAUSE, _LONGEST_PAUSE = 2.0, 60.0
"""Maximum seconds of the first pause, and of any."""
_SET_TIMEOUT = "SELECT set_config('idle_in_transaction_session_timeout', %s, true)"
_GRACE = 3.0
"""Seconds after the maximum at which the server ends a pause that this process did not end."""


class CommitPause(ThreadedService):
    """Pauses publishes while Spark has finished its jobs and the procedure has not returned: Spark commits then. A
    context manager around one procedure that commits once to the table `lake_name` of the Iceberg catalog.

    `busy` tells whether Spark runs jobs. With `at_once` the procedure commits before its first job. `first_pause` is
    the maximum length of the first pause, in seconds.
    """

    def __init__(
        self,
        dsn: str,
        slot: str,
        lake_name: TableName,
        busy: Callable[[], bool],
        *,
        at_once: bool = False,
        first_pause: float = _FIRST_PAUSE,
    ) -> None:
        self._dsn = dsn
        self._slot = slot
        self._lake_name = lake_name
        self._busy = busy
        self._limit = first_pause
        self._jobs_done = at_once
        self._thread = ServiceThread("commit-pause", self._run)

    def _run(self) -> None:
        try:
            with connect(self._dsn, autocommit=True, application_name="mirror-pump-maintain") as connection:
                while not self._thread.stopping():
                    if self._busy():
                        self._jobs_done = True
                    elif self._jobs_done:
                        self._thread.pause(self._pause_publishes(connection))
                    self._thread.pause(_POLL)
        except SourceError as error:
            # Without the pause the commit may still succeed.
            get_logger("maintain").warning("no commit pause", error=str(error))

    def _pause_publishes(self, connection: PgConnection) -> float:
        """Pauses publishes while Spark commits. Returns the length of the pause in seconds. Raises SourceError."""
        with source_errors("holding publishes up for Spark's commit"), connection.transaction():
            connection.execute(_SET_TIMEOUT, (f"{self._limit + _GRACE:.0f}s",))
            connection.execute(_LOCK, {"slot": self._slot})
            began = time.monotonic()
            pointer = self._pointer(connection)
            while not self._thread.pause(_POLL) and not self._busy() and time.monotonic() - began < self._limit:
                if self._pointer(connection) != pointer:
                    self._thread.request_stop()
        held = time.monotonic() - began
        if held >= self._limit:
            self._limit = min(2 * self._limit, _LONGEST_PAUSE)
        return held

    def _pointer(self, connection: PgConnection) -> str | None:
        return load_pointer(connection, self._lake_name.schema, self._lake_name.name)
