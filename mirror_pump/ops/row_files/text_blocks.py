"""Cuts text files into blocks of whole rows, which are then parsed independently of each other.

A line break within quotes of CSV does not end a row. Quotes come in pairs, so a line break is outside of them if an
even number of quotes precedes it in the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from mirror_pump.ops.row_files.file_format import FileFormat
from mirror_pump.ops.row_files.input_files import InputFile, as_text
from mirror_pump.ops.row_files.row_batch import InputError, RowPlace, RowRefused

BLOCK_BYTES = 8 << 20
"""Bytes of decompressed text in a block. Parsed and converted it takes some five times as much, for each worker."""
MOST_ROW_BYTES = 1 << 30
"""The largest row. PostgreSQL's own limit is 1 GB."""

_NEWLINE = ord("\n")
_COUNTED_BYTES = 256 << 10
"""Line breaks are counted in pieces of this size, which stay in a core's cache."""
QUOTES = 'close each quote; a field that has quotes is put in quotes, and each of them written twice: "5"" disk"'
_BOM = b"\xef\xbb\xbf"


class BlockBuffers:
    """Memory of blocks that were parsed, for the next ones: fresh memory costs as much time as reading into it. Threads
    share it."""

    def __init__(self) -> None:
        self._free: SimpleQueue[bytearray] = SimpleQueue()

    def take(self, size: int) -> bytearray:
        """A buffer of this size, with any content."""
        try:
            data = self._free.get_nowait()
        except Empty:
            return bytearray(size)
        if len(data) < size:
            data += bytes(size - len(data))
        del data[size:]
        return data

    def give_back(self, data: bytearray) -> None:
        """Keeps the buffer, unless a view can still read it: that is what an array without a copy of it would do."""
        with suppress(BufferError):
            # Refused as long as there is a view of it, Arrow's included.
            data.append(0)
            self._free.put(data)


@dataclass(frozen=True)
class TextBlock:
    """Whole lines of a text file."""

    file: InputFile
    first_line: int
    """Number of its first line in the file, from 1."""
    data: bytes | bytearray
    newlines: int
    """Number of line breaks in `data`."""
    stored_bytes: int
    """Bytes of the file, as stored, that were read for this block."""
    buffers: BlockBuffers | None = field(default=None, repr=False, compare=False)
    """Where `data` came from."""

    def release(self) -> None:
        """Says that `data` is not read any more."""
        if self.buffers is not None and isinstance(self.data, bytearray):
            self.buffers.give_back(self.data)


def text_blocks(
    file: InputFile,
    opened: AbstractContextManager[BinaryIO],
    *,
    block_bytes: int = BLOCK_BYTES,
    most_row_bytes: int = MOST_ROW_BYTES,
) -> Iterator[TextBlock]:
    """The blocks of a CSV file, or of a file of JSON lines. `opened`: its bytes as they are stored; it is entered with
    the first block.

    Memory: some blocks, fewer if they are released; a row that is larger than a block makes its block larger. Raises
    InputError if the file cannot be decompressed, ends within quotes, or has a larger row than `most_row_bytes`.
    """
    quoted = file.format is FileFormat.CSV
    line = 1
    rest = b""
    began = 0
    buffers = BlockBuffers()
    with opened as stored, as_text(file, stored) as (stream, counted):
        while True:
            data = buffers.take(len(rest) + block_bytes)
            data[: len(rest)] = rest
            count = _read_into(stream, data, len(rest), file)
            del data[len(rest) + count :]
            if line == 1 and not rest and data.startswith(_BOM):
                del data[: len(_BOM)]
            if not count and quoted and data.count(b'"') % 2:
                raise RowRefused(
                    RowPlace(file.number, line, file.name),
                    "a quote that is opened in or after this line is not closed",
                    QUOTES,
                )
            # The end of the file ends a row.
            rest = _cut_rest(data, quoted=quoted) if count else b""
            if data:
                now = counted.tell()
                block = TextBlock(file, line, data, newlines_in(data), now - began, buffers)
                yield block
                began = now
                line += block.newlines
            else:
                buffers.give_back(data)
            if not count:
                return
            if len(rest) > most_row_bytes:
                most = f"{most_row_bytes >> 30} GiB" if most_row_bytes >= 1 << 30 else f"{most_row_bytes >> 20} MiB"
                raise RowRefused(
                    RowPlace(file.number, line, file.name),
                    f"the row has more than {most}",
                    QUOTES if quoted else "check that the file has JSON lines",
                )


def newlines_in(data: bytes | bytearray) -> int:
    """The number of line breaks: as bytes.count() in a fraction of the time, and without memory of the same size."""
    values = np.frombuffer(data, np.uint8)
    pieces = (values[begin : begin + _COUNTED_BYTES] for begin in range(0, len(values), _COUNTED_BYTES))
    return sum(int(np.count_nonzero(piece == _NEWLINE)) for piece in pieces)


def _read_into(stream: Any, data: bytearray, begin: int, file: InputFile) -> int:
    """Fills the buffer from `begin` on. Returns how many bytes, fewer than there is room for at the end of the file."""
    end = begin
    try:
        with memoryview(data) as whole:
            while end < len(data):
                with whole[end:] as view:
                    count = int(stream.readinto(view))
                if not count:
                    break
                end += count
    except (OSError, pa.ArrowException) as error:
        raise InputError(
            f"{file.name} cannot be decompressed: {error}", "nothing was changed; the file is damaged or cut off"
        ) from error
    return end - begin


def _cut_rest(data: bytearray, *, quoted: bool) -> bytes:
    """Cuts off what follows the last whole row of the data, which begin with a row. Returns it."""
    end = _end_of_records(data) if quoted and b'"' in data else data.rfind(b"\n") + 1
    rest = bytes(memoryview(data)[end:])
    del data[end:]
    return rest


def _end_of_records(data: bytearray) -> int:
    """The index behind the last line break that is outside of quotes; 0 if there is none. The data begin outside of
    quotes."""
    end, quotes = len(data), data.count(b'"')
    while (newline := data.rfind(b"\n", 0, end)) >= 0:
        quotes -= data.count(b'"', newline, end)
        if quotes % 2 == 0:
            return newline + 1
        # Within a quoted field, which begins at the last quote before it.
        end = data.rfind(b'"', 0, newline)
        quotes -= 1
    return 0
