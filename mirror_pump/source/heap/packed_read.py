"""Runs the query of packed columns in a transaction of ADBC's, and checks that no range of blocks is missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa

from mirror_pump.database.quoting import literal
from mirror_pump.errors import SourceError
from mirror_pump.model import Column, TableName
from mirror_pump.source.heap.packed_columns import RANGE_BYTES, REPORTED, PackedColumns

BATCH_BYTES = 8 << 20
"""Bytes of the result that are decoded together, at least a range. With fewer, each call has little to do; more take
memory, and no less time."""


@dataclass(frozen=True)
class PackedRead:
    """A read of the blocks lo .. hi - 1 of a heap."""

    table: TableName
    lo: int
    hi: int
    block_bytes: int
    packed: PackedColumns

    @classmethod
    def of(
        cls, cursor: Any, relation_id: int, table: TableName, lo: int, hi: int | None, columns: tuple[Column, ...]
    ) -> Self | None:
        """A read of `packable` columns in the cursor's transaction, whose snapshot has been taken. `hi`: None for all
        blocks from `lo` on. None if the heap cannot be read in this form: there are values outside of their rows, or
        the database is not in UTF-8."""
        cursor.execute(
            "SELECT CASE WHEN getdatabaseencoding() = 'UTF8'"
            " AND coalesce(pg_relation_size(nullif(c.reltoastrelid, 0)), 0) = 0"
            " THEN pg_relation_size(c.oid) / current_setting('block_size')::bigint END,"
            f" current_setting('block_size')::bigint FROM pg_class c WHERE c.oid = {relation_id}"
        )
        blocks, block_bytes = cursor.fetchone()
        if blocks is None:
            return None
        masked = ", ".join(literal(name) for name in PackedColumns(columns).masked)
        # A guess, by what ANALYZE has found.
        cursor.execute(
            f"SELECT count(*) FROM pg_stats WHERE schemaname = {literal(table.schema)}"
            f" AND tablename = {literal(table.name)} AND NOT inherited AND null_frac > 0"
            f" AND attname IN ({masked or 'NULL'})"
        )
        (with_nulls,) = cursor.fetchone()
        packed = PackedColumns(columns, nulls_expected=with_nulls > 0)
        return cls(table, lo, blocks if hi is None else hi, block_bytes, packed)

    def statement(self, batch_bytes: int) -> str:
        """The query, with rows of at most `batch_bytes` of heap."""
        blocks = max(1, min(RANGE_BYTES, batch_bytes) // self.block_bytes)
        return self.packed.select(self.table.quoted, self.lo, self.hi, blocks)

    def arrays(self, cursor: Any, statement: str) -> Iterator[list[pa.Array]]:
        """The columns of some ranges, then of the next ones, as PackedColumns.arrays says. Raises SourceError unless
        the ranges are all that there are, in order."""
        # Without a scan of its own blocks each range would read the whole heap, and compiling the expressions takes
        # longer than most chunks. No index, and no scan that begins elsewhere, may change the order of the rows.
        indexes = ("enable_indexscan", "enable_indexonlyscan", "enable_bitmapscan", "synchronize_seqscans")
        chosen = dict.fromkeys(("enable_seqscan", "jit", *indexes), "off") | {"enable_tidscan": "on"}
        cursor.execute(
            "SELECT " + ", ".join(f"set_config('{name}', '{value}', true)" for name, value in chosen.items())
        )
        cursor.fetchone()
        cursor.execute(statement)
        begin = self.lo
        for batch in cursor.fetch_record_batch():
            for lo, hi in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                if lo != begin:
                    raise SourceError(f"PostgreSQL returned block {lo} of {self.table} in place of {begin}", REPORTED)
                begin = hi
            arrays = self.packed.arrays(batch)
            if arrays is not None:
                yield arrays
        if begin < self.hi:
            raise SourceError(f"PostgreSQL returned nothing of {self.table} from block {begin} on", REPORTED)
