"""Cuts text files into blocks of whole lines, which threads then parse independently of each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class TextBlock:
    """Whole lines of a text file."""

    file: InputFile
    first_line: int
    """Number of its first line in the file, from 1."""
    data: bytes
    newlines: int
    """Number of line breaks in `data`."""
    stored_bytes: int
    """Bytes of the file, as stored, that were read for this block."""


def text_blocks(
    file: InputFile, storage: StorageOptions, *, quoted: bool, block_bytes: int = BLOCK_BYTES
) -> Iterator[TextBlock]:
    """The blocks of a file. `quoted`: line breaks within quotes belong to their row.

    Memory: some blocks; a row that is larger than a block makes its block larger. Raises TableError if the file cannot
    be read or decompressed, or ends within quotes.
    """
    line = 1
    rest = b""
    began = 0
    with open_text(file, storage) as (stream, stored):
        while True:
            piece = _read(stream, block_bytes, file)
            if line == 1 and not rest:
                piece = piece.removeprefix(_BOM)
            if not piece and quoted and rest.count(b'"') % 2:
                raise RowRefused(
                    RowPlace(file.number, line, file.name), "a quote that is opened in or after this line is not closed"
                )
            data, rest = _whole_rows(rest, piece, quoted=quoted)
            if data:
                now = stored.tell()
                block = TextBlock(file, line, data, newlines_in(data), now - began)
                yield block
                began = now
                line += block.newlines
            if not piece:
                return
            if len(rest) > MOST_ROW_BYTES:
                raise RowRefused(RowPlace(file.number, line, file.name), "the row has more than 1 GiB")


def newlines_in(data: bytes) -> int:
    """The number of line breaks: as bytes.count() in a third of the time."""
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) == _NEWLINE))


def _read(stream: Any, size: int, file: InputFile) -> bytes:
    try:
        return bytes(stream.read(size))
    except (OSError, pa.ArrowException) as error:
        raise TableError(
            f"{file.name} cannot be decompressed: {error}", "nothing was ingested; the file is damaged or cut off"
        ) from error


def _whole_rows(rest: bytes, piece: bytes, *, quoted: bool) -> tuple[bytes, bytes]:
    """Whole rows of `rest`, which begins with a row, and of what follows it, and what is left of both. The end of the
    file, an empty piece, ends a row."""
    if not piece:
        return rest, b""
    if not quoted or (b'"' not in piece and b'"' not in rest):
        end = piece.rfind(b"\n") + 1
        # A single copy.
        return (b"".join((rest, memoryview(piece)[:end])), piece[end:]) if end else (b"", rest + piece)
    data = rest + piece
    end = end_of_records(data)
    return data[:end], data[end:]
