"""Cuts text files into blocks of whole lines, which threads then parse independently of each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import pyarrow as pa

from mirror_pump.errors import TableError
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.ops.ingest.ingest_request import RowPlace, RowRefused
from mirror_pump.ops.row_files.csv_records import end_of_records
from mirror_pump.ops.row_files.input_files import InputFile, open_text

BLOCK_BYTES = 8 << 20
"""Bytes of decompressed text in a block. Parsed and converted it takes some five times as much, for each worker."""
MOST_ROW_BYTES = 1 << 30
"""The largest row. PostgreSQL's own limit is 1 GB."""

_NEWLINE = ord("\n")
_COUNTED_BYTES = 256 << 10
"""Line breaks are counted in pieces of this size, which stay in a core's cache."""
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
        """Keeps the buffer, unless somebody can still read it: that is what an array without a copy of it would do."""
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
        """Says that nobody reads `data` any more."""
        if self.buffers is not None and isinstance(self.data, bytearray):
            self.buffers.give_back(self.data)


def text_blocks(
    file: InputFile, storage: StorageOptions, *, quoted: bool, block_bytes: int = BLOCK_BYTES
) -> Iterator[TextBlock]:
    """The blocks of a file. `quoted`: line breaks within quotes belong to their row.

    Memory: some blocks, fewer if they are released; a row that is larger than a block makes its block larger. Raises
    TableError if the file cannot be read or decompressed, or ends within quotes.
    """
    line = 1
    rest = b""
    began = 0
    buffers = BlockBuffers()
    with open_text(file, storage) as (stream, stored):
        while True:
            data = buffers.take(len(rest) + block_bytes)
            data[: len(rest)] = rest
            count = _read_into(stream, data, len(rest), file)
            del data[len(rest) + count :]
            if line == 1 and not rest and data.startswith(_BOM):
                del data[: len(_BOM)]
            if not count and quoted and data.count(b'"') % 2:
                raise RowRefused(
                    RowPlace(file.number, line, file.name), "a quote that is opened in or after this line is not closed"
                )
            # The end of the file ends a row.
            rest = _cut_rest(data, quoted=quoted) if count else b""
            if data:
                now = stored.tell()
                block = TextBlock(file, line, data, newlines_in(data), now - began, buffers)
                yield block
                began = now
                line += block.newlines
            else:
                buffers.give_back(data)
            if not count:
                return
            if len(rest) > MOST_ROW_BYTES:
                raise RowRefused(RowPlace(file.number, line, file.name), "the row has more than 1 GiB")


def newlines_in(data: bytes | bytearray) -> int:
    """The number of line breaks: as bytes.count() in a fraction of the time, and without memory of the same size."""
    values = np.frombuffer(data, np.uint8)
    pieces = (values[begin : begin + _COUNTED_BYTES] for begin in range(0, len(values), _COUNTED_BYTES))
    return sum(int(np.count_nonzero(piece == _NEWLINE)) for piece in pieces)


def _read_into(stream: Any, data: bytearray, begin: int, file: InputFile) -> int:
    """Reads into the buffer from `begin` on. Returns how many bytes; 0 at the end of the file."""
    try:
        with memoryview(data) as whole, whole[begin:] as view:
            return int(stream.readinto(view))
    except (OSError, pa.ArrowException) as error:
        raise TableError(
            f"{file.name} cannot be decompressed: {error}", "nothing was ingested; the file is damaged or cut off"
        ) from error


def _cut_rest(data: bytearray, *, quoted: bool) -> bytes:
    """Cuts off what follows the last whole row of the data, which begin with a row. Returns it."""
    end = end_of_records(data) if quoted and b'"' in data else data.rfind(b"\n") + 1
    rest = bytes(memoryview(data)[end:])
    del data[end:]
    return rest
