"""Parquet footers, changed without decoding the rest of the file: structs of Thrift's compact protocol.

Only what changes in a footer is decoded; all else is passed on as it is encoded (parquet.thrift: FileMetaData,
SchemaElement).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, Self

MAGIC = b"PAR1"
_ENDING = 8
"""Bytes of a file after its footer: the footer's length, and the magic."""
_BOOLEANS = (1, 2)
"""Types of Thrift's compact protocol. A boolean's value is its type."""
_BYTE = 3
_INTEGERS = (4, 5, 6)
_DOUBLE = 7
_BINARY = 8
_LIST = 9
_STRUCT = 12
_LONG_LIST = 15
"""From this size on a list's size follows its head."""

_SCHEMA = 2
_NAME, _CHILDREN, _LOGICAL_TYPE = 4, 5, 10
"""Fields of FileMetaData and of its SchemaElement."""
_VARIANT = 16
"""LogicalType's field for variants, a struct whose field 1 is the version of their encoding, a byte."""
_VARIANT_TYPE = bytes([1 << 4 | _BYTE, 1, 0])


def split_footer(content: bytes | memoryview) -> tuple[int, FooterStruct]:
    """Where the footer of a Parquet file begins, and the footer. Raises ValueError."""
    if content[:4] != MAGIC or content[-4:] != MAGIC:
        raise ValueError("it is no Parquet file")
    begin = _begin(content)
    return begin, FooterStruct.of(bytes(content[begin:-_ENDING]))


def _begin(content: bytes | memoryview) -> int:
    """Where the footer begins."""
    return len(content) - _ENDING - int.from_bytes(content[-_ENDING:-4], "little")


def ended(footer: FooterStruct) -> bytes:
    """A footer as the end of a file."""
    encoded = footer.encoded()
    return b"".join((encoded, len(encoded).to_bytes(4, "little"), MAGIC))


def with_variants(ending: bytes, names: Collection[str]) -> bytes:
    """The end of a file, its footer included, in which the top-level columns of these names are annotated as variants,
    as the Parquet format demands of a group of `metadata` and `value`."""
    begin = _begin(ending)
    footer = FooterStruct.of(ending[begin:-_ENDING])
    root, *elements = footer.items(_SCHEMA)
    encoded_names = {name.encode() for name in names}
    annotated, nested = [root], 0
    for element in elements:
        column = FooterStruct.of(element)
        if not nested and column.text(_NAME) in encoded_names:
            column = column.with_field(
                _LOGICAL_TYPE, _STRUCT, FooterStruct(((_VARIANT, _STRUCT, _VARIANT_TYPE),)).encoded()
            )
        nested += (column.integer(_CHILDREN) if column.has(_CHILDREN) else 0) - (1 if nested else 0)
        annotated.append(column.encoded())
    return ending[:begin] + ended(footer.with_items(_SCHEMA, annotated))


class VariantFile:
    """A file for pyarrow's writer whose footer, what is written from `begin_footer` on, is held back: it gets what
    pyarrow does not write, the annotation of variants."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self._footer: bytearray | None = None
        self.closed = False

    def write(self, content: Any) -> int:
        if self._footer is None:
            self._sink.write(content)
        else:
            self._footer += content
        return len(content)

    def tell(self) -> int:
        return int(self._sink.tell()) + len(self._footer or b"")

    def flush(self) -> None:
        """Nothing: the file ends with its owner's block."""

    def begin_footer(self) -> None:
        """The file's rows are complete."""
        self._footer = bytearray()

    def end(self, variants: Collection[str]) -> None:
        """Writes the footer. `variants`: names of the columns that are such."""
        assert self._footer is not None
        self._sink.write(with_variants(bytes(self._footer), variants))


@dataclass(frozen=True)
class FooterStruct:
    """A struct whose fields are encoded."""

    fields: tuple[tuple[int, int, bytes], ...]
    """ID, type and encoding of each, in their order."""

    @classmethod
    def of(cls, encoded: bytes) -> Self:
        fields = []
        number, place = 0, 0
        while head := encoded[place]:
            place += 1
            if head >> 4:
                number += head >> 4
            else:
                number, place = _integer(encoded, place)
            end = _end(encoded, place, head & 15)
            fields.append((number, head & 15, encoded[place:end]))
            place = end
        return cls(tuple(fields))

    def encoded(self) -> bytes:
        encoded, last = bytearray(), 0
        for number, kind, value in self.fields:
            step = number - last
            encoded += bytes([step << 4 | kind]) if 0 < step <= _LONG_LIST else bytes([kind]) + _encoded(number)
            encoded += value
            last = number
        return bytes(encoded) + b"\0"

    def has(self, number: int) -> bool:
        return any(field == number for field, _, _ in self.fields)

    def raw(self, number: int) -> bytes:
        """A field as it is encoded."""
        for field, _, value in self.fields:
            if field == number:
                return value
        raise ValueError(f"the footer lacks the field {number}")

    def text(self, number: int) -> bytes:
        """A field of text, in UTF-8."""
        value = self.raw(number)
        return value[_unsigned(value, 0)[1] :]

    def integer(self, number: int) -> int:
        return _integer(self.raw(number), 0)[0]

    def items(self, number: int) -> list[bytes]:
        """The elements of a list of structs, as they are encoded."""
        value = self.raw(number)
        count, place = _list_head(value, 0)
        elements = []
        for _ in range(count):
            end = _end(value, place, _STRUCT)
            elements.append(value[place:end])
            place = end
        return elements

    def with_raw(self, number: int, value: bytes) -> FooterStruct:
        return self._changed(number, lambda _: value)

    def with_field(self, number: int, kind: int, value: bytes) -> FooterStruct:
        """With one more field, which it lacks so far."""
        return replace(self, fields=tuple(sorted((*self.fields, (number, kind, value)))))

    def plus(self, number: int, summand: int) -> FooterStruct:
        return self._changed(number, lambda value: _encoded(_integer(value, 0)[0] + summand))

    def with_items(self, number: int, elements: list[bytes]) -> FooterStruct:
        count = len(elements)
        is_long = count >= _LONG_LIST
        head = bytes([(_LONG_LIST if is_long else count) << 4 | _STRUCT]) + (_varint(count) if is_long else b"")
        return self.with_raw(number, head + b"".join(elements))

    def _changed(self, number: int, change: Callable[[bytes], bytes]) -> FooterStruct:
        return replace(
            self,
            fields=tuple(
                (field, kind, change(value) if field == number else value) for field, kind, value in self.fields
            ),
        )


def _end(encoded: bytes, place: int, kind: int) -> int:
    """Where a value ends."""
    if kind in _BOOLEANS:
        return place
    if kind == _BYTE:
        return place + 1
    if kind in _INTEGERS:
        return _unsigned(encoded, place)[1]
    if kind == _DOUBLE:
        return place + 8
    if kind == _BINARY:
        size, place = _unsigned(encoded, place)
        return place + size
    if kind == _LIST:
        element = encoded[place] & 15
        count, place = _list_head(encoded, place)
        for _ in range(count):
            place = place + 1 if element in _BOOLEANS else _end(encoded, place, element)
        return place
    if kind == _STRUCT:
        while head := encoded[place]:
            place += 1
            if not head >> 4:
                place = _unsigned(encoded, place)[1]
            place = _end(encoded, place, head & 15)
        return place + 1
    raise ValueError(f"the footer has a value of type {kind}")


def _list_head(encoded: bytes, place: int) -> tuple[int, int]:
    """A list's number of elements, and where they begin."""
    count = encoded[place] >> 4
    return _unsigned(encoded, place + 1) if count == _LONG_LIST else (count, place + 1)


def _unsigned(encoded: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = encoded[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7


def _integer(encoded: bytes, place: int) -> tuple[int, int]:
    value, place = _unsigned(encoded, place)
    return (value >> 1) ^ -(value & 1), place


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


def _encoded(value: int) -> bytes:
    return _varint(value << 1 if value >= 0 else ~(value << 1))
