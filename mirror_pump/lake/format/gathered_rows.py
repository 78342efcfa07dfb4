"""Rows that wait in memory until there are enough of them to be written."""

from __future__ import annotations

import pyarrow as pa

from mirror_pump.lake.format.schema import LakeSchema


class GatheredRows:
    """Rows of one schema, in the order in which they came; `len` is their number. They keep the memory of the tables
    that they came in."""

    def __init__(self, schema: LakeSchema, enough_rows: int, enough_bytes: int) -> None:
        """`enough_bytes`: of Arrow data."""
        self._schema = schema
        self._enough_rows = enough_rows
        self._enough_bytes = enough_bytes
        self._tables: list[pa.Table] = []
        self._rows = 0
        self.size_bytes = 0
        """Of Arrow data."""

    def __len__(self) -> int:
        return self._rows

    def add(self, rows: pa.Table | pa.RecordBatch) -> bool:
        """Returns whether there are enough rows now. Raises ValueError unless these have the schema's columns, in its
        order and with its exact types."""
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        arrow_schema = self._schema.arrow
        if table.schema.names != arrow_schema.names or table.schema.types != arrow_schema.types:
            raise ValueError(f"rows of schema\n{table.schema}\ndo not fit a lake table of schema\n{arrow_schema}")
        self._tables.append(table)
        self._rows += table.num_rows
        self.size_bytes += table.nbytes
        return self._rows >= self._enough_rows or self.size_bytes >= self._enough_bytes

    def take(self) -> pa.Table:
        """All rows, as one table, without a copy of them; none are left."""
        table = pa.concat_tables(self._tables) if self._tables else self._schema.arrow.empty_table()
        self.clear()
        return table

    def clear(self) -> None:
        """Forgets the rows."""
        self._tables.clear()
        self._rows = self.size_bytes = 0
