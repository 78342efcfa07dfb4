"""Previews `register`: which tables it registers, which partitions leave the heap, and when. Changes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mirror_pump.errors import ConnectionLost, MirrorPumpError
from mirror_pump.model import Column, TableId, TableMode, TableState
from mirror_pump.ops.estimates import COPY_SPEEDS, copy_seconds, range_text, seconds_text, size_text
from mirror_pump.ops.register.checked_tables import CheckedTable, RegistrationTarget, check_table
from mirror_pump.ops.register.table_wish import TableOptions, refuse_otherwise
from mirror_pump.ops.retain.retention import when_due
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.source.heap.block_reader import balanced_bytes, chunks_of, read_leaves
from mirror_pump.source.relations.column_choices import decimal_option, numbers_as_text, variant_columns
from mirror_pump.source.relations.relations import resolve_name
from mirror_pump.source.relations.tier_keys import duration_text, shown, span_text
from mirror_pump.source.retention import partitions as source
from mirror_pump.source.retention.retention_plan import RetentionPlan
from mirror_pump.source.rows import fetch_rows
from mirror_pump.source.stream.slot import wal_end
from sql import queries

_SQL = queries("retention")

_WAL_SECONDS = 1.0


@dataclass(frozen=True)
class PartitionPreview:
    """A partition of a table that is about to get heap retention."""

    partition: str
    lo: str
    hi: str
    rows: int | None
    """The server's estimate; None if it has none."""
    size_bytes: int
    due: bool
    """True if the partition leaves the heap as soon as the table is copied."""
    outlook: str


@dataclass(frozen=True)
class RetentionPreview:
    """Which partitions of a table leave the heap, when and how."""

    plan: RetentionPlan
    newest: str | None
    partitions: tuple[PartitionPreview, ...]


@dataclass(frozen=True)
class TablePreview:
    """What registering one table would do."""

    table: str
    error: MirrorPumpError | None = None
    """Why the table would be refused; None if it would not."""
    checked: CheckedTable | None = None
    """None if the table is registered already, as requested: `register` resumes its copy."""
    numbers_as_text: tuple[Column, ...] = ()
    size_bytes: int = 0
    """Of the heap, which a copy reads; 0 for a tiered table, whose partitions are copied when they leave."""
    chunks: int = 0
    retention: RetentionPreview | None = None

    @property
    def variants(self) -> tuple[str, ...]:
        """Columns that would be variants in the lake."""
        return () if self.checked is None else variant_columns(self.checked.description.columns)

    def lines(self) -> Iterator[str]:
        """Yield the preview as text for people; nothing for a table that would be refused."""
        if self.error is not None:
            return
        if self.checked is None:
            yield f"{self.table}: is registered already"
            return
        relation = self.checked.description
        without = ", ".join(column.name for column in relation.excluded)
        left_out = f", without {without}" if without else ""
        key = "no key, so PostgreSQL refuses UPDATE and DELETE from then on"
        if relation.key or relation.whole_rows:
            key = f"key {', '.join(relation.key)}" if relation.key else "no key, so rows are found by all their values"
        size = f"; {size_text(self.size_bytes)} in {self.chunks} chunks" if self.chunks else ""
        yield f"{self.table}: {len(relation.columns)} columns{left_out}; {key}{size}"
        types = (f"{column.name} {column.type.shown} ({column.type_sql})" for column in relation.columns)
        yield f"  lake types: {', '.join(types)}"
        if self.checked.row_filter:
            yield f"  rows: {self.checked.row_filter}"
        for column in self.numbers_as_text:
            yield f"  {as_text(column)}: {decimal_option(column)} makes decimals of it"
        if self.retention is not None:
            yield from _retention_lines(self.retention)


def as_text(column: Column) -> str:
    """Describe a column of numbers that is text in the lake, for people."""
    return f"column {column.name} is {column.type_sql}, and text in the lake ({column.type})"


def preview(settings: Settings, names: Sequence[str], wish: TableOptions) -> tuple[TablePreview, ...]:
    """Return what `register` would do with each of these tables, in their order.

    Raises ConnectionLost. Raises UsageError for invalid options of heap retention.
    """
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-register") as connection:
        target = RegistrationTarget(connection, settings, wish.profile)
        return tuple(_preview(connection, settings, target, name, wish) for name in names)


def _preview(
    connection: PgConnection, settings: Settings, target: RegistrationTarget, name: str, wish: TableOptions
) -> TablePreview:
    """What registering one table would do, or the error that would refuse it. Leaves nothing behind."""
    leaving = None
    try:
        table_name, table_id = resolve_name(connection, name)
        table = load_table(connection, table_id)
        if table is not None and table.state is not TableState.DROPPED:
            refuse_otherwise(connection, settings, table, wish)
            return TablePreview(str(table_name))
        # Looking at rows makes a function that does so as the table's owner, where there is none yet.
        with source_errors(f"looking at {table_name}"), connection.transaction(force_rollback=True):
            checked = check_table(connection, settings, target, table_id, table_name, wish)
            if checked.plan is not None:
                leaving = _leaving(connection, table_id, checked.plan)
        texts = numbers_as_text(connection, checked.description)
        leaves = read_leaves(connection, table_id) if wish.mode is TableMode.MIRRORED else []
    except ConnectionLost:
        raise
    except MirrorPumpError as error:
        return TablePreview(name, error)
    into_partitions = bool(checked.wish.choices.partition_by)
    chunk_bytes = balanced_bytes(
        leaves, settings.copy_chunk_bytes, settings.copy_workers, into_partitions=into_partitions
    )
    size_bytes = sum(leaf.blocks * leaf.block_bytes for leaf in leaves)
    return TablePreview(str(table_name), None, checked, texts, size_bytes, len(chunks_of(leaves, chunk_bytes)), leaving)


def estimate(settings: Settings, previews: Sequence[TablePreview]) -> Iterator[str]:
    """Yields what the copies of several tables read, how long that takes, and what WAL the slot keeps meanwhile, as
    text for people. Looks for a second how much WAL is written. Nothing for a single table. Raises ConnectionLost."""
    copied = [table for table in previews if table.error is None and table.checked is not None]
    size = sum(table.size_bytes for table in copied)
    if len(copied) < 2 or not size:
        return
    yield f"in all: {len(copied)} tables, {size_text(size)} in {sum(table.chunks for table in copied)} chunks"
    shortest, longest = copy_seconds(size)
    slow, fast = (speed // 10**6 for speed in COPY_SPEEDS)
    yield (
        f"  two cores copy {slow} to {fast} MB of heap a second (docs/performance.md):"
        f" {range_text(shortest, longest, seconds_text)}"
    )
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-register") as connection:
        begin, position = time.monotonic(), wal_end(connection)
        time.sleep(_WAL_SECONDS)
        rate = (wal_end(connection) - position) / (time.monotonic() - begin)
    yield (
        f"  WAL that the slot keeps meanwhile, at the present {size_text(rate)}/s:"
        f" {range_text(rate * shortest, rate * longest, size_text)}"
    )


@dataclass(frozen=True)
class _PartitionSizeRow:
    """A row of the query `sizes`."""

    relation_id: int
    rows: float
    """The server's estimate; below 0 if it has none."""
    bytes: int


def _leaving(connection: PgConnection, table_id: TableId, plan: RetentionPlan) -> RetentionPreview:
    """Which partitions would leave the heap, and when."""
    tier = plan.tier
    assert tier.lag is not None
    lag = tier.lag
    with source_errors("looking at partitions"):
        attached = source.read_attached(connection, table_id)
        newest = source.high_water(connection, tier, attached)
        size_rows = fetch_rows(connection, _PartitionSizeRow, _SQL["sizes"], {"table_id": table_id})
        sizes = {size.relation_id: size for size in size_rows}
    leaves_first = "leaves at once" if plan.mode is TableMode.TIERED else "leaves once the table is copied"
    partitions = []
    for partition in attached:
        if partition.is_default:
            continue
        size = sizes.get(partition.relation_id, _PartitionSizeRow(partition.relation_id, rows=-1, bytes=0))
        due = source.is_due(tier, partition.hi, lag, lambda: newest)
        partitions.append(
            PartitionPreview(
                str(partition.name),
                shown(tier.kind, partition.lo),
                shown(tier.kind, partition.hi),
                int(size.rows) if size.rows >= 0 else None,
                size.bytes,
                due,
                leaves_first if due else when_due(tier, partition.hi, lag, newest),
            )
        )
    return RetentionPreview(plan, None if newest is None else shown(tier.kind, newest), tuple(partitions))


def _retention_lines(retention: RetentionPreview) -> Iterator[str]:
    plan = retention.plan
    tier = plan.tier
    assert tier.lag is not None
    if plan.partitioning is not None:
        yield f"  lake table: partitioned by {plan.partitioning.fields[0].transform} of {tier.column}"
    behind = "the first row" if retention.newest is None else f"the newest key, {retention.newest}"
    what = "are copied into the lake" if plan.keep_heap else "leave the heap"
    yield f"  partitions {what} once they lie {span_text(tier.kind, tier.lag)} behind {behind}:"
    for partition in retention.partitions:
        rows = "" if partition.rows is None else f", about {partition.rows:,} rows"
        size = f"{size_text(partition.size_bytes)}{rows}"
        yield f"    {partition.partition} [{partition.lo}, {partition.hi}), {size}: {partition.outlook}"
    due = f"{sum(partition.due for partition in retention.partitions)} of {len(retention.partitions)} partitions"
    if plan.keep_heap:
        yield f"  {due} are copied at once: all of them stay in the heap"
        return
    yield (
        f"  {due} leave at once: each is {'detached' if plan.detach else 'dropped'} {duration_text(plan.drop_grace)}"
        " (--drop-grace) after proof that the lake holds all of its rows, and not before"
    )
    if plan.lake_lag is not None:
        expiring = span_text(tier.kind, plan.lake_lag)
        yield f"  rows expire once they lie {expiring} behind the cut-line: they are gone then"
