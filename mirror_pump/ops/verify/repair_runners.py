"""Chooses what runs the tasks of a repair."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING

from mirror_pump.engine.spark_runtime.local_runner import LocalTaskRunner
from mirror_pump.errors import one_line_of
from mirror_pump.runtime.cores import available_cores
from mirror_pump.runtime.telemetry import get_logger
from mirror_pump.settings.config import Settings

if TYPE_CHECKING:
    from mirror_pump.engine.spark_runtime.runner import TaskRunner

_SPARK_DELAY = 20.0
"""Seconds that threads of this process digest alone, a million rows a second each, before a Spark of this machine
starts, which takes as much CPU as that."""


class RepairRunners:
    """Threads of this process for small tables, a Spark for others. A context manager: its exit ends both."""

    def __init__(self, settings: Settings, runner: TaskRunner | None = None) -> None:
        """`runner`: runs all tasks; it is the caller's to close."""
        self._settings = settings
        self._runner = runner
        self._closing = ExitStack()

    def __enter__(self) -> RepairRunners:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def for_heap(self, heap_bytes: int) -> TaskRunner:
        """The runner for a table with a heap of this size, TOAST included."""
        if self._runner is not None:
            return self._runner
        return self._threads if heap_bytes <= self._settings.limits.verify_small_bytes else self._spark

    @cached_property
    def _threads(self) -> TaskRunner:
        threads = LocalTaskRunner(available_cores())
        self._closing.callback(threads.close)
        return threads

    @cached_property
    def _spark(self) -> TaskRunner:
        from mirror_pump.engine.spark_runtime.runner import SparkTaskRunner

        log = get_logger("repair")

        def failed(error: Exception) -> None:
            log.warning("repaired-without-spark", reason=one_line_of(error), remedy="Nothing: threads do its work.")

        spark = SparkTaskRunner.start(self._settings.master, available_cores(), failed, lambda _: None, _SPARK_DELAY)
        self._closing.callback(spark.close)
        return spark
