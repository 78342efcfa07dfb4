"""Describes what a merge of small data files wrote, and moves later position deletes to the merged file.

Invariant: a merge that passes `mirror_pump.lake.commit.file_rewrite.check` changes no row that any reader sees. Terms:
the base is the state that the merge was computed from, and n its sequence number. The sources are the data files that
the merge replaces, r is the data sequence number of a source, and b the highest of these. M is the merged file. The
merge lands on the current state.

- M holds the rows of the sources that no position delete of the base hides, and has the explicit data sequence number
  b. This lifts rows from r to b, so that equality deletes with numbers in (r, b] no longer reach them. There are no
  such deletes: the plan chose sources so that no equality delete of the base has a number in [min r, b], and `check`
  ensures that none with a number up to n has appeared since. Later commits have numbers above n, and n is at least b.
  So every equality delete, pending now or later, reaches M's rows if and only if it reached them in their sources.
- Position deletes that came after the base refer to rows in the sources. `followed` finds the places of these rows in
  M, and they are deleted there in the same snapshot. `check` ensures that the base's position deletes on the sources
  are still live. Otherwise another engine has undone deletes.
- No row appears twice: `check` ensures that the sources are live in the current state, and the snapshot that adds M
  removes them.
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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mirror_pump.lake.format.data_files import WrittenFile
from mirror_pump.lake.format.deletion_vectors import read_deleted_rows
from mirror_pump.lake.format.position_deletes import Positions
from mirror_pump.lake.key_index.packed_keys import PackedKeys
from mirror_pump.lake.storage import StorageOptions

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
    hidden: Mapping[str, Positions] = field(default_factory=dict)
    """In a table with deletion vectors, by URI of a source, its rows that the base's deletes hide, sorted."""

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
        kept = self.position[first:end]
        candidates = np.searchsorted(kept, positions)
        candidates[candidates == len(kept)] = 0
        merged = kept[candidates] == positions if len(kept) else np.zeros(len(positions), np.bool_)
        moved: Positions = candidates[merged].astype(np.int64) + int(first)
        return moved if self.row is None else np.sort(self.row[moved])


def followed(
    merged: Sequence[MergedFile], position_deletes: Sequence[str], storage: StorageOptions
) -> dict[str, Positions]:
    """Maps position deletes on the sources to the merged files: row numbers by URI, for `write_position_deletes`.

    Rows that were deleted before the merge are in no merged file, and so are left out. Raises LakeError.
    """
    sources = {path for file in merged for path in file.sources}
    if not position_deletes or not sources:
        return {}
    named = read_deleted_rows(position_deletes, sources, storage)
    result: dict[str, Positions] = {}
    for file in merged:
        if file.path is None:
            continue
        parts = [file.places(number, named[path]) for number, path in enumerate(file.sources) if path in named]
        # Rows are in the order of the sources, so concatenated parts are ascending, unless they were sorted.
        rows = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        rows = rows if file.row is None else np.sort(rows)
        if len(rows):
            result[file.path] = rows
    return result
