"""Many tasks at once: results in order, and never more at work than allowed."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from mirror_pump.errors import LakeError
from mirror_pump.pipeline.flow.session_context import ThreadStopped
from mirror_pump.pipeline.flow.tasks import Tasks


class ScriptedRunner:
    """Completes its tasks when told to, or when as many as `most` are at work: the newest one first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.running: list[tuple[Future[Any], Any]] = []
        self.peak = 0

    def submit(self, function: Any, task: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.running.append((future, function(task)))
        self.peak = max(self.peak, len(self.running))
        if len(self.running) == self.most:
            self.complete()
        return future

    def complete(self) -> None:
        future, result = self.running.pop()
        future.set_exception(result) if isinstance(result, Exception) else future.set_result(result)


def test_each_task_comes_with_its_result() -> None:
    runner, begun = ScriptedRunner(3), []

    def before() -> None:
        begun.append(len(runner.running))
        if len(begun) == 8:
            # The last ones end only now.
            runner.most = 1
            while runner.running:
                runner.complete()

    tasks = Tasks(runner, lambda: False)
    results = dict(tasks.as_done([(str, number) for number in range(8)], 3, before))
    assert results == {number: str(number) for number in range(8)}
    assert len(begun) == 8
    assert runner.peak == 3, "as many as allowed, and no more: the runner completes one whenever three are at work"


def test_the_error_of_a_task_ends_it_without_further_tasks() -> None:
    begun = []
    tasks = Tasks(ScriptedRunner(1), lambda: False)
    calls = [(lambda task: LakeError("damaged") if task == 1 else task, number) for number in range(9)]
    with pytest.raises(LakeError, match="damaged"):
        list(tasks.as_done(calls, 1, lambda: begun.append(1)))
    assert len(begun) == 2


def test_it_does_not_wait_when_the_pump_is_to_stop() -> None:
    tasks = Tasks(ScriptedRunner(9), lambda: True)
    with pytest.raises(ThreadStopped):
        list(tasks.as_done([(str, 1), (str, 2)], 1))
