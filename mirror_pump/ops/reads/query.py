"""`mirror-pump sql`: one statement on an embedded DuckDB, in which every mirrored table that it names is a view.

All tables of a statement are read as of one moment, which is pinned until the statement is over:

- seam (the default): tables with heap retention are read whole, as the database held them in one snapshot P (see
  mirror_pump/source/catalog/consistent_snapshot.py). The other tables come from the lake, all at one F; F was
  published before P.
- lake: everything from the lake, at one F; of tables with retention, corrections of old rows as far as folded.
- heap: what the tables hold in Postgres, all in one snapshot.
- hybrid: see mirror_pump/ops/reads/hybrid_reads.py.
- at some F of the past: see mirror_pump/ops/reads/time_travel.py.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mirror_pump.config import Settings
from mirror_pump.errors import TableError, UsageError
from mirror_pump.lake.format.metadata import read_metadata, snapshot_of
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn, TableId, TableName, format_lsn
from mirror_pump.ops.duckdb.duckdb_connection import duckdb_message, open_duckdb, reach_storage
from mirror_pump.ops.reads.hybrid_reads import hybrid_reads
from mirror_pump.ops.reads.table_reads import (
    LakeSide,
    ReadMode,
    TableRead,
    Warn,
    heap_read,
    lake_read,
    main_head,
    one_frontier,
    promised,
    published,
    seam_read,
)
from mirror_pump.ops.reads.time_travel import When, history, snapshots_at
from mirror_pump.ops.reads.views import create_view, fill_heaps
from mirror_pump.ops.status.wait_for_frontier import wait_for
from mirror_pump.quoting import identifier
from mirror_pump.source.catalog.consistent_snapshot import ConsistentSnapshot, Locks, TableCutline
from mirror_pump.source.connect import connect, source_errors

if TYPE_CHECKING:
    import duckdb

_LOCKS = {ReadMode.SEAM: Locks.DIVIDED, ReadMode.LAKE: Locks.NONE, ReadMode.HEAP: Locks.ALL}
_TABLES = (
    "SELECT t.table_id, t.schema_name, t.table_name FROM modak.mirror_tables m JOIN modak.tables t USING (table_id)"
)


@dataclass(frozen=True)
class Query:
    """A statement and how its tables are to be read."""

    statement: str
    mode: ReadMode = ReadMode.SEAM
    at: When | None = None
    """A state of the past; then the lake is read, whatever `mode` says."""
    min_lsn: Lsn | None = None
    """Nothing older than this is read. None: whatever F is; with hybrid, the present end of WAL."""
    max_wait: float = 5.0
    """Seconds to wait for that."""


@contextmanager
def open_query(settings: Settings, query: Query, warn: Warn) -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB with the statement's tables, for this statement, which are pinned until the block ends.

    Raises UsageError for a statement that is not one query, MirrorPumpError for tables that cannot be read so. At the
    end of the block, SourceError if a pin was lost in the middle: then what was read may lack rows.
    """
    connection = open_duckdb()
    with ExitStack() as stack:
        stack.callback(connection.close)
        names = _tables(settings, connection, query.statement)
        if not names:
            yield connection
            return
        reach_storage(connection, settings)
        moments: list[ConsistentSnapshot] = []
        reads = _reads(settings, query, list(names), stack, moments, warn)
        for read in reads:
            made = create_view(connection, read)
            for name in names[read.table.table_id]:
                _schema(connection, name)
                connection.execute(f"CREATE VIEW {name} AS FROM {made}")
        fill_heaps(connection, settings.require_dsn(), reads, query.statement, os.cpu_count() or 1)
        yield connection
        for moment in moments:
            moment.check()


def _schema(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    schema, dot, _ = name.partition('"."')
    if dot:
        connection.execute(f'CREATE SCHEMA IF NOT EXISTS {schema}"')


def _tables(settings: Settings, connection: duckdb.DuckDBPyConnection, statement: str) -> dict[TableId, list[str]]:
    """The mirrored tables that the statement names, each with the names (as SQL) that it uses."""
    import duckdb

    try:
        statements = connection.extract_statements(statement)
        if len(statements) != 1 or statements[0].type not in (
            duckdb.StatementType.SELECT,
            duckdb.StatementType.EXPLAIN,
        ):
            raise UsageError(
                "this is not one query", "give one statement: SELECT, WITH, VALUES, DESCRIBE, SUMMARIZE or EXPLAIN"
            )
        explained = statement.lstrip()
        if statements[0].type == duckdb.StatementType.EXPLAIN:
            explained = _explained(explained)
        used = connection.get_table_names(explained, qualified=True)
    except duckdb.Error as error:
        raise UsageError(f"DuckDB cannot read the statement: {duckdb_message(error)}") from error
    with (
        connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-sql") as catalog,
        source_errors("reading the mirrored tables"),
    ):
        mirrored = {
            TableId(table_id): TableName(schema, name) for table_id, schema, name in catalog.execute(_TABLES).fetchall()
        }
    found: dict[TableId, list[str]] = {}
    for parts in sorted({_parts(name) for name in used}):
        table_id = _find(parts, mirrored)
        if table_id is not None:
            found.setdefault(table_id, []).append(".".join(identifier(part) for part in parts))
    return found


def _explained(statement: str) -> str:
    """The query inside an EXPLAIN."""
    words = statement.split(None, 2)
    rest = words[2] if len(words) > 2 and words[1].lower() == "analyze" else statement.split(None, 1)[1]
    return rest if not rest.startswith("(FORMAT") else rest.partition(")")[2]


def _parts(name: str) -> tuple[str, ...]:
    """The parts of a qualified name, which DuckDB quotes where it has to; ` AS alias` may follow it."""
    found = []
    part = _PART.match(name)
    while part is not None:
        found.append(part[2] or part[1].replace('""', '"'))
        part = _PART.match(name, part.end() + 1) if name[part.end() : part.end() + 1] == "." else None
    return tuple(found)


_PART = re.compile(r'"((?:[^"]|"")*)"|([^."\s]+)')


def _find(parts: tuple[str, ...], mirrored: Mapping[TableId, TableName]) -> TableId | None:
    """The table of that name: exactly, else in whatever case, as DuckDB compares. UsageError if several have it."""
    if len(parts) > 2:
        return None
    for fold in (str, str.lower):
        wanted = tuple(fold(part) for part in parts)
        found = [
            table_id
            for table_id, name in mirrored.items()
            if wanted == tuple(fold(part) for part in (name.schema, name.name))[-len(parts) :]
        ]
        if len(found) == 1:
            return found[0]
        if found:
            named = ", ".join(sorted(mirrored[one].quoted for one in found))
            raise UsageError(f"{'.'.join(parts)} is the name of several mirrored tables", f"name the schema: {named}")
    return None


def _reads(
    settings: Settings,
    query: Query,
    table_ids: Sequence[TableId],
    stack: ExitStack,
    moments: list[ConsistentSnapshot],
    warn: Warn,
) -> list[TableRead]:
    storage = StorageOptions(settings.storage_properties, fsync=False)

    def enter(opened: ConsistentSnapshot) -> ConsistentSnapshot:
        moments.append(stack.enter_context(opened))
        return opened

    if query.at is None and query.mode is ReadMode.HYBRID:
        return hybrid_reads(settings, table_ids, query.min_lsn, query.max_wait, None, storage, enter, warn)
    return plain_reads(settings, query, table_ids, storage, enter, warn)


def plain_reads(
    settings: Settings,
    query: Query,
    table_ids: Sequence[TableId],
    storage: StorageOptions,
    enter: Callable[[ConsistentSnapshot], ConsistentSnapshot],
    warn: Warn,
    stopped: Callable[[], bool] = lambda: False,
) -> list[TableRead]:
    """The tables' reads in any mode but hybrid. `enter` takes the moment that they hold for as long as they last."""
    dsn = settings.require_dsn()
    _await(settings, query)
    locks = Locks.NONE if query.at is not None else _LOCKS[query.mode]
    moment = enter(ConsistentSnapshot(dsn, table_ids, locks=locks, stopped=stopped))
    seams = list(moment.seams.values())
    if query.at is not None:
        return _past(query.at, moment, storage, warn)
    if query.mode is ReadMode.HEAP:
        return [heap_read(moment, seam, storage) for seam in seams]
    of_lake = [seam for seam in seams if query.mode is ReadMode.LAKE or not seam.divided]
    frontier = one_frontier(of_lake)
    if of_lake and len(of_lake) < len(seams):
        names = ", ".join(str(seam.table.name) for seam in of_lake)
        at = "" if frontier is None else f" = {format_lsn(frontier)}"
        warn(
            f"{names}: as of F{at}; the tables with heap retention: as of now. A transaction in between shows in these"
            " alone (--mode lake: all of them at F)"
        )
    reads = []
    for seam in seams:
        if seam not in of_lake:
            reads.append(seam_read(moment, seam, storage))
        else:
            lake = main_head(moment, seam, storage) if seam.divided else published(seam)
            reads.append(lake_read(seam, lake, storage))
        if seam.table.state.value == "failed":
            since = "" if seam.frontier is None else f"; its lake ends at F = {format_lsn(seam.frontier)}"
            warn(f"{seam.table.name} was set aside by the mirror{since}")
    return reads


def _await(settings: Settings, query: Query) -> None:
    """Until F has passed what the reader requires; the heap needs no waiting."""
    if query.min_lsn is None or query.mode is ReadMode.HEAP or query.at is not None:
        return
    error = wait_for(settings, query.min_lsn, query.max_wait).error
    if error is not None:
        raise error


def _past(when: When, moment: ConsistentSnapshot, storage: StorageOptions, warn: Warn) -> list[TableRead]:
    seams = {seam.table.name: seam for seam in moment.seams.values()}
    present = one_frontier(seams.values())
    assert present is not None
    documents = {name: read_metadata(seam.main_location, storage) for name, seam in seams.items()}
    histories = {name: history(one, _complete_from(seams[name])) for name, one in documents.items()}
    frontier, found = snapshots_at(when, histories, present, time.time_ns() // 1_000_000)
    for name, snapshot_id in found.items():
        moment.pin_also(seams[name].table.table_id, snapshot_id)
    # What is thinned out from now on is not these, which are pinned. A pin that came too late finds its snapshot gone.
    for name, snapshot_id in found.items():
        location = moment.main_now(seams[name].table.table_id)
        if snapshot_of(read_metadata(location, storage), snapshot_id) is None:
            raise TableError(f"the history of {name} was thinned out this moment", "try again")
    warn(f"read at F = {format_lsn(frontier)}")
    return [lake_read(seam, LakeSide(seam.main_location, found[name], None), storage) for name, seam in seams.items()]


def _complete_from(seam: TableCutline) -> Lsn:
    """The position before which the table's copy was not complete; 0 while it is copied again, as readers see what it
    was before."""
    position = seam.table.live_after_lsn or Lsn(0)
    return position if position <= promised(seam) else Lsn(0)
