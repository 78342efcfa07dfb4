"""The expected content of the lake at each frontier: exact commit positions from a slot of the test, and a model of the
tables."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Row

Contents: TypeAlias = dict[Row, Row]
"""A table: values by key."""

_COMMIT = struct.Struct(">cBQQQ")
_MESSAGE = struct.Struct(">cBQ")


class CommitLog:
    """Finds out where the test's transactions end in the WAL. Each of them writes its number in a logical message.

    A second slot decodes them, with a publication without tables: the positions are the server's own.
    """

    def __init__(self, database: Database, slot: str) -> None:
        self._database = database
        self._slot = slot
        with database.session() as connection:
            connection.execute(f"CREATE PUBLICATION {slot}".encode())
            connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))

    @staticmethod
    def mark(connection: Any, number: int) -> None:
        """Gives the current transaction its number."""
        connection.execute("SELECT pg_logical_emit_message(true, 'oracle', %s)", (str(number),))

    def ends(self) -> dict[int, int]:
        """End positions of the transactions that committed since the last call, by number."""
        rows = self._database.rows(
            "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, 'proto_version', '1',"
            " 'publication_names', %s, 'messages', 'true')",
            (self._slot, self._slot),
        )
        found: dict[int, int] = {}
        number: int | None = None
        for (data,) in rows:
            if data[:1] == b"M":
                start = _MESSAGE.size
                prefix_end = data.index(b"\0", start)
                if data[start:prefix_end] == b"oracle":
                    number = int(data[prefix_end + 5 :])
            elif data[:1] == b"C" and number is not None:
                found[number] = _COMMIT.unpack_from(data)[3]
                number = None
        return found


@dataclass
class History:
    """The contents of tables after each committed transaction."""

    log: CommitLog
    tables: dict[str, Contents]
    """Their present contents."""
    _number: int = 0
    _waiting: dict[int, dict[str, Contents]] = field(default_factory=dict)
    _ends: list[int] = field(default_factory=list)
    _states: list[dict[str, Contents]] = field(default_factory=list)

    def next_number(self) -> int:
        """A number for the next transaction."""
        self._number += 1
        return self._number

    def committed(self, number: int, changed: Mapping[str, Contents]) -> None:
        """Transaction `number` has just committed, and left the tables in this state."""
        self.tables = {**self.tables, **{name: dict(contents) for name, contents in changed.items()}}
        self._waiting[number] = self.tables

    def at(self, frontier: int, table: str) -> Contents:
        """The table's contents at the frontier: after the last transaction that ends at or below it."""
        if self._waiting:
            for number, end in sorted(self.log.ends().items(), key=lambda item: item[1]):
                assert not self._ends or end > self._ends[-1], "transactions are recorded in the order of their commits"
                self._ends.append(end)
                self._states.append(self._waiting.pop(number))
            assert not self._waiting, f"the server does not know transactions {sorted(self._waiting)}"
        position = bisect_right(self._ends, frontier)
        return self._states[position - 1].get(table, {}) if position else {}
