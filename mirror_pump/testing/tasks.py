"""Task runners without Spark, for tests that need many pumps. They run the same functions in threads."""

from __future__ import annotations

import pickle
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from mirror_pump.engine.comparison.digests import digest_heap
from mirror_pump.engine.ingest.chunk_copy import copy_chunk
from mirror_pump.engine.spark_runtime.runner import TaskRunner
from mirror_pump.errors import LakeError

Task = TypeVar("Task")
Result = TypeVar("Result")


class ThreadTaskRunner:
    """Runs tasks in threads. Pickles tasks and results, as on their way to a Spark worker and back."""

    def __init__(self, workers: int = 2) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="task")

    def submit(self, function: Callable[[Task], Result], task: Task) -> Future[Result]:
        """Like TaskRunner.submit."""
        return self._pool.submit(_run, pickle.dumps((function, task)))

    def close(self) -> None:
        """Waits for running tasks and ends the threads."""
        self._pool.shutdown(cancel_futures=True)


class GatedCopies:
    """A runner that holds back tasks of some functions, by default those of copies, until a test releases them.
    All other tasks run at once.

    A test may also have it fail tasks after their work is done, which leaves files that nothing refers to.
    """

    def __init__(self, runner: TaskRunner, gated: Callable[..., Any] | None = None) -> None:
        self._runner = runner
        self._gated = (copy_chunk, digest_heap) if gated is None else (gated,)
        self._lock = threading.Lock()
        self._open = True
        self._waiting: deque[tuple[Future[Any], Callable[..., Any], Any]] = deque()
        self._failing = 0

    def submit(self, function: Callable[[Task], Result], task: Task) -> Future[Result]:
        """Like TaskRunner.submit."""
        with self._lock:
            if self._failing:
                self._failing -= 1
                failed: Future[Result] = Future()
                self._runner.submit(function, task).add_done_callback(partial(_fail, failed))
                return failed
            if self._open or function not in self._gated:
                return self._runner.submit(function, task)
            future: Future[Result] = Future()
            self._waiting.append((future, function, task))
            return future

    @property
    def waiting(self) -> int:
        """Number of tasks held back, without those that were cancelled."""
        with self._lock:
            self._forget_cancelled()
            return len(self._waiting)

    def hold(self) -> None:
        """Holds back copies from now on."""
        with self._lock:
            self._open = False

    def fail(self, count: int) -> None:
        """Lets the next `count` tasks, of any function, do their work and then fail with a LakeError."""
        with self._lock:
            self._failing = count

    def let_go(self, count: int | None = None) -> None:
        """Starts `count` of the tasks held back, oldest first; with None, all of them and all later ones."""
        with self._lock:
            self._open = self._open or count is None
            self._forget_cancelled()
            number = len(self._waiting) if count is None else min(count, len(self._waiting))
            started = [self._waiting.popleft() for _ in range(number)]
        for future, function, task in started:
            # Like a task of a pool that has begun, it cannot be cancelled from here on.
            if not future.set_running_or_notify_cancel():
                continue
            self._runner.submit(function, task).add_done_callback(partial(_pass_on, future))

    def _forget_cancelled(self) -> None:
        self._waiting = deque(waiting for waiting in self._waiting if not waiting[0].cancelled())


def _fail(future: Future[Any], _done: Future[Any]) -> None:
    future.set_exception(LakeError("planted: the storage went away"))


def _pass_on(future: Future[Any], done: Future[Any]) -> None:
    error = done.exception()
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(done.result())


def _run(pickled: bytes) -> Result:  # type: ignore[type-var]  # the pickle says what it holds
    function, task = pickle.loads(pickled)  # noqa: S301 - pickled by this class itself
    result: Result = pickle.loads(pickle.dumps(function(task)))  # noqa: S301 - as above
    return result
