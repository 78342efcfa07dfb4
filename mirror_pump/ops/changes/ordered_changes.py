"""Reads the changes of an interval in the order in which they were committed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq

from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.file_slices import Interval, rows_inside
from mirror_pump.lake.contents.ordered_rows import in_commit_order, place_columns, places_of, sorted_batches
from mirror_pump.lake.format.columns import cast_to, names_by_id, places_by_id
from mirror_pump.lake.format.damaged_files import open_parquet
from mirror_pump.lake.format.feed_schema import LSN_ID
from mirror_pump.lake.format.schema import FIELD_ID, LakeField, LakeSchema
from mirror_pump.lake.manifests.manifest_files import stored_of
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.ops.changes.points import ChangeInterval

_MOST_ROWS = 20_000
"""Rows of a batch of one file."""
_MOST_PLACES = 1_000_000
_BATCH_BYTES = 4 << 20


def ordered_changes(location: str, interval: ChangeInterval, storage: StorageOptions) -> Iterator[pa.Table]:
    """The rows of an interval of the feed with this metadata file, in order, with the columns of its current schema.
    Raises LakeError."""
    table = LakeTable.load(location, storage)
    positions = Interval(LSN_ID, interval.since, interval.until)
    content = _FeedRows(table.schema, positions, storage)
    yield from in_commit_order(
        (max(positions.lowest_of(entry), interval.since), partial(content.sorted_batches, entry.path))
        for manifest in table.manifests
        if manifest.live_files
        for entry in stored_of(manifest, storage)
        if positions.holds(entry) is not False
    )


@dataclass(frozen=True)
class _FeedRows:
    """What is read of the files."""

    schema: LakeSchema
    positions: Interval
    storage: StorageOptions

    def sorted_batches(self, path: str) -> Iterator[pa.Table]:
        """The rows of a file that are inside, in order."""
        yield from sorted_batches(partial(self._batches, path), partial(self._places, path))

    def _places(self, path: str) -> Iterator[pa.Table]:
        with open_parquet(path, self.storage) as parquet:
            names = names_by_id(parquet)
            for batch, _ in rows_inside(parquet, self.positions, _MOST_PLACES, columns=place_columns(names)):
                yield places_of(batch, names)

    def _batches(self, path: str) -> Iterator[pa.Table]:
        """The rows of a file that are inside, with the columns of the schema."""
        with open_parquet(path, self.storage) as parquet:
            places = places_by_id(parquet)
            for batch, _ in rows_inside(parquet, self.positions, _MOST_ROWS, _BATCH_BYTES):
                columns = [_column(field, batch, places, parquet) for field in self.schema.fields]
                yield pa.Table.from_arrays(columns, schema=self.schema.arrow)


def _column(field: LakeField, batch: pa.RecordBatch, places: dict[int, int], parquet: pq.ParquetFile) -> pa.Array:
    place = places.get(field.field_id)
    if place is None:
        return pa.nulls(batch.num_rows, field.arrow.type)
    return _projected(field, batch.column(place), parquet.schema_arrow.field(place))


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
