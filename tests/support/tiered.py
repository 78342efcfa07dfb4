"""Tiered tables for tests: public.events as with heap retention, copied in chunks of a few blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mirror_pump.engine.ingest.chunk_copy import copy_chunk
from mirror_pump.engine.spark_runtime.runner import TaskRunner
from mirror_pump.model import TableMode
from mirror_pump.source.retention.retention_plan import RetentionOptions
from mirror_pump.testing.tasks import GatedCopies, ThreadTaskRunner
from tests.support.events_table import EventsTable, RetentionTables

CHUNK_BYTES = 16384
"""Two blocks: partitions of some thousand rows have several chunks."""


def tiered(
    lag: str = "100",
    premake: int = 0,
    *,
    keep_heap: bool = False,
    lake_partition: str | None = None,
    lake_retention: str | None = None,
) -> RetentionOptions:
    """A tiered table without the default grace of partitions."""
    drop_grace = None if keep_heap else "0"
    return RetentionOptions(
        lag=lag,
        premake=premake,
        width=None,
        drop_grace=drop_grace,
        mode=TableMode.TIERED,
        keep_heap=keep_heap,
        lake_partition=lake_partition,
        lake_retention=lake_retention,
    )


class TieredTables(RetentionTables):
    """Creates mirrors with a tiered table in one database; the fixture `tiered_tables`."""

    def gated(self, held: Callable[..., Any] = copy_chunk) -> GatedCopies:
        """A runner that can hold back copies, or tasks of another function, and whose threads end with the test."""
        threads = ThreadTaskRunner()
        self._runners.append(threads)
        return GatedCopies(threads, held)

    def tiered(
        self,
        partitions: int = 4,
        rows: int = 40,
        *,
        lag: str = "100",
        premake: int = 0,
        keep_heap: bool = False,
        lake_partition: str | None = None,
        lake_retention: str | None = None,
        runner: TaskRunner | None = None,
        **settings: Any,
    ) -> EventsTable:
        """A tiered table whose partitions leave by themselves. Retention looks for work ten times a second."""
        chosen = {"retention_interval": 0.1, "copy_chunk_bytes": CHUNK_BYTES, **settings}
        events = EventsTable.automatic(self._mirror(runner, chosen), partitions, rows, lag=None)
        wish = tiered(lag, premake, keep_heap=keep_heap, lake_partition=lake_partition, lake_retention=lake_retention)
        events.mirror.register("public.events", retention=wish)
        return events
