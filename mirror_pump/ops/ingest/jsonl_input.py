"""Parses blocks of JSON lines: an object a line, its values as `to_jsonb(row)` has them.

A value becomes the text from which PostgreSQL reads it, digit by digit as it is written in the file. A JSON string is
read as the text that the column's type prints, also of a json column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from mirror_pump.ops.ingest.ingest_request import RowPlace, RowRefused
from mirror_pump.ops.ingest.input_batch import InputBatch
from mirror_pump.ops.ingest.text_blocks import TextBlock
from mirror_pump.ops.row_files.json_texts import parse_json, text_of


def jsonl_names(block: TextBlock | None) -> tuple[str, ...]:
    """The keys of the first object of a file. Raises RowRefused if it is none."""
    if block is None:
        return ()
    for number, line in enumerate(bytes(block.data).split(b"\n")):
        if line.strip():
            return tuple(_object(line, RowPlace(block.file.number, block.first_line + number, block.file.name)))
    return ()


def parse_jsonl(block: TextBlock, names: Sequence[str], arrays: frozenset[str], *, subset: bool) -> InputBatch:
    """The rows of a block. `names`: the columns; what an object lacks is NULL. `arrays`: those of an array type.
    `subset`: further keys are ignored. Lines that are no such objects are among `refused`."""
    wanted = frozenset(names)
    rows: list[list[str | None]] = []
    lines: list[int] = []
    refused: list[tuple[RowPlace, str, str]] = []
    for number, line in enumerate(bytes(block.data).split(b"\n")):
        if not line.strip():
            continue
        place = RowPlace(block.file.number, block.first_line + number, block.file.name)
        try:
            found = _object(line, place)
            if not subset:
                _require_known(found, wanted, place)
        except RowRefused as error:
            refused.append((place, error.reason, line.decode(errors="replace")))
            continue
        rows.append([text_of(found.get(name), in_array=name in arrays) for name in names])
        lines.append(place.line)
    columns = {name: pa.array([row[index] for row in rows], pa.string()) for index, name in enumerate(names)}
    return InputBatch(
        block.file, columns, np.array(lines, np.int64), refused=tuple(refused), stored_bytes=block.stored_bytes
    )


def _object(line: bytes, place: RowPlace) -> dict[str, Any]:
    try:
        found = parse_json(line)
    except ValueError as error:
        raise RowRefused(place, f"this is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise RowRefused(place, "this is not a JSON object")
    return found


def _require_known(found: dict[str, Any], wanted: frozenset[str], place: RowPlace) -> None:
    unknown = found.keys() - wanted
    if unknown:
        raise RowRefused(place, f"the object has {', '.join(sorted(unknown))}, and the first one has not")
