"""Parses pgoutput messages that are not row changes, one at a time, since they are rare. Rows: see segment.py.

Layouts: PostgreSQL documentation, "Logical Replication Message Formats", protocol version 1. Every function takes the
pgoutput message itself, without the XLogData header around it. It raises ValueError if the bytes are not that message.
Integers are big-endian. OIDs and WAL positions are unsigned. Strings are UTF-8 and end with a zero byte.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

_POSTGRES_EPOCH_US = 946_684_800_000_000
"""Microseconds from 1970-01-01 to 2000-01-01, Postgres's epoch."""

_BEGIN = struct.Struct(">QqI")
_COMMIT = struct.Struct(">BQQq")
_RELATION_ID = struct.Struct(">I")
_RELATION_TAIL = struct.Struct(">cH")
_COLUMN_TAIL = struct.Struct(">Ii")
_TRUNCATE = struct.Struct(">IB")
_LOGICAL = struct.Struct(">BQ")
_LENGTH = struct.Struct(">I")
_ORIGIN = struct.Struct(">Q")

_KEY_FLAG = 1
_CASCADE_FLAG = 1
_RESTART_FLAG = 2
_TRANSACTIONAL_FLAG = 1


class BeginMessage(NamedTuple):
    """Begins a transaction. A tuple is made faster than a dataclass, and each small transaction has two of these."""

    final_lsn: int
    """WAL position of the transaction's commit record."""
    commit_time_us: int
    """Microseconds since 1970-01-01 UTC."""
    xid: int


class CommitMessage(NamedTuple):
    """Ends a transaction."""

    commit_lsn: int
    """WAL position of the commit record."""
    end_lsn: int
    """WAL position after the transaction, where streaming may restart. The frontier moves here."""
    commit_time_us: int
    """Microseconds since 1970-01-01 UTC."""


@dataclass(frozen=True)
class RelationColumn:
    """A published column, as described by a Relation message."""

    name: str
    type_oid: int
    type_modifier: int
    """pg_attribute.atttypmod; -1 if the type has none."""
    is_key: bool
    """Part of the replica identity; true for every column under REPLICA IDENTITY FULL."""


@dataclass(frozen=True)
class RelationMessage:
    """Describes a relation before its first row change, and again after it was altered."""

    relation_id: int
    schema: str
    name: str
    replica_identity: str
    """pg_class.relreplident: d (default), n (nothing), f (full) or i (index)."""
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True)
class TruncateMessage:
    """TRUNCATE of one or more relations, at its place in the stream."""

    relation_ids: tuple[int, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True)
class LogicalMessage:
    """A message written by pg_logical_emit_message()."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes


def parse_begin(message: bytes) -> BeginMessage:
    """The Begin message 'B'."""
    final_lsn, commit_time, xid = _unpack(_BEGIN, message, "B")
    return BeginMessage(final_lsn, commit_time + _POSTGRES_EPOCH_US, xid)


def parse_commit(message: bytes) -> CommitMessage:
    """The Commit message 'C'."""
    _flags, commit_lsn, end_lsn, commit_time = _unpack(_COMMIT, message, "C")
    return CommitMessage(commit_lsn, end_lsn, commit_time + _POSTGRES_EPOCH_US)


def parse_relation(message: bytes) -> RelationMessage:
    """The Relation message 'R'. pgoutput sends an empty schema name for pg_catalog, which is spelled out here."""
    _check_tag(message, "R")
    try:
        (relation_id,) = _RELATION_ID.unpack_from(message, 1)
        schema, position = _string(message, 1 + _RELATION_ID.size)
        name, position = _string(message, position)
        identity, count = _RELATION_TAIL.unpack_from(message, position)
        position += _RELATION_TAIL.size
        columns = []
        for _ in range(count):
            flags = message[position]
            column, position = _string(message, position + 1)
            type_oid, type_modifier = _COLUMN_TAIL.unpack_from(message, position)
            position += _COLUMN_TAIL.size
            columns.append(RelationColumn(column, type_oid, type_modifier, bool(flags & _KEY_FLAG)))
    except (struct.error, IndexError) as error:
        raise ValueError(f"a Relation message of {len(message)} bytes is truncated") from error
    _check_end(message, position, "R")
    return RelationMessage(relation_id, schema or "pg_catalog", name, identity.decode("ascii"), tuple(columns))


def parse_truncate(message: bytes) -> TruncateMessage:
    """The Truncate message 'T'."""
    _check_tag(message, "T")
    try:
        count, flags = _TRUNCATE.unpack_from(message, 1)
        relation_ids = struct.unpack_from(f">{count}I", message, 1 + _TRUNCATE.size)
    except struct.error as error:
        raise ValueError(f"a Truncate message of {len(message)} bytes is truncated") from error
    _check_end(message, 1 + _TRUNCATE.size + 4 * count, "T")
    return TruncateMessage(relation_ids, bool(flags & _CASCADE_FLAG), bool(flags & _RESTART_FLAG))


def parse_logical_message(message: bytes) -> LogicalMessage:
    """The Message message 'M', which the server sends if the option `messages` is on."""
    _check_tag(message, "M")
    try:
        flags, lsn = _LOGICAL.unpack_from(message, 1)
        prefix, position = _string(message, 1 + _LOGICAL.size)
        (length,) = _LENGTH.unpack_from(message, position)
    except struct.error as error:
        raise ValueError(f"a logical message of {len(message)} bytes is truncated") from error
    start = position + _LENGTH.size
    _check_end(message, start + length, "M")
    return LogicalMessage(bool(flags & _TRANSACTIONAL_FLAG), lsn, prefix, bytes(message[start:]))


def parse_origin(message: bytes) -> str:
    """The Origin message 'O', which follows the Begin of a transaction that came from elsewhere: the origin's name."""
    _check_tag(message, "O")
    name, position = _string(message, 1 + _ORIGIN.size)
    _check_end(message, position, "O")
    return name


def _unpack(layout: struct.Struct, message: bytes, tag: str) -> tuple[int, ...]:
    _check_tag(message, tag)
    _check_end(message, 1 + layout.size, tag)
    return layout.unpack_from(message, 1)


def _check_tag(message: bytes, tag: str) -> None:
    if message[:1] != tag.encode("ascii"):
        raise ValueError(f"expected a pgoutput message {tag!r}, got {bytes(message[:1])!r}")


def _check_end(message: bytes, end: int, tag: str) -> None:
    if len(message) != end:
        raise ValueError(f"a pgoutput message {tag!r} has {len(message)} bytes instead of {end}")


def _string(message: bytes, start: int) -> tuple[str, int]:
    """The zero-terminated string at `start`, and the position after its zero byte."""
    end = message.find(b"\0", start)
    if end < 0:
        raise ValueError("a string in a pgoutput message is not terminated")
    return message[start:end].decode("utf-8"), end + 1
