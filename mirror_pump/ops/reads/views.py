"""Makes a table's read (mirror_pump/ops/reads/table_reads.py) a view in DuckDB."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa

from decoders.columns import ColumnType
from decoders.printing import print_values
from mirror_pump.database.quoting import identifier, literal
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.ops.document_rows import document_rows
from mirror_pump.ops.reads.statement_tables import planned_scans
from mirror_pump.ops.reads.table_reads import LakeSide, OutputColumn, TableRead, narrowed
from mirror_pump.source.heap.block_reader import Chunk
from mirror_pump.source.heap.heap_side import read_heap

if TYPE_CHECKING:
    import duckdb

_SCHEMA = "mirror_pump_read"
"""The DuckDB schema of the views and of the tables that they are built from."""


def create_view(connection: duckdb.DuckDBPyConnection, read: TableRead) -> str:
    """Create a view of the table that `read` describes, and return its SQL name.

    The heap's rows are still missing, and those of a lake table with variants, which DuckDB does not read exactly:
    `fill_tables` loads them.
    """
    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_SCHEMA}")
    listed = ", ".join(identifier(column.name) for column in read.columns)
    parts = []
    hidden = ""
    if read.corrections is not None:
        hidden = _store(connection, read, "keys", read.corrections.keys)
    keys = ", ".join(
        identifier(column.name) for column in read.columns if column.name in read.table.key and not column.raw
    )
    if read.lake is not None:
        if _is_loaded(read.lake, read):
            rows = _empty(connection, read, "lake", read.columns)
        else:
            rows = f"({_lake(connection, read, read.lake)})"
        of_lake = read.corrections is not None and read.corrections.of_lake
        parts.append(f"SELECT {listed} FROM {rows} l{f' ANTI JOIN {hidden} USING ({keys})' if of_lake else ''}")
    if read.heap is not None:
        rows = _empty(connection, read, "heap", read.columns)
        of_heap = read.corrections is not None and not read.corrections.of_lake
        parts.append(f"SELECT {listed} FROM {rows} h{f' ANTI JOIN {hidden} USING ({keys})' if of_heap else ''}")
    if read.corrections is not None:
        parts.append(f"SELECT {listed} FROM {_store(connection, read, 'rows', read.corrections.rows)}")
    name = _target(read, "table")
    connection.execute(f"CREATE VIEW {name} AS {' UNION ALL '.join(parts)}")
    return name


def create_schema(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    """Create the schema of a table's SQL name, if the name has one."""
    schema, dot, _ = name.partition('"."')
    if dot:
        connection.execute(f'CREATE SCHEMA IF NOT EXISTS {schema}"')


def _lake(connection: duckdb.DuckDBPyConnection, read: TableRead, lake: LakeSide) -> str:
    initial = {}
    if read.initial is not None:
        store = _store(connection, read, "initial", read.initial)
        initial = {name: f"(SELECT {identifier(name)} FROM {store})" for name in read.initial.column_names}
    selected = ", ".join(
        f"CAST({value} AS {duckdb_type(column.type)}) AS {identifier(column.name)}"
        for column in read.columns
        for value in [initial.get(column.name, "NULL") if column.lake_name is None else identifier(column.lake_name)]
    )
    at = "" if lake.snapshot_id in (None, -1) else f", snapshot_from_id = {lake.snapshot_id}"
    rows = f"SELECT {selected} FROM iceberg_scan({literal(lake.location)}{at})"
    return rows if lake.below is None else f"SELECT * FROM ({rows}) b WHERE {lake.below.below}"


def _is_loaded(lake: LakeSide | None, read: TableRead) -> bool:
    """Whether the lake's rows are read by the mirror's own code."""
    return lake is not None and any(column.type.is_document for column in read.columns)


def fill_tables(
    connection: duckdb.DuckDBPyConnection,
    dsn: str,
    reads: Sequence[TableRead],
    statement: str,
    threads: int,
    storage: StorageOptions,
) -> None:
    """Load the heap's rows into DuckDB over `threads` connections, with only the columns that DuckDB's plan scans; and
    so those of lake tables with variants.

    DuckDB spills what does not fit into memory to a temporary directory. Invariant: no plan scans a column that was not
    loaded. The plan can change once the tables are filled, so it is checked again. If it then scans other columns than
    it did for the empty tables, all columns are loaded.
    """
    loaded = {_target(read, "heap"): read for read in reads if read.heap is not None}
    loaded |= {_target(read, "lake"): read for read in reads if _is_loaded(read.lake, read)}
    if not loaded:
        return

    def fill(target: str, scanned: frozenset[str] | None) -> None:
        read = loaded[target]
        if target == _target(read, "heap"):
            _fill(connection, dsn, read, scanned, threads)
        else:
            _fill_lake(connection, read, scanned, storage)

    columns = {target: [column.name for column in read.columns] for target, read in loaded.items()}
    planned = _scanned(connection, statement, columns)
    for target in loaded:
        fill(target, None if planned is None else planned.get(target))
    if planned is None:
        return
    scanned = _scanned(connection, statement, columns)
    for target in loaded:
        brought = planned.get(target)
        if brought is not None and (scanned is None or not scanned.get(target, frozenset()) <= brought):
            connection.execute(f"DELETE FROM {target}")
            fill(target, None)


def _scanned(
    connection: duckdb.DuckDBPyConnection, statement: str, columns: Mapping[str, Sequence[str]]
) -> dict[str, frozenset[str]] | None:
    """Return the columns that the statement's plan reads, by table. None if DuckDB yields no plan.

    `columns` holds all columns of each table.
    """
    scans = planned_scans(connection, statement)
    if scans is None:
        return None
    by_table: dict[str, frozenset[str]] = {}
    for scan in scans:
        # The scan need not pass on a column that only a filter uses, so every name in the filter's text counts.
        filtered = {name for name in columns.get(scan.table, ()) if any(name in text for text in scan.filters)}
        by_table[scan.table] = by_table.get(scan.table, frozenset()) | scan.columns | filtered
    return by_table


def _fill_lake(
    connection: duckdb.DuckDBPyConnection, read: TableRead, scanned: frozenset[str] | None, storage: StorageOptions
) -> None:
    """Load these columns of the lake's rows, or all, but at least one."""
    lake = read.lake
    assert lake is not None
    lake_columns = [column for column in read.columns if column.lake_name is not None]
    columns = [column for column in lake_columns if scanned is None or column.name in scanned] or lake_columns[:1]
    listed = ", ".join(identifier(column.name) for column in columns)
    snapshot_id = None if lake.snapshot_id == -1 else lake.snapshot_id
    for batch in document_rows(lake.location, LakeSchema.of_table(read.table), storage, snapshot_id):
        arrays = [_presented(batch.column(column.name), column.type) for column in columns]
        rows = pa.table(arrays, names=[column.name for column in columns])
        connection.register("mirror_pump_batch", rows)
        connection.execute(f"INSERT INTO {_target(read, 'lake')} ({listed}) SELECT {listed} FROM mirror_pump_batch")
        connection.unregister("mirror_pump_batch")


def _presented(values: pa.Array, type: ColumnType) -> pa.Array:  # noqa: A002 - the word of decoders
    """The values as DuckDB takes them: UUIDs as texts."""
    if type.facts.passed_as_text:
        return print_values(values, type)
    if type.element is not None:
        whole = pa.concat_arrays([values])
        return pa.ListArray.from_arrays(whole.offsets, _presented(whole.values, type.element), mask=whole.is_null())
    return values


def _fill(
    connection: duckdb.DuckDBPyConnection, dsn: str, read: TableRead, scanned: frozenset[str] | None, threads: int
) -> None:
    assert read.heap is not None
    heap, names = narrowed(read, scanned)
    listed = ", ".join(identifier(name) for name in names)
    target = _target(read, "heap")

    def fetch(chunk: Chunk) -> list[pa.RecordBatch]:
        return list(read_heap(dsn, heap, chunk))

    with ThreadPoolExecutor(threads, thread_name_prefix="read-heap") as pool:
        for batches in _ahead(pool, fetch, heap.chunks, threads):
            for batch in batches:
                connection.register("mirror_pump_batch", pa.Table.from_batches([batch.rename_columns(names)]))
                connection.execute(f"INSERT INTO {target} ({listed}) SELECT {listed} FROM mirror_pump_batch")
                connection.unregister("mirror_pump_batch")


def _ahead(
    pool: ThreadPoolExecutor, fetch: Callable[[Chunk], list[pa.RecordBatch]], chunks: Sequence[Chunk], depth: int
) -> Iterator[list[pa.RecordBatch]]:
    """Yield the results in order. At most `depth` are fetched at once, so that the heap need not fit into memory."""
    pending = [pool.submit(fetch, chunk) for chunk in chunks[:depth]]
    for place in range(len(chunks)):
        yield pending.pop(0).result()
        if place + depth < len(chunks):
            pending.append(pool.submit(fetch, chunks[place + depth]))


def _store(connection: duckdb.DuckDBPyConnection, read: TableRead, part: str, content: pa.Table) -> str:
    columns = tuple(column for column in read.columns if column.name in content.column_names)
    target = _empty(connection, read, part, columns)
    listed = ", ".join(identifier(column.name) for column in columns)
    connection.register("mirror_pump_batch", content)
    connection.execute(f"INSERT INTO {target} ({listed}) SELECT {listed} FROM mirror_pump_batch")
    connection.unregister("mirror_pump_batch")
    return target


def _empty(connection: duckdb.DuckDBPyConnection, read: TableRead, part: str, columns: tuple[OutputColumn, ...]) -> str:
    target = _target(read, part)
    described = ", ".join(f"{identifier(column.name)} {duckdb_type(column.type)}" for column in columns)
    connection.execute(f"CREATE TABLE {target} ({described})")
    return target


def _target(read: TableRead, part: str) -> str:
    return f"{_SCHEMA}.{part}_{read.table.table_id}_{read.copy}"


def duckdb_type(type: ColumnType) -> str:  # noqa: A002 - the word of decoders
    """Return DuckDB's name of a mirrored column's type."""
    if type.precision:
        return f"DECIMAL({type.precision},{type.scale})"
    if type.element is not None:
        return f"{duckdb_type(type.element)}[]"
    name = type.facts.duckdb
    assert name is not None, type
    return name
