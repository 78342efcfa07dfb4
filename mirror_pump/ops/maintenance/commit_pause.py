"""Room for Spark's commits beside a pump that never rests.

Iceberg's commits are optimistic: read the pointer, write metadata, swap the pointer if nobody else did. Whoever is
slower starves, and Spark takes some tenths of a second for what the pump does in hundredths: beside 20 commits a
second it did not get through with 50 tries. So while Spark commits, the slot's row is held, which makes publishes
wait, for half of the time at most: two seconds at first, and twice as long after each try that this was not enough
for. Spark looks at every commit since its rewrite began whenever it tries, so that a try takes the longer the more of
them there are; a fixed limit would be one that a long rewrite never gets below. The table's pointer tells when the
commit is through: what Spark does after that needs no room. The server ends the session, and with it the wait, should
this process be stopped in the middle.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from mirror_pump.errors import SourceError
from mirror_pump.lake.commit.catalog import load_pointer
from mirror_pump.model import TableName
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.telemetry import get_logger
from sql import queries

_LOCK = queries("publish")["lock_slot"]

_POLL = 0.02
"""Seconds between looks at what Spark does."""
_FIRST, _LONGEST = 2.0, 60.0
"""Seconds that a publish is made to wait at most: for the first try, and ever."""
_LIMIT = "SELECT set_config('idle_in_transaction_session_timeout', %s, true)"
_GRACE = 3.0
"""Seconds beyond these after which the server ends a window that this process does not."""


class CommitPause:
    """Holds publishes up whenever Spark has finished its jobs and not yet returned: then it commits. A context manager
    around one procedure, which commits once, on this table of the Iceberg catalog.

    `busy` says whether Spark runs jobs. With `at_once` the procedure commits before its first job. `first` are the
    seconds of the first wait.
    """

    def __init__(
        self,
        dsn: str,
        slot: str,
        lake_name: TableName,
        busy: Callable[[], bool],
        *,
        at_once: bool = False,
        first: float = _FIRST,
    ) -> None:
        self._dsn = dsn
        self._slot = slot
        self._lake_name = lake_name
        self._busy = busy
        self._longest = first
        self._computed = at_once
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="commit-window", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with connect(self._dsn, autocommit=True, application_name="mirror-pump-maintain") as connection:
                while not self._stopping.is_set():
                    if self._busy():
                        self._computed = True
                    elif self._computed:
                        self._stopping.wait(self._hold(connection))
                    self._stopping.wait(_POLL)
        except SourceError as error:
            # Without the window the commit may still get through.
            get_logger("maintain").warning("no commit window", error=str(error))

    def _hold(self, connection: PgConnection) -> float:
        """Keeps publishes waiting while Spark commits; returns the seconds for which."""
        with source_errors("holding publishes up for Spark's commit"), connection.transaction():
            connection.execute(_LIMIT, (f"{self._longest + _GRACE:.0f}s",))
            connection.execute(_LOCK, {"slot": self._slot})
            began = time.monotonic()
            pointer = self._pointer(connection)
            while not self._stopping.wait(_POLL) and not self._busy() and time.monotonic() - began < self._longest:
                if self._pointer(connection) != pointer:
                    self._stopping.set()
        held = time.monotonic() - began
        if held >= self._longest:
            self._longest = min(2 * self._longest, _LONGEST)
        return held

    def _pointer(self, connection: PgConnection) -> str | None:
        return load_pointer(connection, self._lake_name.schema, self._lake_name.name)
