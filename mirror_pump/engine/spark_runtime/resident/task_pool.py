"""Tasks that wait, and the workers that do them: who gets which task, and when one more worker is needed.

Urgent tasks come first, in the order of their submission, then the others in theirs. Each task completes its future
exactly once: a worker that was lost hands its task back, and it is done again or fails.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

_PAUSE = 1.0
"""Seconds until one more worker is tried after one could not be started, while others work."""


@dataclass(eq=False)
class Work:
    """A task, the function that does it, and the future of its result."""

    function: Callable[[Any], Any]
    task: Any
    urgent: bool
    future: Future[Any] = field(default_factory=Future)
    deaths: int = 0
    """Workers that were lost while they did it."""
    refusals: int = 0
    """Workers that were lost before they had begun."""

    @property
    def name(self) -> str:
        """What it is in errors and logs."""
        return f"a task of {getattr(self.function, '__name__', self.function)}"


@dataclass(frozen=True)
class Capacity:
    """How many workers there may be."""

    total: int
    urgent: int
    """Urgent tasks at a time."""
    reserved: int = 0
    """Workers that do urgent tasks only, as soon as there are more workers than these."""


class Worker(Protocol):
    """Does one task at a time."""

    def assign(self, work: Work) -> None:
        """Begin this task, and return at once: the pool waits meanwhile."""


class TaskPool:
    """Thread-safe. `start` is to bring one more worker, which calls `joined`, or else `not_started`."""

    def __init__(self, capacity: Capacity, start: Callable[[], None]) -> None:
        self.capacity = capacity
        self._start = start
        self._lock = threading.Lock()
        self._waiting: dict[bool, deque[Work]] = {True: deque(), False: deque()}
        self._idle: list[Worker] = []
        """The one that was at work last is the last, and the next to get a task: the others can end."""
        self._busy: dict[Worker, Work] = {}
        self._starting = 0
        self._paused_until = 0.0
        self._closed = False

    def submit(self, work: Work) -> None:
        """Raises RuntimeError after `close`."""
        with self._lock:
            if self._closed:
                raise RuntimeError("the runner of tasks was closed")
            self._waiting[work.urgent].append(work)
        self.distribute()

    def joined(self, worker: Worker, *, announced: bool = True) -> None:
        """A worker is there: one that `start` brought, or another one."""
        with self._lock:
            self._starting -= announced
            self._idle.append(worker)
        self.distribute()

    def expect(self) -> None:
        """One more worker will call `joined` or `not_started`, without a `start`."""
        with self._lock:
            self._starting += 1

    def not_started(self, error: Exception | None) -> None:
        """A worker does not come, because of the error if there is one. If then no other one is there or to come, a
        task fails with it."""
        failed: Work | None = None
        with self._lock:
            self._starting -= 1
            if error is not None and (self._idle or self._busy or self._starting):
                self._paused_until = time.monotonic() + _PAUSE
            elif error is not None:
                failed = self._next(urgent=True) or self._next(urgent=False)
        if failed is not None and error is not None:
            failed.future.set_exception(error)
        self.distribute()

    def done(self, worker: Worker) -> None:
        """The worker has completed its task's future, and can have the next."""
        with self._lock:
            del self._busy[worker]
            self._idle.append(worker)
        self.distribute()

    def left(self, worker: Worker) -> None:
        """The worker is gone, or goes; it has no task any more."""
        with self._lock:
            self._busy.pop(worker, None)
            if worker in self._idle:
                self._idle.remove(worker)
        self.distribute()

    def repeat_task(self, work: Work) -> bool:
        """Does a task again whose worker was lost, before all others. Returns False if the pool is closed."""
        with self._lock:
            if self._closed:
                return False
            self._waiting[work.urgent].appendleft(work)
        self.distribute()
        return True

    def dismiss(self, worker: Worker, keep: int) -> bool:
        """Takes an idle worker away if more than `keep` are there. Returns whether it may go."""
        with self._lock:
            if worker not in self._idle or len(self._idle) + len(self._busy) <= keep:
                return False
            self._idle.remove(worker)
            return True

    @property
    def has_waiting(self) -> bool:
        """Whether tasks wait for a worker."""
        return any(self._waiting.values())

    def close(self, error: Exception) -> None:
        """Cancels the tasks that wait, and takes no more. Those that had begun before fail with the error."""
        with self._lock:
            self._closed = True
            waiting = [work for queue in self._waiting.values() for work in queue]
            for queue in self._waiting.values():
                queue.clear()
        for work in waiting:
            # One that is to be done again cannot be cancelled any more.
            if not work.future.cancel():
                work.future.set_exception(error)

    def distribute(self) -> None:
        """Gives idle workers what waits, and has more workers started for the rest."""
        with self._lock:
            while self._idle and (work := self._next_allowed()) is not None:
                worker = self._idle.pop()
                self._busy[worker] = work
                worker.assign(work)
            self._forget_cancelled()
            missing = self._missing()
            self._starting += missing
        for _ in range(missing):
            self._start()

    def _next_allowed(self) -> Work | None:
        running = sum(work.urgent for work in self._busy.values())
        if running < self.capacity.urgent and (work := self._next(urgent=True)) is not None:
            return work
        workers = len(self._idle) + len(self._busy)
        if len(self._busy) - running < max(1, workers - self.capacity.reserved):
            return self._next(urgent=False)
        return None

    def _next(self, urgent: bool) -> Work | None:
        """Takes the next of these tasks that was not cancelled."""
        queue = self._waiting[urgent]
        while queue:
            work = queue.popleft()
            # One that is done again is running already.
            if work.future.running() or work.future.set_running_or_notify_cancel():
                return work
        return None

    def _forget_cancelled(self) -> None:
        """... as far as they are first: no worker is needed for them."""
        for queue in self._waiting.values():
            while queue and queue[0].future.cancelled():
                queue.popleft().future.set_running_or_notify_cancel()

    def _missing(self) -> int:
        """How many more workers to start now."""
        if self._closed or not self.has_waiting or time.monotonic() < self._paused_until:
            return 0
        running = sum(work.urgent for work in self._busy.values())
        urgent = min(running + len(self._waiting[True]), self.capacity.urgent)
        others = len(self._busy) - running + len(self._waiting[False])
        workers_needed = others + max(urgent, self.capacity.reserved if others else 0)
        there = len(self._idle) + len(self._busy) + self._starting
        return max(0, min(workers_needed, self.capacity.total) - there)
