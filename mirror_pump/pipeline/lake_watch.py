"""Looks now and then whether the tables' metadata files are there: a table without changes has no commit that would."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from mirror_pump.errors import LakeError
from mirror_pump.lake.presence import StoredTable
from mirror_pump.lake.storage import StorageOptions, local_path, missing_files
from mirror_pump.pipeline.flow.events import Event, LakeFileMissing
from mirror_pump.pipeline.flow.thread_end import reporting
from mirror_pump.pipeline.missing_files import stored_tables
from mirror_pump.source.connect import PgConnection

_LOCAL_INTERVAL = 5.0
"""Seconds between two looks at files on local disks: microseconds each."""
_REMOTE_INTERVAL = 60.0
"""Seconds between two looks at objects: each is a request."""


class LakeWatch:
    """A thread. What it misses it reports to the loop, which looks again, and knows what it means."""

    def __init__(self, connect: Callable[[], PgConnection], inbox: SimpleQueue[Event], storage: StorageOptions) -> None:
        self._connect = connect
        self._inbox = inbox
        self._storage = storage
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lake watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        with reporting(self._inbox), self._connect() as connection:
            while not self._stopping.is_set():
                tables = stored_tables(connection)
                self._look(tables)
                local = all(local_path(table.location) is not None for table in tables)
                self._stopping.wait(_LOCAL_INTERVAL if local else _REMOTE_INTERVAL)

    def _look(self, tables: list[StoredTable]) -> None:
        named = {location: one for one in tables if not one.failed for location in one.metadata_files}
        try:
            missing = missing_files(named, self._storage)
        except LakeError:
            # The next commit meets the same error, and it is the loop's to report.
            return
        for location in missing:
            self._inbox.put(LakeFileMissing(named[location].table_id, location))
