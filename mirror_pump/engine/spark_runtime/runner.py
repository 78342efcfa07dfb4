"""Runs picklable functions as Spark tasks and returns futures: the only interface between the pipeline and Spark.

Each task is an RDD job of its own, submitted from a few threads. Measured: 96-121 ms for a small segment on a warm
session, against 136-199 ms for createDataFrame with mapInArrow; neither needs a shuffle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from mirror_pump.engine.spark_runtime.cluster import is_cluster
from mirror_pump.engine.spark_runtime.executor_watch import ExecutorWatch
from mirror_pump.engine.spark_runtime.session import SparkSettings, spark_session
from mirror_pump.errors import MirrorPumpError, StorageFull, TaskFailed
from mirror_pump.lake.storage import no_room

Task = TypeVar("Task")
Result = TypeVar("Result")

_SHOWN_LINES = 3
"""Lines of a task's traceback that its error repeats; its cause has the whole traceback."""


_NO_MEMORY = (
    # Of Python, NumPy and Arrow.
    "MemoryError",
    "ArrowMemoryError",
    # Of the JVM, and of the operating system.
    "OutOfMemoryError",
    "Cannot allocate memory",
    # A worker that was killed, as the kernel does when memory runs out, or that could not even say what it lacks.
    "Python worker exited unexpectedly",
    "can't start new thread",
)
"""What errors of tasks contain that lacked memory."""

_MEMORY_REMEDY = (
    "nothing is lost, and the pump retries by itself. If it happens again, give the machine or Spark's executors more"
    " memory, or lower segment_bytes (stream), copy_chunk_bytes and copy_workers (copies)"
)

_LARGEST_TASK = 48 << 20
"""Largest task in bytes. A task passes through the Java heap some three times, and may not exceed
spark.rpc.message.maxSize (128 MiB) on a cluster. A larger task is a segment with a very large row. It runs in the
driver, which holds the row anyway, one at a time."""

_TASK_REMEDY = "the pump retries by itself; if it fails every time, report this with the log"
_WORKERS_REMEDY = (
    "on a cluster, each node needs Spark of the driver's version, and a Python of the driver's version in its PATH, or"
    " where PYSPARK_PYTHON says (docs/cluster.md)"
)

_CLUSTER_JOBS = 32
"""Jobs that are submitted to a cluster at the same time, if this machine's cores would not make it more. With segments
of 4 MiB they take less than half of the driver's Java heap."""


class TaskRunner(Protocol):
    """Runs `function(task)` wherever the project is installed and the storage is reachable."""

    def submit(self, function: Callable[[Task], Result], task: Task) -> Future[Result]: ...


@dataclass(frozen=True)
class _Raised:
    """An error of this project raised by a task. It is returned as a value, since Spark would turn it into text."""

    error: MirrorPumpError


def _outcome(function: Callable[[Task], Result], task: Task) -> Result | _Raised:
    try:
        return function(task)
    except MirrorPumpError as error:
        return _Raised(error)


def _in_driver(function: Callable[[Task], Result], task: Task) -> Result:
    """Runs a task in this process. Its errors are those of a task of Spark."""
    try:
        return function(task)
    except MirrorPumpError:
        raise
    except Exception as error:
        detail = f"{type(error).__name__}: {error}".splitlines()[0]
        lacking = any(sign in detail for sign in _NO_MEMORY)
        remedy = _MEMORY_REMEDY if lacking else _TASK_REMEDY
        raise TaskFailed(f"a task of {function.__name__} failed in the driver: {detail}", remedy) from error


class SparkTaskRunner:
    """Runs each submission as a Spark job of one task, unless its `nbytes` is too large for that. Thread-safe."""

    def __init__(self, spark: SparkSession, concurrent_jobs: int) -> None:
        self._spark = spark
        self._context = spark.sparkContext
        self._pool = ThreadPoolExecutor(concurrent_jobs, thread_name_prefix="spark-job")
        self._large_tasks = ThreadPoolExecutor(1, thread_name_prefix="large-task")
        self._watch: ExecutorWatch | None = None

    def submit(self, function: Callable[[Task], Result], task: Task) -> Future[Result]:
        if getattr(task, "nbytes", 0) > _LARGEST_TASK:
            return self._large_tasks.submit(_in_driver, function, task)
        return self._pool.submit(self._run, function, task)

    @classmethod
    def on(cls, spark: SparkSession, slots: int) -> Self:
        """A runner with as many jobs at the same time as the session has slots: `slots` if it is local. On a cluster,
        whose slots come and go, jobs beyond them wait there; while it has none, the log says so."""
        if not is_cluster(spark.sparkContext.master):
            return cls(spark, slots)
        runner = cls(spark, max(slots, _CLUSTER_JOBS))
        runner._watch = ExecutorWatch(spark.sparkContext)
        runner._watch.start()
        return runner

    @classmethod
    def start(cls, master: str, cores: int, others: int) -> Self:
        """Starts a Spark of the pump's own. `local[*]` gets `others` more slots than there are cores, so that chunks of
        copies and file rewrites, which take seconds, never keep the stream's segments waiting for a slot. Waits for a
        cluster's first executor.

        Raises TaskFailed if the executors cannot run the program.
        """
        slots = cores + others
        chosen = f"local[{slots}]" if master == "local[*]" else master
        spark = spark_session(SparkSettings(master=chosen, jars=False))
        runner = cls.on(spark, slots)
        try:
            # In a Spark of its own only as many as there are cores. Spark gives tasks to idle workers in turn, and each
            # has to touch its memory and to read the server's types once. Others are forked when they are needed.
            runner.warm_up(slots if is_cluster(chosen) else cores)
        except BaseException:
            # A signal that interrupts a call to Java leaves the answer unread. The next call mistakes it for its own
            # answer and may fail in any way. That does not matter: this process ends now, and Java with it.
            with suppress(Exception):
                runner.close()
            raise
        return runner

    def _run(self, function: Callable[[Task], Result], task: Task) -> Result:
        def partition(tasks: Iterator[Task]) -> Iterator[Result | _Raised]:
            return (_outcome(function, item) for item in tasks)

        try:
            with _task_errors(f"a task of {function.__name__} failed", _TASK_REMEDY):
                results: list[Result | _Raised] = (
                    self._context.parallelize([task], 1).mapPartitions(partition).collect()
                )
        except OSError as error:
            # Spark's Python side first writes a task's input to a file of its own.
            if not no_room(error):
                raise TaskFailed(f"a task of {function.__name__} could not be handed to Spark: {error}") from error
            raise StorageFull(
                f"no space left for Spark's own files (spark.local.dir, SPARK_LOCAL_DIRS or /tmp): {error}",
                "make room there; nothing is lost, and the pump continues by itself within a minute",
            ) from error
        if len(results) != 1:
            # Java ended while it passed the result on.
            raise TaskFailed(f"a task of {function.__name__} returned no result", _TASK_REMEDY)
        (result,) = results
        if isinstance(result, _Raised):
            raise result.error
        return result

    def warm_up(self, workers: int) -> None:
        """Starts the Python workers and imports what tasks need, so that the first batch need not wait for it. Raises
        TaskFailed."""
        with _task_errors("Spark's workers cannot run the program", _WORKERS_REMEDY):
            self._context.parallelize(range(workers), workers).mapPartitions(_import_tasks).collect()

    def close(self) -> None:
        """Cancels running jobs, waits for the threads, and stops Spark."""
        if self._watch is not None:
            self._watch.stop()
        self._large_tasks.shutdown(wait=False, cancel_futures=True)
        self._pool.shutdown(wait=False, cancel_futures=True)
        # If the Java process is gone, for lack of memory for example, the pump has already failed with that error.
        with suppress(Py4JError, OSError):
            self._context.cancelAllJobs()
        self._pool.shutdown(wait=True)
        with suppress(Py4JError, OSError):
            self._spark.stop()


@contextmanager
def _task_errors(what: str, remedy: str) -> Iterator[None]:
    try:
        yield
    except (PySparkException, Py4JError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip() and "\tat " not in line]
        lacking = next((line for line in lines if any(sign in line for sign in _NO_MEMORY)), None)
        if lacking is not None:
            raise TaskFailed(f"{what}, for want of memory it seems: {lacking}", _MEMORY_REMEDY) from error
        raise TaskFailed(f"{what}: {' | '.join(lines[-_SHOWN_LINES:])}", remedy) from error


def _import_tasks(items: Iterator[int]) -> Iterator[str]:
    import mirror_pump.engine.ingest.segment_tasks

    for _ in items:
        yield mirror_pump.engine.ingest.segment_tasks.__name__
