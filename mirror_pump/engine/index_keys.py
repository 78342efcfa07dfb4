"""What runs inside a Spark task that reads keys for the key index: of the live rows of data files, or of deletes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow.parquet as pq

from mirror_pump.lake.format.columns import column_names
from mirror_pump.lake.format.position_deletes import Positions, read_position_deletes
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.key_index.packed_keys import KeyPacking, PackedKeys
from mirror_pump.lake.storage import StorageOptions, open_input


@dataclass(frozen=True)
class KeysTask:
    """Files whose keys are wanted."""

    files: tuple[str, ...]
    """Data files, or equality-delete files on the key."""
    positions: tuple[str, ...]
    """Position-delete files that may name rows of the data files."""
    schema: LakeSchema
    """The table's."""
    packing: KeyPacking
    storage: StorageOptions


@dataclass(frozen=True)
class FileKeys:
    """The keys of a file's rows that no position delete hides, in their order."""

    path: str
    keys: PackedKeys
    rows: Positions | None
    """The rows' positions; None: every row of the file."""

    @property
    def positions(self) -> Positions:
        """The rows' positions."""
        return np.arange(len(self.keys)) if self.rows is None else self.rows


def read_keys(task: KeysTask) -> list[FileKeys]:
    """Reads the key columns alone, file by file. Memory: 16 bytes a row. Raises LakeError."""
    hidden = read_position_deletes(task.positions, task.files, task.storage)
    found = []
    ids = [field.field_id for field in task.schema.key.fields]
    for path in task.files:
        parts: list[PackedKeys] = []
        with open_input(path, task.storage) as source:
            file = pq.ParquetFile(source)
            names = column_names(file, ids, path)
            parts.extend(
                task.packing.pack([batch.column(name) for name in names]) for batch in file.iter_batches(columns=names)
            )
        keys = PackedKeys.concatenated(parts, task.packing.words)
        rows = None
        if len(gone := hidden.get(path, np.zeros(0, np.int64))):
            rows = np.setdiff1d(np.arange(len(keys)), gone, assume_unique=True)
            keys = keys.take(rows)
        found.append(FileKeys(path, keys, rows))
    return found
