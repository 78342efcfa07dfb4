"""The IDs of rows by their places, in tables with row lineage (Iceberg spec, row lineage).

A row's ID is in a column of its file or, without a value there, follows from the ID of the file's first row, which is
in its manifest entry. Files never change, and a file's first row ID stays once it is assigned. So what was read is
kept, up to a limit, whichever snapshot it was read for.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
from pyiceberg.manifest import ManifestContent

from mirror_pump.lake.format.columns import names_by_id
from mirror_pump.lake.format.damaged_files import open_parquet
from mirror_pump.lake.format.position_deletes import Positions
from mirror_pump.lake.format.row_lineage import ROW_ID_FIELD
from mirror_pump.lake.manifests.manifest_entries import existing_entries
from mirror_pump.lake.manifests.manifest_list import Manifest
from mirror_pump.lake.manifests.manifests import stored_of
from mirror_pump.lake.storage import StorageOptions, local_path

NO_ID = -1
"""In place of the ID of a row that has none."""
_FILE_BYTES = 200
"""Of memory that a file's name takes."""
_PARALLEL_FILES = 8
"""Files that are read at the same time."""
_RUN_SHARE = 4
"""A column is kept as runs of IDs that follow each other if there are this many rows for each run."""


@dataclass(frozen=True)
class StoredIds:
    """The column of a file with row IDs."""

    ids: Positions
    """The ID of each row; NO_ID for one without a value. Of runs that of each one's first row."""
    begins: Positions | None = None
    """Of runs the row number of each one's first row."""

    @classmethod
    def of(cls, ids: Positions) -> StoredIds:
        """The IDs of all rows of a file, in order."""
        begins = np.flatnonzero(np.diff(ids, prepend=ids[:1] - 2) != 1) if len(ids) else ids
        if len(begins) * _RUN_SHARE > len(ids) or (ids == NO_ID).any():
            return cls(ids)
        return cls(ids[begins], begins)

    @property
    def nbytes(self) -> int:
        return self.ids.nbytes + (0 if self.begins is None else self.begins.nbytes)

    def at(self, positions: Positions) -> Positions:
        """The IDs of rows by their numbers."""
        if self.begins is None:
            return self.ids[positions]
        runs = np.searchsorted(self.begins, positions, "right") - 1
        return self.ids[runs] + positions - self.begins[runs]


class RowIds:
    """What is kept of the files of all tables. Owned by one thread."""

    def __init__(self, storage: StorageOptions, limit: int) -> None:
        """`limit`: bytes to keep. What has no room is read again."""
        self._storage = storage
        self._limit = limit
        self._bytes = 0
        self._first: OrderedDict[str, int] = OrderedDict()
        """The ID of each file's first row, those that were asked for longest ago first."""
        self._stored: OrderedDict[str, StoredIds | None] = OrderedDict()
        """The column of each file, None for a file without one, in the same order."""

    def of(self, manifests: Sequence[Manifest], places: Mapping[str, Positions]) -> dict[str, Positions]:
        """The IDs of rows, given by their numbers, by URI of their data file, which is live in a snapshot with these
        manifests; NO_ID for rows that have none, as the table was just upgraded. Raises LakeError."""
        first = self._first_row_ids(manifests, places.keys())
        stored = self._columns(places.keys())
        ids = {}
        for path, positions in places.items():
            inherited = positions + first[path] if path in first else np.full(len(positions), NO_ID, np.int64)
            column = stored[path]
            stored_ids = None if column is None else column.at(positions)
            ids[path] = inherited if stored_ids is None else np.where(stored_ids == NO_ID, inherited, stored_ids)
        self._drop()
        return ids

    def put(self, path: str, ids: Positions | None) -> None:
        """A file was written with these IDs, NO_ID for rows that get theirs when it lands; None: without the column."""
        self._keep(path, None if ids is None else StoredIds.of(ids))

    def _first_row_ids(self, manifests: Sequence[Manifest], paths: Collection[str]) -> dict[str, int]:
        first = {path: self._first[path] for path in paths if path in self._first}
        for path in first:
            self._first.move_to_end(path)
        missing = set(paths) - first.keys()
        # New files are in the first manifests, which are in memory.
        for manifest in manifests:
            if not missing:
                break
            if manifest.content == ManifestContent.DATA and manifest.live_files and manifest.first_row_id is not None:
                for path, row_id in self._listed(manifest):
                    self._bytes += _FILE_BYTES * (path not in self._first)
                    self._first[path] = row_id
                    if path in missing:
                        first[path] = row_id
                        missing.remove(path)
        return first

    def _listed(self, manifest: Manifest) -> Iterator[tuple[str, int]]:
        entries = (
            stored_of(manifest, self._storage)
            if manifest.entries is None
            else existing_entries(manifest.entries, manifest.sequence_number, manifest.first_row_id)
        )
        for entry in entries:
            if entry.first_row_id is not None:
                yield entry.path, entry.first_row_id

    def _columns(self, paths: Collection[str]) -> dict[str, StoredIds | None]:
        columns = {path: self._stored[path] for path in paths if path in self._stored}
        for path in columns:
            self._stored.move_to_end(path)
        missing = [path for path in paths if path not in columns]
        if len(missing) > _PARALLEL_FILES or any(local_path(path) is None for path in missing):
            with ThreadPoolExecutor(_PARALLEL_FILES) as pool:
                read = list(pool.map(self._read, missing))
        else:
            read = list(map(self._read, missing))
        for path, column in zip(missing, read, strict=True):
            columns[path] = column
            self._keep(path, column)
        return columns

    def _read(self, path: str) -> StoredIds | None:
        with open_parquet(path, self._storage) as file:
            name = names_by_id(file).get(ROW_ID_FIELD)
            if name is None:
                return None
            column = file.read([name], use_threads=False).column(0)
            return StoredIds.of(pc.fill_null(column, NO_ID).to_numpy())

    def _keep(self, path: str, column: StoredIds | None) -> None:
        if path in self._stored:
            self._bytes -= _size(self._stored.pop(path))
        self._stored[path] = column
        self._bytes += _size(column)

    def _drop(self) -> None:
        while self._bytes > self._limit and self._stored:
            self._bytes -= _size(self._stored.popitem(last=False)[1])
        while self._bytes > self._limit and self._first:
            self._first.popitem(last=False)
            self._bytes -= _FILE_BYTES


def _size(column: StoredIds | None) -> int:
    return _FILE_BYTES + (0 if column is None else column.nbytes)
