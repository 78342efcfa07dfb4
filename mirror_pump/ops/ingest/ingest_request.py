"""What an ingest is asked for, what it reports on the way, and its outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias

from mirror_pump.errors import TableError
from mirror_pump.ops.row_files.file_format import FileFormat

Observe: TypeAlias = Callable[["IngestProgress"], None]


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
    """The lake's commit is staged, and nobody sees it."""
    COMMITTING = "committing"
    """Everything is in one transaction, which ends now."""
    COMMITTED = "committed"


@dataclass(frozen=True)
class CsvForm:
    """How CSV files are written."""

    delimiter: str = ","
    null: str = ""
    """An unquoted field of this text is NULL."""
    header: bool = True
    """The first line of each file has the names of the columns."""


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
    csv: CsvForm = CsvForm()
    on_error: OnError = OnError.ABORT
    rejects: Path | None = None
    """The file for rows that are left out, as JSON lines. Required to skip rows."""
    on_conflict: OnConflict = OnConflict.REPLACE
    dry_run: bool = False
    workers: int = 2
    """Number of threads that convert rows and write files."""


@dataclass(frozen=True)
class IngestProgress:
    """How far an ingest is."""

    step: IngestStep
    table: str
    rows: int = 0
    """Rows read so far."""
    bytes_done: int = 0
    """Bytes of input files read so far, as stored."""
    bytes_total: int = 0
    """0 if unknown, as of stdin."""
    waits_for: str = ""


@dataclass(frozen=True)
class IngestOutcome:
    """The result of an ingest."""

    table: str
    op_id: str
    """modak.op_log.op_id; empty after a dry run."""
    rows: int
    """Rows that were ingested."""
    lake_rows: int
    """Rows that went to the lake, as data files."""
    heap_rows: int
    """Rows that were written to the table by Postgres."""
    corrected: int
    """Rows of the lake that had a correction, and got a newer one."""
    replaced: int | None
    """Rows of the lake that were replaced. None if nobody looked, as in a dry run."""
    rejected: int
    """Rows that were left out."""
    files: int
    """Data files that were added to the lake."""
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "op_id": self.op_id or None, "seconds": round(self.seconds, 3)}


class RowRefused(TableError):
    """A row of the input that the table cannot hold."""

    def __init__(self, place: RowPlace, reason: str, remedy: str = "") -> None:
        super().__init__(f"{place}: {reason}", remedy)
        self.place = place
        self.reason = reason


@dataclass(frozen=True, order=True)
class RowPlace:
    """Where a row of the input is."""

    number: int
    """Number of the input file, for the order of rows of several files."""
    line: int
    """Line of a text file, or row of a Parquet file, from 1."""
    file: str
    unit: str = "line"

    def __str__(self) -> str:
        return f"{self.file}, {self.unit} {self.line}"
