"""Workers of the pool in this process: they do its tasks until Spark's are there."""

from __future__ import annotations

import threading
from contextlib import suppress
from queue import Empty, SimpleQueue

from mirror_pump.engine.spark_runtime.resident.task_pool import TaskPool, Work
from mirror_pump.engine.spark_runtime.task_errors import failed_in_driver
from mirror_pump.errors import MirrorPumpError

_IDLE = 1.0
"""Seconds without a task after which a thread ends."""


class _DriverWorker:
    def __init__(self) -> None:
        self.assigned: SimpleQueue[Work | None] = SimpleQueue()

    def assign(self, work: Work) -> None:
        self.assigned.put(work)


class DriverWorkers:
    """Threads, each of which does a task at a time."""

    def __init__(self, pool: TaskPool) -> None:
        self._pool = pool
        self._ending = threading.Event()
        self._workers: dict[_DriverWorker, threading.Thread] = {}

    def start(self) -> None:
        """Starts one, for which the pool waits."""
        worker = _DriverWorker()
        thread = threading.Thread(target=self._work, args=(worker,), name="driver-task", daemon=True)
        self._workers[worker] = thread
        thread.start()

    def end(self) -> None:
        """They finish their tasks, and take no more."""
        self._ending.set()
        for worker in [*self._workers]:
            if self._pool.dismiss(worker, keep=0):
                worker.assigned.put(None)

    def wait(self) -> None:
        """Waits for the threads, after `end`."""
        for thread in [*self._workers.values()]:
            thread.join()

    def _work(self, worker: _DriverWorker) -> None:
        if self._ending.is_set():
            self._pool.not_started(None)
            return
        self._pool.joined(worker)
        while (work := self._next(worker)) is not None:
            _do(work)
            del work
            if self._ending.is_set():
                self._pool.left(worker)
                break
            self._pool.done(worker)
        self._workers.pop(worker, None)

    def _next(self, worker: _DriverWorker) -> Work | None:
        while True:
            with suppress(Empty):
                return worker.assigned.get(timeout=_IDLE)
            if self._pool.dismiss(worker, keep=0):
                return None


def _do(work: Work) -> None:
    """Completes the future. The errors are those of a task of Spark."""
    try:
        result = work.function(work.task)
    except MirrorPumpError as error:
        work.future.set_exception(error)
    except Exception as error:  # noqa: BLE001 (the thread that waits for the task gets it)
        failed = failed_in_driver(work.name, error)
        failed.__cause__ = error
        work.future.set_exception(failed)
    else:
        work.future.set_result(result)
