"""Looks now and then at every file that tables, change feeds and kept moments need, for the alerts of `status`.

A file that no job reads would be missed by a reader only: old rows of a feed, say, or those of a moment. Files are
looked for and their lengths compared; no data file is read. Nothing fails because of what is found here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import groupby

from mirror_pump.errors import FileDamaged, FileMissing, LakeError, TableError
from mirror_pump.lake.commit.presence import has_any, wrong_files
from mirror_pump.lake.storage import directory_answers
from mirror_pump.pipeline.flow.session_context import SessionContext, SharedConnection, session_thread
from mirror_pump.pipeline.missing_files.damaged_files import NeededFiles, needed_files, record_wrong_files
from mirror_pump.pipeline.missing_files.missing_files import stored_tables
from mirror_pump.runtime.service_thread import ThreadedService
from mirror_pump.runtime.table_work import REPORT, work_for
from mirror_pump.settings.storage_profiles import warehouse_of

_FIRST = 0.1
"""The share of the interval after which a session begins its first round."""


class FileWatch(ThreadedService):
    """A thread that records the files which are lost or damaged."""

    def __init__(self, context: SessionContext, shared: SharedConnection) -> None:
        """`shared`: for short queries of this thread and others."""
        self._context = context
        self._shared = shared
        self._interval = context.settings.limits.file_watch_interval
        self._share = context.settings.limits.file_watch_share
        self._thread = session_thread("file watch", self._run, context.inbox)

    def _run(self) -> None:
        pause = self._interval * _FIRST
        while not self._thread.pause(pause):
            began = time.monotonic()
            for files in self._needed():
                looked = time.monotonic()
                self._look(files)
                if self._thread.pause((time.monotonic() - looked) / self._share):
                    return
            pause = max(0.0, self._interval - (time.monotonic() - began))

    def _needed(self) -> list[tuple[NeededFiles, ...]]:
        """By table, feed, and table of a moment, what its readers open."""
        with self._shared.use() as connection:
            rows = needed_files(connection, self._context.slot)
        return [tuple(group) for _, group in groupby(rows, key=lambda row: row.owner)]

    def _look(self, files: Sequence[NeededFiles]) -> None:
        try:
            with work_for(files[0].root, remedy=REPORT):
                wrong = self._wrong(files)
                if wrong:
                    # A commit may have replaced files meanwhile, or an end of the registration removed them.
                    again = next((now for now in self._needed() if now[0].owner == files[0].owner), ())
                    confirmed = self._wrong(again)
                    wrong = {location: error for location, error in confirmed.items() if location in wrong}
                if any(isinstance(error, FileMissing) for error in wrong.values()) and not self._answers(files[0]):
                    return
        except (LakeError, TableError):
            # The storage does not answer, which the loop reports when it commits. Or an error that no code expects,
            # which is logged: the other tables are looked at all the same.
            return
        with self._shared.use() as connection:
            record_wrong_files(connection, self._context.slot, files[0], wrong)

    def _wrong(self, files: Sequence[NeededFiles]) -> dict[str, FileMissing | FileDamaged]:
        """By location, what is lost or damaged. Raises LakeError."""
        return {
            error.location: error
            for needed in files
            for error in wrong_files(needed.metadata_location, self._context.storage)
        }

    def _answers(self, files: NeededFiles) -> bool:
        """Whether the warehouse is there: else everything in it would seem to be lost. Raises LakeError."""
        with self._shared.use() as connection:
            tables = stored_tables(connection)
        warehouse, storage = warehouse_of(files.root), self._context.storage
        if any(table.warehouse == warehouse and not table.failed for table in tables):
            return has_any(warehouse, tables, storage)
        return directory_answers(warehouse, storage)
