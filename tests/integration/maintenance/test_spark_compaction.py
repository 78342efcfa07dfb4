"""Spark's rewrite_data_files during our commits: what lands between its plan and its commit is not lost."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import psycopg
import pytest

from mirror_pump.database.catalog_cursor import CatalogCursor
from mirror_pump.lake.commit.catalog import load_pointer, swap_pointer
from mirror_pump.lake.commit.row_delta import LakeTable, RowDelta
from mirror_pump.source.catalog.catalog_schema import migrate
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import await_true
from tests.support.lake_tables import STORAGE, Rows, SmallTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BLOCKED = (
    "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE%'"
    " AND datname = current_database()"
)
_REWRITE = "CALL lake.system.rewrite_data_files(table => 'public.t', options => map('rewrite-all', 'true'))"


@pytest.fixture
def table(database: Database, warehouse: str) -> SmallTable:
    with database.connect() as connection:
        migrate(connection)
    table = SmallTable(f"{warehouse}/public/t", database.dsn)
    for first in range(0, 40, 10):
        table.commit(RowDelta((table.segment({key: f"v{key}" for key in range(first, first + 10)}),)))
    table.commit(RowDelta((table.segment({}, [0]),)))
    return table


def _rewrite_meanwhile(lake: SparkSession, database: Database, table: SmallTable, deltas: Sequence[RowDelta]) -> None:
    """Compacts the whole table. The deltas land after Spark has written its files and before it commits them."""
    errors: list[BaseException] = []

    def rewrite() -> None:
        try:
            lake.sql(_REWRITE).collect()
        except BaseException as error:  # noqa: BLE001 - raised by the test, whatever it is
            errors.append(error)

    thread = threading.Thread(target=rewrite)
    with psycopg.connect(database.dsn, cursor_factory=CatalogCursor) as connection:
        connection.execute("SELECT FROM modak.iceberg_tables FOR UPDATE")
        thread.start()
        await_true(lambda: errors or database.rows(_BLOCKED), 60, "Spark commits")
        current = LakeTable.load(load_pointer(connection, "public", "t") or "", STORAGE)
        for delta in deltas:
            table.now_ms += 1000
            staged = current.stage(delta, table.now_ms)
            assert swap_pointer(connection, "public", "t", current.metadata_location, staged.new_location)
            current = staged.table
    thread.join(60)
    assert not thread.is_alive()
    if errors:
        raise errors[0]
    table.reload()


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param([({}, [11]), ({}, [12])], marks=pytest.mark.further),
        pytest.param([({}, [11]), ({12: "new"}, [12])], marks=pytest.mark.further),
        pytest.param([({100: "new"}, [11]), ({}, [12])], marks=pytest.mark.further),
        [({11: "new"}, [11]), ({11: "newer"}, [11]), ({}, [11])],
        [({}, [11, 12, 13]), ({13: "back"}, []), ({}, [14]), ({50: "new"}, [])],
    ],
)
def test_no_delete_that_landed_meanwhile_is_lost(
    table: SmallTable, lake: SparkSession, database: Database, changes: list[tuple[Rows, list[int]]]
) -> None:
    expected: Rows = {key: f"v{key}" for key in range(1, 40)}
    for rows, keys in changes:
        expected = {key: value for key, value in expected.items() if key not in keys} | rows
    _rewrite_meanwhile(lake, database, table, [RowDelta((table.segment(rows, keys),)) for rows, keys in changes])
    assert table.spark(lake) == expected
    assert table.duckdb() == expected


def test_all_segments_of_a_commit_count(table: SmallTable, lake: SparkSession, database: Database) -> None:
    segments = (table.segment({}, [11]), table.segment({12: "new"}, [12]), table.segment({}, [13]))
    _rewrite_meanwhile(lake, database, table, [RowDelta(segments)])
    expected: Rows = {key: f"v{key}" for key in range(1, 40) if key not in (11, 13)}
    expected[12] = "new"
    assert table.spark(lake) == expected
    assert table.duckdb() == expected


def test_a_commit_that_only_deletes_brings_an_empty_data_file(table: SmallTable, lake: SparkSession) -> None:
    """Readers ignore it."""
    assert sorted(entry.data_file.record_count for entry in table.entries()) == [0, 1, 10, 10, 10, 10]
    expected: Rows = {key: f"v{key}" for key in range(1, 40)}
    assert table.spark(lake) == expected
    assert table.duckdb() == expected
