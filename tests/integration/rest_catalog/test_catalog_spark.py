"""Spark reads the mirror, and writes other tables, by Iceberg's own client of the protocol, which knows its paths and
documents."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from mirror_pump.lake.document.snapshot_summary import FileCounts, Total
from mirror_pump.lake.manifests.manifest_files import stored_of
from mirror_pump.rest_catalog.endpoints import ALL_ENDPOINTS
from mirror_pump.tables.catalogs.lake_catalog import RowCatalog, StoredCatalog
from mirror_pump.tables.table.table import Table
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.rest_catalog import NOT_SERVED, ServedMirror, served

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


_CREATED = (
    "CREATE NAMESPACE own.shop",
    """CREATE TABLE own.shop.orders (id bigint NOT NULL, name string, day date) USING iceberg
       PARTITIONED BY (bucket(2, id))
       TBLPROPERTIES ('write.merge.mode' = 'merge-on-read', 'write.delete.mode' = 'merge-on-read')""",
    "INSERT INTO own.shop.orders VALUES (1, 'a', DATE '2026-01-01'), (2, 'b', NULL), (3, NULL, DATE '2026-01-03')",
)
_CHANGED = (
    """MERGE INTO own.shop.orders t USING (SELECT * FROM VALUES (2, 'B'), (4, 'd') s (id, name)) s ON t.id = s.id
       WHEN MATCHED THEN UPDATE SET name = s.name WHEN NOT MATCHED THEN INSERT (id, name) VALUES (s.id, s.name)""",
    "DELETE FROM own.shop.orders WHERE id = 1",
    "ALTER TABLE own.shop.orders ADD COLUMN more int",
    "INSERT INTO own.shop.orders VALUES (6, 'f', NULL, 66)",
    "CREATE TABLE own.shop.few USING iceberg AS SELECT id, more FROM own.shop.orders WHERE id > 4",
)


@pytest.mark.further
@pytest.mark.parametrize(
    "kind", ["log", *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("path", "sqlite", "postgres"))]
)
def test_what_spark_writes_everybody_reads(
    spark: SparkSession, catalogs: Mapping[str, StoredCatalog], writable: ServedMirror, kind: str
) -> None:
    session = attached(spark, writable, kind, "own")
    for statement in _CREATED:
        session.sql(statement)
    table = Table.open(catalogs[kind], "shop.orders")
    columns = table.scan().to_arrow().schema
    table.append(pa.Table.from_pylist([{"id": 5, "name": "ours"}], columns))
    for statement in _CHANGED:
        session.sql(statement)
    expected = [
        (2, "B", None, None),
        (3, None, date(2026, 1, 3), None),
        (4, "d", None, None),
        (5, "ours", None, None),
        (6, "f", None, 66),
    ]
    assert session.sql("SELECT * FROM own.shop.orders ORDER BY id").collect() == expected
    rows = table.refresh().scan().to_arrow().sort_by("id").to_pylist()
    assert [tuple(row.values()) for row in rows] == expected
    few = Table.open(catalogs[kind], "shop.few").scan().to_arrow().sort_by("id").to_pylist()
    assert few == [{"id": 5, "more": None}, {"id": 6, "more": 66}]
    with writable.duckdb(kind) as duckdb:
        assert duckdb.execute("SELECT * FROM lake.shop.orders ORDER BY id").fetchall() == expected
    with pytest.raises(Exception, match=r"NamespaceNotEmpty|not empty"):
        session.sql("DROP NAMESPACE own.shop")
    for statement in ("DROP TABLE own.shop.orders PURGE", "DROP TABLE own.shop.few"):
        session.sql(statement)
    assert list(catalogs[kind].tables("shop")) == []


@pytest.mark.further
def test_spark_renames_registers_and_asks_for_locations(
    spark: SparkSession, catalogs: Mapping[str, StoredCatalog], writable: ServedMirror
) -> None:
    session = attached(spark, writable, "sqlite", "own")
    catalog = catalogs["sqlite"]
    assert isinstance(catalog, RowCatalog)
    session.sql(f"CREATE NAMESPACE own.named LOCATION '{catalog.warehouse}/area' WITH PROPERTIES ('team' = 'sales')")
    session.sql("ALTER NAMESPACE own.named SET PROPERTIES ('team' = 'bi')")
    described = {
        row.info_name: row.info_value for row in session.sql("DESCRIBE NAMESPACE EXTENDED own.named").collect()
    }
    assert "(team,bi)" in described["Properties"]
    session.sql("CREATE TABLE own.named.a USING iceberg AS SELECT 1 AS id")
    session.sql(f"CREATE TABLE own.named.b (id int) USING iceberg LOCATION '{catalog.warehouse}/asked'")
    with pytest.raises(Exception, match="is not in"):
        session.sql("CREATE TABLE own.named.c (id int) USING iceberg LOCATION 'file:///tmp/elsewhere'")
    session.sql("ALTER TABLE own.named.a RENAME TO named.d")
    session.sql("CREATE TABLE own.named.a USING iceberg AS SELECT 2 AS id")
    parents = {
        name: Table.open(catalog, f"named.{name}").location.removeprefix(catalog.warehouse).rpartition("-")[0]
        for name in "abd"
    }
    assert parents == {"a": "/area/a", "b": "/asked", "d": "/area/a"}
    file = Table.open(catalog, "named.d").metadata_location
    session.sql("DROP TABLE own.named.d")
    session.sql(f"CALL own.system.register_table(table => 'named.e', metadata_file => '{file}')")
    session.sql("INSERT INTO own.named.e VALUES (3)")
    assert [row[0] for row in session.sql("SELECT id FROM own.named.e ORDER BY id").collect()] == [1, 3]
    session.sql("DROP TABLE own.named.e PURGE")
    assert session.sql("SELECT id FROM own.named.a").collect() == [(2,)]


def require_counted(table: Table) -> None:
    """The totals of the current snapshot, to which both engines have added, are those of its files."""
    counts = FileCounts()
    for manifest in table.manifests:
        for entry in stored_of(manifest, table.storage) if manifest.live_files else ():
            size = entry.size_bytes if entry.blob is None else entry.blob.size
            counts.add(entry.content, entry.records, size, is_vector=entry.blob is not None)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    totals = {
        Total.DATA_FILES: counts.data_files,
        Total.RECORDS: counts.records,
        Total.DELETE_FILES: counts.vectors,
        Total.POSITION_DELETES: counts.position_deletes,
        Total.EQUALITY_DELETES: 0,
        Total.FILES_SIZE: counts.size,
    }
    assert {total: snapshot.summary.total(total) for total in Total} == totals


@pytest.mark.further
def test_tables_of_format_version_3_are_changed_by_spark_and_the_library(
    spark: SparkSession, catalogs: Mapping[str, StoredCatalog], writable: ServedMirror
) -> None:
    """By turns: each goes on from the other's deletion vectors and row IDs, and counts them alike."""
    session = attached(spark, writable, "sqlite", "own")
    columns = ["id", "v", "_row_id", "_last_updated_sequence_number"]
    modes = ", ".join(f"'write.{verb}.mode' = 'merge-on-read'" for verb in ("delete", "update", "merge"))
    session.sql("CREATE NAMESPACE own.vectors")
    session.sql(
        f"CREATE TABLE own.vectors.t USING iceberg TBLPROPERTIES ('format-version' = '3', {modes})"
        " AS SELECT /*+ COALESCE(1) */ id, 0L AS v FROM range(20)"
    )
    session.sql("CREATE TABLE own.vectors.old (id bigint, v bigint) USING iceberg")
    session.sql("INSERT INTO own.vectors.old VALUES (1, 0), (2, 0)")
    session.sql("ALTER TABLE own.vectors.old SET TBLPROPERTIES ('format-version' = '3')")
    session.sql("INSERT INTO own.vectors.old VALUES (3, 0)")
    old = Table.open(catalogs["sqlite"], "vectors.old")
    assert (old.metadata.format_version, old.metadata.next_row_id) == (3, 3)
    table = Table.open(catalogs["sqlite"], "vectors.t")

    def require_equal(*ids: int) -> list[dict[str, Any]]:
        stored: list[dict[str, Any]] = table.refresh().scan(columns=columns).to_arrow().sort_by("id").to_pylist()
        frame = session.table("own.vectors.t").select(*columns)
        assert frame.toArrow().sort_by("id").to_pylist() == stored
        assert [row["id"] for row in stored] == list(ids)
        require_counted(table)
        return stored

    first = require_equal(*range(20))
    session.sql("DELETE FROM own.vectors.t WHERE id < 3")
    table.refresh().delete("id >= 3 and id < 6")
    require_equal(*range(6, 20))
    session.sql("DELETE FROM own.vectors.t WHERE id = 6")
    table.refresh()
    place = table.scan("id = 7", ["id", "v", "_file", "_pos", "_row_id"]).to_arrow().to_pylist()[0]
    changed = pa.table({"id": [7], "v": [70], "_row_id": [place["_row_id"]]})
    snapshot = table.replace_rows({place["_file"]: [place["_pos"]]}, changed)
    session.sql("UPDATE own.vectors.t SET v = 80 WHERE id = 8")
    last = require_equal(*range(7, 20))
    assert [row["_row_id"] for row in last] == [row["_row_id"] for row in first[7:]]
    assert [row["v"] for row in last[:3]] == [70, 80, 0]
    numbers = [row["_last_updated_sequence_number"] for row in last[:3]]
    assert numbers == [snapshot.sequence_number, snapshot.sequence_number + 1, 1]
    session.sql("DELETE FROM own.vectors.t WHERE v = 0")
    table.refresh().append(pa.table({"id": [100], "v": [1]}))
    assert len({row["_row_id"] for row in require_equal(7, 8, 100)}) == 3
    (file,) = table.scan("id = 8", ["_file"]).to_arrow()["_file"].to_pylist()
    table.commit_overwrite([file], [])
    require_equal(7, 100)


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
        "V1_UPDATE_NAMESPACE",
        "V1_RENAME_TABLE",
        "V1_REGISTER_TABLE",
    )
    assert {endpoint.name for endpoint in ALL_ENDPOINTS} == {str(getattr(known, name)) for name in names} | {
        "GET /v1/config"
    }
    for endpoint in ALL_ENDPOINTS:
        assert str(known.fromString(endpoint.name)) == endpoint.name
    constants = known.fromString("GET v1").getClass().getFields()
    all_of_them = {str(field.get(None)) for field in constants if field.getName().startswith("V1_")}
    # Clients do not look for tokens in the list of endpoints.
    assert all_of_them - {endpoint.name for endpoint in ALL_ENDPOINTS} | {"POST /v1/oauth/tokens"} == NOT_SERVED
