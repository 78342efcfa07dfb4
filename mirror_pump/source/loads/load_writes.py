"""The statements that write a load's staged rows to its table, in the transaction that claims the label.

They are set-based DML on the table itself, with the rights of the session's role, the table's triggers and constraints.
The table's partitions decide where a row belongs, so nothing here depends on the cut-line: what has no partition below
it is a correction (modak.settle_load), and so is a key to delete that the heap does not hold (modak.bury_all).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from mirror_pump.database.quoting import identifier, literal
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.loads.filtered_rows import RowFilter, by_halves
from mirror_pump.source.loads.load_target import LoadTarget, read_bounds
from mirror_pump.source.loads.staging import NAME, StagingTable
from mirror_pump.source.rows import fetch_row
from sql import queries
from sql.mirror_names import SCHEMA

_SQL = queries("loads")

_ROWS_AT_ONCE = 50_000
"""Rows of one statement: what its triggers queue stays in memory."""
_KEYS_AT_ONCE = 1_000
"""Keys of one call of modak.bury_all()."""


class LoadMode(StrEnum):
    """What a load does with its rows."""

    UPSERT = "upsert"
    INSERT = "insert"
    DELETE = "delete"


@dataclass(frozen=True)
class LoadCounts:
    """What became of the staged rows that were not filtered."""

    loaded: int = 0
    """Rows written, or keys deleted. Below the cut-line it is not checked whether the lake has a row to delete."""
    below_cutline: int = 0
    """Rows below the cut-line among these."""
    superseded: int = 0
    """Rows with the key of a later row of the same load."""
    not_found: int = 0
    """Keys to delete from the cut-line on that the table does not have."""


@dataclass(frozen=True)
class _WrittenRange:
    """What one statement did; its row, by name."""

    loaded: int
    below_cutline: int
    existing: Sequence[int] = ()
    """Numbers of rows that are not written, since their keys exist."""
    not_found: int = 0


class LoadWrites:
    """Writes the rows of a staging table. Belongs to one transaction."""

    def __init__(
        self, connection: PgConnection, target: LoadTarget, staging: StagingTable, mode: LoadMode, row_filter: RowFilter
    ) -> None:
        self._connection = connection
        self._target = target
        self._staging = staging
        self._filter = row_filter
        self._number = identifier(staging.number)
        self._mode = mode
        self._below = "false"
        """The condition that a row `t` of the table is below the cut-line, as it was at the beginning."""
        self._has_cutline = False
        self._loaded = self._below_cutline = self._not_found = 0

    def write(self) -> LoadCounts:
        """Write all rows. Raises TooManyFiltered, psycopg.Error."""
        bounds = read_bounds(self._connection, self._target.table_id)
        if bounds is not None:
            self._below = bounds.below("t", bounds.cut) or "false"
            self._has_cutline = bounds.cut is not None
        self._reject_staged("it has no value of the key", " OR ".join(f"s.{name} IS NULL" for name in self._key()))
        expired = None if bounds is None else bounds.below("s", bounds.retention_line)
        if expired is not None:
            self._reject_staged("it is below the retention line, where rows have expired", expired)
        superseded = self._deduplicate()
        for first in range(1, self._staging.last + 1, _ROWS_AT_ONCE):
            end = min(first + _ROWS_AT_ONCE, self._staging.last + 1)
            self._loaded += by_halves(first, end, self._write_range, self._filter.reject)
        return LoadCounts(self._loaded, self._below_cutline, superseded, self._not_found)

    def _key(self) -> list[str]:
        return [identifier(name) for name in self._target.key]

    def _reject_staged(self, reason: str, condition: str) -> None:
        rows = self._connection.execute(
            f"DELETE FROM {NAME} s WHERE {condition} RETURNING s.{self._number}".encode()
        ).fetchall()
        for (row,) in sorted(rows):
            self._filter.reject(row, reason)

    def _deduplicate(self) -> int:
        """Leave one row for each key: the last one, since rows take effect in their order; of new rows the first."""
        inserts = self._mode is LoadMode.INSERT
        rows = self._connection.execute(
            f"DELETE FROM {NAME} s USING (SELECT {self._number} AS number, row_number() OVER (PARTITION BY"
            f" {', '.join(self._key())} ORDER BY {self._number} {'ASC' if inserts else 'DESC'}) AS place FROM {NAME}) d"
            f" WHERE d.number = s.{self._number} AND d.place > 1 RETURNING d.number".encode()
        ).fetchall()
        if not inserts:
            return len(rows)
        for (row,) in sorted(rows):
            self._filter.reject(row, "an earlier row of this load has the same key")
        return 0

    def _write_range(self, first: int, end: int) -> int:
        with self._connection.transaction():
            written = self._delete(first, end) if self._mode is LoadMode.DELETE else self._insert(first, end)
            # Rows that belong nowhere are found here, so that their numbers can be told.
            settle = f"SELECT {SCHEMA}.settle_load(%s::bigint::oid::regclass)"
            self._connection.execute(settle, (self._target.table_id,))
        self._below_cutline += written.below_cutline
        self._not_found += written.not_found
        for row in written.existing:
            self._filter.reject(row, "its key exists, or a trigger leaves it out")
        return written.loaded

    def _insert(self, first: int, end: int) -> _WrittenRange:
        names = ", ".join(identifier(column.name) for column in self._staging.columns)
        key = ", ".join(self._key())
        returned = ", ".join(f"t.{name} AS k{place}" for place, name in enumerate(self._key()))
        named = ", ".join(f"w.k{place} AS {name}" for place, name in enumerate(self._key()))
        # Two loads of the same keys lock them in the same order.
        insert = (
            f"INSERT INTO {self._target.name.quoted} AS t ({names}) OVERRIDING SYSTEM VALUE"
            f" SELECT {names} FROM {NAME} s WHERE {self._range(first, end)} ORDER BY {key}"
            f" ON CONFLICT ({key}) DO {self._on_conflict()} RETURNING {returned}, {self._below} AS below"
        )
        # What an INSERT does not return has a key that exists.
        existing = (
            f"ARRAY(SELECT s.{self._number} FROM {NAME} s WHERE {self._range(first, end)}"
            f" AND NOT EXISTS (SELECT FROM (SELECT {named} FROM written w) t WHERE {self._same_key()}) ORDER BY 1)"
            if self._mode is LoadMode.INSERT
            else "'{}'::bigint[]"
        )
        return self._run(
            f"WITH written AS ({insert}) SELECT count(*) AS loaded, count(*) FILTER (WHERE below) AS below_cutline,"
            f" {existing} AS existing FROM written"
        )

    def _on_conflict(self) -> str:
        """A whole row is written: columns that the load does not have get their default, as by modak.upsert()."""
        assigned = ", ".join(
            f"{identifier(column.name)} = excluded.{identifier(column.name)}"
            for column in self._target.columns
            if not (column.in_key or column.is_generated or column.identity == "a")
        )
        return f"UPDATE SET {assigned}" if assigned and self._mode is LoadMode.UPSERT else "NOTHING"

    def _delete(self, first: int, end: int) -> _WrittenRange:
        """Rows of the heap by DELETE. The other keys are below the cut-line, or nowhere."""
        heap = self._run(
            f"WITH gone AS (DELETE FROM {self._target.name.quoted} t USING {NAME} s WHERE {self._range(first, end)}"
            f" AND {self._same_key()} RETURNING s.{self._number} AS number, {self._below} AS below),"
            f" done AS (DELETE FROM {NAME} s USING gone WHERE s.{self._number} = gone.number)"
            " SELECT count(*) AS loaded, count(*) FILTER (WHERE below) AS below_cutline FROM gone"
        )
        left = buried = 0
        for start in range(first, end, _KEYS_AT_ONCE):
            keys, below = self._bury(start, min(start + _KEYS_AT_ONCE, end))
            left, buried = left + keys, buried + below
        return _WrittenRange(heap.loaded + buried, heap.below_cutline + buried, (), left - buried)

    def _bury(self, first: int, end: int) -> tuple[int, int]:
        """The number of keys that the heap did not have, and of those below the cut-line, which now have tombstones."""
        # As text: a JSON number or time is not always read back as the same key.
        key = ", ".join(f"{literal(name)}, format('%s', s.{identifier(name)})" for name in self._target.key)
        bury_all = f"{SCHEMA}.bury_all({self._target.table_id}::oid::regclass, k.keys)"
        buried = bury_all if self._has_cutline else "0::bigint"
        row = self._connection.execute(
            f"SELECT k.amount, CASE WHEN k.amount > 0 THEN {buried} ELSE 0 END FROM (SELECT count(*) AS amount,"
            f" jsonb_agg(jsonb_build_object({key})) AS keys FROM {NAME} s WHERE {self._range(first, end)}) k".encode()
        ).fetchone()
        assert row is not None
        keys_left, below = row
        return keys_left, below

    def _same_key(self) -> str:
        """The condition that row `t` of the table has the key of the staged row `s`, by the operators of its index."""
        ((condition,),) = self._connection.execute(
            _SQL["key_match"], {"table_id": self._target.table_id, "key": list(self._target.key)}
        ).fetchall()
        return str(condition)

    def _range(self, first: int, end: int) -> str:
        return f"s.{self._number} >= {first} AND s.{self._number} < {end}"

    def _run(self, statement: str) -> _WrittenRange:
        # Without parameters: names may have percent signs.
        written = fetch_row(self._connection, _WrittenRange, statement.encode())
        assert written is not None
        return written
