"""Spark's Python workers run out of memory in the middle of a batch: said clearly, and the batch is done again.

The kernel's limit on a process's address space (RLIMIT_AS) is lowered and lifted from outside. The JVM, which holds a
batch only as it passes through, is not limited.
"""

from __future__ import annotations

import os
import re
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
import pytest

from mirror_pump.engine.spark_runtime.runner import TaskRunner
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps, await_true

pytestmark = pytest.mark.further

_ROOM = 8 << 20
"""Bytes that a worker may still take: enough to receive a task, not enough to decode it."""


def python_workers() -> list[psutil.Process]:
    """Spark's daemon and the workers that it has forked."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            # The JVM has the daemon's name among its arguments, too.
            if re.search(r" -m \S*worker_daemon", " ".join(process.cmdline())):
                found.append(process)
    return found


def kill_workers() -> list[int]:
    """As the kernel does when the machine has no more memory: without a word. Returns who it was."""
    killed = []
    for worker in python_workers():
        with suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGKILL)
            killed.append(worker.pid)
    return killed


@contextmanager
def little_memory() -> Iterator[None]:
    """Present workers, and those that are forked meanwhile, get no more memory for the time of the block."""
    limited = python_workers()
    assert limited
    for worker in limited:
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            resource.prlimit(worker.pid, resource.RLIMIT_AS, (worker.memory_info().vms + _ROOM, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        for worker in {*limited, *python_workers()}:
            with suppress(ProcessLookupError):
                resource.prlimit(worker.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def said_why(steps: Steps) -> bool:
    return any("for want of memory" in error for error in steps.details(Step.RETRYING, "error"))


def test_a_batch_for_which_workers_have_not_enough_memory(
    database: Database, warehouse: str, runner: TaskRunner
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (0, 'first')")
    mirror = Mirror.create(database, warehouse, runner, segment_bytes=32 << 20, reconnect_backoff_max=0.2)
    steps = Steps()
    with mirror.pumping(steps):
        mirror.register("t")
        mirror.await_live("public.t")
        database.execute("INSERT INTO t VALUES (-1, 'a worker is there')")
        mirror.await_frontier()
        before = mirror.frontier()
        with little_memory():
            database.execute("INSERT INTO t SELECT g, repeat(md5(g::text), 128) FROM generate_series(1, 8000) g")
            # A program without memory does not always find the words, and is tried again.
            await_true(lambda: said_why(steps), 60, "the batch fails, for want of memory")
            assert mirror.frontier() == before
        remedies = steps.details(Step.RETRYING, "remedy")
        assert any("segment_bytes" in remedy for remedy in remedies), remedies
        mirror.await_frontier()

        killed: list[int] = []

        def kill(step: Step, _details: dict[str, object]) -> None:
            # In the middle of a task.
            if step is Step.RECEIVED and not killed:
                killed.extend(kill_workers())

        steps.on = kill
        database.execute("UPDATE t SET v = 'again' WHERE id % 3 = 0", "DELETE FROM t WHERE id % 7 = 0")
        mirror.await_frontier()
        assert killed
        mirror.assert_equal("public.t")
    mirror.assert_sound()
