"""Reads a mirrored table into Spark: the lake through Iceberg, the heap through JDBC, as planned by
ops/reads/table_reads.py.

The DataFrame is lazy. So the pins, and the single database snapshot in which all partitions of the heap's side are
read, are held until the DataFrame is released.
"""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

import pyspark.sql.functions as f
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from mirror_pump.database.quoting import spark_identifier
from mirror_pump.engine.lake_storage import lake_storage
from mirror_pump.engine.spark_runtime.lake_sessions import catalog_properties
from mirror_pump.engine.spark_runtime.session import CATALOG
from mirror_pump.errors import FileMissing, UsageError, speaking_of
from mirror_pump.lake.iceberg_io import table_frame
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn, TableId, TierKind, parse_lsn
from mirror_pump.ops.reads.hybrid_reads import Split, hybrid_reads
from mirror_pump.ops.reads.query import Query, plain_reads
from mirror_pump.ops.reads.read_scope import ReadScope
from mirror_pump.ops.reads.table_reads import LakeSide, Point, ReadMode, TableRead
from mirror_pump.ops.setup.stored_settings import complete
from mirror_pump.pipeline.missing_files.missing_files import explain_failed_read
from mirror_pump.settings.config import Settings, load_settings
from mirror_pump.source.catalog.consistent_snapshot import ConsistentSnapshot, mirrored_ids
from mirror_pump.source.connect import connect, portable_dsn
from mirror_pump.spark.heap import heap_frame, local_frame, spark_type
from mirror_pump.storage_kinds import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class PinnedDataFrame(ClassicDataFrame):  # type: ignore[misc]
    """A DataFrame that, like all DataFrames derived from it, can be read until `release`, which frees what it holds.

    A context manager. Otherwise it is released when its Spark session stops, or with the process. After the release,
    results can no longer be collected.
    """

    read: TableRead
    """What is read, and as of which state."""
    _release: Callable[[], None]
    _moments: tuple[ConsistentSnapshot, ...]

    def release(self) -> None:
        """Releases the pins and the snapshot."""
        self._release()

    def check(self) -> None:
        """Raises SourceError if a pin was lost while in use, because the database was away for longer than pins last.
        Results collected since then may lack rows."""
        for moment in self._moments:
            moment.check()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def about_its_mirror(call: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """A function with `dsn`, `mirror` and `settings`, whose errors name the mirror: a program may read several."""

    @wraps(call)
    def of_mirror(*args: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
        settings = named.get("settings") or load_settings({key: named.get(key) for key in ("dsn", "mirror")})
        assert isinstance(settings, Settings)
        with speaking_of(settings.mirror):
            return call(*args, **named)

    return of_mirror


@about_its_mirror
def read(
    spark: SparkSession,
    table: str,
    mode: str = "seam",
    min_lsn: str | int | None = None,
    max_wait: float = 5.0,
    split: Split | None = None,
    *,
    dsn: str | None = None,
    mirror: str | None = None,
    settings: Settings | None = None,
    partitions: int | None = None,
) -> PinnedDataFrame:
    """The mirrored table as a DataFrame, as of a single point in time, which stays pinned until it is released.

    `table` is a name as Postgres reads names. `mode`: `seam`, `lake`, `heap` or `hybrid` (docs/reading.md). `min_lsn`:
    a WAL position (`16/B374D848`, or bytes) that the frontier must have reached; waits for it up to `max_wait` seconds.
    Hybrid reads always wait for the current position, and fall back to the heap with a warning. `split`: the value of
    the tier key at which a hybrid read switches from the lake to the heap. The database is that of `settings`, of
    `dsn`, or of the environment, as for the program, and so is the name of its `mirror`. `partitions`: Spark partitions
    of the heap's side, by default the number of Spark's slots.

    The session needs Iceberg's runtime and the JDBC driver (`mirror-pump connect --engine spark`). Column names and
    types are the lake's. Raises UsageError, TableError, SourceError.
    """
    complete_settings = complete(settings or load_settings({"dsn": dsn, "mirror": mirror}))
    if mode not in tuple(ReadMode):
        raise UsageError(f"{mode!r} is not a read mode", f"the modes are {', '.join(ReadMode)}")
    read_mode = ReadMode(mode)
    lsn = min_lsn if min_lsn is None or isinstance(min_lsn, int) else parse_lsn(min_lsn)
    storage = lake_storage(complete_settings, fsync=False)
    context = spark.sparkContext
    with connect(complete_settings.require_dsn(), autocommit=True, application_name="mirror-pump-read") as connection:
        ids = mirrored_ids(connection, [table])
        # The heap is read in executors.
        own_dsn = portable_dsn(complete_settings.require_dsn(), connection)
    complete_settings = complete_settings.model_copy(update={"dsn": own_dsn})
    with ExitStack() as stack:

        def stopped() -> bool:
            # SparkContext.stop() sets it to None.
            return context._jsc is None

        def warn(text: str) -> None:
            warnings.warn(text, RuntimeWarning, stacklevel=3)

        scope = ReadScope(complete_settings, storage, stack, warn, stopped)
        query = Query("", read_mode, min_lsn=None if lsn is None else Lsn(lsn), max_wait=max_wait)
        table_read = _planned(scope, query, ids, split)
        frame = _frame(spark, complete_settings, table_read, partitions or context.defaultParallelism, storage)
        pinned = PinnedDataFrame(frame._jdf, frame.sparkSession)
        pinned.read = table_read
        pinned._moments = tuple(scope.moments)
        pinned._release = stack.pop_all().close
    return pinned


def _planned(scope: ReadScope, query: Query, ids: Sequence[TableId], split: Split | None) -> TableRead:
    """What to read of the only table. Raises TableError for one that lacks files."""
    try:
        if query.mode is ReadMode.HYBRID:
            (table_read,) = hybrid_reads(scope, ids, query.min_lsn, query.max_wait, split)
        else:
            (table_read,) = plain_reads(scope, query, ids)
    except FileMissing:
        explain_failed_read(scope.dsn, ids, scope.storage)
        raise
    return table_read


def _frame(
    spark: SparkSession, settings: Settings, read: TableRead, partitions: int, storage: StorageOptions
) -> DataFrame:
    parts = []
    key = [column.name for column in read.columns if column.name in read.table.key and not column.raw]
    hidden = None
    if read.corrections is not None:
        columns = tuple(column for column in read.columns if column.name in key)
        hidden = f.broadcast(local_frame(spark, read.corrections.keys, columns))
    if read.lake is not None:
        lake = _lake(spark, read, read.lake, storage)
        parts.append(_without(lake, hidden if read.corrections and read.corrections.of_lake else None, key))
    if read.heap is not None:
        heap = heap_frame(spark, settings, read, partitions)
        parts.append(_without(heap, hidden if read.corrections and not read.corrections.of_lake else None, key))
    if read.corrections is not None and read.corrections.rows.num_rows:
        parts.append(local_frame(spark, read.corrections.rows, read.columns))
    frame = parts[0]
    for part in parts[1:]:
        frame = frame.unionAll(part)
    return frame


def _without(frame: DataFrame, hidden: DataFrame | None, key: list[str]) -> DataFrame:
    if hidden is None:
        return frame
    names = frame.columns
    return frame.join(hidden, on=key, how="left_anti").select([f.col(spark_identifier(name)) for name in names])


def _lake(spark: SparkSession, read: TableRead, lake: LakeSide, storage: StorageOptions) -> DataFrame:
    """The lake's rows, by the metadata file, whose current snapshot is the one to read."""
    frame = metadata_frame(spark, lake.location, storage)
    selected = []
    initial = [] if read.initial is None else read.initial.column_names
    for column in read.columns:
        if column.lake_name is None and column.name in initial:
            continue
        value: Any = f.lit(None) if column.lake_name is None else f.col(spark_identifier(column.lake_name))
        target_type = spark_type(column.type)
        if column.lake_name is None or frame.schema[column.lake_name].dataType != target_type:
            value = value.cast(target_type)
        selected.append(value.alias(column.name))
    result = frame.select(selected)
    if read.initial is not None:
        columns = tuple(column for column in read.columns if column.name in initial)
        result = result.crossJoin(f.broadcast(local_frame(spark, read.initial, columns)))
        result = result.select([f.col(spark_identifier(column.name)) for column in read.columns])
    return result if lake.below is None else result.where(_below(lake.below))


def metadata_frame(spark: SparkSession, location: str, storage: StorageOptions) -> DataFrame:
    """The rows of the current snapshot of a metadata file."""
    if location.startswith("file:"):
        return spark.read.format("iceberg").load(location)
    # Tables of several storage profiles may be joined, and the session's catalog knows one of them at most.
    properties = storage.properties_of(location)
    kind = kind_of(location)
    if kind is not None and not kind.has_credentials(properties):
        properties = {**catalog_properties(spark, CATALOG), **properties}
    return table_frame(spark, location, properties)


def _below(point: Point) -> Any:
    column = f.col(spark_identifier(point.column))
    if point.kind is TierKind.BIGINT:
        return column < f.lit(point.value)
    literal = point.literal
    if literal is None:
        return f.lit(False)  # noqa: FBT003 - Spark's literal
    text = literal.partition("'")[2].rstrip("'")
    if text == "infinity":
        return f.lit(True)  # noqa: FBT003 - as above
    name = {TierKind.DATE: "DATE", TierKind.TIMESTAMP: "TIMESTAMP_NTZ", TierKind.TIMESTAMPTZ: "TIMESTAMP"}[point.kind]
    return column < f.expr(f"{name} '{text}'")
