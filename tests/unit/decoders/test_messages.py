"""The rare pgoutput messages. Integration tests also compare their layouts with a real server."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from decoders import messages as m

BEGIN = b"B" + struct.pack(">QqI", 0xFFFF_0000_0000_0001, -946_684_800_000_000, 4_000_000_000)
COMMIT = b"C" + struct.pack(">BQQq", 0, 0x16_B374_D848, 0x16_B374_D880, 1_000_000)
RELATION = (
    b"R"
    + struct.pack(">I", 4_000_000_000)
    + "schéma\0tab le\0".encode()
    + struct.pack(">cH", b"f", 2)
    + b"\x01id\0"
    + struct.pack(">Ii", 20, -1)
    + b"\x00amount\0"
    + struct.pack(">Ii", 1700, 917_510)
)
TRUNCATE = b"T" + struct.pack(">IBII", 2, 3, 16_384, 4_000_000_000)
LOGICAL = b"M" + struct.pack(">BQ", 1, 0x16_B374_D848) + b"modak\0" + struct.pack(">I", 3) + b"a\0b"


def test_begin_counts_time_from_1970_and_keeps_large_numbers() -> None:
    assert m.parse_begin(BEGIN) == m.BeginMessage(0xFFFF_0000_0000_0001, 0, 4_000_000_000)


def test_commit() -> None:
    assert m.parse_commit(COMMIT) == m.CommitMessage(0x16_B374_D848, 0x16_B374_D880, 946_684_801_000_000)


def test_relation() -> None:
    assert m.parse_relation(RELATION) == m.RelationMessage(
        4_000_000_000,
        "schéma",
        "tab le",
        "f",
        (m.RelationColumn("id", 20, -1, is_key=True), m.RelationColumn("amount", 1700, 917_510, is_key=False)),
    )


def test_a_relation_of_pg_catalog_comes_without_its_schema() -> None:
    message = b"R" + struct.pack(">I", 1) + b"\0t\0" + struct.pack(">cH", b"d", 0)
    assert m.parse_relation(message).schema == "pg_catalog"


def test_truncate() -> None:
    assert m.parse_truncate(TRUNCATE) == m.TruncateMessage((16_384, 4_000_000_000), cascade=True, restart_identity=True)
    message = b"T" + struct.pack(">IBI", 1, 2, 7)
    assert m.parse_truncate(message) == m.TruncateMessage((7,), cascade=False, restart_identity=True)


def test_logical_message() -> None:
    assert m.parse_logical_message(LOGICAL) == m.LogicalMessage(
        transactional=True, lsn=0x16_B374_D848, prefix="modak", content=b"a\0b"
    )


PARSERS: list[tuple[Callable[[bytes], object], bytes]] = [
    (m.parse_begin, BEGIN),
    (m.parse_commit, COMMIT),
    (m.parse_relation, RELATION),
    (m.parse_truncate, TRUNCATE),
    (m.parse_logical_message, LOGICAL),
]


@pytest.mark.parametrize(("parse", "message"), PARSERS, ids=lambda value: getattr(value, "__name__", ""))
def test_what_is_too_short_too_long_or_another_message_is_refused(
    parse: Callable[[bytes], object], message: bytes
) -> None:
    for end in range(len(message)):
        with pytest.raises(ValueError, match=r"pgoutput|is truncated"):
            parse(message[:end])
    with pytest.raises(ValueError, match="bytes instead of"):
        parse(message + b"\0")
    with pytest.raises(ValueError, match="expected a pgoutput message"):
        parse(b"Z" + message[1:])
