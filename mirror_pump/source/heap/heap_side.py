"""The heap side of a read: which rows of a table are wanted, and which columns hold values that their lake type cannot.

The copy meets such values as it goes, and reads again. A reader has to know its columns before it returns: so it asks
first, in its snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from decoders.columns import ColumnType, Kind
from mirror_pump.errors import TableError
from mirror_pump.model import Column, MirroredTable
from mirror_pump.quoting import identifier
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.heap.block_reader import Chunk, cut, read_chunk, read_leaves

CHUNK_BYTES = 64 << 20
"""Heap bytes that one task or thread reads."""


@dataclass(frozen=True)
class HeapSide:
    """The rows of a table's heap that a read takes, as of an exported snapshot. Picklable."""

    table: MirroredTable
    snapshot: str
    condition: str
    """In SQL; empty for all rows."""
    chunks: tuple[Chunk, ...]
    beside: frozenset[str]
    """Columns that hold values, among these rows, which need a sidecar."""
    blocks: int
    """Of the largest leaf."""
    odd: bool
    """Some row meets `needs_exact_reader`."""


def heap_side(connection: PgConnection, snapshot: str, table: MirroredTable, condition: str) -> HeapSide:
    """Looks through the rows, in `connection`'s snapshot, which `snapshot` names.

    Raises TableError if the table's columns are not those that the mirror knows: values would be taken for what they
    are not.
    """
    suspects = [column for column in table.columns if not column.type.holds_all and column.name not in table.key]
    tests = [*(unheld(column) for column in suspects), needs_exact_reader(table)]
    found: Sequence[bool] = [False] * len(tests)
    # The locks that looking takes, of the table itself and its DEFAULT partition, would keep others from adding
    # partitions for as long as the read is open: they go with the savepoint.
    with source_errors(f"looking through {table.name}"), connection.transaction(force_rollback=True):
        _check_columns(connection, table)
        leaves = read_leaves(connection, table.table_id)
        chunks = cut(leaves, CHUNK_BYTES)
        if chunks and set(tests) != {"false"}:
            selected = ", ".join(f"coalesce(bool_or({test}), false)" for test in tests)
            where = f" WHERE {condition}" if condition else ""
            query = f"SELECT {selected} FROM {table.name.quoted}{where}"
            found = connection.execute(query.encode()).fetchone() or found
    beside = frozenset(column.name for column, one in zip(suspects, found, strict=False) if one)
    blocks = max((leaf.blocks for leaf in leaves), default=0)
    return HeapSide(table, snapshot, condition, chunks, beside, blocks, found[-1])


def _check_columns(connection: PgConnection, table: MirroredTable) -> None:
    wanted = [(one.attnum, one.name, one.type_oid, one.type_modifier) for one in table.columns]
    with source_errors(f"comparing the columns of {table.name}"):
        present = connection.execute(_COLUMNS, {"oid": table.table_id}).fetchall()
    if missing := [name for number, name, *type_ in wanted if (number, name, *type_) not in present]:
        raise TableError(
            f"{table.name} was altered (column {missing[0]}), and the mirror has not come that far",
            "try again in a few seconds; `mirror-pump status` says if the table waits for something",
        )


_COLUMNS = """
SELECT attnum::int, attname, atttypid::bigint, atttypmod FROM pg_attribute
 WHERE attrelid = %(oid)s::bigint::oid AND attnum > 0 AND NOT attisdropped
"""


def read_heap(dsn: str, heap: HeapSide, chunk: Chunk, condition: str = "") -> Iterator[pa.RecordBatch]:
    """The chunk's rows, as `copyread.read_chunk` gives them, with UUIDs as text; `condition` on top of the side's."""
    both = " AND ".join(f"({one})" for one in (heap.condition, condition) if one)
    columns = tuple(replace(column, type=presented(column.type)) for column in heap.table.columns)
    return read_chunk(dsn, chunk, columns, snapshot=heap.snapshot, beside=heap.beside, where=both)


def presented(type: ColumnType) -> ColumnType:  # noqa: A002 - the word callers use
    """The type in which values are handed to an engine: neither Spark nor DuckDB takes a UUID from Arrow as such."""
    if type.element is not None:
        return replace(type, element=presented(type.element))
    return ColumnType(Kind.STRING) if type.kind is Kind.UUID else type


def unheld(column: Column) -> str:
    """SQL: whether a row's value is one that `column.type` cannot hold. May be NULL, for NULL."""
    return _unheld(identifier(column.name), column.type)


def _unheld(value: str, type: ColumnType) -> str:  # noqa: A002 - as above
    match type.kind:
        case Kind.DECIMAL:
            # NaN is above all numbers in Postgres's order.
            number = f"({value})::numeric"
            fits = f"abs({number}) < 1e{type.precision - type.scale}::numeric"
            return f"NOT (CASE WHEN {fits} THEN scale(trim_scale({number})) <= {type.scale} ELSE {number} IS NULL END)"
        case Kind.DATE:
            return f"NOT isfinite(({value})::date)"
        case Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            # Beyond lies what 64 bits of microseconds since 1970 cannot count; "-infinity" is below.
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
"""From here on Java's old calendar, in which the JDBC driver has dates and times, is the proleptic one of Postgres."""

_PLAIN_ARRAYS = {
    Kind.BOOLEAN: "boolean[]",
    Kind.INT: "int4[]",
    Kind.LONG: "int8[]",
    Kind.FLOAT: "float4[]",
    Kind.DOUBLE: "float8[]",
}
_TEXT_ARRAYS = frozenset({1009, 1015})
"""pg_type.oid of text[] and varchar[]: of others the elements' text would have to be asked for one by one."""


def plain_array(column: Column) -> str | None:
    """The Postgres type in which a list travels through JDBC as it is; None if there is none."""
    assert column.type.element is not None
    if column.type.element.kind is Kind.STRING:
        return "text[]" if column.type_oid in _TEXT_ARRAYS else None
    return _PLAIN_ARRAYS.get(column.type.element.kind)


def needs_exact_reader(table: MirroredTable) -> str:
    """SQL: whether a row holds a value that Spark would not get through JDBC as it is: one that needs a sidecar, one of
    before 1583, a list of other things than plain values. `false` for tables that can have none. May be NULL."""
    tests = []
    for column in table.columns:
        name = identifier(column.name)
        if not column.type.holds_all and column.name not in table.key:
            tests.append(unheld(column))
        if column.type.kind in (Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
            tests.append(f"{name} < '{_FIRST_PLAIN}'")
        if column.type.kind is Kind.LIST and plain_array(column) is None:
            tests.append(f"{name} IS NOT NULL")
    listed = [test for test in tests if test != "false"]
    # NULL OR true is true: one odd value is enough, whatever is NULL beside it.
    return f"({' OR '.join(listed)})" if listed else "false"
