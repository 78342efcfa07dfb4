"""Checks regularly that the tables' metadata files exist, because a table without changes has no commit that would
notice."""

from __future__ import annotations

from mirror_pump.errors import LakeError
from mirror_pump.lake.commit.presence import StoredTable
from mirror_pump.lake.storage import local_path, missing_files
from mirror_pump.pipeline.flow.events import LakeFileMissing
from mirror_pump.pipeline.flow.session_context import SessionContext
from mirror_pump.pipeline.flow.session_threads import session_thread
from mirror_pump.pipeline.flow.shared_connection import SharedConnection
from mirror_pump.pipeline.missing_files.missing_files import stored_tables


class LakeWatch:
    """A thread that reports missing files to the loop. The loop checks again and decides what the loss means."""

    def __init__(self, context: SessionContext, shared: SharedConnection) -> None:
        """`shared`: for short queries of this thread and others."""
        self._context = context
        self._shared = shared
        self._inbox = context.inbox
        self._thread = session_thread("lake watch", self._run, context.inbox)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._thread.stop()

    def _run(self) -> None:
        limits = self._context.settings.limits
        while self._thread.next_round():
            with self._shared.use() as connection:
                tables = stored_tables(connection)
            self._look(tables)
            local = all(local_path(table.location) is not None for table in tables)
            self._thread.await_wake(limits.lake_watch_interval if local else limits.lake_watch_interval_remote)

    def _look(self, tables: list[StoredTable]) -> None:
        named = {location: table for table in tables if not table.failed for location in table.metadata_files}
        try:
            missing = missing_files(named, self._context.storage)
        except LakeError:
            # The storage does not answer. The loop reports this error when it commits.
            return
        for location in missing:
            self._inbox.put(LakeFileMissing(named[location].table_id, location))
