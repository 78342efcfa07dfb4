"""Followers by REST, against a catalog that is Iceberg's own, read by DuckDB."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.exceptions import NoSuchTableError

from mirror_pump.errors import FollowerError
from mirror_pump.model import format_lsn
from mirror_pump.ops.follow.following import follow
from mirror_pump.ops.follow.followers_thread import FollowersThread
from mirror_pump.source.catalog.followers import Follower, one_follower, tables_of
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, assert_same, await_true, normalised
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.iceberg_rest import IcebergRest

NAME = "company"


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    """Of tables `a` and `b`, which change together."""
    for table in ("a", "b"):
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v text)", f"INSERT INTO {table} VALUES (1, 'x')")
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("a", "b")
    mirror.catch_up()
    return mirror


def change(mirror: Mirror, *statements: str) -> None:
    mirror.database.execute("; ".join(("BEGIN", *statements, "COMMIT")))
    mirror.catch_up()


def follower(mirror: Mirror) -> Follower:
    with mirror.database.session() as connection:
        return one_follower(connection, mirror.settings.slot, NAME)


def assert_shown(mirror: Mirror, rest: IcebergRest, *tables: str, namespace: str = "public") -> None:
    """The follower shows these tables with the rows of the heap."""
    duckdb = rest.duckdb()
    for table in tables:
        rows = duckdb.execute(f'SELECT * FROM other."{namespace}".{table}').fetchall()
        assert_same(mirror.heap(table), normalised(rows), table)


def test_tables_follow_together_until_the_follower_is_removed(
    mirror: Mirror, rest: IcebergRest, run: RunCommand
) -> None:
    added = run("follow", "add", NAME, "--rest", rest.uri)
    assert added.exit_code == 0, added.output
    assert "all tables move there at once" in added.output
    follow(mirror.settings, NAME)
    assert_shown(mirror, rest, "a", "b")

    change(mirror, "INSERT INTO a VALUES (2, 'y')", "UPDATE b SET v = 'z'", "ALTER TABLE a ADD w int DEFAULT 7")
    assert [table["result"] for table in json.loads(run("follow", "check", NAME, "--json").stdout)] == ["behind"] * 2
    follow(mirror.settings, NAME)
    assert_shown(mirror, rest, "a", "b")
    catalog = rest.pyiceberg()
    frontier = format_lsn(follower(mirror).published)
    assert catalog.load_namespace_properties("public")["mirror-pump.frontier"] == frontier
    assert {catalog.load_table(f"public.{name}").properties["mirror-pump.frontier"] for name in "ab"} == {frontier}
    (listed,) = json.loads(run("follow", "list", "--json").stdout)
    assert (listed["frontier"], listed["behind_seconds"], listed["tables"]) == (frontier, 0.0, 2)
    checked = run("follow", "check", NAME)
    assert checked.exit_code == 0, checked.output

    removed = run("follow", "remove", NAME, "--yes")
    assert removed.exit_code == 0, removed.output
    assert catalog.list_namespaces() == []
    left = [
        str(path) for path in Path(mirror.settings.require_warehouse().removeprefix("file://")).rglob("followers/*/*")
    ]
    assert left == []
    assert mirror.database.rows("SELECT * FROM modak.read_pins") == []
