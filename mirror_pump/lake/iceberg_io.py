"""How Iceberg's Java code reaches a location: the class of its FileIO and that class's properties, and a table's
metadata file as a Spark DataFrame."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mirror_pump.storage_kinds import kind_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def file_io(location: str) -> str:
    """The class of Iceberg's that opens files at this location."""
    kind = kind_of(location)
    return "org.apache.iceberg.hadoop.HadoopFileIO" if kind is None else kind.java_io


def file_io_properties(location: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Properties of that class, from those of pyiceberg's FileIO."""
    kind = kind_of(location)
    return {} if kind is None else kind.java_properties(location, properties)


def table_frame(
    spark: SparkSession, metadata_location: str, properties: Mapping[str, str], snapshot_id: int | None = None
) -> DataFrame:
    """A snapshot of a metadata file, by default its current one, as a DataFrame.

    `properties` are those of pyiceberg's FileIO. For a remote location they go to Iceberg alone, not into any setting.
    """
    from pyspark.sql import DataFrame as Frame

    jvm = spark._jvm
    assert jvm is not None
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    options = jvm.java.util.HashMap()
    for key, value in file_io_properties(metadata_location, properties).items():
        options.put(key, value)
    io = jvm.org.apache.iceberg.CatalogUtil.loadFileIO(file_io(metadata_location), options, conf)
    operations = jvm.org.apache.iceberg.StaticTableOperations(metadata_location, io)
    table = jvm.org.apache.iceberg.BaseTable(operations, metadata_location)
    source = jvm.org.apache.iceberg.spark.source.SparkTable
    if snapshot_id is None:
        readable = source(table)
    else:
        readable = source.create(table, jvm.org.apache.iceberg.spark.TimeTravel.version(str(snapshot_id)))
    none = jvm.scala.Option.empty()
    relation = jvm.org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation.create(readable, none, none)
    return Frame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, relation), spark)
