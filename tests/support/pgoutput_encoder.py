"""Writes pgoutput messages, from the tests' own reading of the protocol: it shares nothing with the decoder."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import Enum

import numpy as np
import numpy.typing as npt


class Unchanged(Enum):
    """A TOASTed value that did not change and was not sent."""

    UNCHANGED = "u"


UNCHANGED = Unchanged.UNCHANGED
Cell = str | bytes | Unchanged | None
HEADER = b"w" + b"\x01\x74\xff\0\0\0\0\x6e" * 3
"""As long as XLogData's header, and full of bytes that have a meaning in tuples."""


def _cell(value: Cell) -> bytes:
    if value is None:
        return b"n"
    if isinstance(value, Unchanged):
        return b"u"
    text = value.encode() if isinstance(value, str) else value
    return b"t" + struct.pack(">I", len(text)) + text


def _tuple(cells: Sequence[Cell]) -> bytes:
    return struct.pack(">H", len(cells)) + b"".join(map(_cell, cells))


def insert(relation: int, new: Sequence[Cell]) -> bytes:
    return b"I" + struct.pack(">I", relation) + b"N" + _tuple(new)


def update(relation: int, new: Sequence[Cell], old: Sequence[Cell] | None = None, *, full: bool = False) -> bytes:
    before = b"" if old is None else (b"O" if full else b"K") + _tuple(old)
    return b"U" + struct.pack(">I", relation) + before + b"N" + _tuple(new)


def delete(relation: int, old: Sequence[Cell], *, full: bool = False) -> bytes:
    return b"D" + struct.pack(">I", relation) + (b"O" if full else b"K") + _tuple(old)


BEGIN = b"B" + struct.pack(">QqI", 0x5555555555, 1, 2)
COMMIT = b"C" + struct.pack(">BQQq", 0, 0x5555555555, 0x5555555556, 1)


def segment(messages: Iterable[bytes], header: bytes = HEADER) -> tuple[bytes, npt.NDArray[np.int32]]:
    framed = [header + message for message in messages]
    return b"".join(framed), np.array([len(message) for message in framed], np.int32)
