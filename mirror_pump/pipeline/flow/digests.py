"""Digests a heap and the files that are to hold its rows, side by side.

Both sides' tasks are in one queue, in turn, so that no core waits for the end of one of them: a task of the heap waits
for the server at times, and keeps a session of it busy, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from mirror_pump.engine.comparison.digests import (
    ComparisonParameters,
    Digest,
    DigestTotal,
    FilesTask,
    HeapTask,
    digest_files,
    digest_heap,
)
from mirror_pump.engine.comparison.live_rows import TierRange
from mirror_pump.engine.ingest.chunk_copy import ChunkTask
from mirror_pump.lake.key_index.packed_keys import PackedKeys
from mirror_pump.pipeline.flow.session_context import ThreadStopped
from mirror_pump.pipeline.flow.tasks import Tasks

LOCKED_PAUSE = 0.5
"""Seconds until chunks are tried again whose heap is locked."""

_Task = HeapTask | FilesTask


class Digests:
    """The digests of a heap's chunks and of data files."""

    def __init__(
        self,
        comparing: ComparisonParameters,
        chunks: Sequence[ChunkTask],
        files: Sequence[TierRange],
        tasks: Tasks,
        in_flight: int,
        before_each: Callable[[], None],
        spend: Callable[[int], None] = lambda _: None,
        pause: Callable[[float], bool] = lambda _: True,
    ) -> None:
        """`in_flight`: number of tasks that run at a time. `before_each` is called before each task, `spend` with the
        bytes that each has read from the heap. `pause` waits some seconds, and returns whether the thread is to stop:
        needed for chunks without an exported snapshot, whose heap may be locked."""
        self._comparing = comparing
        self._chunks = chunks
        self._files = files
        self._tasks = tasks
        self._in_flight = in_flight
        self._before_each = before_each
        self._spend = spend
        self._pause = pause

    def both(self, buckets: frozenset[int] | None = None) -> tuple[Digest, Digest]:
        """Digests of heap and lake: sums of all rows, or the rows of these `buckets`. Raises the errors of the tasks,
        and ThreadStopped."""
        comparing = replace(self._comparing, returned_buckets=buckets)
        heap: list[_Task] = [HeapTask(chunk, comparing) for chunk in self._chunks]
        return self._digested(_in_turn(heap, [FilesTask(chosen, comparing) for chosen in self._files]), comparing)

    def heap(self, buckets: frozenset[int]) -> Digest:
        """The rows of the heap in these buckets. Raises as `both`."""
        comparing = replace(self._comparing, returned_buckets=buckets)
        return self._digested([HeapTask(chunk, comparing) for chunk in self._chunks], comparing)[0]

    def lake(self, buckets: frozenset[int], among: PackedKeys) -> Digest:
        """The rows of the files in these buckets that have these keys. Raises as `both`."""
        comparing = replace(self._comparing, returned_buckets=buckets, among=among)
        return self._digested([FilesTask(chosen, comparing) for chosen in self._files], comparing)[1]

    def hashed_heap(self, first_bucket: int) -> Iterator[Digest]:
        """Digests of parts of the heap, with the hashes of rows from a bucket on. Raises as `both`."""
        comparing = replace(self._comparing, hashed_from=first_bucket)
        return (digest for _, digest in self._results([HeapTask(chunk, comparing) for chunk in self._chunks]))

    def hashed_lake(self, first_bucket: int) -> Iterator[Digest]:
        """The same of the files. Raises as `both`."""
        comparing = replace(self._comparing, hashed_from=first_bucket)
        return (digest for _, digest in self._results([FilesTask(chosen, comparing) for chosen in self._files]))

    def _digested(self, tasks: Sequence[_Task], comparing: ComparisonParameters) -> tuple[Digest, Digest]:
        heap, lake = DigestTotal(comparing), DigestTotal(comparing)
        for task, digest in self._results(tasks):
            (heap if isinstance(task, HeapTask) else lake).add(digest)
        return heap.digest(), lake.digest()

    def _results(self, tasks: Sequence[_Task]) -> Iterator[tuple[_Task, Digest]]:
        while tasks:
            locked: list[_Task] = []
            calls: Iterator[tuple[Callable[[Any], Digest | None], Any]] = (
                (digest_heap if isinstance(task, HeapTask) else digest_files, task) for task in tasks
            )
            for task, digest in self._tasks.as_done(calls, self._in_flight, self._before_each):
                if digest is None:
                    locked.append(task)
                else:
                    self._spend(digest.bytes_read)
                    yield task, digest
            if locked and self._pause(LOCKED_PAUSE):
                raise ThreadStopped
            tasks = locked


def _in_turn(some: Sequence[_Task], others: Sequence[_Task]) -> list[_Task]:
    """Both sequences as one, in which each is spread evenly."""
    placed = [((place + 0.5) / len(tasks), task) for tasks in (some, others) for place, task in enumerate(tasks)]
    return [task for _, task in sorted(placed, key=lambda pair: pair[0])]
