"""Parses blocks of JSON lines: an object a line, its values as `to_jsonb(row)` has them.

A value becomes the text from which PostgreSQL reads it, digit by digit as it is written in the file. A JSON string is
read as the text that the column's type prints, also of a json column.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from mirror_pump.ops.ingest.ingest_request import RowPlace, RowRefused
from mirror_pump.ops.ingest.input_batch import InputBatch
from mirror_pump.ops.ingest.text_blocks import TextBlock


class _Number(str):
    """A JSON number, as it is written."""

    __slots__ = ()


_DECODER = json.JSONDecoder(parse_float=_Number, parse_int=_Number, parse_constant=_Number)


def jsonl_names(block: TextBlock | None) -> tuple[str, ...]:
    """The keys of the first object of a file. Raises RowRefused if it is none."""
    if block is None:
        return ()
    for number, line in enumerate(block.data.split(b"\n")):
        if line.strip():
            return tuple(_object(line, RowPlace(block.file.number, block.first_line + number, block.file.name)))
    return ()


def parse_jsonl(block: TextBlock, names: Sequence[str], arrays: frozenset[str], *, subset: bool) -> InputBatch:
    """The rows of a block. `names`: the columns, which every object must have. `arrays`: those of an array type.
    `subset`: further keys are ignored. Lines that are no such objects are among `refused`."""
    wanted = frozenset(names)
    rows: list[list[str | None]] = []
    lines: list[int] = []
    refused: list[tuple[RowPlace, str, str]] = []
    for number, line in enumerate(block.data.split(b"\n")):
        if not line.strip():
            continue
        place = RowPlace(block.file.number, block.first_line + number, block.file.name)
        try:
            found = _object(line, place)
            _require(found, wanted, place, subset=subset)
        except RowRefused as error:
            refused.append((place, error.reason, line.decode(errors="replace")))
            continue
        rows.append([_text(found[name], in_array=name in arrays) for name in names])
        lines.append(place.line)
    columns = {name: pa.array([row[index] for row in rows], pa.string()) for index, name in enumerate(names)}
    return InputBatch(
        block.file, columns, np.array(lines, np.int64), refused=tuple(refused), stored_bytes=block.stored_bytes
    )


def _object(line: bytes, place: RowPlace) -> dict[str, Any]:
    try:
        found = _DECODER.decode(line.decode())
    except (ValueError, RecursionError) as error:
        raise RowRefused(place, f"this is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise RowRefused(place, "this is not a JSON object")
    return found


def _require(found: dict[str, Any], wanted: frozenset[str], place: RowPlace, *, subset: bool) -> None:
    if found.keys() == wanted:
        return
    missing = sorted(wanted - found.keys())
    if missing:
        raise RowRefused(place, f"the object lacks {', '.join(missing)}, which the first object has")
    if not subset:
        raise RowRefused(place, f"the object has {', '.join(sorted(found.keys() - wanted))}, and the first one has not")


def _text(value: Any, *, in_array: bool) -> str | None:
    """The text from which PostgreSQL reads the value."""
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case str():
            return str(value)
        case list() if in_array:
            return array_text(value)
        case _:
            return document(value)


def array_text(values: Sequence[Any]) -> str:
    """A list as PostgreSQL's array literal."""
    parts = []
    for value in values:
        if value is None:
            parts.append("NULL")
        elif isinstance(value, list):
            parts.append(array_text(value))
        else:
            text = str(value) if isinstance(value, str) and not isinstance(value, _Number) else document(value)
            parts.append('"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"')
    return "{" + ",".join(parts) + "}"


def document(value: Any) -> str:
    """A value as JSON, with its numbers as they were written."""
    match value:
        case _Number():
            return str(value)
        case dict():
            return (
                "{"
                + ", ".join(f"{json.dumps(key, ensure_ascii=False)}: {document(v)}" for key, v in value.items())
                + "}"
            )
        case list():
            return "[" + ", ".join(map(document, value)) + "]"
        case _:
            return _quoted(value)


def _quoted(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
