"""Reads the entries of any engine's manifest as flat values, of which only those asked for are made.

pyiceberg's readers walk a tree of objects for each entry and build all of it: most of the time that it needs to plan a
read. Here a program is made of the file's Avro schema, once for all manifests that have it: a loop of Python that reads
the values of an entry one after the other by the decoder's own functions. What is not asked for is passed over, and so
is the rest of an entry that its reader refuses.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any, TypeAlias

import orjson
from pyiceberg.avro.decoder import BinaryDecoder, new_decoder
from pyiceberg.utils.decimal import bytes_to_decimal

from mirror_pump.lake.avro.container_files import read_container, read_double

_ReadValue: TypeAlias = Callable[[], Any]
_Field: TypeAlias = tuple[int | None, Any]
"""ID, if there is one, and Avro type."""
_Refuses: TypeAlias = Callable[[list[Any]], bool]
_Rows: TypeAlias = Callable[[BinaryDecoder, int, _Refuses | None], Iterator[list[Any]]]

STATUS, SNAPSHOT_ID, DATA_FILE, SEQUENCE_NUMBER, FILE_SEQUENCE_NUMBER = range(5)
CONTENT, PATH, FORMAT, PARTITION, RECORDS, SIZE_BYTES = 134, 100, 101, 102, 103, 104
COLUMN_SIZES, VALUE_COUNTS, NULL_COUNTS, NAN_COUNTS, LOWER_BOUNDS, UPPER_BOUNDS = 108, 109, 110, 137, 125, 128
SPLIT_OFFSETS, EQUALITY_IDS, SORT_ORDER, REFERENCED_DATA_FILE = 132, 135, 140, 143
FIRST_ROW_ID, CONTENT_OFFSET, CONTENT_SIZE = 142, 144, 145
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

_SMALL = frozenset(
    {
        *(STATUS, SNAPSHOT_ID, SEQUENCE_NUMBER, FILE_SEQUENCE_NUMBER, CONTENT, PATH, FORMAT, PARTITION, RECORDS),
        *(SIZE_BYTES, EQUALITY_IDS, REFERENCED_DATA_FILE, FIRST_ROW_ID, CONTENT_OFFSET, CONTENT_SIZE),
    }
)
"""Fields that are always read."""
_DECIDING = frozenset({STATUS, PARTITION})
"""Fields that say whether an entry is refused."""
_INTEGERS = ("int", "long")


class Status(IntEnum):
    """A manifest entry's status (Iceberg spec, field 0)."""

    EXISTING = 0
    ADDED = 1
    DELETED = 2


@dataclass(frozen=True, slots=True)
class PartitionField:
    """A field of the partition that a manifest's files have."""

    field_id: int | None
    """None if the writer left it out."""
    name: str


class EntryReader:
    """The entries of one manifest.

    `places` tells the place of each field that is read, by its ID, in the lists that `rows` yields.
    """

    def __init__(self, content: bytes, field_ids: frozenset[int] | None = METRICS) -> None:
        """`field_ids`: those of the data_file that are read besides the small ones; None for all. May raise anything
        for content that is no manifest: use it in `decoding`."""
        self.metadata, payload, self.count = read_container(content)
        self._decoder = new_decoder(payload)
        program = _program(self.metadata["avro.schema"], field_ids)
        self.places, self.partition, self._rows = program.places, program.partition, program.rows

    def rows(self, refused: _Refuses | None = None) -> Iterator[list[Any]]:
        """The values of each entry, deleted ones too, in the order of `places`. Maps are dicts, partitions tuples. One
        pass only.

        `refused` is asked once the status and the partition are in the list, and what follows is passed over if it
        refuses the entry: that takes half the time.
        """
        return self._rows(self._decoder, self.count, refused)

    def live_rows(self) -> Iterator[list[Any]]:
        """As `rows`, without the entries that say that a file was removed."""
        status = self.places[STATUS]
        return self.rows(lambda row: row[status] == Status.DELETED)


@dataclass(frozen=True)
class _EntryProgram:
    """What reads the entries of the manifests that have one Avro schema."""

    places: dict[int, int]
    partition: list[PartitionField]
    rows: _Rows


@lru_cache(maxsize=64)
def _program(schema: str, field_ids: frozenset[int] | None) -> _EntryProgram:
    """Makes a generator function, which has the values of an entry in variables until they are a list."""
    record = parsed_schema(schema)
    names = dict(_named(record))
    fields = list(_flat(record, names))
    decided = 1 + max((place for place, (field_id, _) in enumerate(fields) if field_id in _DECIDING), default=-1)
    read_ids = None if field_ids is None else _SMALL | field_ids
    code = _Code(names)
    places: dict[int, int] = {}
    variables: list[list[str]] = [[], []]
    for place, (field_id, kind) in enumerate(fields):
        target = None
        if read_ids is None or field_id in read_ids:
            target = f"v{place}"
            if field_id is not None:
                places[field_id] = len(variables[0]) + len(variables[1])
            variables[place >= decided].append(target)
        code.value(kind, target, 2)
        if place + 1 == decided:
            code.add(2, f"row = [{', '.join(variables[0])}]", "if refused is not None and refused(row):")
            for _, undecided in fields[decided:]:
                code.value(undecided, None, 3)
            code.add(3, "continue")
    code.add(2, f"row += [{', '.join(variables[1])}]" if decided else f"row = [{', '.join(variables[1])}]", "yield row")
    return _EntryProgram(places, _partition_fields(fields, names), code.function())


class _Code:
    """The source of a generator function over entries, and the functions that it calls."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names
        self._lines: list[str] = []
        self._calls: list[Callable[[BinaryDecoder], Callable[..., Any]]] = []

    def add(self, indent: int, *lines: str) -> None:
        self._lines += ["    " * indent + line for line in lines]

    def value(self, kind: Any, target: str | None, indent: int) -> None:
        """Code that reads a value of this type into a variable, or passes over it if `target` is None."""
        assign = "" if target is None else f"{target} = "
        if isinstance(kind, list) and len(kind) == 2 and kind[0] == "null":
            self.add(indent, "if read_int():")
            self.value(kind[1], target, indent + 1)
            if target is not None:
                self.add(indent, "else:")
                self.add(indent + 1, f"{target} = None")
        elif isinstance(kind, str) and kind not in self._names:
            self.add(indent, f"{assign}{self._call(lambda decoder: _primitive(kind, decoder)[target is None])}()")
        elif (block := self._block(kind, target)) is not None:
            if target is not None:
                self.add(indent, f"{target} = {{}}")
            self.add(indent, "while count := read_int():")
            # A negative count is followed by the block's size in bytes.
            self.add(indent + 1, "if count < 0:", "    count = -count", "    read_int()", block)
        else:
            self.add(indent, f"{assign}{self._call(lambda decoder: _reader(kind, decoder, self._names))}()")

    def _block(self, kind: Any, target: str | None) -> str | None:
        """Code that reads a block of `count` items of an array into the dict `target`, or passes over it; None for what
        manifests seldom have."""
        if not isinstance(kind, dict) or kind["type"] != "array":
            return None
        items = kind["items"]
        types = _keyed(items)
        if types == ("int", "bytes"):
            # Passing over a block is slower than reading it at once.
            return f"{self._call(lambda decoder: decoder.read_int_bytes_dict)}(count, {target or '{}'})"
        if types is not None and types[0] in _INTEGERS and types[1] in _INTEGERS:
            if target is None:
                return f"{self._call(lambda decoder: decoder.read_ints)}(2 * count)"
            return f"{self._call(_ints_into)}(count, {target})"
        if items in _INTEGERS and target is None:
            return f"{self._call(lambda decoder: decoder.read_ints)}(count)"
        return None

    def _call(self, function: Callable[[BinaryDecoder], Callable[..., Any]]) -> str:
        """The name under which the code calls this function of the decoder."""
        self._calls.append(function)
        return f"f{len(self._calls) - 1}"

    def function(self) -> _Rows:
        bound = [f"    f{number} = calls[{number}](decoder)" for number in range(len(self._calls))]
        head = ["def rows(decoder, entries, refused):", "    read_int = decoder.read_int", *bound]
        source = "\n".join([*head, "    for _ in range(entries):", *self._lines])
        scope: dict[str, Any] = {"calls": self._calls}
        # Of a file it has the order and the kinds of fields only, no text.
        exec(source, scope)  # noqa: S102
        rows: _Rows = scope["rows"]
        return rows


def _named(kind: Any) -> Iterator[tuple[str, Any]]:
    """The types to which a schema gives names, wherever in it they are."""
    if isinstance(kind, list):
        for member in kind:
            yield from _named(member)
    elif isinstance(kind, dict):
        if "name" in kind and kind["type"] in ("record", "fixed"):
            yield kind["name"], kind
        for key in ("type", "items", "values", "fields"):
            yield from _named(kind.get(key))


def _flat(record: Mapping[str, Any], names: Mapping[str, Any]) -> Iterator[_Field]:
    """The fields of an entry, with those of its data_file in the place of that."""
    for field in record["fields"]:
        field_id = _field_id(field)
        described = _record(field["type"], names)
        if field_id == DATA_FILE and described is not None:
            yield from _flat(described, names)
        else:
            yield field_id, field["type"]


def _partition_fields(fields: Sequence[_Field], names: Mapping[str, Any]) -> list[PartitionField]:
    described = next((_record(kind, names) for field_id, kind in fields if field_id == PARTITION), None)
    members = () if described is None else described["fields"]
    return [PartitionField(member.get("field-id"), str(member["name"])) for member in members]


@lru_cache(maxsize=64)
def parsed_schema(schema: str) -> Mapping[str, Any]:
    """An Avro schema from its JSON."""
    parsed: Mapping[str, Any] = orjson.loads(schema)
    return parsed


def _field_id(field: Mapping[str, Any]) -> int | None:
    """The ID of a field of a manifest's Avro schema; None for one that is not known."""
    field_id = field.get("field-id", _IDS.get(str(field["name"])))
    return None if field_id is None else int(field_id)


def _record(kind: Any, names: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """A record that is not optional, whose fields follow those around it without any mark."""
    resolved = names.get(kind, kind) if isinstance(kind, str) else kind
    return resolved if isinstance(resolved, dict) and resolved.get("type") == "record" else None


def _reader(kind: Any, decoder: BinaryDecoder, names: Mapping[str, Any]) -> _ReadValue:
    """A function that reads the next value. `names`: the types that the schema has named."""
    if isinstance(kind, str):
        return _reader(names[kind], decoder, names) if kind in names else _primitive(kind, decoder)[0]
    if isinstance(kind, list):
        return _union(kind, decoder, names)
    match kind["type"]:
        case "array":
            return _array(kind["items"], decoder, names)
        case "record":
            reads = [_reader(field["type"], decoder, names) for field in kind["fields"]]
            return lambda: tuple([read() for read in reads])
        case "fixed":
            size = int(kind["size"])
            return _logical(kind, lambda: decoder.read(size))
        case "map":
            return _map(_reader(kind["values"], decoder, names), decoder)
        case inner:
            return _logical(kind, _reader(inner, decoder, names))


def _primitive(kind: str, decoder: BinaryDecoder) -> tuple[_ReadValue, _ReadValue]:
    """What reads a value, and what passes over it."""
    reads: dict[str, tuple[_ReadValue, _ReadValue]] = {
        "null": (lambda: None, lambda: None),
        "boolean": (decoder.read_boolean, decoder.skip_boolean),
        "int": (decoder.read_int, decoder.skip_int),
        "long": (decoder.read_int, decoder.skip_int),
        "float": (decoder.read_float, decoder.skip_float),
        "double": (lambda: read_double(decoder), decoder.skip_double),
        "bytes": (decoder.read_bytes, decoder.skip_bytes),
        "string": (decoder.read_utf8, decoder.skip_utf8),
    }
    return reads[kind]


def _union(kinds: Sequence[Any], decoder: BinaryDecoder, names: Mapping[str, Any]) -> _ReadValue:
    branches = [_reader(kind, decoder, names) for kind in kinds]

    def read_branch() -> Any:
        return branches[decoder.read_int()]()

    return read_branch


def _array(items: Any, decoder: BinaryDecoder, names: Mapping[str, Any]) -> _ReadValue:
    """An array; one of keys and values, as maps with integers for keys are stored, becomes a dict."""
    read = _reader(items, decoder, names)
    read_int = decoder.read_int

    def read_array() -> list[Any]:
        values: list[Any] = []
        while count := read_int():
            if count < 0:
                count = -count
                read_int()
            values.extend([read() for _ in range(count)])
        return values

    return read_array if _keyed(items) is None else lambda: dict(read_array())


def _keyed(items: Any) -> tuple[str, Any] | None:
    """The types of keys and values, if an array of such items is a map."""
    if not isinstance(items, dict) or items.get("type") != "record" or len(items["fields"]) != 2:
        return None
    key, value = items["fields"]
    return (key["type"], value["type"]) if (key["name"], value["name"]) == ("key", "value") else None


def _ints_into(decoder: BinaryDecoder) -> Callable[[int, dict[int, int]], None]:
    read_ints = decoder.read_ints
    last_numbers: tuple[int, ...] = ()
    last_map: dict[int, int] = {}

    def read(count: int, entries: dict[int, int]) -> None:
        nonlocal last_numbers, last_map
        numbers = read_ints(2 * count)
        # Most files have the counts of the file before.
        if numbers != last_numbers:
            last_numbers, last_map = numbers, dict(zip(numbers[::2], numbers[1::2], strict=True))
        entries.update(last_map)

    return read


def _map(read: _ReadValue, decoder: BinaryDecoder) -> _ReadValue:
    def read_map() -> dict[str, Any]:
        entries: dict[str, Any] = {}
        while count := decoder.read_int():
            if count < 0:
                count = -count
                decoder.read_int()
            for _ in range(count):
                key = decoder.read_utf8()
                entries[key] = read()
        return entries

    return read_map


def _logical(kind: Mapping[str, Any], read: _ReadValue) -> _ReadValue:
    """Decimals and UUIDs as Python's types; dates and times stay numbers, as in pyiceberg's records."""
    match kind.get("logicalType"):
        case "decimal":
            scale = int(kind.get("scale", 0))
            # Not by arithmetic, which would round to the 28 digits of Python's default context.
            return lambda: bytes_to_decimal(read(), scale)
        case "uuid":
            return lambda: _uuid(read())
        case _:
            return read


def _uuid(value: str | bytes) -> uuid.UUID:
    return uuid.UUID(value) if isinstance(value, str) else uuid.UUID(bytes=value)
