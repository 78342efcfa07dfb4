"""Reads of a manifest what planning a read needs: the files that two tests let through, and little of the others.

`file_test`, the third pass of a plan, says whether a data file may have matching rows by the counts and bounds of its
columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from pyiceberg.expressions import BooleanExpression, BoundPredicate

from mirror_pump.lake.format.partitioning import PartitionTuple
from mirror_pump.lake.manifests.entry_reader import (
    FIRST_ROW_ID,
    FORMAT,
    LOWER_BOUNDS,
    NAN_COUNTS,
    NULL_COUNTS,
    PARTITION,
    PATH,
    RECORDS,
    SEQUENCE_NUMBER,
    SIZE_BYTES,
    STATUS,
    UPPER_BOUNDS,
    VALUE_COUNTS,
    EntryReader,
    PartitionField,
    Status,
)
from mirror_pump.tables.read_plan.ordered_values import bound_reader, is_float
from mirror_pump.tables.read_plan.predicates import folded
from mirror_pump.tables.read_plan.value_tests import ValueRange, may_match

_DELETED = int(Status.DELETED)
COLUMN_MAPS = (VALUE_COUNTS, NULL_COUNTS, NAN_COUNTS, LOWER_BOUNDS, UPPER_BOUNDS)

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
    first_row_id: int | None = None
    """The ID of its first row, if it was asked for."""


class FileEntries:
    """The live entries of one manifest, each read once. May raise anything for content that is no manifest: use it in
    `decoding`."""

    def __init__(self, content: bytes, columns: Sequence[int] = (), first_row_id: int | None = None) -> None:
        """`columns`: field IDs whose metrics are tested. `first_row_id`: the manifest's, if those of the files are
        asked for. They depend on the rows of all files, so none can be passed over then."""
        self._columns = columns
        self._next_row_id = first_row_id
        self._reader = EntryReader(content, frozenset(COLUMN_MAPS if columns else ()))
        places = self._reader.places
        self._places = [places[field] for field in (PATH, FORMAT, PARTITION, RECORDS, SIZE_BYTES)]
        self._sequence_number = places.get(SEQUENCE_NUMBER)
        self._maps = [places.get(field) for field in COLUMN_MAPS]
        self.entries_seen = 0
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
        metrics that may match, if that is asked."""
        status_place, partition_place = self._reader.places[STATUS], self._reader.places[PARTITION]

        def refused(row: list[Any]) -> bool:
            if row[status_place] == _DELETED:
                return True
            self.entries_seen += 1
            if numbered:
                return False
            row[partition_place] = partition = partition_of(row[partition_place])
            return partition is None

        numbered = self._next_row_id is not None
        for row in self._reader.rows(refused):
            row_id = None
            if numbered:
                row_id = self._first_row_id(row)
                row[partition_place] = partition_of(row[partition_place])
            path, kind, partition, records, size_bytes = [row[place] for place in self._places]
            if partition is not None and (may_match is None or (records and may_match(self._metrics(row)))):
                number = None if self._sequence_number is None else row[self._sequence_number]
                yield ListedFile(path, kind, partition, records, size_bytes, number, row_id)

    def _first_row_id(self, row: Sequence[Any]) -> int:
        """That of the next live file (Iceberg spec, first row ID inheritance)."""
        place = self._reader.places.get(FIRST_ROW_ID)
        row_id: int | None = None if place is None else row[place]
        if row_id is not None:
            return row_id
        assert self._next_row_id is not None
        row_id = self._next_row_id
        self._next_row_id += row[self._reader.places[RECORDS]]
        return row_id

    def _metrics(self, row: Sequence[Any]) -> FileMetrics:
        maps = [(None if place is None else row[place]) or {} for place in self._maps]
        return [metric.get(column) for column in self._columns for metric in maps]


def file_test(predicate: BooleanExpression, columns: Sequence[int]) -> Callable[[FileMetrics], bool]:
    """The test of a bound predicate on the metrics of these columns, which it refers to; `always` itself for one that
    asks nothing."""
    places = {column: place * len(COLUMN_MAPS) for place, column in enumerate(columns)}
    return folded(predicate, lambda comparison: _column_test(comparison, places))


def _column_test(predicate: BoundPredicate, places: Mapping[int, int]) -> Callable[[FileMetrics], bool]:
    test = may_match(predicate)
    field = predicate.term.ref().field
    begin = places[field.field_id]
    end = begin + len(COLUMN_MAPS)
    read = bound_reader(field.field_type)
    floats = is_float(field.field_type)

    def column_test(metrics: FileMetrics) -> bool:
        values, nulls, nans, low, high = metrics[begin:end]
        if not floats:
            nans = None
        if read is None:
            low = high = None
        else:
            low = None if low is None else read(low)
            high = None if high is None else read(high)
            if floats and (low != low or high != high):  # NaN differs from itself.
                # Of a writer that took NaN for a value: its bounds say nothing.
                low = high = None
        return test(
            ValueRange(
                low,
                high,
                nulls != 0,
                floats and nans != 0 and not (values and nulls is not None and nulls >= values),
                # Without a positive number of values nothing follows from the other counts.
                not (values and (nulls or 0) + (nans or 0) >= values),
            )
        )

    return column_test
