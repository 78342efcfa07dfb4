"""Decides which rows go to the lake and which to the heap, by their tier key.

A row goes to the lake if it is below the cut-line and no partition of the table would hold it. So partitions that the
cut-line has passed and that are not dropped yet stay equal to the lake: PostgreSQL writes their rows, and their
triggers the corrections. All rows of a table whose heap is kept go to the heap. The cut-line only advances, so a row
that is below it stays below it.

As long as the cut-line of a tiered table has not moved, the lower end of the lowest partition stands for it, which
becomes its first value with the ingest: what is older than all partitions is history.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mirror_pump.lake.key_index.packed_keys import as_numbers
from mirror_pump.model import MirroredTable, TableMode
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
    begins: bool = False
    """The cut-line has not moved yet: it becomes `cut` together with the rows below."""

    @classmethod
    def read(cls, connection: PgConnection, table: MirroredTable) -> RowDivision:
        """As the table is now."""
        if table.tier is None:
            return cls(table, None)
        if not table.tier.moved:
            return cls._beginning(connection, table)
        parameters = {"table_id": table.table_id, "cut": table.tier.cut}
        row = connection.execute(_SQL["limits"], parameters).fetchone()
        retention_line, keep_heap = row if row is not None else (None, False)
        if keep_heap:
            return cls(table, None)
        partitions = tuple((lo, hi) for lo, hi in connection.execute(_SQL["partitions"], parameters).fetchall())
        return cls(table, table.tier.cut, partitions, retention_line)

    @classmethod
    def _beginning(cls, connection: PgConnection, table: MirroredTable) -> RowDivision:
        """As long as the cut-line has not moved."""
        assert table.tier is not None
        parameters = {"table_id": table.table_id}
        limits = connection.execute(_SQL["limits"], parameters).fetchone()
        keep_heap = limits is not None and limits[1]
        row = connection.execute(_SQL["lowest"], parameters).fetchone()
        lowest = None if row is None else row[0]
        if table.mode is not TableMode.TIERED or keep_heap or lowest is None:
            return cls(table, None)
        # Of partitions without a lower bound no row is older.
        return cls(table, lowest, begins=True) if replace(table.tier, cut=lowest).moved else cls(table, None)

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
