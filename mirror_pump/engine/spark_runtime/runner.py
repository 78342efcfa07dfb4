"""Runs picklable functions as tasks of Spark and returns futures: the only interface between the pipeline and Spark.

Spark's part is to place the tasks that stay in its slots, and to give them Python and packages: each takes one piece of
work after the other from this process, by a socket (resident/). So nothing that a piece of work needs or returns passes
through Java, and none has to wait for a job of Spark, which takes 60 ms.

Work need not wait for Spark's start either, which takes seconds, and a minute on a busy machine: until Spark's tasks
are there, threads of this process do it.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Protocol, Self, TypeVar

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from mirror_pump.engine.spark_runtime.cluster import is_cluster
from mirror_pump.engine.spark_runtime.executor_watch import ExecutorWatch
from mirror_pump.engine.spark_runtime.java import find_java_home
from mirror_pump.engine.spark_runtime.resident.connection import Stay
from mirror_pump.engine.spark_runtime.resident.driver_worker import DriverWorkers
from mirror_pump.engine.spark_runtime.resident.residents import Residents
from mirror_pump.engine.spark_runtime.resident.task_pool import Capacity, TaskPool, Work
from mirror_pump.engine.spark_runtime.session import SparkSettings, end_java, has_spark, spark_session
from mirror_pump.errors import TaskFailed
from mirror_pump.runtime.cores import available_cores

Task = TypeVar("Task")
Result = TypeVar("Result")

_LOCAL_SLOTS = 256
"""Slots of the pump's own Spark on this machine. They cost nothing: callers bound the number of tasks that
are not urgent, and those that are urgent have a limit."""
_CLUSTER_TASKS = 32
"""Tasks at a time on a cluster at least: its slots come and go."""
_FURTHER_STARTS = 3
"""Workers that are started on this machine in the place of the first, if they cannot be: the process that Spark forks
them from may have been killed, and then the next one comes from another. A cluster has tried again by itself."""
_SHARED = Stay(0.2)
"""In a Spark that does other things: these need the slots."""
_ALONE = Stay(60.0, keep=1)


class TaskRunner(Protocol):
    """Runs `function(task)` wherever the project is installed and the storage is reachable."""

    def submit(self, function: Callable[[Task], Result], task: Task) -> Future[Result]:
        """Tasks whose class says `urgent` come before all others, and never wait for one of these to end, as long as
        there is more than one slot."""


class SparkTaskRunner:
    """Runs tasks in Spark. Thread-safe."""

    def __init__(self, spark: SparkSession | None, slots: int) -> None:
        """In a Spark that others use too: up to `slots` tasks at a time if it is local. On a cluster, whose slots come
        and go, more wait there; while it has none, the log says so. Without a Spark, this process runs them."""
        self._pool = TaskPool(Capacity(_LOCAL_SLOTS, slots, reserved=1), self._start_worker)
        self._driver = DriverWorkers(self._pool)
        self._residents: Residents | None = None
        self._spark: SparkSession | None = None
        self._watch: ExecutorWatch | None = None
        self._ready = False
        self._borrowed = False
        """Whether Spark was there before, and others go on with it."""
        self._answered = threading.Event()
        """Set when the first of Spark's tasks is there, or cannot be started, or is not wanted any more."""
        self._start_error: Exception | None = None
        self._further_starts = 0
        """How many workers may be started in the place of those that could not be."""
        self._starting: threading.Thread | None = None
        self._closing = threading.Event()
        if spark is not None:
            self._use(spark, _SHARED)
            total = max(slots, _CLUSTER_TASKS) if is_cluster(spark.sparkContext.master) else slots
            self._pool.capacity = Capacity(total, total)
            self._ready = True

    def submit(self, function: Callable[[Task], Result], task: Task) -> Future[Result]:
        work = Work(function, task, urgent=getattr(task, "urgent", False))
        self._pool.submit(work)
        return work.future

    @classmethod
    def start(
        cls,
        master: str,
        urgent: int,
        failed: Callable[[Exception], None],
        ready: Callable[[float], None],
        local_delay: float = 0.0,
    ) -> Self:
        """Starts a Spark of the pump's own in a thread, and returns at once: this process runs the tasks until Spark
        can, on a cluster until it has given the first executor. Then the thread calls `ready` with the seconds that it
        took. On this machine there are up to `urgent` urgent tasks at a time. If this process has a Spark already, that
        one is used, and goes on when the runner is closed.

        `local_delay`: seconds after which a local Spark starts, for a runner that will probably be closed before.
        Starting it takes as much CPU as a copy of several million rows.

        Raises UsageError without a usable Java. If Spark cannot be started, or its executors cannot run the program,
        the thread calls `failed` with the error, and the tasks go on in this process until the caller closes the
        runner.
        """
        find_java_home()
        runner = cls(None, urgent)
        runner._borrowed = has_spark()
        delay = 0.0 if is_cluster(master) else local_delay
        runner._starting = threading.Thread(
            target=runner._start_spark, args=(master, urgent, failed, ready, delay), name="spark-start", daemon=True
        )
        runner._starting.start()
        return runner

    def _start_spark(
        self,
        master: str,
        urgent: int,
        failed: Callable[[Exception], None],
        ready: Callable[[float], None],
        delay: float,
    ) -> None:
        if self._closing.wait(delay):
            return
        began = time.monotonic()
        try:
            spark = spark_session(SparkSettings(own_master(master), jars=False, driver_memory="512m"))
            residents = self._use(spark, _SHARED if self._borrowed else _ALONE)
            # Those that will be needed first. Others are started when tasks wait for them.
            for _ in range(min(urgent, available_cores())):
                self._pool.expect()
                residents.start()
            self._answered.wait()
        except Exception as error:  # noqa: BLE001 (of a thread: the pump's loop raises it)
            self._start_error = error
        if self._closing.is_set():
            # What fails after `close` has ended Java is no news.
            return
        if self._start_error is not None:
            failed(self._start_error)
            return
        self._pool.capacity = own_capacity(master, urgent)
        self._ready = True
        self._driver.end()
        ready(time.monotonic() - began)

    def _use(self, spark: SparkSession, stay: Stay) -> Residents:
        context = spark.sparkContext
        self._residents = Residents(context, self._pool, stay, self._answer)
        self._spark = spark
        self._further_starts = 0 if is_cluster(context.master) else _FURTHER_STARTS
        if is_cluster(context.master):
            self._watch = ExecutorWatch(context)
            self._watch.start()
        return self._residents

    def _answer(self, error: Exception | None) -> None:
        if self._answered.is_set():
            return
        if isinstance(error, TaskFailed) and self._further_starts and self._residents is not None:
            self._further_starts -= 1
            self._pool.expect()
            self._residents.start()
            return
        self._start_error = error
        self._answered.set()

    def _start_worker(self) -> None:
        if self._ready and self._residents is not None:
            self._residents.start()
        else:
            self._driver.start()

    def close(self) -> None:
        """Cancels running tasks, waits for the threads, and stops Spark. Cuts the start of Spark off."""
        self._closing.set()
        if self._starting is not None:
            if self._starting.is_alive():
                _end_processes_of(self._starting)
            self._answered.set()
            self._starting.join()
        if self._watch is not None:
            self._watch.stop()
        self._pool.close(TaskFailed("the task was cancelled: the pump ends"))
        self._driver.end()
        if self._residents is not None:
            self._residents.close()
        self._driver.wait()
        if self._borrowed:
            return
        if self._spark is not None:
            with suppress(Py4JError, OSError):
                self._spark.stop()
        if not self._ready:
            # Nothing can use a Java whose start was cut off.
            end_java()


def own_master(master: str) -> str:
    """The master of a Spark of the pump's own: `local[*]` has slots for all tasks that there may be."""
    return re.sub(r"^local\[\*", f"local[{_LOCAL_SLOTS}", master)


def own_capacity(master: str, urgent: int) -> Capacity:
    """How many tasks at a time the pump has there."""
    if is_cluster(master):
        total = max(urgent, _CLUSTER_TASKS)
        return Capacity(total, total, reserved=1)
    slots = re.match(r"local\[(\*|\d+)", master)
    if slots is not None and slots[1] == "*":
        return Capacity(_LOCAL_SLOTS, urgent, reserved=1)
    total = 1 if slots is None else int(slots[1])
    return Capacity(total, total, reserved=1)


def _end_processes_of(thread: threading.Thread) -> None:
    """Ends the processes that a thread has started and waits for: here Java and the scripts that start it, of which
    pyspark tells nothing before Java is up. Where the kernel does not list them, the thread's wait simply goes on."""
    started: list[int] = []
    parents = [f"self/task/{thread.native_id}"]
    for parent in parents:
        with suppress(OSError):
            for process_id in map(int, Path(f"/proc/{parent}/children").read_text().split()):
                # A process that is stopped starts no further ones.
                os.kill(process_id, signal.SIGSTOP)
                started.append(process_id)
                parents.append(f"{process_id}/task/{process_id}")
    for process_id in started:
        with suppress(OSError):
            os.kill(process_id, signal.SIGTERM)
            os.kill(process_id, signal.SIGCONT)
