"""Adds chunks of an initial copy to the table.

Lake: their files get the table's start sequence number, however late they land, so every stream change since then takes
precedence over them. Catalog: the chunks are marked as done. After the last chunk, the table may go live once the
frontier has passed the current end of WAL: every transaction that a chunk may have seen in part ends before it.

A chunk that was read before the copy was restarted is left out.
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
    """A chunk of an initial copy whose files are written."""

    generation: int
    chunk_no: int
    rows: int
    files: tuple[WrittenFile, ...]
    """Empty if the chunk held no row; one for each lake partition that it has rows of."""
    raw_text_columns: frozenset[int] = frozenset()
    """Field IDs of the columns that have a raw text column in the files."""


@dataclass(frozen=True)
class AddChunks(Operation):
    chunks: tuple[CopiedChunk, ...]

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(file.path for chunk in self.chunks for file in chunk.files)

    def fitting(self, table: MirroredTable, registration: Registration) -> AddChunks | None:
        chunks = tuple(chunk for chunk in self.chunks if chunk.generation == registration.generation)
        return replace(self, chunks=chunks) if chunks else None

    def stage(self, plan: TablePlan, table: MirroredTable, registration: Registration) -> TablePlan:
        number = registration.data_sequence_number
        files = [BackdatedFile(file, number) for chunk in self.chunks for file in chunk.files]
        return replace(
            plan,
            backdated=(*plan.backdated, *files),
            raw_text_columns=plan.raw_text_columns.union(*(chunk.raw_text_columns for chunk in self.chunks)),
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
    """Deletes the plan of the table's copy, including the chunks that are done. Idempotent."""
    cursor.execute(_SQL["forget_chunks"], {"table_id": table.table_id})
