"""The sessions in which maintenance runs Iceberg's procedures."""

from __future__ import annotations

from psycopg.conninfo import conninfo_to_dict
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

from mirror_pump.engine.spark_runtime.lake_sessions import LakeSessions
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner


def _properties(_: int) -> str:
    context = TaskContext.get()
    assert context is not None
    return str(context._localProperties)


def test_the_password_does_not_go_along_with_jobs(
    spark: SparkSession, database: Database, warehouse: str, tasks: ThreadTaskRunner
) -> None:
    """Spark writes what does into its event log as it is."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 10)")
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("public.t")
    mirror.catch_up()
    session = LakeSessions(spark, database.dsn).session(warehouse, {})
    rows = session.sql("SELECT id FROM lake.public.t").select(udf(_properties, useArrow=False)("id")).collect()
    assert len(rows) == 10
    password = str(conninfo_to_dict(database.dsn)["password"])
    for (properties,) in rows:
        # Other settings of the session do.
        assert "spark.sql.catalog.lake.jdbc.user" in properties
        assert password not in properties
