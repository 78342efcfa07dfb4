"""Spark's Python workers come from our daemon: prepared, light, and with pyspark imported from the installed
package."""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import TYPE_CHECKING

from mirror_pump.engine.spark_runtime import worker_daemon

if TYPE_CHECKING:
    import pytest
    from pyspark.sql import SparkSession


def test_workers_have_what_tasks_need_and_nothing_to_collect(spark: SparkSession) -> None:
    def state(_: int) -> tuple[list[str], list[str], int, str]:
        import pyspark

        # Jars of the session (spark.jars.packages) are sent with each task; the pump's session has none.
        entries = [entry for entry in (*sys.path, *sys.path_importer_cache) if "/userFiles-" not in entry]
        archives = [entry for entry in entries if entry.endswith((".jar", "pyspark.zip", "-src.zip"))]
        loaded = [module for module in worker_daemon.TASKS if module in sys.modules]
        return archives, loaded, gc.get_freeze_count(), pyspark.__file__

    archives, loaded, frozen, pyspark_file = spark.sparkContext.parallelize([0], 1).map(state).collect()[0]
    assert archives == []
    assert loaded == list(worker_daemon.TASKS)
    assert frozen > 10_000
    assert ".zip" not in pyspark_file


def test_archives_stay_where_pyspark_is_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    path = ["/spark/python/lib/pyspark.zip", "/spark/python/lib/py4j-0.10.9.9-src.zip", "/spark/jars/spark-core.jar"]
    monkeypatch.setattr(sys, "path", path[:])
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    worker_daemon.leave_archives()
    assert sys.path == path


def test_a_terminals_interrupt_ends_no_task(spark: SparkSession) -> None:
    """Ctrl-C goes to all processes of the terminal, but the driver decides what is still finished."""

    def interrupted(number: int) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        return number

    assert spark.sparkContext.parallelize([7], 1).map(interrupted).collect() == [7]
