"""Finds the cells of pgoutput's row changes in a buffer of raw messages, for all rows at once.

Layout: PostgreSQL documentation, "Logical Replication Message Formats", TupleData: a 16-bit number of columns, then for
each column one byte (n: NULL, u: unchanged TOAST value, t: text) and, for text, a 32-bit length and that many bytes.
The start of a column depends on the lengths before it, so a Python loop iterates over columns and numpy over rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

NULL, UNCHANGED, TEXT = ord("n"), ord("u"), ord("t")
INSERT, UPDATE, DELETE = ord("I"), ord("U"), ord("D")
_NEW_TUPLE = ord("N")
_OLD_TUPLES = (ord("K"), ord("O"))

_PADDING = 16
"""Zero bytes after the data, so that a word can be read at any position of the data."""

_VIEW_BLOCK_BITS = 30
"""Arrow views have 32-bit offsets, so each buffer of a view starts this power of two after the previous one. A message
is shorter than 1 GiB (Postgres's MaxAllocSize), so a value that starts in a buffer's first 1 GiB ends before 2 GiB."""

MAX_STRING_BYTES = 1 << 29
"""Text bytes per Arrow chunk. With another value of up to 1 GiB, offsets still fit into a string array's 32 bits."""

_INLINE_BYTES = 12
"""Arrow stores values up to this length inside the 16-byte view (Arrow columnar format, variable-size binary view)."""

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
_Words = npt.NDArray[np.uint64]

_HIGH_HALF = 0xFFFF_FFFF_0000_0000


def _inline_masks() -> _Words:
    """Bits of a view's two words that hold bytes of the value, by length (13 means longer). The low half of the first
    word is the length."""
    masks = np.zeros((_INLINE_BYTES + 2, 2), np.uint64)
    for length in range(_INLINE_BYTES + 1):
        bits = b"\0\0\0\0" + b"\xff" * length + b"\0" * (_INLINE_BYTES - length)
        masks[length] = np.frombuffer(bits, "<u8")
    masks[_INLINE_BYTES + 1, 0] = _HIGH_HALF
    return masks


_INLINE_MASKS = _inline_masks()


@dataclass(frozen=True)
class Cells:
    """Cells of one column, for a sequence of tuples."""

    starts: Ints
    """Start of the text in the buffer."""
    lengths: Ints
    """Length of the text in bytes; 0 unless the kind is TEXT."""
    kinds: Bytes
    """NULL, UNCHANGED or TEXT."""

    def take(self, places: Ints) -> Cells:
        return Cells(self.starts[places], self.lengths[places], self.kinds[places])

    def followed_by(self, other: Cells) -> Cells:
        return Cells(
            np.concatenate([self.starts, other.starts]),
            np.concatenate([self.lengths, other.lengths]),
            np.concatenate([self.kinds, other.kinds]),
        )

    def or_where(self, chosen: Bools, other: Cells) -> Cells:
        """The cells of `other` where `chosen`, else those of this one."""
        return Cells(
            np.where(chosen, other.starts, self.starts),
            np.where(chosen, other.lengths, self.lengths),
            np.where(chosen, other.kinds, self.kinds),
        )


class RawBuffer:
    """The bytes of a segment, readable as words at any position, and as Arrow text without copying each cell."""

    def __init__(self, data: bytes, block_bits: int = _VIEW_BLOCK_BITS, string_bytes: int = MAX_STRING_BYTES) -> None:
        padded = b"".join((data, bytes(_PADDING)))
        self._octets: Bytes = np.frombuffer(padded, np.uint8)
        self._words: _Words = np.ndarray((len(data) + _PADDING - 7,), "<u8", padded, strides=(1,))
        # Pairs of words: the length of a text, in four bytes, and its beginning, as a view has them.
        self._views = np.ndarray((len(data) + _PADDING - 15,), "V16", padded, strides=(1,))
        self._block_bits = block_bits
        self._string_bytes = string_bytes
        whole = pa.py_buffer(padded)
        self._blocks = [whole.slice(start) for start in range(0, len(data) + 1, 1 << block_bits)]

    @property
    def size(self) -> int:
        """Number of bytes."""
        return len(self._octets) - _PADDING

    def octets(self, at: Ints) -> Bytes:
        return self._octets[at]

    def heads(self, at: Ints) -> tuple[Bytes, Ints, Bytes]:
        """The byte at each position, the big-endian 32-bit number after it, and the byte after that."""
        words = self._words[at]
        return words.astype(np.uint8), _number(words), (words >> 40).astype(np.uint8)

    def walk(self, at: Ints, columns: int) -> tuple[list[Cells], Ints]:
        """The cells, by column, of the tuples at positions `at`, and the end of each tuple."""
        counts = (self._octets[at].astype(np.int64) << 8) | self._octets[at + 1]
        if (counts != columns).any():
            sent = int(counts[counts != columns][0])
            raise ValueError(f"a row has {sent} columns, but the table is known to have {columns}")
        at = at + 2
        cells = []
        for _ in range(columns):
            words = self._words[at]
            kinds = words.astype(np.uint8)
            text = kinds == TEXT
            lengths = _number(words)
            if text.all():
                following = at + 5 + lengths
            else:
                is_known = text | (kinds == NULL) | (kinds == UNCHANGED)
                if not is_known.all():
                    raise ValueError(f"a column has the unknown format {bytes(kinds[~is_known][:1])!r}")
                lengths[~text] = 0
                following = at + np.where(text, 5 + lengths, 1)
            cells.append(Cells(at + 5, lengths, kinds))
            at = following
        return cells, at

    def text(self, cells: Cells) -> pa.ChunkedArray:
        """The cells as Arrow strings; NULL if a cell has no text. Raises ValueError for bytes that are not UTF-8."""
        total = int(cells.lengths.sum())
        if total <= self._string_bytes:
            return pa.chunked_array([self._text(cells)])
        blocks = np.cumsum(cells.lengths) // self._string_bytes
        cuts = [0, *(np.flatnonzero(np.diff(blocks)) + 1).tolist(), len(blocks)]
        parts = [cells.take(np.arange(low, high)) for low, high in itertools.pairwise(cuts)]
        return pa.chunked_array([self._text(part) for part in parts])

    def _text(self, cells: Cells) -> pa.Array:
        count = len(cells.starts)
        views: _Words = self._views[cells.starts - 4].view(np.uint64).reshape(count, 2)
        # `take` copies whole rows, ten times faster than an index does.
        views &= _INLINE_MASKS.take(np.minimum(cells.lengths, _INLINE_BYTES + 1), 0)
        views[:, 0] |= cells.lengths.view(np.uint64)
        long = cells.lengths > _INLINE_BYTES
        if long.any():
            offsets = cells.starts & ((1 << self._block_bits) - 1)
            far = (offsets << 32) | (cells.starts >> self._block_bits)
            np.copyto(views[:, 1], far.view(np.uint64), where=long)
        text = cells.kinds == TEXT
        validity = None if text.all() else pa.py_buffer(np.packbits(text, bitorder="little"))
        array = pa.Array.from_buffers(pa.binary_view(), count, [validity, pa.py_buffer(views), *self._blocks])
        # Cast from binary instead of string_view, to check the encoding: a SQL_ASCII database may hold any bytes.
        return array.cast(pa.string())


@dataclass(frozen=True)
class Changes:
    """Row changes of one relation, in stream order."""

    tags: Bytes
    """INSERT, UPDATE or DELETE, one per message."""
    new_messages: Ints
    """Messages with a new tuple: all except deletes."""
    new: list[Cells]
    """New tuples' cells by column, in the order of `new_messages`."""
    old_messages: Ints
    """Messages with an old tuple: deletes, and updates that sent the old key or, under FULL, the old row."""
    old: list[Cells]
    """Old tuples' cells by column, in the order of `old_messages`."""
    new_places: Ints = field(init=False)
    """By message, its index in `new`; undefined for deletes."""
    old_places: Ints = field(init=False)
    """By message, its index in `old`; -1 if it has none."""

    def __post_init__(self) -> None:
        count = len(self.tags)
        new_places, old_places = np.zeros(count, np.int64), np.full(count, -1, np.int64)
        new_places[self.new_messages] = np.arange(len(self.new_messages))
        old_places[self.old_messages] = np.arange(len(self.old_messages))
        object.__setattr__(self, "new_places", new_places)
        object.__setattr__(self, "old_places", old_places)

    def without(self, columns: Collection[int]) -> Changes:
        """The changes without the columns at these indexes."""
        if not columns:
            return self
        new, old = (
            [column for place, column in enumerate(cells) if place not in columns] for cells in (self.new, self.old)
        )
        return Changes(self.tags, self.new_messages, new, self.old_messages, old)


def read_changes(buffer: RawBuffer, at: Ints, ends: Ints, tags: Bytes, marks: Bytes, columns: int) -> Changes:
    """Finds all tuples of the messages that start at `at` and end before `ends`. Raises ValueError if malformed."""
    has_new = tags != DELETE
    has_old = marks != _NEW_TUPLE
    sound = np.where(tags == INSERT, ~has_old, has_old | has_new)
    if not sound.all() or not np.isin(marks[has_old], _OLD_TUPLES).all():
        raise ValueError("a row change has tuples that its kind does not allow")
    old_messages, new_messages = np.flatnonzero(has_old), np.flatnonzero(has_new)
    new_at = at + 5
    old, old_ends = buffer.walk(new_at[old_messages] + 1, columns)
    new_at[old_messages] = old_ends
    if (buffer.octets(new_at[new_messages]) != _NEW_TUPLE).any():
        raise ValueError("a row change lacks its new tuple")
    new, new_ends = buffer.walk(new_at[new_messages] + 1, columns)
    reached = new_at
    reached[new_messages] = new_ends
    if (reached != ends).any():
        raise ValueError("a row change is longer or shorter than its message")
    return Changes(tags, new_messages, new, old_messages, old)


def _number(words: _Words) -> Ints:
    """The big-endian 32-bit number in bytes 1 to 4 of each word."""
    return (words >> 8).astype(np.uint32).byteswap().astype(np.int64)
