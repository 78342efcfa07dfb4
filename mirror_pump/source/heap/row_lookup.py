"""Reads single rows of the heap by key, with every value as the text that Postgres prints, once they are visible."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import psycopg

from mirror_pump.database.quoting import identifier, in_query
from mirror_pump.errors import ConnectionLost
from mirror_pump.model import Column, MirroredTable, TableId
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.rows import fetch_rows
from sql import queries

_SQL = queries("heap")

VISIBLE_WITHIN = 5.0
"""Seconds. A commit is visible milliseconds after the stream has it, unless it waits for an unavailable standby. In
that case the pump abandons the batch and receives it again later."""
_POLL_INTERVAL = 0.01
"""Seconds between two checks of visibility."""


def await_visible(connection: PgConnection, xids: Sequence[int], within: float = VISIBLE_WITHIN) -> None:
    """Returns once every new snapshot sees these committed transactions, given by their 32-bit IDs.

    A commit is in the WAL, and so in the stream, before snapshots see it. In between it may wait for a synchronous
    standby. The connection must be in autocommit. Raises ConnectionLost if the wait takes longer than `within` seconds,
    or if the connection breaks.
    """
    deadline = time.monotonic() + within
    while True:
        with source_errors("waiting for a commit to be visible"):
            ((end, running),) = connection.execute(_SQL["snapshot"]).fetchall()
        open_xids = {xid % _XIDS for xid in running}
        xids = [xid for xid in xids if xid in open_xids or (xid - end) % _XIDS < _XIDS // 2]
        if not xids:
            return
        if time.monotonic() > deadline:
            raise ConnectionLost(
                f"transaction {xids[0]} has committed, but is not visible yet",
                "it may be waiting for a synchronous standby (wait_event SyncRep in pg_stat_activity); mirror-pump"
                " tries again by itself",
            )
        time.sleep(_POLL_INTERVAL)


def read_rows(
    connection: PgConnection,
    table: MirroredTable,
    columns: Sequence[Column],
    keys: Sequence[tuple[str, ...]],
) -> list[tuple[str | None, ...]]:
    """The rows with one of these `keys` (texts of the key columns in attribute order), as the texts of `columns`.

    The heap may be ahead of the stream position that `table` describes. So the table and its columns are looked up by
    number, under their present names. A dropped column reads as NULL. No row is found if the table is gone or its key
    columns have changed. Raises SourceError, or ConnectionLost if the connection broke.
    """
    if not keys:
        return []
    with source_errors(f"reading rows of {table.name}"):
        for _ in range(_TRIES - 1):
            # The table may be renamed between two statements until it is locked.
            with suppress(psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn), connection.transaction():
                return _read(connection, table, columns, keys)
        with connection.transaction():
            return _read(connection, table, columns, keys)


def _read(
    connection: PgConnection,
    table: MirroredTable,
    columns: Sequence[Column],
    keys: Sequence[tuple[str, ...]],
) -> list[tuple[str | None, ...]]:
    relation_row = connection.execute(_SQL["relation"], {"oid": table.table_id}).fetchone()
    if relation_row is None:
        return []
    (relation,) = relation_row
    connection.execute(f"LOCK TABLE {relation} IN ACCESS SHARE MODE".encode())
    current_columns = {column.attnum: column for column in present_columns(connection, table.table_id)}
    if any(
        column.attnum not in current_columns or current_columns[column.attnum].type_oid != column.type_oid
        for column in table.key_columns
    ):
        return []
    # format() runs the type's output function, as the stream does. A cast to text differs for char(n), inet and bool.
    selected = ", ".join(
        f"CASE WHEN t.{name} IS DISTINCT FROM NULL THEN format('%%s', t.{name}) END" if name else "NULL"
        for name in (
            in_query(identifier(current_columns[column.attnum].name)) if column.attnum in current_columns else ""
            for column in columns
        )
    )
    names = [f"v{place}" for place in range(len(table.key))]
    typed = ", ".join(
        f"v.{name}::{in_query(column.type_sql)} AS {in_query(identifier(current_columns[column.attnum].name))}"
        for name, column in zip(names, table.key_columns, strict=True)
    )
    # With the operators of the key's index, wherever they are: others may have put theirs into the search path.
    numbers = [column.attnum for column in table.key_columns]
    ((matched,),) = connection.execute(_SQL["key_match"], {"oid": table.table_id, "numbers": numbers}).fetchall()
    lists = ", ".join("%s::text[]" for _ in names)
    source = relation.replace("%", "%%")
    given = f"SELECT {typed} FROM unnest({lists}) AS v({', '.join(names)})"
    query = f"SELECT {selected} FROM {source} t JOIN ({given}) k ON {in_query(matched)}"
    key_columns = [list(part) for part in zip(*keys, strict=True)]
    return connection.execute(query.encode(), key_columns).fetchall()


_TRIES = 5
"""Each try fails only if the table is renamed in the milliseconds between two statements."""

_XIDS = 1 << 32
"""The number of 32-bit transaction IDs, which are compared modulo this. IDs in snapshots have 64 bits."""


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
