"""modak.delta: corrections of rows below T, read as rows of their table to be folded, and cleared when no reader needs
them any more.

A fold only marks rows, with the sequence number of the S that has them (`folded_sequence`); readers merge them on,
which does no harm. They are cleared later.

Invariant: as long as a table has an unexpired pin, no correction of it is cleared. A reader may look at the delta more
than once: for the keys that replace rows of S, then for the rows that replace them. A correction that is cleared in
between is in neither. The exception are readers who say in their pin that they take the delta in one snapshot of the
database (read_pins.in_one_snapshot): what that shows stays, and they only need the corrections that their S lacks.

Nobody pins while rows are cleared: that is done under a lock which whoever pins needs before it reads S, and has until
the pin is visible or never will be. (A REPEATABLE READ transaction may pin an S of before. It sees the corrections of
its own snapshot too, and reads them in the same transaction. One in READ COMMITTED may pin an S and then read the file
of a later one, of the same T: corrections that S lacks stay, and those that the later one has do no harm.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg

from mirror_pump.errors import TableError
from mirror_pump.model import MirroredTable, TableId
from mirror_pump.quoting import identifier, in_query, literal
from mirror_pump.source.connect import LOCK_TIMEOUT, PgConnection, source_errors
from sql import queries

_SQL = queries("fold")

_CLEARED_AT_ONCE = 10_000
"""Rows; readers who want to pin wait meanwhile, some 50 ms."""

TOMBSTONE = 1
"""modak.delta.op of a deleted row."""


@dataclass(frozen=True)
class CorrectionBacklog:
    """What a table has in modak.delta."""

    table_id: TableId
    rows: int
    """That are not folded: all, or as many as were asked about."""
    age: float
    """Seconds since the oldest of them was written."""
    folded: bool
    """Some are folded and not cleared."""


@dataclass(frozen=True)
class Correction:
    """A row of modak.delta, the newest of its key."""

    pk: str
    version: int
    tombstone: bool
    values: tuple[str | None, ...]
    """Of every mirrored column, as its type prints it; of a tombstone those of the key."""


def read_backlog(connection: PgConnection, slot: str, rows: int) -> tuple[CorrectionBacklog, ...]:
    """Tables with corrections. `rows`: count no further."""
    with source_errors("looking for corrections to fold"):
        found = connection.execute(_SQL["backlog"], {"slot": slot, "rows": rows}).fetchall()
    return tuple(CorrectionBacklog(TableId(row[0]), row[1], row[2] or 0.0, row[3]) for row in found)


def read_corrections(connection: PgConnection, table: MirroredTable, limit: int) -> tuple[Correction, ...] | None:
    """The oldest corrections that are not folded, at most `limit`, by version.

    None: not now, for the heap has other columns than the mirror has come to, or somebody is altering the table. Raises
    TableError for a row that is none of the table's, SourceError, ConnectionLost.
    """
    with source_errors(f"reading corrections of {table.name}"):
        try:
            with connection.transaction():
                return _read(connection, table, limit)
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected, _Renamed):
            return None
        except (psycopg.DataError, psycopg.IntegrityError) as error:
            raise TableError(
                f"a row of modak.delta is no row of {table.name}: {' '.join(str(error).split())}",
                "mend or delete it",
            ) from error


class _Renamed(Exception):
    """The table was renamed, or dropped, since its name was read."""


def _read(connection: PgConnection, table: MirroredTable, limit: int) -> tuple[Correction, ...] | None:
    assert table.tier is not None
    who = {"table_id": table.table_id}
    relation = connection.execute(_SQL["relation"], who).fetchone()
    if relation is None:
        return None
    # Names of types and of what regclass prints do not depend on whoever runs the pump.
    connection.execute(
        "SELECT set_config('lock_timeout', %s, true), set_config('search_path', 'pg_catalog', true)", (LOCK_TIMEOUT,)
    )
    try:
        connection.execute(f"LOCK TABLE ONLY {relation[0]} IN ACCESS SHARE MODE".encode())
    except psycopg.errors.UndefinedTable as error:
        raise _Renamed from error
    columns = connection.execute(_SQL["columns"], who).fetchall()
    present = {row[0]: tuple(row[1:4]) for row in columns}
    documents = {row[0]: str(row[4]) for row in columns if row[5]}
    known = {one.attnum: (one.name, one.type_oid, one.type_modifier) for one in table.columns}
    if any(present.get(number) != column for number, column in known.items()):
        return None
    if any(number not in known and not _left_out(table, number, one[0]) for number, one in present.items()):
        return None
    names = [identifier(column.name) for column in table.columns]
    texts = in_query(
        ", ".join(f"CASE WHEN v.{name} IS DISTINCT FROM NULL THEN format('%s', v.{name}) END" for name in names)
    )
    # jsonb_populate_record reads a string with the type's input function; but of json, where a string is a document.
    values = in_query(
        ", ".join(
            f"(d.payload ->> {literal(column.name)})::{documents[column.attnum]} AS {name}"
            if column.attnum in documents
            else f"r.{name}"
            for column, name in zip(table.columns, names, strict=True)
        )
    )
    query = (
        f"SELECT d.pk, d.version, d.op, {texts} FROM (SELECT * FROM modak.delta WHERE table_id = %s"
        " AND folded_sequence IS NULL AND tier_key < %s ORDER BY version LIMIT %s) d"
        f" CROSS JOIN LATERAL jsonb_populate_record(NULL::{in_query(relation[0])}, coalesce(d.payload, '{{}}')) r"
        f" CROSS JOIN LATERAL (SELECT {values}) v ORDER BY d.version"
    )
    rows = connection.execute(query.encode(), (table.table_id, table.tier.cut, limit)).fetchall()
    places = [place for place, column in enumerate(table.columns) if column.name in table.key]
    found = tuple(Correction(row[0], row[1], row[2] == TOMBSTONE, tuple(row[3:])) for row in rows)
    for one in found:
        if any(one.values[place] is None for place in places):
            raise TableError(
                f"the correction {one.pk!r} of {table.name} in modak.delta lacks a part of its key", "mend or delete it"
            )
    return found


def _left_out(table: MirroredTable, attnum: int, name: str) -> bool:
    """Whether a column is known not to be mirrored."""
    return any(one.attnum == attnum and one.name == name for one in table.excluded)


def clear(connection: PgConnection, table_id: TableId, sequence_numbers: Callable[[str], Mapping[int, int]]) -> int:
    """Removes corrections that were folded and that no reader needs any more; how many.

    `sequence_numbers` gives, for the table's metadata file, the sequence number of each of its snapshots. Waits for no
    reader: none is cleared while somebody puts a pin in place.
    """
    with source_errors("clearing folded corrections"):
        seam = connection.execute(_SQL["seam"], {"table_id": table_id}).fetchone()
    if seam is None:
        return 0
    snapshot_id, location = seam
    # S may move on from here: its number only grows. Storage is not read under the lock.
    numbers = sequence_numbers(location)
    cleared = 0
    while (removed := _clear_some(connection, table_id, snapshot_id, numbers)) == _CLEARED_AT_ONCE:
        cleared += removed
    return cleared + removed


def _clear_some(connection: PgConnection, table_id: TableId, snapshot_id: int, numbers: Mapping[int, int]) -> int:
    """Up to _CLEARED_AT_ONCE rows, in a transaction in which nobody can pin."""
    who: dict[str, Any] = {"table_id": table_id}
    with source_errors("clearing folded corrections"):
        try:
            with connection.transaction():
                connection.execute(_SQL["lock_pins"])
                row = connection.execute(_SQL["pins"], who).fetchone()
                assert row is not None
                pinned, read_again = row
                if read_again:
                    return 0
                # A pin of a snapshot that is not in the history any more may be of any age.
                bound = min(numbers.get(snapshot, -1) for snapshot in (snapshot_id, *pinned))
                return connection.execute(_SQL["clear"], {**who, "sequence": bound, "rows": _CLEARED_AT_ONCE}).rowcount
        except psycopg.errors.LockNotAvailable:
            return 0
