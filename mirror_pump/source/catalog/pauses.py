"""The catalog's side of a pause: a table leaves the publication, and comes back.

A paused table is one that waits (`TableState.WAITING`) and is not published, with the time since when: the server sends
nothing of it, so it holds neither WAL nor memory, and its readers keep the frontier that they have. It comes back as
every table that was not published for a while does: it is copied again, beside what readers have. But of the copy only
the rows are kept that differ (`where_different`).

Each change is one transaction with the lock of the slot's row, so no publish is under way. What is published is
recorded in it (`record_published`): the pump finds no change that others made.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from mirror_pump.model import MirroredTable, TableId, TableName
from mirror_pump.source.catalog.resync import mark_tables
from mirror_pump.source.catalog.slot_row import lock_slot
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.rows import fetch_rows
from mirror_pump.source.stream.publication import publish_again, record_published
from mirror_pump.source.stream.slot import remove_from_publication, wal_end
from sql import queries

_SQL = queries("pause")

PAUSED = "it is paused"
"""How the error text of a paused table begins."""


@dataclass(frozen=True)
class SnapshotDue:
    """A table whose changes are not followed, and to which something has to be done. A row of the query `due`."""

    table_id: TableId
    schema: str
    name: str
    rests: bool
    """Whether it has to be copied again. Otherwise its copy is complete, and it has to be paused."""

    @property
    def table(self) -> TableName:
        return TableName(self.schema, self.name)


def paused_text(since: datetime, *, snapshot: bool = False) -> str:
    """For people: that a table is paused, and since when; or of when its snapshot is."""
    return f"{'a snapshot of' if snapshot else 'paused since'} {since.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def state_text(table: MirroredTable) -> str:
    """For people: the state of a table, which is paused rather than that it waits."""
    if table.paused_since is None:
        return table.state.value
    return paused_text(table.paused_since, snapshot=table.rests)


def way_to_live(table: MirroredTable) -> str:
    """What to do with a table that is not live, and has to be."""
    if table.paused_since is not None:
        return f"`mirror-pump resume {table.name.shell}` brings it up to date"
    return "`mirror-pump status` says why, and shows when it is live"


def due_tables(connection: PgConnection, slot: str) -> list[SnapshotDue]:
    """Reads which tables have to be paused or resumed by their `SnapshotPlan` now."""
    return fetch_rows(connection, SnapshotDue, _SQL["due"], {"slot": slot})


def note_not_resumed(connection: PgConnection, table_id: TableId, error: str) -> None:
    """Records why a table that is due is not copied again. `status` shows it."""
    connection.execute(_SQL["not_resumed"], {"table_id": table_id, "error": error})


def pause_table(connection: PgConnection, slot: str, publication: str, table_id: TableId) -> datetime | None:
    """Takes a table out of the publication. Returns since when it is paused, or None if its state allows no pause any
    more. In the caller's transaction, which is rolled back then."""
    lock_slot(connection, slot)
    remove_from_publication(connection, publication, table_id)
    if not mark_tables(connection, slot, [table_id], wal_end(connection), gap=False, where_different=True):
        return None
    row = connection.execute(_SQL["pause"], {"table_id": table_id, "error": PAUSED}).fetchone()
    record_published(connection, slot, [table_id])
    assert row is not None, "a marked table waits"
    paused_since: datetime = row[0]
    return paused_since


def resume_table(connection: PgConnection, slot: str, publication: str, table_id: TableId) -> bool:
    """Publishes a paused table and marks it to be copied again. Returns False if its state does not allow that any
    more. In the caller's transaction, which is rolled back then."""
    lock_slot(connection, slot)
    connection.execute(_SQL["resume"], {"table_id": table_id})
    publish_again(connection, publication, table_id)
    marked = mark_tables(connection, slot, [table_id], wal_end(connection), gap=False, where_different=True)
    record_published(connection, slot, [table_id])
    return bool(marked)
