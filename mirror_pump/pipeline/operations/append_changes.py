"""Appends the changes of a batch to the table's change feed.

Lake: the table itself does not change. Its feed gets the files in the same publish, if the table is live before and
after it (mirror_pump.pipeline.feeds.feed_staging).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from decoders.change_events import HEAD_SCHEMA
from mirror_pump.lake.format.data_files import WrittenFile
from mirror_pump.pipeline.operations.operation import Operation

COUNT = "count"
COUNT_SCHEMA = pa.schema(
    [*(HEAD_SCHEMA.field(name) for name in ("_lsn", "_xid", "_committed_at", "_origin")), (COUNT, pa.int64())]
)
"""A transaction and how many rows of the feed it has."""


@dataclass(frozen=True)
class AppendChanges(Operation):
    """The rows of a batch for one feed."""

    changes: tuple[WrittenFile, ...] = ()
    raw_text: frozenset[int] = frozenset()
    """Field IDs of the table's columns that have a raw text column in the files."""
    old_raw_text: frozenset[int] = frozenset()
    """... in old rows."""
    counts: Sequence[pa.Table] = field(default=(), repr=False, compare=False)
    """Of COUNT_SCHEMA. A transaction may be in several."""
    is_whole: bool = True
    """Whether the files have all changes of the batch to the table. Not if a segment was decoded before the feed
    was."""

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(file.path for file in self.changes)
