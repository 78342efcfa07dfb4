"""What `connect --rest` prints runs unchanged, in a separate process, against a served mirror."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engines import CHDB
from mirror_pump.engine.spark_runtime.java import find_java_home
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.pasted import duckdb_home, execute
from tests.support.rest_catalog import ServedMirror, served

_TOKEN = "correct-horse-battery-staple"


@pytest.fixture(scope="module")
def database(shared_database: Database) -> Database:
    """The module's, for the program as well."""
    return shared_database


@pytest.fixture(scope="module")
def mirror(shared_database: Database, shared_warehouse: str, shared_tasks: ThreadTaskRunner) -> Mirror:
    database = shared_database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'read from the lake')")
    mirror = Mirror.create(database, shared_warehouse, shared_tasks)
    mirror.register("t")
    mirror.catch_up()
    return mirror


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
    monkeypatch.syspath_prepend(str(CHDB))
    with served(mirror.settings) as catalog:
        database.execute("CREATE TABLE u (id int PRIMARY KEY, v text)", "INSERT INTO u VALUES (1, 'too')")
        mirror.register("u")
        mirror.catch_up()
        session: Any = importlib.import_module("chdb.session").Session()
        *settings, query, _ = [part.strip() for part in pasted(run, "clickhouse", catalog).split(";")]
        for statement in settings:
            session.query(statement)
        assert "read from the lake" in str(session.query(query))
        database.execute("BEGIN; INSERT INTO t VALUES (2, 'new'); INSERT INTO u VALUES (2, 'new'); COMMIT")
        mirror.catch_up()
        for table in ("t", "u"):
            assert str(session.query(f"SELECT count(*) FROM lake.`public.{table}`")).strip() == "1"
        session.query("DROP DATABASE lake")
        session.close()
