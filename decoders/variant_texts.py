"""The text of a variant: what PostgreSQL prints for the jsonb of it (apache/parquet-format, VariantEncoding.md).

Reads whatever the format allows, as other engines write it: dictionaries in any order, sizes above the least, fields in
any place. The children of an object or array may not overlap: so the work is proportional to the bytes, and damaged
bytes end in an error.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from functools import lru_cache
from itertools import chain, pairwise, repeat
from json.encoder import encode_basestring
from struct import unpack, unpack_from
from typing import NamedTuple
from uuid import UUID

import numpy as np

from decoders.variant_encoding import MOST_DIGITS

_Ints = Sequence[int] | memoryview
_VERSION = 1
_PRIMITIVE, _SHORT_STRING, _OBJECT, _ARRAY = range(4)
_KEPT_METADATA = 1 << 14
"""Bytes of the largest metadata that is kept decoded for the next document."""
_JOINED_PARTS = 1 << 16
"""Parts of a text that wait to be joined, so that memory does not grow with their number."""
_FEW = 256
"""Children of the largest object or array whose places are computed without numpy."""
_KEPT_ORDERS = 256
"""Objects of the same names, per kept metadata."""


def document_text(metadata: bytes, value: bytes) -> str:
    """Raises ValueError for bytes that are no variant."""
    names = _kept_names(metadata) if len(metadata) <= _KEPT_METADATA else _FieldNames(metadata)
    chunks: list[str] = []
    parts: list[str] = []
    append = parts.append
    open_containers: list[tuple[Iterator[tuple[str, int, int]], str]] = []
    children: Iterator[tuple[str, int, int]] = iter([("", 0, len(value))])
    closing = ""
    while True:
        for prefix, start, end in children:
            append(prefix)
            if len(parts) > _JOINED_PARTS:
                chunks.append("".join(parts))
                parts.clear()
            if start >= end:
                raise _damaged(start)
            head = value[start]
            basic_type = head & 3
            if basic_type == _SHORT_STRING:
                after = start + 1 + (head >> 2)
                if after > end:
                    raise _damaged(start)
                append(_string(value[start + 1 : after]))
            elif basic_type == _PRIMITIVE:
                append(_primitive(value, start, end))
            else:
                open_containers.append((children, closing))
                if basic_type == _OBJECT:
                    append("{")
                    children, closing = _fields(names, value, start, end), "}"
                else:
                    append("[")
                    children, closing = _elements(value, start, end), "]"
                break
        else:
            append(closing)
            if not open_containers:
                return "".join(chunks + parts)
            children, closing = open_containers.pop()


class _FieldNames:
    """The dictionary of a variant."""

    def __init__(self, metadata: bytes) -> None:
        if not metadata or metadata[0] & 15 != _VERSION:
            raise ValueError(f"the metadata of a variant is of version {_VERSION}: {metadata[:16].hex()}")
        size = (metadata[0] >> 6) + 1
        count = int.from_bytes(metadata[1 : 1 + size], "little")
        begin = 1 + size * (count + 2)
        if len(metadata) < begin:
            raise ValueError("the metadata of a variant ends before its names")
        ends = _numbers(metadata, 1 + size, size, count + 1)
        if ends[0] or begin + ends[-1] > len(metadata) or any(map(int.__gt__, ends, ends[1:])):
            raise ValueError("the names in the metadata of a variant are not where it says")
        contents = [metadata[begin + start : begin + end] for start, end in pairwise(ends)]
        self._prefixes = [_string(content) + ": " for content in contents]
        self._order = [(len(content), content) for content in contents]
        self._orders: dict[tuple[int, ...], tuple[list[int], list[str]]] = {}

    def order(self, ids: tuple[int, ...]) -> tuple[list[int], list[str]]:
        """In which order the fields of an object with these names are printed, and what comes before each value."""
        order = self._orders.get(ids)
        if order is None:
            if ids and max(ids) >= len(self._order):
                raise ValueError("an object in a variant has a name that is not in the metadata")
            names = [self._order[field_id] for field_id in ids]
            if len(set(names)) < len(names):
                raise ValueError("an object in a variant has a name twice")
            places = sorted(range(len(ids)), key=names.__getitem__)
            prefixes = [(", " if number else "") + self._prefixes[ids[place]] for number, place in enumerate(places)]
            order = places, prefixes
            if len(self._orders) < _KEPT_ORDERS:
                self._orders[ids] = order
        return order


@lru_cache(maxsize=256)
def _kept_names(metadata: bytes) -> _FieldNames:
    return _FieldNames(metadata)


def _fields(names: _FieldNames, value: bytes, start: int, end: int) -> Iterator[tuple[str, int, int]]:
    """The fields of an object: the text before each value, where it starts, and where it ends at the latest."""
    head = value[start] >> 2
    id_size = (head >> 2 & 3) + 1
    count, ids_at = _count(value, start, end, large=bool(head >> 4 & 1))
    starts, ends = _extents(value, ids_at + id_size * count, (head & 3) + 1, count, end)
    places, prefixes = names.order(tuple(_numbers(value, ids_at, id_size, count)))
    return zip(prefixes, [starts[place] for place in places], [ends[place] for place in places], strict=True)


def _elements(value: bytes, start: int, end: int) -> Iterator[tuple[str, int, int]]:
    """The elements of an array, as `_fields`."""
    head = value[start] >> 2
    count, offsets_at = _count(value, start, end, large=bool(head >> 2 & 1))
    starts, ends = _extents(value, offsets_at, (head & 3) + 1, count, end)
    return zip(chain(("",), repeat(", ")), starts, ends, strict=False)


def _count(value: bytes, start: int, end: int, *, large: bool) -> tuple[int, int]:
    """Of the children, and where the count ends."""
    after = start + (5 if large else 2)
    if after > end:
        raise _damaged(start)
    return int.from_bytes(value[start + 1 : after], "little"), after


def _extents(value: bytes, offsets_at: int, size: int, count: int, end: int) -> tuple[_Ints, _Ints]:
    """Where each child starts, and where the next one in the bytes does."""
    begin = offsets_at + size * (count + 1)
    if begin > end:
        raise _damaged(offsets_at)
    offsets = _numbers(value, offsets_at, size, count + 1)
    if begin + offsets[-1] > end:
        raise _damaged(offsets_at)
    if count < _FEW:
        places = [begin + offset for offset in offsets]
        starts, ends = places[:-1], places[1:]
        if not any(map(int.__gt__, starts, ends)):
            return starts, ends
    all_places = np.fromiter(offsets, np.int64, count + 1) + begin
    following = np.sort(all_places)
    if following[-1] != all_places[-1] or (following[1:] == following[:-1]).any():
        raise _damaged(offsets_at)
    return all_places[:-1].data, following[np.searchsorted(following, all_places[:-1]) + 1].data


def _numbers(content: bytes, start: int, size: int, count: int) -> _Ints:
    """`count` unsigned numbers of `size` bytes each."""
    if size == 1:
        return content[start : start + count]
    if size == 2:
        return unpack_from(f"<{count}H", content, start)
    octets = np.zeros((count, 4), np.uint8)
    octets[:, :size] = np.frombuffer(content, np.uint8, size * count, start).reshape(count, size)
    return octets.view("<u4").ravel().data


def _string(content: bytes) -> str:
    try:
        return encode_basestring(content.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"a string in a variant is not UTF-8: {error}") from error


def _damaged(place: int) -> ValueError:
    return ValueError(f"a variant is damaged: what begins at byte {place} does not end where it has to")


class _Primitive(NamedTuple):
    """A primitive type of a fixed size."""

    size: int
    text: Callable[[bytes], str]


def _primitive(value: bytes, start: int, end: int) -> str:
    type_id = value[start] >> 2
    if type_id in (_BINARY, _STRING):
        begin = start + 5
        after = begin + int.from_bytes(value[start + 1 : begin], "little")
        if after > end or begin > end:
            raise _damaged(start)
        content = value[begin:after]
        return _string(content) if type_id == _STRING else f'"{b64encode(content).decode()}"'
    primitive = _PRIMITIVES.get(type_id)
    if primitive is None:
        raise ValueError(f"a variant has a value of type {type_id}, which the format did not have yet")
    after = start + 1 + primitive.size
    if after > end:
        raise _damaged(start)
    return primitive.text(value[start + 1 : after])


def _integer(content: bytes) -> str:
    return str(int.from_bytes(content, "little", signed=True))


def _decimal(content: bytes) -> str:
    scale = content[0]
    if scale > MOST_DIGITS:
        raise ValueError(f"a decimal in a variant has the scale {scale}")
    unscaled = int.from_bytes(content[1:], "little", signed=True)
    if not scale:
        return str(unscaled)
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    return f"{'-' if unscaled < 0 else ''}{digits[:-scale]}.{digits[-scale:]}"


def _double(content: bytes) -> str:
    return _floating(repr(unpack("<d", content)[0]))


def _float(content: bytes) -> str:
    return _floating(str(np.frombuffer(content, "<f4")[0]))


def _floating(shortest: str) -> str:
    """As to_jsonb() prints a float: in full, and as a string if it is no number."""
    number = Decimal(shortest)
    if not number.is_finite():
        return '"NaN"' if number.is_nan() else f'"{"-" if number < 0 else ""}Infinity"'
    text = format(number + 0, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _date(content: bytes) -> str:
    return f'"{_calendar(int.from_bytes(content, "little", signed=True))}"'


def _timestamp(content: bytes, per_second: int, zone: str) -> str:
    seconds, fraction = divmod(int.from_bytes(content, "little", signed=True), per_second)
    day, second = divmod(seconds, _DAY)
    return f'"{_calendar(day)} {_clock(second, fraction, per_second)}{zone}"'


def _time(content: bytes) -> str:
    micros = int.from_bytes(content, "little", signed=True)
    if not 0 <= micros < _DAY * _MICROS:
        raise ValueError(f"a time in a variant is outside of a day: {micros} microseconds")
    return f'"{_clock(*divmod(micros, _MICROS), _MICROS)}"'


def _calendar(day: int) -> str:
    """The date that is so many days after 1970-01-01, as Java prints it."""
    text = str(np.datetime64(day, "D"))
    year = int(text[: -len("-01-01")])
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04}{text[-len('-01-01') :]}"


def _clock(second: int, fraction: int, per_second: int) -> str:
    text = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
    return f"{text}.{fraction + per_second}".replace(".1", ".", 1).rstrip("0") if fraction else text


_DAY = 86_400
_MICROS, _NANOS = 10**6, 10**9
_ZONE = "+00:00"
_BINARY, _STRING = 15, 16
_PRIMITIVES = {
    0: _Primitive(0, lambda _: "null"),
    1: _Primitive(0, lambda _: "true"),
    2: _Primitive(0, lambda _: "false"),
    3: _Primitive(1, _integer),
    4: _Primitive(2, _integer),
    5: _Primitive(4, _integer),
    6: _Primitive(8, _integer),
    7: _Primitive(8, _double),
    8: _Primitive(5, _decimal),
    9: _Primitive(9, _decimal),
    10: _Primitive(17, _decimal),
    11: _Primitive(4, _date),
    12: _Primitive(8, lambda content: _timestamp(content, _MICROS, _ZONE)),
    13: _Primitive(8, lambda content: _timestamp(content, _MICROS, "")),
    14: _Primitive(4, _float),
    17: _Primitive(8, _time),
    18: _Primitive(8, lambda content: _timestamp(content, _NANOS, _ZONE)),
    19: _Primitive(8, lambda content: _timestamp(content, _NANOS, "")),
    20: _Primitive(16, lambda content: f'"{UUID(bytes=content)}"'),
}
"""By type ID. Numbers are printed as to_jsonb() does, times as Spark's to_json() in UTC."""
