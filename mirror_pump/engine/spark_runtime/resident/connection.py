"""A resident's connection in the driver: a worker of the pool that hands each task over and waits for its outcome."""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from pyspark.cloudpickle import CloudPickler

from mirror_pump.engine.spark_runtime.resident.frames import Hangup, Unreadable, receive, receive_byte, send
from mirror_pump.engine.spark_runtime.resident.listener import hang_up
from mirror_pump.engine.spark_runtime.resident.task_pool import TaskPool, Work
from mirror_pump.engine.spark_runtime.resident.worker import Failed, Raised, Returned, TaskOutcome
from mirror_pump.engine.spark_runtime.task_errors import failed_in_driver, task_failed


@dataclass(frozen=True)
class Stay:
    """How long residents stay without work."""

    seconds: float
    keep: int = 0
    """So many stay for ever."""


@dataclass(frozen=True)
class LostTask:
    """A task whose worker is gone."""

    work: Work
    reason: str
    begun: bool
    """Whether the worker had all of it."""


class ResidentConnection:
    """It belongs to the thread that calls `work`."""

    def __init__(self, connected: socket.socket, stay: Stay) -> None:
        self._connected = connected
        self._stay = stay
        self._assigned: SimpleQueue[Work | None] = SimpleQueue()
        self.dismissed = False
        """Whether it ended since there was nothing to do."""

    def assign(self, work: Work) -> None:
        self._assigned.put(work)

    def end(self) -> None:
        """It is of no use any more. For other threads."""
        hang_up(self._connected)
        self._assigned.put(None)

    def work(self, pool: TaskPool) -> LostTask | None:
        """Does tasks until the connection ends, or is not needed any more. Returns the task that it still had, and
        leaves the pool."""
        lost = None
        while lost is None and (work := self._next(pool)) is not None:
            lost = self._do(work)
            if lost is None:
                pool.done(self)
            # The next one may be long in coming.
            del work
        pool.left(self)
        hang_up(self._connected)
        while lost is None and not self._assigned.empty():
            # One that was assigned while the connection ended.
            left = self._assigned.get()
            lost = None if left is None else LostTask(left, "it was gone before", begun=False)
        return lost

    def _next(self, pool: TaskPool) -> Work | None:
        while True:
            with suppress(Empty):
                return self._assigned.get(timeout=self._stay.seconds)
            if pool.dismiss(self, self._stay.keep):
                self.dismissed = True
                return None

    def _do(self, work: Work) -> LostTask | None:
        """Completes the task's future, unless the worker is lost before."""
        begun = False
        outcome: TaskOutcome
        try:
            send(self._connected, (work.function, work.task), CloudPickler)
            receive_byte(self._connected)
            begun = True
            outcome = receive(self._connected)
        except Hangup as error:
            return LostTask(work, str(error), begun)
        except Unreadable as error:
            # The other process may have other packages: that is of no table.
            work.future.set_exception(failed_in_driver(work.name, error.__cause__ or error, is_of_task=False))
            return None
        except Exception as error:  # noqa: BLE001 (it cannot be pickled)
            work.future.set_exception(error)
            return None
        match outcome:
            case Returned(value):
                work.future.set_result(value)
            case Raised(raised):
                work.future.set_exception(raised)
            case Failed(text, unexpected):
                work.future.set_exception(task_failed(work.name, text, unexpected=unexpected))
        return None
