"""Spark reads the mirror by Iceberg's own client of the protocol, which knows its paths and documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mirror_pump.rest_catalog.endpoints import ENDPOINTS, TRANSACTION_ENDPOINT, WRITE_ENDPOINTS
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.rest_catalog import ServedMirror, served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def attached(spark: SparkSession, catalog: ServedMirror, warehouse: str, name: str) -> SparkSession:
    """A session of the run's Spark in which the warehouse is the catalog `name`."""
    session = spark.newSession()
    prefix = f"spark.sql.catalog.{name}"
    session.conf.set(prefix, "org.apache.iceberg.spark.SparkCatalog")
    for key, value in (("type", "rest"), ("uri", catalog.uri), ("warehouse", warehouse), ("cache-enabled", "false")):
        session.conf.set(f"{prefix}.{key}", value)
    return session


@pytest.mark.parametrize("thorough", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_spark_reads_tables_of_one_frontier(
    spark: SparkSession, database: Database, warehouse: str, tasks: ThreadTaskRunner, *, thorough: bool
) -> None:
    for name in ("a", "b"):
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v int)", f"INSERT INTO {name} VALUES (1, 0)")
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("a", "b")
    mirror.catch_up()
    with served(mirror.settings) as catalog, mirror.pumping():
        moment = attached(spark, catalog, "mirror@latest", "moment")
        newest = attached(spark, catalog, "mirror", "newest")
        assert [row.tableName for row in moment.sql("SHOW TABLES IN moment.public").collect()] == ["a", "b"]
        assert moment.sql("SELECT v FROM moment.public.a").collect() == [(0,)]
        database.execute("BEGIN; UPDATE a SET v = 1; UPDATE b SET v = 1; COMMIT")
        mirror.await_frontier()
        assert moment.sql("SELECT a.v, b.v FROM moment.public.a, moment.public.b").collect() == [(0, 0)]
        assert newest.sql("SELECT a.v, b.v FROM newest.public.a, newest.public.b").collect() == [(1, 1)]
        refused = ["CREATE TABLE newest.public.c (id int)", "DROP TABLE newest.public.a"]
        if thorough:
            assert newest.sql("SELECT count(*) FROM newest.public.b.snapshots").collect()[0][0] > 1
            refused.append("INSERT INTO newest.public.a VALUES (2, 2)")
        for statement in refused:
            with pytest.raises(Exception, match=r"read-only|does not support"):
                newest.sql(statement)
        with pytest.raises(Exception, match="TABLE_OR_VIEW_NOT_FOUND"):
            newest.sql("SELECT * FROM newest.public.nothing")
    assert mirror.heap("a") == [(1, 1)]


def test_the_endpoints_are_those_that_iceberg_knows(spark: SparkSession) -> None:
    """By the constants of Iceberg's library: method and path, as clients compare them."""
    assert spark._jvm is not None
    known = spark._jvm.org.apache.iceberg.rest.Endpoint
    names = (
        "V1_LIST_NAMESPACES",
        "V1_LOAD_NAMESPACE",
        "V1_NAMESPACE_EXISTS",
        "V1_LIST_TABLES",
        "V1_LOAD_TABLE",
        "V1_TABLE_EXISTS",
        "V1_REPORT_METRICS",
        "V1_LIST_VIEWS",
        "V1_LOAD_VIEW",
        "V1_VIEW_EXISTS",
        "V1_CREATE_NAMESPACE",
        "V1_DELETE_NAMESPACE",
        "V1_CREATE_TABLE",
        "V1_UPDATE_TABLE",
        "V1_DELETE_TABLE",
        "V1_COMMIT_TRANSACTION",
    )
    endpoints = (*ENDPOINTS, *WRITE_ENDPOINTS, TRANSACTION_ENDPOINT)
    assert {endpoint.name for endpoint in endpoints} == {str(getattr(known, name)) for name in names} | {
        "GET /v1/config"
    }
    for endpoint in endpoints:
        assert str(known.fromString(endpoint.name)) == endpoint.name
