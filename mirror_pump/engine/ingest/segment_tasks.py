"""Spark task that decodes a segment of the stream and writes its files. Plain functions of picklable values.

A task writes files and describes them, but never commits. It may run twice (Spark retries, a restarted batch). Each run
writes files under new names, and only the files that the driver publishes count.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from decoders.change_events import SegmentTransactions
from decoders.incomplete_rows import IncompleteRows, RawTexts
from decoders.segment import RelationShape, TableChanges, decode_segment, undecoded
from mirror_pump.engine.ingest.feed_files import FeedSegment, write_events
from mirror_pump.errors import FileMissing, TableError, with_remedy
from mirror_pump.lake.commit.row_delta import SegmentFiles
from mirror_pump.lake.contents.cutline import CutLine
from mirror_pump.lake.contents.kept_ranges import KeptRanges
from mirror_pump.lake.format.data_files import WrittenFile
from mirror_pump.lake.format.partitioned_files import write_data_files, write_equality_delete_files
from mirror_pump.lake.format.partitioning import places_by_partition, taken
from mirror_pump.lake.format.raw_text_columns import every_raw_text, narrowed, raw_text_fields, widened
from mirror_pump.lake.format.row_lineage import has_lineage
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.format.unwritten_files import NONE_UNWRITTEN, UnwrittenFiles, encoded_data_files
from mirror_pump.lake.key_index.index_plan import SegmentKeys
from mirror_pump.lake.key_index.packed_keys import KeyPacking, PackedKeys
from mirror_pump.lake.key_index.whole_rows import RemovedRows
from mirror_pump.lake.storage import StagedFiles, StorageOptions, gathered_writes
from mirror_pump.model import FeedMode, LakePartitioning, MirroredTable, TableFeed, TableId, TableState
from mirror_pump.runtime.table_work import is_of_one_table, work_for


@dataclass(frozen=True)
class SegmentTable:
    """What a segment's task needs to know about one table."""

    shape: RelationShape
    schema: LakeSchema
    location: str
    line: CutLine | None = None
    """The cut-line, if rows may be below it: stream changes there are not applied
    (mirror_pump.lake.commit.archive_branch)."""
    packing: KeyPacking | None = None
    """How to pack the deleted keys for the driver, which writes them; None to write equality-delete files here."""
    partitioning: LakePartitioning | None = None
    """How the lake table's files are divided."""
    feed: TableFeed | None = None
    """Where all changes are written, too."""
    has_row_ids: bool = False
    """Whether its rows have IDs, which rows that replace others keep."""
    name: str = ""
    """For errors."""
    masked: bool = False
    """Whether no error may tell a value."""
    kept_ranges: KeptRanges | None = None
    """Of a table that has all rows: where the lake may have a row of a key that the stream inserts."""


@dataclass(frozen=True)
class SegmentTask:
    """A slice of the stream to turn into files."""

    data: bytes
    """CopyData messages, concatenated."""
    lengths: bytes
    """Lengths of the messages, int32 in native byte order."""
    tables: tuple[SegmentTable, ...]
    storage: StorageOptions
    header: int
    """Bytes before the pgoutput message in each CopyData message."""
    transactions: SegmentTransactions | None = None
    """Those of the messages, if a table has a change feed."""
    urgent: ClassVar[bool] = True
    """The frontier waits for it (TaskRunner)."""


@dataclass(frozen=True)
class TableResult:
    """Changes of one table in a segment."""

    table_id: TableId
    changes: int
    files: SegmentFiles
    incomplete: IncompleteRows | None
    """Rows with unchanged TOAST values that this segment does not contain; the driver completes them."""
    error: str | None
    keys: SegmentKeys | None = None
    """If the table has a packing: the deleted keys, for which no file was written, and the keys of the rows."""
    raw_text_columns: frozenset[int] = frozenset()
    """Field IDs of the columns that have a raw text column in the data files."""
    deleted_rows: RemovedRows | None = None
    """If the table's rows are found by all their values: the rows that the segment deletes."""
    missing: str | None = None
    """The file that could not be written because its directory is gone. Then nothing else counts."""
    feed: FeedSegment | None = None
    """What was written to the table's change feed. None: the segment was decoded without one."""
    unwritten: UnwrittenFiles = NONE_UNWRITTEN
    """Those of the data files that wait for the IDs of their rows."""

    @property
    def written(self) -> tuple[WrittenFile, ...]:
        """All files that were written for it."""
        return (*self.files.data, *self.files.deletes, *(() if self.feed is None else self.feed.files))

    @property
    def looks_rows_up(self) -> bool:
        """Whether rows, of the table or its change feed, get values that are looked up in files."""
        return self.incomplete is not None or (self.feed is not None and self.feed.incomplete is not None)

    @property
    def nbytes(self) -> int:
        """Memory of its keys and rows in bytes."""
        keys = 0 if self.keys is None else self.keys.nbytes
        keys += 0 if self.deleted_rows is None else self.deleted_rows.nbytes
        keys += 0 if self.feed is None else self.feed.nbytes
        keys += self.unwritten.nbytes
        return keys + (0 if self.incomplete is None else self.incomplete.nbytes)


@dataclass(frozen=True)
class SegmentResult:
    """The files and keys of a segment, by table."""

    tables: tuple[TableResult, ...]
    began_at: float
    """time.time() when the task began to decode, by the clock of the machine that it ran on, seconds."""
    decoded_at: float
    """... and when it began to write files."""
    transactions: SegmentTransactions | None = None
    """Those of the task."""

    @classmethod
    def joined(cls, shares: Sequence[SegmentResult]) -> SegmentResult:
        """That of a segment which several tasks have decoded, each for its share of the tables."""
        if len(shares) == 1:
            return shares[0]
        return cls(
            tuple(table for share in shares for table in share.tables),
            min(share.began_at for share in shares),
            max(share.decoded_at for share in shares),
        )

    @property
    def nbytes(self) -> int:
        """Memory of the keys and rows in bytes."""
        heads = 0 if self.transactions is None else self.transactions.nbytes
        return heads + sum(table.nbytes for table in self.tables)


def segment_table(table: MirroredTable, packing: KeyPacking | None = None) -> SegmentTable:
    """What tasks need of `table`. While a table is copied, every key touched is deleted: a copied row may exist. So is
    every key in a range whose former rows the lake keeps."""
    kept_ranges = KeptRanges.of(table) if table.state.has_all_rows else None
    names = tuple(column.name for column in table.columns)
    # What a table's feed would get before it is live is not published (mirror_pump.pipeline.feeds).
    feed = table.feed if table.state is TableState.LIVE else None
    shape = RelationShape(
        relation_id=table.table_id,
        names=names,
        types=tuple(column.type for column in table.columns),
        key=tuple(sorted(names.index(name) for name in table.key)),
        not_null=tuple(column.name in table.key for column in table.columns),
        every_key_deletes=(kept_ranges is not None or not table.state.has_all_rows) and not table.keyless,
        whole_rows=table.whole_rows,
        left_out=table.excluded_places,
        events=feed is not None,
        old_rows=feed is not None and feed.mode is FeedMode.ROWS,
    )
    return SegmentTable(
        shape,
        LakeSchema.of_table(table),
        table.location,
        CutLine.of(table),
        packing,
        table.partitioning,
        feed,
        has_row_ids=has_lineage(table.format_version),
        name=str(table.name),
        masked=bool(table.masked_columns),
        kept_ranges=kept_ranges,
    )


def apply_segment(task: SegmentTask) -> SegmentResult:
    """Decodes the segment. For each table in it, writes a data file and, unless keys are returned, a delete file; of a
    partitioned table, for each lake partition."""
    began_at = time.time()
    tables = {table.shape.relation_id: table for table in task.tables}
    changes = _decoded(task)
    decoded_at = time.time()
    missing: set[str] = set()
    # No process would know the files of a failed task, and they would take the space that the next attempt needs.
    # The driver hears of the files only once all are durable, so that they wait for the disk together.
    with StagedFiles(task.storage) as written, gathered_writes(missing):
        results = tuple(_written(change, tables[change.relation_id], task.storage, written) for change in changes)
    return SegmentResult(
        tuple(_unless_gone(result, missing) for result in results), began_at, decoded_at, task.transactions
    )


def _decoded(task: SegmentTask) -> list[TableChanges]:
    """The changes of each table. One whose changes cannot be decoded has an error instead."""
    lengths = np.frombuffer(task.lengths, np.int32)

    def decode(*tables: SegmentTable) -> list[TableChanges]:
        shapes = {table.shape.relation_id: table.shape for table in tables}
        return decode_segment(task.data, lengths, shapes, task.header, task.transactions)

    try:
        return decode(*task.tables)
    except Exception as error:
        if not is_of_one_table(error):
            raise
    # It does not say of which table it is: each is decoded by itself.
    changes: list[TableChanges] = []
    for table in task.tables:
        try:
            with work_for(table.name, masked=table.masked):
                changes += decode(table)
        except TableError as error:
            changes.append(undecoded(table.shape, with_remedy(error)))
    return changes


def keys_by_file(
    rows: pa.Table, schema: LakeSchema, packing: KeyPacking, partitioning: LakePartitioning | None
) -> tuple[PackedKeys, ...]:
    """For each of the data files into which `write_data_files` writes the rows, the packed keys of its rows."""
    keys = rows.select([field.name for field in schema.key.fields])
    places = (places for _, places in places_by_partition(rows, schema, partitioning))
    return tuple(packing.pack(taken(keys, chosen).columns) for chosen in places)


def _written(changes: TableChanges, table: SegmentTable, storage: StorageOptions, written: StagedFiles) -> TableResult:
    """What goes wrong with one table does not concern the segment's other tables."""
    table_id = TableId(changes.relation_id)
    try:
        with work_for(table.name, masked=table.masked):
            result = _write(changes, table, storage, written)
            if changes.events is not None and table.feed is not None:
                # Without its files the feed gets a reset.
                with suppress(FileMissing):
                    feed = write_events(changes.events, table.schema, table.feed, storage, written)
                    result = replace(result, feed=feed)
            return result
    except FileMissing as error:
        return _gone(table_id, changes.changes, error.location)
    except TableError as error:
        return TableResult(table_id, changes.changes, SegmentFiles((), ()), None, with_remedy(error))


def _unless_gone(result: TableResult, missing: Collection[str]) -> TableResult:
    """The result, or that of a table whose directory is gone since its files were written."""
    for file in (*result.files.data, *result.files.deletes):
        if file.path in missing:
            return _gone(result.table_id, result.changes, file.path)
    if result.feed is not None and any(file.path in missing for file in result.feed.files):
        return replace(result, feed=None)
    return result


def _gone(table_id: TableId, changes: int, location: str) -> TableResult:
    return TableResult(table_id, changes, SegmentFiles((), ()), None, None, missing=location)


def _write(changes: TableChanges, table: SegmentTable, storage: StorageOptions, written: StagedFiles) -> TableResult:
    """Writes the files of one table. `written` owns each file as soon as it exists."""
    table_id = TableId(changes.relation_id)
    if changes.error is not None:
        return TableResult(table_id, changes.changes, SegmentFiles((), ()), None, changes.error)
    if table.kept_ranges is not None:
        changes = _replacing_kept(changes, table.kept_ranges)
    if table.line is not None:
        changes = _not_below(changes, table.line)
    raw_text_ids: frozenset[int] = frozenset()
    rows, schema = changes.rows, table.schema
    if rows.num_rows and changes.raw:
        rows, schema = narrowed(widened(rows, changes.raw, schema), schema)
        raw_text_ids = raw_text_fields(schema)
    unwritten = NONE_UNWRITTEN
    # A segment that deletes no key replaces no row, but for rows that an earlier one of its batch deletes.
    if table.has_row_ids and table.packing is not None and changes.deleted_keys.num_rows:
        data, unwritten = encoded_data_files(rows, schema, table.location, table.partitioning)
    else:
        data = write_data_files(rows, schema, table.location, storage, table.partitioning)
        written.add(*(file.path for file in data))
    result = TableResult(
        table_id,
        changes.changes,
        SegmentFiles(data, ()),
        changes.incomplete,
        None,
        raw_text_columns=raw_text_ids,
        unwritten=unwritten,
    )
    if table.packing is not None:
        keys = SegmentKeys(
            schema=table.schema,
            deleted=changes.deleted_keys,
            packed=table.packing.pack(changes.deleted_keys.columns),
            packing=table.packing,
            rows=keys_by_file(changes.rows, table.schema, table.packing, table.partitioning),
            may_be_absent=changes.appearing is not None and bool(changes.appearing.any()),
        )
        return replace(result, keys=keys)
    if changes.deleted_rows is not None:
        deleted = widened(changes.deleted_rows, changes.deleted_raw, table.schema)
        return replace(result, incomplete=None, deleted_rows=RemovedRows(every_raw_text(table.schema), deleted))
    deletes = write_equality_delete_files(
        changes.deleted_keys, table.schema, table.location, storage, table.partitioning
    )
    written.add(*(file.path for file in deletes))
    return replace(result, files=SegmentFiles(data, deletes))


def _replacing_kept(changes: TableChanges, kept_ranges: KeptRanges) -> TableChanges:
    """Leaves out the deleted keys whose row appears where the lake has none of the key."""
    appearing, keys = changes.appearing, changes.deleted_keys
    if appearing is None or not appearing.any():
        return changes
    chosen = ~appearing | kept_ranges.holds(keys.column(kept_ranges.name))
    return replace(changes, deleted_keys=keys.filter(pa.array(chosen)), appearing=appearing[chosen])


def _not_below(changes: TableChanges, line: CutLine) -> TableChanges:
    """Leaves out changes below the cut-line. The tier key is part of the key, so an update that moves a row across the
    cut-line appears as a deleted key on one side and a row on the other."""
    if not line.all_above(changes.deleted_keys.column(line.name)):
        above = pc.invert(line.below(changes.deleted_keys.column(line.name)))
        changes = replace(changes, deleted_keys=changes.deleted_keys.filter(above))
    rows, raw, mask = _rows_not_below(changes.rows, changes.raw, line)
    if mask is not None:
        changes = replace(changes, rows=rows, raw=raw)
    incomplete = changes.incomplete
    if incomplete is None:
        return changes
    rows, raw, mask = _rows_not_below(incomplete.rows, incomplete.raw, line)
    if mask is None:
        return changes
    remaining = IncompleteRows(rows, raw, incomplete.missing.filter(mask), incomplete.lookup_keys.filter(mask))
    return replace(changes, incomplete=remaining if rows.num_rows else None)


def _rows_not_below(rows: pa.Table, raw: RawTexts, line: CutLine) -> tuple[pa.Table, RawTexts, pa.ChunkedArray | None]:
    """The rows at or above the cut-line, their raw texts, and the mask of these rows; None as the mask means all."""
    tier_keys = rows.column(line.name)
    if line.all_above(tier_keys):
        return rows, raw, None
    mask = pc.invert(line.below(tier_keys))
    texts = {name: column.filter(mask) for name, column in raw.items()}
    return rows.filter(mask), {name: text for name, text in texts.items() if text.null_count < len(text)}, mask
