"""Notes in the stream that describe a mirrored table, so that schema changes are visible at their exact position.

pgoutput's Relation message contains column names and types, but neither attribute numbers nor what happened to rows. It
does not distinguish a renamed column from one that was dropped and added, nor a type change that kept the values from
one with USING. So event triggers emit a transactional logical message (`pg_logical_emit_message`, prefix `mirror-pump`)
after every command that changes a mirrored table. The message contains the table's whole present shape: columns with
attribute numbers, key, partitions, labels of enums. Because it is part of the transaction, it comes between the row
changes before and after the command (modak.mirror_message() says what it takes to be so). Any role may emit messages,
so ours bear a signature. It is computed from the transaction's number, the content, and a secret that only the
catalog's owner can read. Messages without a signature, or with that of another transaction, are ignored.

A rewrite of the heap by ALTER TABLE is announced too (event table_rewrite). Rewrites by VACUUM FULL and CLUSTER are
not: they do not change rows. A trigger on each partition announces its TRUNCATE. If that trigger is missing, or the
pump may not create it, the partition's file is compared instead.

Creating event triggers requires a superuser. If they are missing or disabled, the pump compares the catalogs every few
seconds with what was last noted, and emits the same message itself, but without `exact`. Such a note only says that the
table changed since the last note, so the table is copied again unless the change is provably harmless. The same applies
to a change in a Relation message that no note explains.

Invariant: modak.mirror_shapes holds what was last noted, and is committed together with the note. So no change is noted
twice, and none is missed for longer than the pause between two comparisons. With event triggers none is missed at all.
"""

from __future__ import annotations

import hmac
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from hashlib import sha256
from typing import Any

import psycopg

from decoders.columns import ColumnType
from mirror_pump.database.catalog_cursor import mirror_on
from mirror_pump.errors import SourceError
from mirror_pump.model import Column, TableId, TableName
from mirror_pump.source.connect import LOCK_TIMEOUT, PgConnection, limited, source_errors
from mirror_pump.source.relations.description import Identity, LeafPartition, RelationDescription
from mirror_pump.source.relations.relations import full_needs_generated, resolve_types
from mirror_pump.source.rows import fetch_rows
from sql import queries
from sql.mirror_names import SUFFIX, marked, of_mirror

PREFIX = f"mirror-pump{SUFFIX}"
"""The prefix of our logical messages, marked."""

REWRITTEN_TYPE = 4
"""Reason for a rewrite: AT_REWRITE_COLUMN_REWRITE (commands/event_trigger.h)."""
REWRITTEN_VALUES = REWRITTEN_TYPE | 2
"""Reasons that concern values: also AT_REWRITE_DEFAULT_VAL. The other reasons are persistence and access method."""
REWRITTEN_WIDENED = 1 << 16
"""Our own, instead of REWRITTEN_TYPE: columns were cast to wider types (WIDENINGS), and no value was changed."""
WIDENINGS = frozenset({(21, 23), (21, 20), (23, 20), (700, 701)})
"""Pairs of OIDs, as in modak.mirror_widened(): smallint, int and bigint, real and double precision. The cast of the
server and Iceberg's promotion give the same number for every value."""

_SQL = queries("shape")

_TRIGGERS = queries("event_triggers")
"""The statements that create the event triggers, by their names."""
INVALID_NOTE_ERRORS = (
    AttributeError,
    LookupError,
    RecursionError,
    StopIteration,
    TypeError,
    ValueError,
    psycopg.DataError,
    psycopg.ProgrammingError,
)
"""Errors raised by a note with an invalid shape: values are missing, or not of the types that modak.mirror_shape()
uses."""
_SIGNATURE_LENGTH = 64
"""Bytes of a signature: a SHA-256 digest in hexadecimal."""
_COMPARED_EVERY = 600.0
"""Seconds after which all tables are compared although the catalogs are the same."""
_COMPARED_SHARE = 0.002
"""The largest share of time that these comparisons take: of thousands of tables, one takes half a minute."""
_NEXT_LOCK_TIMEOUT = "10ms"
"""Used instead of LOCK_TIMEOUT for each table, once the pump has waited for one that another session is altering."""
_BUSY = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.UndefinedTable,
    psycopg.errors.InvalidSchemaName,
)
"""Errors caused by a table that another session is altering, moving or dropping."""
_ENCODING_ERRORS = (psycopg.errors.UntranslatableCharacter, psycopg.errors.CharacterNotInRepertoire)
"""Errors caused by a name with a character that UTF-8 does not have, in a database with another encoding."""


@dataclass(frozen=True)
class Note:
    """One of our messages, or several of one transaction combined."""

    table_id: TableId
    exact: bool = False
    """The note follows the change directly, in the same transaction."""
    settled: bool = False
    """Every transaction that wrote to the table before the previous note has ended, so no row after this note is older
    than that."""
    shape: Mapping[str, Any] | None = None
    """The result of modak.mirror_shape(). None for a dropped table, and in notes of other kinds."""
    gone: bool = False
    """The table was dropped."""
    filled: frozenset[int] = frozenset()
    """OIDs of leaves that may hold rows that are not in the stream: new leaves whose heap has a page, leaves whose file
    was replaced, and leaves that are unlogged in any shape of the transaction."""
    stayed: frozenset[int] | None = None
    """OIDs of the leaves that exist and are logged in every shape of the transaction. None: those of `shape`. A leaf
    that was detached or unlogged for a moment may have unpublished changes."""
    filled_columns: frozenset[int] = frozenset()
    """Numbers of the attributes that were `filled` in any shape of the transaction."""
    missing: Mapping[int, str | None] = field(default_factory=dict)
    """The values that existing rows have in columns that a command added, as the stream prints them, by attribute
    number. The first shape with the column counts: a later rewrite of the heap moves the value from the catalog to the
    rows, and a later default does not apply to these rows."""
    types: tuple[Mapping[str, Any], ...] = ()
    """Labels and attributes of the columns' types in each shape of the transaction. The stream contains values as they
    were printed under the shape of their time."""
    rewritten: int = 0
    """Why the heap is about to be rewritten (pg_event_trigger_table_rewrite_reason()). The note with the shape
    follows."""
    truncated: bool = False
    """One partition was truncated."""
    truncated_leaf: int = 0
    """The OID of the truncated partition, if the note follows the command directly. 0: it may have been earlier."""

    def after(self, earlier: Note) -> Note:
        """This note combined with an earlier one of the same transaction."""
        stayed = [note.stayed for note in (earlier, self) if note.stayed is not None]
        return replace(
            self if self.shape is not None or self.gone else earlier,
            exact=earlier.exact or self.exact,
            filled=earlier.filled | self.filled,
            stayed=frozenset.intersection(*stayed) if stayed else None,
            filled_columns=earlier.filled_columns | self.filled_columns,
            missing={**self.missing, **earlier.missing},
            types=earlier.types + tuple(type_texts for type_texts in self.types if type_texts not in earlier.types),
            rewritten=earlier.rewritten | self.rewritten,
        )


NoteReader = Callable[[bytes, int], Note | None]
"""Returns the note in a message with our prefix, given the number of its transaction. None if the message is not
ours."""


def note_reader(connection: PgConnection, on_unsigned: Callable[[int], None]) -> NoteReader:
    """Returns a reader of this catalog's notes. It calls `on_unsigned` with the number of the first transaction that
    has a message with our prefix, but without our signature. Raises SourceError if the secret is missing or
    unreadable."""
    with source_errors("reading the secret that signs notes of schema changes"):
        rows = connection.execute(_SQL["secret"]).fetchall()
    if len(rows) != 1:
        raise SourceError(
            f"modak.mirror_secret has {len(rows)} rows instead of one: the signatures of notes of schema changes"
            " cannot be checked",
            "run `mirror-pump init`, which makes a new one and has all tables copied again"
            if not rows
            else "keep the row that `mirror-pump init` created, and delete the others",
        )
    secret = rows[0][0].encode()
    reported = False

    def read(message: bytes, xid: int) -> Note | None:
        nonlocal reported
        if hmac.compare_digest(message[:_SIGNATURE_LENGTH], signature(secret, xid, message[_SIGNATURE_LENGTH:])):
            return parse_note(message)
        if not reported:
            reported = True
            on_unsigned(xid)
        return None

    return read


def signature(secret: bytes, xid: int, content: bytes) -> bytes:
    """The signature that modak.mirror_message() puts in front of a note. `xid` is the transaction's number without its
    epoch."""
    inner = sha256(b"%b%d %b" % (secret, xid, content)).hexdigest().encode()
    return sha256(secret + inner).hexdigest().encode()


def parse_note(message: bytes) -> Note | None:
    """The note in a message with our prefix, without a check of the signature. None if the message is not a note."""
    try:
        document = json.loads(message[_SIGNATURE_LENGTH:])
        shape = document.get("shape")
        leaves = (shape or {}).get("leaves") or ()
        unlogged = frozenset(leaf["id"] for leaf in leaves if leaf.get("persistence", "p") != "p")
        return Note(
            TableId(int(document["table"])),
            exact=document.get("exact") is True,
            settled=document.get("settled") is True,
            shape=shape,
            gone="shape" in document and shape is None,
            filled=unlogged.union(int(attnum) for attnum in document.get("filled", ())),
            stayed=None if shape is None else frozenset(leaf["id"] for leaf in leaves) - unlogged,
            filled_columns=frozenset(
                column["attnum"] for column in (shape or {}).get("columns") or () if column["filled"]
            ),
            missing={
                int(number): None if text is None else str(text)
                for number, text in (document.get("missing") or {}).items()
            },
            types=tuple(type_texts for type_texts in ((shape or {}).get("types"),) if type_texts),
            rewritten=int(document.get("rewritten", 0)),
            truncated="truncated" in document,
            truncated_leaf=int(document.get("truncated", 0)) if document.get("now") is True else 0,
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def describe_shape(
    shape: Mapping[str, Any], table_id: TableId, types: Mapping[tuple[int, int], ColumnType]
) -> RelationDescription:
    """The description of the relation in a shape. `types` are the types of its columns. Field IDs are 0: not allocated.

    Raises KeyError if a type is missing.
    """
    columns = shape["columns"] or ()
    partition_of = shape["partition_of"]
    return RelationDescription(
        table_id=table_id,
        name=TableName(shape["schema"], shape["name"]),
        kind=shape["kind"],
        persistence=shape["persistence"],
        columns=tuple(
            Column(
                column["attnum"],
                column["name"],
                column["type"],
                column["modifier"],
                column["sql"],
                types[column["type"], column["modifier"]],
                0,
                column["not_null"],
            )
            for column in columns
            if not column["generated"]
        ),
        generated=tuple(column["name"] for column in columns if column["generated"]),
        identity=_identity(shape["identity"]),
        leaves=tuple(
            LeafPartition(
                leaf["id"],
                TableName(leaf["schema"], leaf["name"]),
                leaf["kind"],
                leaf["persistence"],
                0,
                0,
                0,
                _identity(leaf["identity"]),
                leaf["row_security"],
                leaf["readable"],
            )
            for leaf in shape["leaves"] or ()
        ),
        partition_of=TableName(*partition_of) if partition_of else None,
        inherits=shape["inherits"],
        owned=shape["owned"],
        row_security=shape["row_security"],
        block_bytes=0,
    )


def describe_note(connection: PgConnection, note: Note) -> RelationDescription | None:
    """The description of the table in the note; None if it was dropped. Raises KeyError if one of its types does not
    exist any more, and any error of INVALID_NOTE_ERRORS for a shape that Postgres would not have produced."""
    if note.shape is None:
        return None
    # The catalog will store the shape: it must not contain NUL, NaN or half of a surrogate pair.
    connection.execute("SELECT %s::jsonb", (json.dumps(note.shape),))
    published = [column for column in note.shape["columns"] or () if not column["generated"]]
    types = resolve_types(connection, ((column["type"], column["modifier"]) for column in published))
    description = describe_shape(note.shape, note.table_id, types)
    return replace(description, full_needs_generated=full_needs_generated(connection))


def same_layout(first: Mapping[str, Any], other: Mapping[str, Any] | None) -> bool:
    """Whether two shapes of a table have the same columns, and store rows in the same relations."""

    def layout(shape: Mapping[str, Any]) -> object:
        columns = [
            (column["attnum"], column["name"], column["type"], column["modifier"]) for column in shape["columns"]
        ]
        return columns, [leaf["id"] for leaf in shape["leaves"] or ()]

    return other is not None and layout(first) == layout(other)


def _identity(stored: Mapping[str, Any]) -> Identity:
    return Identity(stored["setting"], tuple(stored["key"]), stored["immediate"])


def missing_triggers(connection: PgConnection) -> list[str]:
    """Names of the event triggers that do not exist, or are not enabled for all sessions."""
    with source_errors("looking for the event triggers"):
        states: dict[str, str] = dict(connection.execute(_SQL["triggers"]).fetchall())
    names = (of_mirror(marked(name), mirror_on(connection)) for name in _TRIGGERS)
    return [name for name in names if states.get(name) != "A"]


def install_triggers(connection: PgConnection) -> bool:
    """Creates and enables the event triggers that are missing or disabled. False if that is not permitted."""
    with source_errors("creating the event triggers"):
        states: dict[str, str] = dict(connection.execute(_SQL["triggers"]).fetchall())
        try:
            with connection.transaction():
                for name, statement in _TRIGGERS.items():
                    own_name = of_mirror(marked(name), mirror_on(connection))
                    if own_name not in states:
                        connection.execute(statement.encode())
                    if states.get(own_name) != "A":
                        # Also for sessions that replay another server's changes (session_replication_role).
                        connection.execute(f"ALTER EVENT TRIGGER {own_name} ENABLE ALWAYS".encode())
        except psycopg.errors.InsufficientPrivilege:
            return False
    return True


def watch_partitions(connection: PgConnection) -> int:
    """Creates the missing triggers that announce a TRUNCATE of a partition. Returns the number of partitions that could
    not be locked."""
    busy = 0
    with source_errors("watching partitions"):
        for (table_id,) in connection.execute(_SQL["unwatched"]).fetchall():
            row = connection.execute(_SQL["watch"], {"table_id": table_id}).fetchone()
            busy += row[0] if row is not None else 0
    return busy


@dataclass(frozen=True)
class Waiting:
    """A table that is waiting for a description."""

    table_id: TableId
    noted_at: datetime
    """When its last note was emitted."""


def waiting_tables(connection: PgConnection, slot: str) -> dict[Waiting, set[str]]:
    """The tables that are waiting for a description, each with the open transactions that may have written to it."""
    with source_errors("looking for tables that wait for a description"):
        tables = fetch_rows(connection, Waiting, _SQL["waiting"], {"slot": slot})
        # The order matters: a transaction that wrote before the last note, and is not among these, has ended.
        return {
            waiting: {locker for (locker,) in connection.execute(_SQL["lockers"], {"table_id": waiting.table_id})}
            for waiting in tables
        }


@dataclass(frozen=True)
class _TableMark:
    """A row of the query `marks`."""

    table_id: TableId
    mark: int
    depends: bool


class CatalogLook:
    """Finds the tables whose changes have not been noted. It compares only tables of which something was written since
    the last look, and none while the catalogs stay the same.

    Invariant: `_state` is of catalogs in which no table differed, and was read before they were compared. Every write
    of a row that a shape is made of changes it. A table's mark in `_marks` was read before the table was compared, and
    it did not differ. Every write of a row that its shape is made of changes the mark, unless the shape depends on
    further relations or types: such a table has no mark. As a precaution everything is compared from time to time all
    the same, the more seldom the longer that takes.
    """

    def __init__(self, slot: str) -> None:
        self._slot = slot
        self._state = ""
        self._marks: Mapping[TableId, int] = {}
        self._compared_at = -math.inf
        """When all tables were last compared: time.monotonic(), in seconds."""
        self._pause = _COMPARED_EVERY
        self.differs = False
        """Whether the last look found tables."""

    def differing(self, connection: PgConnection) -> set[TableId]:
        """The tables for which `note_changes` would emit notes."""
        row = connection.execute(_SQL["catalogs"]).fetchone()
        state = "" if row is None else str(row[0])
        began = time.monotonic()
        compares_all = began - self._compared_at >= self._pause
        if state == self._state and not compares_all:
            return set()
        marks = fetch_rows(connection, _TableMark, _SQL["marks"], {"slot": self._slot})
        former_marks = {} if compares_all else self._marks
        written = [row.table_id for row in marks if row.depends or row.mark != former_marks.get(row.table_id)]
        differing: set[TableId] = set()
        if written:
            rows = connection.execute(_SQL["differing"], {"table_ids": written}).fetchall()
            differing = {TableId(table_id) for (table_id,) in rows}
        self.differs = bool(differing)
        self._state = "" if differing else state
        self._marks = {row.table_id: row.mark for row in marks if not (row.depends or row.table_id in differing)}
        if compares_all:
            self._compared_at = began
            self._pause = max(_COMPARED_EVERY, (time.monotonic() - began) / _COMPARED_SHARE)
        return differing


def note_changes(
    connection: PgConnection,
    look: CatalogLook,
    settled: Iterable[Waiting] = (),
    on_undescribable: Callable[[TableId, str], None] = lambda *_: None,
) -> int:
    """Emits notes for tables whose changes have not been noted, and for the waiting tables that are `settled`. Returns
    their number. A table that another session is altering is left for the next call. `on_undescribable` is
    called for a table that cannot be described in a note, with the reason."""
    ready = {table.table_id: table for table in settled}
    with source_errors("looking for schema changes"):
        table_ids = sorted({*ready, *look.differing(connection)})
        if not table_ids:
            return 0
        # Together if possible: tables that swapped their names must not be noted in two batches.
        with suppress(*_BUSY, *_ENCODING_ERRORS):
            return _note(connection, table_ids, ready, LOCK_TIMEOUT)
        noted = 0
        for table_id in table_ids:
            try:
                noted += _note(connection, [table_id], ready, _NEXT_LOCK_TIMEOUT)
            except _BUSY:
                pass
            except _ENCODING_ERRORS as error:
                on_undescribable(table_id, error.diag.message_primary or str(error))
        return noted


def note_tables(connection: PgConnection, table_ids: Sequence[TableId]) -> bool:
    """Emits notes for those of these tables whose changes have not been noted. False if another session is altering
    one of them, or it has a name that UTF-8 does not have: then nothing was noted."""
    with source_errors("looking for schema changes"):
        try:
            _note(connection, table_ids, {}, LOCK_TIMEOUT)
        except (*_BUSY, *_ENCODING_ERRORS):
            return False
    return True


def note_copy(connection: PgConnection, table_id: TableId) -> None:
    """Emits a note from whose commit on a table without a key is to be copied. No writer of the table may be open."""
    with source_errors("beginning a copy"), limited(connection):
        connection.execute(_SQL["note"], {"table_ids": [table_id], "settled": [table_id]})


def observed_note(connection: PgConnection, table_id: TableId) -> Note | None:
    """What a note would say of a table as it was last noted, with the values of all columns that were ever added. None
    if the table is not registered any more."""
    with source_errors("reading what was last noted"):
        row = connection.execute(_SQL["observed"], {"table_id": table_id}).fetchone()
    if row is None:
        return None
    shape, missing = row
    content = {"table": table_id, "exact": False, "settled": True, "shape": shape, "missing": missing}
    return parse_note(b" " * _SIGNATURE_LENGTH + json.dumps(content).encode())


def _note(
    connection: PgConnection, table_ids: Sequence[TableId], ready: Mapping[TableId, Waiting], lock_timeout: str
) -> int:
    """Emits notes for these tables in one transaction. Raises an error of _BUSY if one of them cannot be locked."""
    with limited(connection, lock_timeout):
        forced = [
            table_id
            for table_id in table_ids
            if table_id in ready
            and connection.execute(
                _SQL["unchanged"], {"table_id": table_id, "noted_at": ready[table_id].noted_at}
            ).fetchone()
            is not None
        ]
        row = connection.execute(_SQL["note"], {"table_ids": list(table_ids), "settled": forced}).fetchone()
    assert row is not None
    return int(row[0])
