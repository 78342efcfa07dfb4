"""What runs inside a Spark task of an initial copy: read one range of heap blocks, write one data file."""

from __future__ import annotations

from dataclasses import dataclass

from mirror_pump.errors import TableError
from mirror_pump.lake.files import DataFileWriter, WrittenFile
from mirror_pump.lake.schema import LakeSchema
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import MirroredTable
from mirror_pump.source.copyread import Chunk, FilenodeChanged, read_chunk


@dataclass(frozen=True)
class ChunkTask:
    """A range of heap blocks to copy."""

    dsn: str
    table: MirroredTable
    chunk: Chunk
    storage: StorageOptions
    snapshot: str | None = None
    """An exported snapshot to read in; None for a snapshot of the task's own."""


@dataclass(frozen=True)
class ChunkResult:
    rows: int
    file: WrittenFile | None
    """None when the range held no row."""
    heap_rewritten: bool = False
    """The heap was rewritten since the chunks were planned: its block numbers mean nothing any more."""
    error: str | None = None
    """Why the table cannot be copied, if it cannot."""


def copy_chunk(task: ChunkTask) -> ChunkResult:
    """Read the chunk and write its rows; the file is not part of the lake before a publish names it."""
    schema = LakeSchema.of_table(task.table)
    rows = 0
    writer = DataFileWriter(schema, task.table.location, task.storage)
    try:
        with writer:
            for batch in read_chunk(task.dsn, task.chunk, task.table.columns, snapshot=task.snapshot):
                rows += batch.num_rows
                writer.write(batch)
    except FilenodeChanged:
        return ChunkResult(0, None, heap_rewritten=True)
    except TableError as error:
        return ChunkResult(0, None, error=f"{error} {error.remedy}".strip())
    return ChunkResult(rows, writer.written if rows else None)
