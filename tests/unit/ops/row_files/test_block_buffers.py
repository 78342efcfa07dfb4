"""Blocks of text reuse the memory of blocks that were parsed, and never memory that somebody can still read."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pytest

from mirror_pump.lake.storage import StorageOptions
from mirror_pump.ops.row_files.file_format import FileFormat
from mirror_pump.ops.row_files.input_files import InputFile, open_stored
from mirror_pump.ops.row_files.text_blocks import BlockBuffers, text_blocks


def test_a_buffer_that_somebody_can_read_is_not_reused() -> None:
    buffers = BlockBuffers()
    first = buffers.take(8)
    first[:] = b"12345678"
    seen = pa.py_buffer(first)
    buffers.give_back(first)
    second = buffers.take(8)
    second[:] = b"abcdefgh"
    assert seen.to_pybytes() == b"12345678"
    buffers.give_back(second)
    assert buffers.take(100) is second
    assert len(second) == 100


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("quoted", [False, True])
@pytest.mark.parametrize("size", [5, 64, 1000])
def test_released_blocks_have_the_bytes_and_lines_of_the_file(
    tmp_path: Path, size: int, *, compressed: bool, quoted: bool
) -> None:
    lines = [b"%d,%s\n" % (row, b'"a\nb"' if quoted and row % 7 == 0 else b"x" * (row % 90)) for row in range(200)]
    content = b"\xef\xbb\xbf" + b"".join(lines) + b"last,"
    path = tmp_path / "a.csv"
    path.write_bytes(gzip.compress(content) if compressed else content)
    found, buffers, line = b"", set[int](), 1
    file = InputFile(0, str(path), FileFormat.CSV if quoted else FileFormat.JSONL, 1)
    for block in text_blocks(file, open_stored(file, StorageOptions()), block_bytes=size):
        assert block.first_line == line
        assert block.data.endswith((b"\n", b"last,"))
        line += block.newlines
        found += block.data
        buffers.add(id(block.data))
        block.release()
    assert found == content.removeprefix(b"\xef\xbb\xbf")
    assert line == content.count(b"\n") + 1
    assert len(buffers) == 1
