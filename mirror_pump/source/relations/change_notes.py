"""What a mirrored table is like, as the stream is told: notes that make schema changes visible at their exact place.

pgoutput's Relation message names columns and types, but neither attribute numbers nor what happened to rows: it cannot
tell a renamed column from one that was dropped and added, nor a type change that kept the values from one with USING.
So event triggers put a transactional logical message (`pg_logical_emit_message`, prefix `mirror-pump`) behind every
command that changes a mirrored table, with its whole present shape: columns with attribute numbers, key, partitions,
labels of enums. Because the message is part of the transaction, it stands between the row changes of before and after.
Any role may emit messages: ours bear a seal, made of the transaction's number, the content and a secret that only the
catalog's owner reads. What bears none, or that of another transaction, is nobody's.
A rewrite of the heap by ALTER TABLE is announced too (event table_rewrite); what VACUUM FULL or CLUSTER rewrite is not,
and needs not be: rows stay what they were. A TRUNCATE of one partition is told by a trigger on the partition; where the
trigger is missing, or is not ours to create, the partition's file is compared instead.

Creating event triggers takes a superuser. Where there are none, or where one was switched off, the pump compares the
catalogs with what was told every few seconds and emits the same message itself, not `exact`: then only that the table
changed since the last note is known, and whatever is not provably harmless makes the table be copied again. So is what
a Relation message shows that no note explains.

Invariant: modak.mirror_shapes holds what the stream was last told, committed with the note; so no change is told twice,
none is missed for longer than the pause between two comparisons, and with event triggers none at all.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from hashlib import sha256
from typing import Any

import psycopg

from decoders.columns import ColumnType
from mirror_pump.errors import SourceError
from mirror_pump.model import Column, TableId, TableName
from mirror_pump.source.connect import LOCK_TIMEOUT, PgConnection, source_errors
from mirror_pump.source.relations.description import Identity, LeafPartition, RelationDescription
from mirror_pump.source.relations.relations import full_needs_generated, resolve_types
from sql import queries

PREFIX = "mirror-pump"
"""Of our logical messages."""

REWRITTEN_TYPE = 4
"""Reason of a rewrite: AT_REWRITE_COLUMN_REWRITE (commands/event_trigger.h)."""
REWRITTEN_VALUES = REWRITTEN_TYPE | 2
"""Reasons that concern values: also AT_REWRITE_DEFAULT_VAL. The others are persistence and access method."""

_SQL = queries("shape")

_TRIGGERS = {
    "mirror_pump_ddl": (
        "CREATE EVENT TRIGGER mirror_pump_ddl ON ddl_command_end"
        " WHEN TAG IN ('ALTER TABLE', 'CREATE TABLE', 'CREATE SCHEMA', 'ALTER TYPE', 'ALTER SCHEMA')"
        " EXECUTE FUNCTION modak.mirror_ddl()"
    ),
    "mirror_pump_drop": "CREATE EVENT TRIGGER mirror_pump_drop ON sql_drop EXECUTE FUNCTION modak.mirror_drop()",
    "mirror_pump_rewrite": (
        "CREATE EVENT TRIGGER mirror_pump_rewrite ON table_rewrite EXECUTE FUNCTION modak.mirror_rewrite()"
    ),
}
NONSENSE = (
    AttributeError,
    LookupError,
    RecursionError,
    StopIteration,
    TypeError,
    ValueError,
    psycopg.DataError,
    psycopg.ProgrammingError,
)
"""What comes of a note whose shape is not one: values of other types than modak.mirror_shape() gives, or none."""
_SEAL_LENGTH = 64
"""Bytes: a SHA-256 in hexadecimal."""
_NEXT_LOCK_TIMEOUT = "10ms"
"""Instead of LOCK_TIMEOUT for each of the others, once the pump has waited for one table that somebody is altering."""
_BUSY = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.UndefinedTable,
    psycopg.errors.InvalidSchemaName,
)
"""What comes of a table that somebody is altering, moving or dropping."""
_UNTELLABLE = (psycopg.errors.UntranslatableCharacter, psycopg.errors.CharacterNotInRepertoire)
"""What comes of a name with a character that UTF-8 does not have, in a database of another encoding."""


@dataclass(frozen=True)
class Note:
    """One of our messages."""

    table_id: TableId
    exact: bool = False
    """It stands right behind the change, in the same transaction."""
    settled: bool = False
    """Every transaction that wrote to the table before what was told last has ended: no row behind this note is from
    before."""
    shape: Mapping[str, Any] | None = None
    """As modak.mirror_shape() gives it; None for a table that is gone, and in notes of other kinds."""
    gone: bool = False
    """The table was dropped."""
    filled: frozenset[int] = frozenset()
    """OIDs of leaves that may hold rows that are not in the stream: new ones whose heap has a page, those whose file
    was known and is another now, and those that any shape of the transaction has as unlogged."""
    stayed: frozenset[int] | None = None
    """OIDs of the leaves that every shape of the transaction has, and has as logged; None: those of `shape`. One that
    was detached or unlogged for a moment may have changed meanwhile, unpublished."""
    filled_columns: frozenset[int] = frozenset()
    """Numbers of the attributes that were `filled` in any shape of the transaction."""
    missing: Mapping[int, str] = field(default_factory=dict)
    """What rows from before have in columns that a command added, as the stream prints it, by attribute number. Of the
    first shape that has the column: a rewrite of the heap takes the value to the rows, and out of the catalog."""
    types: tuple[Mapping[str, Any], ...] = ()
    """Labels and attributes of the columns' types in each shape of the transaction: what was written under one of them
    is in the stream as it was printed then."""
    rewritten: int = 0
    """Why the heap is about to be rewritten (pg_event_trigger_table_rewrite_reason()); the shape follows."""
    truncated: bool = False
    """One partition was emptied."""
    truncated_leaf: int = 0
    """Its OID, if this is said right behind the command; else it may have been some time ago."""

    def after(self, former: Note) -> Note:
        """What this and a former note of one transaction say together."""
        stayed = [one.stayed for one in (former, self) if one.stayed is not None]
        return replace(
            self if self.shape is not None or self.gone else former,
            exact=former.exact or self.exact,
            filled=former.filled | self.filled,
            stayed=frozenset.intersection(*stayed) if stayed else None,
            filled_columns=former.filled_columns | self.filled_columns,
            missing={**self.missing, **former.missing},
            types=former.types + tuple(one for one in self.types if one not in former.types),
            rewritten=former.rewritten | self.rewritten,
        )


NoteReader = Callable[[bytes, int], Note | None]
"""The note in a message of our prefix, in the transaction of this number; None if it is none of ours."""


def note_reader(connection: PgConnection, strange: Callable[[int], None]) -> NoteReader:
    """Reads the notes of this catalog; `strange` is told of the first transaction with a message of our prefix and
    without our seal. Raises SourceError if the secret is not there, or cannot be read."""
    with source_errors("reading what notes of schema changes are sealed with"):
        rows = connection.execute(_SQL["secret"]).fetchall()
    if len(rows) != 1:
        raise SourceError(
            f"modak.mirror_secret has {len(rows)} rows, not one: what triggers say of schema changes cannot be told"
            " from what others say",
            "restore the row that the catalog was made with; if it is lost, put one random text there, then unregister"
            " and register every table",
        )
    secret = rows[0][0].encode()
    told = False

    def read(message: bytes, xid: int) -> Note | None:
        nonlocal told
        if hmac.compare_digest(message[:_SEAL_LENGTH], seal(secret, xid, message[_SEAL_LENGTH:])):
            return parse_note(message)
        if not told:
            told = True
            strange(xid)
        return None

    return read


def seal(secret: bytes, xid: int, content: bytes) -> bytes:
    """What modak.mirror_message() puts before a note; `xid` is the transaction's number, without its epoch."""
    inner = sha256(b"%b%d %b" % (secret, xid, content)).hexdigest().encode()
    return sha256(secret + inner).hexdigest().encode()


def parse_note(message: bytes) -> Note | None:
    """The note in a message of our prefix, whoever sealed it; None if it is none."""
    try:
        found = json.loads(message[_SEAL_LENGTH:])
        shape = found.get("shape")
        leaves = (shape or {}).get("leaves") or ()
        unlogged = frozenset(leaf["id"] for leaf in leaves if leaf.get("persistence", "p") != "p")
        return Note(
            TableId(int(found["table"])),
            exact=found.get("exact") is True,
            settled=found.get("settled") is True,
            shape=shape,
            gone="shape" in found and shape is None,
            filled=unlogged.union(int(one) for one in found.get("filled", ())),
            stayed=None if shape is None else frozenset(leaf["id"] for leaf in leaves) - unlogged,
            filled_columns=frozenset(
                column["attnum"] for column in (shape or {}).get("columns") or () if column["filled"]
            ),
            missing={int(number): str(text) for number, text in (found.get("missing") or {}).items()},
            types=tuple(one for one in ((shape or {}).get("types"),) if one),
            rewritten=int(found.get("rewritten", 0)),
            truncated="truncated" in found,
            truncated_leaf=int(found.get("truncated", 0)) if found.get("now") is True else 0,
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def described(
    shape: Mapping[str, Any], table_id: TableId, types: Mapping[tuple[int, int], ColumnType]
) -> RelationDescription:
    """The description that a shape amounts to; `types` are those of its columns. Field IDs are 0: not allocated.

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
                one["attnum"],
                one["name"],
                one["type"],
                one["modifier"],
                one["sql"],
                types[one["type"], one["modifier"]],
                0,
                one["not_null"],
            )
            for one in columns
            if not one["generated"]
        ),
        generated=tuple(one["name"] for one in columns if one["generated"]),
        identity=_identity(shape["identity"]),
        leaves=tuple(
            LeafPartition(
                one["id"],
                TableName(one["schema"], one["name"]),
                one["kind"],
                one["persistence"],
                0,
                0,
                0,
                _identity(one["identity"]),
                one["row_security"],
                one["readable"],
            )
            for one in shape["leaves"] or ()
        ),
        partition_of=TableName(*partition_of) if partition_of else None,
        inherits=shape["inherits"],
        owned=shape["owned"],
        row_security=shape["row_security"],
        block_bytes=0,
    )


def describe_note(connection: PgConnection, note: Note) -> RelationDescription | None:
    """What the note says of the table; None if it is gone. KeyError if a type of it does not exist any more.

    Anybody may emit a note, so any of NONSENSE is raised for one that Postgres would not have made.
    """
    if note.shape is None:
        return None
    # The catalog is to hold it: no NUL, no NaN, no half of a surrogate pair.
    connection.execute("SELECT %s::jsonb", (json.dumps(note.shape),))
    published = [one for one in note.shape["columns"] or () if not one["generated"]]
    types = resolve_types(connection, ((one["type"], one["modifier"]) for one in published))
    seen = described(note.shape, note.table_id, types)
    return replace(seen, full_needs_generated=full_needs_generated(connection))


def same_layout(one: Mapping[str, Any], other: Mapping[str, Any] | None) -> bool:
    """Whether rows of two shapes of a table have the same columns, and lie in the same relations."""

    def layout(shape: Mapping[str, Any]) -> object:
        columns = [
            (column["attnum"], column["name"], column["type"], column["modifier"]) for column in shape["columns"]
        ]
        return columns, [leaf["id"] for leaf in shape["leaves"] or ()]

    return other is not None and layout(one) == layout(other)


def _identity(stored: Mapping[str, Any]) -> Identity:
    return Identity(stored["setting"], tuple(stored["key"]), stored["immediate"])


def install_triggers(connection: PgConnection) -> bool:
    """Creates the event triggers, or leaves them as they are; False if we may not."""
    with source_errors("creating the event triggers"):
        present: dict[str, str] = dict(connection.execute(_SQL["triggers"]).fetchall())
        try:
            with connection.transaction():
                for name, statement in _TRIGGERS.items():
                    if name not in present:
                        connection.execute(statement.encode())
                    if present.get(name) != "A":
                        # Also for sessions that replay another server's changes (session_replication_role).
                        connection.execute(f"ALTER EVENT TRIGGER {name} ENABLE ALWAYS".encode())
        except psycopg.errors.InsufficientPrivilege:
            return False
    return True


def watch_partitions(connection: PgConnection) -> int:
    """Has a TRUNCATE of single partitions told where it is not yet; returns how many of them could not be locked."""
    busy = 0
    with source_errors("watching partitions"):
        for (table_id,) in connection.execute(_SQL["unwatched"]).fetchall():
            row = connection.execute(_SQL["watch"], {"table_id": table_id}).fetchone()
            busy += row[0] if row is not None else 0
    return busy


@dataclass(frozen=True)
class Waiting:
    """A table that waits to be described."""

    table_id: TableId
    told_at: datetime
    """When the stream was last told of it."""


def waiting_tables(connection: PgConnection, slot: str) -> dict[Waiting, set[str]]:
    """Tables that wait to be described; with each, the transactions that may have written to it and are open."""
    with source_errors("looking for tables that wait"):
        found = [Waiting(*row) for row in connection.execute(_SQL["waiting"], {"slot": slot}).fetchall()]
        # In this order: whoever wrote before the last note, and is not among these, has ended.
        return {
            one: {row[0] for row in connection.execute(_SQL["lockers"], {"table_id": one.table_id}).fetchall()}
            for one in found
        }


def note_changes(
    connection: PgConnection,
    slot: str,
    settled: Iterable[Waiting] = (),
    untellable: Callable[[TableId, str], None] = lambda *_: None,
) -> int:
    """Tells the stream about tables that changed without it, and about those that waited and are settled; how many it
    was. A table that somebody is altering just now is left for the next time. `untellable` is called with a table that
    the stream can never be told of, and why."""
    ready = {one.table_id: one for one in settled}
    with source_errors("looking for schema changes"):
        rows = connection.execute(_SQL["differing"], {"slot": slot}).fetchall()
        concerned = sorted({*ready, *(TableId(table_id) for (table_id,) in rows)})
        if not concerned:
            return 0
        # Together, where that can be: tables that swapped their names are not to be told of in two batches.
        with suppress(*_BUSY, *_UNTELLABLE):
            return _note(connection, concerned, ready, LOCK_TIMEOUT)
        told = 0
        for table_id in concerned:
            try:
                told += _note(connection, [table_id], ready, _NEXT_LOCK_TIMEOUT)
            except _BUSY:
                pass
            except _UNTELLABLE as error:
                untellable(table_id, error.diag.message_primary or str(error))
        return told


def _note(
    connection: PgConnection, concerned: Sequence[TableId], ready: Mapping[TableId, Waiting], lock_timeout: str
) -> int:
    """Tells of these tables in one transaction; raises one of _BUSY if one of them is not to be had."""
    with connection.transaction():
        connection.execute("SELECT set_config('lock_timeout', %s, true)", (lock_timeout,))
        forced = [
            table_id
            for table_id in concerned
            if table_id in ready
            and connection.execute(
                _SQL["unchanged"], {"table_id": table_id, "told_at": ready[table_id].told_at}
            ).fetchone()
            is not None
        ]
        told = connection.execute(_SQL["note"], {"table_ids": list(concerned), "settled": forced}).fetchone()
    assert told is not None
    return int(told[0])
