"""Process that Spark's Python workers are forked from: pyspark's own daemon, prepared so that workers start quickly.

The daemon imports what tasks need, once for all workers, and hides it from the garbage collector, so that they share
its memory. After every Spark task, pyspark's worker runs the collector over all objects of the process. Before every
one, it invalidates the import caches, and Python 3.11 then reads the directory of each archive on the path again:
pyspark.zip, py4j, Spark's largest jar. So the daemon also removes the archives from the path, since pyspark itself is
installed as a package. Measured with an empty task: 1 ms of CPU instead of 45.

Spark starts it as configured by spark.python.daemon.module: `python -m mirror_pump.engine.spark_runtime.worker_daemon
pyspark.worker`.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import signal
import sys
from pathlib import PurePath

from mirror_pump.runtime.memory import keep_freed_memory

TASKS = (
    "mirror_pump.engine.comparison.digests",
    "mirror_pump.engine.ingest.segment_tasks",
    "mirror_pump.engine.ingest.chunk_copy",
    "mirror_pump.engine.lake_reads.lookup",
    "mirror_pump.engine.spark_runtime.resident.worker",
)
"""Modules whose functions run in workers."""


def leave_archives() -> None:
    """Removes Spark's archives from the import path, unless pyspark is only available from them."""
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
    keep_freed_memory()
    for module in TASKS:
        importlib.import_module(module)
    from pyspark.daemon import manager

    # A terminal sends Ctrl-C to all processes of a command. pyspark's workers would abort their tasks, while the
    # driver, which has to decide, still lets them finish.
    signal.default_int_handler = signal.SIG_IGN  # type: ignore[assignment]
    gc.collect()
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
