"""Detects changes that others make to the publication: ALTER PUBLICATION leaves no trace in the stream.

The publication as of a change decides what the server sends of that change. If a table was removed, changed and added
again, the stream lacks the changes, without any sign of it. So the catalogs' rows about the publication (its settings,
and one row for each of its tables) are recorded with each table. A row that is removed and added again is a different
row. When the mirror itself adds or removes a table, it records the result in the same transaction, or the table is not
mirrored any more.

The catalogs show the present, while the stream delivers older WAL. Therefore each publish checks them after it has
received all of its changes: the frontier never passes a change of the publication that a database snapshot shows by
then. A commit record is visible microseconds later, or, with synchronous replication, after the wait for the standby.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from mirror_pump.database.quoting import identifier
from mirror_pump.errors import PublicationChanged
from mirror_pump.model import MirroredTable, TableId, TableName
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.rows import fetch_row, fetch_rows
from mirror_pump.source.stream.slot import add_to_publication, create_publication, published_part
from sql import queries

_SQL = queries("publication")


class PublicationCheck:
    """Refuses to go on once the publication has changed, and compares its tables one by one only if something of them
    was written since the last time.

    Invariant: `_state` is None, or a mark of catalogs in which nothing had changed, read before they were compared.
    Every write that can change the comparison's result changes the mark: so one that comes between the two is compared
    the next time, at the latest. Several threads may use it: each stores a mark that it has compared itself.
    """

    def __init__(self, slot: str) -> None:
        self._slot = slot
        self._state: str | None = None

    def refuse_changed(self, cursor: psycopg.Cursor[tuple[Any, ...]]) -> None:
        """Raises PublicationChanged if the publication is not as recorded, or if it does not publish a table
        completely, unless the table is waiting for that."""
        state = self._read_state(cursor)
        if state is not None and state == self._state:
            return
        if cursor.execute(_SQL["changed"], {"slot": self._slot}).fetchone() != (False,):
            raise PublicationChanged(
                "what the mirror's publication publishes was changed: later changes may be missing in the stream",
                "mirror-pump copies the affected tables again by itself",
            )
        self._state = state

    def altered_tables(self, connection: PgConnection) -> list[TableId]:
        """As the function of this name. Where all tables are published as recorded, nothing has changed either."""
        with source_errors("reading what is published"), connection.cursor() as cursor:
            state = self._read_state(cursor)
            rows = cursor.execute(_SQL["altered"], {"slot": self._slot}).fetchall()
        if not rows:
            self._state = state
        return [TableId(table_id) for table_id, unpaused in rows if unpaused]

    def _read_state(self, cursor: psycopg.Cursor[tuple[Any, ...]]) -> str | None:
        ((state,),) = cursor.execute(_SQL["state"], {"slot": self._slot}).fetchall()
        return None if state is None else str(state)


def altered_tables(connection: PgConnection, slot: str) -> list[TableId]:
    """Tables whose changes may be missing in the stream, and tables that are not published completely."""
    return PublicationCheck(slot).altered_tables(connection)


def not_whole(connection: PgConnection, slot: str) -> set[TableId]:
    """Tables that are not published with all their rows and columns, or not at all."""
    with source_errors("reading what is published"):
        return {TableId(table_id) for (table_id,) in connection.execute(_SQL["not_whole"], {"slot": slot})}


def lacks_a_part(connection: PgConnection, slot: str, table_id: TableId) -> bool:
    """Whether a table is not published with all its rows and columns, or not at all."""
    with source_errors("reading what is published"):
        return connection.execute(_SQL["lacks_a_part"], {"slot": slot, "table_id": table_id}).fetchone() == (True,)


def record_published(
    connection: PgConnection | psycopg.Cursor[tuple[Any, ...]], slot: str, tables: Sequence[TableId]
) -> None:
    """Records the publication's present state for these tables, in the caller's transaction."""
    connection.execute(_SQL["record"], {"slot": slot, "table_ids": list(tables)})


def record_filter(connection: PgConnection | psycopg.Cursor[tuple[Any, ...]], table_id: TableId) -> None:
    """Records the row filter of a table as the publication has it now, in the caller's transaction. Its columns may
    have other names since; another filter is not taken over."""
    connection.execute(_SQL["record_filter"], {"table_id": table_id})


def how_to_publish(publication: str, table: TableName, part: str = "") -> str:
    """What to do about a table that is not published completely, or that lacks its own part of columns and rows."""
    return (
        f"ALTER PUBLICATION {identifier(publication)} ADD TABLE {table.quoted}{part} (behind DROP TABLE"
        f" {table.quoted}, if it is in there with another row filter or column list); the table"
        " is then copied again by itself"
    )


def how_to_restore(publication: str, table: MirroredTable) -> str:
    """`how_to_publish` for a registered table."""
    return how_to_publish(publication, table.name, published_part(table.column_names, table.row_filter))


@dataclass(frozen=True)
class _RegisteredRow:
    """A row of the query `registered`."""

    schema: str
    name: str
    columns: list[str]
    """The column list; empty for all columns."""
    row_filter: str

    def publish(self, connection: PgConnection, publication: str) -> None:
        part = published_part(self.columns, self.row_filter)
        add_to_publication(connection, publication, TableName(self.schema, self.name), part)


def make_publication(connection: PgConnection, name: str) -> int | None:
    """Creates the publication with all registered tables. Returns their number, or None if the publication existed.

    Raises SourceError if the existing publication does not publish what the mirror needs.
    """
    with connection.transaction():
        if not create_publication(connection, name):
            return None
        with source_errors(f"reading the tables of publication {name}"):
            tables = fetch_rows(connection, _RegisteredRow, _SQL["registered"], {"publication": name, "table_id": None})
        for table in tables:
            table.publish(connection, name)
        return len(tables)


def publish_again(connection: PgConnection, publication: str, table_id: TableId) -> None:
    """Adds a registered table to the publication, with its own columns and rows, under the names that they have now."""
    parameters = {"publication": publication, "table_id": table_id}
    with source_errors("reading how the table was published"):
        table = fetch_row(connection, _RegisteredRow, _SQL["registered"], parameters)
    if table is not None:
        table.publish(connection, publication)
