"""Each task completes its future once, whatever becomes of workers; urgent ones pass the others."""

from __future__ import annotations

from concurrent.futures import Future

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mirror_pump.engine.spark_runtime.resident.task_pool import Capacity, TaskPool, Work
from mirror_pump.errors import TaskFailed


class PoolWorker:
    """Does what the test says, when it says so."""

    def __init__(self) -> None:
        self.work: Work | None = None

    def assign(self, work: Work) -> None:
        assert self.work is None, "one task at a time"
        assert not work.future.done()
        self.work = work


class Completions(RuleBasedStateMachine):
    """A pool whose workers come, work, die and go in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.starts = 0
        self.pool = TaskPool(Capacity(total=4, urgent=3, reserved=1), self._start)
        self.workers: list[PoolWorker] = []
        self.works: list[Work] = []
        self.begun: list[Work] = []
        self.completed: list[Future[object]] = []

    def _start(self) -> None:
        self.starts += 1

    def _take(self, data: st.DataObject, *, busy: bool) -> PoolWorker:
        return data.draw(st.sampled_from([one for one in self.workers if (one.work is not None) == busy]))

    def _busy(self, urgent: bool | None = None) -> list[Work]:
        works = [worker.work for worker in self.workers if worker.work is not None]
        return [work for work in works if urgent is None or work.urgent == urgent]

    @rule(urgent=st.booleans())
    def submit(self, urgent: bool) -> None:
        work = Work(len, "task", urgent)
        work.future.add_done_callback(self.completed.append)
        self.works.append(work)
        self.pool.submit(work)

    @precondition(lambda self: self.works)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.works)).future.cancel()

    @precondition(lambda self: self.starts)
    @rule()
    def a_worker_comes(self) -> None:
        self.starts -= 1
        self.workers.append(worker := PoolWorker())
        self.pool.joined(worker)

    @precondition(lambda self: self.starts)
    @rule(fails=st.booleans())
    def a_worker_does_not_come(self, fails: bool) -> None:
        self.starts -= 1
        self.pool.not_started(TaskFailed("no worker") if fails else None)

    @precondition(lambda self: self._busy())
    @rule(data=st.data())
    def a_task_ends(self, data: st.DataObject) -> None:
        worker = self._take(data, busy=True)
        assert worker.work is not None
        worker.work.future.set_result(4)
        worker.work = None
        self.pool.done(worker)

    @precondition(lambda self: self._busy())
    @rule(data=st.data())
    def a_worker_dies(self, data: st.DataObject) -> None:
        worker = self._take(data, busy=True)
        work, worker.work = worker.work, None
        assert work is not None
        self.workers.remove(worker)
        self.pool.left(worker)
        assert self.pool.repeat_task(work)

    @precondition(lambda self: len(self.workers) > len(self._busy()))
    @rule(data=st.data())
    def a_worker_goes(self, data: st.DataObject) -> None:
        worker = self._take(data, busy=False)
        if self.pool.dismiss(worker, keep=1):
            self.workers.remove(worker)
        else:
            assert len(self.workers) <= 1

    @invariant()
    def one_stays_for_urgent_tasks(self) -> None:
        # Of workers that have died meanwhile, one may have been it.
        assert len(self._busy(urgent=True)) <= 3
        assert len(self.workers) + self.starts <= 4 + 1

    @invariant()
    def none_is_idle_while_an_urgent_task_waits(self) -> None:
        waiting = [one for one in self.works if one.urgent and not (one.future.running() or one.future.done())]
        idle = len(self.workers) - len(self._busy())
        assert not (waiting and idle and len(self._busy(urgent=True)) < 3)

    @invariant()
    def no_future_is_completed_twice(self) -> None:
        # A Future raises when it is set twice; a callback shows that it was told once.
        assert len(self.completed) == len(set(map(id, self.completed)))

    def teardown(self) -> None:
        """With workers that come and live, everything is done."""
        for _ in range(10 * len(self.works) + 10):
            for worker in self.workers:
                if worker.work is not None:
                    work, worker.work = worker.work, None
                    work.future.set_result(4)
                    self.pool.done(worker)
            while self.starts:
                self.a_worker_comes()
            if not self.workers:
                self.pool.expect()
                self.starts += 1
        assert all(work.future.done() for work in self.works)
        assert len(self.completed) == len(self.works)


Completions.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestCompletions = Completions.TestCase


def pool_with(workers: int, capacity: Capacity) -> tuple[TaskPool, list[PoolWorker], list[int]]:
    starts: list[int] = []
    pool = TaskPool(capacity, lambda: starts.append(1))
    there = [PoolWorker() for _ in range(workers)]
    for worker in there:
        pool.joined(worker, announced=False)
    return pool, there, starts


def submit(pool: TaskPool, urgent: bool) -> Work:
    pool.submit(work := Work(len, "task", urgent))
    return work


def test_of_two_workers_one_stays_for_urgent_tasks() -> None:
    pool, workers, starts = pool_with(2, Capacity(2, 2, reserved=1))
    others = [submit(pool, urgent=False) for _ in range(3)]
    assert [work.future.running() for work in others] == [True, False, False]
    assert submit(pool, urgent=True).future.running()
    waiting = submit(pool, urgent=True)
    (busy,) = (worker for worker in workers if worker.work is others[0])
    busy.work = None
    others[0].future.set_result(None)
    pool.done(busy)
    assert waiting.future.running(), "it passes those that were there before"
    assert not starts


def test_a_single_worker_does_everything() -> None:
    pool, _, _ = pool_with(1, Capacity(1, 1, reserved=1))
    assert submit(pool, urgent=False).future.running()


def test_one_more_worker_is_started_for_an_urgent_task() -> None:
    pool, _, starts = pool_with(1, Capacity(100, 2, reserved=1))
    submit(pool, urgent=False)
    # One more, since the next urgent task would have to wait.
    started = len(starts)
    urgent = [submit(pool, urgent=True) for _ in range(50)]
    assert (started, len(starts)) == (0, 2)
    assert not any(work.future.running() for work in urgent)


def test_what_is_left_at_the_end() -> None:
    pool, (worker,), _ = pool_with(1, Capacity(1, 1))
    begun, waiting = submit(pool, urgent=False), submit(pool, urgent=False)
    worker.work = None
    pool.left(worker)
    assert pool.repeat_task(begun)
    pool.close(TaskFailed("the end"))
    assert waiting.future.cancelled()
    assert isinstance(begun.future.exception(0), TaskFailed)
    assert not pool.repeat_task(begun)
