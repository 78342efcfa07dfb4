"""Tables whose copy is complete and that go live; of those copied again, the new content takes the place of what
readers see."""

from __future__ import annotations

from dataclasses import dataclass

from mirror_pump.lake.commit.rebase import rebase
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.format.metadata import read_metadata
from mirror_pump.model import Lsn, MirroredTable


@dataclass(frozen=True)
class DueTable:
    """A table that goes live with a publish, as the catalog has it before."""

    table: MirroredTable
    staged: str | None
    """The metadata that only mirror_tables names; None if the table is copied for the first time."""
    seen: str | None
    """What readers see; None if the catalog does not name the lake table any more."""
    frontier: Lsn
    """F of the publish."""


@dataclass(frozen=True)
class Swap:
    """The exchange. It holds as long as nobody moves the pointer."""

    staged: str
    """The metadata that mirror_tables names by then."""
    seen: str
    """Where the pointer was when it was looked at."""
    table: LakeTable
    """What readers see afterwards."""

    @classmethod
    def of(cls, staged: LakeTable, seen: str) -> Swap:
        """With whatever other engines did to the table meanwhile. Raises LakeError; ForeignTable if that is nothing
        that a mirrored table may have."""
        return cls(staged.metadata_location, seen, rebase(staged, read_metadata(seen, staged.storage)))

    @property
    def files(self) -> tuple[str, ...]:
        """Files that were written for it."""
        location = self.table.metadata_location
        return () if location == self.staged else (location,)
