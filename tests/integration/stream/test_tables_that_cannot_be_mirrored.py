"""Tables whose data or definition the mirror cannot hold: each fails or is refused alone, with a remedy."""

from __future__ import annotations

import pytest

from mirror_pump.engine.ingest.chunk_copy import ChunkTask, copy_chunk
from mirror_pump.errors import TableError
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.ops.register.table_follower import TableFollower
from mirror_pump.ops.status.status_reader import StatusReader
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.heap.block_reader import plan_chunks
from mirror_pump.source.relations.relations import resolve_name
from mirror_pump.testing.database import Database
from mirror_pump.testing.installation import major_version
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.table_wishes import parse_choices

_KEY_WITH_NULL = (
    "ALTER TABLE nk ADD CONSTRAINT nn NOT NULL k NOT VALID",
    "CREATE UNIQUE INDEX nk_u ON nk (k)",
    "ALTER TABLE nk REPLICA IDENTITY USING INDEX nk_u",
)


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    """Of a table that goes on whatever becomes of others."""
    database.execute("CREATE TABLE good (id int PRIMARY KEY, v text)", "INSERT INTO good VALUES (1, 'v')")
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("good")
    return mirror


def _assert_good_goes_on(mirror: Mirror) -> None:
    mirror.database.execute("INSERT INTO good SELECT max(id) + 1, 'more' FROM good")
    mirror.await_frontier()
    mirror.assert_equal("public.good")


@pytest.mark.skipif(major_version() < 18, reason="NOT NULL constraints are valid")
def test_a_key_that_holds_null_is_refused_and_fails_alone(mirror: Mirror, database: Database) -> None:
    database.execute(
        "CREATE TABLE nk (k int, v text)",
        "INSERT INTO nk VALUES (1, 'a'), (NULL, 'b')",
        "ALTER TABLE nk REPLICA IDENTITY FULL",
    )
    with mirror.pumping():
        mirror.register("nk")
        mirror.await_live("public.nk", "public.good")
        database.execute(*_KEY_WITH_NULL)
        await_true(lambda: mirror.state("public.nk") == "failed", 30, "it fails")
        assert "key column k of public.nk" in mirror.error("public.nk")
        assert "ALTER TABLE public.nk ALTER COLUMN k SET NOT NULL" in mirror.error("public.nk")
        _assert_good_goes_on(mirror)
        mirror.unregister("public.nk")
        with pytest.raises(TableError, match=r"key column k of public\.nk") as refused:
            mirror.register("nk")
        database.execute("DELETE FROM nk WHERE k IS NULL", refused.value.remedy.partition("then ")[2])
        mirror.register("nk")
        mirror.await_live("public.nk")
        database.execute("UPDATE nk SET v = 'other'")
        mirror.await_frontier()
        mirror.assert_equal("public.nk", "public.good")


@pytest.mark.parametrize("key", ["REPLICA IDENTITY FULL", "ADD PRIMARY KEY (a)"])
def test_a_table_that_loses_its_last_column_fails_alone(mirror: Mirror, database: Database, key: str) -> None:
    database.execute("CREATE TABLE last_one (a int)", f"ALTER TABLE last_one {key}", "INSERT INTO last_one VALUES (1)")
    with mirror.pumping():
        mirror.register("last_one")
        mirror.await_live("public.last_one", "public.good")
        database.execute("ALTER TABLE last_one DROP COLUMN a")
        await_true(lambda: mirror.state("public.last_one") in ("failed", "waiting"), 30, "it goes no further")
        _assert_good_goes_on(mirror)
        if "FULL" in key:
            assert "public.last_one has no column" in mirror.error("public.last_one")


def test_a_table_without_columns_is_refused(mirror: Mirror, database: Database) -> None:
    database.execute(
        "CREATE TABLE nothing ()",
        "ALTER TABLE nothing REPLICA IDENTITY FULL",
        "CREATE TABLE left_out (a int)",
        "ALTER TABLE left_out REPLICA IDENTITY FULL",
    )
    with pytest.raises(TableError, match=r"public\.nothing has no column"):
        mirror.register("nothing")
    with pytest.raises(TableError, match=r"public\.left_out has no column"):
        mirror.register("left_out", choices=parse_choices([], ["a"]))
    mirror.catch_up()


def test_a_followed_pattern_goes_on_past_tables_that_are_refused(
    mirror: Mirror, database: Database, run: RunCommand
) -> None:
    slot = ("--slot", mirror.settings.slot)
    assert run("register", "public.*", "--follow-new", "--no-wait", *slot).exit_code == 0
    with mirror.pumping() as pump, TableFollower(mirror.settings, pump.steps):
        database.execute("CREATE TABLE a_nothing ()", "ALTER TABLE a_nothing REPLICA IDENTITY FULL")
        database.execute("CREATE TABLE b_later (id int PRIMARY KEY)")
        mirror.await_live("public.b_later")

        def alerts() -> list[str]:
            with StatusReader(mirror.settings) as reader:
                return [alert.message for alert in reader.read().alerts if alert.table == "public.a_nothing"]

        await_true(alerts, 30, "it is told")
        assert "has no column" in alerts()[0]


def test_null_in_a_key_that_a_copy_meets_is_an_error_of_the_table(mirror: Mirror, database: Database) -> None:
    """Other rows than those that the constraint promised, as from a heap without one."""
    database.execute(
        "CREATE TABLE without_key (id int, v text)", "INSERT INTO without_key VALUES (1, 'a'), (NULL, NULL)"
    )
    with database.session() as connection:
        good, other = (resolve_name(connection, name)[1] for name in ("good", "without_key"))
        table = load_table(connection, good)
        assert table is not None
        (chunk,) = plan_chunks(connection, other, 1 << 20)
    result = copy_chunk(ChunkTask(database.dsn, table, chunk, StorageOptions(fsync=False)))
    assert "key column id of public.good may hold NULL" in (result.error or "")
    assert "ALTER TABLE public.good ALTER COLUMN id SET NOT NULL" in (result.error or "")
    mirror.catch_up()
