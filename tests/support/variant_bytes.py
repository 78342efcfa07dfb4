"""Variants of tests: read byte by byte with all that decoders/variant_encoding.py promises, or written in any other way
that the format allows."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from typing import Any

_PRIMITIVES = {
    0: 0, 1: 0, 2: 0, 3: 1, 4: 2, 5: 4, 6: 8, 7: 8, 8: 5, 9: 9, 10: 17, 11: 4, 12: 8, 13: 8, 14: 4, 17: 8, 18: 8,
    19: 8, 20: 16,
}  # fmt: skip
"""Bytes of each primitive type of a fixed size."""
_LIMITS = {3: 7, 4: 15, 5: 31, 6: 63}


def _least(largest: int) -> int:
    return max(1, (largest.bit_length() + 7) // 8)


def _ints(content: bytes, size: int) -> list[int]:
    assert len(content) % size == 0
    return [int.from_bytes(content[place : place + size], "little") for place in range(0, len(content), size)]


def names_of(metadata: bytes) -> list[bytes]:
    """The dictionary. Asserts that it is sorted, without a name twice, and of the least size."""
    assert metadata[0] & 0x3F == 0x11, "version 1, sorted"
    size = (metadata[0] >> 6) + 1
    count = int.from_bytes(metadata[1 : 1 + size], "little")
    begin = 1 + size * (count + 2)
    ends = _ints(metadata[1 + size : begin], size)
    assert size == _least(max(count, ends[-1]))
    assert len(metadata) == begin + ends[-1]
    names = [metadata[begin + start : begin + end] for start, end in itertools.pairwise(ends)]
    assert ends[0] == 0
    assert names == sorted(set(names))
    return names


def assert_canonical(metadata: bytes, value: bytes) -> None:
    """Asserts that each byte is as the one encoding of a document has it."""
    names = names_of(metadata)
    used: set[int] = set()
    _check(value, names, used)
    assert used == set(range(len(names))), "the dictionary has the names of the document alone"


def _check(value: bytes, names: list[bytes], used: set[int]) -> None:
    basic_type, header = value[0] & 3, value[0] >> 2
    if basic_type == 0:
        _check_primitive(value, header)
    elif basic_type == 1:
        assert len(value) == 1 + header
        value[1:].decode()
    else:
        large = header >> (4 if basic_type == 2 else 2)
        count_size = 4 if large else 1
        count = int.from_bytes(value[1 : 1 + count_size], "little")
        assert large == (count > 255)
        place = 1 + count_size
        if basic_type == 2:
            id_size = (header >> 2 & 3) + 1
            ids = _ints(value[place : place + count * id_size], id_size)
            place += count * id_size
            assert id_size == _least(max(ids, default=0))
            assert ids == sorted(set(ids)), "in the order of the names, each once"
            used.update(ids)
        offset_size = (header & 3) + 1
        ends = _ints(value[place : place + (count + 1) * offset_size], offset_size)
        place += (count + 1) * offset_size
        assert offset_size == _least(ends[-1])
        assert ends[0] == 0
        assert ends == sorted(ends)
        assert place + ends[-1] == len(value)
        for start, end in itertools.pairwise(ends):
            _check(value[place + start : place + end], names, used)


def _check_primitive(value: bytes, type_id: int) -> None:
    if type_id == 16:
        length = int.from_bytes(value[1:5], "little")
        assert length == len(value) - 5 >= 64
        value[5:].decode()
        return
    assert type_id <= 10
    assert type_id != 7, "no number is a double"
    assert len(value) == 1 + _PRIMITIVES[type_id]
    if type_id in _LIMITS:
        number = int.from_bytes(value[1:], "little", signed=True)
        bits = _LIMITS[type_id]
        assert bits == 7 or not -(1 << bits // 2) <= number < 1 << bits // 2
    elif type_id >= 8:
        unscaled = int.from_bytes(value[2:], "little", signed=True)
        digits = max(len(str(abs(unscaled))), value[1])
        assert digits <= (9, 18, 38)[type_id - 8]
        if value[1]:
            assert type_id == 8 or digits > (9, 18)[type_id - 9]
        else:
            assert not -(1 << 63) <= unscaled < 1 << 63


def loose_variant(document: Any, choose: Callable[[int], int]) -> tuple[bytes, bytes]:
    """A variant of parsed JSON without fractions, as engines may write it. `choose(n)` is a number from 0 to n - 1."""
    unique: dict[str, None] = {}
    _collect(document, unique)
    # Names that the document lacks, or names twice, are allowed in a dictionary that is not sorted.
    names = [*unique, "unused", *list(unique)[: choose(3)]]
    names.sort(key=lambda _: choose(1 << 20))
    contents = [name.encode() for name in names]
    ids: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        ids.setdefault(name, []).append(place)
    ends = [0]
    for content in contents:
        ends.append(ends[-1] + len(content))
    size = min(4, _least(max(ends[-1], len(contents))) + choose(3))
    metadata = bytes([1 | (size - 1) << 6]) + b"".join(
        number.to_bytes(size, "little") for number in (len(contents), *ends)
    )
    return metadata + b"".join(contents), _loose(document, ids, choose)


def _collect(document: Any, names: dict[str, None]) -> None:
    if isinstance(document, dict):
        names.update(dict.fromkeys(document))
        document = list(document.values())
    if isinstance(document, list):
        for element in document:
            _collect(element, names)


def _loose(document: Any, ids_of: dict[str, list[int]], choose: Callable[[int], int]) -> bytes:
    if isinstance(document, dict):
        fields = [(name, _loose(value, ids_of, choose)) for name, value in document.items()]
        written = [fields[place] for place in sorted(range(len(fields)), key=lambda place: (choose(1000), place))]
        starts: dict[str, int] = {}
        place = 0
        for name, content in written:
            starts[name] = place
            place += len(content)
        ordered = sorted(starts, key=lambda name: name.encode())
        ids = [ids_of[name][choose(len(ids_of[name]))] for name in ordered]
        id_size = min(4, _least(max([0, *ids])) + choose(3))
        offset_size = min(4, _least(place) + choose(3))
        large = len(fields) > 255 or choose(2)
        parts = [bytes([(large << 4 | id_size - 1 << 2 | offset_size - 1) << 2 | 2])]
        parts.append(len(fields).to_bytes(4 if large else 1, "little"))
        parts += [field_id.to_bytes(id_size, "little") for field_id in ids]
        parts += [offset.to_bytes(offset_size, "little") for offset in (*(starts[name] for name in ordered), place)]
        return b"".join(parts + [content for _, content in written])
    if isinstance(document, list):
        elements = [_loose(element, ids_of, choose) for element in document]
        ends = [0]
        for element in elements:
            ends.append(ends[-1] + len(element))
        offset_size = min(4, _least(ends[-1]) + choose(3))
        large = len(elements) > 255 or choose(2)
        head = bytes([(large << 2 | offset_size - 1) << 2 | 3]) + len(elements).to_bytes(4 if large else 1, "little")
        return head + b"".join(end.to_bytes(offset_size, "little") for end in ends) + b"".join(elements)
    if isinstance(document, str):
        content = document.encode()
        if len(content) < 64 and choose(2):
            return bytes([len(content) << 2 | 1]) + content
        return bytes([16 << 2]) + struct.pack("<I", len(content)) + content
    if isinstance(document, bool) or document is None:
        return bytes([(0 if document is None else 1 if document else 2) << 2])
    assert isinstance(document, int)
    if -(1 << 63) <= document < 1 << 63 and choose(2):
        return bytes([6 << 2]) + struct.pack("<q", document)
    return bytes([10 << 2, 0]) + document.to_bytes(16, "little", signed=True)
