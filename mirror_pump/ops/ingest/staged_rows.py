"""What an ingest has prepared for its transaction, and what the transaction has done."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mirror_pump.lake.format.data_files import WrittenFile
from mirror_pump.lake.key_index.packed_keys import KeyPacking
from mirror_pump.ops.ingest.heap_rows import HeapRows
from mirror_pump.ops.ingest.ingested_keys import IngestedKeys
from mirror_pump.ops.ingest.row_division import RowDivision
from mirror_pump.ops.ingest.target_columns import IngestTarget

if TYPE_CHECKING:
    from mirror_pump.ops.ingest.existing_rows import ExistingRows


@dataclass
class StagedRows:
    """Everything that the transaction makes visible."""

    op_id: str
    target: IngestTarget
    division: RowDivision
    heap: Sequence[HeapRows]
    files: tuple[WrittenFile, ...] = ()
    paths: Sequence[str] = ()
    """URIs of the files by their numbers in places."""
    raw_text_columns: frozenset[int] = frozenset()
    keys: IngestedKeys | None = None
    """Of the rows in the files; None without any."""
    existing: ExistingRows | None = None
    packing: KeyPacking | None = None
    written_since: float = field(default_factory=time.time)

    @property
    def lake_rows(self) -> int:
        return sum(file.record_count for file in self.files)

    @property
    def heap_rows(self) -> int:
        return sum(rows.rows for rows in self.heap)


@dataclass(frozen=True)
class CommittedRows:
    """What the transaction has done."""

    replaced: int
    corrected: int
