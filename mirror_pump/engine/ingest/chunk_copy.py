"""Spark task of a copy, of a table or of a tiered partition: reads a range of heap blocks and writes its data files."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from mirror_pump.errors import TableError, with_remedy
from mirror_pump.lake.contents.cutline import CutLine
from mirror_pump.lake.format.data_files import WrittenFile
from mirror_pump.lake.format.partitioned_files import PartitionedWriter
from mirror_pump.lake.format.raw_text_columns import raw_text_id, with_raw_text
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import MirroredTable
from mirror_pump.runtime.table_work import work_for
from mirror_pump.source.heap.block_reader import Chunk, FilenodeChanged, HeapLocked, RawTextNeeded, read_chunk
from mirror_pump.source.relations.refusal import null_in_key

Attempted = TypeVar("Attempted")


@dataclass(frozen=True)
class ChunkTask:
    """A range of heap blocks to copy."""

    dsn: str = field(repr=False)
    table: MirroredTable
    chunk: Chunk
    storage: StorageOptions
    snapshot: str | None = None
    """Exported snapshot to read in; None for a snapshot of the task's own."""
    raw_text_columns: frozenset[int] = frozenset()
    """Field IDs of columns known to need a raw text column. If others turn out to need one, the range is read again."""
    condition: str = ""
    """An SQL condition on the rows, besides the table's filter."""


@dataclass(frozen=True)
class ChunkResult:
    """What became of a range of heap blocks."""

    rows: int
    files: tuple[WrittenFile, ...] = ()
    """Empty if the range held no row. More than one only if the lake table is partitioned."""
    heap_rewritten: bool = False
    """The heap was rewritten since the chunks were planned, so their block numbers are no longer valid."""
    locked: bool = False
    """Another session is altering the heap, so nothing was read."""
    error: str | None = None
    """Reason why the table cannot be copied, if any."""
    raw_text_columns: frozenset[int] = frozenset()
    """Field IDs of the columns that have a raw text column in the files."""
    bytes_read: int = 0
    """Bytes of the values that were read, as Arrow holds them."""

    @property
    def written(self) -> tuple[WrittenFile, ...]:
        return self.files


def copy_chunk(task: ChunkTask) -> ChunkResult:
    """Reads the chunk and writes its rows. The file becomes part of the lake only when a publish commits it."""
    return attempted(task, lambda raw_text: write_chunk(task, raw_text))


def attempted(task: ChunkTask, attempt: Callable[[frozenset[str]], ChunkResult]) -> ChunkResult:
    """As `with_raw_text_columns`, or why the chunk cannot be read."""
    try:
        return with_raw_text_columns(task, attempt)
    except FilenodeChanged:
        return ChunkResult(0, heap_rewritten=True)
    except HeapLocked:
        return ChunkResult(0, locked=True)
    except TableError as error:
        return ChunkResult(0, error=with_remedy(error))


def with_raw_text_columns(task: ChunkTask, attempt: Callable[[frozenset[str]], Attempted]) -> Attempted:
    """What `attempt` returns. It gets the names of the columns with raw text columns, and is called again with more of
    them if it turns out that the chunk needs these. Raises as `read_chunk`, and TableError."""
    raw_text = frozenset(column.name for column in task.table.columns if column.field_id in task.raw_text_columns)
    while True:
        try:
            with work_for(task.table):
                return attempt(raw_text)
        except RawTextNeeded as needed:
            # Rare. The second read is cheap on average, as most tables have no such value. Each retry adds columns, so
            # this ends.
            raw_text |= needed.columns


def chunk_rows(task: ChunkTask, raw_text: frozenset[str]) -> Iterator[pa.RecordBatch]:
    """The chunk's rows at or above the cut-line: the table's columns, then the raw text columns. Raises as
    `read_chunk`."""
    table = task.table
    line = CutLine.of(table)
    place = next(
        (index for index, column in enumerate(table.columns) if line is not None and column.name == line.name), 0
    )
    where = " AND ".join(f"({condition})" for condition in (table.row_filter, task.condition) if condition)
    read = read_chunk(
        task.dsn, task.chunk, table.columns, snapshot=task.snapshot, raw_text_columns=raw_text, where=where
    )
    for batch in read:
        if line is not None:
            # Rows that the heap still holds below the cut-line are already in the lake or in the corrections.
            below = line.below(batch.column(place)).combine_chunks()
            if pc.any(below).as_py():
                batch = batch.filter(pc.invert(below))
        for index, column in enumerate(table.columns):
            if column.name in table.key and batch.column(index).null_count and column.name not in raw_text:
                raise null_in_key(table.name, column.name)
        yield batch


def write_chunk(
    task: ChunkTask,
    raw_text: frozenset[str],
    chosen: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda batch: batch,
) -> ChunkResult:
    """One attempt, with raw text columns for the columns named in `raw_text`. `chosen` returns the rows to write of
    those that `chunk_rows` yields. Raises RawTextNeeded if more columns need a raw text column."""
    table = task.table
    unsupported = [column for column in table.key_columns if column.name in raw_text]
    if unsupported:
        column = unsupported[0]
        raise TableError(
            f"key column {column.name} of {table.name} ({column.type_sql}) holds a value that"
            f" {column.type} cannot hold",
            f"Unregister the table, then register it with --column {shlex.quote(f'{column.name}=string')}.",
        )
    fields = frozenset(column.field_id for column in table.columns if column.name in raw_text)
    schema = with_raw_text(LakeSchema.of_table(table), fields)
    names_by_id = {field.field_id: field.name for field in schema.fields}
    raw_text_names = [names_by_id[raw_text_id(column.field_id)] for column in table.columns if column.name in raw_text]
    names = [*(column.name for column in table.columns), *raw_text_names]
    rows = bytes_read = 0
    writer = PartitionedWriter(schema, table.location, task.storage, table.partitioning)
    with writer:
        for batch in chunk_rows(task, raw_text):
            bytes_read += batch.nbytes
            batch = chosen(batch)
            rows += batch.num_rows
            if batch.num_rows:
                writer.write(batch.rename_columns(names).select(schema.arrow.names))
    return ChunkResult(rows, writer.written, raw_text_columns=fields if rows else frozenset(), bytes_read=bytes_read)
