"""Splits the text of Postgres arrays into the text of their elements (PostgreSQL documentation, section 8.15.6)."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa

_QUOTED = re.compile(r'"((?:[^"\\]++|\\.)*+)"', re.DOTALL)
"""Possessive: otherwise the engine keeps a way back for each character: 135 bytes, of up to a billion."""
_BARE = re.compile(r'[^",{}\\]+')
"""Blanks too: array_out quotes for those of ASCII only, not for U+00A0 and the like."""


@dataclass(frozen=True)
class SplitArrays:
    """The elements of a column of arrays, laid end to end."""

    elements: list[str | None]
    offsets: list[int]
    """Array i has elements offsets[i] to offsets[i + 1]; none for NULL and for what is flagged."""
    unrepresentable: list[bool]
    """True for arrays of several dimensions and those whose first index is not 1."""


def split_arrays(values: pa.Array) -> SplitArrays:
    """Split every value; ValueError names one that is no array text. A loop: array text has no vectorised form."""
    elements: list[str | None] = []
    offsets = [0]
    unrepresentable = []
    for text in values.to_pylist():
        parts = [] if text is None else _split(text)
        unrepresentable.append(parts is None)
        elements.extend(parts or ())
        offsets.append(len(elements))
    return SplitArrays(elements, offsets, unrepresentable)


def _split(text: str) -> list[str | None] | None:
    """The elements of one array, or of a vector of pgvector's; None when a list cannot hold it."""
    if text[:1] == "[" and text[-1:] == "}" and "]={" in text:
        return None
    if text[:1] == "[" and text[-1:] == "]":
        return list(text[1:-1].split(","))
    if text[:1] != "{" or text[-1:] != "}" or len(text) < 2:
        raise ValueError(f"{text!r} is no Postgres array")
    inner = text[1:-1]
    if not inner:
        return []
    if inner[0] == "{":
        return None
    if '"' not in inner and "\\" not in inner and "{" not in inner:
        return [None if part == "NULL" else part for part in inner.split(",")]
    return _tokens(text)


def _tokens(text: str) -> list[str | None]:
    """Elements where some are quoted: what is quoted may hold commas and braces, and NULL in quotes is a word."""
    parts: list[str | None] = []
    position, last = 1, len(text) - 1
    while True:
        if quoted := _QUOTED.match(text, position, last):
            parts.append(_unescaped(quoted[1]))
            position = quoted.end()
        elif bare := _BARE.match(text, position, last):
            parts.append(None if bare[0] == "NULL" else bare[0])
            position = bare.end()
        else:
            raise ValueError(f"{text!r} is no Postgres array")
        if position == last:
            return parts
        if text[position] != ",":
            raise ValueError(f"{text!r} is no Postgres array")
        position += 1


def _unescaped(text: str) -> str:
    """Each backslash stands for the character behind it. No loop over the many quotes of a document: NUL, which no text
    of Postgres's has, stands in for backslashes that stay."""
    return text.replace("\\\\", "\0").replace("\\", "").replace("\0", "\\")
