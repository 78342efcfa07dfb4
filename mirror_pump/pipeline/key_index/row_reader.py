"""Hashes the rows of tables without a key in the background, so that the loop finds rows without reading files.

What a batch waits for comes first. Then come the files that later deletes may need: those of tables that have had
deletes, when a session begins, and after each commit that brings much.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue

from mirror_pump.engine.comparison.whole_rows import HashedFile, HashTask, RowDemand, hash_files
from mirror_pump.errors import ForeignTable, LakeError, TableError, TaskFailed
from mirror_pump.lake.contents.file_listing import LiveFile
from mirror_pump.lake.key_index.row_ranges import RowRanges
from mirror_pump.pipeline.flow.events import RowsRead
from mirror_pump.pipeline.flow.session_context import SessionContext, session_thread
from mirror_pump.pipeline.flow.tasks import Tasks
from mirror_pump.pipeline.key_index.row_hashes import RowHashes, file_key
from mirror_pump.pipeline.key_index.whole_rows import NO_POSITIONS, RowListings, RowReading, read_live_rows
from mirror_pump.runtime.service_thread import ThreadedService
from mirror_pump.runtime.table_work import work_for

_TASK_ROWS = 1_000_000
"""Number of rows that one task hashes, unless a file has more. The hashes take 24 MB."""
_TASK_FILES = 200
"""Maximum number of files that one task reads."""
_SHARE = 4
"""What no batch waits for takes one part in this many of the tasks."""


class RowReader(ThreadedService):
    """A thread that reads for one request after the other. One that a batch waits for is answered by RowsRead, whatever
    came of it: what was not read, the loop reads itself, and meets the same error. Requests that are unfinished when it
    stops get no answer."""

    def __init__(self, context: SessionContext, hashes: RowHashes, workers: int) -> None:
        """`workers`: number of concurrent tasks while a batch waits for them; else a quarter of it."""
        self._storage = context.storage
        self._hashes = hashes
        self._inbox = context.inbox
        self._workers = workers
        self._report_file = context.report_file
        self._requests: SimpleQueue[RowReading | None] = SimpleQueue()
        self._later: deque[RowReading] = deque()
        """Requests that no batch waits for."""
        self._listings = RowListings(context.storage)
        self._thread = session_thread(
            "row reader",
            self._run,
            context.inbox,
            interrupt=lambda: self._requests.put(None),
            # A batch waits for the request that it had taken.
            restarts=False,
        )
        self._tasks = Tasks(context.runner, self._thread.stopping)

    def submit(self, reading: RowReading) -> None:
        """Queue a request. A batch waits for those that have rows to find."""
        self._requests.put(reading)

    def _run(self) -> None:
        while not self._thread.stopping():
            self._take_requests(block=not self._later)
            if self._later and not self._thread.stopping():
                self._read(self._later.popleft())

    def _take_requests(self, *, block: bool) -> None:
        """Reads what batches wait for, and keeps other requests for later."""
        try:
            while (reading := self._requests.get(block=block)) is not None and not self._thread.stopping():
                block = False
                if reading.rows is not None:
                    self._read(reading)
                    self._inbox.put(RowsRead(reading))
                else:
                    # The latest state of the table counts.
                    self._later = deque(
                        other for other in self._later if other.table.table_id != reading.table.table_id
                    )
                    self._later.append(reading)
        except Empty:
            return

    def _read(self, reading: RowReading) -> None:
        try:
            with work_for(reading.table):
                self._hash(reading)
        except (LakeError, TaskFailed, ForeignTable, TableError) as error:
            self._report_file(reading.table.table_id, error)

    def _hash(self, reading: RowReading) -> None:
        """Reads files, newest first, until all rows are found, or all files are read, or hashes have no room."""
        listing = self._listings.of(reading.table.table_id, reading.base)
        data, hidden = read_live_rows(reading.table.table_id, reading.base, listing, self._hashes, self._storage)
        demand = None
        if reading.rows is not None:
            demand = RowDemand(reading.rows, self._hashes.secret)
            ranges = RowRanges(reading.rows)
            data = [file for file in data if ranges.may_be_in(file)]
        for files in self._hashed(data[::-1], reading):
            for path, rows in files:
                complete = self._hashes.put(file_key(path, reading.schema), rows)
                if demand is not None:
                    demand.take_from(rows, hidden.get(path, NO_POSITIONS))
                elif not complete:
                    return
            if demand is None:
                self._take_requests(block=False)
            elif not demand.missing:
                return

    def _hashed(self, files: Sequence[LiveFile], reading: RowReading) -> Iterator[list[tuple[str, HashedFile]]]:
        """The hashes of the files, in order: some at a time, while further ones are read."""
        running: deque[tuple[list[str], Future[list[HashedFile]]]] = deque()
        workers = self._workers if reading.rows is not None else max(self._workers // _SHARE, 1)
        try:
            for group in _groups(files):
                hashed = [(path, rows) for path in group if (rows := self._hashes.get(file_key(path, reading.schema)))]
                unread = [path for path in group if path not in dict(hashed)]
                if hashed:
                    yield hashed
                if unread:
                    running.append((unread, self._submit(unread, reading)))
                if len(running) >= workers:
                    yield self._next(running)
            while running:
                yield self._next(running)
        finally:
            for _, future in running:
                future.cancel()

    def _submit(self, paths: Sequence[str], reading: RowReading) -> Future[list[HashedFile]]:
        urgent = reading.rows is not None
        task = HashTask(tuple(paths), reading.schema, reading.initial, self._storage, self._hashes.secret, urgent)
        return self._tasks.runner.submit(hash_files, task)

    def _next(self, running: deque[tuple[list[str], Future[list[HashedFile]]]]) -> list[tuple[str, HashedFile]]:
        paths, future = running.popleft()
        hashed: list[HashedFile] = self._tasks.result(future)
        return list(zip(paths, hashed, strict=True))


def _groups(files: Sequence[LiveFile]) -> Iterator[list[str]]:
    group: list[str] = []
    rows = 0
    for file in files:
        if group and (rows + file.records > _TASK_ROWS or len(group) >= _TASK_FILES):
            yield group
            group, rows = [], 0
        group.append(file.path)
        rows += file.records
    if group:
        yield group
