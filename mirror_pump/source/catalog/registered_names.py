"""Finds registrations by their tables' registered names, because the names of dropped tables no longer resolve."""

from __future__ import annotations

from psycopg import errors as pg_errors

from mirror_pump.model import MirroredTable, TableId, TableName
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection, source_errors
from sql import queries

_SQL = queries("tables")


def registered_as(connection: PgConnection, name: TableName) -> MirroredTable | None:
    """The table that was registered under this name, even if it was renamed since."""
    with source_errors("looking for a registered table"):
        row = connection.execute(
            "SELECT table_id FROM modak.tables WHERE schema_name = %s AND table_name = %s", (name.schema, name.name)
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
        found = connection.execute(_SQL["formerly"], {"parts": parts, "text": text}).fetchone()
    return None if found is None else load_table(connection, TableId(found[0]))
