"""Conversions in a running pump, read by independent engines: every kind of key, and changes in between."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from mirror_pump.engine.spark_runtime.runner import SparkTaskRunner
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import lake_session, read_spark
from mirror_pump.testing.mirror import Mirror, Steps, assert_same, await_true, normalised
from mirror_pump.testing.tasks import GatedCopies, ThreadTaskRunner
from tests.support.pending_deletes import KEYS, await_converted, pending, scanned

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.soak
def test_every_kind_of_key(database: Database, warehouse: str, spark: SparkSession) -> None:
    tables = [f"public.{name}" for name in KEYS]
    for name, (columns, key, expression) in KEYS.items():
        database.execute(
            f"CREATE TABLE {name} ({columns}, n int, PRIMARY KEY ({key}))",
            f"INSERT INTO {name} SELECT {expression}, 0 FROM generate_series(1, 300) g",
        )
    mirror = Mirror.create(database, warehouse, SparkTaskRunner(spark, 4), convert_age=0, index_memory=0)
    mirror.register(*tables)
    steps = Steps()
    with mirror.pumping(steps):
        mirror.await_live(*tables)
        for turn in range(3):
            for name, (_, key, expression) in KEYS.items():
                database.execute(
                    f"UPDATE {name} SET n = n + 1 WHERE random() < 0.3",
                    f"DELETE FROM {name} WHERE random() < 0.1",
                    f"INSERT INTO {name} SELECT {expression}, {turn} FROM generate_series(1, 300, 7) g"
                    f" ON CONFLICT ({key}) DO UPDATE SET n = -1",
                )
            mirror.await_frontier()
        await_converted(mirror, *tables)
    assert {str(table) for table in steps.details(Step.CONVERTED, "table")} == set(tables)
    assert not steps.count(Step.CONVERSION_FAILED)
    session = lake_session(spark, database.dsn, mirror.settings.require_warehouse())
    for table in tables:
        heap = mirror.heap(table)
        assert_same(heap, mirror.lake(table), f"{table} by DuckDB")
        assert_same(heap, scanned(mirror, table), f"{table} by pyiceberg")
        summary = LakeTable.load(mirror.location(table), StorageOptions()).summary.entries
        assert int(summary["total-records"]) - int(summary["total-position-deletes"]) == len(heap)
    for table in tables[:3]:
        assert_same(mirror.heap(table), normalised(read_spark(session, table)), f"{table} by Spark")


@pytest.fixture
def mirror(database: Database, warehouse: str) -> Mirror:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t SELECT g, 0 FROM generate_series(1, 1000) g"
    )
    return Mirror.create(
        database, warehouse, GatedCopies(ThreadTaskRunner()), convert_age=0, index_memory=0, merge_bytes=0
    )


def test_a_truncate_while_positions_are_looked_up(mirror: Mirror) -> None:
    database = mirror.database
    truncated = threading.Event()

    def on_step(step: Step, _details: dict[str, object]) -> None:
        if step is Step.POSITIONS_WRITTEN and not truncated.is_set():
            # In the conversion's thread: it continues when the TRUNCATE is published.
            truncated.set()
            database.execute("TRUNCATE t", "INSERT INTO t SELECT g, 7 FROM generate_series(1, 50) g")
            mirror.await_frontier()

    steps = Steps(on_step)
    mirror.register("t")
    with mirror.pumping(steps):
        mirror.await_live("public.t")
        database.execute("UPDATE t SET n = 1 WHERE id % 3 = 0")
        await_true(lambda: steps.count(Step.CONVERSION_REFUSED), 30, "the conversion is refused")
        mirror.assert_equal("public.t")
        database.execute("UPDATE t SET n = 8 WHERE id % 3 = 0")
        await_converted(mirror, "public.t")
    mirror.assert_equal("public.t")
    assert_same(mirror.heap("public.t"), scanned(mirror, "public.t"), "by pyiceberg")


@pytest.mark.soak
def test_another_engine_rewrites_the_files_meanwhile(mirror: Mirror, spark: SparkSession) -> None:
    database = mirror.database
    session = lake_session(spark, database.dsn, mirror.settings.require_warehouse())
    rewrite = "CALL lake.system.rewrite_data_files(table => 'public.t', options => map('rewrite-all', 'true'))"
    rewritten = threading.Event()

    def on_step(step: Step, _details: dict[str, object]) -> None:
        if step is Step.POSITIONS_WRITTEN and not rewritten.is_set():
            rewritten.set()
            session.sql(rewrite).collect()

    steps = Steps(on_step)
    mirror.register("t")
    with mirror.pumping(steps):
        mirror.await_live("public.t")
        database.execute("UPDATE t SET n = 1 WHERE id % 3 = 0")
        await_true(lambda: steps.count(Step.CONVERSION_REFUSED), 60, "the conversion is refused")
        database.execute("UPDATE t SET n = 2 WHERE id % 5 = 0", "DELETE FROM t WHERE id % 7 = 0")
        await_converted(mirror, "public.t")
        mirror.assert_equal("public.t")
        # A rewrite without interference, with position deletes to apply.
        session.sql(rewrite).collect()
        database.execute("UPDATE t SET n = 3 WHERE id % 11 = 0")
        await_converted(mirror, "public.t")
    mirror.assert_equal("public.t")
    assert_same(mirror.heap("public.t"), scanned(mirror, "public.t"), "by pyiceberg")
    assert_same(mirror.heap("public.t"), normalised(read_spark(session, "public.t")), "by Spark")


@pytest.mark.further
def test_nothing_is_converted_while_a_table_is_copied(mirror: Mirror) -> None:
    gate = mirror.runner
    assert isinstance(gate, GatedCopies)
    steps = Steps()
    mirror.database.execute("CREATE TABLE other (id int PRIMARY KEY, n int)", "INSERT INTO other VALUES (1, 0)")
    mirror.register("other")
    mirror.catch_up()
    gate.hold()
    mirror.register("t")
    with mirror.pumping(steps):
        mirror.database.execute("UPDATE t SET n = 1 WHERE id % 3 = 0", "DELETE FROM t WHERE id % 4 = 0")
        await_true(lambda: pending(mirror, "public.t"), 30, "deletes of the stream are in the lake")
        mirror.await_frontier()
        location = mirror.location("public.t")
        # The conversion job works on other tables meanwhile, so it has skipped this one.
        for number in (1, 2):
            mirror.database.execute(f"UPDATE other SET n = {number}")
            await_converted(mirror, "public.other")
        assert set(steps.details(Step.CONVERTING, "table")) == {"public.other"}
        assert mirror.location("public.t") == location
        gate.let_go()
        mirror.await_live("public.t")
        await_converted(mirror, "public.t")
    assert "public.t" in steps.details(Step.CONVERTED, "table")
    mirror.assert_equal("public.t", "public.other")
