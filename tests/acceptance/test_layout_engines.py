"""Engines read a lake table whose partitions changed: now, and its former snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyiceberg.table import StaticTable

from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import duckdb_connection, lake_session
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.partitioned_orders import by

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.further
def test_engines_read_a_table_after_its_partition_column_is_gone(
    spark: SparkSession, database: Database, warehouse: str, tasks: ThreadTaskRunner
) -> None:
    """Iceberg keeps the former partition spec, by which former snapshots are read, without its column."""
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, code int, tenant text, n int)",
        "INSERT INTO orders SELECT g, g % 3, 't' || g % 5, 0 FROM generate_series(1, 30) g",
    )
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("orders", choices=by("code, bucket(4, tenant)"))
    mirror.catch_up()
    former = StaticTable.from_metadata(mirror.location("public.orders")).current_snapshot()
    assert former is not None
    database.execute("ALTER TABLE orders DROP COLUMN code")
    mirror.catch_up()
    mirror.assert_equal("public.orders")
    location = mirror.location("public.orders")
    table = StaticTable.from_metadata(location)
    assert len(table.specs()) > 1
    assert table.scan().to_arrow().num_rows == 30
    assert table.scan(snapshot_id=former.snapshot_id).to_arrow().num_rows == 30
    with duckdb_connection() as duckdb:
        scan = f"iceberg_scan('{location}', snapshot_from_id = {former.snapshot_id})"
        assert duckdb.execute(f"SELECT count(*), sum(code) FROM {scan}").fetchall() == [(30, 30)]
    session = lake_session(spark, database.dsn, mirror.settings.require_warehouse())
    assert session.sql("SELECT count(*), sum(n) FROM lake.public.orders").collect() == [(30, 0)]
    assert session.sql(
        f"SELECT count(*), sum(code) FROM lake.public.orders VERSION AS OF {former.snapshot_id} WHERE code > 0"
    ).collect() == [(20, 30)]
    assert session.sql("SELECT count(*) FROM lake.public.orders.partitions").collect()[0][0] >= 2
    assert session.sql("SELECT count(*) FROM lake.public.orders.files").collect()[0][0] >= 2
    session.sql("CALL lake.system.rewrite_data_files(table => 'public.orders', options => map('rewrite-all', 'true'))")
    mirror.catch_up()
    mirror.assert_equal("public.orders")
