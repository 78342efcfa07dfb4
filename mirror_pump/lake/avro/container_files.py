"""Avro object container files by pyiceberg's encoders and decoders, without its schema visit per file."""

from __future__ import annotations

import io
import json
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from pyiceberg.avro.codecs import KNOWN_CODECS
from pyiceberg.avro.decoder import BinaryDecoder, new_decoder
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.file import MAGIC, META_SCHEMA, SYNC_SIZE, AvroFileHeader
from pyiceberg.avro.resolver import construct_writer, resolve_reader
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import StructType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

_CODEC = "deflate"
_RAW_DEFLATE = -15
"""zlib's window bits for raw deflate (no header, no checksum), which is what Avro's codec means by deflate."""
_SYNC = os.urandom(SYNC_SIZE)
"""Avro's marker between blocks. One per process suffices: it only has to be unlikely to occur in the data."""
_META_WRITER = construct_writer(META_SCHEMA)
_HEADER_READER = resolve_reader(META_SCHEMA, META_SCHEMA, {-1: AvroFileHeader})
_DOUBLE = struct.Struct("<d")


_SMALL_INTEGERS = tuple(bytes([number]) for number in range(128))


class _IntegerEncoder(BinaryEncoder):
    """pyiceberg's encoder, with faster integers: an entry has a hundred of them, most of one byte."""

    def write_int(self, integer: int) -> None:
        """Zigzag, 7 bits in a byte, the least first (Avro spec, binary encoding)."""
        number = (integer << 1) ^ (integer >> 63)
        if number < 128:
            self.write(_SMALL_INTEGERS[number])
            return
        encoded = bytearray()
        while number > 127:
            encoded.append((number & 127) | 128)
            number >>= 7
        encoded.append(number)
        self.write(bytes(encoded))


class Encoder:
    """Encodes records of one type to Avro bytes. The writer tree is built once (2 ms) instead of per file."""

    def __init__(self, record_type: StructType) -> None:
        self._writer = construct_writer(record_type)

    def encode(self, *values: Any) -> bytes:
        """Encodes the fields' values, in the type's order, as Avro, where a struct is the sequence of its fields."""
        buffer = io.BytesIO()
        self._writer.write(_IntegerEncoder(buffer), Record(*values))
        return buffer.getvalue()


def schema_json(schema: Schema, name: str) -> str:
    """The Avro schema of records of `schema`, in the form that a file's header holds."""
    return json.dumps(AvroSchemaConversion().iceberg_to_avro(schema, schema_name=name))


def container(schema: str, metadata: Mapping[str, str], records: Sequence[bytes]) -> bytes:
    """A whole Avro file of one block.

    `schema` is Avro JSON; each element of `records` is the encoding of one record.
    """
    return container_of_block(schema, metadata, len(records), b"".join(records))


def container_of_block(schema: str, metadata: Mapping[str, str], count: int, payload: bytes) -> bytes:
    """A whole Avro file of `count` records. `payload` is their concatenated encodings."""
    buffer = io.BytesIO()
    encoder = _IntegerEncoder(buffer)
    header = AvroFileHeader(MAGIC, {**metadata, "avro.schema": schema, "avro.codec": _CODEC}, _SYNC)
    _META_WRITER.write(encoder, header)
    if count:
        encoder.write_int(count)
        # A window of about the payload's length: to prepare the largest takes longer than to compress some entries.
        # Their paths and numbers are random, so no level finds much more than the first.
        bits = min(max(len(payload).bit_length(), 9), -_RAW_DEFLATE)
        compressor = zlib.compressobj(1, zlib.DEFLATED, -bits, max(bits - 7, 3))
        encoder.write_bytes(compressor.compress(payload) + compressor.flush())
        encoder.write(_SYNC)
    return buffer.getvalue()


def read_container(content: bytes) -> tuple[dict[str, str], bytes, int]:
    """A container's metadata, the concatenated encodings of its records, and their number."""
    decoder = new_decoder(content)
    header: AvroFileHeader = _HEADER_READER.read(decoder)
    codec = header.meta.get("avro.codec", "null")
    if codec not in KNOWN_CODECS:
        raise ValueError(f"the codec {codec} is not known")
    parts: list[bytes] = []
    count = 0
    while decoder.tell() < len(content):
        count += decoder.read_int()
        block = decoder.read_bytes()
        parts.append(_decompressed(block, codec))
        if decoder.read(SYNC_SIZE) != header.sync:
            raise ValueError("a block does not end where it says")
    return header.meta, parts[0] if len(parts) == 1 else b"".join(parts), count


def _decompressed(block: bytes, codec: str) -> bytes:
    if codec == _CODEC:
        return zlib.decompress(block, _RAW_DEFLATE)
    decompressor = KNOWN_CODECS[codec]  # type: ignore[index]
    return block if decompressor is None else bytes(decompressor.decompress(block))


def raw_records(content: bytes, schema: str) -> tuple[int, bytes] | None:
    """Count and concatenated encodings of a file's records; None if its schema is not exactly `schema`."""
    metadata, payload, count = read_container(content)
    is_own = metadata["avro.schema"] == schema and metadata.get("avro.codec") == _CODEC
    return (count, payload) if is_own else None


def read_double(decoder: BinaryDecoder) -> float:
    """The next double. pyiceberg's compiled decoder rounds it to 32 bits, so its own method is never called."""
    number: float = _DOUBLE.unpack(decoder.read(_DOUBLE.size))[0]
    return number
