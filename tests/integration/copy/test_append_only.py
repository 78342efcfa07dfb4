"""Tables without a key: rows are only inserted, may repeat, and are each copied or streamed, never both."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from mirror_pump.engine.spark_runtime.runner import TaskRunner
from mirror_pump.errors import TableError
from mirror_pump.ops.ingest.ingest_request import IngestRequest
from mirror_pump.ops.ingest.ingestion import ingest
from mirror_pump.ops.reads.query import Query, open_query
from mirror_pump.ops.reads.table_reads import ReadMode
from mirror_pump.ops.verify import compare_spark
from mirror_pump.ops.verify.comparison_engines import ComparisonEngine
from mirror_pump.ops.verify.verification import verify
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.source.loads.load_target import read_target
from mirror_pump.source.relations.column_choices import ColumnChoices
from mirror_pump.spark.reader import read
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps, await_true, paced
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.maintenance import Maintained
from tests.support.pipeline import writing
from tests.support.resyncs import resynced
from tests.support.retention_table import at_once

APPEND_ONLY = ColumnChoices(append_only=True)


def insert_rows(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    """One to three rows of few distinct values, so that whole rows repeat."""
    for _ in range(chance.randrange(1, 4)):
        connection.execute(
            "INSERT INTO log SELECT %s, %s, CASE WHEN %s THEN repeat(md5(%s), 100) END FROM generate_series(1, %s)",
            (
                chance.randrange(3),
                chance.choice([None, "a", "b"]),
                chance.random() < 0.2,
                str(chance.randrange(2)),
                chance.randrange(1, 3),
            ),
        )
    if chance.random() < 0.2:
        connection.rollback()


@pytest.fixture
def log(database: Database) -> Database:
    """Table log, with many equal rows."""
    database.execute(
        "CREATE TABLE log (n int, v text, big text)",
        "ALTER TABLE log ALTER COLUMN big SET STORAGE EXTERNAL",
        "INSERT INTO log SELECT g % 5, repeat('v', 40), NULL FROM generate_series(1, 20000) g",
    )
    return database


def _equal(mirror: Mirror) -> None:
    (report,) = verify(mirror.settings, ["log"]).tables
    assert report.comparison is not None, report
    assert report.comparison.different_rows == 0, report
    mirror.assert_equal("public.log")
    mirror.assert_sound()


@pytest.mark.parametrize(
    "event",
    [
        "a restart",
        *(
            pytest.param(event, marks=pytest.mark.further)
            for event in ("", "TRUNCATE log", "VACUUM FULL log", "a resync")
        ),
    ],
)
def test_rows_are_copied_or_streamed_and_never_both(
    log: Database, warehouse: str, tasks: ThreadTaskRunner, event: str
) -> None:
    """While rows are inserted all the time. The copy begins again at each event."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"writer's seed: {seed}")
    mirror = Mirror.create(log, warehouse, tasks, limits=paced(0.1), copy_chunk_bytes=1 << 16, copy_workers=2)
    steps = Steps()
    with writing(log, insert_rows, seed) as written:
        with mirror.pumping(steps):
            mirror.register("log", choices=APPEND_ONLY)
            await_true(lambda: steps.count(Step.CHUNK_COPIED) >= 2, 60, "two chunks are copied")
            if event == "a resync":
                mirror.await_live("public.log")
                resynced(mirror, "log")
            elif event and event != "a restart":
                log.execute(event)
            elif not event:
                mirror.await_live("public.log")
        with mirror.pumping(steps):
            mirror.await_live("public.log", seconds=120)
            after = written()
            await_true(lambda: written() > after + 10, 60, "rows are inserted into the live table")
    with mirror.pumping():
        mirror.await_frontier()
    _equal(mirror)


@pytest.mark.further
def test_the_copy_begins_when_no_writer_is_open_and_holds_up_nobody(
    log: Database, warehouse: str, tasks: ThreadTaskRunner
) -> None:
    """A transaction that wrote before the copy begins: its rows are copied once it has ended. Nobody waits."""
    log.execute("CREATE TABLE u (id int PRIMARY KEY)", "INSERT INTO u VALUES (1)")
    mirror = Mirror.create(log, warehouse, tasks)
    mirror.register("log", choices=APPEND_ONLY)
    mirror.register("u")
    steps = Steps()
    with log.connect(autocommit=False) as writer:
        writer.execute("INSERT INTO log SELECT 7, 'open', NULL FROM generate_series(1, 3)")
        with mirror.pumping(steps):
            mirror.await_live("public.u")
            with log.connect() as other:
                other.execute("SET lock_timeout = '3s'")
                for _ in range(20):
                    other.execute("INSERT INTO log VALUES (8, 'beside', NULL)")
            mirror.await_frontier()
            assert mirror.state("public.log") == "copying"
            assert steps.count(Step.COPY_PLANNED) == 1
            writer.execute("INSERT INTO log VALUES (7, 'open', NULL)")
            writer.commit()
            mirror.await_live("public.log")
            mirror.await_frontier()
    _equal(mirror)


@pytest.mark.further
def test_many_tables_at_once(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> None:
    """More than have a snapshot at a time. One that is locked delays no other."""
    names = [f"log{number}" for number in range(9)]
    for name in names:
        database.execute(f"CREATE TABLE {name} (v text)", f"INSERT INTO {name} VALUES ('a'), ('a'), (NULL)")
    mirror = Mirror.create(database, warehouse, tasks)
    for name in names:
        mirror.register(name, choices=APPEND_ONLY)
    snapshots = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_xmin IS NOT NULL"
        " AND state = 'idle in transaction'"
    )
    with database.connect(autocommit=False) as writer:
        writer.execute("INSERT INTO log0 VALUES ('open')")
        with mirror.pumping():
            mirror.await_live(*(f"public.{name}" for name in names[1:]))
            assert mirror.state("public.log0") == "copying"
            writer.commit()
            mirror.await_live("public.log0")
            await_true(lambda: database.rows(snapshots) == [(0,)], 30, "no snapshot is kept")
            mirror.await_frontier()
    mirror.assert_equal(*(f"public.{name}" for name in names))


def test_the_server_refuses_updates_as_long_as_it_is_mirrored(
    log: Database, warehouse: str, tasks: ThreadTaskRunner
) -> None:
    mirror = Mirror.create(log, warehouse, tasks)
    mirror.register("log", choices=APPEND_ONLY)
    mirror.catch_up()
    for statement in ("UPDATE log SET n = 1", "DELETE FROM log"):
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="does not have a replica identity"):
            log.execute(statement)
    log.execute("TRUNCATE log", "INSERT INTO log VALUES (1, 'a', NULL), (1, 'a', NULL)")
    mirror.catch_up()
    _equal(mirror)
    mirror.unregister("log")
    log.execute("UPDATE log SET n = 2", "DELETE FROM log")


@pytest.mark.further
def test_columns_and_identity_change_later(log: Database, warehouse: str, tasks: ThreadTaskRunner) -> None:
    """A table that gets a key is like any other from there on; one whose rows could be updated without a key fails."""
    log.execute("CREATE TABLE other (LIKE log)", "INSERT INTO other SELECT * FROM log LIMIT 10")
    mirror = Mirror.create(log, warehouse, tasks)
    mirror.register("log", choices=APPEND_ONLY)
    mirror.register("other", choices=APPEND_ONLY)
    with mirror.pumping():
        mirror.await_live("public.log", "public.other")
        log.execute(
            "ALTER TABLE log ADD COLUMN added int",
            "INSERT INTO log VALUES (1, 'x', NULL, 1), (1, 'x', NULL, 1)",
            "ALTER TABLE log RENAME COLUMN v TO w",
            "ALTER TABLE log DROP COLUMN big",
            "INSERT INTO log VALUES (1, 'x', 1)",
        )
        mirror.await_frontier()
        mirror.await_live("public.log")
        _equal(mirror)
        log.execute(
            "ALTER TABLE log ALTER COLUMN n TYPE text USING n::text || '!'", "INSERT INTO log VALUES ('y', 'z')"
        )
        mirror.await_frontier()
        mirror.await_live("public.log")
        mirror.await_frontier()
        _equal(mirror)
        log.execute("ALTER TABLE log ADD COLUMN id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY")
        log.execute("UPDATE log SET w = 'updated' WHERE id = 1", "DELETE FROM log WHERE id = 2")
        mirror.await_frontier()
        mirror.await_live("public.log")
        mirror.await_frontier()
        _equal(mirror)
        before = mirror.lake("public.other")
        log.execute("ALTER TABLE other REPLICA IDENTITY FULL", "INSERT INTO other VALUES (1, 'x', NULL)")
        mirror.await_frontier()
        assert mirror.state("public.other") == "failed"
        assert "REPLICA IDENTITY FULL" in mirror.error("public.other")
        assert mirror.lake("public.other") == before
        log.execute("UPDATE other SET n = 5")
        mirror.await_frontier()
    mirror.assert_equal("public.log")
    mirror.assert_sound()


_REFUSED: list[tuple[str, ColumnChoices, str]] = [
    ("keyed", APPEND_ONLY, "has a key"),
    ("whole", APPEND_ONLY, "REPLICA IDENTITY FULL"),
    ("parts", APPEND_ONLY, "is partitioned and has no key"),
    ("log", ColumnChoices(append_only=True, where="n = 1"), "a row filter needs one"),
    ("log", ColumnChoices(), "or register it with --append-only"),
    ("parts", ColumnChoices(), "or REPLICA IDENTITY FULL"),
]


def test_what_is_refused(log: Database, warehouse: str) -> None:
    log.execute(
        "CREATE TABLE keyed (id int PRIMARY KEY)",
        "CREATE TABLE whole (id int)",
        "ALTER TABLE whole REPLICA IDENTITY FULL",
        "CREATE TABLE parts (id int) PARTITION BY RANGE (id)",
    )
    mirror = Mirror.create(log, warehouse, ThreadTaskRunner())
    for table, choices, text in _REFUSED:
        with pytest.raises(TableError) as refused:
            mirror.register(table, choices=choices)
        assert text in f"{refused.value} {refused.value.remedy}", (table, text)
        if table == "parts":
            assert "with --append-only" not in refused.value.remedy, "it would be refused"
        log.execute("UPDATE log SET n = 1 WHERE n = 2")


@pytest.mark.further
def test_other_commands_say_what_needs_a_key(
    log: Database, warehouse: str, tasks: ThreadTaskRunner, tmp_path: Path
) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("n,v,big\n1,a,b\n")
    mirror = Mirror.create(log, warehouse, tasks)
    with pytest.raises(TableError, match="find them by key"):
        mirror.register("log", choices=APPEND_ONLY, retention=at_once("100"))
    log.execute("ALTER TABLE log REPLICA IDENTITY NOTHING")
    mirror.register("log", choices=APPEND_ONLY)
    mirror.catch_up()
    with pytest.raises(TableError, match="registered with --append-only"):
        mirror.register("log", choices=ColumnChoices(excluded=frozenset({"v"})))
    with pytest.raises(TableError, match="by which an ingest would find rows"):
        ingest(mirror.settings, IngestRequest("log", (str(file),)))
    with pytest.raises(TableError, match="has no key"), log.connect() as connection:
        read_target(connection, "log")
    _equal(mirror)


@pytest.mark.further
def test_every_reader_and_maintenance_keep_equal_rows_apart(
    log: Database, warehouse: str, runner: TaskRunner, spark: SparkSession
) -> None:
    """The pump merges small files, and Spark rewrites files. Each way of reading counts equal rows."""
    mirror = Mirror.create(log, warehouse, runner)
    steps = Steps()
    with mirror.pumping(steps):
        mirror.register("log", choices=APPEND_ONLY)
        mirror.await_live("public.log")
        await_true(partial(_merged, log, mirror, steps), 60, "files are merged")
        mirror.await_frontier()
        rows = log.rows("SELECT count(*), count(DISTINCT l) FROM log l")
        for mode in ReadMode:
            statement = Query("SELECT count(*), (SELECT count(*) FROM (SELECT DISTINCT * FROM log)) FROM log", mode)
            with open_query(mirror.settings, statement, print) as duckdb:
                assert duckdb.execute(statement.statement).fetchall() == rows, mode
            with read(spark, "log", mode, settings=mirror.settings, max_wait=30) as frame:
                assert (frame.count(), frame.distinct().count()) == rows[0], mode
        engine = ComparisonEngine(mirror.runner, partial(compare_spark.compare, spark))
        (report,) = verify(mirror.settings, ["log"], engine=engine).tables
        assert report.comparison is not None, report
        assert (report.comparison.different_rows, report.comparison.heap_rows) == (0, rows[0][0])
    maintained = Maintained(mirror, spark)
    maintained.policy("public.log", target_file_bytes=1 << 20)
    maintained.maintain("public.log")
    maintained.assert_equal("public.log")


def _merged(database: Database, mirror: Mirror, steps: Steps) -> bool:
    database.execute("INSERT INTO log VALUES (1, 'a', NULL), (1, 'a', NULL), (NULL, NULL, NULL)")
    mirror.await_frontier()
    return steps.count(Step.MERGED) > 0
