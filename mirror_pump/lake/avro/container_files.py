"""Avro object container files, read by pyiceberg's decoders without its schema visit per file."""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Mapping, Sequence

from pyiceberg.avro.codecs import KNOWN_CODECS
from pyiceberg.avro.decoder import BinaryDecoder, new_decoder
from pyiceberg.avro.file import MAGIC, META_SCHEMA, SYNC_SIZE, AvroFileHeader
from pyiceberg.avro.resolver import resolve_reader
from pyiceberg.schema import Schema
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from mirror_pump.lake.avro.record_encoder import write_binary, write_integer, write_strings

_CODEC = "deflate"
_RAW_DEFLATE = -15
"""zlib's window bits for raw deflate (no header, no checksum), which is what Avro's codec means by deflate."""
_SYNC = os.urandom(SYNC_SIZE)
"""Avro's marker between blocks. One per process suffices: it only has to be unlikely to occur in the data."""
_HEADER_READER = resolve_reader(META_SCHEMA, META_SCHEMA, {-1: AvroFileHeader})
_DOUBLE = struct.Struct("<d")


def schema_json(schema: Schema, name: str) -> str:
    """The Avro schema of records of `schema`, in the form that a file's header holds."""
    return json.dumps(AvroSchemaConversion().iceberg_to_avro(schema, schema_name=name))


def container(schema: str, metadata: Mapping[str, str], records: Sequence[bytes]) -> bytes:
    """A whole Avro file of one block.

    `schema` is Avro JSON; each element of `records` is the encoding of one record.
    """
    return container_of_block(file_header(schema, metadata), len(records), b"".join(records))


def file_header(schema: str, metadata: Mapping[str, str]) -> bytes:
    """What an Avro file begins with. Arguments as those of `container`."""
    encoded = bytearray(MAGIC)
    write_strings(encoded, {**metadata, "avro.schema": schema, "avro.codec": _CODEC})
    return bytes(encoded + _SYNC)


def container_of_block(header: bytes, count: int, payload: bytes) -> bytes:
    """A whole Avro file of `count` records. `payload` is their concatenated encodings."""
    encoded = bytearray(header)
    if count:
        write_integer(encoded, count)
        # A window of about the payload's length: to prepare the largest takes longer than to compress some entries.
        # Their paths and numbers are random, so no level finds much more than the first.
        bits = min(max(len(payload).bit_length(), 9), -_RAW_DEFLATE)
        compressor = zlib.compressobj(1, zlib.DEFLATED, -bits, max(bits - 7, 3))
        write_binary(encoded, compressor.compress(payload) + compressor.flush())
        encoded += _SYNC
    return bytes(encoded)


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
    payload = parts[0] if len(parts) == 1 else b"".join(parts)
    # Each record that is read here has a byte at least: what reads them ends, however damaged the count is.
    if not 0 <= count <= len(payload):
        raise ValueError(f"it cannot have {count} records in {len(payload)} bytes")
    return header.meta, payload, count


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
