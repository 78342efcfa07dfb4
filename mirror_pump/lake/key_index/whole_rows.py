"""Rows of a table without a key that a segment deletes, with all their values."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from mirror_pump.lake.format.schema import LakeSchema


@dataclass(frozen=True)
class RemovedRows:
    """Rows to delete. Each stands for one of the lake's rows that are equal to it; one may be in it several times."""

    schema: LakeSchema
    """The table's schema in this segment, with every raw text column."""
    rows: pa.Table
    """All columns of the schema."""

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return int(self.rows.nbytes)
