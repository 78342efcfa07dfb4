"""Spark task that reads keys for the key index: those of data files' live rows, or those of equality deletes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mirror_pump.lake.contents.row_ids import StoredIds, stored_ids
from mirror_pump.lake.deletes.hidden_rows import HiddenRows
from mirror_pump.lake.format.columns import column_names
from mirror_pump.lake.format.damaged_files import open_parquet
from mirror_pump.lake.format.position_deletes import Positions
from mirror_pump.lake.format.row_batches import live_rows
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.key_index.packed_keys import KeyPacking, PackedKeys
from mirror_pump.lake.storage import StorageOptions


@dataclass(frozen=True)
class KeysTask:
    """Files whose keys to read."""

    files: tuple[str, ...]
    """Data files, or equality-delete files on the key."""
    positions: tuple[str, ...]
    """Position-delete files that may refer to rows of the data files."""
    schema: LakeSchema
    """The table's schema."""
    packing: KeyPacking
    storage: StorageOptions
    with_ids: bool = False
    """Whether to read the rows' IDs, too."""


@dataclass(frozen=True)
class FileKeys:
    """Keys of a file's rows that no position delete hides, in row order."""

    path: str
    keys: PackedKeys
    rows: Positions | None
    """Positions of the rows; None for all rows of the file."""
    ids: StoredIds | None = None
    """The IDs of all rows of the file. None if it has no column of them, or they are not asked for."""

    @property
    def positions(self) -> Positions:
        """Positions of the rows in the file."""
        return np.arange(len(self.keys)) if self.rows is None else self.rows


def read_keys(task: KeysTask) -> list[FileKeys]:
    """Reads only the key columns, and that of row IDs, file by file. Memory: 16 bytes per row, and 8 for its ID. Raises
    LakeError."""
    hidden = HiddenRows.read(task.positions, task.files, task.storage)
    file_keys = []
    ids = [field.field_id for field in task.schema.key.fields]
    for path in task.files:
        parts: list[PackedKeys] = []
        with open_parquet(path, task.storage) as file:
            names = column_names(file, ids, path)
            parts.extend(
                task.packing.pack([batch.column(name) for name in names])
                for batch in file.iter_batches(columns=names, use_threads=False)
            )
            row_ids = stored_ids(file) if task.with_ids else None
        keys = PackedKeys.concatenated(parts, task.packing.words)
        rows = None
        if path in hidden:
            rows = np.flatnonzero(live_rows(hidden[path], 0, len(keys)))
            keys = keys.take(rows)
        file_keys.append(FileKeys(path, keys, rows, row_ids))
    return file_keys
