"""What was read of tables without a key to find their rows: hashes of files' rows, and the positions that are hidden.

Files never change, so nothing of it has to be brought up to date. The hashes are kept in memory up to a limit, then in
files without names (mirror_pump.lake.key_index.leaf_store). What has room in neither is read again when it is needed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from mirror_pump.engine.comparison.row_hashes import HashSecret
from mirror_pump.engine.comparison.whole_rows import HashedFile
from mirror_pump.lake.deletes.row_deletes import NOTHING_READ, ReadDeletes
from mirror_pump.lake.format.position_deletes import Positions
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.lake.key_index.leaf_store import LeafStore
from mirror_pump.model import TableId

_MEMORY_BYTES = 256 << 20
"""Memory of the hashes that are kept: 24 bytes a row."""
_LEAST_STORED_BYTES = 1 << 20
"""Smaller ones are read again sooner than a file descriptor is worth."""

FileKey: TypeAlias = tuple[str, tuple[LakeField, ...]]
"""URI of a data file, and the columns that are hashed."""


def file_key(path: str, schema: LakeSchema) -> FileKey:
    """By the columns alone: a segment's schema has not the number of the lake table's."""
    return path, schema.fields


@dataclass(frozen=True)
class HiddenPositions:
    """The positions that are hidden in a table's files, as position deletes say."""

    read: ReadDeletes = NOTHING_READ
    positions: Mapping[str, Positions] = field(default_factory=dict)
    """Sorted, by URI of the data file."""


class RowHashes:
    """What was read of all tables without a key. Thread-safe. It outlives sessions."""

    def __init__(
        self, store: LeafStore | None = None, read_at_once: int = 0, memory_bytes: int = _MEMORY_BYTES
    ) -> None:
        """`store`: where hashes are kept for which memory has no room. `read_at_once`: number of rows that the loop
        reads itself; what needs more is read in the background."""
        self.read_at_once = read_at_once
        self.secret = HashSecret.draw()
        self._store = store
        self._most = memory_bytes
        self._bytes = 0
        self._in_memory: OrderedDict[FileKey, HashedFile] = OrderedDict()
        """The one that was used longest ago comes first."""
        self._stored: OrderedDict[FileKey, HashedFile] = OrderedDict()
        """Likewise."""
        self._hidden: dict[TableId, HiddenPositions] = {}
        self._lock = threading.Lock()

    def get(self, key: FileKey) -> HashedFile | None:
        """The hashes of a file's rows. None if they were not read, or had no room."""
        with self._lock:
            for hashes in (self._in_memory, self._stored):
                if key in hashes:
                    hashes.move_to_end(key)
                    return hashes[key]
            return None

    def has(self, key: FileKey) -> bool:
        """Whether the file need not be read."""
        with self._lock:
            return key in self._in_memory or key in self._stored

    def put(self, key: FileKey, rows: HashedFile) -> bool:
        """Keeps the hashes of a file's rows, in the place of those that were used longest ago. Returns whether none had
        to go for them."""
        with self._lock:
            if key in self._in_memory or key in self._stored:
                return True
            self._in_memory[key] = rows
            self._bytes += rows.nbytes
            return self._make_room()

    def hidden(self, table_id: TableId) -> HiddenPositions:
        """What was read last of the table's position deletes."""
        with self._lock:
            return self._hidden.get(table_id, HiddenPositions())

    def put_hidden(self, table_id: TableId, hidden: HiddenPositions) -> None:
        """Keeps what was read of the table's position deletes."""
        with self._lock:
            self._hidden[table_id] = hidden

    def _make_room(self) -> bool:
        """Moves hashes out of memory that is full. Returns whether all of them have another place."""
        complete = True
        while self._bytes > self._most:
            key, rows = self._in_memory.popitem(last=False)
            self._bytes -= rows.nbytes
            stored = self._in_file(rows)
            while stored is None and self._stored and rows.nbytes >= _LEAST_STORED_BYTES:
                complete = False
                self._stored.popitem(last=False)
                stored = self._in_file(rows)
            if stored is None:
                complete = False
            else:
                self._stored[key] = stored
        return complete

    def _in_file(self, rows: HashedFile) -> HashedFile | None:
        if self._store is None or rows.nbytes < _LEAST_STORED_BYTES:
            return None
        arrays = [rows.first.view(np.int64), rows.second.view(np.int64), rows.order]
        piece = self._store.stored(arrays)
        if piece is None:
            return None
        # The arrays keep the mapping, and with it the file.
        numbers = np.frombuffer(piece, np.int64).reshape(len(arrays), len(rows.order))
        return HashedFile(numbers[0].view(np.uint64), numbers[1].view(np.uint64), numbers[2])
