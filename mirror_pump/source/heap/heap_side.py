"""The heap side of a read: the wanted rows of a table, and the columns with values that their lake type cannot hold.

A copy can read a chunk again when it finds such a value. A reader has to know its columns before it returns rows, so it
looks for such values first, in its snapshot.

Invariant: a row has the values that the lake has of it, or would have. Masked columns come through the parser that
masks them for copies and the stream, rows that fail the table's row filter do not come at all, and no condition of a
statement on a masked column reaches PostgreSQL, which would compare it with the values themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import psycopg
import pyarrow as pa

from decoders.columns import ColumnType, Kind
from decoders.masks import MaskKeyUnusable
from mirror_pump.database.quoting import identifier
from mirror_pump.errors import TableError
from mirror_pump.model import Column, MirroredTable
from mirror_pump.source.connect import PgConnection, limited, source_errors
from mirror_pump.source.heap.block_reader import Chunk, HeapLeaf, chunks_of, read_chunk, read_leaves
from mirror_pump.source.heap.row_lookup import PresentColumn, present_columns

CHUNK_BYTES = 64 << 20
"""Heap bytes that one task or thread reads."""
_UNDIVIDED = 1 << 62
"""As the size of a chunk: a whole leaf."""
_BY_INDEX = frozenset({"Index Scan", "Index Only Scan", "Bitmap Heap Scan"})
"""Types of EXPLAIN's nodes."""
_FEW_ROWS = 100_000
"""Up to this many rows one connection reads by an index in less than a second."""


@dataclass(frozen=True)
class HeapSide:
    """The rows of a table's heap that a read takes, as of an exported snapshot. Picklable."""

    table: MirroredTable
    snapshot: str
    condition: str
    """An SQL condition on the rows. Empty for all rows."""
    chunks: tuple[Chunk, ...]
    raw_text_columns: frozenset[str]
    """Columns that contain, in these rows, values that need a raw text column."""
    blocks: int
    """The number of blocks of the largest leaf."""
    exact_reader_needed: bool
    """Whether some row meets the condition `needs_exact_reader`."""


def heap_side(
    connection: PgConnection, snapshot: str, table: MirroredTable, condition: str, *, rare_condition: str = ""
) -> HeapSide:
    """Examines the rows in `connection`'s snapshot, whose exported name is `snapshot`.

    `rare_condition` is one that only some rows meet, as a rule: a leaf in which PostgreSQL finds these by an index is
    read in one piece.

    Raises TableError if the table's columns are not those that the mirror knows, because values would be misread, and
    for a mask whose key this process does not have.
    """
    _refuse_variants(table)
    _require_mask_keys(table)
    suspects = [column for column in table.columns if not column.type.holds_all and column.name not in table.key]
    tests = [*(unheld(column) for column in suspects), needs_exact_reader(table)]
    tests_met: Sequence[bool] = [False] * len(tests)
    condition = " AND ".join(f"({part})" for part in (condition, table.row_filter, rare_condition) if part)
    # The query locks the table and its DEFAULT partition, which would keep others from adding partitions during the
    # read. Rolling back to a savepoint releases these locks.
    with source_errors(f"examining the rows of {table.name}"), connection.transaction(force_rollback=True):
        _check_columns(connection, table)
        leaves = read_leaves(connection, table.table_id)
        indexed = frozenset(
            leaf.relation_id for leaf in leaves if rare_condition and _is_indexed(connection, leaf, condition)
        )
        chunks = (
            *chunks_of((leaf for leaf in leaves if leaf.relation_id in indexed), _UNDIVIDED),
            *chunks_of((leaf for leaf in leaves if leaf.relation_id not in indexed), CHUNK_BYTES),
        )
        if chunks and set(tests) != {"false"}:
            tests_met = _test_rows(connection, table, leaves, tests, condition)
    raw_text_columns = frozenset(
        column.name for column, has_unheld in zip(suspects, tests_met, strict=False) if has_unheld
    )
    blocks = max((leaf.blocks for leaf in leaves), default=0)
    return HeapSide(table, snapshot, condition, chunks, raw_text_columns, blocks, tests_met[-1])


def _require_mask_keys(table: MirroredTable) -> None:
    for column in table.masked_columns:
        assert column.type.mask is not None
        try:
            column.type.mask.require_key()
        except MaskKeyUnusable as error:
            raise TableError(
                f"column {column.name} of {table.name} cannot be masked: {error}",
                "read the lake (mode lake), which has masks already, or give this process the key",
            ) from error


def _refuse_variants(table: MirroredTable) -> None:
    """Raise TableError for a table with variants: engines have other texts of documents than PostgreSQL."""
    variants = [column.name for column in table.columns if column.type.is_document]
    if variants:
        raise TableError(
            f"column {variants[0]} of {table.name} is a variant in the lake, and rows of the heap are not read as such",
            "read the lake (mode lake), or query PostgreSQL",
        )


def _test_rows(
    connection: PgConnection, table: MirroredTable, leaves: Sequence[HeapLeaf], tests: Sequence[str], condition: str
) -> Sequence[bool]:
    """Whether any row meets each of the tests.

    A query of the table skips partitions by their bounds. But DDL locks the table before the partitions, which the
    caller has locked already. So the query waits for the table as briefly as a step of the pump, before each would wait
    for the other; then all partitions are looked at.
    """
    selected = ", ".join(f"coalesce(bool_or({test}), false)" for test in tests)
    where = f" WHERE {condition}" if condition else ""

    def ask(relation: str) -> tuple[bool, ...]:
        return connection.execute(f"SELECT {selected} FROM {relation}{where}".encode()).fetchone() or ()

    with suppress(psycopg.errors.LockNotAvailable), limited(connection):
        return ask(table.name.quoted)
    answers = [ask(f"ONLY {leaf.table.quoted}") for leaf in leaves if leaf.blocks]
    return [any(column) for column in zip(*answers, strict=True)]


def _is_indexed(connection: PgConnection, leaf: HeapLeaf, condition: str) -> bool:
    """Whether PostgreSQL would look for the rows of a large leaf by an index, as it expects few."""
    if leaf.blocks * leaf.block_bytes <= CHUNK_BYTES:
        return False
    query = f"EXPLAIN (FORMAT json) SELECT FROM ONLY {leaf.table.quoted} WHERE {condition}"
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    plan = row[0][0]["Plan"]
    return plan["Node Type"] in _BY_INDEX and plan["Plan Rows"] <= _FEW_ROWS


def _check_columns(connection: PgConnection, table: MirroredTable) -> None:
    with source_errors(f"comparing the columns of {table.name}"):
        current_columns = {column.attnum: column for column in present_columns(connection, table.table_id)}
    if missing := [
        column.name
        for column in table.columns
        if current_columns.get(column.attnum)
        != PresentColumn(column.attnum, column.name, column.type_oid, column.type_modifier)
    ]:
        raise TableError(
            f"{table.name} was altered (column {missing[0]}), and the mirror has not applied that change yet",
            "try again in a few seconds; `mirror-pump status` shows if the table is waiting for something",
        )


def read_heap(dsn: str, heap: HeapSide, chunk: Chunk, condition: str = "") -> Iterator[pa.RecordBatch]:
    """The chunk's rows as `read_chunk` returns them, but with UUIDs as text. Rows must meet `condition` as well as
    `heap.condition`."""
    both = " AND ".join(f"({predicate})" for predicate in (heap.condition, condition) if predicate)
    columns = tuple(replace(column, type=presented(column.type)) for column in heap.table.columns)
    return read_chunk(dsn, chunk, columns, snapshot=heap.snapshot, raw_text_columns=heap.raw_text_columns, where=both)


def presented(type: ColumnType) -> ColumnType:  # noqa: A002 - the word callers use
    """The type in which values are passed to an engine: neither Spark nor DuckDB accepts Arrow's UUID type."""
    if type.element is not None:
        return replace(type, element=presented(type.element))
    return ColumnType(Kind.STRING) if type.facts.passed_as_text else type


def unheld(column: Column) -> str:
    """SQL condition: `column.type` cannot hold the row's value. May be NULL for a NULL value."""
    return _unheld(identifier(column.name), column.type)


def _unheld(value: str, type: ColumnType) -> str:  # noqa: A002 - as above
    match type.kind:
        case Kind.DECIMAL:
            # Postgres sorts NaN above all numbers.
            number = f"({value})::numeric"
            fits = f"abs({number}) < 1e{type.precision - type.scale}::numeric"
            return f"NOT (CASE WHEN {fits} THEN scale(trim_scale({number})) <= {type.scale} ELSE {number} IS NULL END)"
        case Kind.DATE:
            return f"NOT isfinite(({value})::date)"
        case Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            # 64 bits of microseconds since 1970 end there. "-infinity" is below all other values.
            name = "timestamp" if type.kind is Kind.TIMESTAMP else "timestamptz"
            return f"NOT (({value})::{name} < '294247-01-01' AND ({value})::{name} > '-infinity')"
        case Kind.LIST:
            assert type.element is not None
            shape = f"array_ndims({value}) > 1 OR array_lower({value}, 1) <> 1"
            if type.element.holds_all:
                return f"({shape})"
            return f"({shape} OR EXISTS (SELECT FROM unnest({value}) AS u(e) WHERE {_unheld('u.e', type.element)}))"
        case _:
            return "false"


_FIRST_PLAIN = "1583-01-01"
"""From this day on, the calendar that the JDBC driver uses for dates and times (Java's hybrid calendar) agrees with the
proleptic Gregorian calendar of Postgres."""

_TEXT_ARRAYS = frozenset({1009, 1015})
"""pg_type.oid of text[] and varchar[]. Other types would need a separate conversion of each element to text."""


def plain_array(column: Column) -> str | None:
    """The Postgres array type in which JDBC transfers the column's values unchanged. None if there is none."""
    assert column.type.element is not None
    if column.type.element.kind is Kind.STRING:
        return "text[]" if column.type_oid in _TEXT_ARRAYS else None
    facts = column.type.element.facts
    return None if facts.postgres is None or facts.quoted_in_array else f"{facts.postgres}[]"


def needs_exact_reader(table: MirroredTable) -> str:
    """SQL condition: JDBC would not transfer a value of the row to Spark unchanged. Such values are those that need a
    raw text column, times before 1583, and lists of anything but plain values. `false` for tables that cannot have any.
    May be NULL."""
    tests = []
    for column in table.columns:
        name = identifier(column.name)
        if not column.type.holds_all and column.name not in table.key:
            tests.append(unheld(column))
        if column.type.is_temporal:
            tests.append(f"{name} < '{_FIRST_PLAIN}'")
        if column.type.element is not None and plain_array(column) is None:
            tests.append(f"{name} IS NOT NULL")
    listed = [test for test in tests if test != "false"]
    # NULL OR true is true: one such value is enough, even if other columns are NULL.
    return f"({' OR '.join(listed)})" if listed else "false"
