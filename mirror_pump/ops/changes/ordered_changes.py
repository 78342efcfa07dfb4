"""Reads the changes of an interval in the order in which they were committed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.file_slices import Interval, rows_inside, slice_rows
from mirror_pump.lake.contents.ordered_rows import in_commit_order, place_columns, places_of, sorted_batches
from mirror_pump.lake.format.columns import names_by_id
from mirror_pump.lake.format.damaged_files import open_parquet
from mirror_pump.lake.format.feed_schema import LSN_ID
from mirror_pump.lake.format.schema import LakeSchema
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
            for batch in rows_inside(parquet, self.positions, _MOST_PLACES, columns=place_columns(names)):
                yield places_of(batch, names)

    def _batches(self, path: str) -> Iterator[pa.Table]:
        """The rows of a file that are inside, with the columns of the schema."""
        return slice_rows(path, self.positions, self.schema, self.storage, _MOST_ROWS, _BATCH_BYTES)
