"""Adds a column to a Parquet file without decoding what the file has: its bytes stay, the column and a footer follow.

A footer is a struct of Thrift's compact protocol. Only what changes in it is decoded; all else is passed on as it is
encoded (parquet.thrift: FileMetaData, SchemaElement, RowGroup, ColumnChunk, ColumnMetaData).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

_MAGIC = b"PAR1"
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


def with_column(content: bytes | memoryview, field: pa.Field, values: pa.Array) -> bytes:
    """The content of a Parquet file with one more column, the last one. `values`: for each row of the file, in order.

    `field` has the metadata PARQUET:field_id. Time and memory: those of a copy, and what the column takes. Raises
    ValueError if this is no Parquet file of so many rows.
    """
    end, footer = _footer(content)
    groups = [_Struct.of(group) for group in footer.items(4)]
    rows = [group.integer(3) for group in groups]
    if sum(rows) != len(values):
        raise ValueError(f"the file has {sum(rows)} rows, the column {len(values)}")
    added = _column_file(field, values, rows)
    added_end, added_footer = _footer(added)
    shift = end - len(_MAGIC)
    columns = [_Struct.of(group) for group in added_footer.items(4)]
    schema = footer.items(2)
    root = _Struct.of(schema[0])
    footer = footer.with_items(2, [root.plus(5, 1).encoded(), *schema[1:], added_footer.items(2)[1]])
    footer = footer.with_items(
        4, [_joined(group, column, shift).encoded() for group, column in zip(groups, columns, strict=True)]
    )
    if footer.has(7) and added_footer.has(7):
        footer = footer.with_items(7, [*footer.items(7), *added_footer.items(7)])
    encoded = footer.encoded()
    return b"".join(
        (content[:end], added[len(_MAGIC) : added_end], encoded, len(encoded).to_bytes(4, "little"), _MAGIC)
    )


def _column_file(field: pa.Field, values: pa.Array, rows: list[int]) -> bytes:
    """A file of the column alone, with row groups of these sizes."""
    sink = BytesIO()
    schema = pa.schema([field])
    with pq.ParquetWriter(
        sink, schema, compression="zstd", compression_level=1, use_dictionary=False, store_schema=False
    ) as writer:
        first = 0
        for number in rows:
            part = pa.table([values.slice(first, number)], schema=schema)
            writer.write_table(part, row_group_size=max(number, 1))
            first += number
    return sink.getvalue()


def _footer(content: bytes | memoryview) -> tuple[int, _Struct]:
    """Where the footer begins, and the footer."""
    if content[:4] != _MAGIC or content[-4:] != _MAGIC:
        raise ValueError("it is no Parquet file")
    begin = len(content) - _ENDING - int.from_bytes(content[-_ENDING:-4], "little")
    return begin, _Struct.of(bytes(content[begin:-_ENDING]))


def _joined(group: _Struct, column: _Struct, shift: int) -> _Struct:
    """A row group with the only column of another one, whose bytes move by so many."""
    (chunk,) = column.items(1)
    group = group.with_items(1, [*group.items(1), _moved(_Struct.of(chunk), shift).encoded()])
    for size in (2, 6):
        if group.has(size):
            group = group.plus(size, column.integer(size))
    return group


def _moved(chunk: _Struct, shift: int) -> _Struct:
    """A column chunk whose bytes move by so many."""
    metadata = _Struct.of(chunk.raw(3))
    for offset in (9, 10, 11):
        if metadata.has(offset):
            metadata = metadata.plus(offset, shift)
    if chunk.integer(2):
        chunk = chunk.plus(2, shift)
    return chunk.with_raw(3, metadata.encoded())


@dataclass(frozen=True)
class _Struct:
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

    def with_raw(self, number: int, value: bytes) -> _Struct:
        return self._changed(number, lambda _: value)

    def plus(self, number: int, summand: int) -> _Struct:
        return self._changed(number, lambda value: _encoded(_integer(value, 0)[0] + summand))

    def with_items(self, number: int, elements: list[bytes]) -> _Struct:
        count = len(elements)
        is_long = count >= _LONG_LIST
        head = bytes([(_LONG_LIST if is_long else count) << 4 | _STRUCT]) + (_varint(count) if is_long else b"")
        return self.with_raw(number, head + b"".join(elements))

    def _changed(self, number: int, change: Callable[[bytes], bytes]) -> _Struct:
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
