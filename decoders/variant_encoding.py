"""Encodes a text of json or jsonb as a variant (apache/parquet-format, VariantEncoding.md).

Every choice that the format leaves is made the same way, so that equal documents have equal bytes: the dictionary is
sorted and has no name twice, fields lie in the order of their names, and each size is the least. An integer is an int
of the least width or, beyond 64 bits, a decimal of scale 0. Other numbers are the least decimal that has room for the
digits, and for the scale too, as readers check. No number becomes a double.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import accumulate
from json import JSONDecodeError, JSONDecoder
from struct import Struct, pack
from typing import Any, NamedTuple

import numpy as np

MOST_DIGITS = 38
"""Of a decimal, and the largest scale."""
MOST_LEVELS = 500
"""Arrays and objects in each other. Spark's to_json() calls itself for each, and ends its process beyond a thousand."""
_LEVELS_OF_TREES = 100
MOST_BYTES = 128 << 20
"""Of the metadata, and of the value: Spark reads no larger ones."""
_SPACE = " \t\n\r"
MOST_NAMES = 1 << 17
"""Different ones in a document: DuckDB's time grows with their square, and the encoder's memory with their number."""
LONG_TEXT = 1 << 20
"""Characters from which on a text is encoded without a tree of its values."""
LONGEST_SHORT_STRING = 63
"""Bytes."""
_CACHED_NAMES = 256
"""Names of the largest dictionary that is kept for the next document."""
_NUMBER = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?)0*([0-9]+))?")
_EXPONENTS_BELOW = (2**31 - 1) // 2
"""Of json only: Postgres's numeric refuses larger ones, even of zero."""

_SHORT_STRING, _OBJECT, _ARRAY = 1, 2, 3
LITERALS = {"null": bytes([0 << 2]), "true": bytes([1 << 2]), "false": bytes([2 << 2])}
"""The bytes of what has no others."""
INT_HEADS = _INT8, _INT16, _INT32, _INT64 = tuple(type_id << 2 for type_id in (3, 4, 5, 6))
"""By width: 1, 2, 4 and 8 bytes."""
_SMALL_INTEGERS = {value: pack("<Bb", _INT8, value) for value in range(-128, 128)}
_pack_int16, _pack_int32 = Struct("<Bh").pack, Struct("<Bi").pack
DECIMAL_HEADS = _DECIMAL4, _DECIMAL8, _DECIMAL16 = tuple(type_id << 2 for type_id in (8, 9, 10))
"""By width: 4, 8 and 16 bytes."""
SHORT_STRING_HEADS = [bytes([length << 2 | _SHORT_STRING]) for length in range(LONGEST_SHORT_STRING + 1)]
LONG_STRING_HEAD = bytes([16 << 2])
"""Before the four bytes of a string's length."""


class EncodedVariant(NamedTuple):
    """The two binary values of a variant."""

    metadata: bytes
    value: bytes


class UnheldDocument(Exception):
    """A variant cannot hold the document."""


class Tree(NamedTuple):
    """A parsed document. Integers are int, other numbers are their texts as bytes."""

    root: Any
    names: frozenset[str]


class TreeParser:
    """Parses texts of json. It is made once, for that takes as long as a small document."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._decode = JSONDecoder(
            object_pairs_hook=self._fields,
            # No function of Python's, which would take longer than all else.
            parse_float=str.encode,
            parse_constant=_refuse_constant,
        ).raw_decode

    def parse(self, text: str) -> Tree | None:
        """None if it is nested too deeply for functions that call themselves, or has an integer of thousands of digits.

        Raises UnheldDocument, or ValueError if the text is not JSON.
        """
        self._names.clear()
        text = text.strip(_SPACE)
        try:
            root, end = self._decode(text)
        except JSONDecodeError:
            raise
        except (RecursionError, ValueError):
            return None
        if end < len(text):
            raise ValueError(f"it ends before character {end}")
        if text.count("[") + text.count("{") > _LEVELS_OF_TREES and _levels(root) > _LEVELS_OF_TREES:
            return None
        if len(self._names) > MOST_NAMES:
            raise UnheldDocument
        return Tree(root, frozenset(self._names))

    def _fields(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) != len(pairs):
            raise UnheldDocument
        self._names.update(fields)
        return fields


def _levels(root: Any) -> int:
    """How many arrays and objects are in each other."""
    level, count = [root], 0
    while containers := [value for value in level if type(value) in (dict, list)]:
        count += 1
        level = [value for parent in containers for value in (parent.values() if type(parent) is dict else parent)]
    return count


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no value of JSON")


@lru_cache(maxsize=4096)
def encoded_number(text: str) -> bytes:
    """A number, encoded. Raises UnheldDocument if it has too many digits."""
    match = _NUMBER.fullmatch(text)
    assert match is not None
    sign, whole, fraction, exponent_sign, exponent = match.groups(default="")
    digits = (whole + fraction).lstrip("0")
    scale = len(fraction)
    if exponent:
        if len(exponent) > len(str(_EXPONENTS_BELOW)) or int(exponent) >= _EXPONENTS_BELOW:
            raise UnheldDocument
        scale += int(exponent) if exponent_sign == "-" else -int(exponent)
    if scale < 0:
        # Postgres fills up with zeros.
        if digits:
            if len(digits) - scale > MOST_DIGITS:
                raise UnheldDocument
            digits += "0" * -scale
        scale = 0
    if len(digits) > MOST_DIGITS or scale > MOST_DIGITS:
        raise UnheldDocument
    unscaled = int(sign + (digits or "0"))
    if not scale:
        return encoded_integer(unscaled)
    precision = max(len(digits), scale)
    if precision <= 9:
        return pack("<BBi", _DECIMAL4, scale, unscaled)
    if precision <= 18:
        return pack("<BBq", _DECIMAL8, scale, unscaled)
    return bytes([_DECIMAL16, scale]) + unscaled.to_bytes(16, "little", signed=True)


def encoded_integer(value: int) -> bytes:
    """Raises UnheldDocument if it has too many digits."""
    if -(1 << 7) <= value < 1 << 7:
        return _SMALL_INTEGERS[value]
    if -(1 << 15) <= value < 1 << 15:
        return _pack_int16(_INT16, value)
    if -(1 << 31) <= value < 1 << 31:
        return _pack_int32(_INT32, value)
    if -(1 << 63) <= value < 1 << 63:
        return pack("<Bq", _INT64, value)
    if not -(10**MOST_DIGITS) < value < 10**MOST_DIGITS:
        raise UnheldDocument
    return bytes([_DECIMAL16, 0]) + value.to_bytes(16, "little", signed=True)


class ObjectLayout(NamedTuple):
    """What objects with the same names in the same order have in common."""

    names: tuple[str, ...]
    """In the order of the fields."""
    first_byte: int
    """If offsets have one byte each."""
    count_and_ids: bytes

    def start(self, size: int) -> bytes:
        """All that comes before the offsets, which have `size` bytes each."""
        return bytes([self.first_byte | size - 1 << 2]) + self.count_and_ids

    def head(self, ends: Sequence[int]) -> bytes:
        """All that comes before the values, which end at `ends` (the first is 0) behind it."""
        size = _byte_size(ends[-1])
        return self.start(size) + _packed(ends, size)


def array_head(ends: Sequence[int]) -> bytes:
    """All that comes before the elements of an array, which end at `ends` (the first is 0) behind it."""
    size, count = _byte_size(ends[-1]), len(ends) - 1
    large = count > 255
    return array_first_byte(size, large=large) + count.to_bytes(4 if large else 1, "little") + _packed(ends, size)


def array_first_byte(size: int, *, large: bool) -> bytes:
    """`size`: of an offset."""
    return bytes([(large << 2 | size - 1) << 2 | _ARRAY])


class Dictionary:
    """The names of a document."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._ids = {name: place for place, name in enumerate(names)}
        self._layouts: dict[tuple[str, ...], ObjectLayout] = {}
        contents = [name.encode() for name in names]
        ends = list(accumulate(map(len, contents), initial=0))
        size = _byte_size(max(ends[-1], len(names)))
        head = bytes([1 | 1 << 4 | (size - 1) << 6])
        self.metadata = b"".join([head, len(names).to_bytes(size, "little"), _packed(ends, size), *contents])

    def layout(self, names: tuple[str, ...]) -> ObjectLayout:
        """Of an object with these names, in any order."""
        layout = self._layouts.get(names)
        if layout is None:
            ordered = tuple(sorted(names))
            ids = [self._ids[name] for name in ordered]
            size = _byte_size(ids[-1] if ids else 0)
            large = len(ids) > 255
            count = len(ids).to_bytes(4 if large else 1, "little")
            layout = ObjectLayout(ordered, (large << 4 | (size - 1) << 2) << 2 | _OBJECT, count + _packed(ids, size))
            if len(self._layouts) < _CACHED_NAMES:
                self._layouts[names] = layout
        return layout


@lru_cache(maxsize=256)
def _kept_dictionary(names: tuple[str, ...]) -> Dictionary:
    return Dictionary(names)


def dictionary_of(names: Collection[str]) -> Dictionary:
    """Raises UnicodeEncodeError for a lone surrogate."""
    ordered = tuple(sorted(names))
    return _kept_dictionary(ordered) if len(ordered) <= _CACHED_NAMES else Dictionary(ordered)


def encode_tree(value: Any, dictionary: Dictionary) -> bytes:
    """The value of a parsed document, or a part of it. Raises UnheldDocument."""
    kind = type(value)
    if kind is str:
        return encoded_string(value)
    if kind is int:
        return encoded_integer(value)
    if kind is bytes:
        return encoded_number(value.decode())
    if kind is dict:
        layout = dictionary.layout(tuple(value))
        parts = [encode_tree(value[name], dictionary) for name in layout.names]
        ends = list(accumulate(map(len, parts), initial=0))
        return b"".join([layout.head(ends), *parts])
    if kind is list:
        parts = [encode_tree(element, dictionary) for element in value]
        ends = list(accumulate(map(len, parts), initial=0))
        return b"".join([array_head(ends), *parts])
    return LITERALS["null" if value is None else "true" if value else "false"]


def encoded_string(value: str) -> bytes:
    content = value.encode()
    if len(content) <= LONGEST_SHORT_STRING:
        return SHORT_STRING_HEADS[len(content)] + content
    return LONG_STRING_HEAD + pack("<I", len(content)) + content


def _byte_size(largest: int) -> int:
    """Bytes for numbers up to `largest`."""
    return 1 if largest < 1 << 8 else 2 if largest < 1 << 16 else 3 if largest < 1 << 24 else 4


def _packed(numbers: Sequence[int], size: int) -> bytes:
    """Unsigned numbers of `size` bytes each, little-endian."""
    if size <= 2:
        return pack(f"<{len(numbers)}{'BH'[size - 1]}", *numbers)
    return np.asarray(numbers, "<u4").view(np.uint8).reshape(-1, 4)[:, :size].tobytes()
