"""Decides which rows go to the lake and which to the heap, by their tier key.

A row goes to the lake if it is below the cut-line and no partition of the table would hold it. So partitions that the
cut-line has passed and that are not dropped yet stay equal to the lake: PostgreSQL writes their rows, and their
triggers the corrections. All rows of a table whose heap is kept go to the heap. The cut-line only advances, so a row
that is below it stays below it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mirror_pump.lake.key_index.packed_keys import as_numbers
from mirror_pump.model import MirroredTable
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.relations.tier_keys import shown
from sql import queries

_SQL = queries("ingest")


@dataclass(frozen=True)
class RowDivision:
    """How the rows of one table are divided."""

    table: MirroredTable
    cut: int | None
    """The cut-line. None: no row is below it, and all go to the heap."""
    partitions: tuple[tuple[int, int], ...] = ()
    """Lower and upper bounds, as tier values, of partitions below the cut-line."""
    retention_line: int | None = None
    """Rows below it have expired, and are refused."""

    @classmethod
    def read(cls, connection: PgConnection, table: MirroredTable) -> RowDivision:
        """As the table is now."""
        if table.tier is None or not table.tier.moved:
            return cls(table, None)
        parameters = {"table_id": table.table_id, "cut": table.tier.cut}
        row = connection.execute(_SQL["limits"], parameters).fetchone()
        retention_line, keep_heap = row if row is not None else (None, False)
        if keep_heap:
            return cls(table, None)
        partitions = tuple((lo, hi) for lo, hi in connection.execute(_SQL["partitions"], parameters).fetchall())
        return cls(table, table.tier.cut, partitions, retention_line)

    def tier_values(self, rows: pa.Table) -> npt.NDArray[np.int64]:
        """The rows' tier values."""
        assert self.table.tier is not None
        return as_numbers(rows.column(self.table.tier.column).combine_chunks())

    def to_lake(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """Whether each row goes to the lake."""
        if self.cut is None:
            return np.zeros(rows.num_rows, np.bool_)
        values = self.tier_values(rows)
        below = values < self.cut
        for lo, hi in self.partitions:
            below &= (values < lo) | (values >= hi)
        return below

    def expired(self, rows: pa.Table) -> npt.NDArray[np.int64]:
        """Indexes of rows below the retention line."""
        if self.retention_line is None:
            return np.zeros(0, np.int64)
        return np.flatnonzero(self.tier_values(rows) < self.retention_line)

    def expiry_text(self) -> str:
        """Why a row is refused as expired."""
        assert self.table.tier is not None
        assert self.retention_line is not None
        tier = self.table.tier
        line = shown(tier.kind, self.retention_line)
        return f"{tier.column} is below the retention line {line}: rows that old have expired from {self.table.name}"
