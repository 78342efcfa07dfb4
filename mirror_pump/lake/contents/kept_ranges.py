"""Ranges of the tier key in which the lake may have rows that the heap has not: their partitions went, the rows stay.

A table with heap retention keeps in the lake what its owner drops or detaches. Below the cut-line that is no question:
rows come there as corrections, which replace by key. Above it rows come by the stream, whose INSERTs are appended,
since the heap had no such row. In a kept range this does not follow: a partition may be made there again, and get rows
with keys that the lake has. So there each row that appears deletes its key first (mirror_pump.engine.ingest).

*Why the ranges are known in time.* Rows above the cut-line need a partition. One of a kept range cannot be made before
the former one has gone, and both commands have a note in the stream: the first one adds the range, and every row of the
new partition is behind it, in the same transaction or a later one (mirror_pump.pipeline.schema.schema_change). The
publish that has the note stores the range (mirror_tables.kept_ranges), so that a new session knows it as well. Without
event triggers a note comes with the next look at the catalog: rows that come before it may be in the lake twice, and
the proof of their partition finds them.

*What a range is.* The bounds of the partition; of the DEFAULT partition, what no other has. Bounds that are not told
(mirror_pump.lake.contents.partition_bounds) add no range, as if nothing were kept: keys that come again may be in the
lake twice, which `verify` and the proof find. All values instead would hide every row that the lake alone has.

*What is stored of it.* What is above the cut-line, and between the lowest and the highest tier value of the lake's
rows from before the note. So an empty partition leaves no range, nor does one up to MAXVALUE leave one without an end.
A session goes on with the whole range, which costs deletes of keys that are not there. While the table is copied these
values are not known, as chunks are to come: a later note of the live table shortens the range.

*When a range goes.* The cut-line has passed it. Or the rows above the cut-line go from the lake: by a TRUNCATE of the
table. A copy that begins again would lose them: the table fails instead.

Such a table has no change feed (`--changes` does not go with `--heap-retention`): its rows change by more than the
stream has.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mirror_pump.lake.contents.file_listing import LiveFile
from mirror_pump.lake.contents.partition_bounds import HIGHEST, PartitionBounds
from mirror_pump.lake.format.bounds import ordered
from mirror_pump.lake.format.data_files import WrittenFile
from mirror_pump.model import EVERYTHING_IN_HEAP, Column, MirroredTable, TierKind

TierRanges: TypeAlias = tuple[tuple[int, int], ...]
"""As MirroredTable.kept_ranges: ascending, and none overlaps or continues another."""


def united(ranges: Iterable[tuple[int, int]], cut: int) -> TierRanges:
    """What of the ranges is above the cut-line, as few ones."""
    merged: list[tuple[int, int]] = []
    for lower, upper in sorted((max(lower, cut), upper) for lower, upper in ranges):
        if lower >= upper:
            continue
        if merged and lower <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(upper, merged[-1][1])
        else:
            merged.append((lower, upper))
    return tuple(merged)


def between(ranges: Iterable[tuple[int, int]]) -> TierRanges:
    """The tier values that are in none of the ranges."""
    gaps, end = [], EVERYTHING_IN_HEAP
    for lower, upper in sorted(ranges):
        gaps.append((end, lower))
        end = max(end, upper)
    return united([*gaps, (end, HIGHEST)], EVERYTHING_IN_HEAP)


def values_of(files: Iterable[LiveFile | WrittenFile], column: Column) -> tuple[int, int] | None:
    """The lowest and the highest tier value that the rows of data files may have, in the wrong order without rows. None
    if a file does not tell them."""
    least, most = HIGHEST, EVERYTHING_IN_HEAP
    for file in files:
        if not (file.records if isinstance(file, LiveFile) else file.record_count):
            continue
        low = ordered(column.type, file.lower_bounds.get(column.field_id))
        high = ordered(column.type, file.upper_bounds.get(column.field_id))
        if low is None or high is None:
            return None
        least, most = min(least, int(low)), max(most, int(high))
    return least, most


@dataclass(frozen=True)
class KeptRanges:
    """The ranges of a table, in terms of the lake's tier key column. Picklable: it travels to tasks."""

    name: str
    """The column's name in the mirrored table."""
    kind: TierKind
    bounds: tuple[PartitionBounds, ...]
    """At least one."""

    @classmethod
    def of(cls, table: MirroredTable) -> KeptRanges | None:
        """The ranges above the cut-line; None if there are none. Without heap retention there are none either: the lake
        is to be as the heap."""
        tier = table.tier
        ranges = () if tier is None else united(table.kept_ranges, tier.cut)
        if tier is None or not ranges:
            return None
        field_id = table.tier_column.field_id
        return cls(tier.column, tier.kind, tuple(PartitionBounds(field_id, lower, upper) for lower, upper in ranges))

    def holds(self, column: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
        """A mask of the values within one of the ranges."""
        mask = np.zeros(len(column), np.bool_)
        for bounds in self.bounds:
            mask |= bounds.holds(column)
        return mask
