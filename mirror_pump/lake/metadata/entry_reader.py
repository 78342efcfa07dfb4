"""Reads the entries of any engine's manifest as flat values, of which only those asked for are made.

pyiceberg's readers walk a tree of objects for each entry and build all of it: most of the time that it needs to plan a
read. Here the file's Avro schema is compiled once for a manifest to a flat list of functions, most of them the
decoder's own, and what nobody wants is passed over.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, TypeAlias

import orjson
from pyiceberg.avro.codecs import KNOWN_CODECS
from pyiceberg.avro.decoder import BinaryDecoder, new_decoder
from pyiceberg.avro.file import META_SCHEMA, SYNC_SIZE, AvroFileHeader
from pyiceberg.avro.resolver import resolve_reader

from mirror_pump.lake.metadata.manifest_entries import Status

_ReadValue: TypeAlias = Callable[[], Any]

STATUS, SNAPSHOT_ID, DATA_FILE, SEQUENCE_NUMBER, FILE_SEQUENCE_NUMBER = range(5)
CONTENT, PATH, FORMAT, PARTITION, RECORDS, SIZE_BYTES = 134, 100, 101, 102, 103, 104
COLUMN_SIZES, VALUE_COUNTS, NULL_COUNTS, NAN_COUNTS, LOWER_BOUNDS, UPPER_BOUNDS = 108, 109, 110, 137, 125, 128
SPLIT_OFFSETS, EQUALITY_IDS, SORT_ORDER, REFERENCED_DATA_FILE = 132, 135, 140, 143
"""Field IDs of an entry and its data_file (Iceberg spec, manifests)."""

_IDS = {
    "status": STATUS,
    "snapshot_id": SNAPSHOT_ID,
    "data_file": DATA_FILE,
    "sequence_number": SEQUENCE_NUMBER,
    "file_sequence_number": FILE_SEQUENCE_NUMBER,
    "content": CONTENT,
    "file_path": PATH,
    "file_format": FORMAT,
    "partition": PARTITION,
    "record_count": RECORDS,
    "file_size_in_bytes": SIZE_BYTES,
}
"""For a writer that left field IDs out of the Avro schema: of the fields that each manifest has."""

METRICS = frozenset({VALUE_COUNTS, NULL_COUNTS, NAN_COUNTS, LOWER_BOUNDS, UPPER_BOUNDS})
"""The fields by which a file may be found not to match."""

_HEADER_READER = resolve_reader(META_SCHEMA, META_SCHEMA, {-1: AvroFileHeader})

_SMALL = frozenset(
    {
        *(STATUS, SNAPSHOT_ID, SEQUENCE_NUMBER, FILE_SEQUENCE_NUMBER, CONTENT, PATH, FORMAT, PARTITION, RECORDS),
        *(SIZE_BYTES, EQUALITY_IDS, REFERENCED_DATA_FILE),
    }
)
"""Fields that are always read."""


@dataclass(frozen=True, slots=True)
class PartitionField:
    """A field of the partition that a manifest's files have."""

    field_id: int | None
    """None if the writer left it out."""
    name: str


class EntryReader:
    """The entries of one manifest.

    `places` tells the place of each field, by its ID, in the lists that `rows` yields. A field that the manifest does
    not have has none.
    """

    def __init__(self, content: bytes, wanted: frozenset[int] | None = METRICS) -> None:
        """`wanted`: field IDs of the data_file that are read besides the small ones; None for all. Others are None in
        each row. May raise anything for content that is no manifest: use it in `decoding`."""
        self.metadata, self.payload, self.count = _payload(content)
        self._decoder = new_decoder(self.payload)
        self.places: dict[int, int] = {}
        self.partition: list[PartitionField] = []
        self._reads: list[_ReadValue] = []
        self._compile(parsed_schema(self.metadata["avro.schema"]), None if wanted is None else _SMALL | wanted)

    def _compile(self, record: Mapping[str, Any], wanted: frozenset[int] | None) -> None:
        names: dict[str, Any] = {}
        for field in record["fields"]:
            field_id = field_id_of(field)
            described = record_of(field["type"], names)
            if field_id == DATA_FILE and described is not None:
                self._compile(described, wanted)
                continue
            if field_id == PARTITION and described is not None:
                self.partition = [
                    PartitionField(member.get("field-id"), str(member["name"])) for member in described["fields"]
                ]
            if field_id is not None:
                self.places[field_id] = len(self._reads)
            skip = wanted is not None and field_id not in wanted
            self._reads.append(_reader(field["type"], self._decoder, names, skip=skip))

    def rows(self) -> Iterator[list[Any]]:
        """The values of each entry, deleted ones too, in the order of `places`. Maps are dicts, partitions tuples. One
        pass only."""
        reads = self._reads
        for _ in range(self.count):
            yield [read() for read in reads]

    def row_at(self, position: int) -> tuple[list[Any], int]:
        """The values of the entry that begins at this byte of `payload`, and where it ends. Positions only grow."""
        self._decoder.skip(position - self._decoder.tell())
        row = [read() for read in self._reads]
        return row, self._decoder.tell()

    def value_at(self, place: int, position: int) -> Any:
        """The value of the field of this place, which is encoded at this byte of `payload`. Positions only grow."""
        self._decoder.skip(position - self._decoder.tell())
        return self._reads[place]()

    def live_rows(self) -> Iterator[list[Any]]:
        """As `rows`, without the entries that say that a file was removed."""
        status = self.places[STATUS]
        return (row for row in self.rows() if row[status] != Status.DELETED)


def _payload(content: bytes) -> tuple[dict[str, str], bytes, int]:
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


@lru_cache(maxsize=64)
def parsed_schema(schema: str) -> Mapping[str, Any]:
    """An Avro schema from its JSON."""
    parsed: Mapping[str, Any] = orjson.loads(schema)
    return parsed


def _decompressed(block: bytes, codec: str) -> bytes:
    if codec == "deflate":
        return zlib.decompress(block, -15)
    decompressor = KNOWN_CODECS[codec]  # type: ignore[index]
    return block if decompressor is None else bytes(decompressor.decompress(block))


def field_id_of(field: Mapping[str, Any]) -> int | None:
    """The ID of a field of a manifest's Avro schema; None for one that is not known."""
    found = field.get("field-id", _IDS.get(str(field["name"])))
    return None if found is None else int(found)


def record_of(kind: Any, names: dict[str, Any]) -> Mapping[str, Any] | None:
    """A record that is not optional, whose fields follow those around it without any mark."""
    resolved = names.get(kind, kind) if isinstance(kind, str) else kind
    return resolved if isinstance(resolved, dict) and resolved.get("type") == "record" else None


def _reader(kind: Any, decoder: BinaryDecoder, names: dict[str, Any], *, skip: bool) -> _ReadValue:
    """A function that reads the next value. `names`: the types that the schema has named so far."""
    if isinstance(kind, str):
        return _reader(names[kind], decoder, names, skip=skip) if kind in names else _primitive(kind, decoder, skip)
    if isinstance(kind, list):
        return _union(kind, decoder, names, skip=skip)
    if "name" in kind:
        names[kind["name"]] = kind
    match kind["type"]:
        case "array":
            return _array(kind["items"], decoder, names, skip=skip)
        case "record":
            reads = [_reader(field["type"], decoder, names, skip=skip) for field in kind["fields"]]
            return lambda: tuple([read() for read in reads])
        case "fixed":
            size = int(kind["size"])
            return _logical(kind, lambda: decoder.read(size))
        case "map":
            return _map(_reader(kind["values"], decoder, names, skip=skip), decoder)
        case inner:
            read = _reader(inner, decoder, names, skip=skip)
            return read if skip else _logical(kind, read)


def _primitive(kind: str, decoder: BinaryDecoder, skip: bool) -> _ReadValue:
    reads: dict[str, tuple[_ReadValue, _ReadValue]] = {
        "null": (lambda: None, lambda: None),
        "boolean": (decoder.read_boolean, decoder.skip_boolean),
        "int": (decoder.read_int, decoder.skip_int),
        "long": (decoder.read_int, decoder.skip_int),
        "float": (decoder.read_float, decoder.skip_float),
        "double": (decoder.read_double, decoder.skip_double),
        "bytes": (decoder.read_bytes, decoder.skip_bytes),
        "string": (decoder.read_utf8, decoder.skip_utf8),
    }
    return reads[kind][skip]


def _union(kinds: Sequence[Any], decoder: BinaryDecoder, names: dict[str, Any], *, skip: bool) -> _ReadValue:
    read_int = decoder.read_int
    if len(kinds) == 2 and kinds[0] == "null":
        read = _reader(kinds[1], decoder, names, skip=skip)
        return lambda: read() if read_int() else None
    branches = [_reader(kind, decoder, names, skip=skip) for kind in kinds]

    def read_branch() -> Any:
        return branches[read_int()]()

    return read_branch


def _array(items: Any, decoder: BinaryDecoder, names: dict[str, Any], *, skip: bool) -> _ReadValue:
    """An array; one of keys and values, as maps with integers for keys are stored, becomes a dict."""
    types = keyed(items)
    if types == ("int", "bytes"):
        return _int_map(decoder, decoder.read_int_bytes_dict, {} if skip else None)
    if types is not None and types[1] in ("int", "long"):
        return _passed_ints(decoder, 2) if skip else _int_map(decoder, _ints_into(decoder), None)
    if skip and items in ("int", "long"):
        return _passed_ints(decoder, 1)
    read = _reader(items, decoder, names, skip=skip)
    read_int = decoder.read_int

    def read_array() -> list[Any]:
        found: list[Any] = []
        while count := read_int():
            if count < 0:
                count = -count
                read_int()
            found.extend([read() for _ in range(count)])
        return found

    if types is not None:
        return lambda: dict(read_array())
    return read_array


def keyed(items: Any) -> tuple[str, Any] | None:
    """The types of keys and values, if an array of such items is a map."""
    if not isinstance(items, dict) or items.get("type") != "record" or len(items["fields"]) != 2:
        return None
    key, value = items["fields"]
    return (key["type"], value["type"]) if (key["name"], value["name"]) == ("key", "value") else None


def _int_map(
    decoder: BinaryDecoder, read_into: Callable[[int, dict[int, Any]], None], scratch: dict[int, Any] | None
) -> _ReadValue:
    """`scratch`: where to put what nobody wants, since passing over a block is slower than reading it at once; None for
    a new dict each time."""
    read_int = decoder.read_int

    def read_map() -> dict[int, Any]:
        found: dict[int, Any] = {} if scratch is None else scratch
        while count := read_int():
            if count < 0:
                count = -count
                read_int()
            read_into(count, found)
        return found

    return read_map


def _ints_into(decoder: BinaryDecoder) -> Callable[[int, dict[int, int]], None]:
    read_ints = decoder.read_ints
    known: tuple[int, ...] = ()
    known_map: dict[int, int] = {}

    def read(count: int, found: dict[int, int]) -> None:
        nonlocal known, known_map
        numbers = read_ints(2 * count)
        # Most files have the counts of the file before.
        if numbers != known:
            known, known_map = numbers, dict(zip(numbers[::2], numbers[1::2], strict=True))
        found.update(known_map)

    return read


def _passed_ints(decoder: BinaryDecoder, width: int) -> _ReadValue:
    """Passes over an array of `width` integers each."""
    read_int, read_ints = decoder.read_int, decoder.read_ints

    def pass_over() -> None:
        while count := read_int():
            if count < 0:
                count = -count
                read_int()
            read_ints(width * count)

    return pass_over


def _map(read: _ReadValue, decoder: BinaryDecoder) -> _ReadValue:
    def read_map() -> dict[str, Any]:
        found: dict[str, Any] = {}
        while count := decoder.read_int():
            if count < 0:
                count = -count
                decoder.read_int()
            for _ in range(count):
                key = decoder.read_utf8()
                found[key] = read()
        return found

    return read_map


def _logical(kind: Mapping[str, Any], read: _ReadValue) -> _ReadValue:
    """Decimals and UUIDs as Python's types; dates and times stay numbers, as in pyiceberg's records."""
    match kind.get("logicalType"):
        case "decimal":
            scale = int(kind.get("scale", 0))
            return lambda: Decimal(int.from_bytes(read(), "big", signed=True)).scaleb(-scale)
        case "uuid":
            return lambda: _uuid(read())
        case _:
            return read


def _uuid(value: str | bytes) -> uuid.UUID:
    return uuid.UUID(value) if isinstance(value, str) else uuid.UUID(bytes=value)
