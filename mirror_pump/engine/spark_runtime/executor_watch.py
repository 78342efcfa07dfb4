"""Says when a cluster has no executor for us: Spark's tasks then wait without a word, and the frontier stands still."""

from __future__ import annotations

import time

from py4j.protocol import Py4JError
from pyspark import SparkContext

from mirror_pump.runtime.service_thread import ServiceThread
from mirror_pump.runtime.telemetry import get_logger

_INTERVAL = 5.0
"""Seconds between two looks."""


class ExecutorWatch:
    """A thread that warns, once for each time, when there has been no executor for `patience` seconds."""

    def __init__(self, context: SparkContext, patience: float = 30.0, interval: float = _INTERVAL) -> None:
        self._context = context
        self._patience = patience
        self._interval = interval
        self._log = get_logger("spark")
        self._thread = ServiceThread("executor-watch", self._run, stop_within=10.0)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._thread.stop()

    def _run(self) -> None:
        last_seen, warned = time.monotonic(), False
        while self._thread.next_round():
            java = self._context._jsc
            try:
                # The driver is in this list as well.
                executors = 0 if java is None else java.sc().getExecutorMemoryStatus().size() - 1
            except (Py4JError, OSError):
                java = None
            if java is None:
                # Spark was stopped, or its JVM is gone. The code that runs a task reports that.
                return
            if executors:
                if warned:
                    self._log.info("executors-back", executors=executors)
                last_seen, warned = time.monotonic(), False
            elif not warned and time.monotonic() - last_seen >= self._patience:
                warned = True
                self._log.warning(
                    "no-executors",
                    master=self._context.master,
                    seconds=round(time.monotonic() - last_seen),
                    remedy="See the page of the Spark master: are there workers, and have they cores and memory left"
                    " for one more application? The work waits until then; docs/cluster.md says how to share a cluster",
                )
            self._thread.await_wake(self._interval)
