"""The cut-line of a table as its registration has it, for the table's present columns."""

from __future__ import annotations

from dataclasses import replace

from mirror_pump.lake.contents.cutline import CutLine
from mirror_pump.model import MirroredTable, Tier


def line_of(table: MirroredTable, tier: Tier | None, cut: int | None = None) -> CutLine | None:
    """The cut-line as the catalog has it, or `cut`, for the columns that `table` has; None if nothing is below it."""
    if tier is None:
        return None
    # A publish may rename the column.
    column = table.tier.column if table.tier is not None else tier.column
    return CutLine.of(replace(table, tier=replace(tier, column=column)), cut)
