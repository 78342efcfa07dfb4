"""Chunks of a copy, read and written.

Lake: their files take their place at the sequence number of the table's start snapshot, however late they land, so that
every stream change since counts on top of them. Catalog: they are marked as done; after the last one the table may go
live once the frontier has passed the present end of WAL, because what any chunk may have seen in part ends before it.

A chunk that was read for a copy that has begun again since is no part of the table, and is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mirror_pump.lake.commit.row_delta import BackdatedFile
from mirror_pump.lake.format.data_files import WrittenFile
from mirror_pump.model import MirroredTable
from mirror_pump.pipeline.operations.operation import Cursor, Operation, Recording, TablePlan
from mirror_pump.pipeline.operations.registrations import Registration
from sql import queries

_SQL = queries("publish")


@dataclass(frozen=True)
class CopiedChunk:
    """A chunk of an initial copy, read and written, to be published."""

    generation: int
    chunk_no: int
    rows: int
    file: WrittenFile | None
    """None when the chunk held no row."""
    sidecars: frozenset[int] = frozenset()
    """Field IDs of the columns that have a sidecar in the file."""


@dataclass(frozen=True)
class AddChunks(Operation):
    chunks: tuple[CopiedChunk, ...]

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(chunk.file.path for chunk in self.chunks if chunk.file is not None)

    def fitting(self, table: MirroredTable, registration: Registration) -> AddChunks | None:
        chunks = tuple(chunk for chunk in self.chunks if chunk.generation == registration.generation)
        return replace(self, chunks=chunks) if chunks else None

    def stage(self, plan: TablePlan, table: MirroredTable, registration: Registration) -> TablePlan:
        number = registration.data_sequence_number
        files = [BackdatedFile(chunk.file, number) for chunk in self.chunks if chunk.file is not None]
        return replace(
            plan,
            backdated=(*plan.backdated, *files),
            raw_text_columns=plan.raw_text_columns.union(*(chunk.sidecars for chunk in self.chunks)),
        )

    def complete(self, cursor: Cursor, recording: Recording) -> None:
        table_id = recording.table.table_id
        for chunk in self.chunks:
            cursor.execute(
                _SQL["chunk_done"],
                {
                    "table_id": table_id,
                    "generation": chunk.generation,
                    "chunk_no": chunk.chunk_no,
                    "rows": chunk.rows,
                },
            )
        generation = recording.registration.generation
        cursor.execute(_SQL["copy_progress"], {"table_id": table_id, "generation": generation})


def forget_chunks(cursor: Cursor, table: MirroredTable) -> None:
    """No chunk of the table's copy is planned or done any more. Repeating it changes nothing."""
    cursor.execute(_SQL["forget_chunks"], {"table_id": table.table_id})
