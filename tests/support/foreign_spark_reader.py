"""A reader in Spark as another project would write it, for tables of every mode: the published algorithm of the seam
protocol, and nothing else.

It captures the seam and pins it in one REPEATABLE READ transaction, which ends before anything is read. The heap and
the delta are JDBC relations, the lake a table of the catalog at the pinned snapshot. Only the heap is filtered by the
cut-line. Spark reads the delta twice, whenever it gets there: for the keys that replace rows of the lake, and for the
rows that replace them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg
from pyspark.sql import functions as f

from mirror_pump.engine.spark_runtime.session import libpq_access
from mirror_pump.testing.database import Database
from tests.support.promise_table import COLUMNS
from tests.support.seam_scene import PIN, RELEASE, repeatable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@contextmanager
def pinned_frame(session: SparkSession, database: Database, table: str) -> Iterator[DataFrame]:
    """public.`table` with key (at, id), lazily. `session` has the catalog `lake`. The pin is released after the
    block."""
    with psycopg.connect(database.dsn) as connection:
        repeatable(connection)
        row = connection.execute(
            "SELECT t.table_id, t.tier_key_col, t.lake_table_ref, (c.lake_props ->> 'snapshot_id')::bigint,"
            " t.mode = 'mirrored' AND t.heap_retention_lag IS NULL"
            " FROM modak.tables t JOIN modak.cutline c USING (table_id) WHERE t.table_name = %s",
            (table,),
        ).fetchone()
        assert row is not None
        table_id, tier_key, reference, snapshot, complete = row
        pinned = connection.execute(PIN, {"table_oid": table_id}).fetchone()
        assert pinned is not None
    pin, cut, _ = pinned

    def jdbc(query: str) -> DataFrame:
        access = libpq_access(database.dsn)
        return session.read.jdbc(
            access.jdbc_url("public"),
            f"({query}) q",
            properties={
                "driver": "org.postgresql.Driver",
                "user": access.user,
                "password": access.password or "",
            },
        )

    try:
        if complete:
            yield jdbc(f"SELECT {COLUMNS} FROM {table}")
            return
        hot = jdbc(f"SELECT {COLUMNS} FROM {table} WHERE {tier_key} >= {cut}")
        delta = jdbc(f"SELECT pk, op, payload::text AS payload FROM modak.delta WHERE table_id = {table_id}")
        cold = session.read.format("iceberg").option("versionAsOf", str(snapshot)).table(f"lake.{reference}")
        key = f.concat_ws("\x1f", cold["at"].cast("string"), cold["id"].cast("string"))
        survivors = cold.join(delta, key == delta["pk"], "left_anti")
        parsed = f.from_json(delta["payload"], cold.schema).alias("row")
        upserts = delta.where(delta["op"] == 0).select(parsed).select("row.*")
        yield hot.unionByName(survivors.unionByName(upserts)).select(*COLUMNS.split(", "))
    finally:
        with database.connect() as connection:
            assert connection.execute(RELEASE, {"pin": pin}).rowcount == 1, "the pin was gone before its reader"
