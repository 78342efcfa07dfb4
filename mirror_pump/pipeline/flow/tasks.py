"""The tasks that a thread of a session runs: waiting for their results, and removing the files of abandoned ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import psycopg

from mirror_pump.errors import MirrorPumpError
from mirror_pump.lake.format.data_files import WrittenFile
from mirror_pump.lake.storage import StorageOptions, discard
from mirror_pump.partition_life import StepResult
from mirror_pump.pipeline.flow.events import PublishWanted
from mirror_pump.pipeline.flow.session_context import SessionContext, ThreadStopped

if TYPE_CHECKING:
    # Importing it would load pyspark.
    from mirror_pump.engine.spark_runtime.runner import TaskRunner

Result = TypeVar("Result")

_POLL = 0.25
"""Seconds between checks of the stop request while waiting for something."""


def outcome(future: Future[Result], stopping: Callable[[], bool]) -> Result:
    """Returns the future's result. Raises the future's error, and ThreadStopped if the pump is to stop before it is
    done."""
    while not stopping():
        try:
            return future.result(timeout=_POLL)
        except FutureTimeout:
            # The task's own error, or its result, which arrived just now.
            if future.done():
                return future.result()
    raise ThreadStopped


def publish_outcome(context: SessionContext, request: PublishWanted, stopping: Callable[[], bool]) -> StepResult:
    """Has the loop publish, and returns what came of it. Raises ThreadStopped if the session ends for some reason: the
    catalog records whether it was published."""
    context.inbox.put(request)
    try:
        return outcome(request.answer, stopping)
    except (CancelledError, MirrorPumpError, psycopg.Error):
        raise ThreadStopped from None


class Tasks:
    """Runs functions as tasks and waits for them until the pump is to stop."""

    def __init__(self, runner: TaskRunner, stopping: Callable[[], bool]) -> None:
        self.runner = runner
        self.stopping = stopping

    def result(self, future: Future[Result]) -> Result:
        """Returns the task's result. Raises the task's error, and ThreadStopped."""
        return outcome(future, self.stopping)

    def as_done(
        self,
        calls: Iterable[tuple[Callable[[Any], Result], Any]],
        in_flight: int,
        before_each: Callable[[], None] = lambda: None,
    ) -> Iterator[tuple[Any, Result]]:
        """Begins these functions for their tasks, with at most `in_flight` of them at work at a time, and yields each
        task and its result as they are done: there may be more results than fit into memory. `before_each` is called
        before each begins. Raises the error of a task, and ThreadStopped."""
        running: dict[Future[Result], Any] = {}
        for function, task in calls:
            while len(running) >= in_flight:
                for done in self.first_done(running):
                    yield running.pop(done), done.result()
            before_each()
            running[self.begin(function, task)] = task
        while running:
            for done in self.first_done(running):
                yield running.pop(done), done.result()

    def begin(self, function: Callable[[Any], Result], task: Any) -> Future[Result]:
        """Submits the task to the runner."""
        return self.runner.submit(function, task)

    def first_done(self, running: Collection[Future[Result]]) -> set[Future[Result]]:
        """Returns those that are done, as soon as one is. Raises the error of one of them, and ThreadStopped."""
        while not self.stopping():
            done, _ = wait(running, _POLL, FIRST_COMPLETED)
            if done:
                for future in done:
                    future.result()
                return done
        raise ThreadStopped


class RewrittenFiles(Protocol):
    """The result of a task that writes files."""

    @property
    def written(self) -> tuple[WrittenFile, ...]: ...


class FileTasks(Tasks):
    """The tasks of one computation. It owns their files until it hands them on."""

    def __init__(self, runner: TaskRunner, stopping: Callable[[], bool]) -> None:
        super().__init__(runner, stopping)
        self._begun: list[Future[Any]] = []

    def begin(self, function: Callable[[Any], Result], task: Any) -> Future[Result]:
        """Submits the task, whose result is `RewrittenFiles`, to the runner."""
        begun = super().begin(function, task)
        self._begun.append(begun)
        return begun

    def abandon(self, storage: StorageOptions) -> None:
        """Abandons the computation: cancels tasks that have not begun, and removes the files that were written or still
        will be."""
        for begun in self._begun:
            if not begun.cancel():
                begun.add_done_callback(partial(_remove, storage))


def _remove(storage: StorageOptions, begun: Future[RewrittenFiles]) -> None:
    # A failed task has removed its files itself.
    if not begun.cancelled() and begun.exception() is None:
        discard([file.path for file in begun.result().written], storage)
