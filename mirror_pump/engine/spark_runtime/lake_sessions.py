"""Sessions of one Spark in which the catalog `lake` reaches its files in different ways.

Iceberg's JDBC catalog finds its tables by its own name, so each way needs a session of its own. The settings are those
of the session alone: what is set when Spark starts is shown by its web interface and sent to every executor. Executors
get what they need to open files with the table that a job reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mirror_pump.engine.spark_runtime.session import CATALOG, file_io, file_io_properties, jdbc_catalog, storage_conf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class LakeSessions:
    """Makes a session for each warehouse, and another one when its credentials have changed."""

    def __init__(self, spark: SparkSession, dsn: str) -> None:
        self._spark = spark
        self._dsn = dsn
        self._sessions: dict[str, tuple[dict[str, str], SparkSession]] = {}

    def session(self, warehouse: str, properties: Mapping[str, str]) -> SparkSession:
        """The session for tables in a warehouse. `properties` are those of pyiceberg's FileIO."""
        conf = {**jdbc_catalog(CATALOG, self._dsn, warehouse), **storage_conf(CATALOG, warehouse, properties)}
        # Jars come with Spark's start.
        conf.pop("spark.jars.packages", None)
        known = self._sessions.get(warehouse)
        if known is None or known[0] != conf:
            session = self._spark.newSession()
            for key, value in conf.items():
                session.conf.set(key, value)
            known = self._sessions[warehouse] = conf, session
        return known[1]


def table_frame(spark: SparkSession, metadata_location: str, properties: Mapping[str, str]) -> DataFrame:
    """The current snapshot of a metadata file as a DataFrame, whatever catalogs the session has.

    `properties` are those of pyiceberg's FileIO. For a remote location they go to Iceberg alone, not into any setting.
    """
    from pyspark.sql import DataFrame as Frame

    jvm = spark._jvm
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    options = jvm.java.util.HashMap()
    for key, value in file_io_properties(properties).items():
        options.put(key, value)
    io = jvm.org.apache.iceberg.CatalogUtil.loadFileIO(file_io(metadata_location), options, conf)
    operations = jvm.org.apache.iceberg.StaticTableOperations(metadata_location, io)
    table = jvm.org.apache.iceberg.BaseTable(operations, metadata_location)
    readable = jvm.org.apache.iceberg.spark.source.SparkTable(table)
    none = jvm.scala.Option.empty()
    relation = jvm.org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation.create(readable, none, none)
    return Frame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, relation), spark)


def catalog_properties(spark: SparkSession, catalog: str) -> dict[str, str]:
    """The storage properties that the session has for one of its catalogs. Contains secrets."""
    prefix = f"spark.sql.catalog.{catalog}."
    found = {key.removeprefix(prefix): value for key, value in spark.conf.getAll.items() if key.startswith(prefix)}
    return {key: value for key, value in found.items() if key.startswith(("s3.", "client."))}
