"""Decodes a segment, a consecutive slice of the stream, into its net effect on each table.

Steps for each relation: find all cells (tuples.py), number the keys (keys.py), sort events by key (net_effect.py), fill
in unchanged TOAST values (toast.py), and only then parse text (text.py), only of the rows that survive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from decoders.change_events import ChangeEvents, EventOrder, OldRows, SegmentTransactions, raw_or_null, taken_or_null
from decoders.columns import ColumnType
from decoders.incomplete_rows import IncompleteRows, RawTexts
from decoders.keys import is_integer_key, key_numbers
from decoders.net_effect import NetEffect, net_effect
from decoders.text import ParsedColumn, parse_column
from decoders.toast import chain_ends, from_earlier_images, from_old_tuples
from decoders.tuples import (
    DELETE,
    INSERT,
    TEXT,
    UNCHANGED,
    UPDATE,
    Bools,
    Bytes,
    Cells,
    Changes,
    Ints,
    RawBuffer,
    read_changes,
)

_CHANGE_TAGS = (INSERT, UPDATE, DELETE)
_WHOLE_OLD_TUPLE = ord("O")
_SHARED_BYTES = 1 << 30
"""Values are parsed once for the net effect and for the events of a segment of up to this many bytes: the text that is
taken from a column has to fit into one Arrow array."""
_ERROR_LENGTH = 500
"""Maximum length of an error text in characters: it may quote a value, and values may be large."""


@dataclass(frozen=True)
class RelationShape:
    """What a task must know about a relation. Picklable."""

    relation_id: int
    """OID of the relation in pgoutput's messages."""
    names: tuple[str, ...]
    """Column names in the order of pgoutput, without the columns left out."""
    types: tuple[ColumnType, ...]
    key: tuple[int, ...]
    """Indexes of the key columns in `names`, ascending. Empty: rows may repeat."""
    not_null: tuple[bool, ...]
    """Columns that the lake requires: a NULL there is an error of the table, as its file would be invalid."""
    every_key_deletes: bool
    """True while the table is copied, and where rows may be left that the stream says nothing of: each touched key is
    deleted, even if its row first appears in this segment."""
    left_out: tuple[int, ...] = ()
    """Indexes, among all columns that pgoutput sends, of those that are not in `names` and are ignored."""
    whole_rows: bool = False
    """The relation has no key and REPLICA IDENTITY FULL: an old tuple is a row that goes, among equal ones any."""
    events: bool = False
    """Whether every change is asked for, too (decoders.change_events)."""
    old_rows: bool = False
    """... with its old row: the relation must have REPLICA IDENTITY FULL."""


@dataclass(frozen=True)
class TableChanges:
    """Net effect of a segment on one table."""

    relation_id: int
    changes: int
    """Number of messages."""
    rows: pa.Table
    """Complete rows that exist at the end of the segment, one per key: all columns, in ColumnType's Arrow types."""
    raw: RawTexts
    """Raw text of `rows`: values that their column's type cannot hold."""
    deleted_keys: pa.Table
    """Key columns, unique: keys whose row from before the segment must be deleted."""
    incomplete: IncompleteRows | None
    error: str | None
    """Reason why the relation could not be decoded; then the tables are empty."""
    deleted_rows: pa.Table | None = None
    """If the shape says `whole_rows`: rows to delete, like `rows`, which then are all that were put. A row that was
    put and deleted again is in both. Each deletes one of the rows equal to it, from before the segment or in `rows`."""
    deleted_raw: RawTexts = field(default_factory=dict)
    """Raw text of `deleted_rows`."""
    events: ChangeEvents | None = None
    """If the shape asks for them: all changes, in stream order."""
    appearing: Bools | None = None
    """If the shape says `every_key_deletes`: by deleted key, whether its row first appears in this segment."""


def decode_segment(
    data: bytes,
    lengths: npt.NDArray[np.int32],
    shapes: Mapping[int, RelationShape],
    header: int = 25,
    transactions: SegmentTransactions | None = None,
) -> list[TableChanges]:
    """The net effect of the messages in `data` on each relation of `shapes` that has any, by ascending OID.

    `data` holds the messages one after the other, `lengths` their sizes in bytes including headers. `header` bytes of
    each precede its pgoutput message (25 for CopyData's XLogData). Ignores messages that are not row changes, and those
    of other relations. `transactions`: those of the messages, if a shape asks for events. If a relation cannot be
    decoded, its `error` is set and others are not affected. Raises ValueError if the lengths do not add up to the data.
    """
    sizes = np.asarray(lengths, np.int64)
    ends = np.cumsum(sizes)
    if int(ends[-1] if len(ends) else 0) != len(data) or (sizes <= header).any():
        raise ValueError(f"{len(sizes)} message lengths do not match {len(data)} bytes of data")
    buffer = RawBuffer(data)
    at = ends - sizes + header
    tags, relations, marks = buffer.heads(at)
    chosen = np.flatnonzero(np.isin(tags, _CHANGE_TAGS))
    # A stable sort keeps each relation's messages in stream order.
    chosen = chosen[np.argsort(relations[chosen], kind="stable")]
    results = []
    for group in np.split(chosen, np.flatnonzero(np.diff(relations[chosen])) + 1):
        shape = shapes.get(int(relations[group[0]])) if len(group) else None
        if shape is not None:
            places = _SegmentPlaces(group, transactions) if shape.events and transactions is not None else None
            results.append(_decode(buffer, at[group], ends[group], tags[group], marks[group], shape, places))
    return results


@dataclass(frozen=True)
class _SegmentPlaces:
    """Where the messages of a relation are in the segment."""

    messages: Ints
    """Their indexes."""
    transactions: SegmentTransactions


def _decode(
    buffer: RawBuffer,
    at: Ints,
    ends: Ints,
    tags: Bytes,
    marks: Bytes,
    shape: RelationShape,
    places: _SegmentPlaces | None,
) -> TableChanges:
    try:
        changes = read_changes(buffer, at, ends, tags, marks, len(shape.names) + len(shape.left_out))
        if places is not None and shape.old_rows:
            _require_old_rows(tags, marks)
        relation = _Relation(buffer, changes.without(shape.left_out), shape, places)
        return relation.whole_row_changes() if shape.whole_rows else relation.table_changes()
    except (ValueError, IndexError) as error:
        # A wrong length in a malformed message points beyond the data.
        reason = "a row change is longer or shorter than its message" if isinstance(error, IndexError) else str(error)
        return undecoded(shape, reason[:_ERROR_LENGTH], len(at))


def undecoded(shape: RelationShape, error: str, changes: int = 0) -> TableChanges:
    """The changes of a relation that cannot be decoded. `changes`: the number of messages, if known."""
    return TableChanges(
        relation_id=shape.relation_id,
        changes=changes,
        rows=_schema(shape).empty_table(),
        raw={},
        deleted_keys=_schema(shape).empty_table().select(list(shape.key)),
        incomplete=None,
        error=error,
    )


def _require_old_rows(tags: Bytes, marks: Bytes) -> None:
    if ((tags != INSERT) & (marks != _WHOLE_OLD_TUPLE)).any():
        raise ValueError(
            "the stream does not have the whole old row, which the table's change feed is to hold. Set REPLICA IDENTITY"
            " FULL, then unregister the table and register it"
        )


def _schema(shape: RelationShape) -> pa.Schema:
    return pa.schema([(name, column.arrow) for name, column in zip(shape.names, shape.types, strict=True)])


def _every_row(changes: Changes, *, whole: bool) -> Ints:
    """Numbers of rows without a key: each row stands for itself. Raises ValueError unless all were inserted, or old
    rows come as a whole."""
    if not whole and (changes.tags != INSERT).any():
        raise ValueError("a row was updated or deleted, and the table has no key by which the lake could find it")
    return np.arange(len(changes.new_messages), dtype=np.int64)


@dataclass(frozen=True)
class _Images:
    """The new tuples of a relation."""

    cells: list[Cells]
    """By column; values that the segment has in old tuples or earlier images are filled in."""
    missing: list[Bools]
    """By column, whether the segment does not have the value."""
    lacking: Bools
    """Whether it does not have one of them."""
    previous: Ints
    """By message (NetEffect.previous_images)."""
    rows: pa.Table
    raw: RawTexts


class _Relation:
    """Works out the changes of one relation."""

    def __init__(
        self, buffer: RawBuffer, changes: Changes, shape: RelationShape, places: _SegmentPlaces | None = None
    ) -> None:
        """`places`: if events are asked for."""
        self._places = places
        self._buffer = buffer
        self._changes = changes
        self._shape = shape
        self._key_types = [shape.types[column] for column in shape.key]
        new = [self._checked(from_old_tuples(changes, column), column) for column in shape.key]
        old = [self._checked(changes.old[column], column) for column in shape.key]
        self._key_cells = [new_cells.followed_by(old_cells) for new_cells, old_cells in zip(new, old, strict=True)]
        """By key column: the cells of the new tuples, then those of the old ones."""
        self._numbers = (
            key_numbers(buffer, self._key_cells, self._key_types)
            if shape.key
            else _every_row(changes, whole=shape.whole_rows)
        )
        """Key numbers of the new tuples, then of the old ones."""

    def table_changes(self) -> TableChanges:
        changes, shape = self._changes, self._shape
        fresh = len(changes.new_messages)
        effect = net_effect(changes, self._numbers[:fresh], self._numbers[fresh:])
        surviving = effect.surviving
        events: ChangeEvents | None = None
        if self._places is None:
            rows, raw, incomplete = self._surviving_rows(effect, surviving)
        else:
            images = self._images(effect)
            events = self._events(self._places, effect, images)
            if self._buffer.size <= _SHARED_BYTES:
                rows, raw, incomplete = self._shared_rows(effect, surviving, images)
            else:
                rows, raw, incomplete = self._surviving_rows(effect, surviving)
        deleting = effect.deleting(every_key=shape.every_key_deletes)
        return TableChanges(
            relation_id=shape.relation_id,
            changes=len(changes.tags),
            rows=rows,
            raw=raw,
            deleted_keys=self._deleted_keys(effect, deleting),
            incomplete=incomplete,
            error=None,
            events=events,
            appearing=effect.appears[deleting] if shape.every_key_deletes else None,
        )

    def _surviving_rows(self, effect: NetEffect, surviving: Ints) -> tuple[pa.Table, RawTexts, IncompleteRows | None]:
        """The surviving rows, their raw texts, and those of them that lack values."""
        cells, previous = self._surviving_cells(effect, surviving)
        missing = [column.kinds == UNCHANGED for column in cells]
        lacking = np.logical_or.reduce(missing) if missing else np.zeros(len(surviving), bool)
        incomplete = None
        if lacking.any():
            assert previous is not None
            incomplete = self._incomplete(effect, surviving, cells, missing, np.flatnonzero(lacking), previous)
            whole = np.flatnonzero(~lacking)
            surviving, cells = surviving[whole], [column.take(whole) for column in cells]
        rows, raw = self._rows(self._changes.new_places[surviving], cells)
        return rows, raw, incomplete

    def _shared_rows(
        self, effect: NetEffect, surviving: Ints, images: _Images
    ) -> tuple[pa.Table, RawTexts, IncompleteRows | None]:
        """As `_surviving_rows`, of rows that are parsed already."""
        places = self._changes.new_places[surviving]
        lacking = images.lacking[places]
        incomplete = None
        if lacking.any():
            lacking_places = places[lacking]
            incomplete = self._incomplete(
                effect, self._changes.new_messages, images.cells, images.missing, lacking_places, images.previous
            )
            places = places[~lacking]
        return taken_or_null(images.rows, places), raw_or_null(images.raw, places), incomplete

    def _images(self, effect: NetEffect) -> _Images:
        """All new tuples, with the values that the segment has."""
        changes = self._changes
        cells = [from_old_tuples(changes, column) for column in range(len(self._shape.names))]
        previous = np.full(len(changes.tags), -1, np.int64)
        if any((column.kinds == UNCHANGED).any() for column in cells):
            previous = effect.previous_images()
            cells = [from_earlier_images(column, changes, previous) for column in cells]
        missing = [column.kinds == UNCHANGED for column in cells]
        rows, raw = self._rows(np.arange(len(changes.new_messages)), cells)
        return _Images(cells, missing, np.logical_or.reduce(missing), previous, rows, raw)

    def _events(self, places: _SegmentPlaces, effect: NetEffect, images: _Images) -> ChangeEvents:
        """All changes."""
        order = EventOrder.of(self._changes.tags, effect.key_changed)
        events = self._assembled(places, order, images.rows, images.raw, images.lacking)
        if not images.lacking.any():
            return events
        if self._shape.old_rows:
            raise ValueError("a row lacks one of its values, although the stream has the whole old row")
        lacking = np.flatnonzero(images.lacking)
        messages = self._changes.new_messages
        incomplete = self._incomplete(effect, messages, images.cells, images.missing, lacking, images.previous)
        return replace(events, incomplete=incomplete)

    def _assembled(
        self, places: _SegmentPlaces, order: EventOrder, new: pa.Table, raw: RawTexts, lacking: Bools
    ) -> ChangeEvents:
        """The events, of which those whose new tuple lacks a value are only described. `new`, `raw`: all new tuples."""
        changes, shape, transactions = self._changes, self._shape, places.transactions
        indexes = transactions.of_messages(places.messages)[order.messages]
        heads = transactions.heads(indexes, order.ops, places.messages[order.messages], order.seconds)
        counts = np.bincount(indexes, minlength=len(transactions.begins))
        new_places = order.new_places(changes)
        incomplete_heads = heads.slice(0, 0)
        if lacking.any():
            waits = (new_places >= 0) & lacking[new_places]
            incomplete_heads, heads = heads.filter(pa.array(waits)), heads.filter(pa.array(~waits))
            whole = np.flatnonzero(~waits)
            order = EventOrder(order.messages[whole], order.ops[whole], order.seconds[whole])
            new_places = new_places[whole]
        rows = taken_or_null(new, new_places)
        if (new_places < 0).any() and shape.key:
            old = len(changes.new_messages) + changes.old_places[order.messages]
            keys = self._keys(np.where(new_places < 0, old, new_places))
            for column, name in zip(shape.key, keys.column_names, strict=True):
                rows = rows.set_column(column, rows.field(column), keys.column(name))
        return ChangeEvents(
            heads=heads,
            rows=rows,
            raw=raw_or_null(raw, new_places) if raw else {},
            counts=counts,
            old=self._old_rows(order.old_places(changes)) if shape.old_rows else None,
            incomplete_heads=incomplete_heads,
        )

    def _old_rows(self, places: Ints) -> OldRows:
        """The old tuples at these places; all NULL where the place is -1."""
        changes = self._changes
        tuples = len(changes.new_messages) + np.arange(len(changes.old_messages))
        rows, raw = self._rows(tuples, changes.old)
        return OldRows(taken_or_null(rows, places), raw_or_null(raw, places), places >= 0)

    def whole_row_changes(self) -> TableChanges:
        """All rows that were put, and all that went: how many equal rows there are does not depend on the order."""
        changes, shape = self._changes, self._shape
        new = [from_old_tuples(changes, column) for column in range(len(shape.names))]
        if len(changes.old_messages) != int((changes.tags != INSERT).sum()):
            raise ValueError("a row was updated or deleted, and the stream does not have the whole old row")
        if any((cells.kinds == UNCHANGED).any() for cells in (*new, *changes.old)):
            raise ValueError("a row lacks one of its values")
        rows, raw = self._rows(np.arange(len(changes.new_messages)), new)
        deleted, deleted_raw = self._rows(np.arange(len(changes.old_messages)), changes.old)
        events = None
        if self._places is not None:
            order = EventOrder.of(changes.tags, np.zeros(len(changes.tags), bool))
            events = self._assembled(self._places, order, rows, raw, np.zeros(rows.num_rows, bool))
        return TableChanges(
            relation_id=shape.relation_id,
            changes=len(changes.tags),
            rows=rows,
            raw=raw,
            deleted_keys=_schema(shape).empty_table().select([]),
            incomplete=None,
            error=None,
            deleted_rows=deleted,
            deleted_raw=deleted_raw,
            events=events,
        )

    def _surviving_cells(self, effect: NetEffect, surviving: Ints) -> tuple[list[Cells], Ints | None]:
        """Cells of the surviving rows by column, and the previous images if any cell needed them."""
        changes = self._changes
        places = changes.new_places[surviving]
        previous: Ints | None = None
        result = []
        for column, cells in enumerate(changes.new):
            taken = cells.take(places)
            if (taken.kinds == UNCHANGED).any():
                if previous is None:
                    previous = effect.previous_images()
                filled = from_old_tuples(changes, column)
                taken = from_earlier_images(filled, changes, previous).take(places)
            result.append(taken)
        return result, previous

    def _incomplete(
        self,
        effect: NetEffect,
        surviving: Ints,
        cells: list[Cells],
        missing: list[Bools],
        lacking: Ints,
        previous: Ints,
    ) -> IncompleteRows:
        changes, shape = self._changes, self._shape
        messages = surviving[lacking]
        roots = chain_ends(previous)[messages]
        if (changes.tags[roots] == INSERT).any():
            raise ValueError("an INSERT lacks one of its values")
        tuples = np.where(
            effect.key_changed[roots], len(changes.new_messages) + changes.old_places[roots], changes.new_places[roots]
        )
        flags = [pa.array(column[lacking]) for column in missing]
        rows, raw = self._rows(changes.new_places[messages], [column.take(lacking) for column in cells])
        return IncompleteRows(
            rows=rows,
            raw=raw,
            missing=pa.table(flags, names=list(shape.names)),
            lookup_keys=self._keys(tuples),
        )

    def _deleted_keys(self, effect: NetEffect, places: Ints) -> pa.Table:
        changes, messages = self._changes, effect.messages[places]
        old = len(changes.new_messages) + changes.old_places[messages]
        return self._keys(np.where(effect.puts[places], changes.new_places[messages], old))

    def _keys(self, tuples: Ints) -> pa.Table:
        """The keys of the tuples with these indexes, counted through the new and then the old tuples."""
        columns = [
            self._key_numbers(tuples) if is_integer_key(self._key_types) else self._required(cells.take(tuples), column)
            for cells, column in zip(self._key_cells, self._shape.key, strict=True)
        ]
        return pa.table(columns, schema=pa.schema([_schema(self._shape).field(column) for column in self._shape.key]))

    def _rows(self, tuples: Ints, cells: list[Cells]) -> tuple[pa.Table, RawTexts]:
        integer_key = self._shape.key[0] if is_integer_key(self._key_types) else None
        columns: list[pa.Array | pa.ChunkedArray] = []
        raw: dict[str, pa.ChunkedArray] = {}
        for column, column_cells in enumerate(cells):
            if column == integer_key:
                columns.append(self._key_numbers(tuples))
            elif self._shape.not_null[column]:
                columns.append(self._required(column_cells, column))
            else:
                parsed = self._parsed(column_cells, column)
                columns.append(parsed.values)
                if parsed.raw is not None:
                    raw[self._shape.names[column]] = parsed.raw
        return pa.table(columns, schema=_schema(self._shape)), raw

    def _key_numbers(self, tuples: Ints) -> pa.Array:
        """Values of a single integer key, which were already parsed as key numbers."""
        return pa.array(self._numbers[tuples]).cast(self._key_types[0].arrow)

    def _parsed(self, cells: Cells, column: int) -> ParsedColumn:
        try:
            return parse_column(self._buffer.text(cells), self._shape.types[column])
        except ValueError as error:
            raise ValueError(f"column {self._shape.names[column]}: {error}") from error

    def _required(self, cells: Cells, column: int) -> pa.ChunkedArray:
        """The values of a column that must not be NULL in the lake, so raw text is not possible."""
        name, type_ = self._shape.names[column], self._shape.types[column]
        parsed = self._parsed(cells, column)
        if not np.isin(cells.kinds, (TEXT, UNCHANGED)).all():
            raise ValueError(
                f"key column {name} holds NULL, and rows are found by their keys. Give the rows with NULL another value"
                " or delete them, then unregister the table and register it"
            )
        if parsed.raw is not None:
            value = parsed.raw.drop_null()[0].as_py()
            raise ValueError(
                f"key column {name} holds {value!r}, which {type_} cannot hold. Unregister the table, then register it"
                f" with --column {name}=string."
            )
        return parsed.values

    def _checked(self, cells: Cells, column: int) -> Cells:
        """`cells` of a key column. Raises ValueError unless all are TEXT."""
        if (cells.kinds != TEXT).any():
            raise ValueError(f"column {self._shape.names[column]}: a change lacks this part of its key")
        return cells
