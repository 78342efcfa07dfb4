"""Changes how the lake table of a plain mirrored table is partitioned and sorted, whether or not a pump runs.

One transaction does all of it (mirror_pump.ops.resync.metadata_change):

- The order of rows: a metadata file with the new sort order becomes the lake table's. Its rows, files and snapshots are
  the same, so readers and the copy of a table that is under way see nothing of it. A running pump begins a new session,
  which sorts what it writes from then on.
- The partitions: the catalog gets the new fields, and the table is marked to be copied again
  (mirror_pump.source.catalog.resync). Readers keep the former files until the copy is complete. No commit has files of
  both specs: chunks and segments for the former registration are thrown away, since it has another start LSN and
  generation, and the first commit of the copy removes every file and gives the table its spec.

A paused table is copied again anyway when it is resumed. So there the catalog changes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from mirror_pump.engine.lake_storage import lake_storage
from mirror_pump.errors import Interrupted, MirrorPumpError, TableError
from mirror_pump.json_documents import JsonDocument
from mirror_pump.lake.document.next_metadata import with_sort_order
from mirror_pump.lake.format.partitioning import same_partitions
from mirror_pump.model import LakePartitioning, MirroredTable, SortedColumn, TableName, TableState
from mirror_pump.ops.register.copies import copies_progress, follow_copies
from mirror_pump.ops.register.lake_partitions import LayoutOptions, altered_partitioning
from mirror_pump.ops.register.unregistration import registered_table
from mirror_pump.ops.resync.metadata_change import MetadataChange, change_metadata
from mirror_pump.ops.resync.pausing import changed_meanwhile
from mirror_pump.ops.resync.resync import plan_resync
from mirror_pump.ops.table_progress import TableProgress
from mirror_pump.pipeline.flow.steps import unobserved
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.layout import store_layout
from mirror_pump.source.catalog.pump_channel import RESYNC, notify_pump
from mirror_pump.source.catalog.resync import mark_tables
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.source.relations.partition_choices import (
    layout_text,
    partition_choices,
    sort_choices,
)
from mirror_pump.source.stream.slot import wal_end
from sql.mirror_names import SCHEMA


class LayoutAction(StrEnum):
    """What a change of layout leads to."""

    NOTHING = "nothing"
    """The table has the layout."""
    SORT = "sort"
    """New files are sorted by the new order; maintenance sorts the others."""
    COPY = "copy"
    """The table is copied again, with the new partitions."""
    LATER = "later"
    """The next copy has the new partitions: the table is paused."""


@dataclass(frozen=True)
class LayoutChange(JsonDocument):
    """What became of a table whose layout was to be changed."""

    table: str
    action: LayoutAction
    partition_by: str
    """The fields of its partitions from now on, as `--partition-by` takes them; empty: none."""
    sort_by: str
    """As `--sort-by` takes it; empty: none."""
    state: str
    """Of the table when the command ends, as in `status`; `snapshot` if its changes are not followed."""
    rows: int = 0
    """Rows that were copied."""
    error: MirrorPumpError | None = None
    """Why the table cannot be copied, or not before its owner acts."""


def alter_layout(
    settings: Settings,
    name: str,
    wish: LayoutOptions,
    *,
    wait: bool,
    on_progress: Callable[[Sequence[TableProgress]], None],
    dry_run: bool = False,
) -> LayoutChange:
    """Change a table's layout; with `dry_run`, only say what that would lead to. With `wait`, return once it is live if
    it has to be copied again, or is being copied: by a running pump, or else by this process.

    Raises TableError, having done nothing, for a table that is not mirrored, has failed, has a cut-line or another
    slot, or does not have the columns. Ctrl-C raises Interrupted; what was begun goes on with the next pump.
    """
    storage = lake_storage(settings)
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-alter") as connection:
        try:
            table, partitioning = _altered_table(connection, settings, name, wish)
            if dry_run:
                return _outcome(connection, replace(table, partitioning=partitioning), _action(table, partitioning))
            table, action = change_metadata(
                connection, settings, table, storage, lambda table: _change(connection, settings, table, wish)
            )
            going_on = table.paused_since is None and (
                action is LayoutAction.COPY or table.state is not TableState.LIVE
            )
            if wait and going_on:
                follow_copies(connection, settings, [table.table_id], on_progress, unobserved)
        except KeyboardInterrupt:
            raise Interrupted(
                f"interrupted; `mirror-pump status` shows the layout of {name}. If it is copied again, that goes on"
                " with the next pump, and the same command follows it"
            ) from None
        return _outcome(connection, table, action)


def _altered_table(
    connection: PgConnection, settings: Settings, name: str, wish: LayoutOptions
) -> tuple[MirroredTable, LakePartitioning | None]:
    """Return the table of this name, and the layout that it is to have. Raises the error because of which it cannot."""
    with source_errors(f"altering {name}"):
        table = registered_table(connection, name)
    partitioning = altered_partitioning(table, wish)
    if table.table_id not in _of_slot(connection, settings):
        raise TableError(f"{table.name} belongs to another slot than {settings.slot}", "give --slot")
    if _action(table, partitioning) is LayoutAction.COPY:
        _refuse_copy(settings, table.name)
    return table, partitioning


def _refuse_copy(settings: Settings, name: TableName) -> None:
    """Raise the error because of which the table cannot be copied again, if there is one."""
    (planned,) = plan_resync(settings, [name.quoted]).tables
    if planned.error is not None:
        raise planned.error


def _of_slot(connection: PgConnection, settings: Settings) -> set[int]:
    rows = connection.execute(
        f"SELECT table_id FROM {SCHEMA}.mirror_tables WHERE slot_name = %s", (settings.slot,)
    ).fetchall()
    return {table_id for (table_id,) in rows}


def _change(
    connection: PgConnection, settings: Settings, table: MirroredTable, wish: LayoutOptions
) -> MetadataChange[tuple[MirroredTable, LayoutAction]]:
    """Return the change, with the table as it is after it, and what the change leads to."""
    partitioning = altered_partitioning(table, wish)
    action = _action(table, partitioning)
    result = replace(table, partitioning=partitioning), action
    if action is LayoutAction.NOTHING:
        return MetadataChange(result)

    def record() -> None:
        store_layout(connection, table, partitioning)
        if action is LayoutAction.COPY and not mark_tables(
            connection, settings.slot, [table.table_id], wal_end(connection), gap=False
        ):
            raise changed_meanwhile(table.name)
        notify_pump(connection, RESYNC)

    order = _order(table, partitioning)
    if _order(table, table.partitioning) == order:
        return MetadataChange(result, record=record)
    # A copy that is under way takes the order over from what readers see.
    return MetadataChange(result, lambda metadata, old, now_ms: with_sort_order(metadata, order, old, now_ms), record)


def _action(table: MirroredTable, partitioning: LakePartitioning | None) -> LayoutAction:
    if not same_partitions(table.partitioning, partitioning):
        return LayoutAction.COPY if table.paused_since is None else LayoutAction.LATER
    same = _order(table, table.partitioning) == _order(table, partitioning)
    return LayoutAction.NOTHING if same else LayoutAction.SORT


def _order(table: MirroredTable, partitioning: LakePartitioning | None) -> tuple[SortedColumn, ...]:
    """The order by columns that the table has."""
    columns = {column.field_id for column in table.columns}
    return tuple(
        column for column in (() if partitioning is None else partitioning.order) if column.field_id in columns
    )


def _outcome(connection: PgConnection, table: MirroredTable, action: LayoutAction) -> LayoutChange:
    """What has become of the table."""
    change = LayoutChange(
        str(table.name),
        action,
        layout_text(partition_choices(table)),
        layout_text(sort_choices(table)),
        table.state.value,
    )
    for progress in copies_progress(connection, [table.table_id]):
        waits = bool(progress.detail) and table.paused_since is None
        error = TableError(progress.detail, "`mirror-pump status` shows it until it is mended") if waits else None
        change = replace(change, state=progress.step, rows=progress.rows, error=error)
    return change
