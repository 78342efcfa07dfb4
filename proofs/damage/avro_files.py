"""Avro files as Python values, by their own schema: a reader and a writer that share nothing with the program's."""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MAGIC = b"Obj\x01"
_MARKER = b"\x5a" * 16
_HEADER: Any = {"type": "map", "values": "bytes"}
_FIXED = {"float": "<f", "double": "<d"}


@dataclass
class AvroFile:
    """A file's header and records."""

    header: dict[str, bytes]
    records: list[dict[str, Any]]

    @classmethod
    def read(cls, path: Path) -> AvroFile:
        content = io.BytesIO(path.read_bytes())
        assert content.read(4) == _MAGIC, path
        header = _value(_HEADER, content)
        content.read(16)
        schema = json.loads(header["avro.schema"])
        records = []
        while content.tell() < len(content.getbuffer()):
            count = _integer(content)
            block = content.read(_integer(content))
            if header.get("avro.codec") == b"deflate":
                block = zlib.decompress(block, -15)
            stream = io.BytesIO(block)
            records += [_value(schema, stream) for _ in range(count)]
            content.read(16)
        return cls(header, records)

    def write(self, path: Path) -> int:
        """Replaces the file. Returns its length."""
        schema = json.loads(self.header["avro.schema"])
        block = b"".join(_encoded(schema, record) for record in self.records)
        if self.header.get("avro.codec") == b"deflate":
            compressor = zlib.compressobj(wbits=-15)
            block = compressor.compress(block) + compressor.flush()
        body = _number(len(self.records)) + _number(len(block)) + block + _MARKER if self.records else b""
        content = _MAGIC + _encoded(_HEADER, self.header) + _MARKER + body
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        return len(content)


def _integer(stream: io.BytesIO) -> int:
    shift = number = 0
    while True:
        byte = stream.read(1)[0]
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return (number >> 1) ^ -(number & 1)


def _number(value: int) -> bytes:
    zigzag = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while zigzag > 0x7F:
        encoded.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    encoded.append(zigzag)
    return bytes(encoded)


def _items(stream: io.BytesIO, read: Callable[[], Any]) -> list[Any]:
    items: list[Any] = []
    while count := _integer(stream):
        if count < 0:
            _integer(stream)
        items += [read() for _ in range(abs(count))]
    return items


def _value(kind: Any, stream: io.BytesIO) -> Any:
    if isinstance(kind, list):
        return _value(kind[_integer(stream)], stream)
    match kind["type"] if isinstance(kind, dict) else kind:
        case "null":
            return None
        case "boolean":
            return stream.read(1) == b"\x01"
        case "int" | "long":
            return _integer(stream)
        case "bytes":
            return stream.read(_integer(stream))
        case "string":
            return stream.read(_integer(stream)).decode()
        case "fixed":
            return stream.read(kind["size"])
        case "record":
            return {field["name"]: _value(field["type"], stream) for field in kind["fields"]}
        case "array":
            return _items(stream, lambda: _value(kind["items"], stream))
        case "map":
            return dict(_items(stream, lambda: (_value("string", stream), _value(kind["values"], stream))))
        case name if name in _FIXED:
            layout = _FIXED[name]
            return struct.unpack(layout, stream.read(struct.calcsize(layout)))[0]
        case other:
            return _value(other, stream)


def _encoded(kind: Any, value: Any) -> bytes:
    if isinstance(kind, list):
        branch = next(place for place, member in enumerate(kind) if (member == "null") is (value is None))
        return _number(branch) + _encoded(kind[branch], value)
    match kind["type"] if isinstance(kind, dict) else kind:
        case "null":
            return b""
        case "boolean":
            return b"\x01" if value else b"\x00"
        case "int" | "long":
            return _number(value)
        case "bytes":
            return _number(len(value)) + bytes(value)
        case "string":
            return _encoded("bytes", value.encode())
        case "fixed":
            return bytes(value)
        case "record":
            return b"".join(_encoded(field["type"], value[field["name"]]) for field in kind["fields"])
        case "array":
            items = [_encoded(kind["items"], item) for item in value]
            return (_number(len(items)) + b"".join(items) if items else b"") + b"\x00"
        case "map":
            items = [_encoded("string", key) + _encoded(kind["values"], item) for key, item in value.items()]
            return (_number(len(items)) + b"".join(items) if items else b"") + b"\x00"
        case name if name in _FIXED:
            return struct.pack(_FIXED[name], value)
        case other:
            return _encoded(other, value)
