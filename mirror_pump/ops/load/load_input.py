"""Reads the rows of a file or a stream: CSV, JSON lines or Parquet, compressed or not, in bounded Arrow batches.

Values of CSV and JSON lines stay texts: PostgreSQL reads them, as it would in a COPY. Those of Parquet keep their
types. Memory holds one batch, whatever the input's size; the largest row that fits is one of `BATCH_BYTES`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from mirror_pump.errors import MirrorPumpError, UsageError, one_line_of
from mirror_pump.ops.row_files.csv_records import end_of_records
from mirror_pump.ops.row_files.file_format import MAGIC_BYTES, FileFormat, compression_of
from mirror_pump.ops.row_files.json_texts import parse_json, text_of

BATCH_BYTES = 8 * 1024 * 1024
"""Bytes of text that one batch is made of; no row may be larger."""
_BATCH_ROWS = 8192
_CSV_BLOCK_BYTES = 4 * 1024 * 1024
_LINE_BATCH_BYTES = 1024 * 1024
"""JSON lines take many times their size in memory while they are parsed."""


@dataclass(frozen=True)
class LoadBatch:
    """Consecutive rows of the input."""

    rows: pa.RecordBatch
    """Columns by the input's names: `string` for CSV and JSON lines, where null is NULL; the file's types for
    Parquet."""
    numbers: Sequence[int]
    """The number of each row in the input, from 1; a header does not count."""


@dataclass(frozen=True)
class UnreadableRow:
    """A row that is not CSV or JSON. The rows behind it can be read."""

    number: int
    reason: str


class InputError(MirrorPumpError):
    """The input cannot be read any further."""


def read_batches(
    stream: BinaryIO, form: FileFormat, columns: Sequence[str] | None = None
) -> Iterator[LoadBatch | UnreadableRow]:
    """The rows of `stream`, in order, up to its end.

    `columns`: of CSV the names of the columns in a file without a header, otherwise those that are read. JSON lines
    without it have the columns of the first line. A Parquet `stream` is seekable. Raises InputError, UsageError.
    """
    try:
        if form is FileFormat.PARQUET:
            yield from _parquet(stream, columns)
            return
        text = _Lookahead(_decompressed(stream))
        yield from _csv(text, columns) if form is FileFormat.CSV else _json_lines(text, columns)
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"the input is not {form.value}, or is damaged: {one_line_of(error)}",
            f"check the input and its format; a row has at most {BATCH_BYTES // 2**20} MiB",
        ) from error


class _Lookahead:
    """A binary stream whose beginning may be looked at. Reads are as long as they are asked for, up to the end."""

    closed = False

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._ahead = b""

    def read(self, size: int) -> bytes:
        self.peek(size)
        part, self._ahead = self._ahead[:size], self._ahead[size:]
        return part

    def peek(self, size: int) -> bytes:
        """The first bytes: fewer than `size` only at the end."""
        parts, found = [self._ahead], len(self._ahead)
        while found < size and (part := self._stream.read(size - found)):
            parts.append(part)
            found += len(part)
        self._ahead = b"".join(parts)
        return self._ahead[:size]

    def header(self) -> str:
        """Takes the first record of a CSV file, which ends at a line's end outside of quotes."""
        found = b""
        while b"\n" not in found or found.count(b'"') % 2:
            if not self._ahead and not self.peek(65536):
                break
            line, newline, self._ahead = self._ahead.partition(b"\n")
            found += line + newline
            if len(found) > BATCH_BYTES:
                raise InputError("the first record has no end", "check that the input is CSV")
        try:
            return found.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise InputError("the header is not UTF-8", "convert the input to UTF-8") from None

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        """The stream is its owner's."""


def _decompressed(stream: BinaryIO) -> Any:
    ahead = _Lookahead(stream)
    codec = compression_of(ahead.peek(MAGIC_BYTES))
    return ahead if codec is None else pa.CompressedInputStream(pa.PythonFile(cast("Any", ahead), mode="r"), codec)


def _csv(text: _Lookahead, columns: Sequence[str] | None) -> Iterator[LoadBatch | UnreadableRow]:
    if columns is None:
        columns = next(csv.reader([text.header()], strict=True), [])
        if not columns:
            raise InputError("the input has no header", "its first record names the columns; or give --columns")
    number = 0
    for block in _records(text):
        rows, unreadable = _parsed_csv(block, columns)
        skipped = {number + row.number for row in unreadable}
        count = rows.num_rows + len(unreadable)
        numbers = [place for place in range(number + 1, number + 1 + count) if place not in skipped]
        for batch in rows.to_batches(_BATCH_ROWS):
            yield LoadBatch(batch, numbers[: batch.num_rows])
            del numbers[: batch.num_rows]
        for row in unreadable:
            yield UnreadableRow(number + row.number, row.reason)
        number += count


def _records(text: _Lookahead) -> Iterator[bytes]:
    """Blocks of whole records. Not Arrow's own reader of streams, which reads far ahead."""
    rest = b""
    while part := text.read(_CSV_BLOCK_BYTES):
        block = rest + part
        end = end_of_records(block)
        rest = block[end:]
        if len(rest) > BATCH_BYTES:
            raise InputError(
                f"a row has more than {BATCH_BYTES // 2**20} MiB", "check the quotes of the input: each is closed"
            )
        if end:
            yield block[:end]
    if rest.strip():
        yield rest


def _parsed_csv(block: bytes, columns: Sequence[str]) -> tuple[pa.Table, list[UnreadableRow]]:
    """The rows of a block, and those with another number of fields, numbered within the block."""
    unreadable: list[UnreadableRow] = []

    def note(row: pacsv.InvalidRow) -> str:
        reason = f"it has {row.actual_columns} fields, and not {row.expected_columns}"
        unreadable.append(UnreadableRow(row.number or 0, reason))
        return "skip"

    if not block.strip():
        return pa.table({}), unreadable
    table = pacsv.read_csv(
        pa.BufferReader(block),
        # With threads, or in several blocks, rows would have no numbers.
        pacsv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=list(columns)),
        pacsv.ParseOptions(newlines_in_values=b'"' in block, invalid_row_handler=note),
        # As COPY: an empty field is NULL, and in quotes an empty text.
        pacsv.ConvertOptions(
            column_types=dict.fromkeys(columns, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    return table, unreadable


def _json_lines(text: _Lookahead, columns: Sequence[str] | None) -> Iterator[LoadBatch | UnreadableRow]:
    names = None if columns is None else tuple(columns)
    values: list[tuple[str | None, ...]] = []
    numbers: list[int] = []
    size = 0
    for number, line in _lines(text):
        try:
            row = parse_json(line)
        except ValueError as error:
            yield UnreadableRow(number, f"it is not JSON: {one_line_of(error)}")
            continue
        if not isinstance(row, dict):
            yield UnreadableRow(number, "it is not a JSON object")
            continue
        if names is None:
            names = tuple(row)
        if columns is None and (unknown := [name for name in row if name not in names]):
            yield UnreadableRow(number, f"the first row has no column {unknown[0]}; name all with --columns")
            continue
        values.append(tuple(text_of(row.get(name), in_array=False) for name in names))
        numbers.append(number)
        size += len(line)
        if size >= _LINE_BATCH_BYTES or len(numbers) >= _BATCH_ROWS:
            yield _text_batch(names, values, numbers)
            values, numbers, size = [], [], 0
    if names is not None and numbers:
        yield _text_batch(names, values, numbers)


def _lines(text: _Lookahead) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, with their numbers."""
    number, rest = 0, b""
    while part := text.read(_LINE_BATCH_BYTES):
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            number += 1
            if line.strip():
                yield number, line
        if len(rest) > BATCH_BYTES:
            raise InputError(
                f"line {number + 1} has more than {BATCH_BYTES // 2**20} MiB", "check that the input is JSON lines"
            )
    if rest.strip():
        yield number + 1, rest


def _text_batch(names: Sequence[str], values: list[tuple[str | None, ...]], numbers: list[int]) -> LoadBatch:
    arrays = [pa.array(column, pa.string()) for column in zip(*values, strict=True)]
    return LoadBatch(pa.RecordBatch.from_arrays(arrays, list(names)), numbers)


def _parquet(stream: BinaryIO, columns: Sequence[str] | None) -> Iterator[LoadBatch]:
    # Buffered: a row group may be of any size.
    file = pq.ParquetFile(stream, buffer_size=1024 * 1024, pre_buffer=False)
    present = file.schema_arrow.names
    missing = [name for name in columns or () if name not in present]
    if missing:
        raise UsageError(f"the input has no column {missing[0]}", f"its columns: {', '.join(present)}")
    number = 0
    for batch in file.iter_batches(_BATCH_ROWS, columns=None if columns is None else list(columns), use_threads=False):
        yield LoadBatch(batch, range(number + 1, number + 1 + batch.num_rows))
        number += batch.num_rows
