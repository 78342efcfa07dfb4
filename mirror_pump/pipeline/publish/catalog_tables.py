"""What the catalog says of the tables that a publish is about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from mirror_pump.errors import TableError
from mirror_pump.lake.commit.presence import StoredTable
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn, MirroredTable, TableId
from mirror_pump.pipeline.missing_files.missing_files import MissingFiles, stored_tables
from mirror_pump.pipeline.operations.registrations import Registration, RegistrationRow
from mirror_pump.pipeline.operations.table_changes import Failure
from mirror_pump.pipeline.publish.due_tables import TableGoingLive
from mirror_pump.pipeline.publish.staging import lake_table_gone
from mirror_pump.runtime.table_work import work_for
from mirror_pump.source.catalog.tables import load_each
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.rows import fetch_rows
from sql import queries

_SQL = queries("publish")

_Row = TypeVar("_Row")


@dataclass(frozen=True)
class _DueRow:
    """A row of the query `due_to_go_live`; see TableGoingLive."""

    table_id: TableId
    staged: str | None
    pointer: str | None
    frontier: Lsn
    resync_since: datetime | None


class CatalogTables:
    """The tables of one mirror, for one publisher. Raises SourceError if the catalog cannot be read."""

    def __init__(self, connection: Callable[[], PgConnection], slot: str, storage: StorageOptions) -> None:
        self._connection = connection
        self._slot = slot
        self.missing = MissingFiles(storage, self._stored_tables)
        """Decides what missing lake files mean."""

    def load(
        self,
        table: MirroredTable,
        load_state: Callable[[TableId, str], LakeTable],
        settle: Callable[[MirroredTable, Registration], Failure | None],
    ) -> LakeTable:
        """Loads the table's present state in the lake. `load_state` returns the state that a metadata file describes,
        and `settle` settles what another engine committed to the table, or returns why the table fails. Raises
        TableError if this registration or its lake table no longer exists, or the table fails."""
        settled = None
        while True:
            row = self.registrations([table.table_id]).get(table.table_id)
            if row is None or row.start_lsn != table.start_lsn:
                raise TableError(f"{table.name} is not registered any more")
            if row.lake_table_missing:
                raise lake_table_gone(table)
            if not row.moved_by_others or row.pointer == settled:
                with work_for(table):
                    return load_state(table.table_id, row.metadata_location)
            settled = row.pointer
            failure = settle(table, row)
            if failure is not None:
                raise TableError(failure.error)

    def left_to_the_lake(self, table_id: TableId) -> str | None:
        """Returns the tier values at which only the lake may have rows, or None if there are none."""
        ranges = self._scalar(_SQL["left_to_the_lake"], {"table_id": table_id})
        return None if ranges is None else str(ranges)

    def _stored_tables(self) -> list[StoredTable]:
        with source_errors("reading where the tables' files are"):
            return stored_tables(self._connection())

    def due(self, frontier: Lsn | None) -> list[TableGoingLive]:
        """Returns the tables that go live at this frontier, or at the present one if it is None."""
        rows = self._rows(_DueRow, _SQL["due_to_go_live"], {"slot": self._slot, "frontier": frontier})
        tables = load_each(self._connection(), [row.table_id for row in rows])
        return [
            TableGoingLive(tables[row.table_id], row.staged, row.pointer, row.frontier, row.resync_since)
            for row in rows
            if row.table_id in tables
        ]

    def registrations(self, table_ids: Sequence[TableId]) -> dict[TableId, Registration]:
        """Returns the registrations as they are now, without those that are gone."""
        if not table_ids:
            return {}
        pin_in_hand = bool(self._scalar(_SQL["pin_in_hand"], {}))
        rows = self._rows(RegistrationRow, _SQL["registrations"], {"table_ids": list(table_ids)})
        return {row.table_id: row.registration(pin_in_hand=pin_in_hand) for row in rows}

    def _rows(self, row_class: type[_Row], query: str, parameters: dict[str, object]) -> list[_Row]:
        with source_errors("reading the mirror's catalog"):
            return fetch_rows(self._connection(), row_class, query, parameters)

    def _scalar(self, query: str, parameters: dict[str, object]) -> object:
        """Returns the value of a query with one column and one row. None if it has no row."""
        with source_errors("reading the mirror's catalog"):
            row = self._connection().execute(query, parameters).fetchone()
        return None if row is None else row[0]
