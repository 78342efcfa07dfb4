"""What a reconciliation has found and done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mirror_pump.model import Lsn, format_lsn


@dataclass(frozen=True)
class ReconciledTable:
    """What became of a table."""

    table: str
    outcome: str
    """`equal`, `copied-again` (by the next pump), or `failed`."""
    reason: str
    """Why it is copied again, or has failed. Empty if it is equal."""

    def to_json(self) -> dict[str, Any]:
        return {"table": self.table, "outcome": self.outcome, "reason": self.reason}


@dataclass(frozen=True)
class Reconciled:
    """How the mirror continues."""

    timeline: int
    """The timeline that the server writes."""
    former_timeline: int
    """The timeline on which the mirror was published so far."""
    lost: str | None
    """What readers may have seen and the server no longer has, for people. None if nothing is known of that."""
    slot: str
    """`kept`: it continues from the frontier. `made`: there was none that did. `none`: the mirror has no stream
    (docs/operations.md#a-mirror-without-a-stream)."""
    frontier: Lsn
    """The frontier from which the mirror continues."""
    tables: tuple[ReconciledTable, ...]
    """Those that were compared or are copied again; without a stream, those that lack files. Empty if the slot was
    kept."""

    def to_json(self) -> dict[str, Any]:
        """Return the document that docs/cli-json.md describes."""
        return {
            "timeline": self.timeline,
            "former_timeline": self.former_timeline,
            "lost": self.lost,
            "slot": self.slot,
            "frontier": format_lsn(self.frontier),
            "tables": [table.to_json() for table in self.tables],
        }
