"""Avro object container files by pyiceberg's encoders and decoders, without its schema visit per file."""

from __future__ import annotations

import io
import json
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from pyiceberg.avro.codecs import KNOWN_CODECS
from pyiceberg.avro.codecs.codec import Codec
from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.file import MAGIC, META_SCHEMA, SYNC_SIZE, AvroFile, AvroFileHeader, D
from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import construct_reader, construct_writer, resolve_reader
from pyiceberg.io import InputFile
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


class Encoder:
    """Encodes records of one type to Avro bytes. The writer tree is built once (2 ms) instead of per file."""

    def __init__(self, record_type: StructType) -> None:
        self._writer = construct_writer(record_type)

    def encode(self, *values: Any) -> bytes:
        """Encodes the fields' values, in the type's order, as Avro, where a struct is the sequence of its fields."""
        buffer = io.BytesIO()
        self._writer.write(BinaryEncoder(buffer), Record(*values))
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
    encoder = BinaryEncoder(buffer)
    header = AvroFileHeader(MAGIC, {**metadata, "avro.schema": schema, "avro.codec": _CODEC}, _SYNC)
    _META_WRITER.write(encoder, header)
    if count:
        encoder.write_int(count)
        compressor = zlib.compressobj(wbits=_RAW_DEFLATE)
        encoder.write_bytes(compressor.compress(payload) + compressor.flush())
        encoder.write(_SYNC)
    return buffer.getvalue()


def raw_records(content: bytes, schema: str) -> tuple[int, bytes] | None:
    """Count and concatenated encodings of a file's records; None if its schema is not exactly `schema`."""
    with OpenedFile[Record](BytesInput(content)) as file:
        if file.header.meta.get("avro.schema") != schema or file.header.meta.get("avro.codec") != _CODEC:
            return None
        count = 0
        payloads: list[bytes] = []
        while True:
            try:
                count += file.decoder.read_int()
            except EOFError:
                return count, b"".join(payloads)
            payloads.append(zlib.decompress(file.decoder.read_bytes(), _RAW_DEFLATE))
            file.decoder.read(SYNC_SIZE)


def read_records(content: bytes, schema_for: Callable[[Schema], Schema]) -> tuple[Schema, list[Record]]:
    """Decodes an Avro file of any engine. `schema_for` maps the file's own schema to the schema to read it as.

    Returns the file's schema and its records. Structs become `Record`s in the reading schema's field order.
    """
    with OpenedFile[Record](BytesInput(content)) as file:
        own = file.schema
    with OpenedFile[Record](BytesInput(content), schema_for(own)) as file:
        return own, list(file)


_READERS: dict[tuple[object, ...], tuple[Schema, Reader]] = {}
_MOST_READERS = 256
"""Limit of the cache of readers. Files have few distinct schemas: one for each engine and partition type."""


class _FileHeader(AvroFileHeader):
    """pyiceberg's header of an Avro file, without the import of all of pyiceberg's tables for a default."""

    def compression_codec(self) -> type[Codec] | None:
        """The codec that the file names; none means that blocks are not compressed (Avro spec, required codecs).
        Raises ValueError for an unknown one."""
        name = self.meta.get("avro.codec", "null")
        if name not in KNOWN_CODECS:
            raise ValueError(f"Unsupported codec: {name}")
        codec: type[Codec] | None = KNOWN_CODECS[name]
        return codec


class OpenedFile(AvroFile[D]):
    """pyiceberg's AvroFile, with one tree of readers shared by all files of a schema.

    pyiceberg builds a tree for every file and never frees it: readers are singletons by their arguments, and some of
    the arguments are new objects each time. That would leak 0.1 MB per file read.
    """

    def __enter__(self) -> OpenedFile[D]:
        with self.input_file.open() as stream:
            self.decoder = new_decoder(stream.read())
        self.header = self._read_header()
        key = (
            self.header.meta["avro.schema"],
            None if self.read_schema is None else self.read_schema.model_dump_json(),
            tuple(self.read_types.items()),
            tuple(self.read_enums.items()),
        )
        known = _READERS.get(key)
        if known is None:
            own = self.header.get_schema()
            known = own, resolve_reader(own, self.read_schema or own, self.read_types, self.read_enums)
            if len(_READERS) >= _MOST_READERS:
                _READERS.clear()
            _READERS[key] = known
        self.schema, self.reader = known
        self.read_schema = self.read_schema or self.schema
        return self

    def _read_header(self) -> AvroFileHeader:
        header: AvroFileHeader = construct_reader(META_SCHEMA, {-1: _FileHeader}).read(self.decoder)
        return header


class BytesInput(InputFile):
    """Bytes in memory as an InputFile, which pyiceberg's readers expect."""

    def __init__(self, content: bytes) -> None:
        super().__init__("memory")
        self._content = content

    def __len__(self) -> int:
        return len(self._content)

    def exists(self) -> bool:
        """Always True."""
        return True

    def open(self, seekable: bool = True) -> _BytesStream:  # noqa: ARG002 - pyiceberg's signature
        """The bytes as a stream."""
        return _BytesStream(self._content)


class _BytesStream(io.BytesIO):
    """BytesIO with the exact methods of pyiceberg's protocol."""

    def __enter__(self) -> _BytesStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
