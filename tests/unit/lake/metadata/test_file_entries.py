"""What is read of a manifest by patterns is what Avro says, whatever its entries look like, damaged ones among them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest
from pyiceberg.avro.decoder import StreamingBinaryDecoder
from pyiceberg.types import LongType, NestedField, StringType, StructType

from mirror_pump.lake.format.data_files import FileContent, WrittenFile
from mirror_pump.lake.metadata import entry_reader, file_entries
from mirror_pump.lake.metadata.avro import container
from mirror_pump.lake.metadata.entry_patterns import COLUMN_MAPS
from mirror_pump.lake.metadata.entry_reader import (
    FORMAT,
    PARTITION,
    PATH,
    RECORDS,
    SEQUENCE_NUMBER,
    SIZE_BYTES,
    EntryReader,
)
from mirror_pump.lake.metadata.file_entries import FileEntries
from mirror_pump.lake.metadata.manifest_entries import ManifestEntry, Status, file_values, formats_of

PARTITIONS = StructType(
    NestedField(1000, "region", StringType(), required=False), NestedField(1001, "day", LongType(), required=False)
)
COLUMNS = (2, 7, 300)


@pytest.fixture(autouse=True)
def _patterns_from_the_first_entry_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(file_entries.KnownPatterns, "first_after", 1)
    monkeypatch.setattr(file_entries.KnownPatterns, "next_after", 1)
    file_entries.known_patterns.cache_clear()
    yield
    file_entries.known_patterns.cache_clear()


def test_files_are_those_of_the_manifest() -> None:
    random = Random(7)
    for _ in range(6):
        kinds = [_random_kind(random) for _ in range(random.randint(1, 5))]
        content = _manifest([_random_entry(random, random.choice(kinds)) for _ in range(100)])
        for _ in range(2):
            assert _found(content) == _expected(content)


def test_most_entries_are_read_by_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(8)
    kind = _random_kind(random)
    content = _manifest([_random_entry(random, kind) for _ in range(300)])
    others = 0
    row_at = EntryReader.row_at

    def counted(self: EntryReader, position: int) -> tuple[list[Any], int]:
        nonlocal others
        others += 1
        return row_at(self, position)

    monkeypatch.setattr(EntryReader, "row_at", counted)
    _found(content)
    assert 1 <= others <= 150
    others = 0
    _found(content)
    assert others <= 100


def test_damage_is_read_as_avro_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # The compiled decoder does not look for the end of its bytes.
    monkeypatch.setattr(entry_reader, "new_decoder", StreamingBinaryDecoder)
    random = Random(9)
    entries = [_random_entry(random, (1, 2, 7)) for _ in range(4)]
    _found(_manifest(entries * 3))
    matched = 0
    for _ in range(1500):
        damaged = bytearray(random.choice(entries))
        for _ in range(random.randint(1, 2)):
            damaged[random.randrange(len(damaged))] = random.choice((0, 1, 2, 16, 127, 128, 255, random.randrange(256)))
        content = _manifest([bytes(damaged), entries[0]])
        expected = _or_error(lambda content=content: _expected(content))
        found = _or_error(lambda content=content: _found(content))
        if found is None:
            assert expected is None
        elif expected is not None:
            matched += 1
            assert found == expected
    assert matched > 500


def _or_error(read: Any) -> Any:
    try:
        return read()
    except (EOFError, ValueError, OverflowError, LookupError, MemoryError, TypeError):
        return None


def _found(content: bytes) -> list[tuple[Any, ...]]:
    metrics: list[Any] = []

    def keep(found: Sequence[Any]) -> bool:
        metrics.append(tuple(found))
        return True

    files = list(FileEntries(content, COLUMNS).files(lambda partition: partition, keep))
    return [(*file, *each) for file, each in zip(files, metrics, strict=True)]


def _expected(content: bytes) -> list[tuple[Any, ...]]:
    reader = EntryReader(content, None)
    fields = (PATH, FORMAT, PARTITION, RECORDS, SIZE_BYTES, SEQUENCE_NUMBER)
    return [
        (
            *(row[reader.places[field]] for field in fields),
            *((row[reader.places[each]] or {}).get(column) for column in COLUMNS for each in COLUMN_MAPS),
        )
        for row in reader.live_rows()
        if row[reader.places[RECORDS]]
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
