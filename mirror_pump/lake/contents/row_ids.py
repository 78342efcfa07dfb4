"""The IDs of rows by their places, in tables with row lineage (Iceberg spec, row lineage).

A row's ID is in a column of its file or, without a value there, follows from the ID of the file's first row, which is
in its manifest entry. Files never change, and a file's first row ID stays once it is assigned. So what was read is
kept, whichever snapshot it was read for: in memory up to a limit, then in files without names. What has room in neither
is read again when it is needed.
"""

from __future__ import annotations

import mmap
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.manifest import ManifestContent

from mirror_pump.lake.format.columns import names_by_id
from mirror_pump.lake.format.damaged_files import open_parquet
from mirror_pump.lake.format.position_deletes import Positions
from mirror_pump.lake.format.row_lineage import ROW_ID_FIELD
from mirror_pump.lake.manifests.manifest_entries import existing_entries
from mirror_pump.lake.manifests.manifest_files import stored_of
from mirror_pump.lake.manifests.manifest_list import Manifest
from mirror_pump.lake.storage import StorageOptions, local_path

NO_ID = -1
"""In place of the ID of a row that has none."""
_FILE_BYTES = 200
"""Of memory that a file's name takes."""
_PARALLEL_FILES = 8
"""Files that are read at the same time."""
_RUN_SHARE = 4
"""A column is kept as runs of IDs that follow each other if there are this many rows for each run."""
_MOVED_SHARE = 4
"""One part in this many of what is in memory moves to a file at a time."""
_LEAST_MOVED_BYTES = 1 << 20
"""Less is read again sooner than a file descriptor is worth."""
_MOST_FILES = 64
"""Each takes a file descriptor."""

Store: TypeAlias = Callable[[Sequence[Positions]], mmap.mmap | None]
"""LeafStore.stored of mirror_pump.lake.key_index."""


@dataclass(frozen=True)
class StoredIds:
    """The column of a file with row IDs."""

    ids: Positions
    """The ID of each row; NO_ID for one without a value. Of runs that of each one's first row."""
    begins: Positions | None = None
    """Of runs the row number of each one's first row."""
    file: mmap.mmap | None = field(default=None, compare=False, repr=False)
    """The file that the arrays are in. None: they are in memory."""

    @classmethod
    def of(cls, ids: Positions) -> StoredIds:
        """The IDs of all rows of a file, in order."""
        begins = np.flatnonzero(np.diff(ids, prepend=ids[:1] - 2) != 1) if len(ids) else ids
        if len(begins) * _RUN_SHARE > len(ids) or (ids == NO_ID).any():
            return cls(ids)
        return cls(ids[begins], begins)

    @property
    def arrays(self) -> list[Positions]:
        return [self.ids] if self.begins is None else [self.ids, self.begins]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)

    def at(self, positions: Positions) -> Positions:
        """The IDs of rows by their numbers."""
        if self.begins is None:
            ids = self.ids[positions]
        else:
            runs = np.searchsorted(self.begins, positions, "right") - 1
            ids = self.ids[runs] + positions - self.begins[runs]
        if self.file is not None:
            # What was looked at stays in the page cache.
            self.file.madvise(mmap.MADV_DONTNEED)
        return ids


def stored_ids(file: pq.ParquetFile) -> StoredIds | None:
    """The column of an open data file; None if it has none. Raises LakeError."""
    name = names_by_id(file).get(ROW_ID_FIELD)
    if name is None:
        return None
    column = file.read([name], use_threads=False).column(0)
    return StoredIds.of(pc.fill_null(column, NO_ID).to_numpy())


class RowIds:
    """What is kept of the files of all tables. Thread-safe."""

    def __init__(self, storage: StorageOptions, limit: int, store: Store | None = None, disk_limit: int = 0) -> None:
        """`limit`: bytes to keep in memory. `store`: makes the files for columns for which memory has no room, up to
        `disk_limit` bytes."""
        self._storage = storage
        self._limit = limit
        self._store = store
        self._disk_limit = disk_limit
        self._bytes = self._disk_bytes = 0
        self._first: OrderedDict[str, int] = OrderedDict()
        """The ID of each file's first row, those that were asked for longest ago first."""
        self._stored: OrderedDict[str, StoredIds | None] = OrderedDict()
        """The column of each file, None for a file without one, in the same order."""
        self._moved: dict[str, StoredIds] = {}
        """The columns that are in files."""
        self._files: deque[tuple[tuple[str, ...], int]] = deque()
        """Whose columns are in each of these, and its size in bytes, oldest first."""
        self._lock = threading.RLock()

    @property
    def nbytes(self) -> int:
        """Memory."""
        return self._bytes

    @property
    def disk_bytes(self) -> int:
        """Size of the files."""
        return self._disk_bytes

    def resize(self, limit: int, disk_limit: int) -> None:
        """Sets how many bytes there may be in memory, and in files."""
        with self._lock:
            self._limit, self._disk_limit = limit, disk_limit
            self._make_room()

    def of(self, manifests: Sequence[Manifest], places: Mapping[str, Positions]) -> dict[str, Positions]:
        """The IDs of rows, given by their numbers, by URI of their data file, which is live in a snapshot with these
        manifests; NO_ID for rows that have none, as the table was just upgraded. Raises LakeError."""
        first = self._first_row_ids(manifests, places.keys())
        stored = self._columns(places.keys())
        ids = {}
        for path, positions in places.items():
            inherited = positions + first[path] if path in first else np.full(len(positions), NO_ID, np.int64)
            column = stored[path]
            own_ids = None if column is None else column.at(positions)
            ids[path] = inherited if own_ids is None else np.where(own_ids == NO_ID, inherited, own_ids)
        with self._lock:
            self._make_room()
        return ids

    def put(self, path: str, column: StoredIds | None) -> None:
        """Keeps what is in a data file, None for one without the column."""
        with self._lock:
            self._keep(path, column)
            self._make_room()

    def forget(self, paths: Collection[str]) -> None:
        """These data files are not part of a table any more."""
        with self._lock:
            for path in paths:
                if path in self._stored:
                    self._bytes -= _size(self._stored.pop(path))
                if self._first.pop(path, None) is not None:
                    self._bytes -= _FILE_BYTES
                self._moved.pop(path, None)

    def read_first(self, manifests: Sequence[Manifest]) -> None:
        """Reads the first row IDs of all data files of a snapshot. Raises LakeError."""
        for manifest in manifests:
            self._list(manifest)
        with self._lock:
            self._make_room()

    def _first_row_ids(self, manifests: Sequence[Manifest], paths: Collection[str]) -> dict[str, int]:
        with self._lock:
            first = {path: self._first[path] for path in paths if path in self._first}
            for path in first:
                self._first.move_to_end(path)
        missing = set(paths) - first.keys()
        # New files are in the first manifests, which are in memory.
        for manifest in manifests:
            if not missing:
                break
            listed = self._list(manifest)
            first |= {path: listed[path] for path in missing & listed.keys()}
            missing -= listed.keys()
        return first

    def _list(self, manifest: Manifest) -> dict[str, int]:
        """Reads the first row IDs of a manifest's data files, and keeps them."""
        if manifest.content != ManifestContent.DATA or not manifest.live_files or manifest.first_row_id is None:
            return {}
        listed = dict(self._entries(manifest))
        with self._lock:
            self._bytes += _FILE_BYTES * len(listed.keys() - self._first.keys())
            self._first |= listed
        return listed

    def _entries(self, manifest: Manifest) -> Iterator[tuple[str, int]]:
        entries = (
            stored_of(manifest, self._storage)
            if manifest.entries is None
            else existing_entries(manifest.entries, manifest.sequence_number, manifest.first_row_id)
        )
        for entry in entries:
            if entry.first_row_id is not None:
                yield entry.path, entry.first_row_id

    def _columns(self, paths: Collection[str]) -> dict[str, StoredIds | None]:
        columns: dict[str, StoredIds | None] = {}
        with self._lock:
            for path in paths:
                if path in self._stored:
                    columns[path] = self._stored[path]
                    self._stored.move_to_end(path)
                elif path in self._moved:
                    columns[path] = self._moved[path]
        missing = [path for path in paths if path not in columns]
        if len(missing) > _PARALLEL_FILES or any(local_path(path) is None for path in missing):
            with ThreadPoolExecutor(_PARALLEL_FILES) as pool:
                read = list(pool.map(self._read, missing))
        else:
            read = list(map(self._read, missing))
        with self._lock:
            for path, column in zip(missing, read, strict=True):
                columns[path] = column
                self._keep(path, column)
        return columns

    def _read(self, path: str) -> StoredIds | None:
        with open_parquet(path, self._storage) as file:
            return stored_ids(file)

    def _keep(self, path: str, column: StoredIds | None) -> None:
        if path in self._stored:
            self._bytes -= _size(self._stored.pop(path))
        self._stored[path] = column
        self._bytes += _size(column)

    def _make_room(self) -> None:
        """Moves columns out of memory that is full, and drops what has no room in files either."""
        while self._files and (self._disk_bytes > self._disk_limit or len(self._files) > _MOST_FILES):
            self._drop_file()
        if self._bytes > self._limit:
            least = self._limit - self._limit // _MOVED_SHARE
            oldest: dict[str, StoredIds] = {}
            while self._bytes > least and self._stored:
                path, column = self._stored.popitem(last=False)
                self._bytes -= _size(column)
                if column is not None:
                    oldest[path] = column
            self._move(oldest)
        while self._bytes > self._limit and self._first:
            self._first.popitem(last=False)
            self._bytes -= _FILE_BYTES

    def _move(self, columns: Mapping[str, StoredIds]) -> None:
        """Puts columns into one file, in the place of the oldest files, if it has room there."""
        arrays = [array for column in columns.values() for array in column.arrays]
        size = sum(array.nbytes for array in arrays)
        if self._store is None or not _LEAST_MOVED_BYTES <= size <= self._disk_limit:
            return
        while self._files and (self._disk_bytes + size > self._disk_limit or len(self._files) >= _MOST_FILES):
            self._drop_file()
        file = self._store(arrays)
        if file is None:
            return
        ends = np.cumsum([len(array) for array in arrays])
        parts = iter(np.split(np.frombuffer(file, np.int64), ends[:-1]))
        for path, column in columns.items():
            self._moved[path] = StoredIds(next(parts), None if column.begins is None else next(parts), file)
        self._files.append((tuple(columns), size))
        self._disk_bytes += size
        file.madvise(mmap.MADV_DONTNEED)

    def _drop_file(self) -> None:
        paths, size = self._files.popleft()
        self._disk_bytes -= size
        for path in paths:
            self._moved.pop(path, None)


def _size(column: StoredIds | None) -> int:
    return _FILE_BYTES + (0 if column is None else column.nbytes)
