"""The process that Spark's Python workers are forked from: pyspark's own daemon, made ready for many small tasks.

After every task, pyspark's worker collects garbage among all objects of the process, and before every task it
invalidates the import caches, which on Python 3.11 reads the directory of each archive on the path again: pyspark.zip,
py4j, Spark's largest jar. Measured with an empty task: 45 ms of CPU, more than decoding 4 MB of stream takes; 1 ms
from this daemon. It imports what tasks need, once for all workers, and keeps it out of the collector's sight; the
archives leave the path, for pyspark itself is installed as a package.

Spark starts it as spark.python.daemon.module says: `python -m mirror_pump.engine.worker_daemon pyspark.worker`.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import signal
import sys
from pathlib import PurePath

TASKS = ("mirror_pump.engine.segment_tasks", "mirror_pump.engine.chunk_copy", "mirror_pump.engine.lookup")
"""Modules whose functions run in workers."""


def leave_archives() -> None:
    """Take Spark's archives off the import path, unless pyspark is nowhere else."""
    before = sys.path[:]
    sys.path[:] = [entry for entry in before if not _is_archive_of_spark(entry)]
    if importlib.util.find_spec("pyspark") is None:
        sys.path[:] = before
        return
    for entry in before:
        if _is_archive_of_spark(entry):
            sys.path_importer_cache.pop(entry, None)


def _is_archive_of_spark(entry: str) -> bool:
    name = PurePath(entry).name
    return name == "pyspark.zip" or name.endswith(".jar") or (name.startswith("py4j-") and name.endswith(".zip"))


def main() -> None:
    leave_archives()
    for module in TASKS:
        importlib.import_module(module)
    from pyspark.daemon import manager

    # A terminal sends Ctrl-C to all processes of the command. pyspark's workers would end their tasks with it, while
    # the driver, whose it is to decide, still finishes what they are at.
    signal.default_int_handler = signal.SIG_IGN  # type: ignore[assignment]
    gc.collect()
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
