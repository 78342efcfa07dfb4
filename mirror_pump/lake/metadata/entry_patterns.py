"""Regular expressions that match the encoding of a manifest's entries: one call instead of forty for each entry.

A pattern is exact. Avro's encodings say themselves where they end, and the pattern spells out all that this depends on:
the lengths of texts, the keys of maps, which values are NULL. So bytes match it only if they are an entry of that
shape, the match ends where the entry ends, and a group holds the encoding of one value. An entry of another shape does
not match, and is for the caller to read otherwise: a pattern may be of no use, but is never wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from mirror_pump.lake.metadata.entry_reader import (
    DATA_FILE,
    FORMAT,
    LOWER_BOUNDS,
    NAN_COUNTS,
    NULL_COUNTS,
    PARTITION,
    PATH,
    RECORDS,
    SEQUENCE_NUMBER,
    SIZE_BYTES,
    STATUS,
    UPPER_BOUNDS,
    VALUE_COUNTS,
    field_id_of,
    keyed,
    parsed_schema,
    record_of,
)

_FIELDS = (STATUS, PARTITION, PATH, FORMAT, RECORDS, SIZE_BYTES, SEQUENCE_NUMBER)
COLUMN_MAPS = (VALUE_COUNTS, NULL_COUNTS, NAN_COUNTS, LOWER_BOUNDS, UPPER_BOUNDS)
_INTEGER = rb"[\x80-\xff]{0,9}+[\x00-\x7f]"
_FIXED = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_LENGTHS_NEAR = 8
"""A text whose length varies may be this much shorter or longer than one that was seen."""
_LENGTHS_OF_BOUNDS = range(25)
"""Bytes of bounds and partitions, if their lengths vary: writers cut text to 16 characters."""
_LONGEST = 8191
"""Bytes of texts that patterns can hold: their length takes at most two bytes."""
_MOST_INTEGERS = 16
"""Of a list, such as that of split offsets."""
_NEVER = rb"(?:(?!)(.))?"
"""A group that matches nothing."""

_Lengths: TypeAlias = tuple[frozenset[int], ...]


class NoPattern(Exception):
    """An entry's shape is none that patterns know."""


@dataclass(frozen=True, slots=True)
class EntryShape:
    """All that the places of values depend on."""

    keys: tuple[tuple[int, ...] | None, ...]
    """Of each map, in the order of the schema; None for a map that is NULL."""
    lengths: _Lengths
    """Of each text, in the order of the schema: bytes that were seen."""

    def with_lengths(self, other: EntryShape) -> EntryShape:
        """The shape of entries of either, which have the same keys."""
        both = zip(self.lengths, other.lengths, strict=True)
        return EntryShape(self.keys, tuple(mine | theirs for mine, theirs in both))


@dataclass(frozen=True, slots=True)
class EntryPattern:
    """What matches an entry of one shape."""

    shape: EntryShape
    compiled: re.Pattern[bytes]
    head: tuple[int, int]
    """Groups of the status and the partition. A group holds the whole encoding, but without the mark of an optional
    value. A value that the entry does not have has a group that matches nothing."""
    rest: tuple[int, ...]
    """Groups of path, format, records, size and sequence number, then of the number of values, of NULLs and of NaNs and
    the lower and upper bound of each wanted column."""


def text_of(encoded: bytes) -> bytes:
    """The bytes of a text that a pattern has found."""
    return encoded[1:] if encoded[0] < 128 else encoded[2:]


def integer_of(encoded: bytes) -> int:
    """The number that a pattern has found, of 64 bits at most."""
    number = 0
    for place, byte in enumerate(encoded):
        number |= (byte & 127) << 7 * place
    number &= (1 << 64) - 1
    return (number >> 1) ^ -(number & 1)


def shape_of(schema: str, row: Sequence[Any]) -> EntryShape:
    """The shape of an entry. `row`: all its values, as an EntryReader of everything reads them. Raises NoPattern."""
    keys: list[tuple[int, ...] | None] = []
    lengths: list[frozenset[int]] = []

    def look(kind: Any, value: Any) -> None:
        kind = _plain(kind)
        if _is_record(kind):
            for place, field in enumerate(kind["fields"]):
                look(field["type"], None if value is None else value[place])
        elif _is_text(kind):
            encoded = value.encode() if isinstance(value, str) else value
            lengths.append(frozenset() if encoded is None else frozenset({len(encoded)}))
        elif (types := _types_of_map(kind)) is not None:
            keys.append(None if value is None else tuple(value))
            if _is_text(types[1]):
                lengths.extend(frozenset({len(bound)}) for bound in (value or {}).values())

    for kind, value in zip((kind for _, kind in _flat(schema)), row, strict=True):
        look(kind, value)
    return EntryShape(tuple(keys), tuple(lengths))


@lru_cache(maxsize=64)
def entry_pattern(schema: str, shape: EntryShape, columns: tuple[int, ...]) -> EntryPattern:
    """The pattern of a shape. `schema`: that of a manifest, as Avro JSON; `columns`: field IDs whose metrics are
    wanted. Raises NoPattern."""
    return _PatternBuilder(shape, columns).built(schema)


class _PatternBuilder:
    def __init__(self, shape: EntryShape, columns: tuple[int, ...]) -> None:
        self._shape = shape
        self._keys = iter(shape.keys)
        self._lengths = iter(shape.lengths)
        self._columns = columns
        self._groups: dict[tuple[int, int | None], int] = {}

    def built(self, schema: str) -> EntryPattern:
        """The pattern."""
        parts = [self._field(field_id, kind) for field_id, kind in _flat(schema)]
        never = len(self._groups) + 1
        wanted: list[tuple[int, int | None]] = [(field, None) for field in _FIELDS]
        wanted += [(field, column) for column in self._columns for field in COLUMN_MAPS]
        groups = tuple(self._groups.get(name, never) for name in wanted)
        return EntryPattern(
            self._shape,
            re.compile(b"".join(parts) + _NEVER, re.DOTALL),
            (groups[0], groups[1]),
            groups[2:],
        )

    def _captured(self, name: tuple[int, int | None], pattern: bytes) -> bytes:
        self._groups[name] = len(self._groups) + 1
        return b"(" + pattern + b")"

    def _field(self, field_id: int | None, kind: Any) -> bytes:
        plain = _plain(kind)
        types = _types_of_map(plain)
        if types is not None:
            return _optional(kind, self._map(field_id, types[1]))
        pattern = self._value(plain, near=field_id == PATH)
        if field_id in _FIELDS and pattern is not None:
            pattern = self._captured((field_id, None), pattern)
        return _optional(kind, pattern)

    def _value(self, kind: Any, *, near: bool = False) -> bytes | None:
        """None for what is NULL in all entries of the shape."""
        if _is_text(kind):
            return _text(next(self._lengths), near=near)
        if _is_record(kind):
            parts = [_optional(field["type"], self._value(_plain(field["type"]))) for field in kind["fields"]]
            return b"".join(parts)
        return _simple(kind)

    def _map(self, field_id: int | None, values: Any) -> bytes | None:
        keys = next(self._keys)
        if keys is None:
            return None
        parts = []
        for key in keys:
            value = _text(next(self._lengths), near=False) if _is_text(values) else _simple(values)
            if value is None:
                raise NoPattern
            if key in self._columns and field_id in COLUMN_MAPS:
                value = self._captured((field_id, key), value)
            parts.append(_encoded(key) + value)
        return _encoded(len(keys)) + b"".join(parts) + rb"\x00" if keys else rb"\x00"


def _flat(schema: str) -> list[tuple[int | None, Any]]:
    """ID and type of each field of an entry, with those of the data file in its place."""
    found: list[tuple[int | None, Any]] = []
    for field in parsed_schema(schema)["fields"]:
        described = record_of(field["type"], {}) if field_id_of(field) == DATA_FILE else None
        members: Iterable[Mapping[str, Any]] = (field,) if described is None else described["fields"]
        found += [(field_id_of(member), member["type"]) for member in members]
    return found


def _plain(kind: Any) -> Any:
    """A type without NULL, and without the annotation around a primitive type."""
    if isinstance(kind, list):
        if len(kind) != 2 or kind[0] != "null":
            raise NoPattern
        kind = kind[1]
    while isinstance(kind, dict) and isinstance(kind["type"], dict):
        kind = kind["type"]
    if (
        isinstance(kind, dict)
        and isinstance(kind["type"], str)
        and kind["type"] not in ("array", "record", "fixed", "map")
    ):
        return kind["type"]
    return kind


def _optional(kind: Any, pattern: bytes | None) -> bytes:
    if not isinstance(kind, list):
        if pattern is None:
            raise NoPattern
        return pattern
    return rb"\x00" if pattern is None else rb"(?:\x02" + pattern + rb"|\x00)"


def _is_text(kind: Any) -> bool:
    return kind in ("string", "bytes")


def _is_record(kind: Any) -> bool:
    return isinstance(kind, dict) and kind["type"] == "record"


def _types_of_map(kind: Any) -> tuple[str, Any] | None:
    """Of keys and values, if it is an array that stands for a map with integers for keys."""
    types = keyed(kind["items"]) if isinstance(kind, dict) and kind["type"] == "array" else None
    if types is None:
        return None
    if types[0] != "int" or types[1] not in ("int", "long", "bytes"):
        raise NoPattern
    return types


def _simple(kind: Any) -> bytes:
    """Of a type whose values need no shape."""
    if kind in ("int", "long"):
        return _INTEGER
    if isinstance(kind, str) and kind in _FIXED:
        return b".{%d}" % _FIXED[kind]
    if isinstance(kind, dict) and kind["type"] == "fixed":
        return b".{%d}" % int(kind["size"])
    if isinstance(kind, dict) and kind["type"] == "array" and kind["items"] in ("int", "long"):
        some = b"|".join(
            _encoded(count) + b"(?:%s){%d}" % (_INTEGER, count) + rb"\x00" for count in range(1, _MOST_INTEGERS)
        )
        return rb"(?:\x00|" + some + b")"
    raise NoPattern


def _text(seen: frozenset[int], *, near: bool) -> bytes | None:
    """Of texts with lengths like those that were seen, which come first."""
    if not seen:
        return None
    if max(seen) > _LONGEST - _LENGTHS_NEAR:
        raise NoPattern
    lengths = dict.fromkeys(sorted(seen))
    if len(seen) > 1 and not near:
        lengths |= dict.fromkeys(_LENGTHS_OF_BOUNDS)
    if near:
        lengths |= dict.fromkeys(range(max(0, min(seen) - _LENGTHS_NEAR), max(seen) + _LENGTHS_NEAR))
    choices = [_encoded(length) + b".{%d}" % length for length in lengths]
    return choices[0] if len(choices) == 1 else b"(?:" + b"|".join(choices) + b")"


def _encoded(number: int) -> bytes:
    """An Avro integer, escaped."""
    rest = (number << 1) ^ (number >> 63)
    found = bytearray()
    while rest > 127:
        found.append(rest & 127 | 128)
        rest >>= 7
    found.append(rest)
    return re.escape(bytes(found))
