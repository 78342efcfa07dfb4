"""Change feeds are created, altered, renamed and ended with their tables, and refused with the reason."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from mirror_pump.errors import TableError
from mirror_pump.ops.register.feed_registration import FeedOptions, alter_feed
from mirror_pump.ops.verify.verification import verify
from mirror_pump.source.retention.retention_plan import RetentionOptions
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.integration.feeds.test_feed_rows import KEYS, ROWS, feed
from tests.support.cli import RunCommand
from tests.support.drift import drift
from tests.support.feed_replay import FeedReplay, FrontierTrail
from tests.support.resyncs import repairs
from tests.support.table_wishes import parse_choices


@pytest.fixture
def mirror(database: Database, warehouse: str) -> Mirror:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t SELECT g, 'v' FROM generate_series(1, 9) g"
    )
    return Mirror.create(database, warehouse, ThreadTaskRunner())


def ops(mirror: Mirror, table: str = "public.t") -> list[str]:
    return [str(row["_op"]) for row in feed(mirror, table)]


@pytest.mark.parametrize("by_owner", [False, pytest.param(True, marks=pytest.mark.further)])
def test_the_feed_with_old_rows_begins_behind_the_command(mirror: Mirror, database: Database, by_owner: bool) -> None:
    """Changes that the pump has not seen yet have no old rows."""
    mirror.register("t")
    mirror.catch_up()
    database.execute("UPDATE t SET v = 'before' WHERE id < 4", "DELETE FROM t WHERE id = 4")
    if by_owner:
        database.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    alter_feed(mirror.settings, "t", ROWS)
    database.execute("UPDATE t SET v = 'after' WHERE id = 1", "DELETE FROM t WHERE id = 2")
    mirror.catch_up()
    assert mirror.state("public.t") == "live", mirror.error("public.t")
    assert ops(mirror)[0] == "reset"
    database.execute("UPDATE t SET v = 'later' WHERE id = 3", "DELETE FROM t WHERE id = 5")
    mirror.catch_up()
    assert [(row["_op"], row["id"], row["_old"]) for row in feed(mirror, "public.t")[-2:]] == [
        ("update", 3, {"id": 3, "v": "before"}),
        ("delete", 5, {"id": 5, "v": "v"}),
    ]
    ((not_before, expired),) = database.rows(
        "SELECT not_before_lsn, expired_lsn FROM modak.change_feeds WHERE feed_id > 0"
    )
    assert min(row["_lsn"] for row in feed(mirror, "public.t")) >= not_before - 1 > 0
    assert expired == 0, "an interval that begins before shows the reset"
    mirror.assert_equal("public.t")


@pytest.mark.parametrize("wish", [KEYS, ROWS], ids=lambda wish: wish.mode)
def test_a_live_table_gets_a_feed_while_the_pump_runs(mirror: Mirror, database: Database, wish: FeedOptions) -> None:
    mirror.register("t")
    trail = FrontierTrail(mirror)
    with mirror.pumping(Steps(on=trail)):
        mirror.await_live("public.t")
        database.execute("INSERT INTO t VALUES (100, 'before')", "UPDATE t SET v = 'before' WHERE id < 5")
        change = alter_feed(mirror.settings, "t", wish)
        assert change.changed
        for number in range(101, 120):
            database.execute(
                f"INSERT INTO t VALUES ({number}, 'later')", f"UPDATE t SET v = v || 'x' WHERE id = {number}"
            )
        mirror.await_frontier()
        await_true(lambda: ops(mirror).count("insert") > 0 or _insert(database), 30, "the feed has changes")
    assert ops(mirror)[0] == "reset"
    replay = FeedReplay()
    replay.check(trail)
    assert replay.compared
    assert mirror.database.rows("SELECT count(*) FROM modak.copy_chunks WHERE generation > 0") == [(0,)]
    kept = alter_feed(mirror.settings, "t", FeedOptions(wish.mode, None))
    assert not kept.changed
    with pytest.raises(TableError, match=f"is of --changes={wish.mode}"):
        alter_feed(mirror.settings, "t", KEYS if wish is ROWS else ROWS)
    assert alter_feed(mirror.settings, "t", None).feed is None
    assert not database.rows("SELECT 1 FROM modak.iceberg_tables WHERE table_name = 't__changes'")
    assert database.rows("SELECT table_name FROM modak.former_locations") == [("t__changes",)]


def _insert(database: Database) -> bool:
    database.execute("INSERT INTO t SELECT max(id) + 1 FROM t")
    return False


def test_the_feed_is_renamed_and_unregistered_with_its_table(mirror: Mirror, database: Database) -> None:
    mirror.register("t", feed=KEYS)
    mirror.catch_up()
    database.execute("ALTER TABLE t RENAME TO u", "ALTER TABLE u RENAME v TO w", "INSERT INTO u VALUES (50, 'x')")
    mirror.catch_up()
    (change,) = feed(mirror, "public.u")[1:]
    assert (change["_op"], change["id"], change["w"]) == ("insert", 50, "x")
    mirror.unregister("u")
    assert not database.rows("SELECT 1 FROM modak.iceberg_tables WHERE table_name LIKE '%changes'")
    mirror.register("u", feed=KEYS)
    mirror.catch_up()
    assert ops(mirror, "public.u") == ["reset"]
    mirror.unregister("u", drop_lake=True)
    location = Path(mirror.settings.warehouse.removeprefix("file://"))  # type: ignore[union-attr]
    directories = {path.parent.name.split("__")[0] for path in location.glob("public/*__changes*/data/*.parquet")}
    assert len(directories) == 1, "the files of the former registration stay"


def test_old_rows_are_asked_for(mirror: Mirror, database: Database) -> None:
    mirror.register("t", feed=ROWS)
    mirror.catch_up()
    assert database.rows("SELECT relreplident::text FROM pg_class WHERE relname = 't'") == [("f",)]
    database.execute(
        "UPDATE t SET v = 'new' WHERE id = 1", "DELETE FROM t WHERE id = 2", "UPDATE t SET id = 30 WHERE id = 3"
    )
    mirror.catch_up()
    rows = [(row["_op"], row["id"], row["v"], row["_old"]) for row in feed(mirror, "public.t")[1:]]
    assert rows == [
        ("update", 1, "new", {"id": 1, "v": "v"}),
        ("delete", 2, None, {"id": 2, "v": "v"}),
        ("delete", 3, None, {"id": 3, "v": "v"}),
        ("insert", 30, "v", None),
    ]
    database.execute(
        "ALTER TABLE t REPLICA IDENTITY DEFAULT", "INSERT INTO t VALUES (60)", "DELETE FROM t WHERE id = 4"
    )
    mirror.catch_up()
    assert mirror.state("public.t") == "failed"
    assert "REPLICA IDENTITY FULL" in mirror.error("public.t")


def test_masks_and_left_out_columns_hold_for_old_rows_too(database: Database, warehouse: str) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, secret text, gone text)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t VALUES (1, 'a secret', 'left out')",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    mirror.register("t", choices=parse_choices((), ("gone",), ("secret=constant(masked)",)), feed=ROWS)
    mirror.catch_up()
    database.execute("UPDATE t SET secret = 'another secret'", "DELETE FROM t")
    mirror.catch_up()
    old = {"id": 1, "secret": "masked"}
    assert [(row["_op"], row["secret"], row["_old"]) for row in feed(mirror, "public.t")[1:]] == [
        ("update", "masked", old),
        ("delete", None, old),
    ]
    for path in Path(warehouse.removeprefix("file://")).rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert b"secret'" not in content
            assert b"another secret" not in content
            assert b"left out" not in content


def test_a_large_value_from_before_a_truncate_of_the_batch(database: Database, warehouse: str) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int, big text)",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT g, 0, repeat(g::text, 5000) FROM generate_series(1, 3) g",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner(), segment_bytes=1000, batch_bytes=10_000_000)
    mirror.register("t", feed=KEYS)
    mirror.catch_up()
    database.execute(
        "UPDATE t SET n = 1",
        "UPDATE t SET n = 2, id = id + 10",
        "INSERT INTO t VALUES (20, 0, repeat('20', 3000))",
        "UPDATE t SET n = 3",
        "TRUNCATE t",
        "INSERT INTO t VALUES (11, 0, repeat('after', 1000))",
        "UPDATE t SET n = 4",
    )
    mirror.catch_up()
    rows = [(row["_op"], row["id"], row["n"], row["big"]) for row in feed(mirror, "public.t")[1:]]
    big = {number: str(number % 10) * 5000 for number in (1, 2, 3, 11, 12, 13)} | {20: "20" * 3000}
    assert rows == [
        *(("update", number, 1, big[number]) for number in (1, 2, 3)),
        *(
            change
            for number in (1, 2, 3)
            for change in (("delete", number, None, None), ("insert", number + 10, 2, big[number]))
        ),
        ("insert", 20, 0, big[20]),
        *(("update", number, 3, big[number]) for number in (11, 12, 13, 20)),
        ("truncate", None, None, None),
        ("insert", 11, 0, "after" * 1000),
        ("update", 11, 4, "after" * 1000),
    ]


def test_rows_that_are_repaired_reset_the_feed(mirror: Mirror, database: Database) -> None:
    """When readers are shown the repaired rows. What is changed later is in the feed."""
    mirror.register("t", feed=KEYS)
    mirror.catch_up()
    drift(mirror.settings, "t", removed=[("3",)])
    former = len(feed(mirror, "public.t"))
    with mirror.pumping():
        (repaired,) = repairs(mirror, "t")
        for value in ("next", "later"):
            database.execute(f"UPDATE t SET v = '{value}' WHERE id = 3")
            mirror.await_frontier()
        assert verify(mirror.settings, replay_feeds=True).equal
    assert (repaired.error, repaired.missing) == (None, 1)
    reset, *_, update = feed(mirror, "public.t")[former:]
    assert (reset["_op"], update["_op"], update["v"]) == ("reset", "update", "later")
    assert repaired.frontier is not None
    assert reset["_lsn"] < repaired.frontier <= update["_lsn"]
    mirror.assert_equal("public.t")


@pytest.mark.parametrize(
    ("table", "wish", "reason"),
    [
        ("CREATE TABLE x (id int PRIMARY KEY, _lsn int)", KEYS, "has a column _lsn"),
        ('CREATE TABLE x (id int PRIMARY KEY, "_LSN" int)', KEYS, "has a column _LSN"),
        ("CREATE TABLE x (id int)", KEYS, "has no key"),
        ("CREATE TABLE x (id int PRIMARY KEY) PARTITION BY LIST (id)", ROWS, "is partitioned"),
    ],
)
def test_refused(mirror: Mirror, database: Database, table: str, wish: FeedOptions, reason: str) -> None:
    database.execute(table)
    if "PRIMARY" not in table:
        database.execute("ALTER TABLE x REPLICA IDENTITY FULL")
    with pytest.raises(TableError, match=reason):
        mirror.register("x", feed=wish)
    mirror.register("x")
    with pytest.raises(TableError, match=reason):
        alter_feed(mirror.settings, "x", wish)


def test_columns_that_meet_those_of_the_feed(mirror: Mirror, database: Database) -> None:
    """By a later ADD or RENAME, by case alone, and beside a column that is called as the feed would call another."""
    mirror.register("t", feed=KEYS)
    mirror.catch_up()
    database.execute(
        "ALTER TABLE t ADD _lsn__column text",
        "INSERT INTO t VALUES (50, 'x', 'meant')",
        'ALTER TABLE t RENAME v TO "_LSN"',
        "INSERT INTO t VALUES (51, 'y', 'meant')",
    )
    mirror.catch_up()
    assert [row["_LSN__column_"] for row in feed(mirror, "public.t") if row["_op"] == "insert"] == ["x", "y"]
    database.execute(
        'ALTER TABLE t RENAME "_LSN" TO v', "ALTER TABLE t ADD _lsn int", "INSERT INTO t VALUES (52, 'z', 'meant', 7)"
    )
    mirror.catch_up()
    assert mirror.state("public.t") == "live", mirror.error("public.t")
    inserted = [row for row in feed(mirror, "public.t") if row["_op"] == "insert"]
    rows = [(row["id"], row["v"], row["_lsn__column"], row["_lsn__column_"]) for row in inserted]
    assert rows == [(50, "x", "meant", None), (51, "y", "meant", None), (52, "z", "meant", 7)]
    mirror.assert_equal("public.t")


def test_names_that_collide(mirror: Mirror, database: Database) -> None:
    database.execute("CREATE TABLE t__changes (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    mirror.register("t__changes")
    with pytest.raises(TableError, match=r"the lake has a table public\.t__changes"):
        mirror.register("t", feed=KEYS)
    database.execute("CREATE TABLE u__changes (id int PRIMARY KEY)")
    mirror.register("u", feed=KEYS)
    with pytest.raises(TableError, match="is the name of a change feed"):
        mirror.register("u__changes")


def test_by_command_and_as_a_file(run: RunCommand, mirror: Mirror, database: Database, tmp_path: Path) -> None:
    options = ("--slot", mirror.settings.slot, "--publication", mirror.settings.publication)
    outcome = run("register", "t", "--changes", "--keep-changes", "90d", "--no-wait", *options)
    assert outcome.exit_code == 0, outcome.output
    exported = run("export", *options).output
    (entry,) = tomllib.loads(exported)["register"]
    assert (entry["changes"], entry["keep_changes"]) == ("keys", "7776000s")
    file = tmp_path / "tables.toml"
    file.write_text(exported)
    assert "nothing differs" in run("apply", str(file), *options).output
    file.write_text(exported.replace("7776000s", "30d"))
    assert "public.t__changes, and stay for 30 days\n" in run("apply", str(file), *options).output
    assert database.rows("SELECT keep FROM modak.change_feeds WHERE feed_id <> 0")[0][0].days == 30
    file.write_text('[[register]]\ntables = ["public.t"]\n')
    assert "no change feed" in run("apply", str(file), *options).output
    outcome = run("register", "t", "--changes=rows", "--alter", *options)
    assert outcome.exit_code == 0, outcome.output
    assert database.rows("SELECT mode FROM modak.change_feeds WHERE feed_id <> 0") == [("rows",)]
    for wrong in (("--keep-changes", "90d"), ("--changes=all",), ("--no-changes",), ("--changes", "--snapshot-only")):
        outcome = run("register", "t", *wrong, *options)
        assert outcome.exit_code == 2, wrong


def test_tables_that_leave_the_heap_have_none(mirror: Mirror) -> None:
    with pytest.raises(TableError, match="change by more than the stream has"):
        mirror.register("t", feed=KEYS, retention=RetentionOptions(lag="1"))
