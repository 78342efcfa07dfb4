"""How far a command is with a table: with its copy, with a comparison, or with the rows of files that it brings in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TableProgress:
    """What was done so far, and what is done now."""

    table: str
    step: str
    """A TableState of a copy, or `snapshot` if it is complete and changes are not followed; a VerifyPhase, an
    IngestStep or a LoadStep."""
    done: int = 0
    """Chunks of a copy or a comparison; bytes of input files, as stored."""
    total: int = 0
    """0 if unknown: until a copy is planned, and of stdin."""
    rows: int = 0
    """Rows of these chunks, or read of the input."""
    detail: str = ""
    """Why a table cannot be copied, or cannot be copied until its owner acts; what an ingest waits for."""
    is_small: bool = False
    """A comparison that takes only a moment."""
