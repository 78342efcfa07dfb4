"""Reads from the stream how rows changed between two WAL positions, independently of the pump's decoder.

`verify` reads the heap as of a slot's consistent point, and the lake at a later frontier. The two differ by exactly the
transactions that ended in between. Their messages are applied to a dict one at a time: that is slow but easy to check,
and the interval is short.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from decoders.messages import parse_begin, parse_commit, parse_logical_message, parse_relation, parse_truncate
from mirror_pump.model import Lsn, MirroredTable, TableId
from mirror_pump.pipeline.stream.stream_tables import difference_from
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.heap.row_lookup import read_rows
from mirror_pump.source.relations.change_notes import PREFIX, parse_note
from mirror_pump.source.stream.replication_stream import ReplicationStream
from sql.mirror_names import of_mirror

_STREAM_WAIT = 0.05
"""Seconds between status updates to the temporary slot's walsender while the stream is idle."""

Key: TypeAlias = tuple[str, ...]
"""The key columns' texts, in attribute order."""


@dataclass(frozen=True)
class UnchangedValue:
    """A value that an UPDATE did not send, as it did not change. The row with `key` has it at the consistent point."""

    key: Key


Cell: TypeAlias = str | UnchangedValue | None
ChangedRow: TypeAlias = tuple[Cell, ...] | None
"""The last version of a row; None if it was deleted."""


@dataclass
class CatchUpTable:
    """One table's changes since the consistent point."""

    table: MirroredTable
    rows: dict[Key, ChangedRow] = field(default_factory=dict)
    """By key, the last version of each changed row, or None if the row was deleted. Without a key, by the row's number:
    rows that were put and are still there."""
    numbers: dict[ChangedRow, list[Key]] = field(default_factory=dict)
    """The keys in `rows`, by row, of a table without a key."""
    inserted: int = 0
    """Number of the last row that was put, of a table without a key."""
    removed: list[tuple[str | None, ...]] = field(default_factory=list)
    """Rows of the consistent point that went, of a table whose rows are found by all their values: one for each."""
    truncated: bool = False
    """True if a TRUNCATE removed all rows of the consistent point."""
    altered: str = ""
    """How the columns changed. If not empty, the table's rows cannot be derived from the stream."""


class CatchUpChanges:
    """Applies pgoutput messages, without their XLogData headers, in stream order. A transaction is applied at its
    end."""

    def __init__(self, tables: Mapping[TableId, MirroredTable], after: Lsn, mirror: str | None = None) -> None:
        """`mirror`: the name of the mirror whose tables they are."""
        self.tables: dict[int, CatchUpTable] = {table_id: CatchUpTable(table) for table_id, table in tables.items()}
        self.position = after
        """WAL position after the last transaction that was applied."""
        self._after = after
        self._note_prefix = of_mirror(PREFIX, mirror)
        self._pending: list[bytes] = []
        self._skip = False

    def feed(self, message: bytes, until: Lsn) -> bool:
        """Take one message. Return False if it ends a transaction beyond `until`, which is not applied."""
        tag = message[:1]
        if tag == b"B":
            self._pending = []
            self._skip = parse_begin(message).final_lsn < self._after
        elif tag == b"C":
            end = Lsn(parse_commit(message).end_lsn)
            if end > until:
                return False
            if not self._skip:
                for change in self._pending:
                    self._apply(change)
            self.position = end
        elif tag in (b"R", b"I", b"U", b"D", b"T", b"M"):
            self._pending.append(message)
        return True

    def _apply(self, message: bytes) -> None:
        tag = message[:1]
        if tag == b"R":
            relation = parse_relation(message)
            table = self.tables.get(relation.relation_id)
            if table is not None:
                table.altered = table.altered or difference_from(table.table, relation)
            return
        if tag == b"M":
            logical = parse_logical_message(message)
            note = parse_note(logical.content) if logical.prefix == self._note_prefix else None
            table = self.tables.get(note.table_id) if note is not None else None
            if table is not None:
                table.altered = table.altered or "its schema changed"
            return
        if tag == b"T":
            for relation_id in parse_truncate(message).relation_ids:
                if relation_id in self.tables:
                    self.tables[relation_id].rows = {}
                    self.tables[relation_id].removed = []
                    self.tables[relation_id].numbers = {}
                    self.tables[relation_id].truncated = True
            return
        (relation_id,) = struct.unpack_from(">I", message, 1)
        table = self.tables.get(relation_id)
        if table is not None and not table.altered:
            _change(table, tag, message)


def _change(changes: CatchUpTable, tag: bytes, message: bytes) -> None:
    if changes.table.append_only and tag != b"I":
        changes.altered = "a row was updated or deleted, and it has no key"
        return
    key_places = [place for place, column in enumerate(changes.table.columns) if column.name in changes.table.key]
    position = 5
    old: list[Cell | bytes] | None = None
    new: list[Cell | bytes] | None = None
    while position < len(message):
        kind = message[position : position + 1]
        cells, position = _tuple(message, position + 1)
        cells = [cell for place, cell in enumerate(cells) if place not in changes.table.excluded_places]
        if kind == b"N":
            new = cells
        else:
            old = cells
    if changes.table.keyless:
        _change_whole_rows(changes, old, new)
        return
    if new is None:
        assert old is not None
        changes.rows[_key(old, key_places)] = None
        return
    if old is not None:
        new = [before if cell == b"u" and before is not None else cell for cell, before in zip(new, old, strict=True)]
    key = _key(new, key_places)
    old_key = _key(old, key_places) if old is not None else key
    if tag == b"U":
        old_row = changes.rows.get(old_key)
        new = [
            (old_row[place] if old_row is not None else UnchangedValue(old_key)) if cell == b"u" else cell
            for place, cell in enumerate(new)
        ]
        if old_key != key:
            changes.rows[old_key] = None
    changes.rows[key] = tuple(cell for cell in new if not isinstance(cell, bytes))


def _change_whole_rows(changes: CatchUpTable, old: list[Cell | bytes] | None, new: list[Cell | bytes] | None) -> None:
    """Applies a change to a table without a key: one of the rows that are equal to the old one goes."""
    if old is not None:
        gone = tuple(cell for cell in old if cell is None or isinstance(cell, str))
        if keys := changes.numbers.get(gone):
            del changes.rows[keys.pop()]
        else:
            changes.removed.append(gone)
    if new is not None:
        whole = [before if cell == b"u" else cell for cell, before in zip(new, old or new, strict=True)]
        row = tuple(cell for cell in whole if not isinstance(cell, bytes))
        changes.inserted += 1
        changes.rows[str(changes.inserted),] = row
        changes.numbers.setdefault(row, []).append((str(changes.inserted),))


def _tuple(message: bytes, position: int) -> tuple[list[Cell | bytes], int]:
    """The TupleData at `position`, and where it ends. A cell is a text, None for NULL, or b"u" for an unchanged TOAST
    value."""
    (count,) = struct.unpack_from(">H", message, position)
    position += 2
    cells: list[Cell | bytes] = []
    for _ in range(count):
        kind = message[position : position + 1]
        position += 1
        if kind == b"t":
            (length,) = struct.unpack_from(">I", message, position)
            cells.append(message[position + 4 : position + 4 + length].decode())
            position += 4 + length
        else:
            cells.append(b"u" if kind == b"u" else None)
    return cells, position


def _key(cells: list[Cell | bytes], places: list[int]) -> Key:
    key = tuple(cells[place] for place in places)
    if not all(isinstance(part, str) for part in key):
        raise ValueError(f"the stream sent a row without its whole key: {key!r}")
    return tuple(str(part) for part in key)


def former_rows(changes: CatchUpTable, reader: PgConnection) -> dict[Key, tuple[str | None, ...]]:
    """By key, the rows of the consistent point that unchanged values refer to. `reader` sees the consistent point."""
    keys = {
        cell.key for row in changes.rows.values() if row is not None for cell in row if isinstance(cell, UnchangedValue)
    }
    columns = changes.table.columns
    rows = read_rows(reader, changes.table, columns, sorted(keys))
    places = [place for place, column in enumerate(columns) if column.name in changes.table.key]
    return {tuple(str(row[place]) for place in places): row for row in rows}


def read_catch_up_changes(
    stream: ReplicationStream, tables: Mapping[TableId, MirroredTable], start: Lsn, until: Lsn, mirror: str | None
) -> CatchUpChanges:
    """The changes of all transactions that ended after `start`, the slot's consistent point, and at or before `until`,
    which the WAL has reached. `mirror`: as of CatchUpChanges."""
    changes = CatchUpChanges(tables, start, mirror)
    while changes.position < until:
        block = stream.read(_STREAM_WAIT)
        if not all(changes.feed(message, until) for message in block.contents()):
            break
        keepalive = stream.keepalive
        if not len(block) and keepalive is not None and keepalive.wal_end >= until:
            break
        stream.send_status(start, start, start, reply=not len(block))
    return changes
