"""Rows that went with their partition, without a row event, and that a fill takes out of the files that have them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mirror_pump.lake.contents.partition_bounds import PartitionBounds


@dataclass(frozen=True)
class DroppedRows:
    """Those within the bounds, in files from before the command."""

    sequence_number: int
    """The highest data sequence number of such files. What came into a new partition of the same bounds is younger."""
    bounds: PartitionBounds

    def to_json(self) -> dict[str, Any]:
        """What mirror_tables.dropped_rows holds."""
        return {"sequence_number": self.sequence_number, "bounds": self.bounds.to_json()}


def parse_dropped(stored: Iterable[str]) -> tuple[DroppedRows, ...]:
    """From MirroredTable.dropped_rows."""
    found = [json.loads(text) for text in stored]
    return tuple(DroppedRows(one["sequence_number"], PartitionBounds.from_json(one["bounds"])) for one in found)
