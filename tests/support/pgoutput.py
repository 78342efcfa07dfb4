"""Encodes pgoutput messages for the pipeline's unit tests, as CopyData messages with their header."""

from __future__ import annotations

import json
import struct

from decoders.columns import ColumnType, Kind
from mirror_pump.model import Column, Lsn, MirroredTable
from tests.support.table_values import live_table

HEADER = b"w" + bytes(24)
TEXT_OID, INT8_OID = 25, 20


def begin(final_lsn: int, xid: int = 1) -> bytes:
    return HEADER + b"B" + struct.pack(">QQI", final_lsn, 0, xid)


def commit(end_lsn: int, start_lsn: int | None = None) -> bytes:
    return HEADER + b"C" + struct.pack(">BQQQ", 0, start_lsn or end_lsn - 8, end_lsn, 0)


def relation(table: MirroredTable, *, text_oid: int = TEXT_OID) -> bytes:
    body = struct.pack(">I", table.table_id) + b"public\0" + table.name.name.encode() + b"\0d"
    body += struct.pack(">H", len(table.columns))
    for column in table.columns:
        oid = text_oid if column.type_oid == TEXT_OID else column.type_oid
        body += struct.pack(">B", column.name in table.key) + column.name.encode() + b"\0" + struct.pack(">Ii", oid, -1)
    return HEADER + b"R" + body


def insert(table_id: int, *values: str) -> bytes:
    body = struct.pack(">I", table_id) + b"N" + struct.pack(">H", len(values))
    for value in values:
        body += b"t" + struct.pack(">I", len(value)) + value.encode()
    return HEADER + b"I" + body


def truncate(*table_ids: int) -> bytes:
    return (
        HEADER
        + b"T"
        + struct.pack(">IB", len(table_ids), 0)
        + b"".join(struct.pack(">I", table_id) for table_id in table_ids)
    )


def logical(content: bytes, prefix: bytes = b"mirror-pump") -> bytes:
    return HEADER + b"M" + struct.pack(">BQ", 1, 0) + prefix + b"\0" + struct.pack(">I", len(content)) + content


def note(table_id: int, **facts: object) -> bytes:
    """A note with a shape (None: the table is gone), unless it reports a rewrite or a truncation. Its signature is not
    checked."""
    if not facts:
        facts = {"shape": {}}
    return logical(b"0" * 64 + json.dumps({"table": table_id, "exact": "shape" in facts, **facts}).encode())


def mirrored(table_id: int, start_lsn: int = 0) -> MirroredTable:
    """A table (id bigint primary key, v text)."""
    columns = (
        Column(1, "id", INT8_OID, -1, "bigint", ColumnType(Kind.LONG), 1, not_null=True),
        Column(2, "v", TEXT_OID, -1, "text", ColumnType(Kind.STRING), 2, not_null=False),
    )
    return live_table(columns, number=table_id, name=f"t{table_id}", start_lsn=Lsn(start_lsn))
