"""Equality deletes that are pending or converted, key indexes that make them unnecessary, and keys of every kind."""

from __future__ import annotations

from pyiceberg.table import StaticTable

from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.mirror import Mirror, Row, RunningPump, Steps, assert_same, await_true, normalised
from tests.support.key_index_checks import check_indexes

KEYS = {
    "pair": ("a int, b text", "a, b", "g / 10, 'b' || g % 10"),
    "words": ("k text", "k", "'a common beginning ' || g || ' and a common end'"),
    "ids": ("k uuid", "k", "md5(g::text)::uuid"),
    "moments": ("k timestamptz", "k", "'2024-01-01'::timestamptz + g * interval '1.000001 hour'"),
    "plain_moments": ("k timestamp", "k", "'1924-01-01'::timestamp + g * interval '1.000001 hour'"),
    "days": ("k date", "k", "'1960-01-01'::date + g"),
    "amounts": ("k numeric(30, 4)", "k", "g * 12345678901234567890.1234"),
    "bytes": ("k bytea, f boolean", "k, f", "decode(md5(g::text), 'hex'), g % 2 = 0"),
}
"""Columns, key and an expression for the key of row g, by table."""


def pending(mirror: Mirror, table: str) -> int:
    """Rows in the table's live equality-delete files."""
    return LakeTable.load(mirror.location(table), StorageOptions()).equality_deletes


def await_converted(mirror: Mirror, *tables: str) -> None:
    mirror.await_frontier()
    await_true(lambda: not any(pending(mirror, table) for table in tables), 60, "no equality delete is pending")


def scanned(mirror: Mirror, table: str) -> list[Row]:
    """Every row, read by pyiceberg, which refuses tables with equality deletes."""
    found = StaticTable.from_metadata(mirror.location(table)).scan().to_arrow()
    return normalised(list(zip(*(column.to_pylist() for column in found.columns), strict=True)))


def await_index(mirror: Mirror, steps: Steps, table: str, statement: str, former: int | None = None) -> None:
    """Runs the statement, which deletes rows, until an index of the table is ready that was not before, so that deletes
    are written by position. `former`: how often an index became ready before, if that was counted earlier."""
    ready = steps.details(Step.INDEX_READY, "table").count(table) if former is None else former
    for _ in range(50):
        mirror.database.execute(statement)
        mirror.await_frontier()
        if steps.details(Step.INDEX_READY, "table").count(table) > ready:
            break
    await_true(lambda: steps.details(Step.INDEX_READY, "table").count(table) > ready, 60, f"an index of {table}")
    await_converted(mirror, table)


def assert_read(mirror: Mirror, running: RunningPump, *tables: str) -> None:
    """Compares the rows with DuckDB's and pyiceberg's, and the indexes with the live rows."""
    for table in tables:
        heap = mirror.heap(table)
        assert_same(heap, mirror.lake(table), f"{table} by DuckDB")
        assert_same(heap, scanned(mirror, table), f"{table} by pyiceberg")
    assert check_indexes(running.pump, mirror.runner, mirror.database) > 0
