"""Replaces the rows of a table that differ from its heap, and thereby completes its copy.

Lake: the files get the table's start sequence number. The deletes reach the rows that the table had before the copy
began, which are older; the rows are those of copied chunks. So every stream change since then takes precedence over
both. Catalog: all chunks are done, so the table may go live once the frontier has passed the current end of WAL.

Rows that were compared before the copy was restarted are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from psycopg.types.json import Jsonb

from mirror_pump.lake.commit.row_delta import BackdatedFile
from mirror_pump.lake.format.data_files import FileContent, WrittenFile
from mirror_pump.model import MirroredTable, TableState
from mirror_pump.pipeline.operations.operation import Cursor, Operation, Recording, TablePlan
from mirror_pump.pipeline.operations.registrations import Registration
from sql import queries

_SQL = queries("publish")


@dataclass(frozen=True)
class ReplaceDiffering(Operation):
    reports_refusal: ClassVar[bool] = True
    reads_heap_again: ClassVar[bool] = True

    generation: int
    """Of the copy."""
    written: tuple[WrittenFile, ...]
    """Equality-delete files with the keys of the lake's rows that differ, and data files with the heap's rows."""
    rows: int
    """Rows of the heap that were compared."""
    raw_text_columns: frozenset[int] = frozenset()
    """Field IDs of the columns that have a raw text column in the files."""
    lake_rows: int = 0
    """Rows of the lake that were compared."""
    different: int = 0
    """Rows of `copied` whose key the lake has with other values, or more than once."""

    @property
    def copied(self) -> int:
        """Number of rows of the heap that differ, or that the lake lacks."""
        return sum(file.record_count for file in self.written if file.content is FileContent.DATA)

    @property
    def deleted(self) -> int:
        """Number of keys of the lake's rows that differ, or that the heap lacks."""
        return sum(file.record_count for file in self.written if file.content is not FileContent.DATA)

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(file.path for file in self.written)

    def fitting(self, table: MirroredTable, registration: Registration) -> ReplaceDiffering | None:
        copying = registration.state is TableState.COPYING
        return self if copying and registration.generation == self.generation else None

    def stage(self, plan: TablePlan, table: MirroredTable, registration: Registration) -> TablePlan:
        number = registration.data_sequence_number
        return replace(
            plan,
            backdated=(*plan.backdated, *(BackdatedFile(file, number) for file in self.written)),
            raw_text_columns=plan.raw_text_columns | self.raw_text_columns,
        )

    def complete(self, cursor: Cursor, recording: Recording) -> None:
        generation = recording.registration.generation
        copy = {"table_id": recording.table.table_id, "generation": generation}
        compared = {
            "generation": generation,
            "heap_rows": self.rows,
            "lake_rows": self.lake_rows,
            "missing": max(self.copied - self.different, 0),
            "extra": max(self.deleted - self.different, 0),
            "different": self.different,
        }
        cursor.execute(_SQL["all_chunks_done"], {**copy, "rows": self.rows, "compared": Jsonb(compared)})
        cursor.execute(_SQL["copy_progress"], copy)
