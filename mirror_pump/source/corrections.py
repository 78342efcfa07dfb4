"""modak.delta: corrections of rows below T, read as rows of their table to be folded, and cleared when no reader needs
them any more.

A fold only marks rows, with the sequence number of the S that has them (`folded_sequence`); readers merge them on,
which does no harm. They are cleared later, when nobody can be reading an S from before: a pin of such an S is visible,
or it was put in place by a transaction that had the lock of modak.read_pins when it read S, and has it still. So that
lock is looked at first, the pins afterwards, and only rows are cleared that had been folded before both.
(A REPEATABLE READ transaction may pin an S that is older than that. It sees the corrections of its own snapshot too,
and reads them in the same transaction. One in READ COMMITTED may pin an S and then read the file of a later one, of the
same T: corrections that S lacks stay, and those that the later one has do no harm.)
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

_CLEARED_AT_ONCE = 50_000

TOMBSTONE = 1
"""modak.delta.op of a deleted row."""


@dataclass(frozen=True)
class Backlog:
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


def read_backlog(connection: PgConnection, slot: str, rows: int) -> tuple[Backlog, ...]:
    """Tables with corrections. `rows`: count no further."""
    with source_errors("looking for corrections to fold"):
        found = connection.execute(_SQL["backlog"], {"slot": slot, "rows": rows}).fetchall()
    return tuple(Backlog(TableId(row[0]), row[1], row[2] or 0.0, row[3]) for row in found)


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

    `sequence_numbers` gives, for the table's metadata file, the sequence number of each of its snapshots.
    """
    who: dict[str, Any] = {"table_id": table_id}
    with source_errors("clearing folded corrections"):
        seam = connection.execute(_SQL["seam"], who).fetchone()
        held = connection.execute(_SQL["pin_in_hand"]).fetchone()
        pins = [row[0] for row in connection.execute(_SQL["pins"], who).fetchall()]
    if seam is None or held is None or held[0]:
        return 0
    numbers = sequence_numbers(seam[1])
    # A pin of a snapshot that is not in the history any more may be of any age.
    bound = min([numbers.get(one, -1) for one in (seam[0], *pins)])
    with source_errors("clearing folded corrections"):
        return connection.execute(
            _SQL["clear"], {"table_id": table_id, "sequence": bound, "rows": _CLEARED_AT_ONCE}
        ).rowcount
