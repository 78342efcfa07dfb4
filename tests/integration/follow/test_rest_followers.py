"""Followers by REST, against a catalog that is Iceberg's own, read by DuckDB and pyiceberg."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog

from mirror_pump.errors import ConnectionLost, FollowerAway, FollowerError
from mirror_pump.model import format_lsn
from mirror_pump.ops.follow.follower_catalog import FollowerCatalog
from mirror_pump.ops.follow.followers_thread import FollowersThread
from mirror_pump.ops.follow.following import follow
from mirror_pump.ops.status.status_reader import StatusReader
from mirror_pump.source.catalog.followers import Follower, one_follower
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, assert_same, await_true, normalised
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.iceberg_rest import IcebergRest
from tests.support.rest_door import RestDoor
from tests.support.resyncs import resynced

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "company"
_POSITION = re.compile(r"[0-9A-F]+/[0-9A-F]+")
Follow = Callable[..., None]


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    """Of tables `a` and `b`, which change together."""
    for table in ("a", "b"):
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v text)", f"INSERT INTO {table} VALUES (1, 'x')")
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("a", "b")
    mirror.catch_up()
    return mirror


@pytest.fixture
def following(mirror: Mirror, rest: IcebergRest, run: RunCommand) -> Mirror:
    """The mirror, with a follower that shows its tables."""
    added = run("follow", "add", NAME, "--rest", rest.uri)
    assert added.exit_code == 0, added.output
    follow(mirror.settings, NAME)
    return mirror


def change(mirror: Mirror, *statements: str) -> None:
    mirror.database.execute("; ".join(("BEGIN", *statements, "COMMIT")))
    mirror.catch_up()


def change_both(mirror: Mirror, value: int) -> None:
    change(mirror, *(f"INSERT INTO {table} VALUES ({value}, 'v')" for table in ("a", "b")))


def follower(mirror: Mirror) -> Follower:
    with mirror.database.session() as connection:
        return one_follower(connection, mirror.settings.slot, NAME)


def examine(mirror: Mirror) -> None:
    """A round that is due to look at all tables."""
    mirror.database.execute("UPDATE modak.followers SET examined_at = NULL")
    follow(mirror.settings, NAME)


def alerts(mirror: Mirror) -> str:
    with StatusReader(mirror.settings) as reader:
        return " ".join(f"{alert.message} {alert.remedy}" for alert in reader.read().alerts)


def shown_rows(catalog: RestCatalog, table: str) -> list[int]:
    return sorted(catalog.load_table(("public", table)).scan().to_arrow()["id"].to_pylist())


def assert_shown(mirror: Mirror, rest: IcebergRest, *tables: str, namespace: str = "public") -> None:
    """The follower shows these tables with the rows of the heap, and what it shows is pinned, and nothing else."""
    duckdb, catalog = rest.duckdb(), rest.pyiceberg()
    for table in tables:
        rows = duckdb.execute(f'SELECT * FROM other."{namespace}"."{table}"').fetchall()
        assert_same(mirror.heap(table), normalised(rows), table)
    shown = {catalog.load_table((namespace, table)).metadata.current_snapshot_id for table in tables}
    pinned = mirror.database.rows("SELECT pinned_lake_snapshot_id FROM modak.read_pins")
    assert {snapshot for (snapshot,) in pinned} == shown
    assert len(pinned) == len(tables)


def assert_pinned_for_a_day(mirror: Mirror) -> None:
    (expired,) = mirror.database.rows("SELECT count(*) FROM modak.read_pins WHERE expires_at < now() + interval '20 h'")
    assert expired == (0,)


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
    assert "follower company: rest" in run("status").output
    checked = run("follow", "check", NAME)
    assert checked.exit_code == 0, checked.output

    removed = run("follow", "remove", NAME, "--yes")
    assert removed.exit_code == 0, removed.output
    assert catalog.list_namespaces() == []
    lake = Path(mirror.settings.require_warehouse().removeprefix("file://"))
    assert list(lake.rglob("followers/*/*")) == []
    assert mirror.database.rows("SELECT * FROM modak.read_pins") == []
    assert mirror.database.rows("SELECT * FROM modak.follower_tables") == []


@pytest.mark.further
def test_spark_reads_by_a_follower(following: Mirror, rest: IcebergRest, spark: SparkSession) -> None:
    session = spark.newSession()
    catalog = "spark.sql.catalog.company"
    session.conf.set(catalog, "org.apache.iceberg.spark.SparkCatalog")
    for option, value in (("type", "rest"), ("uri", rest.uri), ("cache-enabled", "false")):
        session.conf.set(f"{catalog}.{option}", value)
    for number in (2, 3):
        for table in ("a", "b"):
            rows = [tuple(row) for row in session.sql(f"SELECT * FROM company.public.{table}").collect()]
            assert_same(following.heap(table), normalised(rows), table)
        change_both(following, number)
        follow(following.settings, NAME)


@pytest.mark.further
def test_one_that_is_away_catches_up_and_holds_nothing_up(
    following: Mirror, rest: IcebergRest, run: RunCommand
) -> None:
    rest.stop()
    try:
        change_both(following, 2)
        change(following, "ALTER TABLE b ADD w int", "DELETE FROM a WHERE id = 1")
        with pytest.raises(FollowerError, match="connecting"):
            follow(following.settings, NAME)
        change_both(following, 3)
        assert following.frontier() == follower(following).published
        assert "follower company is" in alerts(following)
        assert run("follow", "remove", NAME, "--yes").exit_code == 1, "nothing is forgotten that is still there"
    finally:
        rest.start()
    following.database.execute("UPDATE modak.followers SET removed_at = NULL")
    # What it shows has stayed.
    duckdb = rest.duckdb()
    assert duckdb.execute("SELECT id FROM other.public.a").fetchall() == [(1,)]
    follow(following.settings, NAME)
    assert_shown(following, rest, "a", "b")
    assert "follower" not in alerts(following)


def test_a_commit_of_another_program_stays_and_the_others_go_on(
    following: Mirror, rest: IcebergRest, run: RunCommand
) -> None:
    catalog = rest.pyiceberg()
    table = catalog.load_table("public.a")
    table.append(pa.table({"id": pa.array([77], pa.int32()), "v": ["theirs"]}, schema=table.schema().as_arrow()))
    change_both(following, 2)
    follow(following.settings, NAME)
    assert shown_rows(catalog, "a") == [1, 77]
    assert shown_rows(catalog, "b") == [1, 2]
    assert "1 tables do not follow in company" in alerts(following)
    checked = run("follow", "check", NAME)
    assert checked.exit_code == 1
    assert "another program has committed to public.a" in checked.output
    assert run("follow", "remove", NAME, "--yes").exit_code == 1, "nor does it drop the table"
    assert shown_rows(catalog, "a") == [1, 77]
    following.database.execute("UPDATE modak.followers SET removed_at = NULL")

    catalog.drop_table("public.a")
    examine(following)
    assert_shown(following, rest, "a", "b")
    # A branch of theirs is a commit too.
    catalog.load_table("public.b").manage_snapshots().create_tag(
        int(str(catalog.load_table("public.b").metadata.current_snapshot_id)), "theirs"
    ).commit()
    examine(following)
    assert "do not follow" in alerts(following)
    catalog.drop_table("public.b")


@pytest.mark.further
def test_a_table_of_another_program_is_left_alone(mirror: Mirror, rest: IcebergRest, run: RunCommand) -> None:
    catalog = rest.pyiceberg()
    catalog.create_namespace("public")
    catalog.create_table("public.a", pa.schema([("x", pa.int32())]))
    run("follow", "add", NAME, "--rest", rest.uri)
    follow(mirror.settings, NAME)
    assert shown_rows(catalog, "b") == [1]
    assert catalog.load_table("public.a").schema().column_names == ["x"]
    assert "foreign" in run("follow", "check", NAME).output
    removed = run("follow", "remove", NAME, "--yes")
    assert removed.exit_code == 0, removed.output
    assert catalog.list_tables("public") == [("public", "a")]


@pytest.mark.further
def test_registrations_that_end_and_begin(following: Mirror, rest: IcebergRest) -> None:
    """A table that is renamed, one that is unregistered, and another one of its name."""
    change(following, "ALTER TABLE a RENAME TO c")
    examine(following)
    catalog = rest.pyiceberg()
    names = sorted(name for _, name in catalog.list_tables("public"))
    lake_names = following.database.rows("SELECT lake_table FROM modak.mirror_tables ORDER BY 1")
    assert names == [name for (name,) in lake_names]
    following.unregister("public.b", drop_lake=True)
    following.database.execute("DROP TABLE b", "CREATE TABLE b (n int PRIMARY KEY)", "INSERT INTO b VALUES (5)")
    following.register("b")
    following.catch_up()
    examine(following)
    assert catalog.load_table("public.b").scan().to_arrow().to_pydict() == {"n": [5]}
    following.unregister("public.b")
    examine(following)
    assert [name for _, name in catalog.list_tables("public")] == [name for name in names if name != "b"]


def test_a_running_pump_brings_followers_up_to_date(following: Mirror, rest: IcebergRest) -> None:
    with FollowersThread(following.settings), following.pumping():
        following.database.execute("INSERT INTO a VALUES (9, 'n')")
        following.await_frontier()
        catalog = rest.pyiceberg()
        await_true(lambda: shown_rows(catalog, "a") == [1, 9], 60, "the follower shows the row")
        await_true(lambda: follower(following).behind_seconds == 0.0, 60, "the follower is up to date")


@pytest.mark.further
def test_answers_that_are_lost_and_commits_that_are_refused(mirror: Mirror, rest: IcebergRest, run: RunCommand) -> None:
    with RestDoor(rest.port).open() as door:
        run("follow", "add", NAME, "--rest", door.uri)
        door.loses = "/register"
        with pytest.raises(FollowerAway, match="registering"):
            follow(mirror.settings, NAME)
        follow(mirror.settings, NAME)
        assert_shown(mirror, rest, "a", "b")
        change_both(mirror, 2)
        door.loses = "transactions/commit"
        with pytest.raises(FollowerAway, match="committing to 2 tables"):
            follow(mirror.settings, NAME)
        follow(mirror.settings, NAME)
        assert_shown(mirror, rest, "a", "b")
        # A catalog that refuses the commit to several.
        change_both(mirror, 3)
        door.refuses = "transactions/commit"
        follow(mirror.settings, NAME)
        assert_shown(mirror, rest, "a", "b")
        # One that has none.
        change_both(mirror, 4)
        door.hides, door.requests = "transactions/commit", []
        follow(mirror.settings, NAME)
        assert_shown(mirror, rest, "a", "b")
        assert not any("transactions" in line for line in door.requests)
        assert follower(mirror).moves_together is False


@pytest.mark.further
def test_a_catalog_that_fails_for_a_moment(mirror: Mirror, rest: IcebergRest, run: RunCommand) -> None:
    """Tables stay together, and none of them rests afterwards."""
    with RestDoor(rest.port).open() as door:
        run("follow", "add", NAME, "--rest", door.uri)
        follow(mirror.settings, NAME)
        change_both(mirror, 2)
        door.status, door.refuses, door.requests = 503, "transactions/commit", []
        with pytest.raises(FollowerAway, match="committing to 2 tables: 503"):
            follow(mirror.settings, NAME)
        assert [line for line in door.requests if line.startswith("POST")] == ["POST /v1/transactions/commit"]
        door.refuses = "GET /v1/namespaces/public/tables/b"
        with pytest.raises(FollowerAway, match=r"loading public\.b"):
            follow(mirror.settings, NAME)
        catalog = rest.pyiceberg()
        assert (shown_rows(catalog, "a"), shown_rows(catalog, "b")) == ([1], [1])
        # After a minute the others go on without it. What it shows stays meanwhile.
        mirror.database.execute(
            "UPDATE modak.followers SET behind_since = now() - interval '2 minutes', examined_at = NULL",
            "UPDATE modak.read_pins SET expires_at = now() + interval '1 hour'",
        )
        with pytest.raises(FollowerAway, match=r"loading public\.b"):
            follow(mirror.settings, NAME)
        assert (shown_rows(catalog, "a"), shown_rows(catalog, "b")) == ([1, 2], [1])
        assert_pinned_for_a_day(mirror)
        assert mirror.database.rows("SELECT error FROM modak.follower_tables") == [(None,)] * 2
        door.refuses = ""
        follow(mirror.settings, NAME)
        assert_shown(mirror, rest, "a", "b")


def test_a_role_that_may_not_change_namespaces(mirror: Mirror, rest: IcebergRest, run: RunCommand) -> None:
    with RestDoor(rest.port).open() as door:
        run("follow", "add", NAME, "--rest", door.uri)
        door.status, door.refuses = 403, "POST /v1/namespaces/public/properties"
        follow(mirror.settings, NAME)
        assert_shown(mirror, rest, "a", "b")
        assert follower(mirror).frontier == follower(mirror).published
        assert follower(mirror).files_stay


def test_no_transaction_waits_for_a_catalog_that_is_added(
    mirror: Mirror, rest: IcebergRest, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[str] = []
    answers = FollowerCatalog.answers

    def observed(catalog: FollowerCatalog) -> None:
        query = "SELECT state FROM pg_stat_activity WHERE application_name = 'mirror-pump-follow'"
        states.extend(state for (state,) in mirror.database.rows(query))
        answers(catalog)

    monkeypatch.setattr(FollowerCatalog, "answers", observed)
    assert run("follow", "add", NAME, "--rest", rest.uri).exit_code == 0
    assert states == ["idle"]
    assert run("follow", "add", NAME, "--rest", rest.uri).exit_code == 2
    assert follower(mirror).name == NAME


@pytest.mark.parametrize("forget", [(), ("--forget",)], ids=["removed", "forgotten"])
def test_the_pins_of_another_role_end_with_the_follower(
    following: Mirror, run: RunCommand, forget: tuple[str, ...]
) -> None:
    """The admin removes it, and the pump has pinned."""
    following.database.execute("UPDATE modak.read_pins SET reader = replace(reader, session_user, 'pump')")
    assert run("follow", "remove", NAME, "--yes", *forget).exit_code == 0
    assert following.database.rows("SELECT * FROM modak.read_pins") == []


def test_one_is_forgotten_while_a_round_is_under_way(following: Mirror, rest: IcebergRest, run: RunCommand) -> None:
    """The round leaves nothing behind, nor does it touch another one of its name."""

    def step(name: str) -> None:
        if name == "pinned":
            forgotten = run("follow", "remove", NAME, "--yes", "--forget")
            assert forgotten.exit_code == 0, forgotten.output
            assert "public.a: left in the catalog" in forgotten.output
            assert run("follow", "add", NAME, "--rest", rest.uri).exit_code == 0

    change_both(following, 2)
    with pytest.raises(FollowerError, match="is being removed"):
        follow(following.settings, NAME, step=step)
    assert shown_rows(rest.pyiceberg(), "a") == [1]
    assert following.database.rows("SELECT * FROM modak.read_pins") == []
    assert following.database.rows("SELECT * FROM modak.follower_tables") == []
    assert (follower(following).frontier, follower(following).error) == (None, None)


class _KilledFollower(BaseException):
    """Nothing of the program catches it."""


@pytest.mark.further
def test_kills_at_each_step(following: Mirror, rest: IcebergRest) -> None:
    """The round is over, and so is its connection, right after the step; the next one finds out what came of it."""
    backend = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'mirror-pump-follower'"
    value, killed = 1, set()
    catalog = rest.pyiceberg()

    def die_after(*steps: str) -> None:
        remaining = list(steps)

        def step(name: str) -> None:
            if name == remaining[0]:
                remaining.pop(0)
            if not remaining:
                killed.add(name)
                following.database.rows(backend)
                raise _KilledFollower

        # Cleaning up fails without the connection, too.
        with pytest.raises((_KilledFollower, ConnectionLost)):
            follow(following.settings, NAME, step=step)
        assert remaining == []

    for step in ("pinned", "intended", "committed"):
        value += 1
        change_both(following, value)
        die_after(step)
        follow(following.settings, NAME)
        assert_shown(following, rest, "a", "b")
    for steps in (
        ("pinned",),
        ("intended",),
        ("registered",),
        ("registered", "intended"),
        ("registered", "registered"),
    ):
        for table in ("a", "b"):
            catalog.drop_table(("public", table))
        following.database.execute("UPDATE modak.followers SET examined_at = NULL")
        die_after(*steps)
        examine(following)
        assert_shown(following, rest, "a", "b")
    following.unregister("public.b")
    following.database.execute("UPDATE modak.followers SET examined_at = NULL")
    die_after("dropped")
    examine(following)
    assert catalog.list_tables("public") == [("public", "a")]
    assert killed == {"pinned", "intended", "committed", "registered", "dropped"}


def test_the_document_runs_as_it_stands(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, rest: IcebergRest, run: RunCommand
) -> None:
    """Commands print what is below them, but for positions."""
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("orders")
    mirror.catch_up()
    text = (Path(__file__).parents[3] / "docs" / "followers.md").read_text(encoding="utf-8")
    output = ""
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if language == "sh":
            result = run(*shlex.split(block.replace("http://127.0.0.1:8181", rest.uri))[1:])
            assert result.exit_code == 0, result.output
            output = result.stdout
            if "add" in block:
                follow(mirror.settings, NAME)
        else:
            assert _POSITION.sub("...", block) == _POSITION.sub("...", output)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.further
def test_every_kind_of_table_follows_through_its_changes(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, rest: IcebergRest, run: RunCommand, version: int
) -> None:
    """Keys that are updated and deleted, columns that change, a truncation, a copy; under names of the follower's."""
    database.execute(
        "CREATE TABLE events (id int PRIMARY KEY, at timestamp, v text)",
        "INSERT INTO events SELECT g, timestamp '2026-01-01' + g * interval '1 h', 'v' FROM generate_series(1, 99) g",
    )
    mirror = Mirror.create(database, warehouse, tasks)
    layout = ("--partition-by", "day(at)", "--format-version", str(version))
    assert run("register", "events", *layout, "--no-wait").exit_code == 0
    mirror.catch_up()
    named = ("--namespace", "shop_{schema}", "--table", "all_{table}")
    added = run("follow", "add", NAME, "--rest", rest.uri, *named)
    assert added.exit_code == 0, added.output
    steps: tuple[Callable[[], object], ...] = (
        lambda: change(mirror, "DELETE FROM events WHERE id % 3 = 0", "UPDATE events SET v = 'w' WHERE id % 5 = 0"),
        lambda: change(mirror, "ALTER TABLE events ADD n int DEFAULT 5", "ALTER TABLE events RENAME v TO text"),
        lambda: change(mirror, "INSERT INTO events SELECT id + 1000, at, text, 7 FROM events"),
        lambda: change(mirror, "ALTER TABLE events DROP n", "UPDATE events SET id = id + 5000 WHERE id < 20"),
        lambda: change(mirror, "TRUNCATE events", "INSERT INTO events VALUES (1, now(), 'x')"),
        lambda: copy_again(mirror),
        lambda: change(mirror, "INSERT INTO events VALUES (2, now(), 'y')", "DELETE FROM events WHERE id = 1"),
    )
    for step in steps:
        follow(mirror.settings, NAME)
        rows = rest.duckdb().execute("SELECT * FROM other.shop_public.all_events").fetchall()
        assert_same(mirror.heap("events"), normalised(rows), "events")
        step()
    follow(mirror.settings, NAME)
    assert json.loads(run("follow", "check", NAME, "--json").stdout)[0]["result"] == "same"
    assert run("follow", "remove", NAME, "--yes").exit_code == 0
    assert rest.pyiceberg().list_namespaces() == []


def copy_again(mirror: Mirror) -> None:
    """Copies the table again."""
    resynced(mirror, "events")
    mirror.catch_up()
