"""Reads the heap's side of a read in Spark.

Rows come through Spark's JDBC source, which pushes filters down and prunes columns, in several partitions. Each has its
own connection and transaction, and all use the same exported snapshot. (Spark runs `sessionInitStatement` after turning
autocommit off, which it does if the fetch size is above 0.) Rows with a value that JDBC does not transfer exactly
(mirror_pump.source.heap.heap_side.needs_exact_reader) are read by the mirror's own copy code in Python tasks. Both
parts together are the heap's side, with each row exactly once, since a row either has such a value or not.

Measured with Spark 4.1 and driver 42.7: from 1583 on, dates and times arrive exactly if the JVM's time zone is UTC (for
1582 and before, they lose ten days and the era). With another time zone, some values are shifted: times before 1900,
times that a change of clocks skips, and literals of filters. Then Python tasks read everything. So
they do if a program prints the password (password_command), and for tables with masks.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyspark.sql.functions as f
import pyspark.sql.types as t
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from decoders.columns import ColumnType
from mirror_pump.database.quoting import identifier, literal, spark_identifier
from mirror_pump.database.search_path import PINNED_PATH
from mirror_pump.database.session_settings import SETTLE
from mirror_pump.engine.spark_runtime.session import libpq_access
from mirror_pump.model import Column
from mirror_pump.ops.reads.table_reads import OutputColumn, TableRead, narrowed
from mirror_pump.runtime.password_command import RotatingDsn
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.consistent_snapshot import LOCK_SECONDS, READER_SETTINGS
from mirror_pump.source.connect import PINNED_SETTINGS
from mirror_pump.source.heap.heap_side import HeapSide, needs_exact_reader, plain_array, read_heap

_FETCH_ROWS = 10_000
_CTID = "mirror_pump_ctid"
"""Name of ctid in the subquery; the heap is partitioned by it."""


def heap_frame(spark: SparkSession, settings: Settings, read: TableRead, partitions: int) -> DataFrame:
    """The rows of `read.heap`, with the columns of `read`."""
    heap = read.heap
    assert heap is not None
    shifted = not _exact_times(spark) and any(column.type.is_temporal for column in read.columns)
    # JDBC's partitions connect when the rows are read, with the password that was in use when the frame was made.
    # PostgreSQL has no masks, and would compare pushed filters with the values.
    if shifted or heap.table.masked_columns or isinstance(settings.require_dsn(), RotatingDsn):
        return _by_tasks(spark, settings, read, "")
    plain = _by_jdbc(spark, settings, read, partitions)
    return (
        plain.unionAll(_by_tasks(spark, settings, read, needs_exact_reader(heap.table)))
        if heap.exact_reader_needed
        else plain
    )


def _exact_times(spark: SparkSession) -> bool:
    java = spark._jvm
    assert java is not None
    zone = java.java.util.TimeZone.getDefault()
    # The zone must never have had another offset: zones of Western Africa were some minutes off a century ago.
    always = zone.toZoneId().getRules().isFixedOffset()
    return bool(always and zone.getRawOffset() == 0) and spark.conf.get(_JAVA8, "false") == "false"


_JAVA8 = "spark.sql.datetime.java8API.enabled"
"""Spark setting; if it is on, literals of filters are written in the session's time zone."""


def _by_jdbc(spark: SparkSession, settings: Settings, read: TableRead, partitions: int) -> DataFrame:
    heap = read.heap
    assert heap is not None
    access = libpq_access(settings.require_dsn())
    heap_columns = {column.name: column for column in heap.table.columns}
    listed = ", ".join(
        f"{_transferred(heap_columns[column.name])} AS {identifier(column.name)}"
        for column in read.columns
        if not column.raw
    )
    # If the snapshot has no such row, no read needs to search for them again.
    plain = f"{needs_exact_reader(heap.table)} IS NOT TRUE" if heap.exact_reader_needed else ""
    conditions = [condition for condition in (heap.condition, plain, _same_table(heap)) if condition]
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    frame = spark.read.jdbc(
        access.jdbc_url(PINNED_PATH),
        f"(SELECT {listed}, ctid AS {_CTID} FROM {heap.table.name.quoted}{where}) heap",
        predicates=_block_ranges(heap, partitions, settings.limits.spark_partition_blocks),
        properties={
            "driver": "org.postgresql.Driver",
            "user": access.user,
            **({} if access.password is None else {"password": access.password}),
            # Spark queries the columns on a connection of its own, without sessionInitStatement. Without a timeout, it
            # could wait for ever for a session that in turn waits for the reader.
            "options": f"-c lock_timeout={LOCK_SECONDS:g}s",
            "fetchsize": str(_FETCH_ROWS),
            "preferTimestampNTZ": "true",
            "sessionInitStatement": _session(heap.snapshot),
        },
    )
    return frame.select([_arrived(column) for column in read.columns])


def _same_table(heap: HeapSide) -> str:
    """A condition that fails the query if another table now has the name: partitions are locked, but not the parent."""
    name = literal(heap.table.name.quoted)
    return f"1 / (CASE WHEN {name}::regclass::oid = {heap.table.table_id} THEN 1 ELSE 0 END) = 1"


def _session(snapshot: str) -> str:
    # The URL has search_path.
    settings = {name: value for name, value in PINNED_SETTINGS.items() if name != "search_path"}
    pinned = "; ".join(f"SET {name} = '{value}'" for name, value in settings.items())
    return (
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY;"
        f" SET TRANSACTION SNAPSHOT '{snapshot}'; {pinned}; {READER_SETTINGS}; {SETTLE}"
    )


def _block_ranges(heap: HeapSide, partitions: int, least_blocks: int) -> list[str]:
    """Conditions that partition the rows by ctid: ranges of blocks, the same for each leaf partition."""
    count = max(1, min(partitions, heap.blocks // least_blocks))
    bounds = [heap.blocks * number // count for number in range(1, count)]
    edges = [None, *bounds, None]
    conditions = []
    for low, high in itertools.pairwise(edges):
        parts = [] if low is None else [f"{_CTID} >= '({low},0)'::tid"]
        parts += [] if high is None else [f"{_CTID} < '({high},0)'::tid"]
        conditions.append(" AND ".join(parts) or "true")
    return conditions


_TEXTS = frozenset({25, 1043})
"""pg_type.oid of text and varchar, for which the cast to text is free and changes nothing."""


def _transferred(column: Column) -> str:
    """SQL expression that JDBC transfers for the column. If it already has this type, Postgres sees no cast and can use
    indexes for filters that Spark pushes down."""
    name = identifier(column.name)
    if column.type.precision:
        return f"{name}::numeric({column.type.precision},{column.type.scale})"
    if column.type.element is not None:
        array = plain_array(column)
        return "NULL::int4[]" if array is None else f"{name}::{array}"
    if column.type.facts.postgres is not None:
        return f"{name}::{column.type.facts.postgres}"
    # Spark compares text byte by byte, Postgres by the column's collation. Pushed filters must mean the same in both.
    if column.type_oid in _TEXTS:
        return f'{name}::text COLLATE "C"'
    # Uses the type's output function, like the stream and the copy. A cast to text may differ.
    return f"(CASE WHEN {name} IS DISTINCT FROM NULL THEN format('%s', {name}) END) COLLATE \"C\""


def _arrived(column: OutputColumn) -> Any:
    if column.raw:
        return f.lit(None).cast(t.StringType()).alias(column.name)
    value = f.col(spark_identifier(column.name))
    return value.cast(spark_type(column.type)).alias(column.name)


def _by_tasks(spark: SparkSession, settings: Settings, read: TableRead, condition: str) -> DataFrame:
    """The rows that meet the condition, read by the mirror's own reader in Python tasks."""
    dsn = settings.require_dsn()
    heap, names = narrowed(read)
    raw = [column.name for column in read.columns if column.raw and column.name not in names]
    order = [column.name for column in read.columns]

    schema = _schema(read.columns)
    # Uses a Spark Python data source rather than mapInArrow, which needs pandas. Each read has its own class, which
    # travels to the tasks by value: explain() would show the connection string if it was in the options.
    name = f"mirror_pump_{uuid.uuid4().hex}"

    class Copied(DataSource):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> t.StructType:
            return schema

        def reader(self, schema: t.StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's own signature
            return CopiedReader(dsn, heap, condition, names, raw, order)

    spark.dataSource.register(Copied)
    return spark.read.format(name).load()


class CopiedReader(DataSourceReader):  # type: ignore[misc]
    """Reads the heap's chunks, one per task."""

    def __init__(
        self, dsn: str, heap: HeapSide, condition: str, names: list[str], raw: list[str], order: list[str]
    ) -> None:
        """`names`: columns that are read; `raw`: raw text columns that no row needs; `order`: all, in order."""
        self._dsn = dsn
        self._heap = heap
        self._condition = condition
        self._names = names
        self._raw = raw
        self._order = order

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(place) for place in range(len(self._heap.chunks))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for rows in read_heap(self._dsn, self._heap, self._heap.chunks[partition.value], self._condition):
            named = pa.Table.from_batches([rows.rename_columns(self._names)])
            for name in self._raw:
                named = named.append_column(name, pa.nulls(named.num_rows, pa.string()))
            yield from named.select(self._order).to_batches()


def local_frame(spark: SparkSession, content: pa.Table, columns: tuple[OutputColumn, ...]) -> DataFrame:
    """A DataFrame of rows that the driver already has."""
    return spark.createDataFrame(content.select([column.name for column in columns]), _schema(columns))


def _schema(columns: tuple[OutputColumn, ...]) -> t.StructType:
    return t.StructType([t.StructField(column.name, spark_type(column.type)) for column in columns])


def spark_type(type: ColumnType) -> t.DataType:  # noqa: A002 - the word of decoders
    """The Spark type of a lake column."""
    if type.precision:
        return t.DecimalType(type.precision, type.scale)
    if type.element is not None:
        return t.ArrayType(spark_type(type.element))
    scalar: t.DataType = getattr(t, str(type.facts.spark))()
    return scalar
