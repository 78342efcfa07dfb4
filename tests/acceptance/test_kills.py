"""kill -9 at every step: the next pump continues from the frontier; nothing is lost, and nothing is there twice.

`make test` kills around each commit: before it, after it, and while it is staged. `make soak` kills at every step.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.table import StaticTable

from mirror_pump.engine.spark_runtime.runner import SparkTaskRunner
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.settings.config import Settings
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import lake_session, read_spark
from mirror_pump.testing.mirror import Mirror, Steps, assert_same, audit, await_true, normalised
from mirror_pump.testing.program import Program
from mirror_pump.testing.tasks import ThreadTaskRunner
from mirror_pump.testing.verification import assert_verified
from tests.support.events_table import RetentionTables, upsert
from tests.support.key_index_checks import check_indexes
from tests.support.killed_pump import die

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Death = tuple[str, int]
"""The step at which a pump dies, and at which of its occurrences."""

STREAM_DEATHS: tuple[Death, ...] = (
    (Step.STREAMING, 1),
    *(
        (step, nth)
        for step in (Step.RECEIVED, Step.WRITTEN, Step.STAGED, Step.PUBLISHED, Step.ACKNOWLEDGED)
        for nth in (1, 3)
    ),
)
COPY_DEATHS: tuple[Death, ...] = (
    (Step.COPY_PLANNED, 1),
    (Step.CHUNK_COPIED, 2),
    (Step.STAGED, 2),
    (Step.CHUNKS_PUBLISHED, 2),
    (Step.PUBLISHED, 2),
)
CONVERSION_DEATHS: tuple[Death, ...] = (
    *((step, nth) for step in ("converting", "positions-written", "converted") for nth in (1, 2)),
    *((f"positions-written/{step}", 1) for step in ("staged", "published", "acknowledged") for _ in range(2)),
)
MERGE_DEATHS: tuple[Death, ...] = (
    ("merging", 1),
    ("merge-written", 1),
    ("merge-written/staged", 1),
    ("merge-written/published", 1),
    ("merge-written/acknowledged", 1),
    ("merged", 1),
)
FILL_DEATHS: tuple[Death, ...] = (
    ("filling", 1),
    ("filling/staged", 1),
    ("filling/published", 1),
    ("filled", 1),
    ("filled/staged", 1),
    ("filled/published", 1),
)
INDEX_DEATHS: tuple[Death, ...] = (
    ("index-building", 2),
    ("index-ready", 2),
    ("index-ready/written", 2),
    ("index-ready/staged", 2),
    ("index-ready/published", 2),
    ("index-ready/acknowledged", 2),
    ("index-ready/merge-written", 2),
    ("index-ready/merged", 2),
)


def killed_at(every: tuple[Death, ...], *short: Death) -> pytest.MarkDecorator:
    """Runs a test with the deaths around a commit, `short`, and in `make soak` with every one."""
    assert set(short) < set(every)
    return pytest.mark.parametrize(
        "deaths", [pytest.param(short, id="short"), pytest.param(every, id="every", marks=pytest.mark.soak)]
    )


def write(database: Database, first: int) -> None:
    """Transactions that change two tables in every way, so that a transaction applied twice or not at all shows."""
    for number in range(first, first + 4):
        base = number * 100
        with database.session(autocommit=False) as connection:
            run = connection.execute
            run("INSERT INTO a SELECT g, 0, 'new' FROM generate_series(%s::int, %s::int) g", (base, base + 60))
            run("UPDATE a SET n = n + 1 WHERE id %% 3 = %s", (number % 3,))
            run("UPDATE a SET id = id + 50000 WHERE id BETWEEN %s AND %s", (base + 10, base + 14))
            run("DELETE FROM a WHERE id BETWEEN %s AND %s", (base + 20, base + 25))
            run("INSERT INTO b SELECT id, n, v FROM a WHERE id % 7 = 0 ON CONFLICT (id) DO UPDATE SET n = b.n + 1")
            if number % 4 == 3:
                run("DELETE FROM b WHERE n % 2 = 0")
            connection.commit()


def change(database: Database) -> None:
    """Changes some rows of both tables, in every way, as often as it is called."""
    with database.session(autocommit=False) as connection:
        run = connection.execute
        run("UPDATE a SET n = n + 1 WHERE id % 7 = (SELECT count(*) FROM b) % 7")
        run("DELETE FROM a WHERE id IN (SELECT min(id) FROM a)")
        run("INSERT INTO a SELECT max(id) + 1, 0, 'new' FROM a")
        run("UPDATE a SET id = id + 1000000 WHERE id IN (SELECT id FROM a WHERE id < 1000000 ORDER BY id DESC LIMIT 1)")
        run("INSERT INTO b SELECT coalesce(max(id), 0) + 1, 0, 'new' FROM b")
        run("UPDATE b SET n = n + 1 WHERE id % 2 = 0")
        connection.commit()


def done_chunks(database: Database) -> int:
    """Chunks of running copies that are published."""
    return int(database.rows("SELECT count(*) FROM modak.copy_chunks WHERE done_at IS NOT NULL")[0][0])


@pytest.fixture
def mirror(database: Database, warehouse: str) -> Mirror:
    database.execute(
        # Copied before the other table, as long as the server knows no size of it.
        "CREATE TABLE a (id int PRIMARY KEY, n int, v text) WITH (autovacuum_enabled = off)",
        "CREATE TABLE b (id int PRIMARY KEY, n int, v text)",
        "INSERT INTO a SELECT -g, 0, repeat('v', 200) FROM generate_series(1, 1000) g",
    )
    return Mirror.create(database, warehouse, ThreadTaskRunner())


@killed_at(STREAM_DEATHS, (Step.WRITTEN, 3), (Step.STAGED, 1), (Step.PUBLISHED, 3), (Step.ACKNOWLEDGED, 1))
def test_a_pump_killed_at_steps_of_the_stream(mirror: Mirror, deaths: tuple[Death, ...]) -> None:
    assert_survives(mirror, deaths, "threads", mirror)


@pytest.mark.soak
def test_a_pump_with_spark_killed_at_steps_of_the_stream(mirror: Mirror, spark: SparkSession) -> None:
    """Around the publish. Tasks may still be writing when their driver is gone."""
    survivor = Mirror(mirror.database, mirror.settings, SparkTaskRunner(spark, 2))
    assert_survives(mirror, ((Step.RECEIVED, 2), (Step.PUBLISHED, 2)), "spark", survivor)
    session = lake_session(spark, mirror.database.dsn, mirror.settings.require_warehouse())
    for table in ("public.a", "public.b"):
        assert_same(mirror.heap(table), normalised(read_spark(session, table)), f"{table} by Spark")


def assert_survives(mirror: Mirror, deaths: tuple[Death, ...], runner: str, survivor: Mirror) -> None:
    """Each pump goes on where the one before it died, and `survivor` with what the last one left."""
    mirror.register("a", "b")
    mirror.catch_up()
    frontiers = [mirror.frontier()]
    for number, (step, nth) in enumerate(deaths, 1):
        write(mirror.database, number * 10)
        options: dict[str, Any] = {"batch_bytes": 1, "segment_bytes": 3000} if step != Step.STREAMING else {}
        die(mirror, step, nth, runner, **options)
        frontiers.append(mirror.frontier())
        mirror.assert_sound()
    assert survivor.catch_up().frontier >= frontiers[-1]
    assert frontiers == sorted(frontiers)
    assert frontiers[-1] > frontiers[0]
    mirror.assert_equal("public.a", "public.b")
    mirror.assert_sound()


@killed_at(COPY_DEATHS, (Step.CHUNK_COPIED, 2), (Step.STAGED, 2), (Step.CHUNKS_PUBLISHED, 2))
def test_a_copy_killed_at_steps(mirror: Mirror, deaths: tuple[Death, ...]) -> None:
    """While rows change: each kill leaves chunks published, copied in vain, or not begun."""
    mirror.register("a", "b")
    for number, (step, nth) in enumerate(deaths):
        write(mirror.database, number * 10 + 10)
        die(mirror, step, nth, copy_chunk_bytes=8192, copy_workers=2)
        mirror.assert_sound()
    steps = Steps()
    ((planned, done),) = mirror.database.rows(
        "SELECT count(*), count(done_at) FROM modak.copy_chunks WHERE table_id = 'a'::regclass::oid"
    )
    assert 0 < done < planned
    write(mirror.database, 100)
    # A session that found the slot held would read chunks that the next one reads again.
    await_true(lambda: not mirror.database.rows("SELECT FROM pg_replication_slots WHERE active"), 20, "nobody streams")
    mirror.with_options(copy_chunk_bytes=8192).catch_up(steps)
    assert "public.a" not in steps.details(Step.COPY_PLANNED, "table"), "what was planned is not planned again"
    read = steps.details(Step.CHUNK_COPIED, "table").count("public.a")
    assert read == planned - done, "finished chunks are not read again"
    assert mirror.state("public.a") == mirror.state("public.b") == "live"
    mirror.assert_equal("public.a", "public.b")
    mirror.assert_sound()


@killed_at(
    CONVERSION_DEATHS, ("positions-written", 1), ("positions-written/staged", 1), ("positions-written/published", 1)
)
def test_a_delete_conversion_killed_at_steps(mirror: Mirror, spark: SparkSession, deaths: tuple[Death, ...]) -> None:
    """While rows change. A file that no publish names is removed; one that a publish names is not written again."""
    mirror.register("a", "b")
    mirror.catch_up()
    for number, (step, nth) in enumerate(deaths, 1):
        write(mirror.database, number * 10)
        die(mirror, step, nth, convert_age=0, index_memory=0)
        mirror.assert_sound()
    write(mirror.database, 200)
    steps = Steps()
    with mirror.with_options(convert_age=0, index_memory=0).pumping(steps):
        mirror.await_frontier()
        await_true(
            lambda: not (pending_deletes(mirror, "public.a") or pending_deletes(mirror, "public.b")), 120, "done"
        )
    assert steps.count(Step.CONVERTED)
    assert not steps.count(Step.CONVERSION_FAILED)
    mirror.assert_equal("public.a", "public.b")
    session = lake_session(spark, mirror.database.dsn, mirror.settings.require_warehouse())
    for table in ("public.a", "public.b"):
        heap = mirror.heap(table)
        assert_same(heap, normalised(read_spark(session, table)), f"{table} by Spark")
        scanned = StaticTable.from_metadata(mirror.location(table)).scan().to_arrow()
        assert_same(heap, normalised(list(zip(*scanned.to_pydict().values(), strict=True))), f"{table} by pyiceberg")


@killed_at(
    INDEX_DEATHS,
    ("index-building", 2), ("index-ready/staged", 2), ("index-ready/published", 2), ("index-ready/merge-written", 2),
)  # fmt: skip
def test_an_index_killed_at_steps(mirror: Mirror, deaths: tuple[Death, ...]) -> None:
    """While rows change, deletes are written by position as they are committed, and files are merged. The next pump
    builds its index from what is published, whatever was under way."""
    mirror.register("a", "b")
    mirror.catch_up()
    for step, nth in deaths:
        die(mirror, step, nth, meanwhile=lambda: change(mirror.database))
        mirror.assert_sound()
    steps = Steps()
    with mirror.with_options(convert_age=0).pumping(steps) as running:
        for _ in range(30):
            change(mirror.database)
            mirror.await_frontier()
            if steps.details(Step.INDEX_READY, "table").count("public.a"):
                break
        change(mirror.database)
        mirror.await_frontier()
        await_true(
            lambda: not (pending_deletes(mirror, "public.a") or pending_deletes(mirror, "public.b")), 120, "done"
        )
        assert check_indexes(running.pump, mirror.runner, mirror.database)
    mirror.assert_equal("public.a", "public.b")
    for table in ("public.a", "public.b"):
        scanned = StaticTable.from_metadata(mirror.location(table)).scan().to_arrow()
        rows = normalised(list(zip(*scanned.to_pydict().values(), strict=True)))
        assert_same(mirror.heap(table), rows, f"{table} by pyiceberg")


@killed_at(MERGE_DEATHS, ("merge-written", 1), ("merge-written/staged", 1), ("merge-written/published", 1))
def test_a_merge_killed_at_steps(mirror: Mirror, spark: SparkSession, deaths: tuple[Death, ...]) -> None:
    """While rows change, and conversions land."""
    mirror.register("a", "b")
    mirror.catch_up()
    for number, (step, nth) in enumerate(deaths):
        for part in range(3):
            write(mirror.database, number * 30 + part * 10)
        die(mirror, step, nth, convert_age=0, batch_bytes=1)
        mirror.assert_sound()
    write(mirror.database, 400)
    steps = Steps()
    with mirror.with_options(convert_age=0, batch_bytes=1).pumping(steps):
        mirror.await_frontier()
        await_true(lambda: steps.count(Step.MERGED), 120, "a merge lands")
        await_true(
            lambda: data_files(mirror, "public.a") + data_files(mirror, "public.b") <= 40, 120, "files are merged"
        )
    assert not steps.count(Step.MERGE_FAILED)
    mirror.assert_equal("public.a", "public.b")
    session = lake_session(spark, mirror.database.dsn, mirror.settings.require_warehouse())
    for table in ("public.a", "public.b"):
        assert_same(mirror.heap(table), normalised(read_spark(session, table)), f"{table} by Spark")


@killed_at(FILL_DEATHS, ("filling/staged", 1), ("filling/published", 1), ("filled/published", 1))
def test_a_fill_of_a_table_with_old_rows_killed_at_steps(
    retention_tables: RetentionTables, database: Database, deaths: tuple[Death, ...]
) -> None:
    """While corrections are written. Each kill leaves a fill that the next pump completes, unless another column was
    added."""
    events = retention_tables.manual(rows=20, fold_age=0.1)
    mirror = events.mirror
    with mirror.pumping() as running:
        mirror.await_live("public.events")
        events.advance(running)
    for number, (step, nth) in enumerate(deaths):
        with database.session(autocommit=False) as connection:
            upsert(connection, number, number, "before")
            for table in ("events", "model"):
                connection.execute(f"ALTER TABLE {table} ADD COLUMN c{number} int NOT NULL DEFAULT {number}".encode())
            upsert(connection, number + 10, number, "behind")
        events.columns += f", c{number}"
        die(mirror, step, nth, fold_age=0.1)
        events.assert_exact()
        mirror.assert_sound()
    steps = Steps()
    with mirror.pumping(steps) as running:
        mirror.await_live("public.events")
        await_true(lambda: database.rows("SELECT count(*) FROM modak.delta") == [(0,)], 30, "the fold")
        events.advance(running)
        events.assert_exact()
    assert not steps.count(Step.TABLE_COPIED_AGAIN)
    assert_verified(database)


def data_files(mirror: Mirror, table: str) -> int:
    """The table's live data files."""
    return LakeTable.load(mirror.location(table), StorageOptions()).data_files


def pending_deletes(mirror: Mirror, table: str) -> int:
    """Rows in the table's live equality-delete files."""
    return LakeTable.load(mirror.location(table), StorageOptions()).equality_deletes


@pytest.mark.soak
def test_register_killed_as_a_process_goes_on_where_it_was(database: Database, tmp_path: Path) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT g, repeat('v', 500) FROM generate_series(1, 40000) g",
    )
    program = Program(database.dsn, tmp_path)
    slot = f"s_{os.urandom(4).hex()}"
    program.run("init", "--warehouse", str(tmp_path / "lake"), "--slot", slot, "--publication", slot)
    audit(database)
    chunks = ("--copy-chunk-bytes", "64kB", "--copy-workers", "2")
    process = program.start("register", "t", *chunks, log="first.log")
    try:
        await_true(lambda: done_chunks(database) >= 5, 90, "five chunks are published")
    finally:
        program.kill(process)
    done = done_chunks(database)
    planned = database.rows("SELECT count(*) FROM modak.copy_chunks")[0][0]
    assert 5 <= done < planned
    database.execute("UPDATE t SET v = 'changed' WHERE id % 5 = 0", "DELETE FROM t WHERE id % 7 = 0")

    assert "public.t: live" in program.run("register", "t", *chunks)

    times = database.rows(
        "SELECT published, count(*) FROM (SELECT count(*) AS published FROM audit.chunks GROUP BY chunk_no) c"
        " GROUP BY 1"
    )
    assert times == [(1, planned)], "each chunk was published once, by one run or by the other"
    files = list((tmp_path / "lake").glob("public/t-*/data/*.parquet"))
    assert len(files) < planned + 20, "finished chunks were not read again"
    settings = Settings(dsn=database.dsn, slot=slot)
    mirror = Mirror(database, settings, ThreadTaskRunner())
    program.run("run", "--once")
    mirror.assert_equal("public.t")
    mirror.assert_sound()
