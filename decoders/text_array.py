"""Splits the text of Postgres arrays into the texts of their elements (PostgreSQL documentation, section 8.15.6)."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa

_QUOTED = re.compile(r'"((?:[^"\\]++|\\.)*+)"', re.DOTALL)
"""Possessive, as the regex engine would otherwise store 135 bytes per character, of up to 10^9, to backtrack."""
_BARE = re.compile(r'[^",{}\\]+')
"""May contain blanks: array_out quotes elements with ASCII blanks only, not with U+00A0 and the like."""


@dataclass(frozen=True)
class SplitArrays:
    """The elements of a column of arrays, one array after the other."""

    elements: list[str | None]
    offsets: list[int]
    """Array i has the elements offsets[i] to offsets[i + 1]; none if it is NULL or unrepresentable."""
    unrepresentable: list[bool]
    """True for arrays of several dimensions and arrays whose first index is not 1."""


def split_arrays(values: pa.Array) -> SplitArrays:
    """Splits every value. Raises ValueError, with the value, for text that is not an array.

    This is a loop, since parsing array text cannot be vectorised.
    """
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
    """The elements of an array, or of a pgvector vector; None if a list cannot hold them."""
    if text[:1] == "[" and text[-1:] == "}" and "]={" in text:
        return None
    if text[:1] == "[" and text[-1:] == "]":
        return list(text[1:-1].split(","))
    if text[:1] != "{" or text[-1:] != "}" or len(text) < 2:
        raise ValueError(f"{text!r} is not a Postgres array")
    inner = text[1:-1]
    if not inner:
        return []
    if inner[0] == "{":
        return None
    if '"' not in inner and "\\" not in inner and "{" not in inner:
        return [None if part == "NULL" else part for part in inner.split(",")]
    return _tokens(text)


def _tokens(text: str) -> list[str | None]:
    """Elements of an array with quotes: quoted elements may contain commas and braces, and quoted NULL is a word."""
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
            raise ValueError(f"{text!r} is not a Postgres array")
        if position == last:
            return parts
        if text[position] != ",":
            raise ValueError(f"{text!r} is not a Postgres array")
        position += 1


def _unescaped(text: str) -> str:
    """Removes escapes: each backslash stands for the character behind it. Avoids a loop over the many quotes of a
    document: NUL, which Postgres text never contains, temporarily replaces backslashes that stay."""
    return text.replace("\\\\", "\0").replace("\\", "").replace("\0", "\\")
