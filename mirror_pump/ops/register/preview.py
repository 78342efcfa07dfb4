"""Previews `register`: which tables it registers, which partitions leave the heap, and when. Changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mirror_pump.errors import ConnectionLost, MirrorPumpError
from mirror_pump.model import Column, TableId, TableMode, TableState
from mirror_pump.ops.register.checked_tables import RegistrationTarget, check_table
from mirror_pump.ops.register.table_wish import TableWish, refuse_otherwise
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

_COPY_SPEEDS = (50 * 10**6, 280 * 10**6)
"""Bytes of the heap a second: tables of numerics, and of texts of a kilobyte, on the slowest machine of
docs/performance.md."""
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

    lag: str
    newest: str | None
    how: str
    """`dropped` or `detached`; `kept` if it is copied into the lake and stays in the heap."""
    grace: str
    partitions: tuple[PartitionPreview, ...]
    layout: str | None
    """How the lake table is partitioned; None if it is not."""
    lake_retention: str | None = None
    """How far behind the cut-line rows expire from the lake; None if they stay."""


@dataclass(frozen=True)
class TablePreview:
    """What registering one table would do."""

    table: str
    error: MirrorPumpError | None = None
    """Why the table would be refused; None if it would not."""
    registered: bool = False
    """True if the table is registered already, as requested: `register` resumes its copy."""
    key: tuple[str, ...] = ()
    whole_rows: bool = False
    """Whether its rows are found by all their values, as it has no key."""
    columns: int = 0
    types: tuple[str, ...] = ()
    """Of each column its name, its type and its lake type, for people."""
    numbers_as_text: tuple[Column, ...] = ()
    variants: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    size_bytes: int = 0
    """Of the heap, which a copy reads; 0 for a tiered table, whose partitions are copied when they leave, and
    without a copy."""
    chunks: int = 0
    row_filter: str = ""
    """The condition on the rows that would be mirrored; empty for all rows."""
    retention: RetentionPreview | None = None

    def lines(self) -> Iterator[str]:
        """Yield the preview as text for people; nothing for a table that would be refused."""
        if self.error is not None:
            return
        if self.registered:
            yield f"{self.table}: is registered already"
            return
        left_out = f", without {', '.join(self.left_out)}" if self.left_out else ""
        key = "no key, so PostgreSQL refuses UPDATE and DELETE from then on"
        if self.key or self.whole_rows:
            key = f"key {', '.join(self.key)}" if self.key else "no key, so rows are found by all their values"
        size = f"; {_size_text(self.size_bytes)} in {self.chunks} chunks" if self.chunks else ""
        yield f"{self.table}: {self.columns} columns{left_out}; {key}{size}"
        yield f"  lake types: {', '.join(self.types)}"
        if self.row_filter:
            yield f"  rows: {self.row_filter}"
        for column in self.numbers_as_text:
            yield f"  {as_text(column)}: {decimal_option(column)} makes decimals of it"
        if self.retention is not None:
            yield from _retention_lines(self.retention)


def as_text(column: Column) -> str:
    """Describe a column of numbers that is text in the lake, for people."""
    return f"column {column.name} is {column.type_sql}, and text in the lake ({column.type})"


def preview(settings: Settings, names: Sequence[str], wish: TableWish) -> tuple[TablePreview, ...]:
    """Return what `register` would do with each of these tables, in their order.

    Raises ConnectionLost. Raises UsageError for invalid options of heap retention.
    """
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-register") as connection:
        target = RegistrationTarget(connection, settings, wish.profile)
        return tuple(_preview(connection, settings, target, name, wish) for name in names)


def _preview(
    connection: PgConnection, settings: Settings, target: RegistrationTarget, name: str, wish: TableWish
) -> TablePreview:
    """What registering one table would do, or the error that would refuse it. Leaves nothing behind."""
    leaving = None
    try:
        table_name, table_id = resolve_name(connection, name)
        table = load_table(connection, table_id)
        if table is not None and table.state is not TableState.DROPPED:
            refuse_otherwise(connection, settings, table, wish)
            return TablePreview(str(table_name), registered=True)
        # Looking at rows makes a function that does so as the table's owner, where there is none yet.
        with source_errors(f"looking at {table_name}"), connection.transaction(force_rollback=True):
            checked = check_table(connection, settings, target, table_id, table_name, wish)
            if checked.plan is not None:
                leaving = _leaving(connection, table_id, checked.plan)
        description, choices = checked.description, checked.wish.choices
        texts = numbers_as_text(connection, description)
        leaves = read_leaves(connection, table_id) if wish.mode is TableMode.MIRRORED else []
    except ConnectionLost:
        raise
    except MirrorPumpError as error:
        return TablePreview(name, error)
    chunk_bytes = balanced_bytes(
        leaves, settings.copy_chunk_bytes, settings.copy_workers, into_partitions=bool(choices.partition_by)
    )
    return TablePreview(
        str(table_name),
        key=tuple(description.key),
        whole_rows=description.whole_rows,
        columns=len(description.columns),
        types=tuple(f"{column.name} {column.type.shown} ({column.type_sql})" for column in description.columns),
        numbers_as_text=texts,
        variants=variant_columns(description.columns),
        left_out=tuple(column.name for column in description.excluded),
        size_bytes=sum(leaf.blocks * leaf.block_bytes for leaf in leaves),
        chunks=len(chunks_of(leaves, chunk_bytes)),
        row_filter=checked.row_filter,
        retention=leaving,
    )


def estimate(settings: Settings, previews: Sequence[TablePreview]) -> Iterator[str]:
    """Yields what the copies of several tables read, how long that takes, and what WAL the slot keeps meanwhile, as
    text for people. Looks for a second how much WAL is written. Nothing for a single table. Raises ConnectionLost."""
    copied = [table for table in previews if table.error is None and not table.registered]
    size = sum(table.size_bytes for table in copied)
    if len(copied) < 2 or not size:
        return
    yield f"in all: {len(copied)} tables, {_size_text(size)} in {sum(table.chunks for table in copied)} chunks"
    shortest, longest = (size / speed for speed in reversed(_COPY_SPEEDS))
    slow, fast = (speed // 10**6 for speed in _COPY_SPEEDS)
    yield (
        f"  two cores copy {slow} to {fast} MB of heap a second (docs/performance.md):"
        f" {_range_text(shortest, longest, _duration_text)}"
    )
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-register") as connection:
        begin, position = time.monotonic(), wal_end(connection)
        time.sleep(_WAL_SECONDS)
        rate = (wal_end(connection) - position) / (time.monotonic() - begin)
    yield (
        f"  WAL that the slot keeps meanwhile, at the present {_size_text(rate)}/s:"
        f" {_range_text(rate * shortest, rate * longest, _size_text)}"
    )


def _range_text(least: float, most: float, text: Callable[[float], str]) -> str:
    """Both ends of an estimate; one of them if they look the same."""
    ends = dict.fromkeys((text(least), text(most)))
    return " to ".join(ends)


def _size_text(size: float) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:,.1f} {name}"
    return f"{size:,.0f} B"


def _duration_text(seconds: float) -> str:
    if seconds < 1:
        return "less than 1 s"
    return f"{seconds / 60:,.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


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
    return RetentionPreview(
        span_text(tier.kind, lag),
        None if newest is None else shown(tier.kind, newest),
        "kept" if plan.keep_heap else "detached" if plan.detach else "dropped",
        duration_text(plan.drop_grace),
        tuple(partitions),
        None if plan.partitioning is None else f"{plan.partitioning.fields[0].transform} of {tier.column}",
        None if plan.lake_lag is None else span_text(tier.kind, plan.lake_lag),
    )


def _retention_lines(retention: RetentionPreview) -> Iterator[str]:
    if retention.layout is not None:
        yield f"  lake table: partitioned by {retention.layout}"
    behind = "the first row" if retention.newest is None else f"the newest key, {retention.newest}"
    kept = retention.how == "kept"
    what = "are copied into the lake" if kept else "leave the heap"
    yield f"  partitions {what} once they lie {retention.lag} behind {behind}:"
    for partition in retention.partitions:
        rows = "" if partition.rows is None else f", about {partition.rows:,} rows"
        size = f"{_size_text(partition.size_bytes)}{rows}"
        yield f"    {partition.partition} [{partition.lo}, {partition.hi}), {size}: {partition.outlook}"
    due = [partition for partition in retention.partitions if partition.due]
    if kept:
        yield f"  {len(due)} of {len(retention.partitions)} partitions are copied at once: all of them stay in the heap"
        return
    yield (
        f"  {len(due)} of {len(retention.partitions)} partitions leave at once: each is {retention.how}"
        f" {retention.grace} (--drop-grace) after proof that the lake holds all of its rows, and not before"
    )
    if retention.lake_retention is not None:
        yield f"  rows expire once they lie {retention.lake_retention} behind the cut-line: nobody has them then"
