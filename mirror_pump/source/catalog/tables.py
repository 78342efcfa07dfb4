"""Reads and writes the catalog rows of mirrored tables (modak.tables, cutline, mirror_tables)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from psycopg import errors as pg_errors
from psycopg.types.json import Jsonb
from psycopg.types.multirange import Multirange

from decoders.columns import ColumnType
from mirror_pump.model import (
    EVERYTHING_IN_HEAP,
    Column,
    ExcludedColumn,
    FeedMode,
    LakePartitioning,
    Lsn,
    MirroredTable,
    PartitionedColumn,
    SequenceNumber,
    SnapshotId,
    SnapshotPlan,
    SortedColumn,
    TableFeed,
    TableId,
    TableMode,
    TableName,
    TableState,
    Tier,
    TierKind,
    tier_kind,
)
from mirror_pump.settings.storage_profiles import DEFAULT_PROFILE
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.rows import fetch_row, fetch_rows
from mirror_pump.source.stream.publication import record_filter, record_published
from sql import queries
from sql.mirror_names import SCHEMA

_SQL = queries("tables")

_SHAPE_SQL = queries("shape")


def generated_left_out(conn: PgConnection, table_ids: Sequence[TableId]) -> dict[str, tuple[str, ...]]:
    """By table, the names of its generated columns that are not mirrored."""
    with source_errors("reading the mirrored tables"):
        rows = fetch_rows(conn, _LeftOutRow, _SQL["left_out"], (list(table_ids),))
    return {str(TableName(row.schema_name, row.table_name)): tuple(row.columns) for row in rows}


def load_tables(conn: PgConnection, slot_name: str) -> tuple[MirroredTable, ...]:
    """All tables of a slot, also failed ones, ordered by table_id."""
    with source_errors("reading the mirrored tables"):
        query = _SQL["select"] + " WHERE m.slot_name = %s ORDER BY t.table_id"
        rows = fetch_rows(conn, _MirroredTableRow, query, (slot_name,))
    return tuple(row.table() for row in rows)


def load_table(conn: PgConnection, table_id: TableId) -> MirroredTable | None:
    """One table; None if it is not registered."""
    with source_errors("reading a mirrored table"):
        row = fetch_row(conn, _MirroredTableRow, _SQL["select"] + " WHERE t.table_id = %s", (table_id,))
    return row.table() if row is not None else None


def load_each(conn: PgConnection, table_ids: Sequence[TableId]) -> dict[TableId, MirroredTable]:
    """These tables, without those that are not registered, by one statement."""
    if not table_ids:
        return {}
    with source_errors("reading mirrored tables"):
        query = _SQL["select"] + " WHERE t.table_id = ANY (%s::bigint[])"
        rows = fetch_rows(conn, _MirroredTableRow, query, (list(table_ids),))
    return {table.table_id: table for table in (row.table() for row in rows)}


def wants_defaults(conn: PgConnection, table: MirroredTable) -> bool:
    """Whether the table's policy wants the values of new columns in the metadata of its lake table
    (`defaults_in_metadata`)."""
    with source_errors("reading a table's policy"):
        row = conn.execute(_SQL["wants_defaults"], {"table_id": table.table_id}).fetchone()
    return row is not None and bool(row[0])


def has_columns(conn: PgConnection, table: MirroredTable) -> bool:
    """Whether the catalog has the columns of `table`. If so, they stay until the open transaction of `conn` ends."""
    row = conn.execute(_SQL["columns_now"], {"table_id": table.table_id}).fetchone()
    if row is None:
        return False
    (columns,) = row
    return columns_from_json(columns) == table.columns


def insert_table(
    conn: PgConnection,
    table: MirroredTable,
    snapshot_id: SnapshotId,
    lake_props: Mapping[str, object],
    slot: str,
    publication: str,
    profile: str = DEFAULT_PROFILE,
    *,
    keep_heap: bool = False,
    lake_head: Mapping[str, object] | None = None,
) -> None:
    """Registers a table, in the transaction that publishes its empty lake table. `lake_props` is stored in
    cutline.lake_props, `lake_head` in mirror_tables.

    Without a cut-line, the tier key is the first key column. The frontier is NULL until the copy is complete, so
    readers are promised nothing; that of a tiered table always is. It has no slot and no publication, and its lag is
    one of its choices (modak.lag_of). Raises SourceError if the table is already registered.
    """
    streams = table.mode is TableMode.MIRRORED
    cut = EVERYTHING_IN_HEAP if table.tier is None else table.tier.cut
    # Sent at once, for one answer: each of hundreds of registrations holds its locks while it waits.
    with source_errors(f"registering {table.name}"), conn.pipeline():
        conn.execute(
            _SQL["register"],
            {
                "table_id": table.table_id,
                "schema": table.name.schema,
                "name": table.name.name,
                "key": list(table.key),
                "tier_key": tier_key(table),
                "tier_key_type": tier_key_type(table),
                "partition_scheme": Jsonb(partition_scheme(table.partitioning)),
                "lag": table.tier.lag if table.tier is not None and streams else None,
                "ref": f"{table.name.schema}.{table.lake_table}",
                "mode": table.mode.value,
                "publication": publication if streams else None,
                "slot": slot if streams else None,
                "profile": profile,
                "keep_heap": keep_heap,
            },
        )
        conn.execute(_SQL["cutline"], (table.table_id, cut, snapshot_id, Jsonb(dict(lake_props))))
        conn.execute(_SQL["mirror"], _mirror_row(table, slot, lake_head))
        conn.execute(_SHAPE_SQL["record"], {"table_id": table.table_id})
        if streams:
            record_published(conn, slot, [table.table_id])
            if table.row_filter:
                record_filter(conn, table.table_id)


def _mirror_row(table: MirroredTable, slot: str, lake_head: Mapping[str, object] | None) -> tuple[object, ...]:
    """The parameters of the query `mirror`: the row of modak.mirror_tables."""
    return (
        table.table_id,
        slot,
        table.state.value,
        table.start_lsn,
        table.data_sequence_number,
        table.generation,
        table.live_after_lsn,
        Jsonb(columns_to_json(table.columns)),
        list(table.key),
        table.lake_table,
        table.location,
        max(column.field_id for column in table.columns) + 1,
        Jsonb(excluded_to_json(table.excluded)),
        table.leaves_out_new,
        table.column_list,
        table.row_filter,
        table.snapshots is not None,
        None if table.snapshots is None else table.snapshots.every,
        None if lake_head is None else Jsonb(dict(lake_head)),
        table.table_id,
    )


def tier_key(table: MirroredTable) -> str:
    """The value of modak.tables.tier_key_col. Without heap retention it is the first key column, or without a key the
    first column."""
    return table.tier.column if table.tier is not None else _first_column(table).name


def tier_key_type(table: MirroredTable) -> str:
    """The value of modak.tables.tier_key_type: the tier key's type."""
    if table.tier is not None:
        return table.tier.kind.value
    first = _first_column(table)
    kind = tier_kind(first.type)
    return first.type_sql if kind is None else kind.value


def _first_column(table: MirroredTable) -> Column:
    return (table.key_columns or table.columns)[0]


def partition_scheme(partitioning: LakePartitioning | None) -> dict[str, Any]:
    """The value of modak.tables.partition_scheme; empty for an unpartitioned lake table."""
    if partitioning is None:
        return {}
    if len(partitioning.fields) == 1 and not partitioning.order:
        (only,) = partitioning.fields
        return {"field_id": only.field_id, "transform": only.transform}
    return {"fields": partition_fields(partitioning), "order": list(map(asdict, partitioning.order))}


def partition_fields(partitioning: LakePartitioning | None) -> list[dict[str, Any]]:
    """The fields in modak.tables.partition_scheme; empty for an unpartitioned lake table."""
    return [] if partitioning is None else list(map(asdict, partitioning.fields))


def partitioning_of(scheme: Mapping[str, Any]) -> LakePartitioning | None:
    """The inverse of `partition_scheme`."""
    if not scheme:
        return None
    fields = scheme.get("fields", [scheme])
    return LakePartitioning(
        tuple(PartitionedColumn(int(field["field_id"]), str(field["transform"])) for field in fields),
        tuple(SortedColumn(**column) for column in scheme.get("order", ())),
    ).or_none


def delete_table(conn: PgConnection, table_id: TableId) -> bool:
    """Removes a table's rows from all catalog tables except modak.iceberg_tables. False if it was not registered."""
    with source_errors("unregistering a table"):
        return conn.execute(f"DELETE FROM {SCHEMA}.tables WHERE table_id = %s", (table_id,)).rowcount > 0


def columns_to_json(columns: tuple[Column, ...]) -> list[dict[str, Any]]:
    """The value of mirror_tables.columns."""
    return [
        {
            "attnum": column.attnum,
            "name": column.name,
            "type_oid": column.type_oid,
            "type_modifier": column.type_modifier,
            "type_sql": column.type_sql,
            "type": str(column.type),
            "field_id": column.field_id,
            "not_null": column.not_null,
            "chosen": column.chosen,
            **({} if column.initial is None else {"initial": column.initial}),
            **({} if column.default is None else {"default": column.default}),
        }
        for column in columns
    ]


def ranges_text(ranges: Iterable[tuple[int, int]]) -> str:
    """The value of mirror_tables.kept_ranges, as text."""
    return "{" + ",".join(f"[{lower},{upper})" for lower, upper in ranges) + "}"


def ranges_of(stored: Multirange[int]) -> tuple[tuple[int, int], ...]:
    """The inverse of `ranges_text`."""
    return tuple((part.lower, part.upper) for part in stored if part.lower is not None and part.upper is not None)


def excluded_to_json(excluded: tuple[ExcludedColumn, ...]) -> list[dict[str, Any]]:
    """The value of mirror_tables.excluded."""
    return [{"attnum": column.attnum, "name": column.name} for column in excluded]


def columns_from_json(content: list[dict[str, Any]]) -> tuple[Column, ...]:
    """The inverse of `columns_to_json`."""
    return tuple(Column(**{**entry, "type": ColumnType.parse(entry["type"])}) for entry in content)


@dataclass(frozen=True)
class _LeftOutRow:
    """A row of the query `left_out`."""

    schema_name: str
    table_name: str
    columns: list[str]


def refresh_statistics(connection: PgConnection) -> None:
    """Has the server look at the catalog's tables, as autovacuum does every minute, if no other session holds them."""
    with source_errors("refreshing the statistics of the catalog"):
        connection.execute(_SQL["analyze"])


@dataclass(frozen=True)
class _MirroredTableRow:
    """A row of the query `select`."""

    table_id: TableId
    schema_name: str
    table_name: str
    columns: list[dict[str, Any]]
    """See `columns_to_json`."""
    key: list[str]
    state: str
    start_lsn: Lsn
    data_sequence_number: SequenceNumber
    generation: int
    lake_table: str
    location: str
    live_after_lsn: Lsn | None
    next_field_id: int
    shape: str
    excluded: list[dict[str, Any]]
    """See `excluded_to_json`."""
    leaves_out_new: bool
    column_list: bool
    row_filter: str
    paused_since: datetime | None
    snapshot_only: bool
    snapshot_every: timedelta | None
    where_different: bool
    dropped_rows: list[Any]
    kept_ranges: Multirange[int]
    tier_key_col: str
    tier_key_type: str
    tier_key_hi: int
    retention_line: int | None
    mode: str
    lag: int | None
    partition_scheme: dict[str, Any]
    """See `partition_scheme`."""
    feed_mode: str | None
    feed_location: str | None
    feed_not_before: Lsn
    format_version: int

    def table(self) -> MirroredTable:
        return MirroredTable(
            table_id=self.table_id,
            name=TableName(self.schema_name, self.table_name),
            columns=columns_from_json(self.columns),
            key=tuple(self.key),
            state=TableState(self.state),
            start_lsn=self.start_lsn,
            data_sequence_number=self.data_sequence_number,
            generation=self.generation,
            lake_table=self.lake_table,
            location=self.location,
            live_after_lsn=self.live_after_lsn,
            next_field_id=self.next_field_id,
            shape=self.shape,
            excluded=tuple(ExcludedColumn(**column) for column in self.excluded),
            leaves_out_new=self.leaves_out_new,
            column_list=self.column_list,
            row_filter=self.row_filter,
            paused_since=self.paused_since,
            snapshots=SnapshotPlan(self.snapshot_every) if self.snapshot_only else None,
            where_different=self.where_different,
            dropped_rows=tuple(json.dumps(bounds) for bounds in self.dropped_rows),
            kept_ranges=ranges_of(self.kept_ranges),
            tier=tier_of(self.tier_key_col, self.tier_key_type, self.tier_key_hi, self.lag, self.retention_line),
            mode=TableMode(self.mode),
            partitioning=partitioning_of(self.partition_scheme),
            feed=(
                TableFeed(FeedMode(self.feed_mode), self.feed_location, self.feed_not_before)
                if self.feed_mode is not None and self.feed_location is not None
                else None
            ),
            format_version=self.format_version,
        )


def tier_of(column: str, kind: str, cut: int, lag: int | None, line: int | None = None) -> Tier | None:
    """The cut-line that these catalog columns describe. None for a table without: it has no lag, and its cut-line has
    never moved."""
    if lag is None and cut == EVERYTHING_IN_HEAP:
        return None
    tier = Tier(column, TierKind(kind), cut, lag, line)
    return None if lag is None and not tier.moved else tier


def was_dropped(connection: PgConnection, table: MirroredTable) -> bool:
    """Whether the table does not exist in Postgres any more, even if the stream has not come to that yet."""
    with source_errors("looking for a table"):
        row = connection.execute("SELECT FROM pg_class WHERE oid = %s::bigint::oid", (table.table_id,)).fetchone()
    return table.state is TableState.DROPPED or row is None


def registered_as(connection: PgConnection, name: TableName) -> MirroredTable | None:
    """The table that was registered under this name, even if it was renamed since, or dropped, so that its name does
    not resolve."""
    with source_errors("looking for a registered table"):
        row = connection.execute(
            f"SELECT table_id FROM {SCHEMA}.tables WHERE schema_name = %s AND table_name = %s", (name.schema, name.name)
        ).fetchone()
    return None if row is None else load_table(connection, TableId(row[0]))


def name_parts(connection: PgConnection, text: str) -> list[str]:
    """The parts of a name as Postgres parses it; empty if it is not a name."""
    with source_errors("reading a table's name"):
        try:
            with connection.transaction():
                row = connection.execute("SELECT parse_ident(%s)", (text,)).fetchone()
        except pg_errors.InvalidParameterValue:
            return []
    return list(row[0]) if row is not None else []


def formerly_registered(connection: PgConnection, text: str) -> MirroredTable | None:
    """The table that was registered under the name `text`, given in SQL syntax or unquoted, with or without its
    schema."""
    parts = name_parts(connection, text)
    with source_errors("looking for a registered table"):
        row = connection.execute(_SQL["formerly"], {"parts": parts, "text": text}).fetchone()
    return None if row is None else load_table(connection, TableId(row[0]))
