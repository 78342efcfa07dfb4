"""Transactions of every kind, of which only the outcome counts: nested, prepared, long, and very many."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from typing import Any

import psycopg
import pytest

from mirror_pump.cli.main import app
from mirror_pump.engine.ingest.segment_tasks import SegmentTask
from mirror_pump.errors import ConnectionLost, SourceError
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.runtime.cores import available_cores
from mirror_pump.settings.limits import InternalLimits
from mirror_pump.source.connect import connect
from mirror_pump.source.heap.row_lookup import await_visible
from mirror_pump.source.relations.change_notes import parse_note, signature
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps, assert_same, await_true, lake_rows, paced
from mirror_pump.testing.postgres import EmbeddedPostgres
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.memory import in_memory


@pytest.fixture
def own_server() -> Iterator[EmbeddedPostgres]:
    """A server that a test may restart."""
    with EmbeddedPostgres(temporary_in=in_memory()) as server:
        yield server


_TABLE = "CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL DEFAULT 0, big text)"
_ROWS = "INSERT INTO t SELECT g, g, repeat(md5(g::text), 100) FROM generate_series(1, 60) g"


def test_a_commit_is_waited_for_until_snapshots_see_it(database: Database) -> None:
    with connect(database.dsn, autocommit=True) as looking, database.connect(autocommit=False) as writing:
        writing.execute("SAVEPOINT a")
        ((number,),) = writing.execute("SELECT pg_current_xact_id()::text::bigint").fetchall()
        xid = number % 2**32
        not_begun, long_ago = (xid + 1_000_000) % 2**32, (xid - 2**31 + 1_000_000) % 2**32
        await_visible(looking, [long_ago], within=0)
        with pytest.raises(ConnectionLost, match=f"transaction {xid} has committed"):
            await_visible(looking, [long_ago, xid], within=0)
        with pytest.raises(ConnectionLost, match=f"transaction {not_begun} has committed"):
            await_visible(looking, [not_begun], within=0)
        writing.commit()
        await_visible(looking, [long_ago, xid], within=0)


class CountedSegments(ThreadTaskRunner):
    """Notes of how many tables each task of the stream has to write files."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[int] = []

    def submit(self, function: Callable[[Any], Any], task: Any) -> Future[Any]:
        if isinstance(task, SegmentTask):
            self.tables.append(len(task.tables))
        return super().submit(function, task)


def test_a_transaction_over_many_tables_is_divided_among_tasks(database: Database, warehouse: str) -> None:
    """One with changes of every kind, a value out of line that stays as it is among them."""
    names = ("t_0", "t_1", "t_2")
    changes = (
        "UPDATE {} SET id = id + 1000 WHERE id <= 10",
        "DELETE FROM {} WHERE id BETWEEN 11 AND 20",
        "UPDATE {} SET n = -n WHERE id BETWEEN 21 AND 30",
        "INSERT INTO {} VALUES (11, -2), (12, -2)",
    )
    for name in names:
        database.execute(
            _TABLE.replace("TABLE t", f"TABLE {name}"),
            f"ALTER TABLE {name} ALTER big SET STORAGE EXTERNAL",
            _ROWS.replace("INTO t", f"INTO {name}"),
        )
    with closing(CountedSegments()) as runner:
        mirror = Mirror.create(database, warehouse, runner, limits=InternalLimits(task_tables=1))
        with mirror.pumping(), database.connect() as connection:
            for name in names:
                mirror.register(name)
            mirror.await_live(*(f"public.{name}" for name in names))
            mirror.await_frontier()
            runner.tables.clear()
            with connection.transaction():
                for change in changes:
                    for name in names:
                        connection.execute(change.format(name).encode())
                connection.execute("TRUNCATE t_2")
                connection.execute("INSERT INTO t_2 VALUES (1, 1)")
            mirror.await_frontier()
            assert sum(runner.tables[: min(available_cores(), 3)]) == 3, "each task has its share of the tables"
        mirror.assert_equal(*(f"public.{name}" for name in names))
    mirror.assert_sound()


@pytest.mark.further
@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_subtransactions(database: Database, warehouse: str, tasks: ThreadTaskRunner, identity: str) -> None:
    """Key changes in subtransactions that are rolled back, released, and released within a rolled back one."""
    database.execute(_TABLE, "ALTER TABLE t ALTER big SET STORAGE EXTERNAL", _ROWS)
    mirror = Mirror.create(database, warehouse, tasks, segment_bytes=700)
    with mirror.pumping(), database.connect() as connection:
        connection.execute(f"ALTER TABLE t REPLICA IDENTITY {identity}".encode())
        mirror.register("t")
        mirror.await_live("public.t")
        connection.execute(
            """BEGIN;
            UPDATE t SET id = id + 1000 WHERE id <= 10;
            SAVEPOINT a;
              DELETE FROM t WHERE id BETWEEN 11 AND 20;
              UPDATE t SET id = id - 1000 WHERE id > 1000;
              SAVEPOINT b;
                UPDATE t SET id = -id, n = -1 WHERE id BETWEEN 1 AND 5;
                INSERT INTO t VALUES (11, -2), (12, -2);
              RELEASE b;
              SAVEPOINT c;
                TRUNCATE t;
                INSERT INTO t VALUES (1, -3);
            ROLLBACK TO a;
            SAVEPOINT d;
              UPDATE t SET n = n + 1 WHERE id BETWEEN 15 AND 25;
              SAVEPOINT e;
                UPDATE t SET id = id + 2000 WHERE id BETWEEN 15 AND 18;
                SAVEPOINT f;
                  DELETE FROM t WHERE id > 2000;
                  INSERT INTO t VALUES (2015, -4);
                ROLLBACK TO f;
                UPDATE t SET n = n * 2 WHERE id > 2000;
              RELEASE e;
            RELEASE d;
            SAVEPOINT g;
              DELETE FROM t WHERE id = 30;
              INSERT INTO t VALUES (30, 30, 'again');
            RELEASE g;
            SAVEPOINT h;
              UPDATE t SET id = 31000 WHERE id = 31;
            ROLLBACK TO h;
              UPDATE t SET id = 32000 WHERE id = 32;
              INSERT INTO t VALUES (32, 0, 'new under an old key');
            COMMIT"""
        )
        # A block with an exception handler is a subtransaction per row: more than a backend keeps in memory (64).
        connection.execute(
            """DO $$ BEGIN FOR i IN 1..200 LOOP
                 BEGIN
                   UPDATE t SET n = n + i WHERE id = 40 + i % 10;
                   INSERT INTO t VALUES (5000 + i, i);
                   IF i % 3 = 0 THEN RAISE EXCEPTION 'no'; END IF;
                   UPDATE t SET id = -5000 - i WHERE id = 5000 + i AND i % 2 = 0;
                 EXCEPTION WHEN raise_exception THEN NULL;
                 END;
               END LOOP; END $$"""
        )
        mirror.await_frontier()
        mirror.assert_equal("public.t")
        assert len(mirror.lake("public.t")) == 60 + 1 + 134
    mirror.assert_sound()


def test_key_swaps_through_a_deferred_constraint(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> None:
    """A second unique column, whose constraint holds at the end of the transaction only; and swapped keys."""
    database.execute(
        "CREATE TABLE s (code text NOT NULL, id int NOT NULL, v text, UNIQUE (id) DEFERRABLE INITIALLY DEFERRED)",
        "CREATE UNIQUE INDEX s_code ON s (code)",
        "ALTER TABLE s REPLICA IDENTITY USING INDEX s_code",
        "INSERT INTO s SELECT 'c' || g, g, 'v' || g FROM generate_series(1, 20) g",
        "CREATE TABLE r (id int PRIMARY KEY, v text)",
        "INSERT INTO r SELECT g, 'v' || g FROM generate_series(1, 20) g",
    )
    mirror = Mirror.create(database, warehouse, tasks, segment_bytes=200)
    with mirror.pumping():
        mirror.register("s", "r")
        mirror.await_live("public.s", "public.r")
        database.execute(
            "BEGIN; UPDATE s SET id = 2 WHERE code = 'c1'; UPDATE s SET id = 1 WHERE code = 'c2'; COMMIT",
            "UPDATE s SET id = 21 - id",
            "BEGIN; UPDATE s SET code = 'x' WHERE id = 3; UPDATE s SET code = 'c18', id = 4 WHERE id = 4;"
            " UPDATE s SET code = 'c17' WHERE code = 'x'; COMMIT",
            # The same result by way of a third key, several times in one transaction, and back.
            "BEGIN;"
            " UPDATE r SET id = -1 WHERE id = 1; UPDATE r SET id = 1 WHERE id = 2; UPDATE r SET id = 2 WHERE id = -1;"
            " UPDATE r SET id = -1 WHERE id = 1; UPDATE r SET id = 1 WHERE id = 2; UPDATE r SET id = 2 WHERE id = -1;"
            " UPDATE r SET id = -3 WHERE id = 3; UPDATE r SET id = 3 WHERE id = 4; UPDATE r SET id = 4 WHERE id = -3;"
            "COMMIT",
            "BEGIN; DELETE FROM r WHERE id = 9; INSERT INTO r VALUES (9, 'again'); UPDATE r SET id = 99 WHERE id = 9;"
            " UPDATE r SET id = 9, v = 'and back' WHERE id = 99; COMMIT",
        )
        mirror.await_frontier()
        mirror.assert_equal("public.s", "public.r")


def test_prepared_transactions(own_server: EmbeddedPostgres, warehouse: str, tasks: ThreadTaskRunner) -> None:
    """None of their changes count before COMMIT PREPARED, across restarts of the pump and of the server. The frontier
    does not wait for them."""
    own_server.create_database("x")
    database = Database(own_server, "x")
    database.execute(_TABLE, _ROWS, "CREATE TABLE u (id int PRIMARY KEY)")
    mirror = Mirror.create(database, warehouse, tasks, segment_bytes=700)
    with mirror.pumping():
        mirror.register("t", "u")
        mirror.await_live("public.t", "public.u")
        for name, first in (("kept", 1), ("gone", 21), ("late", 41)):
            with database.connect() as connection:
                for statement in (
                    "BEGIN",
                    f"UPDATE t SET id = id + 1000, n = -1 WHERE id BETWEEN {first} AND {first + 4}",
                    f"DELETE FROM t WHERE id BETWEEN {first + 5} AND {first + 9}",
                    "SAVEPOINT s",
                    "DELETE FROM t WHERE id = 60",
                    "ROLLBACK TO s",
                    f"INSERT INTO t VALUES ({first + 3000})",
                    f"PREPARE TRANSACTION '{name}'",
                ):
                    connection.execute(statement.encode())
        database.execute("INSERT INTO u VALUES (1)")
        mirror.await_frontier()
        mirror.assert_equal("public.t", "public.u")
        assert len(mirror.lake("public.t")) == 60, "nothing of what is only prepared"
    with mirror.pumping():
        database.execute("INSERT INTO u VALUES (2)")
        own_server.restart("fast")
        database.execute("COMMIT PREPARED 'kept'", "INSERT INTO u VALUES (3)")
        mirror.await_frontier()
        mirror.assert_equal("public.t", "public.u")
        own_server.restart("immediate")
        database.execute("ROLLBACK PREPARED 'gone'", "INSERT INTO u VALUES (4)")
        mirror.await_frontier()
        mirror.assert_equal("public.t", "public.u")
    # Committed while no pump runs, with its rows in WAL that was written two restarts ago.
    database.execute("CHECKPOINT", "COMMIT PREPARED 'late'")
    mirror.catch_up()
    mirror.assert_equal("public.t", "public.u")
    assert sum(row[0] > 1000 for row in mirror.lake("public.t")) == 2 * 6
    mirror.assert_sound()


def test_a_transaction_that_stays_open(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> None:
    """It holds back nothing but WAL, and status says so: the frontier passes, others are published, pumps start and
    stop."""
    database.execute(_TABLE, _ROWS, "CREATE TABLE u (id int PRIMARY KEY, v text)")
    mirror = Mirror.create(database, warehouse, tasks, segment_bytes=700)
    mirror.register("t", "u")
    mirror.catch_up()
    with database.connect(autocommit=False) as long:
        long.execute("SET application_name = 'nightly report'")
        long.execute("UPDATE t SET id = id + 1000, n = -n WHERE id % 2 = 0")
        long.execute("SAVEPOINT s")
        long.execute("DELETE FROM t")
        long.execute("ROLLBACK TO s")
        for round_ in range(3):
            with mirror.pumping() as pump:
                for number in range(20):
                    with database.connect() as connection:
                        key = 100 * round_ + number
                        connection.execute("INSERT INTO u VALUES (%s, 'new')", (key,))
                        connection.execute("UPDATE t SET n = n + 1 WHERE id = %s", (2 * number + 1,))
                    if number % 5 == 0:
                        mirror.await_frontier()
                mirror.await_frontier()
                mirror.assert_equal("public.t", "public.u")
                assert pump.steps.count(Step.PUBLISHED) >= 4
            long.execute("INSERT INTO t VALUES (%s)", (5000 + round_,))
        held = slot_status(mirror)["held_by"]
        assert held["kind"] == "transaction"
        assert held["pid"] == long.info.backend_pid
        assert held["application"] == "nightly report"
        assert held["seconds"] >= 0
        with mirror.pumping():
            mirror.await_frontier()
            long.commit()
            mirror.await_frontier()
            mirror.assert_equal("public.t", "public.u")
            assert sum(row[0] > 1000 for row in mirror.lake("public.t")) == 30 + 3
        assert slot_status(mirror)["held_by"] is None
    with database.connect() as connection:
        connection.execute("BEGIN; INSERT INTO u VALUES (-1); PREPARE TRANSACTION 'forgotten'")
        database.execute("INSERT INTO u VALUES (-2)")
        mirror.catch_up()
        held = slot_status(mirror)["held_by"]
        assert (held["kind"], held["prepared"]) == ("prepared transaction", "forgotten")
        connection.execute("ROLLBACK PREPARED 'forgotten'")
    mirror.catch_up()
    mirror.assert_equal("public.t", "public.u")
    mirror.assert_sound()


def slot_status(mirror: Mirror) -> dict[str, Any]:
    from typer.testing import CliRunner

    environment = {"MIRROR_PUMP_DSN": mirror.settings.dsn, "MIRROR_PUMP_SLOT": mirror.settings.slot}
    done = CliRunner().invoke(app, ["status", "--json"], env=environment)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)["slot"]
    return found


@pytest.mark.parametrize("count", [8_000, pytest.param(100_000, marks=pytest.mark.soak)])
def test_very_many_small_transactions(database: Database, warehouse: str, tasks: ThreadTaskRunner, count: int) -> None:
    """Each is a commit of its own; some are empty, some rolled back."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int)",
        "CREATE TABLE other (id int)",
        """CREATE PROCEDURE many(count int) LANGUAGE plpgsql AS $$ BEGIN
             FOR i IN 1..count LOOP
               CASE i % 8
                 WHEN 0 THEN UPDATE t SET n = n + 1 WHERE id = i - 4;
                 WHEN 1 THEN DELETE FROM t WHERE id = i - 8;
                 WHEN 2 THEN INSERT INTO other VALUES (i);
                 WHEN 3 THEN UPDATE t SET id = -i WHERE id = i - 5;
                 ELSE INSERT INTO t VALUES (i, 0);
               END CASE;
               IF i % 50 = 7 THEN ROLLBACK; ELSE COMMIT; END IF;
             END LOOP; END $$""",
    )
    steps = Steps()
    mirror = Mirror.create(database, warehouse, tasks, limits=paced(0.2))
    mirror.register("t")
    mirror.catch_up()
    with mirror.pumping(steps):
        with database.connect() as connection:
            connection.execute("SET synchronous_commit = off")
            connection.execute("CALL many(%s)", (count,))
        mirror.await_frontier(seconds=200)
        mirror.assert_equal("public.t")
    assert sum(steps.details(Step.RECEIVED, "changes")) > count * 0.6
    mirror.assert_sound()


def test_messages_of_others_are_ignored(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> None:
    """Transactional and not, alone and between rows, rolled back, large, also with our prefix."""
    database.execute(_TABLE, _ROWS)
    mirror = Mirror.create(database, warehouse, tasks, segment_bytes=700)
    with mirror.pumping() as pump:
        mirror.register("t")
        mirror.await_live("public.t")
        (before,) = {mirror.state("public.t")}
        database.execute(
            "SELECT pg_logical_emit_message(true, 'outbox', '{\"table\": 1}')",
            "SELECT pg_logical_emit_message(false, 'outbox', repeat('x', 3000000))",
            "BEGIN; UPDATE t SET n = 1 WHERE id < 20; SELECT pg_logical_emit_message(true, 'a', 'b');"
            " SELECT pg_logical_emit_message(false, 'mirror-pump', 'noise');"
            " SELECT pg_logical_emit_message(true, 'mirror-pump', '{\"table\": \"no\"}');"
            " UPDATE t SET id = -id WHERE id < 10; COMMIT",
            "BEGIN; SELECT pg_logical_emit_message(true, '', ''); DELETE FROM t WHERE id = 30; ROLLBACK",
            "SELECT pg_logical_emit_message(true, '', repeat(E'\\\\000', 0))",
        )
        mirror.await_frontier()
        mirror.assert_equal("public.t")
        assert mirror.state("public.t") == before == "live"
        assert pump.steps.count(Step.RETRYING) == pump.steps.count(Step.TABLE_COPIED_AGAIN) == 0
        assert_same(mirror.heap("t"), lake_rows(mirror.location("public.t")), "t")


_NONSENSE = (
    '{"table": 1e999}',
    "[" * 100_000,
    '{"table": %(id)s, "shape": "x"}',
    '{"table": %(id)s, "shape": {}}',
    '{"table": %(id)s, "shape": {"columns": 5}}',
    '{"table": %(id)s, "shape":{"columns": [{"type": 1.5, "modifier": -1, "generated": 0, "attnum": 1, "filled": 0}]}}',
    '{"table": %(id)s, "exact": true, "shape": %(shape)s}',
)


def test_sealed_nonsense_stops_nothing(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> None:
    """A role that can read the secret can forge any note. At worst, the table that it names is copied again."""
    database.execute(_TABLE, _ROWS)
    mirror = Mirror.create(database, warehouse, tasks)
    with mirror.pumping() as pump:
        mirror.register("t")
        mirror.await_live("public.t")
        ((table_id, shape, secret),) = database.rows(
            "SELECT table_id, shape::text, secret FROM modak.mirror_shapes, modak.mirror_secret"
        )
        # A text that jsonb cannot hold.
        unstorable = shape[:-1] + ', "more": "\\u0000"}'
        with database.connect() as connection:
            for content in _NONSENSE:
                message = content.replace("%(id)s", str(table_id)).replace("%(shape)s", unstorable).encode()
                with connection.transaction():
                    ((xid,),) = connection.execute("SELECT pg_current_xact_id()::xid::text::bigint").fetchall()
                    message = signature(secret.encode(), xid, message) + message
                    connection.execute("SELECT pg_logical_emit_message(true, 'mirror-pump', %s)", (message,))
                connection.execute("UPDATE t SET n = n + 1 WHERE id < 9")
        mirror.await_frontier()
        mirror.await_live("public.t")
        mirror.await_frontier()
        mirror.assert_equal("public.t")
        assert pump.steps.count(Step.RETRYING) == pump.steps.count(Step.TABLE_FAILED) == 0
        assert pump.steps.count(Step.TABLE_COPIED_AGAIN) > 0, "it was heard"
    mirror.assert_sound()


def test_without_its_secret_the_pump_does_not_begin(
    database: Database, warehouse: str, tasks: ThreadTaskRunner
) -> None:
    mirror = Mirror.create(database, warehouse, tasks)
    for statement in ("INSERT INTO modak.mirror_secret VALUES ('another')", "DELETE FROM modak.mirror_secret"):
        database.execute(statement)
        with pytest.raises(SourceError, match=r"modak\.mirror_secret") as refused:
            mirror.catch_up()
        assert refused.value.remedy


def test_only_the_event_triggers_can_announce_a_change(
    database: Database, warehouse: str, tasks: ThreadTaskRunner
) -> None:
    """Any role may emit messages, even ones that equal a note except for the signature, or that were valid in another
    transaction."""
    database.execute(_TABLE, _ROWS)
    mirror = Mirror.create(database, warehouse, tasks)
    role = f"stranger_{os.urandom(4).hex()}"
    with mirror.pumping() as pump:
        mirror.register("t")
        mirror.await_live("public.t")
        ((table_id, shape),) = database.rows("SELECT table_id, shape::text FROM modak.mirror_shapes")
        database.execute(
            "SELECT pg_create_logical_replication_slot('listening', 'test_decoding')",
            "ALTER TABLE t RENAME COLUMN n TO m",
        )
        overheard = database.rows(
            "SELECT data FROM pg_logical_slot_get_changes('listening', NULL, NULL)"
            " WHERE data LIKE '%prefix: mirror-pump,%'"
        )
        database.execute("SELECT pg_drop_replication_slot('listening')")
        await_true(lambda: pump.steps.count(Step.TABLE_CHANGED) == 1, 20, "a true note is heard")
        lies = [
            f'{{"table": {table_id}, "exact": true, "shape": null}}',
            f'{{"table": {table_id}, "exact": true, "shape": {shape}}}',
            f'{{"table": {table_id}, "rewritten": 4}}',
            f'{{"table": {table_id}, "truncated": {table_id}}}',
        ]
        messages = [*lies, *("0" * 64 + lie for lie in lies), overheard[0][0].partition("content:")[2]]
        assert parse_note(messages[-1].encode()) is not None, "the message, whole"
        with database.connect() as connection:
            connection.execute(f"CREATE ROLE {role}".encode())
            connection.execute(f"GRANT USAGE ON SCHEMA modak TO {role}".encode())
            connection.execute(f"SET ROLE {role}".encode())
            try:
                for message in messages:
                    connection.execute("SELECT pg_logical_emit_message(true, 'mirror-pump', %s)", (message,))
                for forbidden in (
                    "SELECT * FROM modak.mirror_secret",
                    "SELECT modak.mirror_message('{}')",
                    "SELECT modak.mirror_alarm(NULL)",
                ):
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        connection.execute(forbidden)
            finally:
                connection.execute("RESET ROLE")
                connection.execute(f"DROP OWNED BY {role}".encode())
                connection.execute(f"DROP ROLE {role}".encode())
        database.execute("UPDATE t SET m = m + 1 WHERE id < 9")
        mirror.await_frontier()
        assert pump.steps.count(Step.NOTE_REFUSED) == 1, "reported once"
        assert pump.steps.count(Step.TABLE_CHANGED) == 1
        assert pump.steps.count(Step.TABLE_COPIED_AGAIN) == pump.steps.count(Step.TABLE_FAILED) == 0
        mirror.assert_equal("public.t")
    mirror.assert_sound()
