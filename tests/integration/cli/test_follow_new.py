"""`register --follow-new`: tables that are created later join by themselves, and what does not join is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mirror_pump.ops.register.table_follower import TableFollower
from mirror_pump.ops.status.status_reader import StatusReader
from mirror_pump.ops.status.status_report import MirrorStatus
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    """Of a database with two schemas."""
    database.execute(
        "CREATE SCHEMA sales",
        "CREATE SCHEMA other",
        "CREATE TABLE sales.old (id int PRIMARY KEY)",
        "INSERT INTO sales.old VALUES (1)",
    )
    return Mirror.create(database, warehouse, tasks)


@contextmanager
def _following(mirror: Mirror) -> Iterator[None]:
    """A pump leads, as `run` has it."""
    with mirror.pumping() as pump, TableFollower(mirror.settings, pump.steps):
        yield


def _registered(mirror: Mirror) -> list[str]:
    rows = mirror.database.rows("SELECT schema_name, table_name FROM modak.tables ORDER BY 1, 2")
    return [f"{schema}.{name}" for schema, name in rows]


def _status(mirror: Mirror) -> MirrorStatus:
    with StatusReader(mirror.settings) as reader:
        return reader.read()


def _refused(mirror: Mirror) -> dict[str, str]:
    return {str(refused.table): refused.error for refused in _status(mirror).not_joined}


def test_tables_that_match_join_when_they_are_created(mirror: Mirror, database: Database, run: RunCommand) -> None:
    slot = ("--slot", mirror.settings.slot)
    follow = ("register", "sales.*", "--exclude", "sales.tmp_*", "--follow-new", "--no-wait", *slot)
    result = run(*follow)
    assert result.exit_code == 0, result.stderr
    with _following(mirror):
        mirror.await_live("sales.old")
        with database.session(autocommit=False) as connection:
            connection.execute("CREATE TABLE sales.born (id int PRIMARY KEY, v text)")
            connection.execute("INSERT INTO sales.born SELECT g, 'first' FROM generate_series(1, 100) g")
            connection.commit()
        database.execute(
            'CREATE TABLE sales."Odd; name" (id int PRIMARY KEY)',
            "CREATE TABLE sales.parts (id int, day int, PRIMARY KEY (id, day)) PARTITION BY LIST (day)",
            "CREATE TABLE sales.parts_1 PARTITION OF sales.parts FOR VALUES IN (1)",
            "CREATE TABLE sales.tmp_x (id int PRIMARY KEY)",
            "CREATE UNLOGGED TABLE sales.unlogged (id int PRIMARY KEY)",
            "CREATE TABLE other.moving (id int PRIMARY KEY)",
            "CREATE VIEW sales.shown AS SELECT 1",
            "UPDATE sales.born SET v = 'second' WHERE id % 2 = 0",
            "INSERT INTO sales.parts VALUES (1, 1)",
        )
        mirror.await_live("sales.born", 'sales."Odd; name"', "sales.parts")
        mirror.await_frontier()
        mirror.assert_equal("sales.born", "sales.parts")
        # What moves into the schema joins as well.
        database.execute("ALTER TABLE sales.born RENAME TO grown", "ALTER TABLE other.moving SET SCHEMA sales")
        await_true(lambda: "sales.moving" in _registered(mirror), 60, "a table that moved here")
        mirror.await_live("sales.moving", "sales.grown")
    assert _registered(mirror) == ["sales.Odd; name", "sales.grown", "sales.moving", "sales.old", "sales.parts"]
    (followed,) = _status(mirror).followed
    assert (followed.pattern, followed.excluded) == ("sales.*", ["sales.tmp_*"])
    assert "new tables join: sales.*, but for sales.tmp_*" in run("status", *slot).stdout


@pytest.mark.further
def test_what_does_not_join_is_told_and_tried_again(mirror: Mirror, database: Database, run: RunCommand) -> None:
    assert run("register", "sales.*", "--follow-new", "--no-wait", "--slot", mirror.settings.slot).exit_code == 0
    with _following(mirror):
        database.execute("CREATE TABLE sales.keyless (id int)", "CREATE TABLE sales.good (id int PRIMARY KEY)")
        mirror.await_live("sales.good")
        await_true(lambda: "sales.keyless" in _refused(mirror), 60, "it is told")
        assert "primary key" in _refused(mirror)["sales.keyless"]
        assert [alert.table for alert in _status(mirror).alerts if "pattern" in alert.message] == ["sales.keyless"]
        database.execute("ALTER TABLE sales.keyless ADD PRIMARY KEY (id)")
        mirror.await_live("sales.keyless")
        assert not _refused(mirror)

        # What somebody unregistered stays away, until somebody registers it.
        mirror.unregister("sales.good")
        database.execute("CREATE TABLE sales.later (id int PRIMARY KEY)")
        mirror.await_live("sales.later")
        assert "sales.good" not in _registered(mirror)
        mirror.register("sales.good")
        mirror.await_live("sales.good")

        # A table that is dropped and created again is another one.
        database.execute("DROP TABLE sales.good")
        await_true(lambda: mirror.state("sales.good") == "dropped", 60, "dropped")
        database.execute("CREATE TABLE sales.good (id int PRIMARY KEY, n int)", "INSERT INTO sales.good VALUES (1, 2)")
        mirror.await_live("sales.good")
        mirror.await_frontier()
        mirror.assert_equal("sales.good")

        ended = run("register", "sales.*", "--no-follow-new", "--slot", mirror.settings.slot)
        assert ended.exit_code == 0, ended.stderr
        assert not _status(mirror).followed
        database.execute("CREATE TABLE sales.unseen (id int PRIMARY KEY)")
    mirror.catch_up()
    assert "sales.unseen" not in _registered(mirror)
    mirror.assert_sound()


def test_to_end_a_pattern_registers_nothing(mirror: Mirror, database: Database, run: RunCommand) -> None:
    """Above all no table that was left out when the pattern was followed."""
    slot = ("--slot", mirror.settings.slot)
    database.execute("CREATE TABLE sales.secret (id int PRIMARY KEY)")
    for pattern in (("sales.*", "--exclude", "sales.secret"), ("other.*",)):
        assert run("register", *pattern, "--follow-new", "--no-wait", *slot).exit_code == 0
    unknown = run("register", "sale.*", "--no-follow-new", *slot)
    assert unknown.exit_code == 1
    assert "no tables join by pattern sale.*" in unknown.stderr
    assert "other.*, sales.*" in unknown.stderr
    ended = run("register", "sales.*", "--no-follow-new", *slot)
    assert (ended.exit_code, ended.stdout) == (
        0, "sales.*: new tables do not join any more; those that are registered stay\n"
    ), ended.stderr  # fmt: skip
    assert [followed.pattern for followed in _status(mirror).followed] == ["other.*"]
    assert _registered(mirror) == ["sales.old"]
    mirror.catch_up()
    mirror.assert_equal("sales.old")


_WRONG_USE: list[tuple[tuple[str, ...], str]] = [
    (("sales.old", "--no-follow-new"), "it goes with patterns that have a schema"),
    (("sales.*", "sales.old", "--no-follow-new"), "it goes with patterns that have a schema"),
    (("sales.*", "--no-follow-new", "--exclude", "*"), "ends the following of patterns, and registers nothing"),
    (("sales.*", "--no-follow-new", "--dry-run"), "ends the following of patterns, and registers nothing"),
    (("sales.*", "--all"), "--all takes no TABLE"),
    (("sales.old", "--all", "--follow-new"), "--all takes no TABLE"),
    (("sales.old", "--follow-new"), "--follow-new requires --all, or a pattern with a schema"),
    (("old*", "--follow-new"), "--follow-new requires --all, or a pattern with a schema"),
    (("sales.*", "--follow-new", "--heap-retention", "30 days"), "--heap-retention does not go with --follow-new"),
    (("sales.*", "--follow-new", "--mask", "v=null"), "it is about one table, which has to be named"),
]


def test_wrong_use(mirror: Mirror, run: RunCommand) -> None:
    for arguments, error in _WRONG_USE:
        result = run("register", *arguments, "--slot", mirror.settings.slot)
        assert (result.exit_code, error in " ".join(result.stderr.split())) == (2, True), (arguments, result.stderr)
        assert not _status(mirror).followed
