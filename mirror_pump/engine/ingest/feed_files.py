"""Writes the changes of a segment as files of a table's change feed. Runs inside tasks, and for a few rows in the
driver."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from decoders.change_events import ChangeEvents, OldRows
from decoders.incomplete_rows import IncompleteRows, RawTexts
from decoders.printing import print_values
from decoders.tuples import Ints
from mirror_pump.lake.format.columns import cast_to
from mirror_pump.lake.format.data_files import WrittenFile
from mirror_pump.lake.format.feed_schema import FEED_PARTITIONING, feed_schema_of, old_type
from mirror_pump.lake.format.partitioned_files import write_data_files
from mirror_pump.lake.format.raw_text_columns import with_raw_text
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.lake.storage import StagedFiles, StorageOptions
from mirror_pump.model import FeedMode, TableFeed


@dataclass(frozen=True)
class FeedFiles:
    """Files of a feed, and the columns that they need."""

    files: tuple[WrittenFile, ...] = ()
    raw_text: frozenset[int] = frozenset()
    """Field IDs of the table's columns that have a raw text column in them."""
    old_raw_text: frozenset[int] = frozenset()
    """... in old rows."""


@dataclass(frozen=True)
class FeedSegment:
    """A segment's changes to one feed."""

    written: FeedFiles
    counts: Ints
    """Number of events by transaction of the segment."""
    incomplete: IncompleteRows | None
    """New rows with values that the segment does not have."""
    incomplete_heads: pa.Table
    """What the events of these rows have besides columns."""

    @property
    def files(self) -> tuple[WrittenFile, ...]:
        return self.written.files

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        rows = 0 if self.incomplete is None else self.incomplete.nbytes + self.incomplete_heads.nbytes
        return int(self.counts.nbytes) + rows


def write_events(
    events: ChangeEvents, columns: LakeSchema, feed: TableFeed, storage: StorageOptions, written: StagedFiles
) -> FeedSegment:
    """Writes the events that are complete. `columns` are the table's. `written` owns the files."""
    files = write_feed_rows(events.heads, events.rows, events.raw, events.old, columns, feed, storage)
    written.add(*(file.path for file in files.files))
    return FeedSegment(files, events.counts, events.incomplete, events.incomplete_heads)


def write_feed_rows(
    heads: pa.Table,
    rows: pa.Table,
    raw: RawTexts,
    old: OldRows | None,
    columns: LakeSchema,
    feed: TableFeed,
    storage: StorageOptions,
) -> FeedFiles:
    """Writes events as one file for each day of commit, in their order. `rows` has the table's columns, and may have
    more. `old`: the old rows; None for a feed without, or if no event has one."""
    for field in columns.fields:
        if field.type.is_document:
            rows, raw = _with_documents(rows, raw, field)
            old = old and OldRows(*_with_documents(old.rows, old.raw, field), old.sent)
    raw_ids, old_ids = _field_ids(columns, raw), _field_ids(columns, {} if old is None else old.raw)
    schema = feed_schema_of(columns, feed.mode, raw_ids, old_ids)
    values = [*heads.columns]
    if feed.mode is FeedMode.ROWS:
        values.append(pa.nulls(heads.num_rows, old_type(schema)) if old is None else _structs(old, columns, schema))
    values += [rows.column(field.name) for field in columns.fields]
    values += [raw[columns.name_of(field_id)] for field_id in sorted(raw_ids)]
    table = pa.table(values, schema=schema.arrow)
    return FeedFiles(write_data_files(table, schema, feed.location, storage, FEED_PARTITIONING), raw_ids, old_ids)


def _with_documents(rows: pa.Table, raw: RawTexts, field: LakeField) -> tuple[pa.Table, RawTexts]:
    """The rows with a column of variants as text, which has its raw texts too."""
    texts = pa.chunked_array([print_values(chunk, field.type) for chunk in rows.column(field.name).chunks], pa.string())
    if field.name in raw:
        texts = pc.coalesce(texts, raw[field.name])
    rows = rows.set_column(rows.column_names.index(field.name), field.name, texts)
    return rows, {name: column for name, column in raw.items() if name != field.name}


def _field_ids(columns: LakeSchema, raw: Mapping[str, object]) -> frozenset[int]:
    return frozenset(field.field_id for field in columns.fields if field.name in raw)


def _structs(old: OldRows, columns: LakeSchema, schema: LakeSchema) -> pa.Array:
    """The old rows as structs; NULL for events without one."""
    struct = old_type(schema)
    names = [*(field.name for field in columns.fields)]
    texts = [old.raw[name] for name in names if name in old.raw]
    assert len(names) + len(texts) == len(with_raw_text(columns, _field_ids(columns, old.raw)).fields)
    arrays = [
        cast_to(_whole(values, inner.type), inner.type)
        for values, inner in zip([*(old.rows.column(name) for name in names), *texts], struct, strict=True)
    ]
    return pa.StructArray.from_arrays(arrays, fields=list(struct), mask=pa.array(~old.sent))


def _whole(values: pa.ChunkedArray, arrow_type: pa.DataType) -> pa.Array:
    return pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], arrow_type)


def without_empty(raw: Mapping[str, pa.ChunkedArray]) -> dict[str, pa.ChunkedArray]:
    """The raw texts of the columns that have any."""
    return {name: texts for name, texts in raw.items() if texts.null_count < len(texts)}


def in_order(heads: pa.Table, others: Collection[pa.Table]) -> tuple[pa.Table, list[pa.Table]]:
    """Events sorted by transaction and sequence, and other tables of as many rows in the same order."""
    order = pc.sort_indices(heads, [("_lsn", "ascending"), ("_seq", "ascending")])
    return heads.take(order), [table.take(order) for table in others]
