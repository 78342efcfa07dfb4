"""What an ingest is asked for, what it reports on the way, and its outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias

from mirror_pump.ops.row_files.csv_rows import CsvForm
from mirror_pump.ops.row_files.file_format import FileFormat
from mirror_pump.ops.table_progress import TableProgress

Observe: TypeAlias = Callable[[TableProgress], None]


class OnError(StrEnum):
    """What becomes of an ingest with a row that the table cannot hold."""

    ABORT = "abort"
    SKIP = "skip"


class OnConflict(StrEnum):
    """What becomes of a row whose key exists already."""

    REPLACE = "replace"
    REFUSE = "refuse"


class IngestStep(StrEnum):
    """Where an ingest is."""

    READING = "reading"
    """Rows are read, and files of those below the cut-line are written."""
    LOOKING = "looking for keys"
    """The lake is searched for rows with the same keys."""
    HEAP = "writing the heap"
    WAITING = "waiting for readers"
    """A reader that was pinned before may read heap and corrections later."""
    STAGED = "staged"
    """The lake's commit is staged, and no reader sees it."""
    COMMITTING = "committing"
    """Everything is in one transaction, which ends now."""
    COMMITTED = "committed"


@dataclass(frozen=True)
class IngestRequest:
    """The options of an ingest."""

    table: str
    """As Postgres reads it."""
    files: tuple[str, ...]
    """Paths, glob patterns, URIs, or `-` for stdin."""
    format: FileFormat | None = None
    """None: each file's name says it."""
    columns: tuple[str, ...] = ()
    """CSV: the names of the files' columns. Others: the columns that are taken. Empty: as the files say."""
    csv: CsvForm = field(default_factory=CsvForm)
    on_error: OnError = OnError.ABORT
    rejects: Path | None = None
    """The file for rows that are left out, as JSON lines. Required to skip rows."""
    on_conflict: OnConflict = OnConflict.REPLACE
    dry_run: bool = False
    workers: int = 2
    """Number of threads that convert rows and write files."""


@dataclass(frozen=True)
class IngestOutcome:
    """The result of an ingest."""

    table: str
    op_id: str
    """The ingest's row in `modak.op_log`; empty after a dry run, which JSON has as None."""
    rows: int
    """Rows of the input that are in the table now, or would be."""
    lake_rows: int
    """Of these, rows in data files of the lake."""
    heap_rows: int
    """Of these, rows in PostgreSQL."""
    corrected: int
    """Rows of the lake that were written to `modak.delta` as well, because their key had a correction."""
    replaced: int | None
    """Rows of the lake that were replaced. None after a dry run. Of the heap it is not known."""
    rejected: int
    """Rows that `--on-error skip` left out."""
    files: int
    """Data files that came to the lake."""
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "op_id": self.op_id or None, "seconds": round(self.seconds, 3)}
