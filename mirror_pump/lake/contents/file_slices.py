"""Copies those rows of a data file that lie in an interval of a column into a file of their own: a slice.

A slice has the columns of its source, with their field IDs, as the source has them in Parquet: readers find columns by
field ID, so no schema has to be known here. Memory: one batch of rows, and the row group that it becomes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mirror_pump.lake.format.bounds import split_offsets
from mirror_pump.lake.format.columns import names_by_id
from mirror_pump.lake.format.damaged_files import open_parquet
from mirror_pump.lake.format.data_files import FileContent, WrittenFile
from mirror_pump.lake.format.row_batches import BATCH_BYTES, row_batches
from mirror_pump.lake.format.schema import FIELD_ID
from mirror_pump.lake.manifests.manifest_entries import StoredEntry
from mirror_pump.lake.storage import StorageOptions, open_output

_MOST_ROWS = 200_000
"""Rows of a batch, which becomes a row group."""


@dataclass(frozen=True)
class Interval:
    """Values of a column from `low` on, and below `high`."""

    field_id: int
    """Of a top-level column of type long, without NULL."""
    low: int
    high: int

    def __contains__(self, value: int) -> bool:
        return self.low <= value < self.high

    def holds(self, entry: StoredEntry) -> bool | None:
        """Whether all rows of a file are inside, by its bounds. False: none is. None: some may be."""
        lower, upper = entry.lower_bounds.get(self.field_id), entry.upper_bounds.get(self.field_id)
        if lower is None or upper is None:
            return None if entry.records else False
        least, greatest = _value(lower), _value(upper)
        if greatest < self.low or least >= self.high:
            return False
        return True if least in self and greatest in self else None

    def lowest_of(self, entry: StoredEntry) -> int:
        """A value that none of a file's rows is below."""
        lower = entry.lower_bounds.get(self.field_id)
        return self.low if lower is None else _value(lower)


def _value(bound: bytes) -> int:
    """A long in Iceberg's single-value serialisation."""
    return int.from_bytes(bound, "little", signed=True)


def _bound(value: int) -> bytes:
    return value.to_bytes(8, "little", signed=True)


@dataclass
class _SliceCounts:
    """What the rows of a slice have, by field ID, of the columns that can be told apart in Arrow."""

    rows: int = 0
    nulls: Counter[int] = field(default_factory=Counter)
    nans: Counter[int] = field(default_factory=Counter)
    least: int | None = None
    greatest: int | None = None

    def add(self, batch: pa.RecordBatch, positions: pa.Array) -> None:
        self.rows += batch.num_rows
        for field_id, values in _values_by_id(batch):
            self.nulls[field_id] += values.null_count
            if pa.types.is_floating(values.type):
                self.nans[field_id] += pc.sum(pc.is_nan(values)).as_py() or 0
        extremes = pc.min_max(positions)
        least, greatest = extremes["min"].as_py(), extremes["max"].as_py()
        self.least = least if self.least is None else min(self.least, least)
        self.greatest = greatest if self.greatest is None else max(self.greatest, greatest)


def write_slice(source: StoredEntry, interval: Interval, path: str, storage: StorageOptions) -> WrittenFile | None:
    """Writes the rows of a data file that are inside as the file at `path`, in their order. None, and no file, if there
    are none. Reads the row groups only that may have some. Raises LakeError."""
    with open_parquet(source.path, storage) as parquet:
        batches = rows_inside(parquet, interval, _MOST_ROWS)
        first = next(batches, None)
        if first is None:
            return None
        counts = _SliceCounts()
        with open_output(path, storage) as sink:
            with pq.ParquetWriter(sink, parquet.schema_arrow, **_form(parquet.metadata)) as writer:
                for batch, positions in _from(first, batches):
                    counts.add(batch, positions)
                    writer.write_table(pa.Table.from_batches([batch]), row_group_size=batch.num_rows)
            size = sink.tell()
            footer = writer.writer.metadata
    return _described(source, interval, counts, path, size, footer)


def _from(
    first: tuple[pa.RecordBatch, pa.Array], others: Iterator[tuple[pa.RecordBatch, pa.Array]]
) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
    yield first
    yield from others


def rows_inside(
    parquet: pq.ParquetFile,
    interval: Interval,
    most_rows: int,
    batch_bytes: int = BATCH_BYTES,
    columns: Sequence[str] | None = None,
) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
    """The rows of a file that are inside, and their positions, in batches as of `row_batches`. No batch is empty.
    `columns`: all, or these, with that of the interval."""
    name = names_by_id(parquet)[interval.field_id]
    groups = _groups_inside(parquet, interval, name)
    for _, batch in row_batches(parquet, most_rows, batch_bytes, columns=columns, groups=groups):
        positions = batch.column(name)
        inside = pc.and_(pc.greater_equal(positions, interval.low), pc.less(positions, interval.high))
        chosen = batch.filter(inside)
        if chosen.num_rows:
            yield chosen, chosen.column(name)


def _groups_inside(parquet: pq.ParquetFile, interval: Interval, name: str) -> list[int]:
    """Numbers of the row groups that may have rows inside, by the statistics of the column of that name."""
    leaf = next(leaf for leaf in range(len(parquet.schema)) if parquet.schema.column(leaf).path == name)
    numbers = []
    for number in range(parquet.num_row_groups):
        statistics = parquet.metadata.row_group(number).column(leaf).statistics
        if (
            statistics is None
            or not statistics.has_min_max
            or (statistics.max >= interval.low and statistics.min < interval.high)
        ):
            numbers.append(number)
    return numbers


def _form(footer: pq.FileMetaData) -> dict[str, object]:
    """How the source was written, as arguments of pyarrow's writer. Columns without statistics have none in a slice
    either: those of some types mislead readers."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    chunks = [[group.column(leaf) for group in groups] for leaf in range(footer.num_columns)]
    paths = [footer.schema.column(leaf).path for leaf in range(footer.num_columns)]
    with_statistics = [path for path, column in zip(paths, chunks, strict=True) if any(c.is_stats_set for c in column)]
    with_dictionary = [
        path for path, column in zip(paths, chunks, strict=True) if any(c.has_dictionary_page for c in column)
    ]
    return {
        "compression": groups[0].column(0).compression.lower(),
        "use_dictionary": with_dictionary or False,
        "write_statistics": with_statistics or False,
        # Iceberg spec, appendix A: decimals of up to 9 and 18 digits are INT32 and INT64.
        "store_decimal_as_integer": True,
        "store_schema": False,
    }


def _values_by_id(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.Array]]:
    """The columns, and those of structs, by field ID. A NULL struct counts as NULL in each of its columns."""
    for arrow, values in zip(batch.schema, batch.columns, strict=True):
        yield from _with_id(arrow, values)
        if pa.types.is_struct(arrow.type):
            for inner, inner_values in zip(arrow.type, values.flatten(), strict=True):
                yield from _with_id(inner, inner_values)


def _with_id(arrow: pa.Field, values: pa.Array) -> Iterator[tuple[int, pa.Array]]:
    if arrow.metadata and FIELD_ID in arrow.metadata:
        yield int(arrow.metadata[FIELD_ID]), values


def _described(
    source: StoredEntry, interval: Interval, counts: _SliceCounts, path: str, size: int, footer: pq.FileMetaData
) -> WrittenFile:
    """The slice for its manifest entry. The bounds of its source hold for some of its rows too; those of the interval's
    column are exact."""
    assert counts.least is not None
    assert counts.greatest is not None
    value_counts, null_counts, nan_counts = (source.file[place] or {} for place in (7, 8, 9))
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    return WrittenFile(
        content=FileContent.DATA,
        path=path,
        record_count=counts.rows,
        size_bytes=size,
        column_sizes={},
        value_counts=dict.fromkeys((id_ for id_ in value_counts if id_ in counts.nulls), counts.rows),
        null_counts={id_: counts.nulls[id_] for id_ in null_counts if id_ in counts.nulls},
        lower_bounds={**source.lower_bounds, interval.field_id: _bound(counts.least)},
        upper_bounds={**source.upper_bounds, interval.field_id: _bound(counts.greatest)},
        split_offsets=split_offsets(groups),
        nan_counts={id_: counts.nans[id_] for id_ in nan_counts if id_ in counts.nans},
        partition=source.partition,
    )
