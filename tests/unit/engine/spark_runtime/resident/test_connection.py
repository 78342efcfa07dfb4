"""A worker and its connection in the driver, without a Spark in between: the worker is a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mirror_pump.engine.spark_runtime.resident.address import UnixAddress
from mirror_pump.engine.spark_runtime.resident.connection import LostTask, ResidentConnection, Stay
from mirror_pump.engine.spark_runtime.resident.listener import ResidentListener
from mirror_pump.engine.spark_runtime.resident.task_pool import Capacity, TaskPool, Work
from mirror_pump.engine.spark_runtime.resident.worker import Invitation, serve
from mirror_pump.errors import ConnectionLost, TaskFailed
from mirror_pump.testing.mirror import await_true

_SECRET = bytes(range(32))


def pid(_task: object) -> int:
    return os.getpid()


def dying(number: int) -> None:
    os.kill(os.getpid(), number)


def lose(reason: str) -> None:
    raise ConnectionLost(reason, "wait")


def divide(number: int) -> float:
    return 1 / number


def work_for(invitation: Invitation) -> None:
    for _ in serve(invitation, ()):
        pass


class LonePool:
    """A pool with one worker at a time."""

    def __init__(self, stay: Stay) -> None:
        self.lost: list[LostTask] = []
        self.connections: list[ResidentConnection] = []
        self.processes: list[multiprocessing.process.BaseProcess] = []
        self.pool = TaskPool(Capacity(1, 1), lambda: None)
        self._stay = stay
        listening, self._address = UnixAddress.listen()
        self._listener = ResidentListener(listening, None, _SECRET, self._admit, lambda: None, 0.1)

    def start_worker(self) -> multiprocessing.process.BaseProcess:
        invitation = Invitation(self._address, len(self.processes), _SECRET)
        self.processes.append(multiprocessing.get_context("fork").Process(target=work_for, args=(invitation,)))
        self.processes[-1].start()
        return self.processes[-1]

    def submit(self, function: Callable[[Any], Any], task: object) -> Work:
        self.pool.submit(work := Work(function, task, urgent=False))
        return work

    def close(self) -> None:
        self.pool.close(TaskFailed("the end"))
        for connection in self.connections:
            connection.end()
        for process in self.processes:
            process.join(20)
            assert process.exitcode is not None, "no process stays"
        self._listener.close()
        self._address.path.unlink()

    def _admit(self, _number: int, connected: socket.socket) -> None:
        with connected:
            self.connections.append(connection := ResidentConnection(connected, self._stay))
            self.pool.joined(connection, announced=False)
            lost = connection.work(self.pool)
            if lost is not None:
                self.lost.append(lost)


@pytest.fixture
def pool() -> Iterator[LonePool]:
    pool = LonePool(Stay(60.0))
    yield pool
    pool.close()


def test_one_worker_does_task_after_task(pool: LonePool) -> None:
    process = pool.start_worker()
    works = [pool.submit(pid, bytes(number * 10_000)) for number in range(100)]
    assert {work.future.result(20) for work in works} == {process.pid}


def test_errors_keep_their_type_or_become_text(pool: LonePool) -> None:
    pool.start_worker()
    with pytest.raises(ConnectionLost, match="the cable") as lost:
        pool.submit(lose, "the cable").future.result(20)
    assert lost.value.remedy == "wait"
    with pytest.raises(TaskFailed, match=r"a task of divide failed: .*ZeroDivisionError: division by zero") as failed:
        pool.submit(divide, 0).future.result(20)
    assert "in divide" in str(failed.value.__cause__), "the whole traceback"
    with pytest.raises(TypeError, match="pickle"):
        pool.submit(pid, threading.Lock()).future.result(20)
    assert pool.submit(divide, 2).future.result(20) == 0.5
    assert pool.lost == []


def test_a_task_whose_worker_dies_is_handed_back(pool: LonePool) -> None:
    pool.start_worker()
    deadly = pool.submit(dying, signal.SIGKILL)
    await_true(lambda: pool.lost, 20, "it is handed back")
    assert (pool.lost[0].work, pool.lost[0].begun, deadly.future.done()) == (deadly, True, False)
    survivor = pool.start_worker()
    assert pool.submit(pid, 0).future.result(20) == survivor.pid
    deadly.future.set_result(None)


def test_a_task_for_a_worker_that_is_gone_has_not_begun(pool: LonePool) -> None:
    """Nobody has noticed the end of the worker yet."""
    process = pool.start_worker()
    assert pool.submit(pid, 0).future.result(20) == process.pid
    process.kill()
    process.join()
    late = pool.submit(pid, 1)
    await_true(lambda: pool.lost, 20, "it is handed back")
    assert (pool.lost[0].work, pool.lost[0].begun) == (late, False)
    late.future.set_result(None)


def test_a_worker_without_work_ends() -> None:
    pool = LonePool(Stay(0.2))
    process = pool.start_worker()
    assert pool.submit(pid, 0).future.result(20) == process.pid
    process.join(20)
    assert process.exitcode == 0
    assert pool.connections[0].dismissed
    pool.close()


def test_a_worker_ends_with_its_driver(pool: LonePool) -> None:
    """... which is killed, so that nobody says good-bye: the kernel closes its connections."""
    process = pool.start_worker()
    assert pool.submit(pid, 0).future.result(20) == process.pid
    pool.connections[0].end()
    process.join(20)
    assert process.exitcode == 0
