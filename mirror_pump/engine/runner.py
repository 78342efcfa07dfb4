"""Runs picklable functions as Spark tasks and gives futures back: the one seam between the pipeline and Spark.

RDD jobs of one task each, submitted from a few threads: measured at 96-121 ms for a small segment on a warm session,
against 136-199 ms for createDataFrame with mapInArrow (design section 14), and no shuffle either way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from mirror_pump.engine.session import SparkSettings, spark_session
from mirror_pump.errors import MirrorPumpError, StorageFull, TaskFailed
from mirror_pump.lake.storage import no_room

Task = TypeVar("Task")
Result = TypeVar("Result")

_SHOWN_LINES = 3
"""Lines of a task's traceback that its error repeats; the whole is in its cause."""


_LARGEST_TASK = 48 << 20
"""Bytes. A task goes through the Java heap some three times, and may not exceed spark.rpc.message.maxSize (128 MiB) on
a cluster. A larger one is a segment with a very large row: the driver, which holds it anyway, does it, one by one."""


class TaskRunner(Protocol):
    """Runs `function(task)` somewhere with the project installed and the storage mounted."""

    def submit(self, function: Callable[[Task], Result], task: Task) -> Future[Result]: ...


@dataclass(frozen=True)
class _Raised:
    """A task's error of ours: it comes back as a value, since Spark would make text of it."""

    error: MirrorPumpError


def _outcome(function: Callable[[Task], Result], task: Task) -> Result | _Raised:
    try:
        return function(task)
    except MirrorPumpError as error:
        return _Raised(error)


class SparkTaskRunner:
    """Each submission is a Spark job of one task, unless its `nbytes` say that it is too large. Thread-safe."""

    def __init__(self, spark: SparkSession, concurrent_jobs: int) -> None:
        self._spark = spark
        self._context = spark.sparkContext
        self._pool = ThreadPoolExecutor(concurrent_jobs, thread_name_prefix="spark-job")
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="large-task")

    def submit(self, function: Callable[[Task], Result], task: Task) -> Future[Result]:
        if getattr(task, "nbytes", 0) > _LARGEST_TASK:
            return self._beside.submit(function, task)
        return self._pool.submit(self._run, function, task)

    @classmethod
    def start(cls, master: str, cores: int, others: int) -> Self:
        """A Spark of the pump's own. `local[*]` gets `others` slots more than there are cores, so that chunks of
        copies and resolves, which take seconds, never keep the stream's segments waiting for a slot."""
        slots = cores + others
        chosen = f"local[{slots}]" if master == "local[*]" else master
        spark = spark_session(SparkSettings(master=chosen, jars=False))
        runner = cls(spark, slots)
        try:
            runner.warm_up(slots)
        except BaseException:
            # A signal that interrupts a call to Java leaves its answer unread: the next call gets that for its own, and
            # may fail in any way. The process ends, and Java with it.
            with suppress(Exception):
                runner.close()
            raise
        return runner

    def _run(self, function: Callable[[Task], Result], task: Task) -> Result:
        def partition(tasks: Iterator[Task]) -> Iterator[Result | _Raised]:
            return (_outcome(function, one) for one in tasks)

        try:
            results: list[Result | _Raised] = self._context.parallelize([task], 1).mapPartitions(partition).collect()
        except (PySparkException, Py4JError) as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip() and "\tat " not in line]
            raise TaskFailed(
                f"a task of {function.__name__} failed: {' | '.join(lines[-_SHOWN_LINES:])}",
                "the pump tries again by itself; if it fails every time, report this with the log",
            ) from error
        except OSError as error:
            # Spark's Python side writes what a task gets to a file of its own first.
            if not no_room(error):
                raise TaskFailed(f"a task of {function.__name__} could not be handed to Spark: {error}") from error
            raise StorageFull(
                f"no room is left for Spark's own files (spark.local.dir, SPARK_LOCAL_DIRS or /tmp): {error}",
                "make room there; nothing is lost, and the pump goes on by itself within a minute",
            ) from error
        (result,) = results
        if isinstance(result, _Raised):
            raise result.error
        return result

    def warm_up(self, workers: int) -> None:
        """Start the Python workers and load what tasks import, so that the first batch does not pay for it."""
        self._context.parallelize(range(workers), workers).mapPartitions(_import_tasks).collect()

    def close(self) -> None:
        """Cancel what runs, wait for the threads, and end Spark."""
        self._beside.shutdown(wait=False, cancel_futures=True)
        self._pool.shutdown(wait=False, cancel_futures=True)
        # A Java process that is gone, for want of memory say, is the error that ended the pump, not one of its own.
        with suppress(Py4JError, OSError):
            self._context.cancelAllJobs()
        self._pool.shutdown(wait=True)
        with suppress(Py4JError, OSError):
            self._spark.stop()


def _import_tasks(items: Iterator[int]) -> Iterator[str]:
    import mirror_pump.engine.segment_tasks

    for _ in items:
        yield mirror_pump.engine.segment_tasks.__name__
