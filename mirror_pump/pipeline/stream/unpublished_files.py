"""Tracks files that tasks wrote and no publish refers to yet, and removes them if that publish never comes.

Otherwise the files would stay until a sweep, hours later. On full storage they would take the space that the next
attempt needs, and the pump could never recover by itself. So the code that gives up an attempt removes its files.

Invariant: a file is removed only if no publish that may have landed names it. Segments count as abandoned until the
loop hands them to a publish (`hand_over`). From then on they belong to that publish, which removes them only if it
certainly did not happen (`PublishRequest.files`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial

from mirror_pump.engine.ingest.segment_tasks import SegmentResult
from mirror_pump.lake.storage import StorageOptions, discard


class UnpublishedFiles:
    """The segments of one session that no publish has taken over. Thread-safe."""

    def __init__(self, storage: StorageOptions) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._waiting: set[Future[SegmentResult]] = set()

    def add(self, result: Future[SegmentResult]) -> None:
        """A segment was given to a task."""
        with self._lock:
            self._waiting.add(result)

    def hand_over(self, results: Iterable[Future[SegmentResult]]) -> None:
        """A publish is about to refer to the files of these segments."""
        with self._lock:
            self._waiting.difference_update(results)

    def remove(self) -> None:
        """End of the session: cancel tasks that have not begun, and remove files already or still being written."""
        with self._lock:
            waiting, self._waiting = self._waiting, set()
        for result in waiting:
            if not result.cancel():
                result.add_done_callback(partial(_remove, self._storage))


def _remove(storage: StorageOptions, result: Future[SegmentResult]) -> None:
    # A failed task has removed its own files.
    if not result.cancelled() and result.exception() is None:
        discard(
            [file.path for table in result.result().tables for file in table.written],
            storage,
        )
