"""A maintainer's sessions know the catalog's secrets, and Spark does not pass them on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyspark.sql.functions as f
from pyspark import TaskContext

from mirror_pump.engine.iceberg_procedures.procedures import Procedures
from mirror_pump.engine.spark_runtime.lake_sessions import LakeSessions
from mirror_pump.engine.spark_runtime.session import libpq_access
from mirror_pump.model import TableName
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_catalogs_password_is_in_no_setting_and_no_job(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, spark: SparkSession
) -> None:
    """What a job has of a session's settings goes to the executors and, as it is, into the event log."""
    mirror = Mirror.create(database, warehouse, tasks)
    database.execute("CREATE TABLE public.t (id int PRIMARY KEY)", "INSERT INTO public.t VALUES (1), (2)")
    mirror.register("public.t")
    mirror.catch_up()
    secret = libpq_access(database.dsn).password
    assert secret
    session = LakeSessions(spark, database.dsn).session(warehouse, {})
    assert secret not in str(session.conf.getAll)

    def value(name: str) -> Any:
        context = TaskContext.get()
        return None if context is None else context.getLocalProperty(name)

    setting = f.udf(value, "string", useArrow=False)
    names = ("spark.sql.catalog.lake.jdbc.user", "spark.sql.catalog.lake.jdbc.password")
    ((user, password),) = session.range(1).select([setting(f.lit(name)) for name in names]).collect()
    assert (user, password) == ("postgres", None)
    # The catalog works all the same, also in the sessions that procedures derive from this one.
    Procedures(session).rewrite_manifests(TableName("public", "t"))
    assert session.table("lake.public.t").count() == 2
