"""What it takes to read a mirrored table, for whichever engine does it: the lake's side, the heap's side, corrections.

A read is
    (lake rows below `lake.below`, without the keys that the corrections hide there)
    + (heap rows that meet `heap.condition`, without the keys that the corrections hide there)
    + the corrections' own rows,
and each mode is one way to fill that in:

seam    tables with heap retention: the lake at the published snapshot (rows below the cut-line), corrected by the
delta, and the heap from the cut-line on, all as
        of the moment (mirror_pump/source/catalog/consistent_snapshot.py argues why that is one state). Plain mirrors:
        as `lake`.
lake    the lake's `main` as of the frontier, as every Iceberg engine sees it. Of a table with retention that lacks the
corrections
        that are not folded yet.
heap    what the heap holds, as a query of Postgres would find it.
hybrid  see mirror_pump/ops/reads/hybrid_reads.py.

Columns are the lake's, by field ID: a column that the pinned snapshot does not have yet is NULL there; in the published
snapshot, which goes with the heap as it is now, it is what rows from before the column have (Column.initial). Sidecars
are those that the lake's schema has, and those that rows of the other sides need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import pyarrow as pa

from decoders.columns import ColumnType, Kind
from decoders.text import parse_rows
from mirror_pump.errors import SourceError, TableError
from mirror_pump.lake.format.metadata import read_metadata, snapshot_of
from mirror_pump.lake.format.raw_text_columns import SIDECAR_IDS_FROM, is_raw_text, raw_text_fields, with_raw_text
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Column, Lsn, MirroredTable, TableState, TierKind
from mirror_pump.quoting import identifier
from mirror_pump.source.catalog.consistent_snapshot import ConsistentSnapshot, DeltaRow, TableCutline
from mirror_pump.source.heap.heap_side import HeapSide, heap_side, presented
from mirror_pump.source.relations.tier_keys import literal


class ReadMode(StrEnum):
    """Where rows come from; see the module's text."""

    SEAM = "seam"
    LAKE = "lake"
    HEAP = "heap"
    HYBRID = "hybrid"


@dataclass(frozen=True)
class Point:
    """A point on a column's axis."""

    column: str
    kind: TierKind
    value: int

    @property
    def literal(self) -> str | None:
        """As a constant in SQL, for Postgres (which leaves partitions out when it plans by constants) and for DuckDB;
        None below everything that such a constant can name, where all rows are above."""
        found = literal(self.kind, self.value)
        return f"{self.kind.value} 'infinity'" if found is None and self.value > 0 else found

    @property
    def above(self) -> str:
        """The condition, in SQL, that a row is at or above the point; empty if every row is."""
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
    """What the lake's snapshot calls it; None if it does not have it."""
    raw: bool
    """A sidecar."""


@dataclass(frozen=True)
class LakeSide:
    location: str
    """A metadata file."""
    snapshot_id: int | None
    """None: the metadata file's current one."""
    below: Point | None
    """Only rows below it; None: all rows."""


@dataclass(frozen=True)
class Corrections:
    """Rows that stand in place of others."""

    keys: pa.Table
    """The key columns, by name: rows with these are hidden."""
    rows: pa.Table
    """The result's columns: rows to add."""
    of_lake: bool
    """Whether rows of the lake's side are hidden, or of the heap's."""


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
    """One row: what the lake's rows have in columns that its snapshot lacks; in those that are not here, NULL."""
    frontier: Lsn | None
    """The frontier of the lake's side, where it is a state of the whole table."""


def seam_read(moment: ConsistentSnapshot, seam: TableCutline, storage: StorageOptions) -> TableRead:
    """A table with heap retention, whole, as of the moment."""
    tier = seam.table.tier
    assert tier is not None
    edge = Point(tier.column, tier.kind, seam.cut)
    heap = heap_side(moment.connection, moment.snapshot, seam.table, edge.above)
    lake = LakeSide(seam.location, seam.snapshot_id, None)
    read = assemble(seam.table, ReadMode.SEAM, lake, heap, storage, moment.delta(seam), of_lake=True, frontier=None)
    return replace(read, initial=_initial(read))


def lake_read(seam: TableCutline, lake: LakeSide, storage: StorageOptions) -> TableRead:
    """The lake alone."""
    return assemble(seam.table, ReadMode.LAKE, lake, None, storage, (), of_lake=True, frontier=promised(seam))


def dropped_read(moment: ConsistentSnapshot, seam: TableCutline, storage: StorageOptions) -> TableRead:
    """A table with heap retention that was dropped: all that was in the lake at the frontier, and the corrections of
    old rows that are not folded yet. There is no heap any more."""
    lake = main_head(moment, seam, storage)
    frontier = promised(seam)
    return assemble(seam.table, ReadMode.LAKE, lake, None, storage, moment.delta(seam), of_lake=True, frontier=frontier)


def heap_read(moment: ConsistentSnapshot, seam: TableCutline, storage: StorageOptions) -> TableRead:
    """The heap alone. The lake's schema says which sidecars there are. TableError for a table that was dropped."""
    if seam.dropped:
        raise TableError(f"{seam.table.name} was dropped in Postgres", "read what the lake has of it (mode lake)")
    heap = heap_side(moment.connection, moment.snapshot, seam.table, "")
    schema = LakeSide(seam.main_location, None, None)
    whole = assemble(seam.table, ReadMode.HEAP, schema, heap, storage, (), of_lake=True, frontier=None)
    return TableRead(whole.table, whole.mode, whole.columns, None, whole.heap, None, None, None)


def published(seam: TableCutline) -> LakeSide:
    """The lake's side of a plain mirror at the frontier: the published snapshot is what the last publish made readers'
    own."""
    return LakeSide(seam.location, seam.snapshot_id, None)


def main_head(moment: ConsistentSnapshot, seam: TableCutline, storage: StorageOptions) -> LakeSide:
    """The lake's side of a table with retention at the frontier: `main`, whose head is pinned for the moment."""
    head = int(read_metadata(seam.main_location, storage).get("current-snapshot-id") or -1)
    moment.pin_also(seam.table.table_id, head)
    return LakeSide(seam.main_location, head, None)


def promised(seam: TableCutline) -> Lsn:
    """The frontier. TableError while readers are promised nothing."""
    if seam.frontier is None:
        raise TableError(
            f"{seam.table.name} is still being copied into the lake",
            "wait until `mirror-pump status` shows it live, or read the heap (mode heap)",
        )
    return seam.frontier


def one_frontier(seams: Iterable[TableCutline]) -> Lsn | None:
    """The frontier that the tables share; None for no table. TableError if one of them was left behind by the
    others."""
    found = {promised(seam): seam for seam in seams}
    if len(found) > 1:
        oldest = found[min(found)]
        state = "was set aside" if oldest.table.state is TableState.FAILED else "is behind"
        if oldest.dropped:
            state = "was dropped in Postgres"
        raise TableError(
            f"{oldest.table.name} {state}: the tables of this statement cannot be read at one frontier",
            "see `mirror-pump status`, or read the tables one by one",
        )
    return next(iter(found), None)


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
    """The read of a table from its parts; `rows` are its corrections."""
    values, raws = parse_rows(
        [row.values for row in rows], {column.name: presented(column.type) for column in table.columns}
    )
    needed = (
        frozenset() if heap is None else frozenset(c.field_id for c in table.columns if c.name in heap.raw_text_columns)
    )
    needed |= {column.field_id for column in table.columns if column.name in raws}
    columns = _columns(table, _schema(lake, storage), needed)
    corrections = None
    if rows:
        names = _sidecar_names(table)
        raw = {names[column.field_id]: raws[column.name] for column in table.columns if column.name in raws}
        nothing = pa.nulls(len(rows), pa.string())
        content = pa.table(
            {column.name: raw.get(column.name, nothing) if column.raw else values[column.name] for column in columns}
        )
        kept = pa.array([not row.gone for row in rows], pa.bool_())
        corrections = Corrections(content.select(list(table.key)), content.filter(kept), of_lake)
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
    """The schema by which the lake's snapshot is read."""
    metadata = read_metadata(lake.location, storage)
    schema_id = metadata["current-schema-id"]
    if lake.snapshot_id is not None and lake.snapshot_id != -1:
        snapshot = snapshot_of(metadata, lake.snapshot_id)
        if snapshot is None:
            raise SourceError(
                f"snapshot {lake.snapshot_id} is not in {lake.location} any more",
                "try again; if it happens every time, report it with the output of `mirror-pump status`",
            )
        if lake.snapshot_id != metadata.get("current-snapshot-id"):
            schema_id = snapshot.get("schema-id", schema_id)
    return LakeSchema.from_iceberg_json(
        next(schema for schema in metadata["schemas"] if schema["schema-id"] == schema_id)
    )


def _sidecar_names(table: MirroredTable) -> dict[int, str]:
    """By the field ID of their column."""
    every = with_raw_text(LakeSchema.of_table(table), (column.field_id for column in table.columns))
    return {field.field_id - SIDECAR_IDS_FROM: field.name for field in every.fields if is_raw_text(field)}


def _columns(table: MirroredTable, lake: LakeSchema, needed: frozenset[int]) -> tuple[OutputColumn, ...]:
    names = {field.field_id: field.name for field in lake.fields}
    wanted = needed | (raw_text_fields(lake) & {column.field_id for column in table.columns})
    schema = with_raw_text(LakeSchema.of_table(table), wanted)
    return tuple(
        OutputColumn(field.name, field.type, names.get(field.field_id), is_raw_text(field)) for field in schema.fields
    )


def narrowed(read: TableRead, wanted: frozenset[str] | None = None) -> tuple[HeapSide, list[str]]:
    """The heap's side with the columns of the result that are `wanted`, or all, and one at least; and the names, in
    the result, of the columns that `source.heap.read_heap` then yields."""
    heap = read.heap
    assert heap is not None
    names = _sidecar_names(read.table)

    def used(column: Column) -> bool:
        return wanted is None or column.name in wanted or names.get(column.field_id) in wanted

    columns = tuple(column for column in read.table.columns if used(column)) or read.table.key_columns[:1]
    beside = heap.raw_text_columns & {column.name for column in columns}
    raw = [names[column.field_id] for column in columns if column.name in beside]
    side = replace(heap, table=replace(heap.table, columns=columns), raw_text_columns=beside)
    return side, [*(column.name for column in columns), *raw]


SPLIT_KINDS: dict[Kind, TierKind] = {
    Kind.INT: TierKind.BIGINT,
    Kind.LONG: TierKind.BIGINT,
    Kind.DATE: TierKind.DATE,
    Kind.TIMESTAMP: TierKind.TIMESTAMP,
    Kind.TIMESTAMPTZ: TierKind.TIMESTAMPTZ,
}
"""Column types with an axis that a table can be split on."""


def axis(table: MirroredTable) -> Column | None:
    """The column that the table is split on: the tier key, else the first key column if it has an axis."""
    name = table.tier.column if table.tier is not None else table.key_columns[0].name
    column = next(column for column in table.columns if column.name == name)
    return column if column.type.kind in SPLIT_KINDS else None


Warn = Callable[[str], Any]
"""Told of what a reader should know, in a sentence."""
