"""The columns that a table has in Postgres now, which may be ahead of what the mirror has applied."""

from __future__ import annotations

from dataclasses import dataclass

from mirror_pump.model import TableId
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.rows import fetch_rows
from sql import queries

_SQL = queries("heap")


@dataclass(frozen=True)
class PresentColumn:
    """A column of a table as pg_attribute has it."""

    attnum: int
    name: str
    type_oid: int
    type_modifier: int
    """atttypmod; -1 where the type has none."""


def present_columns(connection: PgConnection, table_id: TableId) -> list[PresentColumn]:
    """The columns that are not dropped; empty if the table is gone. Raises psycopg.Error."""
    return fetch_rows(connection, PresentColumn, _SQL["columns"], {"oid": table_id})
