"""`mirror-pump sql`: runs one statement on an embedded DuckDB. Each mirrored table that it names is a view there.

The mode decides which state of the tables a statement reads. That state is pinned until the statement ends:

- seam (the default): tiered tables, and those with heap retention, are read whole, as the database held them in one
  database snapshot P
  (see mirror_pump/source/catalog/consistent_snapshot.py). The other tables come from the lake, all at one frontier,
  which was published before P.
- lake: all tables come from the lake, at one frontier. Tables with heap retention lack the corrections that are not
  folded yet. Tiered tables have no frontier, and lack their rows in the heap as well.
- heap: all tables come from Postgres, in one database snapshot.
- hybrid: see mirror_pump/ops/reads/hybrid_reads.py.
- at a past frontier: see mirror_pump/ops/reads/time_travel.py. A statement may name one for each table
  (mirror_pump/ops/reads/statement_moments.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mirror_pump.database.quoting import identifier
from mirror_pump.engine.lake_storage import lake_storage, reachable_warehouses
from mirror_pump.errors import FileMissing, TableError, UsageError
from mirror_pump.lake.document.metadata_files import read_metadata
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn, MirroredTable, TableId, TableName, TableState, format_lsn
from mirror_pump.ops.duckdb_connection import open_duckdb, reach_storage
from mirror_pump.ops.reads.hybrid_reads import hybrid_reads
from mirror_pump.ops.reads.kept_reads import create_kept_views, named_moments
from mirror_pump.ops.reads.read_scope import ReadScope
from mirror_pump.ops.reads.scan_conditions import heap_conditions
from mirror_pump.ops.reads.state_choice import LeftOutTable, Reason, TablePast, require_all, state_at
from mirror_pump.ops.reads.statement_errors import refuse_writes, unreadable
from mirror_pump.ops.reads.statement_moments import PastTable
from mirror_pump.ops.reads.statement_tables import tables_of
from mirror_pump.ops.reads.statements import divided_explain
from mirror_pump.ops.reads.table_reads import (
    LakeSide,
    ReadMode,
    TableRead,
    Warn,
    dropped_read,
    heap_read,
    lake_read,
    main_head,
    one_frontier,
    published,
    seam_read,
    streams,
)
from mirror_pump.ops.reads.time_travel import PastPoint, history
from mirror_pump.ops.reads.views import create_schema, create_view, fill_tables
from mirror_pump.ops.status.wait_for_frontier import wait_for
from mirror_pump.pipeline.missing_files.missing_files import explain_failed_read
from mirror_pump.runtime.cores import available_cores
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.consistent_snapshot import ConsistentSnapshot, Locks, TableCutline
from mirror_pump.source.catalog.kept_moments import KeptMoment
from mirror_pump.source.catalog.pauses import paused_text
from mirror_pump.source.catalog.published_state import state_text
from mirror_pump.source.connect import connect, source_errors
from mirror_pump.source.relations.own_path import on_path
from mirror_pump.source.rows import fetch_rows
from sql import queries

if TYPE_CHECKING:
    import duckdb

_LOCKS = {ReadMode.SEAM: Locks.WITH_RETENTION, ReadMode.LAKE: Locks.NONE, ReadMode.HEAP: Locks.ALL}
_SQL = queries("names")
_FOLDS: tuple[Callable[[str], str], ...] = (str, str.lower)
"""How names are compared: exactly first."""


@dataclass(frozen=True)
class Query:
    """A statement and how its tables are to be read."""

    statement: str
    mode: ReadMode = ReadMode.SEAM
    at: PastPoint | None = None
    """A past state to read. If it is set, the lake is read and `mode` is ignored."""
    min_lsn: Lsn | None = None
    """The oldest frontier that may be read. None: the current frontier; in mode hybrid, the current end of WAL."""
    max_wait: float = 5.0
    """How long to wait for `min_lsn`, in seconds."""
    past: tuple[PastTable, ...] = ()
    """Tables that the statement reads as of moments of their own. It names their views instead of them."""


@contextmanager
def open_query(settings: Settings, query: Query, warn: Warn) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open DuckDB with views of the tables that the statement names. The tables are pinned until the block ends.

    The connection serves this statement only. Raises UsageError if the statement is not one query, and MirrorPumpError
    if the tables cannot be read as the query asks. Raises SourceError at the end of the block if a pin was lost
    meanwhile; the rows that were read may then be incomplete.
    """
    connection = open_duckdb()
    with ExitStack() as stack:
        stack.callback(connection.close)
        used = used_tables(connection, settings, query.statement)
        mirrored = mirrored_names(settings, [*used, *(table.parts for table in query.past)])
        moments = named_moments(settings, _moment_names(query))
        names = read_tables(used, _as_of(query.at, moments, mirrored))
        past = _past_tables(query.past, moments, mirrored)
        if not names and not past:
            yield connection
            return
        storage = lake_storage(settings, fsync=False)
        reach_storage(connection, reachable_warehouses(storage))
        if query.at is not None and query.at.name is not None:
            past[query.at] = {**past.get(query.at, {}), **names}
            names = {}
        for when in [when for when in past if when.name is not None]:
            for text in create_kept_views(connection, moments[str(when.name)], past.pop(when), storage):
                warn(text)
        if not names and not past:
            yield connection
            return
        scope = ReadScope(settings, storage, stack, warn)
        with explained_failures(settings, [*names, *(table_id for views in past.values() for table_id in views)]):
            reads = _reads(scope, query, names, past)
            for read, read_names in reads:
                made = create_view(connection, read)
                for name in read_names:
                    create_schema(connection, name)
                    connection.execute(f"CREATE VIEW {name} AS FROM {made}")
            tables = [read for read, _ in reads]
            fill_tables(connection, scope.dsn, tables, query.statement, available_cores(), scope.storage)
            yield connection
        for moment in scope.moments:
            moment.check()


@contextmanager
def explained_failures(settings: Settings, table_ids: Sequence[TableId]) -> Iterator[None]:
    """Raise TableError if the block fails to read a file and files of one of the tables are missing."""
    import duckdb

    try:
        yield
    except (FileMissing, duckdb.IOException, duckdb.HTTPException):
        explain_failed_read(settings.require_dsn(), table_ids, lake_storage(settings, fsync=False))
        raise


def used_tables(
    connection: duckdb.DuckDBPyConnection, settings: Settings, statement: str
) -> frozenset[tuple[str, ...]]:
    """Return the tables that the statement names. Raises UsageError if it is not one query."""
    import duckdb

    refuse_writes(statement)
    try:
        statements = connection.extract_statements(statement)
        refuse_writes(statement, {parsed.type.name for parsed in statements})
        if len(statements) != 1 or statements[0].type not in (
            duckdb.StatementType.SELECT,
            duckdb.StatementType.EXPLAIN,
        ):
            raise UsageError(
                "this is not one query", "give one statement: SELECT, WITH, VALUES, DESCRIBE, SUMMARIZE or EXPLAIN"
            )
        return tables_of(connection, divided_explain(statement)[1])
    except duckdb.Error as error:
        raise unreadable(connection, settings, statement, error) from error


@dataclass(frozen=True)
class MirroredNames:
    """The registered tables, and what names without a schema refer to."""

    tables: Mapping[TableId, TableName]
    schemas: Mapping[str, str]
    """The schema in which the role's own sessions find a relation of this name first."""


def mirrored_names(settings: Settings, used: Collection[tuple[str, ...]]) -> MirroredNames:
    """Return the registered tables, and the schemas of the used names."""
    with (
        connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-sql") as catalog,
        source_errors("reading the mirrored tables"),
    ):
        rows = fetch_rows(catalog, _QueriedTableRow, _SQL["tables"])
        tables = {row.table_id: TableName(row.schema_name, row.table_name) for row in rows}
        names = {fold(parts[0]) for parts in used if len(parts) == 1 for fold in _FOLDS}
        names &= {fold(table.name) for table in tables.values() for fold in _FOLDS}
        return MirroredNames(tables, on_path(catalog, names) if names else {})


def read_tables(used: Collection[tuple[str, ...]], mirrored: MirroredNames) -> dict[TableId, list[str]]:
    """Return the mirrored tables among the used ones, each with the SQL names that the statement uses for it."""
    used_tables: dict[TableId, list[str]] = {}
    for parts in sorted(used):
        table_id = _find(parts, mirrored)
        if table_id is not None:
            used_tables.setdefault(table_id, []).append(".".join(identifier(part) for part in parts))
    return used_tables


def _moment_names(query: Query) -> set[str]:
    """Return the names of the moments that the query asks for."""
    points = [*(table.when for table in query.past), *([] if query.at is None else [query.at])]
    return {point.name for point in points if point.name is not None}


def _as_of(when: PastPoint | None, moments: Mapping[str, KeptMoment], mirrored: MirroredNames) -> MirroredNames:
    """Return the tables that a statement can name: those of the moment, if it names one."""
    if when is None or when.name is None:
        return mirrored
    return replace(mirrored, tables={table.table_id: table.table for table in moments[when.name].tables})


def _past_tables(
    tables: Collection[PastTable], moments: Mapping[str, KeptMoment], mirrored: MirroredNames
) -> dict[PastPoint, dict[TableId, list[str]]]:
    """Return the views of each moment that the statement names, by table. Raises UsageError if a table is unknown."""
    views: dict[PastPoint, dict[TableId, list[str]]] = {}
    for table in tables:
        table_id = _find(table.parts, _as_of(table.when, moments, mirrored))
        if table_id is None and table.when.name is not None:
            raise UsageError(
                f"{'.'.join(table.parts)} is not a table of the moment {table.when.name}",
                "mirror-pump moment list --json shows the tables of each moment",
            )
        if table_id is None:
            raise UsageError(
                f"{'.'.join(table.parts)} is not a mirrored table, and only these have a past",
                "`SHOW TABLES` lists the mirrored tables",
            )
        views.setdefault(table.when, {}).setdefault(table_id, []).append(table.view)
    return views


@dataclass(frozen=True)
class _QueriedTableRow:
    """A row of the query `tables`."""

    table_id: TableId
    schema_name: str
    table_name: str


def _find(parts: tuple[str, ...], mirrored: MirroredNames) -> TableId | None:
    """Return the table of that name: without a schema, the one that the role's search_path finds, and if it finds none,
    the only mirrored one. Without an exact match, ignore case, as DuckDB does.

    Raises UsageError if several tables match, or the search_path finds one that is not mirrored.
    """
    if len(parts) > 2:
        return None
    for fold in _FOLDS:
        folded_parts = tuple(fold(part) for part in parts)
        matches = {
            table_id: name
            for table_id, name in mirrored.tables.items()
            if folded_parts == tuple(fold(part) for part in (name.schema, name.name))[-len(parts) :]
        }
        named = ", ".join(sorted(name.quoted for name in matches.values()))
        schema = mirrored.schemas.get(folded_parts[0]) if len(parts) == 1 and matches else None
        if schema is not None:
            visible = [table_id for table_id, name in matches.items() if name.schema == schema]
            if not visible:
                chosen = TableName(schema, folded_parts[0])
                raise UsageError(
                    f"{parts[0]} is {chosen} by the search_path of our role, and that is not mirrored",
                    f"name the schema: {named}",
                )
            matches = {table_id: matches[table_id] for table_id in visible}
        if len(matches) == 1:
            return next(iter(matches))
        if matches:
            raise UsageError(f"{'.'.join(parts)} is the name of several mirrored tables", f"name the schema: {named}")
    return None


def _reads(
    scope: ReadScope,
    query: Query,
    names: Mapping[TableId, list[str]],
    past: Mapping[PastPoint, Mapping[TableId, list[str]]],
) -> list[tuple[TableRead, list[str]]]:
    """Return the reads of the tables, each with the SQL names that the statement uses for it."""
    reads: list[tuple[TableRead, list[str]]] = []
    for number, (when, views) in enumerate(past.items(), 1):
        at = replace(query, at=when)
        past_reads = plain_reads(scope, at, list(views))
        reads += [(replace(read, copy=number), views[read.table.table_id]) for read in past_reads]

    def conditions(tables: Iterable[MirroredTable]) -> Mapping[TableId, str]:
        planned = {table: list(names[table.table_id]) for table in tables}
        for read, views in reads:
            planned.setdefault(read.table, []).extend(views)
        return heap_conditions(query.statement, planned)

    if not names:
        return reads
    scope = replace(scope, conditions=conditions)
    if query.at is None and query.mode is ReadMode.HYBRID:
        current_reads = hybrid_reads(scope, list(names), query.min_lsn, query.max_wait)
    else:
        current_reads = plain_reads(scope, query, list(names))
    return [*reads, *((read, names[read.table.table_id]) for read in current_reads)]


def plain_reads(scope: ReadScope, query: Query, table_ids: Sequence[TableId]) -> list[TableRead]:
    """Return the reads of the tables in any mode but hybrid."""
    storage, warn = scope.storage, scope.warn
    _await(scope.settings, query)
    locks = Locks.NONE if query.at is not None else _LOCKS[query.mode]
    moment = scope.enter(ConsistentSnapshot(scope.dsn, table_ids, locks=locks, stopped=scope.stopped))
    seams = list(moment.seams.values())
    if query.at is not None:
        return _past(query.at, moment, storage, warn)
    if query.mode is ReadMode.HEAP:
        conditions = scope.conditions(seam.table for seam in seams)
        return [heap_read(moment, seam, storage, conditions.get(seam.table.table_id, "")) for seam in seams]
    of_lake = [seam for seam in seams if query.mode is ReadMode.LAKE or not seam.has_retention]
    frontier = one_frontier(of_lake)
    if of_lake and len(of_lake) < len(seams):
        names = ", ".join(str(seam.table.name) for seam in of_lake)
        at = "" if frontier is None else f" {format_lsn(frontier)}"
        warn(
            f"{names}: as of the frontier{at}; the tables with a cut-line: as of now. A transaction in between"
            " is visible in the latter only (--mode lake reads all of them at one frontier)"
        )
    if query.mode is ReadMode.LAKE:
        for seam in seams:
            if not streams(seam):
                warn(
                    f"{seam.table.name} is a tiered table: its lake has no row from the cut-line on, and lacks"
                    " corrections that are not folded yet (--mode seam reads all of it)"
                )
    conditions = scope.conditions(seam.table for seam in seams) if len(of_lake) < len(seams) else {}
    reads = []
    for seam in seams:
        if seam not in of_lake and seam.state.dropped:
            reads.append(dropped_read(moment, seam, storage))
        elif seam not in of_lake:
            reads.append(seam_read(moment, seam, storage, conditions.get(seam.table.table_id, "")))
        else:
            lake = main_head(moment, seam, storage) if seam.has_retention else published(seam)
            reads.append(lake_read(seam, lake, storage))
        if (state := _not_followed(seam)) is not None:
            since = (
                "" if seam.state.frontier is None else f"; its lake ends at frontier {format_lsn(seam.state.frontier)}"
            )
            warn(f"{seam.table.name} {state}{since}")
    return reads


def _not_followed(seam: TableCutline) -> str | None:
    """Return why the table is not kept up to date. None if it is."""
    if seam.state.dropped:
        return "was dropped in Postgres"
    if seam.table.paused_since is not None:
        return f"is {paused_text(seam.table.paused_since, snapshot=seam.table.rests)}"
    return state_text(seam.table.state) if seam.table.state in (TableState.FAILED, TableState.WAITING) else None


def _await(settings: Settings, query: Query) -> None:
    """Wait until the frontier has reached `query.min_lsn`. Reads of the heap or of the past do not wait."""
    if query.min_lsn is None or query.mode is ReadMode.HEAP or query.at is not None:
        return
    error = wait_for(settings, query.min_lsn, query.max_wait).error
    if error is not None:
        raise error


def _past(when: PastPoint, moment: ConsistentSnapshot, storage: StorageOptions, warn: Warn) -> list[TableRead]:
    seams = {seam.table.name: seam for seam in moment.seams.values()}
    tables = [_with_past(seam, storage) for seam in seams.values()]
    choice = state_at(tables, when, time.time_ns() // 1_000_000)
    frontier = require_all(choice, tables)
    for name, snapshot_id in choice.chosen.items():
        moment.pin_also(seams[name].table.table_id, snapshot_id)
    # Once pinned, a snapshot stays. If a pin came too late, its snapshot is already gone.
    for name, snapshot_id in choice.chosen.items():
        location = moment.main_now(seams[name].table.table_id)
        if read_metadata(location, storage).snapshot(snapshot_id) is None:
            raise TableError(str(LeftOutTable(name, Reason.THINNED_MEANWHILE)), "try again")
    warn(f"{', '.join(map(str, seams))}: read at frontier {format_lsn(frontier)}")
    return [
        lake_read(seam, LakeSide(seam.state.pointer, choice.chosen[name], None), storage)
        for name, seam in seams.items()
    ]


def _with_past(seam: TableCutline, storage: StorageOptions) -> TablePast:
    past = history(read_metadata(seam.state.pointer, storage), seam.state.complete_from) if streams(seam) else None
    return TablePast(seam.table.name, seam.state, past)
