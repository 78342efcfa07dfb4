"""What runs inside a Spark task of an initial copy: read one range of heap blocks, write one data file."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

import pyarrow.compute as pc

from mirror_pump.errors import TableError
from mirror_pump.lake.contents.cutline import CutLine
from mirror_pump.lake.format.data_files import DataFileWriter, WrittenFile
from mirror_pump.lake.format.raw_text_columns import raw_text_id, with_raw_text
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import MirroredTable
from mirror_pump.source.heap.block_reader import Chunk, FilenodeChanged, HeapLocked, RawTextNeeded, read_chunk


@dataclass(frozen=True)
class ChunkTask:
    """A range of heap blocks to copy."""

    dsn: str
    table: MirroredTable
    chunk: Chunk
    storage: StorageOptions
    snapshot: str | None = None
    """An exported snapshot to read in; None for a snapshot of the task's own."""
    beside: frozenset[int] = frozenset()
    """Field IDs of columns that need a sidecar, as far as that is known: for others the range is read twice."""


@dataclass(frozen=True)
class ChunkResult:
    rows: int
    file: WrittenFile | None
    """None when the range held no row."""
    heap_rewritten: bool = False
    """The heap was rewritten since the chunks were planned: its block numbers mean nothing any more."""
    locked: bool = False
    """Somebody is altering the heap: nothing was read."""
    error: str | None = None
    """Why the table cannot be copied, if it cannot."""
    sidecars: frozenset[int] = frozenset()
    """Field IDs of the columns that have a sidecar in the file."""


def copy_chunk(task: ChunkTask) -> ChunkResult:
    """Read the chunk and write its rows; the file is not part of the lake before a publish names it."""
    beside = frozenset(column.name for column in task.table.columns if column.field_id in task.beside)
    while True:
        try:
            return _copy(task, beside)
        except RawTextNeeded as needed:
            # Rare: reading once more costs nothing where no such value is. Ends when all columns are in it.
            beside |= needed.columns
        except FilenodeChanged:
            return ChunkResult(0, None, heap_rewritten=True)
        except HeapLocked:
            return ChunkResult(0, None, locked=True)
        except TableError as error:
            return ChunkResult(0, None, error=f"{error} {error.remedy}".strip())


def _copy(task: ChunkTask, beside: frozenset[str]) -> ChunkResult:
    """One attempt, with sidecars for the columns `beside`; RawTextNeeded when that is not enough."""
    table = task.table
    unheld = [column for column in table.key_columns if column.name in beside]
    if unheld:
        raise TableError(
            f"key column {unheld[0].name} of {table.name} ({unheld[0].type_sql}) holds a value that"
            f" {unheld[0].type} cannot hold",
            f"Unregister the table, then register it with --column {shlex.quote(f'{unheld[0].name}=string')}.",
        )
    fields = frozenset(column.field_id for column in table.columns if column.name in beside)
    schema = with_raw_text(LakeSchema.of_table(table), fields)
    own = {field.field_id: field.name for field in schema.fields}
    beside_names = [own[raw_text_id(column.field_id)] for column in table.columns if column.name in beside]
    names = [*(column.name for column in table.columns), *beside_names]
    line = CutLine.of(table)
    place = next((place for place, one in enumerate(table.columns) if line is not None and one.name == line.name), 0)
    rows = 0
    writer = DataFileWriter(schema, table.location, task.storage)
    with writer:
        for batch in read_chunk(task.dsn, task.chunk, table.columns, snapshot=task.snapshot, beside=beside):
            if line is not None:
                # What the heap still holds below T is the lake's and the delta's already.
                batch = batch.filter(pc.invert(line.below(batch.column(place)).combine_chunks()))
            rows += batch.num_rows
            writer.write(batch.rename_columns(names).select(schema.arrow.names))
    return ChunkResult(rows, writer.written if rows else None, sidecars=fields if rows else frozenset())
