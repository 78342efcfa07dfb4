"""Lands a file rewrite on a table with deletion vectors: which rows the commit has to hide.

Each commit replaces vectors, so none that a rewrite was computed from has to be live when it lands. What counts is
which rows of its data files are deleted by then.

Invariant: as for tables without vectors (`mirror_pump.lake.commit.file_rewrite`, `merged_files`), no row changes that
any reader sees. Terms: B are the rows of a data file that the base's deletes hide, L those that the current state's
hide.

- Rows that a conversion, or the merge of position-delete files, hides: they were deleted in the base, so they are in L,
  or have to be added to it. Of a data file that is gone no row has to be hidden.
- A source of a merge that is live: its rows outside of B are in the merged file, so L's are hidden there. L has all of
  B, or else another engine has undone deletes, and the rewrite does not fit.
- A source that is gone was emptied by later deletes, or replaced. No row of it is a row of the table any more, so all
  that the merged file has of it are hidden.
- Vectors go with their data files (`mirror_pump.lake.commit.hidden_rows`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from mirror_pump.errors import LakeError
from mirror_pump.lake.commit.merged_files import MergedFile
from mirror_pump.lake.commit.replacement import PresentFiles
from mirror_pump.lake.commit.row_deletes import later_deletes
from mirror_pump.lake.contents.file_listing import LiveFile
from mirror_pump.lake.format.deletion_vectors import DeletionVector, VectorPlace
from mirror_pump.lake.format.position_deletes import Positions


def rows_to_hide(
    merged: Sequence[MergedFile],
    sources: Sequence[LiveFile],
    base_vectors: Mapping[str, VectorPlace],
    hidden: Mapping[str, bytes],
    base_state: PresentFiles,
    live: Collection[str],
) -> dict[str, Positions]:
    """The rows by data file URI. `sources`: those of `merged`, which have `base_vectors` in the base, by URI. `hidden`:
    vectors of further rows, by URI. `live`: URIs of all data files of the present state. Raises LakeError if deletes
    were undone."""
    rows = {path: DeletionVector.from_blob(blob).positions for path, blob in hidden.items() if path in live}
    there = [file for file in sources if file.path in live]
    later = later_deletes(base_state.manifests, there, base_vectors, base_state.storage, base_state.cache)
    for file in merged:
        if file.path is not None:
            moved = [np.zeros(0, np.int64), *_moved(file, later, live)]
            rows[file.path] = np.concatenate(moved)
    return {path: positions for path, positions in rows.items() if len(positions)}


def _moved(file: MergedFile, later: Mapping[str, Positions], live: Collection[str]) -> Iterator[Positions]:
    """The rows of a merged file that were deleted since the base, source by source."""
    limits = np.searchsorted(file.source, np.arange(len(file.sources) + 1, dtype=np.int32))
    for number, path in enumerate(file.sources):
        if path not in live:
            yield file.places(number, file.position[limits[number] : limits[number + 1]])
        elif path in later:
            before = file.hidden.get(path, np.zeros(0, np.int64))
            if not np.isin(before, later[path], assume_unique=True).all():
                raise LakeError(f"deleted rows of {path} are back", "compute the rewrite again")
            yield file.places(number, later[path])
