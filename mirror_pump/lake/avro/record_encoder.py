"""Encodes records as Avro by functions that are made once for a type: a commit encodes a few records for each of its
tables, and pyiceberg's writers take most of that time."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from pyiceberg.avro import writer as pyiceberg_writers
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.resolver import construct_writer
from pyiceberg.types import StructType

_Write: TypeAlias = Callable[[bytearray, Any], None]
"""Appends the encoding of a value."""

_INTEGERS = (
    pyiceberg_writers.IntegerWriter,
    pyiceberg_writers.DateWriter,
    pyiceberg_writers.TimeWriter,
    pyiceberg_writers.TimestampWriter,
    pyiceberg_writers.TimestamptzWriter,
)


class Encoder:
    """Encodes records of one type to Avro bytes. The functions are made once (2 ms) instead of per file."""

    def __init__(self, record_type: StructType) -> None:
        self._write = _function(construct_writer(record_type))

    def encode(self, *values: Any) -> bytes:
        """Encodes the fields' values, in the type's order, as Avro, where a struct is the sequence of its fields."""
        encoded = bytearray()
        self._write(encoded, values)
        return bytes(encoded)


def write_integer(encoded: bytearray, value: int) -> None:
    """Zigzag, 7 bits in a byte, the least first (Avro spec, binary encoding)."""
    number = (value << 1) ^ (value >> 63)
    while number > 127:
        encoded.append((number & 127) | 128)
        number >>= 7
    encoded.append(number)


def write_binary(encoded: bytearray, value: bytes) -> None:
    """Bytes with their length before them."""
    write_integer(encoded, len(value))
    encoded += value


def write_string(encoded: bytearray, value: str) -> None:
    """As `write_binary`."""
    write_binary(encoded, value.encode())


def write_optional_string(encoded: bytearray, value: str | None) -> None:
    """A union of null and string."""
    _optional(write_string)(encoded, value)


def write_strings(encoded: bytearray, values: Mapping[str, str]) -> None:
    """A map of strings."""
    _map(write_string, write_string)(encoded, values)


def _function(writer: pyiceberg_writers.Writer) -> _Write:
    """What writes the same bytes as the writer."""
    match writer:
        case pyiceberg_writers.StructWriter():
            return _struct([(place, _function(field)) for place, field in writer.field_writers if place is not None])
        case pyiceberg_writers.OptionWriter():
            return _optional(_function(writer.option))
        case pyiceberg_writers.ListWriter():
            return _list(_function(writer.element_writer))
        case pyiceberg_writers.MapWriter():
            return _map(_function(writer.key_writer), _function(writer.value_writer))
        case pyiceberg_writers.StringWriter():
            return write_string
        case pyiceberg_writers.BinaryWriter():
            return write_binary
    return write_integer if isinstance(writer, _INTEGERS) else _any(writer)


def _struct(fields: Sequence[tuple[int, _Write]]) -> _Write:
    def write(encoded: bytearray, values: Sequence[Any]) -> None:
        for place, write_field in fields:
            write_field(encoded, values[place])

    return write


def _optional(write_value: _Write) -> _Write:
    """A union of null and the type, with the branch's number before the value, in zigzag."""

    def write(encoded: bytearray, value: Any) -> None:
        if value is None:
            encoded.append(0)
        else:
            encoded.append(2)
            write_value(encoded, value)

    return write


def _list(write_element: _Write) -> _Write:
    """One block, and the empty one that ends the list."""

    def write(encoded: bytearray, values: Sequence[Any]) -> None:
        write_integer(encoded, len(values))
        for value in values:
            write_element(encoded, value)
        if values:
            encoded.append(0)

    return write


def _map(write_key: _Write, write_value: _Write) -> _Write:
    """As `_list`, of keys and values in turn."""

    def write(encoded: bytearray, values: Mapping[Any, Any]) -> None:
        write_integer(encoded, len(values))
        for key, value in values.items():
            write_key(encoded, key)
            write_value(encoded, value)
        if values:
            encoded.append(0)

    return write


def _any(writer: pyiceberg_writers.Writer) -> _Write:
    """pyiceberg's own, for what few manifests have."""

    def write(encoded: bytearray, value: Any) -> None:
        buffer = io.BytesIO()
        writer.write(BinaryEncoder(buffer), value)
        encoded += buffer.getvalue()

    return write
