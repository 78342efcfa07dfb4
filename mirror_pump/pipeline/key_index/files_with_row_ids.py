"""Gives the rows of a commit the IDs of the rows that they replace (Iceberg spec, row lineage).

Invariant: if the table has a key index, a key that has a row before a commit, and one after it, has one `_row_id` in
both snapshots, also if the deletes are written by key. `_last_updated_sequence_number` has no value in the files, so
that it is the data sequence number of the row's segment: above that of the snapshot before, and at most that of the
publish.

Tasks make files before the index says which rows they replace. A file with such rows gets a copy with one more column,
which takes its place in the commit; a file of new rows stays. The copy has the file's bytes, so that its cost is little
more than that of writing it (mirror_pump.lake.format.joined_columns). Files that may have such rows are not written by
the tasks (mirror_pump.lake.format.unwritten_files), but here, once.

Rows get new IDs where the pump does not know the places of their former ones, as the spec allows: while a table has no
key index, and in tables without a key. A row whose key changes is a new row.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from mirror_pump.lake.commit.row_delta import LakeTable, SegmentFiles
from mirror_pump.lake.contents.row_ids import NO_ID, RowIds
from mirror_pump.lake.format.damaged_files import decoding
from mirror_pump.lake.format.data_files import WrittenFile, data_location
from mirror_pump.lake.format.joined_columns import with_column
from mirror_pump.lake.format.position_deletes import Positions
from mirror_pump.lake.format.row_lineage import ROW_ID_FIELD, row_id_field
from mirror_pump.lake.format.unwritten_files import UnwrittenFiles
from mirror_pump.lake.key_index.index_plan import FileNumbers, IndexPlan
from mirror_pump.lake.key_index.key_index import Places, files_of, positions_of
from mirror_pump.lake.manifests.manifest_list import Manifest
from mirror_pump.lake.storage import StagedFiles, write_all


@dataclass(frozen=True)
class FilesWithRowIds:
    """The files of a commit whose rows have IDs."""

    copies: Mapping[str, WrittenFile] = field(default_factory=dict)
    """By URI of the file that each copy replaces."""
    superseded: tuple[str, ...] = ()
    """Those of these files that were written: to be removed once the commit has landed."""
    ids: Mapping[str, Positions | None] = field(default_factory=dict, repr=False)
    """For RowIds.put: the IDs in each of the commit's data files, by URI."""

    def in_place(self, segment: SegmentFiles) -> SegmentFiles:
        """The segment with the copies in place of its files."""
        return replace(segment, data=tuple(self.copies.get(file.path, file) for file in segment.data))


@dataclass(frozen=True)
class ReplacingRows:
    """The rows of a data file that replace others."""

    positions: Positions
    """Their row numbers."""
    ids: Positions
    """The IDs of the rows that each replaces."""


def replacing_rows(
    plan: IndexPlan, numbers: FileNumbers, manifests: Sequence[Manifest], row_ids: RowIds
) -> dict[str, ReplacingRows]:
    """Those of a commit with a plan that has `changed`, by URI of its data files. `manifests` name the files that the
    index names. Raises LakeError."""
    if not plan.changed:
        return {}
    places, base_places = (np.concatenate(parts) for parts in zip(*plan.changed, strict=True))
    order = np.argsort(base_places)
    groups = list(_by_file(base_places[order]))
    ids = row_ids.of(manifests, {numbers.path(file): positions_of(base_places[order[rows]]) for file, rows in groups})
    own_ids = np.full(len(places), NO_ID, np.int64)
    for file, rows in groups:
        own_ids[order[rows]] = ids[numbers.path(file)]
    places, own_ids = places[own_ids != NO_ID], own_ids[own_ids != NO_ID]
    order = np.argsort(places)
    return {
        numbers.path(file): ReplacingRows(positions_of(places[order[rows]]), own_ids[order[rows]])
        for file, rows in _by_file(places[order])
    }


def write_identified(
    data: Sequence[WrittenFile],
    unwritten: UnwrittenFiles,
    replacing: Mapping[str, ReplacingRows] | None,
    base: LakeTable,
    written: StagedFiles,
) -> FilesWithRowIds:
    """Writes what is `unwritten` of the data files of a commit on top of `base`, and copies of those with `replacing`
    rows; None if these are not known. What it writes belongs to `written`. Raises LakeError."""
    files = {file.path: file for file in data}
    ids: dict[str, Positions | None] = {} if replacing is None else dict.fromkeys(files)
    copies = {}
    for path, rows in (replacing or {}).items():
        file = files[path]
        column = np.full(file.record_count, NO_ID, np.int64)
        column[rows.positions] = rows.ids
        copies[path] = copy = _copied(file, unwritten.content(path, base.storage), column, base)
        written.add(copy.path)
        del ids[path]
        ids[copy.path] = column
    written.add(*unwritten.write(base.storage, without=copies))
    return FilesWithRowIds(copies, tuple(path for path in copies if path not in unwritten.contents), ids)


def _by_file(places: Places) -> Iterator[tuple[int, slice]]:
    """The numbers of the files of sorted places, and which places are in each."""
    files = files_of(places)
    limits = [0, *(np.flatnonzero(files[1:] != files[:-1]) + 1).tolist(), len(places)]
    for begin, end in pairwise(limits):
        if begin < end:
            yield int(files[begin]), slice(begin, end)


def _copied(file: WrittenFile, content: memoryview, ids: Positions, base: LakeTable) -> WrittenFile:
    """A copy of a file with these IDs of its rows."""
    with decoding(file.path, "a readable data file"):
        joined = with_column(content, row_id_field(base.schema), pa.array(ids, mask=ids == NO_ID))
    path = data_location(base.location, f"{uuid.uuid4().hex}.parquet")
    write_all([(path, joined)], base.storage)
    nulls = int(np.count_nonzero(ids == NO_ID))
    return replace(
        file,
        path=path,
        column_sizes={**file.column_sizes, ROW_ID_FIELD: len(joined) - file.size_bytes},
        value_counts={**file.value_counts, ROW_ID_FIELD: len(ids)},
        null_counts={**file.null_counts, ROW_ID_FIELD: nulls},
        size_bytes=len(joined),
    )
