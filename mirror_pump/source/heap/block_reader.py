"""Reads a range of a heap's blocks as Arrow batches, with exactly the types that the stream gives to the same values.

Runs inside Spark tasks. Each chunk opens its own connection and one short transaction. Columns come packed where that
is possible (mirror_pump.source.heap.packed_columns), otherwise row by row.

Numeric values are read as text and go through the stream's parser; dates and times are read in ADBC's binary form. Of
the alternatives, this took the fewest CPU seconds of client and server together, measured for 4,300,000 rows of
public.acct with zstd Parquet (one run each on a busy machine): numeric as text from SQL 4.2, as scaled bigint 4.2 (and
an error on NaN), by ADBC's own conversion 5.0; with the latter, timestamptz as ADBC's microseconds 5.0, as text 5.7.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import shlex
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import adbc_driver_postgresql
import adbc_driver_postgresql.dbapi as adbc
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from adbc_driver_manager import AdbcConnection, AdbcDatabase
from psycopg.conninfo import conninfo_to_dict

from decoders.masks import MaskKeyUnusable
from decoders.text import Parsed, parse_text
from decoders.text_time import INFINITE_MICROSECONDS
from mirror_pump.database.quoting import identifier, literal
from mirror_pump.database.session_settings import SETTLE
from mirror_pump.errors import ConnectionLost, ExpectedOutcome, SourceError, TableError, one_line_of
from mirror_pump.model import Column, TableId, TableName
from mirror_pump.runtime.authentication import authenticated
from mirror_pump.source.connect import LOCK_TIMEOUT, PgConnection, adbc_uri, connect, source_errors
from mirror_pump.source.heap.packed_columns import packable
from mirror_pump.source.heap.packed_read import BATCH_BYTES, PackedRead
from mirror_pump.source.rows import fetch_rows
from sql import queries

_SQL = queries("heap")


_LARGER = 4
"""Chunks of a partitioned lake table are this many times as large. The memory of their tasks is the same."""
_BALANCED_ROUNDS = 8
"""Chunks for each worker from which on it matters little that some workers have one more."""
_LEAST_BYTES = 16 << 20
"""Least bytes of the heap in a chunk, for the sake of the files' size."""


@dataclass(frozen=True)
class _Heap:
    """A relation that holds rows itself: a plain table, or a leaf partition of a table."""

    relation_id: int
    schema: str
    name: str
    filenode: int
    """The value of pg_relation_filenode() when it was looked at."""

    @property
    def table(self) -> TableName:
        return TableName(self.schema, self.name)


@dataclass(frozen=True)
class Chunk(_Heap):
    """A range of blocks of one leaf relation."""

    lo_block: int
    hi_block: int | None
    """Exclusive. None: up to the end of the heap in the chunk's snapshot."""


class FilenodeChanged(TableError):
    """The heap was rewritten or replaced after the chunk was planned, so its block numbers are no longer valid."""


class HeapLocked(ExpectedOutcome):
    """Another session is altering the relation, or waiting to: its chunk has to be read later."""


class RawTextNeeded(ExpectedOutcome):
    """Columns contain values that their lake types cannot hold. The chunk has to be read again with raw text columns
    for `columns`."""

    def __init__(self, columns: frozenset[str]) -> None:
        super().__init__(f"columns {', '.join(sorted(columns))} contain values that need a raw text column")
        self.columns = columns


@dataclass(frozen=True)
class HeapLeaf(_Heap):
    """A relation that holds rows itself, and its size."""

    snapshot_filenode: int
    """The file that the session's snapshot belongs to. Another one than `filenode` if a TRUNCATE, or a rewrite, has
    committed since: an old snapshot finds the heap empty then, without an error."""
    blocks: int
    block_bytes: int


def plan_chunks(reader: PgConnection, table_id: TableId, target_bytes: int) -> tuple[Chunk, ...]:
    """Divides the heaps of a table, or of its leaf partitions, into ranges of about `target_bytes` on disk. `reader`
    has the snapshot in which they are read.

    Together the ranges cover every row that exists at the time of the call. The last range of each leaf has no upper
    end. Leaves without blocks get no chunk. Empty for a table that has no blocks or no longer exists. Raises
    FilenodeChanged if a heap was truncated or rewritten since that snapshot; `read_chunk` raises it for what comes
    later.
    """
    leaves = read_leaves(reader, table_id)
    for leaf in leaves:
        if leaf.filenode != leaf.snapshot_filenode:
            raise FilenodeChanged(f"{leaf.table} was truncated or rewritten since the snapshot", "try again")
    return chunks_of(leaves, target_bytes)


def read_leaves(conn: PgConnection, table_id: TableId) -> list[HeapLeaf]:
    """The heaps of a table; empty if the table no longer exists. Takes no locks."""
    with source_errors(f"looking for the heaps of relation {table_id}"):
        return fetch_rows(conn, HeapLeaf, _SQL["leaves"], {"oid": table_id})


def balanced_bytes(
    leaves: Iterable[HeapLeaf], target_bytes: int, workers: int, *, into_partitions: bool = False
) -> int:
    """Bytes of the heap for each chunk, at most `target_bytes`, so that this many workers have equal numbers of equal
    chunks and end together. Does not divide what takes a second anyway, and leaves large tables as they are.

    `into_partitions`: each chunk has a file for each of its lake partitions, so it is larger, and there are fewer."""
    target_bytes *= _LARGER if into_partitions else 1
    total = sum(leaf.blocks * leaf.block_bytes for leaf in leaves)
    rounds = -(-total // (target_bytes * workers))
    if rounds > _BALANCED_ROUNDS:
        return target_bytes
    return max(-(-total // (max(rounds, 1) * workers)), min(target_bytes, _LEAST_BYTES))


def chunks_of(leaves: Iterable[HeapLeaf], target_bytes: int) -> tuple[Chunk, ...]:
    """Like `plan_chunks`, for leaves that have been read already."""
    chunks = []
    for leaf in leaves:
        if not leaf.blocks:
            continue
        step = max(1, target_bytes // leaf.block_bytes)
        # A remainder of less than half a range is part of the range before it.
        bounds = [*range(0, max(1, leaf.blocks - step // 2), step), None]
        chunks += [
            Chunk(leaf.relation_id, leaf.schema, leaf.name, leaf.filenode, lo or 0, hi)
            for lo, hi in itertools.pairwise(bounds)
        ]
    return tuple(chunks)


def read_chunk(
    dsn: str,
    chunk: Chunk,
    columns: tuple[Column, ...],
    *,
    snapshot: str | None = None,
    batch_bytes: int = 16 << 20,
    raw_text_columns: frozenset[str] = frozenset(),
    where: str = "",
) -> Iterator[pa.RecordBatch]:
    """The chunk's rows in batches of about `batch_bytes`: `columns` in their order, each with its `type.arrow`.

    Then follows, in the same order, one string column for each column named in `raw_text_columns`. It holds the texts
    of the values that the column's type cannot hold, in rows where the column itself is NULL. `where` is an SQL
    condition on the rows.

    Reads in one REPEATABLE READ, READ ONLY transaction, with the exported `snapshot` if one is given. Raises

    - FilenodeChanged if the heap is not the planned one. This is checked under a lock that prevents a later rewrite.
    - HeapLocked if that lock cannot be taken at once; only without `snapshot`.
    - RawTextNeeded if a column outside of `raw_text_columns` contains a value that its type cannot hold. It is raised
      before a batch that would lack the value is yielded.
    - TableError for bytes that are not text; ConnectionLost or SourceError for everything else.
    """
    doing = f"copying {chunk.table}"
    statement = ""
    with (
        _errors(doing, lambda: _state_of(dsn, statement)),
        _connected(dsn, columns) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(SETTLE)
        if where and _is_excluded(cursor, chunk, where):
            where = "false"
        _begin(cursor, chunk, snapshot)
        _check_columns(cursor, chunk, columns)
        output = _output_functions(cursor, chunk, columns)
        packed = (
            None
            if where or raw_text_columns or not packable(columns)
            else PackedRead.of(cursor, chunk.relation_id, chunk.table, chunk.lo_block, chunk.hi_block, columns)
        )
        hint = batch_bytes if packed is None else min(batch_bytes, BATCH_BYTES)
        cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(hint)})
        if packed is None:
            statement = _select(chunk, columns, output, raw_text_columns, where)
            read = _rows(cursor, statement)
        else:
            statement = packed.statement(batch_bytes)
            read = packed.arrays(cursor, statement)
        schema = pa.schema([pa.field(column.name, column.type.arrow) for column in columns])
        texts = [pa.field(column.name, pa.string()) for column in columns if column.name in raw_text_columns]
        for arrays in read:
            values = _converted(arrays, chunk, columns, raw_text_columns)
            yield pa.RecordBatch.from_arrays(values, schema=pa.schema([*schema, *texts]))


def _converted(
    arrays: list[pa.Array], chunk: Chunk, columns: tuple[Column, ...], raw_text_columns: frozenset[str]
) -> list[pa.Array]:
    """The columns of a batch with the types of the lake, then the texts of what they cannot hold. Raises RawTextNeeded
    if others than `raw_text_columns` have such values."""
    parsed = [
        _convert(array, column, chunk, as_text=column.name in raw_text_columns)
        for array, column in zip(arrays, columns, strict=True)
    ]
    flagged = {
        column.name for column, result in zip(columns, parsed, strict=True) if result.unrepresentable is not None
    }
    if flagged - raw_text_columns:
        raise RawTextNeeded(frozenset(flagged))
    texts = [
        _texts_where(array, result.unrepresentable)
        for array, result, column in zip(arrays, parsed, columns, strict=True)
        if column.name in raw_text_columns
    ]
    return [*(result.values for result in parsed), *texts]


def _rows(cursor: Any, statement: str) -> Iterator[list[pa.Array]]:
    """The columns of batches of rows."""
    cursor.execute(statement)
    for batch in cursor.fetch_record_batch():
        yield batch.columns


_USE_COPY = adbc_driver_postgresql.StatementOptions.USE_COPY.value
"""Without it, the driver runs any statement that returns rows, and not only queries."""

_FIRST_ASSIGNED_OID = 10000
"""Types below have the same OID in every database of every server (FirstGenbkiObjectId in access/transam.h)."""

_sharing = threading.RLock()
"""Guards the driver's count of a database's connections. Reentrant: collecting garbage may close one."""


@contextlib.contextmanager
def _connected(dsn: str, columns: tuple[Column, ...]) -> Iterator[Any]:
    """A connection of ADBC's in autocommit mode. Raises adbc.Error.

    The driver reads all types of a database by a connection of their own, which costs 40 ms of CPU. This process does
    so once for each server that it has used lately, unless a column has a type that other databases may not have.
    """
    if any(column.type_oid >= _FIRST_ASSIGNED_OID for column in columns):
        with authenticated(dsn, lambda dsn: adbc.connect(adbc_uri(dsn), autocommit=True), _refused) as connection:
            yield connection
        return
    with _sharing:
        connection = authenticated(dsn, _shared_connection, _refused)
    try:
        yield connection
    finally:
        with _sharing:
            connection.close()


def _refused(error: Exception) -> bool:
    """Whether the password may be the reason: the driver does not tell."""
    return isinstance(error, adbc.Error)


def _shared_connection(dsn: str) -> adbc.Connection:
    uri = adbc_uri(dsn)
    types = _types_of(_Server.of(uri))
    # Where the next connection leads. The types stay.
    types.set_options(uri=uri)
    return adbc.Connection(_Shared(), AdbcConnection(types), autocommit=True)


@dataclass(frozen=True)
class _Server:
    """A server: two are equal if their connection strings differ in nothing but database and password."""

    parameters: frozenset[tuple[str, Any]]
    uri: str = field(compare=False)

    @classmethod
    def of(cls, uri: str) -> _Server:
        parameters = conninfo_to_dict(uri)
        parameters.pop("dbname", None)
        parameters.pop("password", None)
        return cls(frozenset(parameters.items()), uri)


@functools.lru_cache(maxsize=4)
def _types_of(server: _Server) -> AdbcDatabase:
    return adbc_driver_postgresql.connect(server.uri)


class _Shared:
    """Stands for a database that outlives its connections, which would close it."""

    def close(self) -> None:
        pass


def _is_excluded(cursor: Any, chunk: Chunk, condition: str) -> bool:
    """Whether the server knows from a partition's bounds that no row meets the condition. By default only queries of
    the parent ask for that.

    The server locks the parents for it until the transaction ends, so this one is short: no session could add a
    partition meanwhile. DDL locks parents before partitions, so it waits for them as briefly as a step of the pump.
    What it does not learn is no error; others are met by the read itself.
    """
    cursor.adbc_statement.set_options(**{_USE_COPY: "false"})
    cursor.execute("BEGIN READ ONLY")
    try:
        cursor.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
        cursor.execute("SET LOCAL constraint_exclusion = on")
        cursor.execute(f"EXPLAIN (COSTS off) SELECT FROM ONLY {chunk.table.quoted} WHERE {condition}")
        plan = [line for (line,) in cursor.fetchall()]
    except adbc.Error:
        return False
    finally:
        cursor.execute("ROLLBACK")
        cursor.adbc_statement.set_options(**{_USE_COPY: "true"})
    return plan[0] == "Result" and "  One-Time Filter: false" in plan


def _begin(cursor: Any, chunk: Chunk, snapshot: str | None) -> None:
    """Opens the transaction. Its snapshot is taken after the lock, so that both see the same heap."""
    cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    if snapshot is not None:
        # The session that exported the snapshot may hold the table's lock, with a DDL statement queued behind it. A
        # wait without limit would be a deadlock.
        cursor.execute("SET LOCAL lock_timeout = '30s'")
        cursor.execute(f"SET TRANSACTION SNAPSHOT {literal(snapshot)}")
    else:
        cursor.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
    gone = FilenodeChanged(
        f"{chunk.table} was rewritten or replaced while it was copied", "mirror-pump starts its copy again by itself"
    )
    try:
        cursor.execute(f"LOCK TABLE ONLY {chunk.table.quoted} IN ACCESS SHARE MODE")
    except adbc.Error as error:
        if error.sqlstate in ("42P01", "3F000"):
            raise gone from error
        if error.sqlstate == "55P03" and snapshot is None:
            raise HeapLocked(f"{chunk.table} is locked") from error
        raise
    cursor.execute(
        f"SELECT pg_relation_filenode(c.oid)::bigint FROM pg_class c WHERE c.oid = {chunk.relation_id}"
        f" AND c.oid = to_regclass({literal(chunk.table.quoted)})"
    )
    if cursor.fetchone() != (chunk.filenode,):
        raise gone


def _check_columns(cursor: Any, chunk: Chunk, columns: tuple[Column, ...]) -> None:
    """Raises FilenodeChanged unless the table has these columns. Columns are compared by number, which detects swapped
    names. A partition may number its columns differently, so those of the topmost table are compared: both are always
    altered together."""
    expected_columns = ", ".join(
        f"({column.attnum}, {literal(column.name)}, {column.type_oid}, {column.type_modifier})" for column in columns
    )
    cursor.execute(
        f"SELECT count(*) FROM (VALUES {expected_columns}) AS w(number, name, type, modifier) JOIN pg_attribute a"
        " ON a.attnum = w.number AND a.attname = w.name AND a.atttypid = w.type AND a.atttypmod = w.modifier"
        f" WHERE a.attrelid = coalesce(pg_partition_root({chunk.relation_id}), {chunk.relation_id})"
    )
    if cursor.fetchone() != (len(columns),):
        raise FilenodeChanged(
            f"{chunk.table} was altered while it was copied", "mirror-pump starts its copy again by itself"
        )


def _output_functions(cursor: Any, chunk: Chunk, columns: tuple[Column, ...]) -> dict[str, str | None]:
    """By column name, the output function of its type. None if ADBC delivers the text unchanged; empty for a domain."""
    # A domain has the output function of its base type (pg_type.typoutput). pgoutput prints with the same function. A
    # cast to text may differ: it drops the trailing blanks of char(n) and adds /32 to an inet.
    cursor.execute(
        "SELECT a.attname, CASE WHEN n.nspname = 'pg_catalog' AND p.proname IN ('textout', 'varcharout', 'bpcharout')"
        " THEN NULL WHEN t.typtype = 'd' THEN '' ELSE quote_ident(n.nspname) || '.' || quote_ident(p.proname) END"
        " FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid JOIN pg_proc p ON p.oid = t.typoutput"
        f" JOIN pg_namespace n ON n.oid = p.pronamespace WHERE a.attrelid = {chunk.relation_id} AND a.attnum > 0"
    )
    output: dict[str, str | None] = dict(cursor.fetchall())
    missing = [column.name for column in columns if column.name not in output]
    if missing:
        raise TableError(
            f"{chunk.table} has no column {missing[0]} any more: its columns changed during the copy",
            "unregister and register the table again",
        )
    return output


def _select(
    chunk: Chunk, columns: tuple[Column, ...], output: dict[str, str | None], as_text: frozenset[str], condition: str
) -> str:
    expressions = ", ".join(
        _expression(column, output[column.name], as_text=column.name in as_text) for column in columns
    )
    where = f"ctid >= '({chunk.lo_block},0)'"
    if chunk.hi_block is not None:
        where += f" AND ctid < '({chunk.hi_block},0)'"
    if condition:
        where += f" AND ({condition})"
    return f"SELECT {expressions} FROM ONLY {chunk.table.quoted} WHERE {where}"


def _expression(column: Column, output: str | None, *, as_text: bool) -> str:
    name = identifier(column.name)
    if column.type.is_whole:
        # oid is unsigned: ADBC's int32 would make the upper half negative.
        return f"{name}::{column.type.facts.postgres}"
    if (not column.type.facts.copied_as_text and not as_text) or output is None:
        return name
    if not output:
        # A domain: its base type's function may not accept it. format() finds the right function.
        return f"CASE WHEN {name} IS DISTINCT FROM NULL THEN pg_catalog.format('%s', {name}) END"
    return f"pg_catalog.textin({output}({name}))"


_FIRST_MICROSECOND = -210_866_803_200_000_000
"""4714-11-24 BC 00:00, the first timestamp of Postgres (datatype/timestamp.h). ADBC counts from 1970 instead of 2000.
Values that int64 cannot hold then, both infinities among them, wrap to numbers below this."""

_FIRST_DAY = -2_440_588
"""The same day as a date. The infinities of dates wrap to numbers below this."""


def _convert(array: pa.Array, column: Column, chunk: Chunk, *, as_text: bool) -> Parsed:
    """One column of a batch as `column.type.arrow`. `unrepresentable` is None if the type can hold all values."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    facts, arrow = column.type.facts, column.type.arrow
    is_text = facts.is_bytes and facts.copied_as_text
    if column.type.mask is not None:
        if column.type_oid not in _CHECKED_TEXT:
            _check_encoding(array, column, chunk)
        try:
            return parse_text(array, column.type)
        except MaskKeyUnusable as error:
            raise TableError(f"column {column.name} of {chunk.table} cannot be masked: {error}.") from error
    if column.type.precision and array.type == arrow:
        return Parsed(array, None)
    if as_text or (facts.copied_as_text and not is_text):
        try:
            parsed = parse_text(array, column.type)
        except ValueError as error:
            raise _changed(column, chunk) from error
        has_unrepresentable = parsed.unrepresentable is not None and pc.any(parsed.unrepresentable).as_py()
        return parsed if has_unrepresentable else Parsed(parsed.values, None)
    if column.type.is_temporal:
        days = pa.types.is_date(arrow)
        first = _FIRST_DAY if days else _FIRST_MICROSECOND
        last = None if days else INFINITE_MICROSECONDS - 1
        numbers = array.view(pa.int32() if days else pa.int64())
        extremes = pc.min_max(numbers)
        lowest, highest = extremes["min"].as_py(), extremes["max"].as_py()
        if lowest is not None and (lowest < first or (last is not None and highest > last)):
            outside = (
                pc.less(numbers, first) if last is None else pc.or_(pc.less(numbers, first), pc.greater(numbers, last))
            )
            return Parsed(array.cast(arrow), pc.fill_null(outside, fill_value=False))
    elif is_text and column.type_oid not in _CHECKED_TEXT:
        _check_encoding(array, column, chunk)
    if array.type == arrow:
        return Parsed(array, None)
    try:
        return Parsed(array.cast(arrow), None)
    except pa.ArrowInvalid as error:
        raise _changed(column, chunk) from error


_CHECKED_TEXT = frozenset({25, 1042, 1043})
"""text, char(n), varchar: the server only stores text in the database's encoding."""


def _check_encoding(array: pa.Array, column: Column, chunk: Chunk) -> None:
    """Raises TableError for bytes that are not UTF-8. Output functions may print such bytes: before PostgreSQL 16,
    "char" prints a byte above 127 unchanged."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise TableError(
            f"column {column.name} of {chunk.table} ({column.type_sql}) prints bytes that are not UTF-8",
            f"leave it out: mirror-pump register {chunk.table.shell} --exclude-column {shlex.quote(column.name)}",
        ) from error


def _texts_where(texts: pa.Array, flags: pa.Array | None) -> pa.Array:
    """The flagged texts, and NULL elsewhere."""
    texts = texts.cast(pa.string())
    return (
        pa.nulls(len(texts), pa.string()) if flags is None else pc.if_else(flags, texts, pa.scalar(None, pa.string()))
    )


def _changed(column: Column, chunk: Chunk) -> TableError:
    return TableError(
        f"column {column.name} of {chunk.table} is not {column.type_sql} any more: its type changed",
        "unregister and register the table again",
    )


_RETRIED = "mirror-pump tries again by itself"

_TEMPORARY_SQLSTATES = ("40", "53", "55P03", "57")
"""SQLSTATEs of temporary failures: conflicts, a lack of resources, a lock held by others, a cancelled query."""

_TABLE_SQLSTATES = ("22021", "22P05", "42501", "54", "58", "XX")
"""SQLSTATEs of failures that concern this table alone: characters that UTF-8 does not have, no permission to read it, a
row too large to be sent (54000; XX000 for a single value), a damaged heap."""

_TOO_LARGE = (
    "Postgres sends no row beyond 1 GB of text (bytea takes two characters a byte): make the row smaller, or leave the"
    " column out (--exclude-column), which helps as long as no change of the row sends it; then unregister the table"
    " and register it"
)


@contextlib.contextmanager
def _errors(doing: str, state_of: Callable[[], str]) -> Iterator[None]:
    """Translates ADBC's errors into ours, and those that Arrow raises while rows are fetched. `state_of` finds out the
    SQLSTATE of the latter, which do not have one."""
    try:
        yield
    except adbc.Error as error:
        detail = one_line_of(error)
        state = error.sqlstate or ""
        lost = state.startswith(("08", "57P")) or (
            not state and isinstance(error, adbc.OperationalError | adbc.InternalError)
        )
        if lost:
            raise ConnectionLost(f"the connection was lost while {doing}: {detail}", _RETRIED) from error
        if state.startswith(_TEMPORARY_SQLSTATES):
            raise ConnectionLost(f"Postgres aborted {doing}: {detail}", _RETRIED) from error
        if state.startswith(_TABLE_SQLSTATES):
            raise _table_error(doing, detail, state) from error
        raise SourceError(f"Postgres refused while {doing}: {detail}", "see the server's log") from error
    except (pa.ArrowException, OSError) as error:
        detail = one_line_of(error)
        state = state_of() if "PGRES_FATAL_ERROR" in detail else ""
        if state.startswith(_TABLE_SQLSTATES):
            raise _table_error(doing, detail, state) from error
        raise ConnectionLost(f"reading was interrupted while {doing}: {detail}", _RETRIED) from error


def _table_error(doing: str, detail: str, state: str) -> TableError:
    remedy = _TOO_LARGE if state.startswith(("54", "XX000")) else "change the row that the message is about, if any"
    return TableError(f"Postgres refused while {doing}: {detail.rpartition('ERROR: ')[2]}.", remedy)


def _state_of(dsn: str, statement: str) -> str:
    """The SQLSTATE with which Postgres refuses to print what the statement selects; empty if it does not refuse."""
    try:
        query = f"COPY ({statement}) TO STDOUT (FORMAT binary)".encode()
        with connect(dsn, autocommit=True) as connection, connection.cursor() as cursor, cursor.copy(query) as copy:
            for _ in copy:
                pass
    except psycopg.Error as error:
        return error.sqlstate or ""
    return ""
