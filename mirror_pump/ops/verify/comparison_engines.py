"""Chooses the engine that compares a table: DuckDB in this process for small tables, as it starts at once, else
Spark."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from mirror_pump.database.quoting import literal
from mirror_pump.engine.lake_storage import reachable_warehouses
from mirror_pump.engine.spark_runtime.cluster import check_cluster
from mirror_pump.engine.spark_runtime.local_runner import LocalTaskRunner
from mirror_pump.engine.spark_runtime.session import SparkSettings, maven_packages, spark_session
from mirror_pump.errors import LakeError, TableError, UsageError, one_line_of
from mirror_pump.lake.commit.readable_files import require_readable
from mirror_pump.lake.document.metadata_files import read_metadata
from mirror_pump.lake.document.snapshot_summary import Total
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.ops.duckdb_connection import open_duckdb, reach_storage
from mirror_pump.ops.verify import compare_duckdb
from mirror_pump.ops.verify.comparison import ComparedRows, Comparison
from mirror_pump.runtime.cores import available_cores
from mirror_pump.runtime.private_files import spark_log
from mirror_pump.runtime.telemetry import get_logger
from mirror_pump.settings.config import Settings
from mirror_pump.settings.limits import InternalLimits

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from mirror_pump.engine.spark_runtime.runner import TaskRunner


@dataclass(frozen=True)
class ComparisonEngine:
    """A runner that reads the heap's chunks, and a function that compares two Iceberg tables given their metadata files
    (see `mirror_pump.ops.verify.compare_spark.compare`)."""

    runner: TaskRunner
    compare: Callable[[str, str, LakeSchema, ComparedRows], Comparison]


class Engines(Protocol):
    """The engines of one verification. `heap_bytes` is the size of the table's heap, TOAST included."""

    def for_heap(self, heap_bytes: int, /) -> ComparisonEngine:
        """The engine whose runner reads the heap."""

    def for_tables(self, heap_bytes: int, lake_location: str, /) -> ComparisonEngine:
        """The engine that compares the heap with the lake table whose metadata file is `lake_location`."""


class EnginesBySize:
    """Chooses by the table's size. A context manager: Spark starts when a table first needs it, and ends at its
    exit."""

    def __init__(self, settings: Settings, storage: StorageOptions) -> None:
        self._settings = settings
        self._limits = settings.limits
        self._storage = storage
        self._closing = ExitStack()

    def __enter__(self) -> EnginesBySize:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def for_heap(self, heap_bytes: int) -> ComparisonEngine:
        return self._small if heap_bytes <= self._limits.verify_small_bytes and self._small is not None else self._spark

    def for_tables(self, heap_bytes: int, lake_location: str) -> ComparisonEngine:
        engine = self.for_heap(heap_bytes)
        # The lake may hold more than the heap: that would be a difference to find.
        return engine if engine is not self._small or self._is_small(lake_location) else self._spark

    def _is_small(self, lake_location: str) -> bool:
        snapshot = read_metadata(lake_location, self._storage).current_snapshot
        if snapshot is None:
            return True
        names = (Total.FILES_SIZE, Total.RECORDS, Total.POSITION_DELETES, Total.EQUALITY_DELETES)
        totals = [snapshot.summary.total(name) for name in names]
        # Other engines may leave totals out.
        recorded = [total for total in totals if total is not None]
        if len(recorded) < len(totals):
            return False
        return recorded[0] <= self._limits.verify_small_bytes and sum(recorded[1:]) <= self._limits.verify_small_rows

    @cached_property
    def _small(self) -> ComparisonEngine | None:
        """DuckDB. None if it is not installed or cannot reach the lake."""
        try:
            duckdb = comparing_duckdb(self._closing, self._storage, self._limits)
        except (LakeError, UsageError):
            return None
        shown = self._limits.verify_shown_rows
        runner = LocalTaskRunner(min(4, available_cores()))
        self._closing.callback(runner.close)

        def compare(heap: str, lake: str, schema: LakeSchema, rows: ComparedRows) -> Comparison:
            import duckdb as module

            try:
                return compare_duckdb.compare(duckdb, heap, lake, schema, rows, shown=shown, storage=self._storage)
            except module.Error as error:
                # Spark would take its time to fail at a damaged file too.
                require_readable(lake, self._storage)
                reason = one_line_of(error)
                get_logger("verify").warning("compared-by-spark", lake=lake, reason=reason, remedy="Nothing.")
                return self._spark.compare(heap, lake, schema, rows)

        return ComparisonEngine(runner, compare)

    @cached_property
    def _spark(self) -> ComparisonEngine:
        from py4j.protocol import Py4JJavaError

        from mirror_pump.engine.spark_runtime.runner import SparkTaskRunner
        from mirror_pump.ops.verify.compare_spark import compare

        settings = self._settings
        warehouse = settings.require_warehouse()
        check_cluster(settings.master, settings.require_dsn(), warehouse)
        log = spark_log()
        get_logger("verify").info("spark-starts", log=str(log))
        packages = maven_packages(*(warehouse.root for warehouse in reachable_warehouses(self._storage)))
        spark = spark_session(
            SparkSettings(
                master=settings.master,
                app_name="mirror-pump-verify",
                log=log,
                conf={"spark.jars.packages": ",".join(packages)},
            )
        )
        runner = SparkTaskRunner(spark, available_cores())
        self._closing.callback(runner.close)
        shown = self._limits.verify_shown_rows

        def compared(heap: str, lake: str, schema: LakeSchema, rows: ComparedRows) -> Comparison:
            try:
                return compare(spark, heap, lake, schema, rows, shown=shown, storage=self._storage)
            except Py4JJavaError as error:
                # Java answers: what it was asked failed, as at a file that is damaged for Java alone.
                cause = str(error.java_exception.getMessage()).partition("\n")[0]
                raise TableError(f"Spark cannot read {lake}: {cause}", f"The log of Spark says more: {log}") from error

        return ComparisonEngine(runner, compared)


def comparing_duckdb(closing: ExitStack, storage: StorageOptions, limits: InternalLimits) -> DuckDBPyConnection:
    """A DuckDB that reads the lake with little memory, until `closing` ends. Raises UsageError if it is not installed,
    and LakeError if it cannot reach the lake."""
    duckdb = open_duckdb()
    closing.callback(duckdb.close)
    reach_storage(duckdb, reachable_warehouses(storage))
    spill = tempfile.mkdtemp(prefix="mirror-pump-verify-")
    closing.callback(shutil.rmtree, spill, ignore_errors=True)
    duckdb.execute(f"SET memory_limit = '{int(limits.verify_memory)}B'; SET temp_directory = {literal(spill)}")
    return duckdb


@dataclass(frozen=True)
class SingleEngine:
    """Uses the same engine for all tables."""

    engine: ComparisonEngine

    def for_heap(self, _heap_bytes: int, /) -> ComparisonEngine:
        return self.engine

    def for_tables(self, _heap_bytes: int, _lake_location: str, /) -> ComparisonEngine:
        return self.engine
