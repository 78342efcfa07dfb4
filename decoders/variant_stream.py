"""Encodes a long or deeply nested document as a variant, token by token, without a tree of its values.

The bytes are those of decoders/variant_encoding.py. Memory is a small multiple of the text: elements of arrays are put
together as they come, and the offsets are machine numbers. The depth of the nesting is bounded by MOST_LEVELS, not by
the stack.
"""

from __future__ import annotations

import json
import re
from array import array

from decoders.variant_encoding import (
    LITERALS,
    MOST_BYTES,
    MOST_LEVELS,
    MOST_NAMES,
    Dictionary,
    EncodedVariant,
    UnheldDocument,
    array_head,
    encoded_number,
    encoded_string,
)

_TOKEN = re.compile(
    r"[ \t\n\r]*+(?:"
    r"([\[\]{},:])"
    r'|("(?:[^"\\\x00-\x1f]++|\\.)*+")'
    # Not `?+`: Python 3.11.0 to 3.11.4 then takes an "e" without digits for a part of the number.
    r"|(-?+(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?)"
    r"|(true|false|null)"
    r")"
)
_PUNCTUATION, _STRING, _NUMBER, _LITERAL = 1, 2, 3, 4
_STRING_OR_NAME = re.compile(r'("(?:[^"\\]++|\\.)*+")(?:[ \t\n\r]*+(:))?+', re.DOTALL)
_ESCAPED_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
"""A backslash before it would be one that is escaped."""
_SPACE = re.compile(r"[ \t\n\r]*+")
_SMALL = 1 << 12
"""Bytes of the largest container that is copied into the one around it. Larger ones stay lists of chunks, so that bytes
are not copied once per level."""

_Chunks = list[bytes | bytearray]


class _OpenArray:
    """An array whose elements are being read."""

    closing = "]"

    def __init__(self) -> None:
        self._ends: array[int] = array("I", [0])
        self._chunks: _Chunks = [bytearray()]

    def add(self, element: bytes) -> None:
        last = self._chunks[-1]
        if type(last) is bytearray:
            last += element
        else:
            self._chunks.append(bytearray(element))
        self._ends.append(_checked(self._ends[-1] + len(element)))

    def add_chunks(self, element: _Chunks, size: int) -> None:
        self._chunks += element
        self._ends.append(_checked(self._ends[-1] + size))

    def closed(self, _: Dictionary) -> tuple[_Chunks, int]:
        head = array_head(self._ends)
        return [head, *self._chunks], len(head) + self._ends[-1]

    def only_element(self) -> bytes:
        return b"".join(self._chunks)


class _OpenObject:
    """An object whose fields are being read."""

    closing = "}"

    def __init__(self) -> None:
        self._values: dict[str, bytes | tuple[_Chunks, int]] = {}
        self._name = ""
        self._size = 0

    def name(self, name: str) -> None:
        if name in self._values:
            raise UnheldDocument
        self._name = name

    def add(self, value: bytes) -> None:
        self._size = _checked(self._size + len(value))
        self._values[self._name] = value

    def add_chunks(self, value: _Chunks, size: int) -> None:
        self._size = _checked(self._size + size)
        self._values[self._name] = value, size

    def closed(self, dictionary: Dictionary) -> tuple[_Chunks, int]:
        layout = dictionary.layout(tuple(self._values))
        ends, chunks = array("I", [0]), _Chunks()
        for name in layout.names:
            value = self._values[name]
            if isinstance(value, bytes):
                chunks.append(value)
                ends.append(ends[-1] + len(value))
            else:
                chunks += value[0]
                ends.append(ends[-1] + value[1])
        head = layout.head(ends)
        return [head, *chunks], len(head) + ends[-1]


class _TokenReader:
    """Reads the tokens of a text into containers."""

    def __init__(self, text: str, dictionary: Dictionary) -> None:
        self._text = text
        self._dictionary = dictionary
        self._position = 0
        self._root = _OpenArray()
        self._container: _OpenArray | _OpenObject = self._root
        self._enclosing: list[_OpenArray | _OpenObject] = []

    def value(self) -> bytes:
        """The encoded document."""
        complete = self._value()
        while self._enclosing:
            if complete:
                complete = self._separator()
            elif isinstance(self._container, _OpenObject):
                self._name(self._container)
                complete = self._value()
            else:
                complete = self._value()
        if _SPACE.fullmatch(self._text, self._position) is None:
            raise self._illegal()
        return self._root.only_element()

    def _token(self) -> re.Match[str]:
        token = _TOKEN.match(self._text, self._position)
        if token is None:
            raise self._illegal()
        return token

    def _value(self) -> bool:
        """Reads a value, or the beginning of a container. Returns whether it is complete."""
        token = self._token()
        kind = token.lastindex
        if kind == _STRING:
            self._container.add(encoded_string(_unquoted(token[_STRING])))
        elif kind == _NUMBER:
            self._container.add(encoded_number(token[_NUMBER]))
        elif kind == _LITERAL:
            self._container.add(LITERALS[token[_LITERAL]])
        elif token[_PUNCTUATION] in "[{":
            return self._open(token)
        else:
            raise self._illegal()
        self._position = token.end()
        return True

    def _open(self, token: re.Match[str]) -> bool:
        """Begins a container. Returns whether it is empty, and thus complete."""
        if len(self._enclosing) == MOST_LEVELS:
            raise UnheldDocument
        self._enclosing.append(self._container)
        self._container = _OpenObject() if token[_PUNCTUATION] == "{" else _OpenArray()
        self._position = token.end()
        token = self._token()
        if token[_PUNCTUATION] != self._container.closing:
            return False
        self._close(token)
        return True

    def _close(self, token: re.Match[str]) -> None:
        self._position = token.end()
        chunks, size = self._container.closed(self._dictionary)
        self._container = self._enclosing.pop()
        if size <= _SMALL:
            self._container.add(b"".join(chunks))
        else:
            self._container.add_chunks(chunks, size)

    def _separator(self) -> bool:
        """Reads what follows a value in a container. Returns whether that is the container's end."""
        token = self._token()
        if token[_PUNCTUATION] == self._container.closing:
            self._close(token)
            return True
        if token[_PUNCTUATION] != ",":
            raise self._illegal()
        self._position = token.end()
        return False

    def _name(self, container: _OpenObject) -> None:
        """Reads a name and the colon after it."""
        token = self._token()
        if token.lastindex != _STRING:
            raise self._illegal()
        container.name(_unquoted(token[_STRING]))
        self._position = token.end()
        token = self._token()
        if token[_PUNCTUATION] != ":":
            raise self._illegal()
        self._position = token.end()

    def _illegal(self) -> ValueError:
        return ValueError(f"what follows character {self._position} is not JSON")


def encode_long_document(text: str) -> EncodedVariant:
    """The variant of a text of any length and depth.

    Raises UnheldDocument, UnicodeEncodeError for a lone surrogate, or ValueError if the text is not JSON.
    """
    if "\\u0000" in text and _ESCAPED_NUL.search(text):
        raise UnheldDocument
    dictionary = Dictionary(tuple(sorted(_names(text))))
    if len(dictionary.metadata) > MOST_BYTES:
        raise UnheldDocument
    return EncodedVariant(dictionary.metadata, _TokenReader(text, dictionary).value())


def _names(text: str) -> set[str]:
    """The names of all fields. Raises UnheldDocument if there are too many."""
    names: set[str] = set()
    for match in _STRING_OR_NAME.finditer(text):
        if match[2]:
            names.add(_unquoted(match[1]))
            if len(names) > MOST_NAMES:
                raise UnheldDocument
    return names


def _unquoted(string: str) -> str:
    if "\\" not in string:
        return string[1:-1]
    unquoted: str = json.loads(string)
    return unquoted


def _checked(size: int) -> int:
    if size > MOST_BYTES:
        raise UnheldDocument
    return size
