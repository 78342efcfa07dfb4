"""Reads of a manifest what planning a read needs: the files that two tests let through, and little of the others."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from mirror_pump.lake.format.partitioning import PartitionTuple
from mirror_pump.lake.metadata.entry_patterns import (
    COLUMN_MAPS,
    EntryPattern,
    NoPattern,
    entry_pattern,
    integer_of,
    shape_of,
    text_of,
)
from mirror_pump.lake.metadata.entry_reader import (
    FORMAT,
    PARTITION,
    PATH,
    RECORDS,
    SEQUENCE_NUMBER,
    SIZE_BYTES,
    STATUS,
    EntryReader,
    PartitionField,
)
from mirror_pump.lake.metadata.manifest_entries import Status

_DELETED = int(Status.DELETED)
_MOST_SCHEMAS = 64

FileMetrics: TypeAlias = Sequence[Any]
"""For each wanted column its numbers of values, of NULLs and of NaNs, and its lower and upper bound, one after the
other; None for each that the manifest does not tell."""


class ListedFile(NamedTuple):
    """A data file that a manifest names."""

    path: str
    format: str
    partition: PartitionTuple
    records: int
    size_bytes: int
    sequence_number: int | None
    """Its data sequence number; None if it has its manifest's."""


class _Integers(dict[bytes | None, Any]):
    """Numbers by their encoding. Most of a manifest's are the same few."""

    def __missing__(self, encoded: bytes | None) -> int:
        assert encoded is not None
        found = self[encoded] = integer_of(encoded)
        return found


class KnownPatterns:
    """The patterns of entries of one schema, the last that was of use first.

    Threads may share it: `known` is replaced as a whole, and what one of them loses of the others' is learnt again.
    """

    first_after, next_after = 50, 250
    """Entries that no pattern matched, after which one is made: that takes as long as some hundred entries."""
    most = 4
    """Patterns that are tried on an entry."""

    def __init__(self, schema: str, columns: tuple[int, ...]) -> None:
        self._schema = schema
        self._columns = columns
        self.known: tuple[EntryPattern, ...] = ()
        self._unmatched = 0

    @property
    def first(self) -> EntryPattern | None:
        """The one to try first."""
        return self.known[0] if self.known else None

    def match(self, payload: bytes, position: int) -> tuple[EntryPattern, re.Match[bytes]] | None:
        """The entry there, if one of the patterns matches it."""
        known = self.known
        for pattern in known:
            match = pattern.compiled.match(payload, position)
            if match is not None:
                if pattern is not known[0]:
                    self.known = (pattern, *(other for other in known if other is not pattern))
                return pattern, match
        return None

    def learn(self, row: Sequence[Any]) -> None:
        """From all values of an entry that none matched."""
        self._unmatched += 1
        if self._unmatched < (self.next_after if self.known else self.first_after):
            return
        self._unmatched = 0
        with suppress(NoPattern):
            shape = shape_of(self._schema, row)
            others = []
            for pattern in self.known:
                if pattern.shape.keys == shape.keys and len(pattern.shape.lengths) == len(shape.lengths):
                    shape = shape.with_lengths(pattern.shape)
                else:
                    others.append(pattern)
            self.known = (entry_pattern(self._schema, shape, self._columns), *others[: self.most - 1])


@lru_cache(maxsize=_MOST_SCHEMAS)
def known_patterns(schema: str, columns: tuple[int, ...]) -> KnownPatterns:
    """Those that all manifests of a schema share, for these wanted columns."""
    return KnownPatterns(schema, columns)


class FileEntries:
    """The live entries of one manifest, each read once. May raise anything for content that is no manifest: use it in
    `decoding`."""

    def __init__(self, content: bytes, columns: Sequence[int] = ()) -> None:
        """`columns`: field IDs whose metrics are tested."""
        self._columns = tuple(columns)
        self._reader = EntryReader(content, None)
        self._patterns = known_patterns(self._reader.metadata["avro.schema"], self._columns)
        places = self._reader.places
        self._places = [places[field] for field in (PATH, FORMAT, PARTITION, RECORDS, SIZE_BYTES)]
        self._status, self._sequence_number = places[STATUS], places.get(SEQUENCE_NUMBER)
        self._maps = [places.get(field) for field in COLUMN_MAPS]
        self._integers = _Integers({None: None})
        self._partitions: dict[bytes, PartitionTuple | None] = {}
        self._formats: dict[bytes, str] = {}
        self.seen = 0
        """Live entries so far."""

    @property
    def partition(self) -> list[PartitionField]:
        """The fields of the files' partitions."""
        return self._reader.partition

    def files(
        self,
        partition_of: Callable[[PartitionTuple], PartitionTuple | None],
        may_match: Callable[[FileMetrics], bool] | None,
    ) -> Iterator[ListedFile]:
        """The files whose partition is not None by `partition_of`, which may arrange it; and that have rows, and
        metrics that may match, if that is asked. A partition is asked for once, if its encoding is the same."""
        reader, payload, patterns = self._reader, self._reader.payload, self._patterns
        integers, partitions = self._integers, self._partitions
        position = 0
        for _ in range(reader.count):
            # What follows is done for each entry of a table: as little as possible before the partition is known.
            pattern = patterns.first
            match = None if pattern is None else pattern.compiled.match(payload, position)
            if pattern is None or match is None:
                found = patterns.match(payload, position)
                if found is None:
                    row, position = reader.row_at(position)
                    patterns.learn(row)
                    if (file := self._of_row(row, partition_of, may_match)) is not None:
                        yield file
                    continue
                pattern, match = found
            position = match.end()
            status, encoded = match.group(*pattern.head)
            if integers[status] == _DELETED:
                continue
            self.seen += 1
            if encoded not in partitions:
                found_partition = reader.value_at(self._places[2], match.start(pattern.head[1]))
                partitions[encoded] = partition_of(found_partition)
            partition = partitions[encoded]
            if partition is not None and (file := self._matched(match, pattern, partition, may_match)) is not None:
                yield file

    def _of_row(self, row: Sequence[Any], partition_of: Any, may_match: Any) -> ListedFile | None:
        if row[self._status] == Status.DELETED:
            return None
        self.seen += 1
        path, kind, partition, records, size_bytes = (row[place] for place in self._places)
        partition = partition_of(partition)
        if partition is None or (may_match is not None and not (records and may_match(self._metrics(row)))):
            return None
        number = None if self._sequence_number is None else row[self._sequence_number]
        return ListedFile(path, kind, partition, records, size_bytes, number)

    def _metrics(self, row: Sequence[Any]) -> FileMetrics:
        maps = [(None if place is None else row[place]) or {} for place in self._maps]
        return [metric.get(column) for column in self._columns for metric in maps]

    def _matched(
        self, match: re.Match[bytes], pattern: EntryPattern, partition: PartitionTuple, may_match: Any
    ) -> ListedFile | None:
        path, kind, records, size_bytes, number, *metrics = match.group(*pattern.rest)
        integers = self._integers
        rows = integers[records]
        if may_match is not None and not (rows and may_match(self._decoded(metrics))):
            return None
        if kind not in self._formats:
            self._formats[kind] = text_of(kind).decode()
        return ListedFile(
            text_of(path).decode(), self._formats[kind], partition, rows, integers[size_bytes], integers[number]
        )

    def _decoded(self, metrics: Sequence[bytes | None]) -> FileMetrics:
        integers = self._integers
        found: list[Any] = []
        for place in range(0, len(metrics), len(COLUMN_MAPS)):
            values, nulls, nans, low, high = metrics[place : place + len(COLUMN_MAPS)]
            found += (
                integers[values],
                integers[nulls],
                integers[nans],
                None if low is None else text_of(low),
                None if high is None else text_of(high),
            )
        return found
