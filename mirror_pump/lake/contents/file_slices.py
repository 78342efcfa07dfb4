"""Copies those rows of a data file that lie in an interval of a column into a file of their own: a slice.

Memory: one batch of rows, and the row group that they become.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mirror_pump.lake.format.columns import absent_column, cast_to, names_by_id, places_by_id
from mirror_pump.lake.format.damaged_files import open_parquet
from mirror_pump.lake.format.data_files import DataFileWriter, WrittenFile
from mirror_pump.lake.format.row_batches import BATCH_BYTES, row_batches
from mirror_pump.lake.format.schema import FIELD_ID, LakeField, LakeSchema
from mirror_pump.lake.manifests.manifest_entries import StoredEntry
from mirror_pump.lake.storage import StorageOptions

_MOST_ROWS = 200_000
"""Rows of a batch."""


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


def write_slice(
    source: StoredEntry, interval: Interval, schema: LakeSchema, path: str, storage: StorageOptions
) -> WrittenFile | None:
    """Writes the rows of a data file that are inside as the file at `path`, in their order and with these columns.
    None, and no file, if there are none. Raises LakeError."""
    tables = slice_rows(source.path, interval, schema, storage, _MOST_ROWS)
    first = next(tables, None)
    if first is None:
        return None
    with DataFileWriter(schema, "", storage, partition=source.partition, path=path) as writer:
        for rows in chain([first], tables):
            writer.write(rows)
    return writer.written


def slice_rows(
    path: str,
    interval: Interval,
    schema: LakeSchema,
    storage: StorageOptions,
    most_rows: int,
    batch_bytes: int = BATCH_BYTES,
) -> Iterator[pa.Table]:
    """The rows of a file that are inside, with the columns of the schema, in batches as of `row_batches`. Raises
    LakeError."""
    with open_parquet(path, storage) as parquet:
        places = places_by_id(parquet)
        for batch in rows_inside(parquet, interval, most_rows, batch_bytes):
            columns = [
                absent_column(field, batch.num_rows)
                if (place := places.get(field.field_id)) is None
                else _projected(field, batch.column(place), parquet.schema_arrow.field(place))
                for field in schema.fields
            ]
            yield pa.Table.from_arrays(columns, schema=schema.arrow)


def _projected(field: LakeField, values: pa.Array, stored: pa.Field) -> pa.Array:
    """The values in the field's type; of a struct, its fields by their IDs."""
    target = field.arrow.type
    if not pa.types.is_struct(target):
        return values if values.type == target else cast_to(values, target)
    inner = {
        int(part.metadata[FIELD_ID]): (part, part_values)
        for part, part_values in zip(stored.type, values.flatten(), strict=True)
        if part.metadata and FIELD_ID in part.metadata
    }
    parts = [
        _projected(child, inner[child.field_id][1], inner[child.field_id][0])
        if child.field_id in inner
        else pa.nulls(len(values), child.arrow.type)
        for child in field.children
    ]
    return pa.StructArray.from_arrays(parts, fields=list(target), mask=values.is_null())


def rows_inside(
    parquet: pq.ParquetFile,
    interval: Interval,
    most_rows: int,
    batch_bytes: int = BATCH_BYTES,
    columns: Sequence[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a file that are inside, in batches as of `row_batches`. No batch is empty. `columns`: all, or these,
    with that of the interval."""
    name = names_by_id(parquet)[interval.field_id]
    groups = _groups_inside(parquet, interval, name)
    for _, batch in row_batches(parquet, most_rows, batch_bytes, columns=columns, groups=groups):
        values = batch.column(name)
        chosen = batch.filter(pc.and_(pc.greater_equal(values, interval.low), pc.less(values, interval.high)))
        if chosen.num_rows:
            yield chosen


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
