"""Reads the changes of an interval in the order in which they were committed.

Invariant: every row of the table is yielded once, by ascending position of its commit and, in a transaction, by its
number there. Files of a feed are sorted that way, and overlap only where a transaction is in several, or commits about
midnight are: these are read side by side. Memory: a batch of rows of each file that is being read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.format.columns import cast_to, places_by_id
from mirror_pump.lake.format.damaged_files import open_parquet
from mirror_pump.lake.format.feed_schema import LSN, LSN_ID, SEQ
from mirror_pump.lake.format.row_batches import row_batches
from mirror_pump.lake.format.schema import FIELD_ID, LakeField, LakeSchema
from mirror_pump.lake.manifests.manifests import stored_of
from mirror_pump.lake.storage import StorageOptions

_MOST_ROWS = 20_000
"""Rows of a batch of one file."""
_BATCH_BYTES = 4 << 20

_ChangePlace = tuple[int, int]
"""Position of the commit, and number in the transaction."""


def ordered_changes(location: str, storage: StorageOptions) -> Iterator[pa.Table]:
    """All rows of the feed with this metadata file, in order, with the columns of its current schema. Raises
    LakeError."""
    table = LakeTable.load(location, storage)
    files = sorted(
        (int.from_bytes(entry.lower_bounds[LSN_ID], "little", signed=True), entry.path)
        for manifest in table.manifests
        if manifest.live_files
        for entry in stored_of(manifest, storage)
        if entry.records
    )
    yield from _merged(files, table.schema, storage)


@dataclass
class _OpenFeedFile:
    """A file that is being read."""

    batches: Iterator[pa.Table]
    rows: pa.Table
    """Those that are read and not yielded yet; at least one."""

    @property
    def last(self) -> _ChangePlace:
        """The place of the last row that is read."""
        return _place(self.rows, self.rows.num_rows - 1)

    def take(self, limit: _ChangePlace) -> pa.Table:
        """Removes the rows up to a place, and returns them."""
        lsn, seq = limit
        positions, numbers = self.rows.column(LSN), self.rows.column(SEQ)
        inside = pc.or_(pc.less(positions, lsn), pc.and_(pc.equal(positions, lsn), pc.less_equal(numbers, seq)))
        count = pc.sum(inside).as_py() or 0
        taken, self.rows = self.rows.slice(0, count), self.rows.slice(count)
        return taken

    def advance(self) -> bool:
        """Reads on if nothing is left. False at the end of the file."""
        while not self.rows.num_rows:
            batch = next(self.batches, None)
            if batch is None:
                return False
            self.rows = batch
        return True


def _place(rows: pa.Table, row: int) -> _ChangePlace:
    return rows.column(LSN)[row].as_py(), rows.column(SEQ)[row].as_py()


def _merged(files: Sequence[tuple[int, str]], schema: LakeSchema, storage: StorageOptions) -> Iterator[pa.Table]:
    """`files`: the least position in each, and where it is, in that order."""
    waiting = list(files)
    being_read: list[_OpenFeedFile] = []
    while waiting or being_read:
        # What may come before the rows that are read is read first.
        while waiting and (not being_read or waiting[0][0] <= min(file.last for file in being_read)[0]):
            _, path = waiting.pop(0)
            file = _OpenFeedFile(_batches(path, schema, storage), schema.arrow.empty_table())
            if file.advance():
                being_read.append(file)
        if not being_read:
            continue
        limit = min(file.last for file in being_read)
        taken = [rows for file in being_read if (rows := file.take(limit)).num_rows]
        being_read = [file for file in being_read if file.advance()]
        if len(taken) == 1:
            yield taken[0]
        else:
            whole = pa.concat_tables(taken)
            order = pc.sort_indices(whole.select([LSN, SEQ]), sort_keys=[(LSN, "ascending"), (SEQ, "ascending")])
            yield whole.take(order)


def _batches(path: str, schema: LakeSchema, storage: StorageOptions) -> Iterator[pa.Table]:
    """The rows of a file, with the columns of the schema."""
    with open_parquet(path, storage) as parquet:
        places = places_by_id(parquet)
        for _, batch in row_batches(parquet, _MOST_ROWS, _BATCH_BYTES):
            columns = [_column(field, batch, places, parquet) for field in schema.fields]
            yield pa.Table.from_arrays(columns, schema=schema.arrow)


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
