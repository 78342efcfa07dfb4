"""The temporary table that the rows of a load wait in, outside of any long transaction.

It belongs to the session: a client that dies takes it along. Its columns have the types of the table's, so PostgreSQL
checks each value when it arrives, and what arrived is checked.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from mirror_pump.database.quoting import identifier
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.copy_csv import csv_bytes
from mirror_pump.source.loads.filtered_rows import RowFilter, by_halves
from mirror_pump.source.relations.target_columns import TargetColumn

NAME = "pg_temp.modak_load"


class StagingTable:
    """The staging table of one session."""

    def __init__(self, connection: PgConnection, columns: Sequence[TargetColumn]) -> None:
        """`connection` is in autocommit mode. Creates the table, in place of one of an earlier load. Raises
        psycopg.Error."""
        self._connection = connection
        self.columns = tuple(columns)
        taken = {column.name for column in columns}
        self.number = next(name for size in range(len(taken) + 1) if (name := "_" * size + "row_number") not in taken)
        """The name of the column with the row's number."""
        self.last = 0
        """The highest number of a row that arrived."""
        defined = ", ".join(f"{identifier(column.name)} {column.type_sql}" for column in columns)
        connection.execute(f"DROP TABLE IF EXISTS {NAME}".encode())
        connection.execute(
            f"CREATE TEMPORARY TABLE modak_load ({identifier(self.number)} bigint PRIMARY KEY, {defined})".encode()
        )

    def add(self, rows: pa.Table, row_filter: RowFilter) -> None:
        """Copy rows into the table: their numbers, ascending, then the values of `columns` as texts that PostgreSQL
        reads. A row with a value that its type does not take is rejected."""

        def write(first: int, end: int) -> int:
            names = ", ".join(map(identifier, (self.number, *(column.name for column in self.columns))))
            with (
                self._connection.transaction(),
                self._connection.cursor() as cursor,
                cursor.copy(f"COPY {NAME} ({names}) FROM STDIN (FORMAT csv)".encode()) as copy,
            ):
                copy.write(csv_bytes(rows.slice(first, end - first)))
            return end - first

        def number(place: int) -> int:
            return int(rows.column(0)[place].as_py())

        if rows.num_rows:
            by_halves(0, rows.num_rows, write, lambda place, reason: row_filter.reject(number(place), reason))
            self.last = number(rows.num_rows - 1)

    def complete(self) -> None:
        """All rows are there: let the planner know how many."""
        self._connection.execute(f"ANALYZE {NAME}".encode())
