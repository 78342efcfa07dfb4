"""Messages of the stream in one piece of memory, so that no Python object is made for each of a million changes.

A message is laid out as the server sends it (PostgreSQL documentation, sections 54.4 and 54.7): 'd' and a 32-bit length
(CopyData), 'w' and three 8-byte numbers (XLogData), then one pgoutput message, whose first byte is its tag.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt

FRAME_BYTES = 5
"""'d' and the length of the rest."""
HEADER_BYTES = FRAME_BYTES + 25
"""Bytes of a message before the pgoutput message."""
_WAL_END_AT = FRAME_BYTES + 9
"""Where a message has the end of the server's WAL, after the position of its own data."""
_WAL_END = struct.Struct(">Q")

_IS_CHANGE = np.zeros(256, np.bool_)
_IS_CHANGE[list(b"IUD")] = True
_NO_ENDS = np.zeros(0, np.int64)


@dataclass(frozen=True)
class MessageBlock:
    """Consecutive messages of the stream."""

    data: bytes
    """The messages, one after the other."""
    ends: npt.NDArray[np.int64]
    """Where each message ends in `data`."""

    @classmethod
    def empty(cls) -> Self:
        return cls(b"", _NO_ENDS)

    @classmethod
    def of(cls, contents: Sequence[bytes]) -> Self:
        """A block of the contents of XLogData messages, as libpq returns them: without the frame, which stays empty."""
        if not contents:
            return cls.empty()
        lengths = np.fromiter(map(len, contents), np.int64, len(contents)) + FRAME_BYTES
        return cls(bytes(FRAME_BYTES).join((b"", *contents)), np.cumsum(lengths))

    def __len__(self) -> int:
        return len(self.ends)

    @cached_property
    def lengths(self) -> npt.NDArray[np.int32]:
        """Bytes of each message, with its header."""
        lengths = self.ends.astype(np.int32)
        lengths[1:] -= lengths[:-1]
        return lengths

    @cached_property
    def controls(self) -> list[int]:
        """The indexes of the messages that are no row changes."""
        tags = np.frombuffer(self.data, np.uint8)[self.ends - self.lengths + HEADER_BYTES]
        controls: list[int] = np.flatnonzero(~_IS_CHANGE[tags]).tolist()
        return controls

    def controls_from(self, begin: int) -> list[int]:
        return self.controls[bisect_left(self.controls, begin) :] if begin else self.controls

    @cached_property
    def bounds(self) -> list[int]:
        """Where each message begins in `data`, and where the last one ends."""
        return [0, *self.ends.tolist()]

    def message_at(self, byte: int) -> int:
        """The index of the message to which this byte of `data` belongs; the number of messages if it is beyond."""
        return int(self.ends.searchsorted(byte, "right"))

    def content(self, place: int) -> bytes:
        """The pgoutput message at this index."""
        return self.data[self.bounds[place] + HEADER_BYTES : self.bounds[place + 1]]

    def wal_end(self, place: int) -> int:
        """The end of the server's WAL when it sent the message at this index."""
        (end,) = _WAL_END.unpack_from(self.data, self.bounds[place] + _WAL_END_AT)
        return int(end)

    def contents(self) -> Iterator[bytes]:
        """The pgoutput messages, one at a time."""
        return map(self.content, range(len(self)))
