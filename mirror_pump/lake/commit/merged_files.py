"""Small data files merged into one: what a merge wrote, and what has to follow its rows there when it lands.

Invariant: a merge that `mirror_pump.lake.commit.file_rewrite.check` lets pass changes no row that any reader sees.
Let S0 be the
state that it was computed against, n its sequence number, f1 ... fk the data files that it replaces (the sources), r1
... rk their data sequence numbers, b the highest of these, M the new file, S1 the state that it lands on.

- M holds the rows of the sources that no position delete of S0 hides, and its explicit data sequence number is b. Rows
  are lifted from r to b by it, so equality deletes of numbers in (r, b] stop to reach them. There are none: the plan
  chose sources so that no equality delete of S0 has a number in [min r, b], and `check` makes sure that none of a
  number up to n has come since. What lands later has a number above n, and n is b at least. So every equality delete
  that is pending, now or later, reaches M's rows if and only if it reached them in their sources.
- Position deletes of S1 that S0 did not have name rows in the sources. `followed` finds where these rows are in M, and
  their new places are deleted in the same snapshot. Position deletes of S0 on the sources are still live, says `check`:
  else somebody has taken deletes back.
- A row has one place: the sources are live in S1, says `check`, and go in the snapshot that brings M.
- Several merges in one resolution have no source in common, so each of them is as if it were alone.
- Versions of a key keep their order, which look-ups of unchanged values go by. If there is one of a number in (r, b], a
  delete of a number in (r, b] came with it, which is not pending any more: so the row of number r is hidden by its
  position, and is not in M.
- No pending equality delete loses the data file that keeps Iceberg from dropping it
(mirror_pump.lake.commit.concurrent_rewrites, 3).
  That file has a number up to the delete's, and above that of any state from before it. A source whose number is not
  above a pending delete's is below it, by the choice of sources; so are all the others, and M, whose number is no lower
  than the source's, stands in for it. An empty source, an anchor, goes for good: no delete of its number is pending.
- Older snapshots keep their manifests, so time travel sees what it saw.

A rewrite by another engine that began before and would replace a source fails when it commits: the file is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mirror_pump.lake.format.data_files import WrittenFile
from mirror_pump.lake.format.position_deletes import Positions, read_position_deletes
from mirror_pump.lake.key_index.packed_keys import PackedKeys
from mirror_pump.lake.storage import StorageOptions

Ordinals: TypeAlias = npt.NDArray[np.int32]
"""Numbers of sources, from 0."""


@dataclass(frozen=True, eq=False)
class MergedFile:
    """A data file that takes the place of others, and where each of its rows was before. Picklable."""

    file: WrittenFile | None
    """None if no row of the sources is live: they only go."""
    sequence_number: int
    """Its data sequence number: the highest of the sources'."""
    sources: tuple[str, ...]
    """URIs of the data files that it replaces."""
    source: Ordinals
    """For each row in order, the number in `sources` of the file that it was in: ascending."""
    position: Positions
    """For each row in order, its row number there: ascending within a source."""
    keys: PackedKeys | None = None
    """Each row's key, for a table that has a key index."""

    @property
    def written(self) -> tuple[WrittenFile, ...]:
        """Every file that the task wrote."""
        return () if self.file is None else (self.file,)

    @property
    def path(self) -> str | None:
        """URI of the new file, if there is one."""
        return None if self.file is None else self.file.path

    def places(self, ordinal: int, positions: Positions) -> Positions:
        """Row numbers in this file, ascending, of the rows at `positions` (ascending) of a source that are in it."""
        first, end = np.searchsorted(self.source, np.array([ordinal, ordinal + 1], np.int32))
        kept = self.position[first:end]
        found = np.searchsorted(kept, positions)
        found[found == len(kept)] = 0
        here = kept[found] == positions if len(kept) else np.zeros(len(positions), np.bool_)
        moved: Positions = found[here].astype(np.int64) + int(first)
        return moved


def followed(
    merged: Sequence[MergedFile], position_deletes: Sequence[str], storage: StorageOptions
) -> dict[str, Positions]:
    """What position-delete files say of the sources, said of the merged files: row numbers by URI, for
    `write_position_deletes`. Rows that were hidden before are in no merged file, and so left out. Raises LakeError.
    """
    sources = {path for one in merged for path in one.sources}
    if not position_deletes or not sources:
        return {}
    named = read_position_deletes(position_deletes, sources, storage)
    result: dict[str, Positions] = {}
    for one in merged:
        if one.path is None:
            continue
        parts = [one.places(number, named[path]) for number, path in enumerate(one.sources) if path in named]
        # Sources are in the order of the rows, so their parts are too.
        rows = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        if len(rows):
            result[one.path] = rows
    return result
