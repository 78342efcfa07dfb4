"""A maintainer's sessions know the catalog's secrets, which Spark does not pass on, and outlive the server's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyspark.sql.functions as f
from pyspark import TaskContext

from mirror_pump.engine.spark_runtime.lake_sessions import LakeSessions
from mirror_pump.engine.spark_runtime.session import libpq_access
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _session(database: Database, warehouse: str, tasks: ThreadTaskRunner, spark: SparkSession) -> SparkSession:
    """A maintainer's session for a mirror of table t with two rows."""
    mirror = Mirror.create(database, warehouse, tasks)
    database.execute("CREATE TABLE public.t (id int PRIMARY KEY)", "INSERT INTO public.t VALUES (1), (2)")
    mirror.register("public.t")
    mirror.catch_up()
    return LakeSessions(spark, database.dsn).session(warehouse, {})


def test_the_catalogs_password_is_in_no_setting_and_no_job(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, spark: SparkSession
) -> None:
    """What a job has of a session's settings goes to the executors and, as it is, into the event log."""
    secret = libpq_access(database.dsn).password
    assert secret
    session = _session(database, warehouse, tasks, spark)
    assert secret not in str(session.conf.getAll)

    def value(name: str) -> Any:
        context = TaskContext.get()
        return None if context is None else context.getLocalProperty(name)

    setting = f.udf(value, "string", useArrow=False)
    names = ("spark.sql.catalog.lake.jdbc.user", "spark.sql.catalog.lake.jdbc.password")
    ((user, password),) = session.range(1).select([setting(f.lit(name)) for name in names]).collect()
    assert (user, password) == ("postgres", None)
    # The catalog works all the same, also in the sessions that procedures derive from this one.
    _rewrite_manifests(session)
    assert session.table("lake.public.t").count() == 2


def test_a_session_that_the_server_has_ended_between_two_procedures_is_made_anew(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, spark: SparkSession
) -> None:
    """As a restart of the server ends it: Spark keeps its connections to the catalog for the next procedure."""
    session = _session(database, warehouse, tasks, spark)
    _rewrite_manifests(session)
    ended = database.rows(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'mirror-pump'"
    )
    assert ended, "Spark had no connection"
    assert set(ended) == {(True,)}
    _rewrite_manifests(session)


def _rewrite_manifests(session: SparkSession) -> None:
    session.sql("CALL lake.system.rewrite_manifests(table => 'public.t', use_caching => false)").collect()
