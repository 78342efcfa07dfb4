"""Reads single rows of the heap by key, every value as the text that Postgres prints, once they can be seen."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

import psycopg

from mirror_pump.errors import ConnectionLost
from mirror_pump.model import Column, MirroredTable
from mirror_pump.quoting import identifier, in_query
from mirror_pump.source.connect import PgConnection, source_errors

_VISIBLE_WITHIN = 5.0
"""Seconds. A commit is visible milliseconds after the stream has it, unless it waits for a standby that is away: then
the batch is given up, and received again later."""
_LOOK_INTERVAL = 0.01
"""Seconds between two looks at what is visible."""


def await_visible(connection: PgConnection, xids: Sequence[int]) -> None:
    """Returns once every new snapshot sees these transactions (IDs of 32 bits), all of which have committed.

    A commit is in the WAL, and so in the stream, before snapshots see it; between the two it may wait for a synchronous
    standby. The connection is in autocommit. Raises ConnectionLost if it takes too long, or the connection broke.
    """
    deadline = time.monotonic() + _VISIBLE_WITHIN
    while True:
        with source_errors("waiting for a commit to be visible"):
            ((end, running),) = connection.execute(_SNAPSHOT).fetchall()
        open_ones = {xid % _XIDS for xid in running}
        xids = [xid for xid in xids if xid in open_ones or (xid - end) % _XIDS < _XIDS // 2]
        if not xids:
            return
        if time.monotonic() > deadline:
            raise ConnectionLost(
                f"transaction {xids[0]} has committed, and nobody sees it yet",
                "perhaps it waits for a synchronous standby (wait_event SyncRep in pg_stat_activity); mirror-pump tries"
                " again by itself",
            )
        time.sleep(_LOOK_INTERVAL)


def read_rows(
    connection: PgConnection, table: MirroredTable, columns: Sequence[Column], keys: Sequence[tuple[str, ...]]
) -> list[tuple[str | None, ...]]:
    """The rows that exist among `keys` (texts of the key columns in attribute order), with the texts of `columns`.

    The heap may be further than the stream that `table` is as of: it and its columns are found by their numbers under
    whatever names they have now, a column that is gone reads as NULL, and no row is found once the table or its key is
    not what it was. Raises SourceError, and ConnectionLost if the connection broke.
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
    connection: PgConnection, table: MirroredTable, columns: Sequence[Column], keys: Sequence[tuple[str, ...]]
) -> list[tuple[str | None, ...]]:
    who = {"oid": table.table_id}
    found = connection.execute(_RELATION, who).fetchone()
    if found is None:
        return []
    relation = found[0]
    connection.execute(f"LOCK TABLE {relation} IN ACCESS SHARE MODE".encode())
    present = {number: (name, type_oid) for number, name, type_oid in connection.execute(_PRESENT, who)}
    if any(present.get(column.attnum, ("", 0))[1] != column.type_oid for column in table.key_columns):
        return []
    # format() runs the type's output function, as the stream does; a cast to text differs for char(n), inet and bool.
    selected = ", ".join(
        f"CASE WHEN t.{name} IS DISTINCT FROM NULL THEN format('%%s', t.{name}) END" if name else "NULL"
        for name in (in_query(identifier(present[one.attnum][0])) if one.attnum in present else "" for one in columns)
    )
    names = [f"v{place}" for place in range(len(table.key))]
    matched = " AND ".join(
        f"t.{in_query(identifier(present[column.attnum][0]))} = k.{name}::{in_query(column.type_sql)}"
        for name, column in zip(names, table.key_columns, strict=True)
    )
    lists = ", ".join("%s::text[]" for _ in names)
    source = relation.replace("%", "%%")
    query = f"SELECT {selected} FROM {source} t JOIN unnest({lists}) AS k({', '.join(names)}) ON {matched}"
    parameters = [list(part) for part in zip(*keys, strict=True)]
    return connection.execute(query.encode(), parameters).fetchall()


_TRIES = 5
"""More renames than that in the milliseconds between two statements do not happen."""

_XIDS = 1 << 32
"""Transaction IDs of 32 bits are compared modulo it; those of snapshots have 64."""

_SNAPSHOT = """
SELECT pg_snapshot_xmax(s)::text::bigint, ARRAY(SELECT pg_snapshot_xip(s)::text::bigint) FROM pg_current_snapshot() s
"""

_RELATION = """
SELECT format('%%I.%%I', n.nspname, c.relname)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %(oid)s::bigint::oid
"""

_PRESENT = """
SELECT attnum, attname, atttypid::bigint FROM pg_attribute
 WHERE attrelid = %(oid)s::bigint::oid AND attnum > 0 AND NOT attisdropped
"""
