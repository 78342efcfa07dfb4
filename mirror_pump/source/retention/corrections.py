"""Reads corrections (modak.delta: changes of rows below the cut-line) to be folded into the lake, and clears them
later.

A fold only marks corrections with the sequence number of the published snapshot that contains them (`folded_sequence`).
Readers continue to merge marked corrections, which does no harm. They are cleared when no reader needs them any more.

Invariant: while a table has an unexpired pin, none of its corrections is cleared. A reader may query modak.delta more
than once: first for the keys that replace rows of the published snapshot, then for the rows that replace them. It would
miss a correction that is cleared in between. There is one exception: readers whose pin says that they read modak.delta
in one snapshot of the database (read_pins.in_one_snapshot). That snapshot keeps what it shows, so these readers only
need the corrections that their published snapshot lacks.

No reader can pin while corrections are cleared. Clearing takes a lock that a reader also needs to pin: the reader takes
it before it reads the published snapshot, and holds it until its transaction ends. Two cases remain. A REPEATABLE READ
transaction may pin an earlier published snapshot; it also reads the corrections of its own, equally old database
snapshot. A READ COMMITTED transaction may pin a published snapshot, and then read the metadata file of a later one with
the same cut-line; the corrections that the pinned snapshot lacks stay, and those that the later one contains do no
harm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from mirror_pump.database.quoting import identifier, in_query, literal
from mirror_pump.errors import ExpectedOutcome, TableError, one_line_of
from mirror_pump.model import MirroredTable, TableId
from mirror_pump.source.connect import LOCK_TIMEOUT, PgConnection, source_errors
from mirror_pump.source.rows import fetch_rows
from sql import queries
from sql.mirror_names import marked

_SQL = queries("fold")

_CLEARED_AT_ONCE = 10_000
"""Rows cleared in one transaction. Readers that want to pin wait for it, some 50 ms."""

TOMBSTONE = 1
"""modak.delta.op of a deleted row."""


@dataclass(frozen=True)
class CorrectionBacklog:
    """The corrections that a table has in modak.delta."""

    table_id: TableId
    rows: int
    """The number of corrections that are not folded, counted up to the requested limit."""
    age: float
    """Seconds since the oldest unfolded correction was written; 0 if there is none."""
    folded: bool
    """Whether some corrections are folded and not yet cleared."""
    expired: bool
    """Whether some corrections are below the retention line. They do not count as `rows`."""


@dataclass(frozen=True)
class Correction:
    """A row of modak.delta: the newest correction of its key."""

    pk: str
    version: int
    tombstone: bool
    values: tuple[str | None, ...]
    """The values of all mirrored columns, as their types print them. A tombstone only has those of the key."""


def read_backlog(connection: PgConnection, slot: str, rows: int) -> tuple[CorrectionBacklog, ...]:
    """The slot's tables with corrections. Counts at most `rows` for each."""
    with source_errors("looking for corrections to fold"):
        return tuple(fetch_rows(connection, CorrectionBacklog, _SQL["backlog"], {"slot": slot, "rows": rows}))


def tables_with_cutline(connection: PgConnection, slot: str) -> list[TableId]:
    """The slot's tables whose cut-line has moved."""
    with source_errors("looking for tables with rows below a cut-line"):
        return [TableId(table_id) for (table_id,) in connection.execute(_SQL["moved"], {"slot": slot})]


def read_corrections(connection: PgConnection, table: MirroredTable, limit: int) -> tuple[Correction, ...] | None:
    """The oldest corrections that are not folded, at most `limit`, ordered by version.

    None if they cannot be read now: the mirror has not yet applied a change of the table's columns, or a session is
    altering the table. Raises TableError for a correction that is not a row of the table, SourceError, ConnectionLost.
    """
    assert table.tier is not None
    parameters = (table.table_id, table.tier.floor, table.tier.cut, limit)
    return _read_all(connection, table, "modak.delta", _UNFOLDED, parameters)


def read_captured(
    connection: PgConnection, table: MirroredTable, partition_id: str, captured_after: int
) -> tuple[Correction, ...] | None:
    """The changes of a sealed partition that were captured since its seal: what become corrections when the cut-line
    passes it. As `read_corrections` otherwise."""
    parameters = (table.table_id, partition_id, captured_after)
    return _read_all(connection, table, "modak.mirror_captured", _CAPTURED, parameters)


def read_chosen(connection: PgConnection, table: MirroredTable, keys: Sequence[str]) -> tuple[Correction, ...] | None:
    """The corrections with these canonical keys, folded or not. As `read_corrections` otherwise."""
    return _read_all(connection, table, "modak.delta", "pk = ANY (%s)", (table.table_id, list(keys)))


_UNFOLDED = "folded_sequence IS NULL AND tier_key >= %s AND tier_key < %s ORDER BY version LIMIT %s"
_CAPTURED = "partition_id = %s AND version > %s"


def _read_all(
    connection: PgConnection, table: MirroredTable, where: str, condition: str, parameters: tuple[Any, ...]
) -> tuple[Correction, ...] | None:
    """The table's rows of the catalog table `where` that meet the condition. The first parameter is the table's ID."""
    with source_errors(f"reading corrections of {table.name}"):
        try:
            with connection.transaction():
                return _read(connection, table, where, condition, parameters)
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected, _Renamed):
            return None
        except (psycopg.DataError, psycopg.IntegrityError) as error:
            raise TableError(
                f"a row of {where} is not a row of {table.name}: {one_line_of(error)}",
                "correct or delete it",
            ) from error


class _Renamed(ExpectedOutcome):
    """The table was renamed, or dropped, since its name was read."""


def _read(
    connection: PgConnection, table: MirroredTable, where: str, condition: str, parameters: tuple[Any, ...]
) -> tuple[Correction, ...] | None:
    """As `_read_all`, in a transaction. None if the table is gone, or its columns are not those that the mirror knows.
    Raises _Renamed, and TableError for a row that lacks a part of its key."""
    of_table = {"table_id": table.table_id}
    row = connection.execute(_SQL["relation"], of_table).fetchone()
    if row is None:
        return None
    (relation,) = row
    connection.execute("SELECT set_config('lock_timeout', %s, true)", (LOCK_TIMEOUT,))
    try:
        connection.execute(f"LOCK TABLE ONLY {relation} IN ACCESS SHARE MODE".encode())
    except psycopg.errors.UndefinedTable as error:
        raise _Renamed from error
    columns = fetch_rows(connection, _CorrectedColumnRow, _SQL["columns"], of_table)
    current_columns = {column.attnum: (column.name, column.type_oid, column.type_modifier) for column in columns}
    documents = {column.attnum: column.type_sql for column in columns if column.is_json}
    mirrored_columns = {column.attnum: (column.name, column.type_oid, column.type_modifier) for column in table.columns}
    if any(current_columns.get(number) != column for number, column in mirrored_columns.items()):
        return None
    if any(
        column.attnum not in mirrored_columns and not _left_out(table, column.attnum, column.name) for column in columns
    ):
        return None
    names = [identifier(column.name) for column in table.columns]
    texts = in_query(
        ", ".join(f"CASE WHEN v.{name} IS DISTINCT FROM NULL THEN format('%s', v.{name}) END" for name in names)
    )
    # jsonb_populate_record parses a string with the type's input function, except for json, where the string itself is
    # the document.
    values = in_query(
        ", ".join(
            f"(d.payload ->> {literal(column.name)})::{documents[column.attnum]} AS {name}"
            if column.attnum in documents
            else f"r.{name}"
            for column, name in zip(table.columns, names, strict=True)
        )
    )
    query = (
        f"SELECT d.pk, d.version, d.op, {texts}"
        f" FROM (SELECT * FROM {marked(where)} WHERE table_id = %s AND {condition}) d"
        f" CROSS JOIN LATERAL jsonb_populate_record(NULL::{in_query(relation)}, coalesce(d.payload, '{{}}')) r"
        f" CROSS JOIN LATERAL (SELECT {values}) v ORDER BY d.version"
    )
    rows = connection.execute(query.encode(), parameters).fetchall()
    places = [place for place, column in enumerate(table.columns) if column.name in table.key]
    corrections = tuple(
        Correction(pk, version, operation == TOMBSTONE, tuple(values_read))
        for pk, version, operation, *values_read in rows
    )
    for correction in corrections:
        if any(correction.values[place] is None for place in places):
            raise TableError(
                f"the correction {correction.pk!r} of {table.name} in {where} lacks a part of its key",
                "correct or delete it",
            )
    return corrections


@dataclass(frozen=True)
class _CorrectedColumnRow:
    """A row of the query `columns`."""

    attnum: int
    name: str
    type_oid: int
    type_modifier: int
    type_sql: str
    is_json: bool
    """Whether the type is json, jsonb, or a domain over one of them."""


def _left_out(table: MirroredTable, attnum: int, name: str) -> bool:
    """Whether the user excluded this column from the mirror."""
    return any(column.attnum == attnum and column.name == name for column in table.excluded)


def clear(connection: PgConnection, table_id: TableId, sequence_numbers: Callable[[str], Mapping[int, int]]) -> int:
    """Removes folded corrections that no reader needs any more. Returns their number.

    `sequence_numbers` returns the sequence number of each snapshot in the given metadata file. Does not wait for
    readers: while one of them is creating a pin, nothing is cleared.
    """
    with source_errors("clearing folded corrections"):
        seam = connection.execute(_SQL["seam"], {"table_id": table_id}).fetchone()
    if seam is None:
        return 0
    snapshot_id, location = seam
    # Read from storage before taking the lock. A later published snapshot only has a higher number.
    numbers = sequence_numbers(location)
    cleared = 0
    while (removed := _clear_some(connection, table_id, snapshot_id, numbers)) == _CLEARED_AT_ONCE:
        cleared += removed
    return cleared + removed


def _clear_some(connection: PgConnection, table_id: TableId, snapshot_id: int, numbers: Mapping[int, int]) -> int:
    """Clears up to _CLEARED_AT_ONCE rows. Returns their number."""

    def remove(pinned: Sequence[int]) -> int:
        # A pinned snapshot that is no longer in the history may be of any age.
        bound = min(numbers.get(snapshot, -1) for snapshot in (snapshot_id, *pinned))
        bounded = {"table_id": table_id, "sequence": bound, "rows": _CLEARED_AT_ONCE}
        return connection.execute(_SQL["clear"], bounded).rowcount

    return _removed_unpinned(connection, table_id, "clearing folded corrections", remove)


def purge_expired(connection: PgConnection, table_id: TableId) -> int:
    """Removes corrections below the table's retention line, which came after it had moved, and journals that. Returns
    their number; 0 while a reader may look at modak.delta more than once, or is creating a pin."""
    parameters = {"table_id": table_id}

    def remove(_: Sequence[int]) -> int:
        (purged,) = connection.execute(_SQL["purge_expired"], parameters).fetchone() or (0,)
        if purged:
            details = Jsonb({"kind": "expired corrections", "corrections": purged})
            connection.execute(_SQL["journal_purge"], {**parameters, "details": details})
        return int(purged)

    return _removed_unpinned(connection, table_id, "purging corrections of expired rows", remove)


def _removed_unpinned(
    connection: PgConnection, table_id: TableId, activity: str, remove: Callable[[Sequence[int]], int]
) -> int:
    """What `remove` returns, in a transaction during which no reader can pin; it gets the IDs of the pinned snapshots.
    0, without a call of it, while a reader may look at modak.delta more than once, or is creating a pin."""
    with source_errors(activity):
        try:
            with connection.transaction():
                connection.execute(_SQL["lock_pins"])
                row = connection.execute(_SQL["pins"], {"table_id": table_id}).fetchone()
                assert row is not None
                pinned, read_again = row
                return 0 if read_again else remove(pinned)
        except psycopg.errors.LockNotAvailable:
            return 0
