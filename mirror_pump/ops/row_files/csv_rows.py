"""Parses blocks of CSV, as COPY ... WITH (FORMAT csv) reads them.

Columns of ordinary types are converted while they are parsed. If that fails for any value of a block, the block is
parsed again, all as texts: the conversion of those knows what PostgreSQL makes of them, and which line is wrong.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from mirror_pump.errors import UsageError, one_line_of
from mirror_pump.ops.row_files.input_files import InputFile
from mirror_pump.ops.row_files.row_batch import RefusedRow, RowBatch, RowPlace, RowRefused, one_array
from mirror_pump.ops.row_files.text_blocks import MOST_ROW_BYTES, QUOTES, TextBlock, newlines_in

_TRUE, _FALSE = ["t", "true", "TRUE", "True"], ["f", "false", "FALSE", "False"]
_ODD_INTEGERS = ((b"x", b"0x"), (b"X", b"0X"))
"""Arrow reads hexadecimal integers, as two's complement. PostgreSQL does since version 16, as numbers. The search for a
single byte is the faster one, and mostly finds none."""

_QUOTE = ord('"')
_LINE_ENDS = r"end each line by \n or \r\n, and put a field that has \r in quotes"
_FIRST_DAY, _DAY = -719_162, 86_400_000_000
"""0001-01-01 in days since 1970, and a day in microseconds."""


@dataclass(frozen=True)
class CsvForm:
    """How CSV files are written."""

    delimiter: str = ","
    null: str = ""
    """An unquoted field of this text is NULL."""
    header: bool = True
    """The first line of each file has the names of the columns."""


@dataclass(frozen=True)
class TextLayout:
    """How the rows of a text file are parsed."""

    file: InputFile
    names: tuple[str, ...] = ()
    """Of its columns; before they are known, those that are asked for."""
    form: CsvForm = CsvForm()
    typed: Mapping[str, pa.DataType] = field(default_factory=dict)
    """CSV: types of the columns that are converted at once. All others are texts."""
    subset: bool = False
    """JSON lines: further keys are ignored."""


def csv_names(first: TextBlock | None, file: InputFile, form: CsvForm) -> tuple[str, ...]:
    """The names in the header line of a file, whose first block this is. Raises RowRefused for a file without one."""
    if not form.header:
        raise UsageError("a CSV file without a header needs the names of its columns", "give --columns a,b,c")
    place = RowPlace(file.number, 1, file.name)
    remedy = "its first line names the columns, unless --columns does"
    if first is None or not first.data.strip():
        raise RowRefused(place, "the file is empty: it has no header line", remedy)
    header = _header(first)
    try:
        names: list[str] = next(_reader([_decoded(first, header)], form, strict=True), [])
    except csv.Error as error:
        raise _no_csv(first, f"this is not CSV: {one_line_of(error)}") from error
    if not names:
        raise RowRefused(place, "there is no header line", remedy)
    return tuple(names)


def without_header(first: TextBlock) -> TextBlock:
    """The first block of a file without its header line."""
    header = _header(first)
    rows = first.data[len(header) :]
    line = first.first_line + header.count(b"\n")
    return TextBlock(first.file, line, rows, newlines_in(rows), first.stored_bytes)


def _header(first: TextBlock) -> bytes:
    """The first record, which ends at a line's end outside of quotes."""
    end = quotes = 0
    while (newline := first.data.find(b"\n", end)) >= 0:
        quotes += first.data.count(b'"', end, newline)
        end = newline + 1
        if quotes % 2 == 0:
            return bytes(first.data[:end])
    return bytes(first.data)


def parse_csv(block: TextBlock, layout: TextLayout) -> RowBatch:
    """The rows of a block. Rows with a wrong number of fields are among `refused`. Raises RowRefused for what is no
    CSV."""
    if not block.data or (block.data.isspace() and not block.data.strip(b"\r\n")):
        empty = {name: pa.array([], pa.string()) for name in layout.names}
        return RowBatch(block.file, empty, np.zeros(0, np.int64), stored_bytes=block.stored_bytes)
    _require_quoted_fields(block, layout.form.delimiter)
    typed = not any(mark in block.data and odd in block.data for mark, odd in _ODD_INTEGERS)
    if typed:
        try:
            table, refused = _parsed(block, layout, layout.typed), []
        except pa.ArrowInvalid:
            typed = False
        else:
            typed = _in_range(table, layout.typed)
    if not typed:
        _decoded(block, block.data)
        refused = list[pacsv.InvalidRow]()
        try:
            table = _parsed(block, layout, {}, refused)
        except pa.ArrowInvalid as error:
            raise _no_csv(block, f"this is not CSV: {one_line_of(error)}") from error
    places, texts = _places(block, layout, table.num_rows, refused)
    return RowBatch(
        file=block.file,
        columns={name: one_array(table.column(name)) for name in layout.names},
        lines=places,
        refused=texts,
        stored_bytes=block.stored_bytes,
    )


def _require_quoted_fields(block: TextBlock, delimiter: str) -> None:
    """Raises RowRefused at a quote that neither begins nor ends a field, nor is one of two within quotes. COPY leaves
    such quotes out, Arrow does not: neither is what people who wrote them meant."""
    data = np.frombuffer(block.data, np.uint8)
    quotes = np.flatnonzero(data == _QUOTE)
    if not len(quotes):
        return
    borders = np.zeros(256, bool)
    borders[[_QUOTE, *delimiter.encode(), *b"\r\n"]] = True
    opening, closing = quotes[::2], quotes[1::2]
    odd = np.concatenate([
        opening[~(borders[data[opening - 1]] | (opening == 0))],
        closing[~(borders[data[np.minimum(closing + 1, len(data) - 1)]] | (closing == len(data) - 1))],
    ])  # fmt: skip
    if len(odd):
        line = block.first_line + newlines_in(block.data[: odd.min()])
        raise RowRefused(RowPlace(block.file.number, line, block.file.name), "a quote within an unquoted field", QUOTES)


def _parsed(
    block: TextBlock,
    layout: TextLayout,
    typed: Mapping[str, pa.DataType],
    refused: list[pacsv.InvalidRow] | None = None,
) -> pa.Table:
    """The block as a table. Rows that have another number of fields are added to `refused`; without that there may be
    none. The block must be UTF-8 with it, as Arrow fails to pass on a row that is not."""

    def skip(row: pacsv.InvalidRow) -> str:
        assert refused is not None
        refused.append(row)
        return "skip"

    quoted = b'"' in block.data
    return pacsv.read_csv(
        pa.BufferReader(block.data),
        pacsv.ReadOptions(column_names=list(layout.names), use_threads=False, block_size=len(block.data) + 1),
        pacsv.ParseOptions(
            delimiter=layout.form.delimiter,
            quote_char='"' if quoted else False,
            newlines_in_values=quoted,
            invalid_row_handler=None if refused is None else skip,
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
    block: TextBlock, layout: TextLayout, rows: int, refused: Sequence[pacsv.InvalidRow]
) -> tuple[npt.NDArray[np.int64], tuple[RefusedRow, ...]]:
    """The line of each row, and the rows with a wrong number of fields."""
    newlines = block.newlines + (not block.data.endswith(b"\n"))
    ends_lines = block.data.count(b"\r") == block.data.count(b"\r\n")
    if not refused and newlines == rows and ends_lines:
        return np.arange(block.first_line, block.first_line + rows, dtype=np.int64), ()
    # Empty lines, line breaks within quotes, carriage returns, or refused rows: each row is looked at.
    lines: list[int] = []
    bad: list[RefusedRow] = []
    for line, fields in _records(block, layout):
        if len(fields) == len(layout.names):
            lines.append(line)
            continue
        reason = f"it has {len(fields)} fields, and not {len(layout.names)}"
        place = RowPlace(block.file.number, line, block.file.name)
        bad.append(RefusedRow(place, reason, layout.form.delimiter.join(fields)))
    if len(lines) != rows:
        raise RowRefused(
            RowPlace(block.file.number, block.first_line, block.file.name),
            "a quote within an unquoted field, in or after this line",
            QUOTES,
        )
    return np.array(lines, np.int64), tuple(bad)


def _records(block: TextBlock, layout: TextLayout) -> Iterator[tuple[int, list[str]]]:
    """The fields of each record that is not empty, with the line where it begins. Raises RowRefused at a carriage
    return that is no part of a line's end and not within quotes, also in a file whose every line ends with one, which
    COPY takes."""
    text = io.StringIO(block.data.decode(errors="replace"), newline="\n")
    reader = _reader(text, layout.form)
    line = block.first_line
    try:
        for fields in reader:
            if fields:
                yield line, fields
            line = block.first_line + reader.line_num
    except csv.Error as error:
        place = RowPlace(block.file.number, line, block.file.name)
        raise RowRefused(place, f"this is not CSV: {one_line_of(error)}", _LINE_ENDS) from error


def _reader(lines: Iterable[str], form: CsvForm, *, strict: bool = False) -> Any:
    # Of the process, and 128 KiB unless it is set.
    csv.field_size_limit(MOST_ROW_BYTES)
    return csv.reader(lines, delimiter=form.delimiter, strict=strict)


def _decoded(block: TextBlock, data: bytes | bytearray) -> str:
    """The text of the block's beginning, or of all of it. Raises RowRefused at a byte that is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        reason = f"byte 0x{data[error.start]:02x} is not UTF-8"
        raise _no_csv(block, reason, data.count(b"\n", 0, error.start)) from error


def _no_csv(block: TextBlock, reason: str, line: int = 0) -> RowRefused:
    """What cannot be parsed at all, from a line of the block on."""
    place = RowPlace(block.file.number, block.first_line + line, block.file.name)
    return RowRefused(place, reason, "give the file in UTF-8")
