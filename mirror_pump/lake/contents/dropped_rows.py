"""Rows that vanished with their partition, without row events, which a fill removes from the files that hold them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mirror_pump.lake.contents.partition_bounds import PartitionBounds


@dataclass(frozen=True)
class DroppedRows:
    """Rows within the bounds, in files from before the command that dropped the partition."""

    sequence_number: int
    """Highest data sequence number of such files. Rows of a later partition with these bounds are newer."""
    bounds: PartitionBounds

    def to_json(self) -> dict[str, Any]:
        """What mirror_tables.dropped_rows holds."""
        return {"sequence_number": self.sequence_number, "bounds": self.bounds.to_json()}


def parse_dropped(stored: Iterable[str]) -> tuple[DroppedRows, ...]:
    """Parses MirroredTable.dropped_rows."""
    entries = [json.loads(text) for text in stored]
    return tuple(DroppedRows(entry["sequence_number"], PartitionBounds.from_json(entry["bounds"])) for entry in entries)
