"""Runs tasks in threads of this process, so that small work can be done before Spark has started."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


class LocalTaskRunner:
    """A TaskRunner (see runner.py, which is not imported here since that would load pyspark)."""

    def __init__(self, workers: int) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="task")

    def submit(self, function: Callable[[Task], Result], task: Task) -> Future[Result]:
        return self._pool.submit(function, task)

    def close(self) -> None:
        """Waits for running tasks and ends the threads."""
        self._pool.shutdown(cancel_futures=True)
