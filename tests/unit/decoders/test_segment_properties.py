"""Random streams, cut anywhere: the decoded segment must turn the tables before it into the tables after it.

The model is a table kept as a Python dict by key text. It executes each operation and writes the message that Postgres
would send. The decoder's result for a slice of those messages is then applied to the table before the slice. A second
dict is fed with the slice alone, and tells which rows the slice must leave incomplete.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from decoders.columns import ColumnType, Kind
from decoders.incomplete_rows import IncompleteRows
from decoders.segment import RelationShape, TableChanges, decode_segment
from tests.support import pgoutput_encoder as encoder
from tests.support.pgoutput_encoder import UNCHANGED, Cell

Key = tuple[str, ...]
Row = tuple[str | None, ...]

LAYOUTS: list[tuple[tuple[str, ...], tuple[int, ...]]] = [
    (("long", "string", "string"), (0,)),
    (("int", "string"), (0,)),
    (("string", "long", "string"), (2,)),
    (("string", "string", "string", "string"), (0, 1)),
    (("int", "string", "string", "string"), (0, 2)),
    (("long", "long", "string"), (0, 1)),
    (("string",), (0,)),
]
KEY_TEXTS = {
    "int": ["0", "-1", "7", "2147483647"],
    "long": ["1", "-9223372036854775808", "9223372036854775807", "12"],
    # Some have the same text when joined, some share their first twelve bytes, one looks like numbers and NULL do.
    "string": ["", "a", "ab", "b", "a long key text 1", "a long key text 2", "n", "\x1f", "ключ ключ"],
}


@dataclass(frozen=True)
class Change:
    """The content of one message."""

    relation: int
    old_key: Key | None
    """None for an INSERT."""
    cells: tuple[Cell, ...] | None
    """The new row as sent; None for a DELETE."""
    old: tuple[Cell, ...] | None
    """The old row as sent."""
    message: bytes


@dataclass
class ShapedTable:
    """A relation with its rows as Postgres holds them, and the messages for its changes."""

    shape: RelationShape
    full: bool
    """REPLICA IDENTITY FULL."""
    rows: dict[Key, Row] = field(default_factory=dict)

    def key_of(self, row: Row) -> Key:
        return tuple(row[column] or "" for column in self.shape.key)

    def _old(self, row: Row) -> tuple[Cell, ...]:
        return tuple(cell if self.full or column in self.shape.key else None for column, cell in enumerate(row))

    def insert(self, row: Row) -> Change:
        self.rows[self.key_of(row)] = row
        relation = self.shape.relation_id
        return Change(relation, None, row, None, encoder.insert(relation, row))

    def delete(self, key: Key) -> Change:
        relation, old = self.shape.relation_id, self._old(self.rows.pop(key))
        return Change(relation, key, None, old, encoder.delete(relation, old, full=self.full))

    def update(self, key: Key, new: Row, hidden: frozenset[int], *, sends_key: bool) -> Change:
        """`hidden`: columns that are stored out of line and, where they are, sent as unchanged.

        `sends_key`: part of the key is stored out of line, so that the old key is sent although it did not change.
        """
        relation, before = self.shape.relation_id, self.rows.pop(key)
        self.rows[self.key_of(new)] = new
        sent = self.full or sends_key or self.key_of(new) != key
        kept = {column for column in hidden if new[column] == before[column] and new[column] is not None}
        if not sent:
            kept -= set(self.shape.key)
        cells = tuple(UNCHANGED if column in kept else cell for column, cell in enumerate(new))
        old = self._old(before) if sent else None
        return Change(relation, key, cells, old, encoder.update(relation, cells, old, full=self.full))


def a_row(random: Random, shape: RelationShape) -> Row:
    return tuple(
        random.choice(KEY_TEXTS[column_type.kind.value])
        if column in shape.key
        else a_value(random, is_text=column_type.kind is Kind.STRING)
        for column, column_type in enumerate(shape.types)
    )


def a_value(random: Random, *, is_text: bool) -> str | None:
    if random.random() < 0.2:
        return None
    if not is_text:
        return str(random.randrange(-100, 100))
    return "".join(
        random.choices("tun\0\x01aä🙂", weights=(1, 1, 1, 0, 1, 9, 1, 1), k=random.choice((0, 3, 12, 13, 40)))
    )


@dataclass
class Stream:
    """Messages, and a copy of every table's rows before each of them and after the last."""

    tables: list[ShapedTable]
    messages: list[bytes] = field(default_factory=list)
    changes: list[Change | None] = field(default_factory=list)
    known: list[dict[int, dict[Key, Row]]] = field(default_factory=list)

    def add(self, change: Change | bytes) -> None:
        self.changes.append(change if isinstance(change, Change) else None)
        self.messages.append(change.message if isinstance(change, Change) else change)
        self.note()

    def note(self) -> None:
        self.known.append({table.shape.relation_id: dict(table.rows) for table in self.tables})


def a_table(random: Random, relation: int) -> ShapedTable:
    types, key = random.choice(LAYOUTS)
    shape = RelationShape(
        relation_id=relation,
        names=tuple(f"c{place}" for place in range(len(types))),
        types=tuple(map(ColumnType.parse, types)),
        key=key,
        not_null=tuple(place in key for place in range(len(types))),
        every_key_deletes=random.random() < 0.3,
    )
    return ShapedTable(shape, full=random.random() < 0.3)


def a_change(random: Random, table: ShapedTable) -> Change | bytes:
    """Executes a random operation; does nothing if the table's rows do not allow it."""
    row, columns = a_row(random, table.shape), range(len(table.shape.names))
    action = random.choices(["insert", "update", "move", "delete", "noise"], weights=[2, 5, 4, 2, 1])[0]
    if action == "insert" and table.key_of(row) not in table.rows:
        return table.insert(row)
    if action in ("insert", "noise") or not table.rows:
        return random.choice([encoder.BEGIN, encoder.COMMIT, encoder.insert(5, ["1"]), b"R\0\0\0\1"])
    key = random.choice(sorted(table.rows))
    if action == "delete":
        return table.delete(key)
    old = table.rows[key]
    stays = {column for column in columns if random.random() < 0.5 or (column in table.shape.key and action != "move")}
    new = tuple(old[column] if column in stays else row[column] for column in columns)
    if table.key_of(new) in table.rows:
        new = tuple(old[column] if column in table.shape.key else new[column] for column in columns)
    hidden = frozenset(column for column in columns if random.random() < 0.7)
    return table.update(key, new, hidden, sends_key=random.random() < 0.3)


def a_stream(random: Random, size: int) -> Stream:
    relations = random.sample([1, 77, 20_000, 2**32 - 1], random.choice((1, 1, 2, 3)))
    stream = Stream([a_table(random, relation) for relation in relations])
    # Rows from before the stream, so that its first messages find some, too.
    for table in stream.tables:
        for _ in range(random.randrange(10)):
            table.insert(a_row(random, table.shape))
    stream.note()
    for _ in range(size):
        stream.add(a_change(random, random.choice(stream.tables)))
    return stream


def texts(table: pa.Table) -> list[Row]:
    """Rows as Postgres prints them; the types used here print as Python's str does."""
    return [tuple(None if cell is None else str(cell) for cell in row.values()) for row in table.to_pylist()]


def completed(incomplete: IncompleteRows | None, before: dict[Key, Row]) -> list[Row]:
    """Fills in the missing cells from the rows before the segment, as the pipeline does."""
    if incomplete is None:
        return []
    result = []
    missing: list[Any] = [list(row.values()) for row in incomplete.missing.to_pylist()]
    for row, gaps, key in zip(texts(incomplete.rows), missing, texts(incomplete.lookup_keys), strict=True):
        image = before[tuple(part or "" for part in key)]
        assert any(gaps)
        assert all(cell is None for cell, gap in zip(row, gaps, strict=True) if gap)
        result.append(tuple(old if gap else cell for cell, gap, old in zip(row, gaps, image, strict=True)))
    return result


def touched_keys(states: list[dict[Key, Row]]) -> set[Key]:
    """Keys whose row was replaced, even by an equal one, added or removed."""
    touched: set[Key] = set()
    for before, after in itertools.pairwise(states):
        touched |= {key for key in before.keys() | after.keys() if before.get(key) is not after.get(key)}
    return touched


def what_a_slice_says(table: ShapedTable, changes: list[Change]) -> dict[Key, tuple[Key, tuple[Cell, ...]]]:
    """By key at the end of the slice: the row's key at its start, and its cells as far as the slice contains them."""
    image: dict[Key, tuple[Key, tuple[Cell, ...]]] = {}
    for change in changes:
        root: Key = ()
        last: tuple[Cell, ...] = (UNCHANGED,) * len(table.shape.names)
        if change.old_key is not None:
            root, last = image.pop(change.old_key, (change.old_key, last))
        if change.cells is None:
            continue
        if change.old is not None:
            usable = [table.full or column in table.shape.key for column in range(len(last))]
            last = tuple(old if use else cell for cell, old, use in zip(last, change.old, usable, strict=True))
        cells = tuple(old if cell is UNCHANGED else cell for cell, old in zip(change.cells, last, strict=True))
        image[table.key_of(tuple(str(cell) for cell in cells))] = (root, cells)
    return image


def check(table: ShapedTable, result: TableChanges | None, stream: Stream, low: int, high: int) -> None:
    relation = table.shape.relation_id
    changes = [change for change in stream.changes[low:high] if change is not None and change.relation == relation]
    if result is None:
        assert not changes
        return
    states = [state[relation] for state in stream.known[low : high + 1]]
    before, after, touched = states[0], states[-1], touched_keys(states)
    assert result.error is None
    assert result.changes == len(changes)

    deleted = [tuple(part or "" for part in key) for key in texts(result.deleted_keys)]
    assert len(set(deleted)) == len(deleted)
    assert set(deleted) == (touched if table.shape.every_key_deletes else touched & before.keys())
    if table.shape.every_key_deletes:
        assert result.appearing is not None
        appearing = {key for key, appears in zip(deleted, result.appearing, strict=True) if appears}
        assert appearing == touched - before.keys()

    rows = texts(result.rows)
    lake = {key: row for key, row in before.items() if key not in deleted}
    for row in rows + completed(result.incomplete, before):
        assert table.key_of(row) not in lake
        lake[table.key_of(row)] = row
    assert lake == after

    image = what_a_slice_says(table, changes)
    lacking = {key: row for key, row in image.items() if UNCHANGED in row[1]}
    assert {table.key_of(row) for row in rows} == image.keys() - lacking.keys()
    found = {}
    if result.incomplete is not None:
        gaps = [tuple(row.values()) for row in result.incomplete.missing.to_pylist()]
        for row, gap, root in zip(
            texts(result.incomplete.rows), gaps, texts(result.incomplete.lookup_keys), strict=True
        ):
            cells = tuple(UNCHANGED if missing else cell for cell, missing in zip(row, gap, strict=True))
            found[table.key_of(row)] = (root, cells)
    assert found == lacking


STREAMS = st.builds(lambda seed, size: a_stream(Random(seed), size), st.integers(0, 2**32), st.integers(1, 60))
"""Drawn by a seed, since hypothesis's own draws seldom coincide in one row; the size is what shrinks."""


@settings(max_examples=400)
@given(STREAMS, st.randoms(use_true_random=True))
def test_a_segment_turns_the_tables_before_it_into_the_tables_after_it(stream: Stream, random: Random) -> None:
    low, high = sorted(random.choices(range(len(stream.messages) + 1), k=2))
    shapes = {table.shape.relation_id: table.shape for table in stream.tables}
    results = {
        shape.relation_id: shape for shape in decode_segment(*encoder.segment(stream.messages[low:high]), shapes)
    }
    for table in stream.tables:
        check(table, results.pop(table.shape.relation_id, None), stream, low, high)
    assert not results


@settings(max_examples=100)
@given(STREAMS)
def test_a_full_image_in_the_segment_leaves_nothing_incomplete(stream: Stream) -> None:
    shapes = {table.shape.relation_id: table.shape for table in stream.tables}
    inserts = [encoder.insert(relation, row) for relation, rows in stream.known[0].items() for row in rows.values()]
    for result in decode_segment(*encoder.segment(inserts + stream.messages), shapes):
        assert result.incomplete is None


@settings(max_examples=300)
@given(STREAMS, st.randoms(use_true_random=True))
def test_damaged_messages_are_errors_of_their_relation_and_nothing_worse(stream: Stream, random: Random) -> None:
    shapes = {table.shape.relation_id: table.shape for table in stream.tables}
    content, lengths = encoder.segment(stream.messages)
    damaged = bytearray(content)
    for _ in range(random.randint(1, 4)):
        damaged[random.randrange(len(damaged))] = random.choice([0, 1, 110, 116, 117, 255])
    for result in decode_segment(bytes(damaged), lengths, shapes):
        assert (result.error is None) or result.rows.num_rows == result.deleted_keys.num_rows == 0
        result.rows.validate(full=True)
        result.deleted_keys.validate(full=True)
