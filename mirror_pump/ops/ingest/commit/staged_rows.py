"""What an ingest has prepared for its transaction, and what the transaction has done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mirror_pump.lake.format.data_files import WrittenFile
from mirror_pump.ops.ingest.divide.row_division import RowDivision
from mirror_pump.ops.ingest.ingest_target import IngestTarget
from mirror_pump.ops.ingest.write.heap_rows import HeapRows

if TYPE_CHECKING:
    from mirror_pump.ops.ingest.commit.existing_rows import ExistingRows


@dataclass(frozen=True)
class RowsInLake:
    """The data files with the rows below the cut-line."""

    files: tuple[WrittenFile, ...]
    paths: list[str]
    """URIs by the files' numbers in places."""
    raw_text_columns: frozenset[int]
    existing: ExistingRows
    """What the lake has of the rows' keys."""


@dataclass(frozen=True)
class IngestedRows:
    """Everything that the transaction makes visible."""

    op_id: str
    target: IngestTarget
    division: RowDivision
    heap: Sequence[HeapRows]
    lake: RowsInLake | None
    """None if all rows are the heap's."""
    written_since: float

    @property
    def lake_rows(self) -> int:
        return 0 if self.lake is None else sum(file.record_count for file in self.lake.files)

    @property
    def heap_rows(self) -> int:
        return sum(rows.rows for rows in self.heap)


@dataclass(frozen=True)
class CommittedRows:
    """What the transaction has done."""

    replaced: int
    corrected: int
