"""Parses blocks of CSV, as COPY ... WITH (FORMAT csv) reads them.

Columns of ordinary types are converted while they are parsed. If that fails for any value of a block, the block is
parsed again, all as texts: whoever converts those knows what PostgreSQL makes of them, and which line is wrong.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from mirror_pump.errors import UsageError
from mirror_pump.ops.ingest.ingest_request import CsvForm, RowPlace, RowRefused
from mirror_pump.ops.ingest.input_batch import InputBatch
from mirror_pump.ops.ingest.text_blocks import TextBlock, newlines_in
from mirror_pump.ops.row_files.input_files import InputFile

_TRUE, _FALSE = ["t", "true", "TRUE", "True"], ["f", "false", "FALSE", "False"]
_ODD_INTEGERS = ((b"x", b"0x"), (b"X", b"0X"))
"""Arrow reads hexadecimal integers, as two's complement. PostgreSQL does since version 16, as numbers. The search for a
single byte is the faster one, and mostly finds none."""

_FIRST_DAY, _DAY = -719_162, 86_400_000_000
"""0001-01-01 in days since 1970, and a day in microseconds."""


@dataclass(frozen=True)
class CsvLayout:
    """How the fields of CSV files are parsed."""

    names: tuple[str, ...]
    form: CsvForm
    typed: Mapping[str, pa.DataType]
    """Types of the columns that are converted at once. All others are texts."""


def csv_names(first: TextBlock | None, file: InputFile, form: CsvForm) -> tuple[str, ...]:
    """The names in the header line of a file, whose first block this is. Raises RowRefused for an empty file."""
    if not form.header:
        raise UsageError("a CSV file without a header needs the names of its columns", "give --columns a,b,c")
    if first is None or not first.data.strip():
        raise RowRefused(RowPlace(file.number, 1, file.name), "the file is empty: it has no header line")
    return tuple(next(csv.reader(io.StringIO(_text(first)), delimiter=form.delimiter)))


def without_header(blocks: Iterable[TextBlock], form: CsvForm) -> Iterator[TextBlock]:
    """The blocks of a file without its header line."""
    for number, block in enumerate(blocks):
        if number or not form.header:
            yield block
            continue
        reader = csv.reader(io.StringIO(_text(block), newline=""), delimiter=form.delimiter)
        next(reader, None)
        position = 0
        for _ in range(reader.line_num):
            position = block.data.find(b"\n", position) + 1 or len(block.data)
        rows = block.data[position:]
        yield TextBlock(block.file, block.first_line + reader.line_num, rows, newlines_in(rows), block.stored_bytes)


def parse_csv(block: TextBlock, layout: CsvLayout) -> InputBatch:
    """The rows of a block. Rows with a wrong number of fields are among `refused`. Raises RowRefused for what is no
    CSV."""
    if not block.data or block.data.isspace():
        return InputBatch(block.file, _empty(layout), np.zeros(0, np.int64), stored_bytes=block.stored_bytes)
    typed = not any(mark in block.data and odd in block.data for mark, odd in _ODD_INTEGERS)
    if typed:
        try:
            table, refused = _parsed(block, layout, layout.typed)
        except pa.ArrowInvalid:
            typed = False
        else:
            typed = _in_range(table, layout.typed)
    if not typed:
        try:
            table, refused = _parsed(block, layout, {})
        except pa.ArrowInvalid as error:
            raise _no_csv(block, error) from error
    places, texts = _places(block, layout, table.num_rows, refused)
    return InputBatch(
        file=block.file,
        columns={name: _one(table.column(name)) for name in layout.names},
        lines=places,
        refused=texts,
        stored_bytes=block.stored_bytes,
    )


def _parsed(
    block: TextBlock, layout: CsvLayout, typed: Mapping[str, pa.DataType]
) -> tuple[pa.Table, list[tuple[int, int]]]:
    """The block as a table, and of each row that has another number of fields: its number from 0, and that number."""
    refused: list[tuple[int, int]] = []

    def skip(row: pacsv.InvalidRow) -> str:
        refused.append((row.number if row.number is not None else -1, row.actual_columns))
        return "skip"

    quoted = b'"' in block.data
    table = pacsv.read_csv(
        pa.BufferReader(block.data),
        pacsv.ReadOptions(column_names=list(layout.names), use_threads=False, block_size=len(block.data) + 1),
        pacsv.ParseOptions(
            delimiter=layout.form.delimiter,
            quote_char='"' if quoted else False,
            newlines_in_values=quoted,
            invalid_row_handler=skip,
        ),
        pacsv.ConvertOptions(
            column_types={name: typed.get(name, pa.string()) for name in layout.names},
            null_values=[layout.form.null],
            true_values=_TRUE,
            false_values=_FALSE,
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    return table, refused


def _in_range(table: pa.Table, typed: Mapping[str, pa.DataType]) -> bool:
    """Whether no date is of the year 0, and no decimal has too many digits before the point: Arrow reads these, and
    PostgreSQL refuses them."""
    for name, kind in typed.items():
        column = table.column(name)
        if pa.types.is_date32(kind):
            lowest, first = pc.min(column.cast(pa.int32())).as_py(), _FIRST_DAY
        elif pa.types.is_timestamp(kind):
            lowest, first = pc.min(column.cast(pa.int64())).as_py(), _FIRST_DAY * _DAY
        elif pa.types.is_decimal(kind):
            span, limit = pc.min_max(column).as_py(), Decimal(10) ** (kind.precision - kind.scale)
            if span["min"] is not None and (span["min"] <= -limit or span["max"] >= limit):
                return False
            continue
        else:
            continue
        if lowest is not None and lowest < first:
            return False
    return True


def _places(
    block: TextBlock, layout: CsvLayout, rows: int, refused: Sequence[tuple[int, int]]
) -> tuple[npt.NDArray[np.int64], tuple[tuple[RowPlace, str, str], ...]]:
    """The line of each row, and the rows with a wrong number of fields."""
    newlines = block.newlines + (not block.data.endswith(b"\n"))
    if not refused and newlines == rows:
        return np.arange(block.first_line, block.first_line + rows, dtype=np.int64), ()
    # Empty lines, line breaks within quotes, or refused rows: each row is looked at.
    lines: list[int] = []
    bad: list[tuple[RowPlace, str, str]] = []
    reader = csv.reader(io.StringIO(_text(block), newline=""), delimiter=layout.form.delimiter)
    begun = 0
    for fields in reader:
        line = block.first_line + begun
        begun = reader.line_num
        if not fields:
            continue
        if len(fields) == len(layout.names):
            lines.append(line)
            continue
        reason = f"{len(fields)} fields instead of {len(layout.names)}"
        place = RowPlace(block.file.number, line, block.file.name)
        bad.append((place, reason, layout.form.delimiter.join(fields)))
    if len(lines) != rows:
        raise RowRefused(
            RowPlace(block.file.number, block.first_line, block.file.name),
            "a quote within an unquoted field, in or after this line",
            'put the whole field in quotes, and write each quote in it twice: "5"" disk"',
        )
    return np.array(lines, np.int64), tuple(bad)


def _no_csv(block: TextBlock, error: pa.ArrowInvalid) -> RowRefused:
    """What cannot be parsed at all: text that is not UTF-8, for example."""
    line = block.first_line
    try:
        block.data.decode()
        reason = f"this is not CSV: {error}"
    except UnicodeDecodeError as wrong:
        line += block.data.count(b"\n", 0, wrong.start)
        reason = f"byte 0x{block.data[wrong.start]:02x} is not UTF-8"
    return RowRefused(RowPlace(block.file.number, line, block.file.name), reason, "give the file in UTF-8")


def _text(block: TextBlock) -> str:
    return block.data.decode(errors="replace")


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _empty(layout: CsvLayout) -> dict[str, pa.Array]:
    return {name: pa.array([], pa.string()) for name in layout.names}
