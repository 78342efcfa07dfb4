"""Where the rows are that match a predicate, for a deletion that is planned again whenever the table has moved."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue

from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.format.position_deletes import Positions
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.tables.read_plan.file_rows import FileRows
from mirror_pump.tables.read_plan.metadata_columns import POSITION_COLUMN
from mirror_pump.tables.read_plan.plan import read_plan
from mirror_pump.tables.read_plan.planned_files import PlannedFile
from mirror_pump.tables.read_plan.predicates import Predicate


class MatchingRows:
    """Finds the rows, and remembers those of each file, since files do not change: when another writer comes first,
    only its files are read."""

    def __init__(self, predicate: Predicate, storage: StorageOptions) -> None:
        self._predicate = predicate
        self._storage = storage
        self._by_file: dict[str, Positions] = {}

    def find(self, metadata: TableMetadata) -> Mapping[str, Positions]:
        """Row numbers by data file, without files that have no such row. Rows that are deleted already may be among
        them. Raises UsageError for a predicate on columns that the table does not have, and LakeError."""
        plan = read_plan(metadata, self._storage, self._predicate, columns=[POSITION_COLUMN.name])
        rows = FileRows(plan)
        by_file = {}
        for file in plan.files:
            key = f"{metadata.current_schema_id} {file.path}"
            if key not in self._by_file:
                self._by_file[key] = _matching(file, rows)
            if len(self._by_file[key]):
                by_file[file.path] = self._by_file[key]
        return by_file


def _matching(file: PlannedFile, rows: FileRows) -> Positions:
    if file.residual is AlwaysFalse():
        return np.empty(0, np.int64)
    if file.residual is AlwaysTrue():
        # Whatever its deletes hide: the whole file goes.
        return np.arange(file.records, dtype=np.int64)
    parts = [batch.column(0).to_numpy(zero_copy_only=False) for batch in rows.batches(file)]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
