"""Checks whether a table can have a cut-line, as a tiered table or with heap retention, and prepares its partitions
when it is registered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from psycopg.types.json import Jsonb

from mirror_pump.errors import TableError
from mirror_pump.model import Column, LakePartitioning, MirroredTable, TableId, TableMode, Tier, TierKind
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.relations.description import RelationDescription
from mirror_pump.source.relations.lake_layout import lake_transform
from mirror_pump.source.relations.tier_keys import (
    DROP_GRACE,
    first_cut,
    parse_grace,
    parse_lake_retention,
    parse_span,
)
from mirror_pump.source.relations.widths import Width, parse_width, usual_width
from mirror_pump.source.retention import new_partitions
from mirror_pump.source.retention import partitions as retention
from mirror_pump.source.retention.restore_journal import keeps_heap
from mirror_pump.source.rows import fetch_rows
from sql import queries

_SQL = queries("retention")

_KINDS = {
    20: TierKind.BIGINT,
    21: TierKind.BIGINT,
    23: TierKind.BIGINT,
    1184: TierKind.TIMESTAMPTZ,
    1114: TierKind.TIMESTAMP,
    1082: TierKind.DATE,
}
"""By type OID."""


@dataclass(frozen=True, kw_only=True)
class RetentionOptions:
    """The user's options at register, as typed."""

    lag: str = "0"
    premake: int = 0
    width: str | None = None
    drop_grace: str | None = None
    """How long a partition stays after the proof that the lake holds it. None: DROP_GRACE."""
    detach: bool = False
    """Detach partitions, which leaves them as tables of their own, instead of dropping them."""
    lake_partition: str | None = None
    """How to partition the lake table (mirror_pump.source.relations.lake_layout). None: not at all."""
    mode: TableMode = TableMode.MIRRORED
    tier_key: str | None = None
    """The column by which the table has to be partitioned. None: whichever it is."""
    keep_heap: bool = False
    """Partitions stay in the heap, although the lake holds them."""
    lake_retention: str | None = None
    """How far behind the cut-line rows of a tiered table stay in the lake. None: forever."""

    @property
    def option(self) -> str:
        """The option of `register` that asks for it."""
        return "--mode tiered" if self.mode is TableMode.TIERED else "--heap-retention"

    @property
    def lag_option(self) -> str:
        """The option of `register` for the lag."""
        return "--lag" if self.mode is TableMode.TIERED else "--heap-retention"


@dataclass(frozen=True)
class RetentionPlan:
    """The user's options, checked, and in tier values."""

    tier: Tier
    premake: int
    width: Width | None
    drop_grace: timedelta
    detach: bool
    mode: TableMode
    keep_heap: bool
    partitioning: LakePartitioning | None = None
    """That of the lake table; None: it is not partitioned."""
    lake_lag: int | None = None
    """How far behind the cut-line rows stay in the lake. None: forever."""


def plan_retention(
    connection: PgConnection, relation: RelationDescription, wish: RetentionOptions, time_zone: Callable[[], str]
) -> RetentionPlan:
    """Checks a table. Raises TableError, with what to do, if it cannot have a cut-line; UsageError for a wrong lag.

    `time_zone` returns the zone in which the bounds of partitions were probably written. It is called only if that
    matters.
    """
    with source_errors(f"examining the partitions of {relation.name}"):
        key = partition_keys(connection, [relation.table_id]).get(relation.table_id)
        column, kind = tier_key(key, relation, wish)
        attached = retention.read_attached(connection, relation.table_id)
        for partition in attached:
            if partition.is_default and retention.holds_rows(connection, partition.relation_id):
                raise TableError(
                    f"DEFAULT partition {partition.name} of {relation.name} holds rows",
                    "move them to partitions of their own: old rows that arrive late are routed through it",
                )
    lag = 0 if wish.lag.strip() == "0" else parse_span(kind, wish.lag, wish.lag_option)
    zone = time_zone() if kind is TierKind.TIMESTAMPTZ else "UTC"
    bounded = [part for part in attached if not part.is_default and max(abs(part.lo), abs(part.hi)) < 2**62]
    bounds = [(part.lo, part.hi) for part in bounded]
    width = usual_width(kind, bounds, zone) if wish.width is None else parse_width(kind, wish.width, "--width", zone)
    if wish.premake and width is None:
        raise TableError(f"{relation.name} has no partition from which to derive the width of new ones", "give --width")
    grace = DROP_GRACE if wish.drop_grace is None else parse_grace(wish.drop_grace, "--drop-grace")
    cut = first_cut(kind, retention.lowest_bound(attached))
    tier = Tier(column.name, kind, cut, lag)
    partitioning = None
    if wish.lake_partition is not None:
        partitioning = LakePartitioning.by(
            column.field_id, lake_transform(kind, wish.lake_partition, width, relation.name)
        )
    lake_lag = None
    if wish.lake_retention is not None:
        lake_lag = parse_lake_retention(kind, wish.lake_retention, "--lake-retention")
    return RetentionPlan(
        tier, wish.premake, width, grace, wish.detach, wish.mode, wish.keep_heap, partitioning, lake_lag
    )


@dataclass(frozen=True)
class PartitionKey:
    """How a table is partitioned. A row of the query `partition_keys`."""

    table_id: TableId
    strategy: str
    """pg_partitioned_table.partstrat: `r` is by range."""
    columns: int
    """How many columns and expressions the key has."""
    column: str | None
    """The first column of the key; None for an expression."""
    type_oid: int | None
    """The column's type, or the base type of its domain; None for an expression."""
    not_null: bool | None
    nested: bool
    """Whether a partition is partitioned itself."""


def partition_keys(connection: PgConnection, table_ids: Sequence[int]) -> dict[TableId, PartitionKey]:
    """Those of these tables that are partitioned. Raises psycopg.Error."""
    rows = fetch_rows(connection, PartitionKey, _SQL["partition_keys"], {"table_ids": list(table_ids)})
    return {row.table_id: row for row in rows}


def tier_key(
    key: PartitionKey | None, relation: RelationDescription, wish: RetentionOptions
) -> tuple[Column, TierKind]:
    """The column by which a table is partitioned, and its kind. Raises TableError if it cannot be a tier key."""
    name = relation.name
    if key is None:
        raise TableError(
            f"{name} is not partitioned: only whole partitions can leave the heap",
            f"partition it by range of one column, or register it without {wish.option}",
        )
    column, kind = key.column, None if key.type_oid is None else _KINDS.get(key.type_oid)
    if key.strategy != "r" or key.columns != 1 or column is None:
        raise TableError(
            f"{name} is not partitioned by range of one column", f"{wish.option} needs PARTITION BY RANGE (column)"
        )
    if kind is None:
        raise TableError(
            f"{name} is partitioned by {column}, which is neither an integer nor a time",
            f"{wish.option} needs a key of type smallint, integer, bigint, timestamptz, timestamp or date",
        )
    if wish.tier_key is not None and wish.tier_key != column:
        raise TableError(
            f"{name} is partitioned by {column}, not by {wish.tier_key}",
            f"the tier key is the column of PARTITION BY RANGE: give --tier-key {column}, or omit it",
        )
    if key.nested:
        raise TableError(
            f"partitions of {name} are partitioned themselves", f"{wish.option} needs partitions that are tables"
        )
    mirrored = next((candidate for candidate in relation.columns if candidate.name == column), None)
    if mirrored is None or not mirrored.type.is_ordinal or mirrored.chosen:
        raise TableError(
            f"partition column {column} of {name} is not mirrored with its own type", "omit its --column option"
        )
    if column not in relation.key or not key.not_null:
        raise TableError(
            f"partition column {column} of {name} is not part of its key, or allows NULL",
            "make it part of the primary key",
        )
    return mirrored, kind


def enter_default(connection: PgConnection, table: MirroredTable) -> bool:
    """Creates the DEFAULT partition if there is none, and returns whether it did. Runs in the registration transaction,
    before the table's shape is recorded. Takes ACCESS EXCLUSIVE on the table."""
    attached = retention.read_attached(connection, table.table_id)
    for partition in attached:
        if partition.is_default:
            connection.execute(f"LOCK TABLE ONLY {partition.name.quoted} IN SHARE ROW EXCLUSIVE MODE".encode())
            if retention.holds_rows(connection, partition.relation_id):
                raise TableError(
                    f"DEFAULT partition {partition.name} of {table.name} holds rows",
                    "move them to partitions of their own, then register the table again",
                )
            return False
    new_partitions.create_default(connection, table.name)
    return True


def enter_partitions(connection: PgConnection, table: MirroredTable, plan: RetentionPlan, *, own_default: bool) -> None:
    """Enters the partitions and the user's choices, once the table's own rows are in the catalog."""
    for partition in retention.read_attached(connection, table.table_id):
        if partition.is_default:
            retention.install(connection, table, partition.relation_id, str(partition.name), "default")
        else:
            retention.enter(connection, table, partition)
    chosen: dict[str, Any] = {
        "premake": plan.premake,
        "width": None if plan.width is None else plan.width.to_json(),
        "drop_grace": plan.drop_grace.total_seconds(),
        "detach": plan.detach,
        "own_default": own_default,
    }
    if plan.mode is TableMode.TIERED:
        chosen["lag"] = plan.tier.lag
    connection.execute(_SQL["choose"], {"table_id": table.table_id, "retention": Jsonb(chosen)})
    if plan.lake_lag is not None:
        connection.execute(_SQL["lake_lag"], {"table_id": table.table_id, "lag": plan.lake_lag})


def leave_partitions(connection: PgConnection, table: MirroredTable) -> None:
    """At unregister: drops the DEFAULT partition that enter_default() created, if it is empty, as it always should
    be."""
    if not retention.made_default(connection, table.table_id):
        return
    for partition in retention.read_attached(connection, table.table_id):
        if partition.is_default and partition.routes and not retention.holds_rows(connection, partition.relation_id):
            # A foreign key that refers to the whole table would block a plain DROP.
            connection.execute(_SQL["drop_default"], {"root": table.table_id, "leaf": partition.relation_id})


def sheds(connection: PgConnection, table: MirroredTable) -> bool:
    """Whether the lake holds rows of the table that its heap no longer has."""
    row = connection.execute(_SQL["shed"], {"table_id": table.table_id}).fetchone()
    return row is not None and bool(row[0])


def only_in_lake(connection: PgConnection, table: MirroredTable) -> str | None:
    """Where above the cut-line the lake has rows that the heap has not; None if it has none."""
    row = connection.execute(_SQL["only_in_lake"], {"table_id": table.table_id}).fetchone()
    return None if row is None or row[0] is None else str(row[0])


def may_have_only_copy(connection: PgConnection, table: MirroredTable) -> bool:
    """Whether the lake may hold rows that the heap does not have: also those that were ingested, or folded, into it
    below the cut-line, where the heap had no partition for them."""
    moved = table.tier is not None and table.tier.moved
    return sheds(connection, table) or (moved and not keeps_heap(connection, table.table_id))
