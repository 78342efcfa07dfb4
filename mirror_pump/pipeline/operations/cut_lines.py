"""The registered cut-line of a table, in terms of the table's current columns."""

from __future__ import annotations

from dataclasses import replace

from mirror_pump.lake.contents.cutline import CutLine
from mirror_pump.model import MirroredTable, Tier


def line_of(table: MirroredTable, tier: Tier | None, cut: int | None = None) -> CutLine | None:
    """The cut-line of the registered `tier`, or `cut` in its place, in terms of the columns of `table`. None if no row
    is below it."""
    if tier is None:
        return None
    # The publish may rename the column.
    column = table.tier.column if table.tier is not None else tier.column
    return CutLine.of(replace(table, tier=replace(tier, column=column)), cut)
