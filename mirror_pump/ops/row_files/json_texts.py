"""JSON values as the texts from which PostgreSQL reads them, digit by digit as they are written in a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

_DEEPEST = 250
"""Arrays and objects in one another. `document` calls itself, and Python allows a thousand calls."""
_TOO_DEEP = f"it is nested too deeply: {_DEEPEST} levels are allowed"


class _Number(str):
    """A JSON number, as it is written."""

    __slots__ = ()


def parse_json(line: bytes) -> Any:
    """The value of a JSON document in UTF-8; its numbers are strings of a class of their own. Raises ValueError, with
    the reason, also for what JSON has no numbers for (NaN), and for half a surrogate, which is no text."""
    try:
        parsed = _DECODER.decode(line.decode())
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    if line.count(b"[") + line.count(b"{") > _DEEPEST and is_deeper(parsed, _DEEPEST):
        raise ValueError(_TOO_DEEP)
    if b"\\ud" in line or b"\\uD" in line:
        json.dumps(parsed, ensure_ascii=False).encode()
    return parsed


def text_of(value: Any) -> str | None:
    """The text of a value. A string is the text that the column's type prints, also of a json column. A list is a JSON
    array, which value_texts makes one of PostgreSQL for a column of arrays."""
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case str():
            return str(value)
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


def is_deeper(document: Any, most: int) -> bool:
    """Whether a document, as a JSON parser returns it, has more than `most` arrays and objects in one another.
    Recursive functions, ours and others', fail in the middle of one that is nested too deeply."""
    level = [document] if isinstance(document, dict | list) else []
    for _ in range(most):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return bool(level)
