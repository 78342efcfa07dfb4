"""JSON values as the texts from which PostgreSQL reads them, digit by digit as they are written in a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


class _Number(str):
    """A JSON number, as it is written."""

    __slots__ = ()


def parse_json(line: bytes) -> Any:
    """The value of a JSON document in UTF-8; its numbers are strings of a class of their own. Raises ValueError, with
    the reason, also for what JSON has no numbers for (NaN), and for half a surrogate, which is no text."""
    try:
        found = _DECODER.decode(line.decode())
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if b"\\ud" in line or b"\\uD" in line:
        json.dumps(found, ensure_ascii=False).encode()
    return found


def text_of(value: Any, *, in_array: bool) -> str | None:
    """The text from which PostgreSQL reads a value. A string is the text that the column's type prints, also of a json
    column. `in_array`: the column is an array, so that a list is one of PostgreSQL."""
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


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON number; write it as a string")


_DECODER = json.JSONDecoder(parse_float=_Number, parse_int=_Number, parse_constant=_refuse_constant)
