"""Parses blocks of JSON lines: an object a line, its values as `to_jsonb(row)` has them.

A value becomes the text from which PostgreSQL reads it, digit by digit as it is written in the file. A JSON string is
read as the text that the column's type prints, also of a json column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from mirror_pump.errors import one_line_of
from mirror_pump.ops.row_files.json_texts import parse_json, text_of
from mirror_pump.ops.row_files.row_batch import RefusedRow, RowBatch, RowPlace
from mirror_pump.ops.row_files.text_blocks import TextBlock


def first_keys(block: TextBlock) -> tuple[str, ...] | None:
    """The keys of the first object of a block; None if it has none."""
    for _, line in _lines(block):
        try:
            return tuple(_object(line))
        except ValueError:
            continue
    return None


def parse_jsonl(block: TextBlock, names: Sequence[str], *, subset: bool) -> RowBatch:
    """The rows of a block. `names`: the columns; what an object lacks is NULL. `subset`: further keys are ignored.
    Lines that are no such objects are among `refused`."""
    column_names = frozenset(names)
    rows: list[tuple[str | None, ...]] = []
    lines: list[int] = []
    refused: list[RefusedRow] = []
    for number, line in _lines(block):
        try:
            row = _object(line)
            if not (subset or column_names.issuperset(row)):
                raise _unknown(row, column_names)
        except ValueError as error:
            place = RowPlace(block.file.number, number, block.file.name)
            refused.append(RefusedRow(place, str(error), line.decode(errors="replace")))
            continue
        rows.append(tuple([text_of(row.get(name)) for name in names]))
        lines.append(number)
    values = zip(*rows, strict=True) if rows else [()] * len(names)
    columns = {name: pa.array(column, pa.string()) for name, column in zip(names, values, strict=True)}
    return RowBatch(
        block.file, columns, np.array(lines, np.int64), refused=tuple(refused), stored_bytes=block.stored_bytes
    )


def _lines(block: TextBlock) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, with their numbers."""
    for number, line in enumerate(bytes(block.data).split(b"\n"), block.first_line):
        if line.strip():
            yield number, line


def _object(line: bytes) -> dict[str, Any]:
    try:
        value = parse_json(line)
    except ValueError as error:
        raise ValueError(f"it is not JSON: {one_line_of(error)}") from error
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - of the file, not of our argument
    return value


def _unknown(row: dict[str, Any], column_names: frozenset[str]) -> ValueError:
    unknown = [name for name in row if name not in column_names]
    return ValueError(f"the first row has no column {', '.join(unknown)}; name all with --columns")
