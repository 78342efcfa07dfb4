"""Encodes a text of json or jsonb as a variant (apache/parquet-format, VariantEncoding.md).

Every choice that the format leaves is made the same way, so that equal documents have equal bytes: the dictionary is
sorted and has no name twice, fields lie in the order of their names, and each size is the least. An integer is an int
of the least width or, beyond 64 bits, a decimal of scale 0. Other numbers are the least decimal that has room for the
digits, and for the scale too, as readers check. No number becomes a double.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from json import JSONDecoder
from struct import pack
from typing import Any, NamedTuple

import numpy as np

MOST_DIGITS = 38
"""Of a decimal, and the largest scale."""
MOST_LEVELS = 500
"""Arrays and objects in each other. Spark's to_json() calls itself for each, and ends its process beyond a thousand."""
MOST_BYTES = 128 << 20
"""Of the metadata, and of the value: Spark reads no larger ones."""
LONG_TEXT = 1 << 20
"""Characters from which on a text is encoded without a tree of its values."""
_LONG_STRING = 64
"""Bytes from which on a string does not fit the short form."""
_CACHED_NAMES = 256
"""Names of the largest dictionary that is kept for the next document."""
_NUMBER = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?)0*([0-9]+))?")
_EXPONENTS_BELOW = (2**31 - 1) // 2
"""Of json only: Postgres's numeric refuses larger ones, even of zero."""

_SHORT_STRING, _OBJECT, _ARRAY = 1, 2, 3
LITERALS = {"null": bytes([0 << 2]), "true": bytes([1 << 2]), "false": bytes([2 << 2])}
"""The bytes of what has no others."""
_INT8, _INT16, _INT32, _INT64 = (type_id << 2 for type_id in (3, 4, 5, 6))
_DECIMAL4, _DECIMAL8, _DECIMAL16 = (type_id << 2 for type_id in (8, 9, 10))
_STRING = 16 << 2
_SHORT_HEADS = [bytes([length << 2 | _SHORT_STRING]) for length in range(_LONG_STRING)]


class EncodedVariant(NamedTuple):
    """The two binary values of a variant."""

    metadata: bytes
    value: bytes


class UnheldDocument(Exception):
    """A variant cannot hold the document."""


def encode_tree(text: str) -> EncodedVariant:
    """The variant of a text. Raises UnheldDocument, UnicodeEncodeError for a lone surrogate, RecursionError, or
    ValueError if the text is not JSON."""
    names: set[str] = set()

    def fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        document = dict(pairs)
        if len(document) != len(pairs):
            raise UnheldDocument
        names.update(document)
        return document

    decoder = JSONDecoder(
        object_pairs_hook=fields,
        parse_int=encoded_number,
        parse_float=encoded_number,
        parse_constant=_refuse_constant,
    )
    tree = decoder.decode(text)
    if text.count("[") + text.count("{") > MOST_LEVELS:
        _check_levels(tree)
    dictionary = _dictionary(tuple(sorted(names)))
    return EncodedVariant(dictionary.metadata, _encoded(tree, dictionary))


def _check_levels(tree: Any) -> None:
    level, count = [tree], 0
    while containers := [value for value in level if type(value) in (dict, list)]:
        count += 1
        if count > MOST_LEVELS:
            raise UnheldDocument
        level = [value for parent in containers for value in (parent.values() if type(parent) is dict else parent)]


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
        return _integer(unscaled)
    precision = max(len(digits), scale)
    if precision <= 9:
        return pack("<BBi", _DECIMAL4, scale, unscaled)
    if precision <= 18:
        return pack("<BBq", _DECIMAL8, scale, unscaled)
    return bytes([_DECIMAL16, scale]) + unscaled.to_bytes(16, "little", signed=True)


def _integer(value: int) -> bytes:
    if -(1 << 7) <= value < 1 << 7:
        return pack("<Bb", _INT8, value)
    if -(1 << 15) <= value < 1 << 15:
        return pack("<Bh", _INT16, value)
    if -(1 << 31) <= value < 1 << 31:
        return pack("<Bi", _INT32, value)
    if -(1 << 63) <= value < 1 << 63:
        return pack("<Bq", _INT64, value)
    return bytes([_DECIMAL16, 0]) + value.to_bytes(16, "little", signed=True)


class ObjectLayout(NamedTuple):
    """What objects with the same names in the same order have in common."""

    names: tuple[str, ...]
    """In the order of the fields."""
    first_byte: int
    """If offsets have one byte each."""
    count_and_ids: bytes

    def head(self, ends: Sequence[int]) -> bytes:
        """All that comes before the values, which end at `ends` (the first is 0) behind it."""
        size = _byte_size(ends[-1])
        return bytes([self.first_byte | size - 1 << 2]) + self.count_and_ids + _packed(ends, size)


def array_head(ends: Sequence[int]) -> bytes:
    """All that comes before the elements of an array, which end at `ends` (the first is 0) behind it."""
    size, count = _byte_size(ends[-1]), len(ends) - 1
    large = count > 255
    return (
        bytes([(large << 2 | size - 1) << 2 | _ARRAY])
        + count.to_bytes(4 if large else 1, "little")
        + _packed(ends, size)
    )


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


def _dictionary(names: tuple[str, ...]) -> Dictionary:
    return _kept_dictionary(names) if len(names) <= _CACHED_NAMES else Dictionary(names)


def _encoded(value: Any, dictionary: Dictionary) -> bytes:
    """A parsed value, whose numbers are encoded already."""
    kind = type(value)
    if kind is bytes:
        return value  # type: ignore[no-any-return]
    if kind is str:
        return encoded_string(value)
    if kind is dict:
        layout = dictionary.layout(tuple(value))
        parts = [_encoded(value[name], dictionary) for name in layout.names]
        ends = list(accumulate(map(len, parts), initial=0))
        return b"".join([layout.head(ends), *parts])
    if kind is list:
        parts = [_encoded(element, dictionary) for element in value]
        ends = list(accumulate(map(len, parts), initial=0))
        return b"".join([array_head(ends), *parts])
    return LITERALS["null" if value is None else "true" if value else "false"]


def encoded_string(value: str) -> bytes:
    content = value.encode()
    if len(content) < _LONG_STRING:
        return _SHORT_HEADS[len(content)] + content
    return pack("<BI", _STRING, len(content)) + content


def _byte_size(largest: int) -> int:
    """Bytes for numbers up to `largest`."""
    return 1 if largest < 1 << 8 else 2 if largest < 1 << 16 else 3 if largest < 1 << 24 else 4


def _packed(numbers: Sequence[int], size: int) -> bytes:
    """Unsigned numbers of `size` bytes each, little-endian."""
    if size <= 2:
        return pack(f"<{len(numbers)}{'BH'[size - 1]}", *numbers)
    return np.asarray(numbers, "<u4").view(np.uint8).reshape(-1, 4)[:, :size].tobytes()
