"""What the errors of tasks say, wherever the task ran, and what to do about them."""

from __future__ import annotations

from mirror_pump.errors import MirrorPumpError, StorageFull, TaskFailed, TaskRaised
from mirror_pump.lake.storage import no_room
from mirror_pump.runtime.table_work import is_of_one_table

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
_TASK_REMEDY = "the pump retries by itself; if it fails every time, report this with the log"
_CLUSTER_REMEDY = (
    "on a cluster, each node needs Spark of the driver's version, a Python of the driver's version in its PATH, or"
    " where PYSPARK_PYTHON says, and a way to the driver's ports (docs/cluster.md)"
)
_LOCAL_REMEDY = (
    "nothing is lost: started again, the pump goes on from what is published. Look in this machine's log for what ended"
    " Spark's Python processes: for want of memory the kernel ends them"
)

WORKER_DIED = "Python worker exited unexpectedly: its connection to the driver ended"
"""What is said of a worker of which Spark says nothing."""


class WorkerTraceback(Exception):
    """The cause of an error that was raised in another process, as text."""


def task_failed(what: str, text: str, *, unexpected: bool = False) -> TaskFailed:
    """The error of a task that failed with this traceback, of Python or of Java. `unexpected`: its function raised what
    no code expects (`is_of_one_table`)."""
    error = _failed(f"{what} failed", text, _TASK_REMEDY)
    if unexpected and error.remedy != _MEMORY_REMEDY:
        error = TaskRaised(str(error), error.remedy)
    error.__cause__ = WorkerTraceback(text)
    return error


def failed_in_driver(what: str, error: BaseException, *, is_of_task: bool = True) -> TaskFailed:
    """The error of a task that failed in this process. `is_of_task`: its function may have raised it."""
    detail = f"{type(error).__name__}: {error}".splitlines()[0]
    lacking = any(sign in detail for sign in _NO_MEMORY)
    kind = TaskRaised if is_of_task and is_of_one_table(error) and not lacking else TaskFailed
    return kind(f"{what} failed in the driver: {detail}", _MEMORY_REMEDY if lacking else _TASK_REMEDY)


def workers_failed(error: Exception, *, on_cluster: bool) -> MirrorPumpError:
    """The error of workers that could not be started."""
    if isinstance(error, MirrorPumpError):
        return error
    # Spark's Python side writes what a job begins with to a file of its own.
    if isinstance(error, OSError) and no_room(error):
        return StorageFull(
            f"no space left for Spark's own files (spark.local.dir, SPARK_LOCAL_DIRS or /tmp): {error}",
            "make room there; nothing is lost, and the pump continues by itself within a minute",
        )
    remedy = _CLUSTER_REMEDY if on_cluster else _LOCAL_REMEDY
    return _failed("Spark's workers cannot run the program", f"{type(error).__name__}: {error}", remedy)


def _failed(what: str, text: str, remedy: str) -> TaskFailed:
    lines = [line.strip() for line in text.splitlines() if line.strip() and "\tat " not in line]
    lacking = next((line for line in lines if any(sign in line for sign in _NO_MEMORY)), None)
    if lacking is not None:
        return TaskFailed(f"{what}, for want of memory it seems: {lacking}", _MEMORY_REMEDY)
    return TaskFailed(f"{what}: {' | '.join(lines[-_SHOWN_LINES:])}", remedy)
