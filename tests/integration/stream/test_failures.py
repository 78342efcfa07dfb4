"""Trouble with one table makes that table fail; broken connections are opened again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from mirror_pump.engine.spark_runtime.runner import TaskRunner
from mirror_pump.errors import SourceError, TableError
from mirror_pump.model import TableId
from mirror_pump.pipeline.flow.events import TableFailed
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import connect
from mirror_pump.testing.database import Database
from mirror_pump.testing.installation import major_version
from mirror_pump.testing.mirror import Mirror, Steps, await_true, lake_rows
from mirror_pump.testing.postgres import EmbeddedPostgres
from mirror_pump.testing.tasks import GatedCopies, ThreadTaskRunner
from tests.support.maintenance import Maintained
from tests.support.memory import in_memory
from tests.support.pipeline import change_rows, writing
from tests.support.proxy import proxied
from tests.support.resyncs import drop_slot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def two(database: Database, warehouse: str) -> Mirror:
    """Two tables, mirrored by pumps without Spark."""
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v text, m numeric(10, 2), d date)",
        "CREATE TABLE b (id int PRIMARY KEY, v text)",
        "INSERT INTO a SELECT g, g, g, '2026-01-01' FROM generate_series(1, 100) g",
        "INSERT INTO b SELECT g, g FROM generate_series(1, 100) g",
    )
    return Mirror.create(database, warehouse, ThreadTaskRunner())


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        ("UPDATE a SET d = 'infinity' WHERE id = 5", "key column d holds 'infinity'"),
        pytest.param(
            "INSERT INTO a (id, d) VALUES (5000, '-infinity')",
            "key column d holds '-infinity'",
            marks=pytest.mark.further,
        ),
    ],
)
def test_an_error_of_one_table_stops_that_table_only(two: Mirror, trouble: str, message: str) -> None:
    database = two.database
    database.execute("ALTER TABLE a DROP CONSTRAINT a_pkey, ALTER d SET NOT NULL, ADD PRIMARY KEY (id, d)")
    with two.pumping() as pump:
        two.register("a", "b")
        two.await_live("public.a", "public.b")
        before = two.heap("a")
        two.await_frontier()
        with database.connect() as connection:
            connection.execute(trouble.encode())
            connection.execute("UPDATE a SET id = id + 1000 WHERE id > 50")
        database.execute("UPDATE b SET v = v || '!'")
        two.await_frontier()
        assert two.state("public.a") == "failed"
        assert message in two.error("public.a")
        assert two.state("public.b") == "live"
        two.assert_equal("public.b")
        assert lake_rows(two.location("public.a")) == before, "readable as of its last frontier"
        assert pump.steps.details(Step.TABLE_FAILED, "table") == ["public.a"]
        with pytest.raises(TableError) as refused:
            two.register("a")
        assert "unregister" in refused.value.remedy
        # It stays failed, even after a restart, and the others continue.
        database.execute("UPDATE a SET id = -id WHERE id % 2 = 0", "DELETE FROM b WHERE id % 2 = 0")
        two.await_frontier()
    with two.pumping():
        database.execute("INSERT INTO a (id, d) VALUES (7777, '2026-02-02')", "INSERT INTO b VALUES (7777)")
        two.await_frontier()
        two.assert_equal("public.b")
        assert two.state("public.a") == "failed"
        # Repaired: the values that cannot be held are gone.
        database.execute("UPDATE a SET d = '2026-03-03' WHERE NOT isfinite(d)")
        two.unregister("public.a")
        two.register("a")
        two.await_live("public.a")
        database.execute("UPDATE a SET m = 1 WHERE id > 20", "UPDATE b SET v = NULL WHERE id > 60")
        two.await_frontier()
        two.assert_equal("public.a", "public.b")
    two.assert_sound()


@pytest.mark.further
@pytest.mark.skipif(major_version() < 18, reason="the server publishes such a table")
def test_a_table_that_the_server_refuses_to_publish_whole_is_left_to_its_owner(two: Mirror) -> None:
    """UPDATE and DELETE fail while a table with REPLICA IDENTITY FULL is published without one of its generated
    columns."""
    database = two.database

    def updated() -> bool:
        with suppress(psycopg.errors.InvalidColumnReference):
            database.execute("UPDATE a SET v = 'updated' WHERE id = 1")
            return True
        return False

    database.execute("ALTER TABLE a ADD COLUMN g int GENERATED ALWAYS AS (id) VIRTUAL")
    with two.pumping():
        two.register("a", "b")
        two.await_live("public.a", "public.b")
        database.execute("ALTER TABLE a REPLICA IDENTITY FULL")
        await_true(updated, 20, "the table is not published any more")
        assert two.state("public.a") == "failed"
        assert "generated columns" in two.error("public.a")
        two.unregister("public.a")
        with pytest.raises(TableError, match="generated columns"):
            two.register("a")
        assert updated()
        database.execute("ALTER TABLE a REPLICA IDENTITY DEFAULT", "UPDATE b SET v = 'other'")
        two.register("a")
        two.await_live("public.a")
        assert updated()
        two.await_frontier()
        two.assert_equal("public.b")


ALTERED = {
    "widened": ("ADD COLUMN s array<struct<x: int>>", "DELETE FROM {} WHERE id = 50", "column 's'"),
    "divided": ("ADD PARTITION FIELD bucket(4, id)", "UPDATE {} SET m = 2 WHERE id = 50", "partitioned"),
}
"""What another engine does to a table, the change of rows that meets it, and a word of the error; by table."""
UPGRADED = {
    # The large value is not in the stream, so it has to be looked up in the lake.
    "looked_up": "UPDATE {} SET m = 2 WHERE id = 7",
    "written": "INSERT INTO {} VALUES (777)",
    "deleted": "DELETE FROM {} WHERE id = 60",
}
"""The change of rows that meets a table which another engine has given format version 3; by table."""


@pytest.mark.further
def test_a_lake_table_that_another_engine_altered_stops_that_table_only(
    database: Database, warehouse: str, spark: SparkSession
) -> None:
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner(), index_memory=0)
    tables = [f"public.{name}" for name in (*ALTERED, *UPGRADED)]
    database.execute(
        "CREATE TABLE b (id int PRIMARY KEY, v text)", "INSERT INTO b SELECT g, g FROM generate_series(1, 100) g"
    )
    with database.connect() as connection:
        for name in (*ALTERED, *UPGRADED):
            connection.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text, m numeric(10, 2))".encode())
            connection.execute(f"INSERT INTO {name} SELECT g, g, g FROM generate_series(1, 100) g".encode())
            connection.execute(f"ALTER TABLE {name} ALTER v SET STORAGE EXTERNAL".encode())
            connection.execute(f"UPDATE {name} SET v = repeat('large', 2000) WHERE id = 7".encode())
        maintained = Maintained(mirror, spark)
        with mirror.pumping():
            mirror.register(*tables, "b")
            mirror.await_live(*tables, "public.b")
            mirror.await_frontier()
            for name, (foreign, change, _) in ALTERED.items():
                maintained.session.sql(f"ALTER TABLE lake.public.{name} {foreign}").collect()
                connection.execute(change.format(name).encode())
            for name, change in UPGRADED.items():
                upgrade = f"ALTER TABLE lake.public.{name} SET TBLPROPERTIES ('format-version' = '3')"
                maintained.session.sql(upgrade).collect()
                connection.execute(change.format(name).encode())
            database.execute("UPDATE b SET v = 'x' WHERE id < 50")
            mirror.await_frontier()
            for name in UPGRADED:
                assert mirror.state(f"public.{name}") == "live", name
                connection.execute(f"DELETE FROM {name} WHERE id < 20".encode())
            for name, (_, _, message) in ALTERED.items():
                assert mirror.state(f"public.{name}") == "failed", name
                assert message in mirror.error(f"public.{name}"), name
                assert "register" in mirror.error(f"public.{name}"), f"what to do about {name}"
                connection.execute(f"DELETE FROM {name} WHERE id < 20".encode())
            database.execute("DELETE FROM b WHERE id < 20")
            mirror.await_frontier()
            mirror.assert_equal("public.b", *(f"public.{name}" for name in UPGRADED))
        with maintained.maintainer() as maintainer:
            assert "public.b" in {
                str(backlog.table.name) for backlog in maintainer.read_backlogs() if backlog.due(requested=True)
            }
        assert any(ALTERED["widened"][2] in error for error in maintained.maintain("public.widened").errors)
        for table in tables:
            mirror.unregister(table)
        mirror.register(*tables)
        mirror.catch_up()
        mirror.assert_equal(*tables, "public.b")


@pytest.mark.further
def test_a_table_that_cannot_be_copied_stops_no_other(two: Mirror) -> None:
    two.database.execute(
        "UPDATE a SET d = 'infinity' WHERE id = 50",
        "ALTER TABLE a DROP CONSTRAINT a_pkey, ALTER d SET NOT NULL, ADD PRIMARY KEY (id, d)",
    )
    with two.pumping():
        # `register` may see that the copy has failed, or return before.
        with suppress(TableError):
            two.register("a", "b")
        two.await_live("public.b")
        await_true(lambda: two.state("public.a") == "failed", 30, "a fails")
        assert "key column d" in two.error("public.a")
        two.database.execute("UPDATE a SET d = '2026-02-02' WHERE id = 50", "UPDATE b SET v = 'b'")
        two.unregister("a", drop_lake=True)
        two.register("a")
        two.await_live("public.a")
        two.await_frontier()
        two.assert_equal("public.a", "public.b")


def test_failures_of_a_former_registration_do_not_concern_the_new_one(two: Mirror) -> None:
    with two.pumping() as pump:
        two.register("a")
        two.await_live("public.a")
        with connect(two.database.dsn) as connection:
            former = load_table(connection, TableId(two.database.rows("SELECT 'a'::regclass::oid::bigint")[0][0]))
        assert former is not None
        two.unregister("a")
        two.register("a")
        two.await_live("public.a")
        two.database.execute("INSERT INTO a VALUES (1001)")
        two.await_frontier()
        pump.pump.submit(TableFailed(former, "too late"))
        two.await_frontier()
        two.database.execute("INSERT INTO a VALUES (1002)")
        two.await_frontier()
        two.assert_equal("public.a")
        assert pump.steps.count(Step.TABLE_FAILED) == 0


def test_a_table_that_is_dropped_while_it_is_mirrored_or_copied(two: Mirror) -> None:
    gate = GatedCopies(two.runner)
    mirror = Mirror(two.database, two.settings, gate)
    with mirror.pumping():
        mirror.register("a")
        mirror.await_live("public.a")
        gate.hold()
        mirror.register("b")
        await_true(lambda: two.database.rows("SELECT FROM modak.copy_chunks"), 30, "the copy is planned")
        two.database.execute("UPDATE b SET v = 'x'", "UPDATE a SET v = 'x'", "DROP TABLE a, b")
        gate.let_go()
        two.database.execute(
            "CREATE TABLE a (id int PRIMARY KEY, w int)", "INSERT INTO a SELECT g, g FROM generate_series(1, 50) g"
        )
        # Whether the pump has seen the drop by now or not.
        mirror.register("a")
        await_true(lambda: mirror.state("public.b") == "dropped", 30, "b is dropped")
        mirror.unregister("public.b")
        mirror.await_live("public.a")
        two.database.execute("DELETE FROM a WHERE id < 10")
        mirror.await_frontier()
        mirror.assert_equal("public.a")
    mirror.assert_sound()


@pytest.mark.further
def test_a_table_that_is_renamed_leaves_its_name_to_another(two: Mirror) -> None:
    two.register("a")
    two.catch_up()
    two.database.execute(
        "ALTER TABLE a RENAME TO c",
        "CREATE TABLE a (id int PRIMARY KEY)",
        "UPDATE c SET v = 'c' WHERE id < 10",
        "INSERT INTO a VALUES (1)",
    )
    two.catch_up()
    assert two.lake("public.c") == two.heap("c"), "it is the same table, under its new name"
    two.register("a")
    two.catch_up()
    two.assert_equal("public.a", "public.c")
    two.unregister("c")
    published = "SELECT tablename FROM pg_publication_tables WHERE pubname = %s ORDER BY 1"
    assert two.database.rows(published, (two.settings.publication,)) == [("a",)]
    # Renamed while no pump follows it: a name is that of the table which has it in PostgreSQL.
    two.database.execute("ALTER TABLE a RENAME TO d", "CREATE TABLE a (id int PRIMARY KEY)")
    with pytest.raises(TableError, match="a is not registered"):
        two.unregister("a")
    two.register("a")
    two.catch_up()
    two.assert_equal("public.a", "public.d")
    two.database.execute("ALTER TABLE d RENAME TO e")
    with pytest.raises(TableError, match=r"is called public\.e now"):
        two.unregister("d")
    two.unregister("e")
    assert two.database.rows(published, (two.settings.publication,)) == [("a",)]


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """A server that a test may crash."""
    with EmbeddedPostgres(temporary_in=in_memory()) as server:
        yield server


@pytest.mark.parametrize("runs", ["tasks", pytest.param("runner", marks=pytest.mark.soak)])
def test_broken_connections_are_opened_again(
    own_server: EmbeddedPostgres, warehouse: str, request: pytest.FixtureRequest, runs: str
) -> None:
    """With Spark, a task's error about its lost connection crosses two process boundaries."""
    runner: TaskRunner = request.getfixturevalue(runs)
    own_server.create_database("x")
    database = Database(own_server, "x")
    database.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, n int, v text, big text)",
        "ALTER TABLE t ALTER COLUMN big SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT g, 0, 'v', NULL FROM generate_series(1, 8000) g",
        "CREATE TABLE u (LIKE t INCLUDING ALL)",
        "INSERT INTO u SELECT * FROM t",
    )
    mirror = Mirror.create(database, warehouse, runner, copy_chunk_bytes=65536, reconnect_backoff_max=1.0)
    steps = Steps()
    seed = random.SystemRandom().randrange(2**32)
    print(f"writer's seed: {seed}")
    with mirror.pumping(steps):
        mirror.register("t")
        mirror.await_live("public.t")

        def retried(times: int) -> bool:
            return steps.count(Step.RETRYING) >= times

        with writing(database, change_rows("t", 8000), seed) as written:

            def more_than(count: int) -> bool:
                return written() > count

            for kind in ("walsender", "client backend"):
                retries, before = steps.count(Step.RETRYING), written()
                with database.connect() as connection:
                    connection.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = %s"
                        " AND datname = 'x' AND pid <> pg_backend_pid()"
                        " AND (application_name LIKE 'mirror-pump%%' OR backend_type = 'walsender')",
                        (kind,),
                    )
                await_true(partial(retried, retries + 1), 30, f"the pump noticed: {kind}")
                await_true(partial(more_than, before + 5), 30, "writes go on")
                mirror.await_frontier()
        # A crash in the middle of a copy interrupts the tasks that read chunks.
        retries = steps.count(Step.RETRYING)
        mirror.register("u")
        await_true(lambda: "public.u" in steps.details(Step.CHUNK_COPIED, "table"), 60, "the copy is under way")
        own_server.restart("immediate")
        await_true(lambda: retried(retries + 1), 30, "the pump noticed the crash")
        database.execute("UPDATE t SET n = n + 1 WHERE id % 10 = 0", "DELETE FROM u WHERE id % 9 = 0")
        mirror.await_live("public.u", seconds=120)
        own_server.restart("fast")
        database.execute("UPDATE t SET v = 'after'  WHERE id % 11 = 0")
        mirror.await_frontier()
        mirror.assert_equal("public.t", "public.u")
    mirror.assert_sound()


@pytest.mark.further
def test_a_server_that_is_away_for_a_while(own_server: EmbeddedPostgres, warehouse: str) -> None:
    own_server.create_database("x")
    database = Database(own_server, "x")
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner(), reconnect_backoff_max=0.5)
    steps, waiting = Steps(), Steps()
    with mirror.pumping(steps, standby=True):
        mirror.register("t")
        mirror.await_live("public.t")
        with mirror.pumping(waiting, standby=True):
            await_true(lambda: waiting.count(Step.STANDBY), 20, "a second one waits")
            own_server.stop("fast")
            await_true(lambda: steps.count(Step.RETRYING) >= 4, 30, "the pump tries again and again")
            await_true(lambda: waiting.count(Step.RETRYING) >= 4, 30, "and so does its standby")
            standbys = [pump.count(Step.STANDBY) for pump in (steps, waiting)]
            own_server.start()
            database.execute("INSERT INTO t VALUES (1)")
            mirror.await_frontier()
            # Whichever came first: the other one waits.
            await_true(
                lambda: [pump.count(Step.STANDBY) for pump in (steps, waiting)] != standbys, 30, "one of them stands by"
            )
            mirror.assert_equal("public.t")
    # It stops on request while nothing can be reached.
    running = mirror.start(steps)
    await_true(lambda: mirror.acknowledged() and running.steps.count(Step.STREAMING) >= 2, 30, "it streams")
    own_server.stop("immediate")
    retries = steps.count(Step.RETRYING)
    await_true(lambda: steps.count(Step.RETRYING) > retries, 30, "it noticed")
    running.stop(10)


def test_a_network_that_was_cut_leaves_the_pump_its_lead(database: Database, warehouse: str) -> None:
    """The pump knows that its connections are gone. The server does not: its old backends still hold the leadership and
    the slot."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    steps = Steps()
    with proxied(database.dsn) as proxy:
        mirror = Mirror.create(database, warehouse, ThreadTaskRunner(), dsn=proxy.dsn, reconnect_backoff_max=0.2)
        with mirror.pumping(steps) as pump:
            mirror.register("t")
            mirror.await_live("public.t")
            mirror.await_frontier()
            proxy.break_off()
            database.execute("INSERT INTO t VALUES (1)")

            def attempts() -> int:
                return sum("former connection" in error for error in steps.details(Step.RETRYING, "error"))

            await_true(lambda: attempts() >= 2 or not pump.thread.is_alive(), 30, "it asks for its lead again")
            proxy.tell()
            mirror.await_frontier()
            mirror.assert_equal("public.t")
    mirror.assert_sound()


@pytest.mark.unverified("the slot is not the mirror's any more")
def test_a_slot_that_is_gone_stops_the_pump_with_what_to_do(two: Mirror) -> None:
    two.register("a")
    two.catch_up()
    drop_slot(two)
    with pytest.raises(SourceError) as missing:
        two.catch_up()
    assert two.settings.slot in str(missing.value)
    assert missing.value.remedy
    with two.database.connect() as connection:
        # Somebody created it again: it begins beyond the frontier, so changes in between are lost to it.
        connection.execute("INSERT INTO a VALUES (12345)")
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (two.settings.slot,))
    with pytest.raises(SourceError) as ahead:
        two.catch_up()
    assert ahead.value.remedy
