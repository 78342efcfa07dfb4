"""What runs inside a Spark task: decode a segment and write its files. Plain functions of picklable values.

A task writes files and describes them; it never commits. It may run twice (Spark retries, a restarted batch): each
run writes files under fresh names, and only those that the driver publishes count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decoders.segment import IncompleteRows, RelationShape, TableChanges, decode_segment
from mirror_pump.lake.commit import SegmentFiles
from mirror_pump.lake.files import WrittenFile, write_data_file, write_equality_deletes
from mirror_pump.lake.schema import LakeSchema
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import MirroredTable, TableId, TableState


@dataclass(frozen=True)
class SegmentTable:
    """One table as a segment's task needs it."""

    shape: RelationShape
    schema: LakeSchema
    location: str


@dataclass(frozen=True)
class SegmentTask:
    """A slice of the stream to turn into files."""

    data: bytes
    """CopyData messages, concatenated."""
    lengths: bytes
    """Their lengths, int32 in native byte order."""
    tables: tuple[SegmentTable, ...]
    storage: StorageOptions
    header: int
    """Bytes before the pgoutput message in each."""


@dataclass(frozen=True)
class TableResult:
    """What a segment did to one table."""

    table_id: TableId
    changes: int
    files: SegmentFiles
    incomplete: IncompleteRows | None
    """Rows with unchanged TOAST values that this segment does not hold: the driver completes them."""
    error: str | None


@dataclass(frozen=True)
class SegmentResult:
    tables: tuple[TableResult, ...]


def segment_table(table: MirroredTable) -> SegmentTable:
    """What tasks need of `table`. While it is copied, every key touched gets a delete: a copied row may exist."""
    names = tuple(column.name for column in table.columns)
    shape = RelationShape(
        relation_id=table.table_id,
        names=names,
        types=tuple(column.type for column in table.columns),
        key=tuple(sorted(names.index(name) for name in table.key)),
        not_null=tuple(column.name in table.key for column in table.columns),
        every_key_deletes=table.state is not TableState.LIVE,
    )
    return SegmentTable(shape, LakeSchema.of_table(table), table.location)


def apply_segment(task: SegmentTask) -> SegmentResult:
    """Decode the segment, write one data file and one delete file for each table in it, and describe them."""
    tables = {table.shape.relation_id: table for table in task.tables}
    shapes = {relation_id: table.shape for relation_id, table in tables.items()}
    lengths = np.frombuffer(task.lengths, np.int32)
    changes = decode_segment(task.data, lengths, shapes, header=task.header)
    return SegmentResult(tuple(_write(change, tables[change.relation_id], task.storage) for change in changes))


def _write(changes: TableChanges, table: SegmentTable, storage: StorageOptions) -> TableResult:
    table_id = TableId(changes.relation_id)
    if changes.error is not None:
        return TableResult(table_id, changes.changes, SegmentFiles((), ()), None, changes.error)
    data: tuple[WrittenFile, ...] = ()
    deletes: tuple[WrittenFile, ...] = ()
    if changes.rows.num_rows:
        data = (write_data_file(changes.rows, table.schema, table.location, storage),)
    if changes.deleted_keys.num_rows:
        deletes = (write_equality_deletes(changes.deleted_keys, table.schema, table.location, storage),)
    return TableResult(table_id, changes.changes, SegmentFiles(data, deletes), changes.incomplete, None)
