"""What `connect --rest` prints runs unchanged, in a separate process, against a served mirror."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from duckdb import Error as DuckDBError
from pydantic import ValidationError

from mirror_pump.engine.spark_runtime.java import find_java_home
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.ops.reads.catalog_snippets import CatalogAddress, catalog_snippet
from mirror_pump.rest_catalog.lake_catalog_source import LakeCatalogSource
from mirror_pump.storage_kinds import S3
from mirror_pump.tables.catalogs.transaction_log import path_catalog
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from tests.support.cli import RunCommand
from tests.support.clickhouse import clickhouse_session
from tests.support.pasted import duckdb_home, execute
from tests.support.rest_catalog import ServedMirror, served, serving
from tests.support.s3_server import s3_server

pytestmark = pytest.mark.further

_TOKEN = "correct-horse-battery-staple"


@pytest.fixture(scope="module")
def database(shared_database: Database) -> Database:
    """The module's, for the program as well."""
    return shared_database


@pytest.fixture(scope="module")
def mirror(mirror_of: Callable[..., Mirror]) -> Mirror:
    return mirror_of(
        "t", "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'read from the lake')"
    )


@pytest.fixture(scope="module")
def catalog(mirror: Mirror) -> Iterator[ServedMirror]:
    with served(mirror.settings, _TOKEN) as running:
        yield running


def pasted(run: RunCommand, engine: str, catalog: ServedMirror, *options: str) -> str:
    result = run("connect", "--engine", engine, "--rest", catalog.uri, *options)
    assert result.exit_code == 0, result.stderr
    assert _TOKEN not in result.stdout
    return result.stdout


def test_duckdb_and_pyiceberg(run: RunCommand, catalog: ServedMirror, database: Database, tmp_path: Path) -> None:
    found = {}
    for engine in ("duckdb", "pyiceberg"):
        snippet = pasted(run, engine, catalog)
        environment = {"MIRROR_PUMP_CATALOG_TOKEN": _TOKEN, "HOME": duckdb_home(tmp_path / engine)}
        found[engine] = execute(snippet, database, tmp_path, **environment)
    assert all("read from the lake" in output for output in found.values()), found


@pytest.mark.soak
def test_spark(run: RunCommand, catalog: ServedMirror, database: Database, tmp_path: Path) -> None:
    environment = {"MIRROR_PUMP_CATALOG_TOKEN": _TOKEN, "JAVA_HOME": str(find_java_home())}
    assert "read from the lake" in execute(pasted(run, "spark", catalog), database, tmp_path, **environment)


def test_trino_settings_name_the_warehouse(run: RunCommand, catalog: ServedMirror) -> None:
    text = pasted(run, "trino", catalog, "--attach", "mirror")
    lines = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    assert lines["iceberg.catalog.type"] == "rest"
    assert lines["iceberg.rest-catalog.uri"] == catalog.uri
    assert lines["iceberg.rest-catalog.warehouse"] == "mirror"
    assert "each table is the newest" in text


def test_clickhouse_is_known_by_the_catalog_only(run: RunCommand, catalog: ServedMirror) -> None:
    refused = run("connect", "--engine", "clickhouse")
    assert refused.exit_code == 2
    assert "--rest" in refused.output
    assert "DataLakeCatalog" in pasted(run, "clickhouse", catalog)


@pytest.mark.soak
def test_clickhouse(run: RunCommand, mirror: Mirror, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tables read one after the other, while both change: it loads them with each query."""
    # It reads only local files below the working directory.
    monkeypatch.chdir(Path(mirror.settings.require_warehouse().removeprefix("file://")))
    with served(mirror.settings) as catalog:
        database.execute("CREATE TABLE u (id int PRIMARY KEY, v text)", "INSERT INTO u VALUES (1, 'too')")
        mirror.register("u")
        mirror.catch_up()
        *settings, query, _ = [part.strip() for part in pasted(run, "clickhouse", catalog).split(";")]
        with clickhouse_session(settings, monkeypatch) as session:
            assert "read from the lake" in str(session.query(query))
            database.execute("BEGIN; INSERT INTO t VALUES (2, 'new'); INSERT INTO u VALUES (2, 'new'); COMMIT")
            mirror.catch_up()
            for table in ("t", "u"):
                assert str(session.query(f"SELECT count(*) FROM lake.`public.{table}`")).strip() == "1"


@pytest.mark.soak
def test_clickhouse_reads_a_lake_in_an_object_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """With keys of its own: given an endpoint by the catalog, it looks for files in the wrong place."""
    with s3_server() as store:
        keys = {"s3.access-key-id": "key", "s3.secret-access-key": "secret"}
        storage = {"s3.endpoint": store.endpoint, "s3.region": "us-east-1"}
        lake = path_catalog("s3://lake/root", StorageOptions(storage | keys), transactions=False)
        with serving(LakeCatalogSource("lake", lake, read_write=True), vends=True) as served_lake:
            writer = served_lake.pyiceberg("lake")
            writer.create_namespace("sales")
            writer.create_table("sales.orders", pa.schema({"id": pa.int64()})).append(pa.table({"id": [7]}))
            address = CatalogAddress(served_lake.uri, "lake", "sales", "orders", S3, storage)
            snippet = catalog_snippet("clickhouse", address).replace("'KEY'", "'key'").replace("'SECRET'", "'secret'")
            *settings, query, _ = [part.strip() for part in snippet.split(";")]
            with clickhouse_session(settings, monkeypatch) as session:
                assert str(session.query(query)).strip() == "7"


def test_names_that_do_not_reach_their_table(
    run: RunCommand, mirror: Mirror, catalog: ServedMirror, database: Database
) -> None:
    """DuckDB and pyiceberg find a table exactly if `connect` prints no remark for it. The module's last test, since the
    others read the first table by name."""
    names = [("main", "u"), ("a.b", "u"), ("dots", ".."), ("dots", "x.y"), ("dots", "a/b?#%2F")]
    for namespace, name in names:
        database.execute(
            f'CREATE SCHEMA IF NOT EXISTS "{namespace}"', f'CREATE TABLE "{namespace}"."{name}" (id int PRIMARY KEY)'
        )
        mirror.register(f'"{namespace}"."{name}"')
    mirror.catch_up()
    client = catalog.pyiceberg("mirror@latest")
    readers: dict[str, Callable[[str, str], object]]
    with catalog.duckdb("mirror@latest") as duckdb:
        readers = {
            "duckdb": lambda namespace, name: duckdb.execute(f'SELECT id FROM lake."{namespace}"."{name}"').fetchall(),
            "pyiceberg": lambda namespace, name: client.load_table((namespace, name)).scan().to_arrow(),
        }
        for engine, read in readers.items():
            for namespace, name in names:
                snippet = pasted(run, engine, catalog, "--table", f'"{namespace}"."{name}"')
                if "by REST" in snippet:
                    with pytest.raises((DuckDBError, ValidationError)):
                        read(namespace, name)
                else:
                    read(namespace, name)
