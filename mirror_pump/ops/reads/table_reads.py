"""Describes how to read a mirrored table, for any engine: the lake's side, the heap's side and the corrections.

A read is the union of
    the lake rows below `lake.below`, without the keys that the corrections hide there,
    the heap rows that meet `heap.condition`, without the keys that the corrections hide there,
    and the corrections' own rows.

Each mode fills in these parts:

seam    Tables with a cut-line (tiered, or with heap retention): the published snapshot of the lake (rows below the
        cut-line) with the corrections applied, and the heap from the cut-line on, all as of one database snapshot. See
        mirror_pump/source/catalog/consistent_snapshot.py for why that is one state. Plain mirrors: as `lake`.
lake    The lake's branch `main` as of the frontier, as every Iceberg engine sees it. For a table with heap retention,
        it lacks the corrections that are not folded yet. Of a tiered table it has the rows below the cut-line only.
heap    The rows of the heap, as a query in Postgres finds them.
hybrid  See mirror_pump/ops/reads/hybrid_reads.py.

Columns are matched with the lake's by field ID. A column that the pinned snapshot does not have yet is NULL there. The
published snapshot is read together with the current heap, so such a column has its initial value there
(Column.initial). The raw text columns are those of the lake's schema and those that rows of the other sides need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import pyarrow as pa

from decoders.columns import ColumnType
from decoders.text import parse_rows
from mirror_pump.database.quoting import identifier
from mirror_pump.errors import SourceError, TableError
from mirror_pump.lake.document.metadata_files import read_metadata
from mirror_pump.lake.format.raw_text_columns import RAW_TEXT_IDS_FROM, is_raw_text, raw_text_fields, with_raw_text
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Column, Lsn, MirroredTable, TableId, TableMode, TierKind
from mirror_pump.ops.reads.state_choice import LeftOutTable, Reason, TablePast, refusal, require_all, state_at
from mirror_pump.source.catalog.consistent_snapshot import ConsistentSnapshot, DeltaRow, TableCutline
from mirror_pump.source.heap.heap_side import HeapSide, heap_side, presented
from mirror_pump.source.relations.tier_keys import literal


class ReadMode(StrEnum):
    """Where the rows come from; see the module's docstring."""

    SEAM = "seam"
    LAKE = "lake"
    HEAP = "heap"
    HYBRID = "hybrid"


HeapConditions = Callable[[Iterable[MirroredTable]], Mapping[TableId, str]]
"""Given all tables of a statement, tells which rows of their heaps matter: those that meet an SQL condition, by table.
All rows of a table that is not in the result."""


def every_row(_tables: Iterable[MirroredTable]) -> Mapping[TableId, str]:
    """Say that all rows matter."""
    return {}


@dataclass(frozen=True)
class Point:
    """A value of a column at which its table is split."""

    column: str
    kind: TierKind
    value: int

    @property
    def literal(self) -> str | None:
        """The point as an SQL constant, for Postgres (which prunes partitions by constants when it plans) and DuckDB.

        None if the point is below every value that such a constant can express; all rows are then above it.
        """
        constant = literal(self.kind, self.value)
        return f"{self.kind.value} 'infinity'" if constant is None and self.value > 0 else constant

    @property
    def above(self) -> str:
        """The SQL condition that a row is at or above the point. Empty if every row is."""
        return "" if self.literal is None else f"{identifier(self.column)} >= {self.literal}"

    @property
    def below(self) -> str:
        return "false" if self.literal is None else f"{identifier(self.column)} < {self.literal}"


@dataclass(frozen=True)
class OutputColumn:
    """A column of the result."""

    name: str
    type: ColumnType
    lake_name: str | None
    """The column's name in the lake's snapshot. None if the snapshot does not have the column."""
    raw: bool
    """Whether it is a raw text column."""


@dataclass(frozen=True)
class LakeSide:
    """The rows of a table that come from the lake."""

    location: str
    """The path of a metadata file."""
    snapshot_id: int | None
    """The Iceberg snapshot to read. None: the current snapshot of the metadata file."""
    below: Point | None
    """Only rows below this point are read. None: all rows."""


@dataclass(frozen=True)
class Corrections:
    """Rows that replace rows of the lake's or of the heap's side."""

    keys: pa.Table
    """The keys of the rows to hide, in the key columns."""
    rows: pa.Table
    """The rows to add, in the result's columns."""
    of_lake: bool
    """True if rows of the lake's side are hidden, False if rows of the heap's side are."""


@dataclass(frozen=True)
class TableRead:
    """One table's part of a read."""

    table: MirroredTable
    mode: ReadMode
    columns: tuple[OutputColumn, ...]
    lake: LakeSide | None
    heap: HeapSide | None
    corrections: Corrections | None
    initial: pa.Table | None
    """One row with the values that lake rows have in columns that their snapshot lacks. Other such columns are NULL."""
    frontier: Lsn | None
    """The frontier of the lake's side, if that side is a state of the whole table."""
    copy: int = 0
    """Tells several reads of the table in one statement apart."""


def seam_read(
    moment: ConsistentSnapshot, seam: TableCutline, storage: StorageOptions, condition: str = ""
) -> TableRead:
    """Return the read of a whole table with a cut-line, as of the database snapshot.

    The heap's rows that fail `condition`, an SQL condition, may be left out.
    """
    tier = seam.table.tier
    assert tier is not None
    edge = Point(tier.column, tier.kind, seam.state.cut)
    heap = heap_side(moment.connection, moment.snapshot, seam.table, edge.above, rare_condition=condition)
    lake = LakeSide(seam.state.published_location, seam.state.snapshot_id, None)
    read = assemble(seam.table, ReadMode.SEAM, lake, heap, storage, moment.delta(seam), of_lake=True, frontier=None)
    return replace(read, initial=_initial(read))


def lake_read(seam: TableCutline, lake: LakeSide, storage: StorageOptions) -> TableRead:
    """Return a read of the lake alone."""
    frontier = promised(seam) if streams(seam) else None
    return assemble(seam.table, ReadMode.LAKE, lake, None, storage, (), of_lake=True, frontier=frontier)


def dropped_read(moment: ConsistentSnapshot, seam: TableCutline, storage: StorageOptions) -> TableRead:
    """Return the read of a dropped table with a cut-line.

    It consists of the lake's rows at the frontier and the corrections that are not folded yet. The heap no longer
    exists.
    """
    lake = main_head(moment, seam, storage)
    frontier = promised(seam) if streams(seam) else None
    return assemble(seam.table, ReadMode.LAKE, lake, None, storage, moment.delta(seam), of_lake=True, frontier=frontier)


def heap_read(
    moment: ConsistentSnapshot, seam: TableCutline, storage: StorageOptions, condition: str = ""
) -> TableRead:
    """Return a read of the heap alone. The lake's schema determines the raw text columns.

    Rows that fail `condition`, an SQL condition, may be left out. Raises TableError if the table was dropped.
    """
    if seam.state.dropped:
        raise TableError(f"{seam.table.name} was dropped in Postgres", "read what the lake has of it (mode lake)")
    heap = heap_side(moment.connection, moment.snapshot, seam.table, "", rare_condition=condition)
    schema = LakeSide(seam.state.pointer, None, None)
    whole = assemble(seam.table, ReadMode.HEAP, schema, heap, storage, (), of_lake=True, frontier=None)
    return TableRead(whole.table, whole.mode, whole.columns, None, whole.heap, None, None, None)


def published(seam: TableCutline) -> LakeSide:
    """Return the lake's side of a plain mirror at the frontier: the snapshot that the last publish made visible."""
    return LakeSide(seam.state.published_location, seam.state.snapshot_id, None)


def main_head(moment: ConsistentSnapshot, seam: TableCutline, storage: StorageOptions) -> LakeSide:
    """Return the lake's side of a table with a cut-line at the frontier: the head of `main`.

    The head is pinned as long as the database snapshot is held.
    """
    head = read_metadata(seam.state.pointer, storage).current_snapshot_id or -1
    moment.pin_also(seam.table.table_id, head)
    return LakeSide(seam.state.pointer, head, None)


def streams(seam: TableCutline) -> bool:
    """Return whether the table's changes come by the stream, so that its lake has a frontier."""
    return seam.table.mode is TableMode.MIRRORED


def promised(seam: TableCutline) -> Lsn:
    """Return the table's frontier. Raises TableError if it has none yet, because the table is still being copied."""
    if seam.state.frontier is None:
        raise refusal(LeftOutTable(seam.table.name, Reason.COPYING))
    return seam.state.frontier


def one_frontier(seams: Iterable[TableCutline]) -> Lsn | None:
    """Return the frontier that the tables share. None if there are none whose changes come by the stream.

    Raises TableError if the tables have different frontiers.
    """
    tables = [TablePast(seam.table.name, seam.state) for seam in seams if streams(seam)]
    return require_all(state_at(tables, None), tables) if tables else None


def assemble(
    table: MirroredTable,
    mode: ReadMode,
    lake: LakeSide,
    heap: HeapSide | None,
    storage: StorageOptions,
    rows: Sequence[DeltaRow],
    *,
    of_lake: bool,
    frontier: Lsn | None,
) -> TableRead:
    """Assemble the read of a table from its parts. `rows` are its corrections."""
    types = {column.name: presented(column.type) for column in table.columns}
    # Without rows no key of a mask is needed: the lake has masks already.
    values, raws = parse_rows([row.values for row in rows], types) if rows else ({}, {})
    needed = (
        frozenset() if heap is None else frozenset(c.field_id for c in table.columns if c.name in heap.raw_text_columns)
    )
    needed |= {column.field_id for column in table.columns if column.name in raws}
    columns = _columns(table, _schema(lake, storage), needed)
    corrections = None
    if rows:
        names = _raw_text_names(table)
        raw = {names[column.field_id]: raws[column.name] for column in table.columns if column.name in raws}
        nothing = pa.nulls(len(rows), pa.string())
        content = pa.table(
            {column.name: raw.get(column.name, nothing) if column.raw else values[column.name] for column in columns}
        )
        has_row = pa.array([not row.gone for row in rows], pa.bool_())
        corrections = Corrections(content.select(list(table.key)), content.filter(has_row), of_lake)
    return TableRead(table, mode, columns, lake, heap, corrections, None, frontier)


def _initial(read: TableRead) -> pa.Table | None:
    lacking = {column.name for column in read.columns if column.lake_name is None and not column.raw}
    added = [column for column in read.table.columns if column.initial is not None and column.name in lacking]
    if not added:
        return None
    values, _ = parse_rows(
        [[column.initial for column in added]], {column.name: presented(column.type) for column in added}
    )
    return pa.table(values)


def _schema(lake: LakeSide, storage: StorageOptions) -> LakeSchema:
    """Return the schema with which the lake's snapshot is read."""
    metadata = read_metadata(lake.location, storage)
    schema_id = metadata.current_schema_id
    if lake.snapshot_id is not None and lake.snapshot_id != -1:
        snapshot = metadata.snapshot(lake.snapshot_id)
        if snapshot is None:
            raise SourceError(
                f"snapshot {lake.snapshot_id} is not in {lake.location} any more",
                "try again; if it happens every time, report it with the output of `mirror-pump status`",
            )
        if lake.snapshot_id != metadata.current_snapshot_id and snapshot.schema_id is not None:
            schema_id = snapshot.schema_id
    return metadata.schema(schema_id)


def _raw_text_names(table: MirroredTable) -> dict[int, str]:
    """Return the names of the raw text columns, by the field ID of the column that each belongs to."""
    every = with_raw_text(LakeSchema.of_table(table), (column.field_id for column in table.columns))
    return {field.field_id - RAW_TEXT_IDS_FROM: field.name for field in every.fields if is_raw_text(field)}


def _columns(table: MirroredTable, lake: LakeSchema, needed: frozenset[int]) -> tuple[OutputColumn, ...]:
    names = {field.field_id: field.name for field in lake.fields}
    field_ids = needed | (raw_text_fields(lake) & {column.field_id for column in table.columns})
    schema = with_raw_text(LakeSchema.of_table(table), field_ids)
    return tuple(
        OutputColumn(field.name, field.type, names.get(field.field_id), is_raw_text(field)) for field in schema.fields
    )


def narrowed(read: TableRead, result_columns: frozenset[str] | None = None) -> tuple[HeapSide, list[str]]:
    """Narrow the heap's side to these `result_columns` (None: all), but to at least one column.

    Returns the narrowed side, and the names in the result of the columns that `source.heap.read_heap` then yields.
    """
    heap = read.heap
    assert heap is not None
    names = _raw_text_names(read.table)

    def used(column: Column) -> bool:
        return result_columns is None or column.name in result_columns or names.get(column.field_id) in result_columns

    columns = tuple(column for column in read.table.columns if used(column)) or read.table.key_columns[:1]
    raw_text = heap.raw_text_columns & {column.name for column in columns}
    raw = [names[column.field_id] for column in columns if column.name in raw_text]
    side = replace(heap, table=replace(heap.table, columns=columns), raw_text_columns=raw_text)
    return side, [*(column.name for column in columns), *raw]


def axis(table: MirroredTable) -> Column | None:
    """Return the column on which the table is split: the tier key, else the first key column.

    None if a table cannot be split on that column's type, or has no key.
    """
    if table.keyless:
        return None
    name = table.tier.column if table.tier is not None else table.key_columns[0].name
    column = next(column for column in table.columns if column.name == name)
    return column if column.type.is_ordinal else None


Warn = Callable[[str], Any]
"""Called with a sentence that the reader should see."""
