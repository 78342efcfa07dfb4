"""The publication as somebody else may have made it: ALTER PUBLICATION leaves no trace in the stream.

What the server sends of a change is decided by the publication as of that change. Of a table that was taken out,
changed and added again, the stream lacks the changes, and nothing in it says so. So what the catalogs say of the
publication (the row of its settings, and each table's row in it) is recorded beside each table; a row that is put back
is another one. Our own additions and removals record theirs in the same transaction, or concern tables that are not
mirrored any more.

The present catalogs are looked at, but what comes is WAL from before. Therefore each publish looks, behind all that was
received for it: F never passes a change of the publication that a snapshot shows by then. Between a commit record and
that moment lie microseconds, or, with synchronous replication, the wait for the standby.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from mirror_pump.errors import PublicationChanged
from mirror_pump.model import TableId, TableName
from mirror_pump.quoting import identifier
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.stream.slot import add_to_publication, create_publication
from sql import queries

_SQL = queries("publication")


def refuse_changed(cursor: psycopg.Cursor[tuple[Any, ...]], slot: str) -> None:
    """PublicationChanged if the publication is not what was recorded, or does not publish a table whole that does not
    wait for that."""
    row = cursor.execute(_SQL["changed"], {"slot": slot}).fetchone()
    if row is None or row[0]:
        raise PublicationChanged(
            "somebody changed what the mirror's publication publishes: changes since may be missing in the stream",
            "the tables concerned are copied again by themselves",
        )


def altered_tables(connection: PgConnection, slot: str) -> list[TableId]:
    """Tables of which the stream may lack changes, and those of which it does not carry all."""
    with source_errors("reading what is published"):
        return [TableId(table_id) for (table_id,) in connection.execute(_SQL["altered"], {"slot": slot})]


def not_whole(connection: PgConnection, slot: str) -> set[TableId]:
    """Tables that are not published, or not with all their rows and columns."""
    with source_errors("reading what is published"):
        return {TableId(table_id) for (table_id,) in connection.execute(_SQL["not_whole"], {"slot": slot})}


def record_published(
    connection: PgConnection | psycopg.Cursor[tuple[Any, ...]], slot: str, tables: Sequence[TableId]
) -> None:
    """Take the publication as it is for what is known of these tables, in the caller's transaction."""
    connection.execute(_SQL["record"], {"slot": slot, "table_ids": list(tables)})


def how_to_publish(publication: str, table: TableName) -> str:
    """What to do about a table that is not published whole."""
    return (
        f"ALTER PUBLICATION {identifier(publication)} ADD TABLE {table.quoted} (behind DROP TABLE {table.quoted}, if it"
        " is in there with a row filter or a column list); the table is then copied again by itself"
    )


def make_publication(connection: PgConnection, name: str) -> int | None:
    """Creates the publication with the tables that are registered, if any; None if it was there, else how many.

    SourceError if one of that name publishes something else than we need.
    """
    with connection.transaction():
        if not create_publication(connection, name):
            return None
        with source_errors(f"reading the tables of publication {name}"):
            tables = [TableName(*row) for row in connection.execute(_SQL["registered"], {"publication": name})]
        for table in tables:
            add_to_publication(connection, name, table)
        return len(tables)
