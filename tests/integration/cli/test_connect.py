"""The snippets that `connect` prints run unchanged, in a separate process, against a real table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from decoders.columns import ColumnType, Kind
from mirror_pump.engine.spark_runtime.java import find_java_home
from mirror_pump.lake.commit.archive_branch import ArchiveBranch
from mirror_pump.lake.commit.catalog import swap_pointer
from mirror_pump.lake.commit.replacement import EveryFile
from mirror_pump.lake.commit.row_delta import RowDelta
from mirror_pump.lake.contents.cutline import CutLine
from mirror_pump.lake.document.snapshot_summary import COPYING_PROPERTY, FRONTIER_PROPERTY
from mirror_pump.source.connect import connect
from mirror_pump.testing.database import Database
from tests.support.cli import RunCommand
from tests.support.lake_tables import STORAGE, SmallTable
from tests.support.pasted import duckdb_home, execute
from tests.support.readers import ReaderRole, role_of


@pytest.fixture
def mirror(run: RunCommand, slot: str, database: Database, warehouse: str) -> SmallTable:
    """A mirror with public.t, which holds one row."""
    result = run("init", "--warehouse", warehouse, "--slot", slot)
    assert result.exit_code == 0, result.stderr
    table = SmallTable(f"{warehouse}/public/t", database.dsn)
    table.commit(RowDelta((table.segment({1: "a part of the copy"}),), summary={COPYING_PROPERTY: "true"}))
    table.commit(RowDelta((table.segment({1: "read from the lake"}),), replaces=EveryFile(), summary=at("0/A")))
    return table


def at(frontier: str) -> dict[str, str]:
    """The summary entries of a snapshot of a live table."""
    return {FRONTIER_PROPERTY: frontier}


@pytest.fixture
def reader(database: Database, mirror: SmallTable, run: RunCommand) -> Iterator[ReaderRole]:
    """A role that may only read the mirror."""
    with role_of(database) as role:
        assert run("reader", role.name).exit_code == 0
        yield role


def pasted(run: RunCommand, engine: str, reader: ReaderRole | None = None, *, user: str | None = None) -> str:
    """The output of `connect`, for a role that is named or for the one that it chooses."""
    role = reader.name if reader is not None else user
    result = run("connect", "--engine", engine, *(("--user", role) if role else ()))
    assert result.exit_code == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("engine", ["spark", "duckdb", "pyiceberg", "trino"])
def test_no_snippet_shows_a_password_or_another_user(
    run: RunCommand, mirror: SmallTable, reader: ReaderRole, database: Database, engine: str
) -> None:
    owner = urlsplit(database.dsn).username
    assert owner is not None
    text = pasted(run, engine, reader)
    assert pasted(run, engine) == text, "a reader's role is the default"
    assert reader.name in text
    settings = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    assert not re.search(rf"\b{owner}\b", settings)
    own = pasted(run, engine, user=owner)
    assert f"{owner} may change the catalog" in own
    for shown in (own, text):
        assert database.server.password not in shown
        assert "PGPASSWORD" in shown


@pytest.mark.parametrize("engine", ["spark", "duckdb", "pyiceberg", "trino"])
def test_a_mirror_without_a_readers_role_says_how_to_make_one(
    run: RunCommand, mirror: SmallTable, database: Database, engine: str
) -> None:
    text = pasted(run, engine)
    assert "CREATE ROLE lake_reader LOGIN" in text
    assert "mirror-pump reader lake_reader" in text
    settings = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    assert "lake_reader" in settings
    assert not re.search(rf"\b{urlsplit(database.dsn).username}\b", settings)


def test_readers_read_as_themselves(
    run: RunCommand, reader: ReaderRole, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with role_of(database) as other:
        assert run("reader", other.name).exit_code == 0
        for role in (reader, other):
            monkeypatch.setenv("MIRROR_PUMP_DSN", role.dsn)
            assert f"connection-user={role.name}" in pasted(run, "trino")


@pytest.mark.further
def test_spark(run: RunCommand, reader: ReaderRole, tmp_path: Path) -> None:
    output = execute(pasted(run, "spark", reader), reader, tmp_path, JAVA_HOME=str(find_java_home()))
    assert "read from the lake" in output


@pytest.mark.further
def test_duckdb(run: RunCommand, reader: ReaderRole, tmp_path: Path) -> None:
    assert "read from the lake" in execute(pasted(run, "duckdb", reader), reader, tmp_path, HOME=duckdb_home(tmp_path))


def test_pyiceberg(run: RunCommand, mirror: SmallTable, reader: ReaderRole, database: Database, tmp_path: Path) -> None:
    # The current snapshot has an equality delete, which pyiceberg refuses. A younger one holds only a part of the rows.
    mirror.commit(RowDelta((mirror.segment({2: "of the heap"}),), summary=at("0/B")))
    below = CutLine("id", 1, ColumnType(Kind.LONG), 2)
    mirror.commit(RowDelta((mirror.segment({3: "not resolved yet"}, [3]),), summary=at("0/C")))
    cold = ArchiveBranch(STORAGE).stage(mirror.table, below, mirror.now_ms + 1000)
    with connect(database.dsn, autocommit=True) as connection:
        assert swap_pointer(connection, "public", "t", mirror.table.metadata_location, cold.new_location)
    output = execute(pasted(run, "pyiceberg", reader) + "\nprint(rows.to_pylist())\n", reader, tmp_path)
    assert output.startswith("frontier 0/B of 20")
    assert "read from the lake" in output
    assert "of the heap" in output
    assert "not resolved yet" not in output


@pytest.mark.further
def test_pyiceberg_users_learn_when_it_can_read_nothing(
    run: RunCommand, slot: str, database: Database, warehouse: str, tmp_path: Path
) -> None:
    owner = urlsplit(database.dsn).username
    assert run("init", "--warehouse", warehouse, "--slot", slot).exit_code == 0
    table = SmallTable(f"{warehouse}/public/t", database.dsn)
    table.commit(RowDelta((table.segment({1: "a"}, [1]),), summary={COPYING_PROPERTY: "true"}))
    with pytest.raises(AssertionError, match="the table is still being copied"):
        execute(pasted(run, "pyiceberg", user=owner), database, tmp_path)
    table.commit(RowDelta((table.segment({1: "a"}, [1]),), summary=at("0/A")))
    with pytest.raises(AssertionError, match="--index-memory"):
        execute(pasted(run, "pyiceberg", user=owner), database, tmp_path)


def test_engines_of_a_cloud_do_not_reach_a_local_disk(run: RunCommand, mirror: SmallTable) -> None:
    door = ("--rest", "https://lake.example.com/iceberg")
    for engine, *options in (("snowflake", *door), ("snowflake",), ("databricks",), ("athena",), ("bigquery",)):
        refused = run("connect", "--engine", engine, *options)
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert "does not reach the lake, which is in file://" in refused.stderr
    for engine, uri in (("snowflake", "http://lake.example.com/iceberg"), ("redshift", door[1])):
        refused = run("connect", "--engine", engine, "--rest", uri)
        assert (refused.exit_code, refused.stdout) == (2, "")


def test_trino_settings_name_the_catalog_that_spark_uses(
    run: RunCommand, mirror: SmallTable, database: Database
) -> None:
    text = pasted(run, "trino")
    lines = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    assert lines["iceberg.jdbc-catalog.catalog-name"] == "lake"
    assert lines["iceberg.jdbc-catalog.connection-url"].startswith(
        f"jdbc:postgresql://127.0.0.1:{database.server.port}/"
    )
    assert "currentSchema=pg_catalog%2Cmodak%2Cpg_temp" in lines["iceberg.jdbc-catalog.connection-url"]
    assert lines["iceberg.jdbc-catalog.connection-password"] == "${ENV:PGPASSWORD}"
    # A role that may not write the catalog would write files first.
    assert lines["iceberg.security"] == "read_only"
