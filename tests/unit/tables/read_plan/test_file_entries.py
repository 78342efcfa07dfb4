"""What a plan reads of a manifest is what pyiceberg reads, whatever its entries look like and whichever are refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import orjson
import pytest
from pyiceberg.avro.decoder import StreamingBinaryDecoder
from pyiceberg.avro.file import AvroFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, LongType, MapType, NestedField, StringType, StructType

from mirror_pump.lake.avro.container_files import container, schema_json
from mirror_pump.lake.avro.record_encoder import Encoder
from mirror_pump.lake.format.data_files import FileContent, WrittenFile
from mirror_pump.lake.format.partitioning import PartitionTuple
from mirror_pump.lake.manifests import entry_reader
from mirror_pump.lake.manifests.entry_reader import (
    FORMAT,
    PARTITION,
    PATH,
    RECORDS,
    SEQUENCE_NUMBER,
    SIZE_BYTES,
    EntryReader,
    Status,
)
from mirror_pump.lake.manifests.manifest_entries import ManifestEntry, file_values, formats_of
from mirror_pump.tables.read_plan.file_entries import COLUMN_MAPS, FileEntries

PARTITIONS = StructType(
    NestedField(1000, "region", StringType(), required=False), NestedField(1001, "day", LongType(), required=False)
)
COLUMNS = (2, 7, 300)

Keep: TypeAlias = Callable[[PartitionTuple], bool]


def _by_pyiceberg(content: bytes, directory: Path) -> list[tuple[int | None, Record, PartitionTuple]]:
    """The sequence number, the data_file and the partition of each live entry."""
    path = directory / "manifest.avro"
    path.write_bytes(content)
    with AvroFile[Record](PyArrowFileIO().new_input(str(path))) as entries:
        return [(entry[2], entry[4], (entry[4][3][0], entry[4][3][1])) for entry in entries if entry[0] != 2]


def _keep_all(_: PartitionTuple) -> bool:
    return True


def _keep_europe(partition: PartitionTuple) -> bool:
    return bool(partition[0] == "eu")


@pytest.mark.parametrize("keep", [_keep_all, _keep_europe])
def test_files_are_those_of_the_manifest(keep: Keep, tmp_path: Path) -> None:
    random = Random(7)
    for _ in range(6):
        kinds = [_random_kind(random) for _ in range(random.randint(1, 5))]
        content = _manifest([_random_entry(random, random.choice(kinds)) for _ in range(100)])
        stored = _by_pyiceberg(content, tmp_path)
        expected = [
            (
                *(file[1], file[2], partition, file[4], file[5]),
                number,
                *((file[place] or {}).get(column) for column in COLUMNS for place in range(7, 12)),
            )
            for number, file, partition in stored
            if file[4] and keep(partition)
        ]
        assert expected
        assert _found(content, keep) == expected
        # Without metrics, which are passed over then.
        entries = FileEntries(content)
        paths = [file.path for file in entries.files(lambda partition: partition if keep(partition) else None, None)]
        assert paths == [file[1] for _, file, partition in stored if keep(partition)]
        assert entries.entries_seen == len(stored)


def test_what_follows_the_partition_may_be_of_any_type() -> None:
    tagged = NestedField(1, "tag", StringType(), required=False), NestedField(2, "size", DoubleType(), required=True)
    rare = StructType(
        NestedField(0, "status", LongType(), required=True),
        NestedField(102, "partition", PARTITIONS, required=True),
        NestedField(900, "tags", MapType(901, StringType(), 902, StringType()), required=False),
        NestedField(903, "record", StructType(*tagged), required=False),
        NestedField(100, "file_path", StringType(), required=True),
    )
    encode = Encoder(rare).encode
    entries = [
        encode(1, Record("eu", 1), {"a": "b", "c": ""}, Record(None, 0.5), "first"),
        encode(1, Record("us", 2), None, None, "second"),
        encode(1, Record("us", 2), {}, Record("t", 1.5), "third"),
        encode(1, Record("eu", 3), {"": ""}, None, "fourth"),
    ]
    content = container(schema_json(Schema(*rare.fields), "manifest_entry"), {}, entries)
    for wanted in (frozenset[int](), None):
        reader = EntryReader(content, wanted)
        partition, path = reader.places[PARTITION], reader.places[PATH]
        rows = list(reader.rows(lambda row, place=partition: row[place][0] == "us"))  # type: ignore[misc]
        assert [(row[partition], row[path]) for row in rows] == [(("eu", 1), "first"), (("eu", 3), "fourth")]


def test_a_type_that_is_named_once_is_used_again() -> None:
    """Also where its first use is passed over."""
    pair = StructType(NestedField(1, "tag", StringType(), required=False))
    fields = (
        NestedField(0, "status", LongType(), required=True),
        NestedField(102, "partition", PARTITIONS, required=True),
        NestedField(900, "first", pair, required=False),
        NestedField(103, "record_count", pair, required=False),
        NestedField(100, "file_path", StringType(), required=True),
    )
    document = orjson.loads(schema_json(Schema(*fields), "manifest_entry"))
    first, again = document["fields"][2], document["fields"][3]
    again["type"][1] = first["type"][1]["name"]
    entries = [
        Encoder(StructType(*fields)).encode(1, Record("eu", 1), Record("passed over"), Record(tag), tag)
        for tag in ("a", "b")
    ]
    reader = EntryReader(container(orjson.dumps(document).decode(), {}, entries), frozenset())
    records, path = reader.places[RECORDS], reader.places[PATH]
    assert [(row[records], row[path]) for row in reader.rows()] == [(("a",), "a"), (("b",), "b")]


@pytest.mark.parametrize("keep", [_keep_all, _keep_europe])
def test_damage_is_read_as_avro_reads_it(keep: Keep, monkeypatch: pytest.MonkeyPatch) -> None:
    # The compiled decoder does not look for the end of its bytes.
    monkeypatch.setattr(entry_reader, "new_decoder", StreamingBinaryDecoder)
    random = Random(9)
    entries = [_random_entry(random, (1, 2, 7)) for _ in range(4)]
    both_read = 0
    for _ in range(1500):
        damaged = bytearray(random.choice(entries))
        for _ in range(random.randint(1, 2)):
            damaged[random.randrange(len(damaged))] = random.choice((0, 1, 2, 16, 127, 128, 255, random.randrange(256)))
        content = _manifest([bytes(damaged), entries[0]])
        expected = _or_error(lambda content=content: _expected(content, keep))
        found = _or_error(lambda content=content: _found(content, keep))
        if found is None:
            assert expected is None
        elif expected is not None:
            both_read += 1
            assert found == expected
    assert both_read > 500


def _or_error(read: Any) -> Any:
    try:
        return read()
    except (EOFError, ValueError, OverflowError, LookupError, MemoryError, TypeError):
        return None


def _found(content: bytes, keep: Keep) -> list[tuple[Any, ...]]:
    metrics: list[Any] = []

    def take(found: Sequence[Any]) -> bool:
        metrics.append(tuple(found))
        return True

    entries = FileEntries(content, COLUMNS)
    files = list(entries.files(lambda partition: partition if keep(partition) else None, take))
    assert {file.first_row_id for file in files} <= {None}, "it was not asked for"
    return [(*file[:-1], *each) for file, each in zip(files, metrics, strict=True)]


def _expected(content: bytes, keep: Keep) -> list[tuple[Any, ...]]:
    """What reading each entry as a whole finds."""
    reader = EntryReader(content, None)
    fields = (PATH, FORMAT, PARTITION, RECORDS, SIZE_BYTES, SEQUENCE_NUMBER)
    return [
        (
            *(row[reader.places[field]] for field in fields),
            *((row[reader.places[each]] or {}).get(column) for column in COLUMNS for each in COLUMN_MAPS),
        )
        for row in reader.rows()
        if row[reader.places[entry_reader.STATUS]] != Status.DELETED
        and row[reader.places[RECORDS]]
        and keep(row[reader.places[PARTITION]])
    ]


def _manifest(entries: Sequence[bytes]) -> bytes:
    return container(formats_of(PARTITIONS).schema, {}, entries)


def _random_kind(random: Random) -> tuple[int, ...]:
    """Columns of which a file has metrics."""
    return tuple(random.sample((1, 2, 3, 7, 64, 300, 9000), random.randint(0, 5)))


def _random_entry(random: Random, columns: tuple[int, ...]) -> bytes:
    def numbers() -> dict[int, int]:
        return {column: random.choice((0, 1, 63, 64, 10_000, 2**40)) for column in columns}

    def bounds() -> dict[int, bytes]:
        return {
            column: random.randbytes(8 if column < 5 else random.choice((0, 3, 16, 17, 24, 30, 70)))
            for column in columns
        }

    file = WrittenFile(
        FileContent.DATA,
        "s3://lake/" + "ü" * random.randint(0, 30) + "/data.parquet",
        random.choice((0, 1, 1000, 2**40)),
        random.randrange(2**34),
        numbers(),
        numbers(),
        numbers(),
        bounds(),
        bounds(),
        nan_counts=numbers() if random.random() < 0.5 else {},
        split_offsets=tuple(range(4, 4 + random.randint(0, 20))),
        partition=(random.choice((None, "", "eu", "a" * 40)), random.choice((None, -5, 0, 2**62))),
    )
    described = formats_of(PARTITIONS).data_file.encode(*file_values(file))
    status = random.choice(list(Status))
    number = random.choice((None, 3, 2**40))
    entry = ManifestEntry(status, random.randrange(2**63), number, number, 0, "", 0, 0, (), described)  # type: ignore[arg-type]
    return formats_of(PARTITIONS).entry(entry)
