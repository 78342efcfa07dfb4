"""Describes what a merge of small data files wrote, and which of its rows its sources have lost since.

Invariant: a merge that lands (`mirror_pump.lake.commit.file_rewrite`) changes no row that any reader sees. Terms:
the base is the state that the merge was computed from, and n its sequence number. The sources are the data files that
the merge replaces, r is the data sequence number of a source, and b the highest of these. M is the merged file. The
merge lands on the current state.

- M holds the rows of the sources that no position delete of the base hides, and has the explicit data sequence number
  b. This lifts rows from r to b, so that equality deletes with numbers in (r, b] no longer reach them. There are no
  such deletes: the plan chose sources so that no equality delete of the base has a number in [min r, b], and
  `examined` ensures that none with a number up to n has appeared since. Later commits have numbers above n, and n is
  at least b. So every equality delete, pending now or later, reaches M's rows if and only if it reached them in their
  sources.
- What counts is which rows of the sources are deleted when the merge lands, in whichever form: B are the rows of a
  source that the base's position deletes hide, L those that the current state's hide. A source that is live has its
  rows outside of B in M, so L's are hidden there in the same snapshot. L has all of B, or else another engine has
  undone deletes, and the merge does not fit (`rows_lost`).
- A source that is gone was emptied by later deletes, or replaced. No row of it is a row of the table any more, so all
  that M has of it are hidden. If no source is live, the merge does not fit: it would add nothing.
- No row appears twice: the snapshot that adds M removes the sources that are live.
- Several merges in one commit have no source in common, so each is correct by itself.
- The versions of a key keep their order, on which look-ups of unchanged values rely. If a key has a version with a
  number in (r, b], a delete with a number in (r, b] came with that version and is no longer pending. So a position
  delete hides the row with number r, and M does not hold it.
- No pending equality delete loses the data file that keeps Iceberg from dropping it
(mirror_pump.lake.commit.new_snapshot).
  That file's number is not above the delete's, but above that of any state before it. A source whose number is not
  above a pending delete's is below it, by the choice of sources. The same holds for all other sources and for M, whose
  number is not lower than the source's, so that M replaces it. An empty source, a placeholder file, may go for good: no
  delete of its number is pending.
- Older snapshots keep their manifests, so time travel is unaffected.

If another engine began a rewrite before and replaces one of the sources, its commit fails, since the file is gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mirror_pump.lake.deletes.hidden_rows import HiddenRows
from mirror_pump.lake.format.data_files import WrittenFile
from mirror_pump.lake.format.position_deletes import Positions
from mirror_pump.lake.key_index.packed_keys import PackedKeys

Ordinals: TypeAlias = npt.NDArray[np.int32]
"""Indexes of sources, from 0."""


@dataclass(frozen=True, eq=False)
class MergedFile:
    """A data file that replaces others, and the origin of each of its rows. Picklable."""

    file: WrittenFile | None
    """None if no row of the sources is live: then they are only removed."""
    sequence_number: int
    """Its data sequence number: the highest of the sources'."""
    sources: tuple[str, ...]
    """URIs of the data files that it replaces."""
    source: Ordinals
    """For each row in order, the index in `sources` of the file that it comes from: ascending."""
    position: Positions
    """For each row in order, its row number in its source: ascending within a source."""
    keys: PackedKeys | None = None
    """The keys of the rows in that order, for a table with a key index."""
    row: Positions | None = None
    """For each row in that order, its row number in this file, if its rows are sorted otherwise."""
    hidden: HiddenRows = field(default_factory=HiddenRows, repr=False)
    """The rows of its sources that the base's position deletes hide."""

    @property
    def rows(self) -> Positions:
        """For each row in the order of `source` and `position`, its row number in this file."""
        return np.arange(len(self.position)) if self.row is None else self.row

    @property
    def written(self) -> tuple[WrittenFile, ...]:
        """Every file that the task wrote."""
        return () if self.file is None else (self.file,)

    @property
    def path(self) -> str | None:
        """URI of the new file, if there is one."""
        return None if self.file is None else self.file.path

    def places(self, ordinal: int, positions: Positions) -> Positions:
        """Maps rows of a source to their row numbers in this file, ascending. `positions`: their row numbers in the
        source, ascending. Rows that were not merged are left out."""
        first, end = np.searchsorted(self.source, np.array([ordinal, ordinal + 1], np.int32))
        rows = self.position[first:end]
        candidates = np.searchsorted(rows, positions)
        candidates[candidates == len(rows)] = 0
        merged = rows[candidates] == positions if len(rows) else np.zeros(len(positions), np.bool_)
        moved: Positions = candidates[merged].astype(np.int64) + int(first)
        return moved if self.row is None else np.sort(self.row[moved])

    def of_sources(self, paths: Collection[str]) -> MergedFile:
        """The same file with those of its rows alone that come from these sources."""
        chosen = np.array([number for number, path in enumerate(self.sources) if path in paths], np.int32)
        rows = np.flatnonzero(np.isin(self.source, chosen))
        if len(rows) == len(self.source):
            return self
        keys = None if self.keys is None else self.keys.take(rows)
        return replace(self, source=self.source[rows], position=self.position[rows], keys=keys, row=self.rows[rows])


def rows_lost_since(merged: Sequence[MergedFile], lost: HiddenRows, live: Collection[str]) -> dict[str, Positions]:
    """The rows of the merged files that are deleted by now, by URI. `lost`: the rows of the live sources that are
    deleted, with or without those that were deleted before the merge. `live`: URIs of all data files of the state."""
    rows = {}
    for file in merged:
        if file.path is not None:
            # Rows are in the order of the sources, so concatenated parts are ascending, unless they were sorted.
            moved = np.concatenate([np.zeros(0, np.int64), *_moved(file, lost, live)])
            rows[file.path] = moved if file.row is None else np.sort(moved)
    return {path: positions for path, positions in rows.items() if len(positions)}


def _moved(file: MergedFile, lost: HiddenRows, live: Collection[str]) -> Iterator[Positions]:
    """What a merged file has lost, source by source."""
    limits = np.searchsorted(file.source, np.arange(len(file.sources) + 1, dtype=np.int32))
    for number, path in enumerate(file.sources):
        if path not in live:
            yield file.places(number, file.position[limits[number] : limits[number + 1]])
        elif path in lost:
            yield file.places(number, lost[path])
