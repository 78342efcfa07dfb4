"""What each table of a plan is, how it can be mirrored, what REPLICA IDENTITY FULL costs it. Reads catalogs alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from mirror_pump.errors import TableError
from mirror_pump.model import TableId, TableMode
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.relations.description import RelationDescription
from mirror_pump.source.relations.refusal import refuse_fixed_rows
from mirror_pump.source.relations.relations import describe_all, refuse
from mirror_pump.source.retention.retention_plan import PartitionKey, RetentionOptions, partition_keys, tier_key
from mirror_pump.source.rows import fetch_rows
from sql import queries

_SQL = queries("plan")

_IDENTITIES = {"d": "default", "f": "full", "i": "index", "n": "nothing"}


class PlannedMode(StrEnum):
    """A way in which a table can be mirrored."""

    MIRRORED = "mirrored"
    HEAP_RETENTION = "heap retention"
    """Mirrored, and old partitions may leave the heap."""
    TIERED = "tiered"
    """Partitions are copied when they leave the heap; without a stream."""
    APPEND_ONLY = "append-only"
    """Mirrored without a key: PostgreSQL then refuses UPDATE and DELETE."""


@dataclass(frozen=True)
class TableCounts:
    """A row of the query `tables`. The defaults are of a table without any heap."""

    table_id: TableId
    heaps: int = 0
    unmeasured: int = 0
    size_bytes: int = 0
    rows: int = 0
    row_security: bool = False
    default_rows: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0

    @property
    def changes(self) -> int:
        """Rows that were written since the server's statistics were reset."""
        return self.inserted + self.updated + self.deleted


@dataclass(frozen=True)
class TableRates:
    """What is written to a table an hour."""

    changes: float
    old_rows: float
    """Rows that are updated or deleted."""


@dataclass(frozen=True)
class PlannedTable:
    """A table as the plan has it."""

    table: str
    owner: str
    size_bytes: int
    """Heap and TOAST, without indexes, by the last VACUUM or ANALYZE"""
    rows: int
    """By the server's estimate"""
    heaps: int
    """1, or the number of its leaf partitions"""
    unmeasured: int
    """How many of these VACUUM and ANALYZE have never seen: `size_bytes` lacks them"""
    key: tuple[str, ...]
    """Columns by which rows are found in the lake; none: by all values, or not at all"""
    replica_identity: str
    """`default`, `full`, `index` or `nothing`"""
    modes: tuple[PlannedMode, ...]
    """The ways in which it can be mirrored; none if it cannot"""
    refusal: str | None
    """Why it cannot be mirrored from the stream"""
    remedy: str | None
    """What can be done about that"""
    tiering: str | None
    """Why its partitions cannot leave the heap; None if they can, and for a table that is not partitioned"""
    row_security: bool
    """Whether the pump's role needs BYPASSRLS"""
    left_out: tuple[str, ...]
    """Generated columns that the stream does not carry"""
    changes_per_hour: float | None
    """Rows that are written; None if nothing tells"""
    full_identity_bytes_per_hour: float | None
    """WAL an hour that REPLICA IDENTITY FULL adds, if the table has it, or would need it for the lack of a key"""


def count_tables(connection: PgConnection, table_ids: Sequence[TableId]) -> dict[TableId, TableCounts]:
    """What the server counts of tables at this moment. Raises SourceError."""
    with source_errors("reading the statistics of tables"):
        rows = fetch_rows(connection, TableCounts, _SQL["tables"], {"oids": list(table_ids)})
    return {row.table_id: row for row in rows}


def plan_tables(
    connection: PgConnection,
    table_ids: Sequence[TableId],
    counts: Mapping[TableId, TableCounts],
    rates: Mapping[TableId, TableRates],
) -> tuple[PlannedTable, ...]:
    """The tables in this order; those that were dropped meanwhile are left out. Raises SourceError."""
    described = describe_all(connection, table_ids, measured=False)
    with source_errors("reading how tables are partitioned"):
        keys = partition_keys(connection, table_ids)
    return tuple(
        _planned(described[table_id], keys.get(table_id), counts.get(table_id), rates.get(table_id))
        for table_id in table_ids
        if table_id in described
    )


def _planned(
    relation: RelationDescription, key: PartitionKey | None, counts: TableCounts | None, rates: TableRates | None
) -> PlannedTable:
    relation = _with_rights(relation)
    counts = counts or TableCounts(relation.table_id)
    refusal = _refusal(relation)
    tiering = None if key is None else _tiering(relation, key, counts)
    return PlannedTable(
        table=str(relation.name),
        owner=relation.owner,
        size_bytes=counts.size_bytes,
        rows=counts.rows,
        heaps=counts.heaps,
        unmeasured=counts.unmeasured,
        key=relation.key,
        replica_identity=_IDENTITIES[relation.identity.setting],
        modes=_modes(relation, refusal, may_shed=key is not None and tiering is None),
        refusal=None if refusal is None else str(refusal),
        remedy=None if refusal is None else refusal.remedy,
        tiering=tiering,
        row_security=counts.row_security,
        left_out=relation.generated,
        changes_per_hour=None if rates is None else rates.changes,
        full_identity_bytes_per_hour=_full_identity(relation, counts, rates),
    )


def _with_rights(relation: RelationDescription) -> RelationDescription:
    """The relation as the admin and the pump see it, who will be other roles than the plan's."""
    leaves = tuple(replace(leaf, row_security=False, readable=True) for leaf in relation.leaves)
    return replace(relation, owned=True, row_security=False, leaves=leaves)


def _refusal(
    relation: RelationDescription, mode: TableMode = TableMode.MIRRORED, *, append_only: bool = False
) -> TableError | None:
    try:
        refuse(relation, mode, append_only=append_only)
        refuse_fixed_rows(relation)
    except TableError as error:
        return error
    return None


def _tiering(relation: RelationDescription, key: PartitionKey, counts: TableCounts) -> str | None:
    """Why partitions cannot leave the heap; None if they can."""
    try:
        tier_key(key, relation, RetentionOptions())
    except TableError as error:
        return str(error)
    if counts.default_rows:
        return f"the DEFAULT partition of {relation.name} holds rows: move them to partitions of their own"
    return None


def _modes(relation: RelationDescription, refusal: TableError | None, *, may_shed: bool) -> tuple[PlannedMode, ...]:
    modes = []
    if refusal is None:
        modes.append(PlannedMode.MIRRORED)
        if may_shed:
            modes.append(PlannedMode.HEAP_RETENTION)
    elif not relation.key and _refusal(relation, append_only=True) is None:
        modes.append(PlannedMode.APPEND_ONLY)
    if may_shed and _refusal(relation, TableMode.TIERED) is None:
        modes.append(PlannedMode.TIERED)
    return tuple(modes)


def _full_identity(relation: RelationDescription, counts: TableCounts, rates: TableRates | None) -> float | None:
    """WAL an hour: FULL writes the whole old row with each UPDATE and DELETE."""
    if rates is None or not counts.rows or not counts.size_bytes:
        return None
    if relation.identity.setting != "f" and (relation.key or relation.kind not in ("r", "p")):
        return None
    return rates.old_rows * counts.size_bytes / counts.rows
