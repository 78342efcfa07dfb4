"""Tables whose copy is complete and that go live with a publish. Tables of one resync go live in one publish."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from mirror_pump.model import Lsn, MirroredTable


@dataclass(frozen=True)
class TableGoingLive:
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
