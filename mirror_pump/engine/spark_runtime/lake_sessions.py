"""Sessions of one Spark in which the catalog `lake`, and that of its forks, reach their files in different ways.

Iceberg's JDBC catalog finds its tables by its own name, so each way needs a session of its own. Secrets are a session's
settings only until its catalog has been made of them. Settings that Spark starts with are in its web interface, and
those of a session go to every executor with each job, and into the event log, where Spark hides only settings that it
was started with. Executors get what they need to open files with the table that a job reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mirror_pump.engine.spark_runtime.session import CATALOG, FORKS, jdbc_catalog, storage_conf
from mirror_pump.settings.credentials import is_secret
from mirror_pump.storage_kinds import KINDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class LakeSessions:
    """Makes a session for each warehouse, and another one when its credentials have changed."""

    def __init__(self, spark: SparkSession, dsn: str) -> None:
        self._spark = spark
        self._dsn = dsn
        self._sessions: dict[str, tuple[dict[str, str], SparkSession]] = {}

    def session(self, warehouse: str, properties: Mapping[str, str]) -> SparkSession:
        """The session for tables in a warehouse. `properties` are those of pyiceberg's FileIO. Raises Spark's errors if
        the database does not answer."""
        conf = {
            key: value
            for name in (CATALOG, FORKS)
            for key, value in (
                jdbc_catalog(name, self._dsn, warehouse) | storage_conf(name, warehouse, properties)
            ).items()
        }
        # Jars come with Spark's start.
        conf.pop("spark.jars.packages", None)
        conf_and_session = self._sessions.get(warehouse)
        if conf_and_session is None or conf_and_session[0] != conf:
            conf_and_session = self._sessions[warehouse] = conf, self._open(conf)
        return conf_and_session[1]

    def _open(self, conf: Mapping[str, str]) -> SparkSession:
        session = self._spark.newSession()
        for key, value in conf.items():
            session.conf.set(key, value)
        # Makes the catalogs, of the settings of the thread's active session. They keep them: they are not read again.
        session._jvm.SparkSession.setActiveSession(session._jsparkSession)
        for name in (CATALOG, FORKS):
            session._jsparkSession.sessionState().catalogManager().catalog(name)
        for key in conf:
            if is_secret(key):
                session.conf.unset(key)
        return session


def catalog_properties(spark: SparkSession, catalog: str) -> dict[str, str]:
    """The storage properties that the session has for one of its catalogs. Contains secrets."""
    prefix = f"spark.sql.catalog.{catalog}."
    properties = {key.removeprefix(prefix): value for key, value in spark.conf.getAll.items() if key.startswith(prefix)}
    prefixes = tuple(prefix for kind in KINDS for prefix in kind.prefixes)
    return {key: value for key, value in properties.items() if key.startswith(prefixes)}
