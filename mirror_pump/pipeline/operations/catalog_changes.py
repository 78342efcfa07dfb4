"""Changes the catalog's description of a table in the publish transaction: columns and key.

A table that is copied again keeps its published snapshot and its promised frontier. Commits during the copy build on
metadata that only `mirror_tables.staged_location` names. It starts as the table's own metadata with every file removed,
so the history and the field IDs continue. When the copy is complete, one publish makes it the table's pointer and its
current snapshot the published one. A reader sees the old content at its old frontier, then the new content at the new
frontier, and nothing in between. Changes that other engines made to the table during the copy are kept
(`mirror_pump.lake.commit.rebase`), except for commits to `main`. These can only be rewrites, because no other engine
may change the mirror's rows, and the files that they concern are gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from mirror_pump.errors import CommitConflict
from mirror_pump.lake.contents.dropped_rows import DroppedRows
from mirror_pump.lake.contents.partition_bounds import HIGHEST
from mirror_pump.model import MirroredTable, TableState
from mirror_pump.pipeline.operations.table_changes import TableChange
from mirror_pump.source.catalog.tables import (
    columns_to_json,
    excluded_to_json,
    partition_fields,
    ranges_text,
    tier_key,
    tier_key_type,
)
from mirror_pump.source.stream.publication import record_filter
from sql import queries

_SQL = queries("change")


def store_change(
    cursor: psycopg.Cursor[tuple[Any, ...]],
    change: TableChange,
    former_state: TableState,
    state: TableState,
    dropped_rows: Sequence[DroppedRows],
    values_kept: tuple[int, int] | None = None,
) -> None:
    """Stores the table's new description and its new `state`. `values_kept`: as of Recording. Raises
    CommitConflict if the stored state is no longer `former_state`."""
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
        }
        | _kept_ranges(change, values_kept),
    )
    if cursor.rowcount != 1:
        raise CommitConflict(f"the state of {table.name} changed while it was being published")
    if table.row_filter:
        record_filter(cursor, table.table_id)
    _complete_corrections(cursor, table)


def _kept_ranges(change: TableChange, values_kept: tuple[int, int] | None) -> dict[str, Any]:
    """The parameters of what the lake keeps (mirror_pump.lake.contents.kept_ranges)."""
    least, most = values_kept or (None, None)
    return {
        "kept": ranges_text(change.kept_ranges),
        "emptied": change.emptied or change.copy_again,
        "least": least,
        "end": None if most is None or most >= HIGHEST else most + 1,
    }


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
