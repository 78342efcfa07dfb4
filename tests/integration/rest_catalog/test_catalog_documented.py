"""docs/rest-catalog.md, block by block. Its commands are run by the tests of the program."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mirror_pump.engine.spark_runtime.java import find_java_home
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from tests.support.cli import RunCommand
from tests.support.clickhouse import clickhouse_session
from tests.support.pasted import duckdb_home, execute
from tests.support.rest_catalog import DOCUMENT, ServedMirror, documented_blocks, served

_ADDRESS = "http://127.0.0.1:8181/iceberg"
_NOT_THERE = (
    "does not go back that far|has not reached|there is no moment closing|no table of this mirror has a change feed"
)


@pytest.fixture(scope="module")
def database(shared_database: Database) -> Database:
    """The module's, for the program as well."""
    return shared_database


@pytest.fixture(scope="module")
def mirror(mirror_of: Callable[..., Mirror]) -> Mirror:
    return mirror_of(
        "orders", "CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders SELECT generate_series(1, 1234)"
    )


@pytest.fixture(scope="module")
def catalog(mirror: Mirror) -> Iterator[ServedMirror]:
    with served(mirror.settings) as running:
        yield running


def block(engine: str, language: str, catalog: ServedMirror) -> str:
    """The block of an engine, for this server."""
    (found,) = documented_blocks(language, f"### {engine}\n")
    assert _ADDRESS in found
    return found.replace(_ADDRESS, catalog.uri)


def test_duckdb(catalog: ServedMirror, database: Database, tmp_path: Path) -> None:
    script = f"import duckdb\nprint(duckdb.connect().execute({block('DuckDB', 'sql', catalog)!r}).fetchall())\n"
    assert "1234" in execute(script, database, tmp_path, HOME=duckdb_home(tmp_path))


def test_pyiceberg(catalog: ServedMirror, database: Database, tmp_path: Path) -> None:
    lines = block("pyiceberg", "python", catalog).strip().splitlines()
    lines[-1] = f"print({lines[-1]}.num_rows)"
    assert "1234" in execute("\n".join(lines), database, tmp_path)


def test_trino_settings_are_those_that_are_printed(run: RunCommand, catalog: ServedMirror) -> None:
    printed = run("connect", "--engine", "trino", "--rest", catalog.uri, "--attach", "mirror").stdout.splitlines()
    assert set(block("Trino", "properties", catalog).split()) <= set(printed)


def test_the_columns_of_the_warehouses_table_can_be_attached(catalog: ServedMirror) -> None:
    """Each name of the table is one that the server knows; a moment may be one that the mirror does not have."""
    (table,) = re.findall(r"\| warehouse \| each query sees \|\n\|---\|---\|\n((?:\|.*\n)+)", DOCUMENT.read_text())
    names = re.findall(r"`(mirror[^`]*)`", "".join(line.split("|")[1] for line in table.splitlines()))
    assert len(names) >= 7
    for name in names:
        answer = catalog.ask(f"/v1/config?warehouse={name}")
        assert answer.status == 200 or re.search(_NOT_THERE, answer.error[2]), name


@pytest.mark.soak
def test_spark(catalog: ServedMirror, database: Database, tmp_path: Path) -> None:
    script = (
        block("Spark", "python", catalog) + "print(spark.sql('SELECT count(*) FROM lake.public.orders').collect())\n"
    )
    assert "1234" in execute(script, database, tmp_path, JAVA_HOME=str(find_java_home()))


@pytest.mark.soak
def test_clickhouse(catalog: ServedMirror, monkeypatch: pytest.MonkeyPatch, mirror: Mirror) -> None:
    # It reads only local files below the working directory.
    monkeypatch.chdir(Path(mirror.settings.require_warehouse().removeprefix("file://")))
    *settings, query = [part for part in block("ClickHouse", "sql", catalog).split(";") if part.strip()]
    with clickhouse_session(settings, monkeypatch) as session:
        assert str(session.query(query)).strip() == "1234"
