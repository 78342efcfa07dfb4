"""Changes the catalog's description of a table in the publish transaction: columns, key, and the table's name.

A table that is copied again keeps its published snapshot and its promised frontier. Commits during the copy build on
metadata that only `mirror_tables.staged_location` names. It starts as the table's own metadata with every file removed,
so the history and the field IDs continue. When the copy is complete, one publish makes it the table's pointer and its
current snapshot the published one. A reader sees the old content at its old frontier, then the new content at the new
frontier, and nothing in between. Changes that other engines made to the table during the copy are kept
(`mirror_pump.lake.commit.rebase`), except for commits to `main`. These can only be rewrites, because no other engine
may change the mirror's rows, and the files that they concern are gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from mirror_pump.errors import CommitConflict
from mirror_pump.lake.commit.catalog import ensure_namespace
from mirror_pump.lake.contents.dropped_rows import DroppedRows
from mirror_pump.model import MirroredTable, TableId, TableName, TableState
from mirror_pump.pipeline.operations.table_changes import TableChange
from mirror_pump.source.catalog.tables import (
    columns_to_json,
    excluded_to_json,
    partition_fields,
    tier_key,
    tier_key_type,
)
from mirror_pump.source.rows import fetch_rows
from mirror_pump.source.stream.publication import record_filter
from sql import queries

_SQL = queries("change")


def store_change(
    cursor: psycopg.Cursor[tuple[Any, ...]],
    change: TableChange,
    former_state: TableState,
    state: TableState,
    dropped_rows: Sequence[DroppedRows],
) -> None:
    """Stores the table's new description and its new `state`.

    Raises CommitConflict if the stored state is no longer `former_state`.
    """
    table = change.table
    cursor.execute(
        _SQL["store"],
        {
            "table_id": table.table_id,
            "columns": Jsonb(columns_to_json(table.columns)),
            "excluded": Jsonb(excluded_to_json(table.excluded)),
            "key": list(table.key),
            "next_field_id": table.next_field_id,
            "shape": table.shape or None,
            "start_lsn": table.start_lsn,
            "copy_again": change.copy_again,
            "former": former_state.value,
            "state": state.value,
            "dropped_rows": Jsonb([dropped.to_json() for dropped in dropped_rows]),
            "where_different": change.where_different,
            "fills": change.fills and not change.copy_again,
            "error": change.reason if change.waits_for_owner else None,
            "tier_key": tier_key(table),
            "tier_key_type": tier_key_type(table),
            "partition_fields": _partition_fields(change),
        },
    )
    if cursor.rowcount != 1:
        raise CommitConflict(f"the state of {table.name} changed while it was being published")
    if table.row_filter:
        record_filter(cursor, table.table_id)
    _complete_corrections(cursor, table)


def _partition_fields(change: TableChange) -> Jsonb | None:
    """The value of the parameter `partition_fields`. None for a table with a cut-line, whose old files stay."""
    table = change.table
    return Jsonb(partition_fields(table.partitioning)) if change.copy_again and table.tier is None else None


def _complete_corrections(cursor: psycopg.Cursor[tuple[Any, ...]], table: MirroredTable) -> None:
    """Gives corrections that are older than an added column the value that older rows have in it.

    The ALTER TABLE did this itself. But under REPEATABLE READ it does not see corrections that are newer than its
    snapshot. Does nothing for tables without heap retention.
    """
    added = [column for column in table.columns if column.initial is not None]
    if table.tier is None or not added:
        return
    values = [
        {"attnum": column.attnum, "type": column.type_oid, "modifier": column.type_modifier, "text": column.initial}
        for column in added
    ]
    cursor.execute(_SQL["complete_corrections"], {"table_id": table.table_id, "columns": Jsonb(values)})


@dataclass(frozen=True)
class _NameRow:
    """A row of the query `names`."""

    table_id: TableId
    schema_name: str
    table_name: str


def rename(cursor: psycopg.Cursor[tuple[Any, ...]], new_names: Mapping[TableId, TableName]) -> None:
    """Renames tables in the catalog and in the lake to the names that they have in Postgres.

    All tables get an unused name first, so that tables may swap names. If another registered table still has the new
    name, for example a dropped one, the table keeps its old name until it is renamed again.
    """
    if not new_names:
        return
    rows = fetch_rows(cursor.connection, _NameRow, _SQL["names"])
    current_names = {row.table_id: TableName(row.schema_name, row.table_name) for row in rows}
    cursor.execute(_SQL["lake_names"])
    taken = {TableName(schema, name) for schema, name in cursor.fetchall()}
    moving = {table_id: name for table_id, name in new_names.items() if current_names.get(table_id, name) != name}
    while True:
        staying = taken.union(current_names.values()) - {current_names[table_id] for table_id in moving}
        free = {table_id: name for table_id, name in moving.items() if name not in staying}
        if len(free) == len(moving):
            break
        moving = free
    chosen = [(table_id, name.schema, name.name) for table_id, name in sorted(moving.items())]
    for _, schema, _ in chosen:
        ensure_namespace(cursor, schema)
    for table_id, _, _ in chosen:
        cursor.execute(_SQL["rename"], {"table_id": table_id, "schema": "", "name": f"renamed {table_id}"})
    for table_id, schema, name in chosen:
        cursor.execute(_SQL["rename"], {"table_id": table_id, "schema": schema, "name": name})
