"""Tables whose copy is complete and that go live. The new content of a table that was copied again replaces what
readers see. Tables of one resync go live in one publish."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from mirror_pump.lake.commit.rebase import rebase
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.document.metadata_files import read_metadata
from mirror_pump.model import Lsn, MirroredTable


@dataclass(frozen=True)
class DueTable:
    """A table that goes live with a publish, as the catalog has it before the publish."""

    table: MirroredTable
    staged: str | None
    """The metadata location that only mirror_tables names. None if the table is copied for the first time."""
    pointer: str | None
    """The metadata location that readers see. None if the catalog no longer names the lake table."""
    frontier: Lsn
    """The frontier of the publish."""
    resync_since: datetime | None = None
    """When the resync began that the table is part of; its tables go live together. None: it is part of none."""


@dataclass(frozen=True)
class Swap:
    """The swap of the new content for the old. It is valid as long as no commit moves the pointer."""

    staged: str
    """The metadata location that mirror_tables names at the time of the swap."""
    pointer: str
    """The pointer's value when it was read."""
    table: LakeTable
    """The table that readers see afterwards."""

    @classmethod
    def of(cls, staged: LakeTable, pointer: str) -> Swap:
        """Creates the swap, including what other engines did to the table meanwhile. Raises LakeError, or ForeignTable
        if those changes are not allowed in a mirrored table."""
        return cls(staged.metadata_location, pointer, rebase(staged, read_metadata(pointer, staged.storage)))

    @property
    def files(self) -> tuple[str, ...]:
        """Returns the files that were written for the swap."""
        location = self.table.metadata_location
        return () if location == self.staged else (location,)
