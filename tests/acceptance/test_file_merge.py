"""Merges in a running pump, read by independent engines: with tasks in Spark, and changes in between."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from mirror_pump.engine.spark_runtime.runner import SparkTaskRunner
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.document.snapshot_stats import snapshot_stats
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import lake_session, read_spark
from mirror_pump.testing.mirror import Mirror, Steps, assert_same, await_true, normalised
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.pending_deletes import assert_read, await_index

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def table_of(mirror: Mirror) -> LakeTable:
    return LakeTable.load(mirror.location("public.t"), StorageOptions())


def write(database: Database, turn: int) -> None:
    """Ten transactions, each of which is a commit to the lake."""
    for number in range(10):
        first = 1000 * turn + 10 * number
        database.execute(
            f"INSERT INTO t SELECT g, {turn} FROM generate_series({first}, {first + 5}) g",
            f"UPDATE t SET n = n + 1 WHERE id % 10 = {number}",
            f"DELETE FROM t WHERE id = {first + 3}",
        )


@pytest.fixture
def t(database: Database) -> Database:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t SELECT -g, 0 FROM generate_series(1, 500) g"
    )
    return database


@pytest.mark.soak
def test_small_files_are_merged_while_the_stream_goes_on(t: Database, warehouse: str, spark: SparkSession) -> None:
    mirror = Mirror.create(t, warehouse, SparkTaskRunner(spark, 4), batch_bytes=1, convert_age=0)
    mirror.register("t")
    steps = Steps()
    with mirror.pumping(steps):
        mirror.await_live("public.t")
        for turn in range(1, 3):
            write(t, turn)
        mirror.await_frontier(seconds=180)
        await_true(lambda: table_of(mirror).data_files <= 30, 120, "small files are merged")
        mirror.assert_equal("public.t")
    assert steps.count(Step.MERGED)
    assert not steps.count(Step.MERGE_FAILED)
    written = snapshot_stats(table_of(mirror).metadata)
    assert written.written > 0
    assert written.rewritten > 0
    mirror.assert_equal("public.t")
    session = lake_session(spark, t.dsn, mirror.settings.require_warehouse())
    assert_same(mirror.heap("public.t"), normalised(read_spark(session, "public.t")), "by Spark")


@pytest.mark.further
@pytest.mark.parametrize(
    "what",
    # tests/integration/maintenance/test_file_merge.py has the others without a pump.
    ["delete", "announce", *(pytest.param(what, marks=pytest.mark.soak) for what in ("truncate", "rewrite"))],
)
def test_what_comes_while_files_are_merged(t: Database, warehouse: str, spark: SparkSession, what: str) -> None:
    """Each change comes before the merge is published: the merge is refused, or lands with the change."""
    mirror = Mirror.create(t, warehouse, ThreadTaskRunner(), batch_bytes=1, convert_age=0)
    session = lake_session(spark, t.dsn, mirror.settings.require_warehouse())
    done, written = threading.Event(), threading.Event()

    def on_step(step: Step, _details: dict[str, object]) -> None:
        if step is not Step.MERGE_WRITTEN or done.is_set():
            return
        # In the merge's thread: it continues when this is published.
        done.set()
        if what == "truncate":
            t.execute("TRUNCATE t", "INSERT INTO t SELECT g, 7 FROM generate_series(1, 50) g")
        elif what == "delete":
            t.execute("DELETE FROM t WHERE id % 3 = 0", "UPDATE t SET n = -1 WHERE id % 5 = 0")
        elif what == "announce":
            # A rewrite that is under way: its commit would not find the files that the merge replaces.
            t.execute(
                "INSERT INTO modak.op_log (op_id, table_id, op_kind, phase, details)"
                " VALUES (gen_random_uuid(), 't'::regclass::oid, 'compaction', 'rewriting', '{\"since_sequence\": 1}')"
            )
        else:
            # Position deletes that land while Spark rewrites make its commit fail.
            assert written.wait(60)
            mirror.await_frontier()
            session.sql(
                "CALL lake.system.rewrite_data_files(table => 'public.t', options => map('rewrite-all', 'true'))"
            )
        mirror.await_frontier()

    steps = Steps(on_step)
    mirror.register("t")
    with mirror.pumping(steps):
        mirror.await_live("public.t")
        write(t, 1)
        written.set()
        await_true(done.is_set, 120, "files are merged")
        expected = Step.MERGED if what == "delete" else Step.MERGE_REFUSED
        await_true(lambda: steps.count(expected), 120, "the merge is published, or refused")
        t.execute("UPDATE modak.op_log SET phase = 'done' WHERE phase = 'rewriting'")
        mirror.await_frontier()
        mirror.assert_equal("public.t")
        write(t, 2)
        write(t, 3)
        await_true(lambda: steps.count(Step.MERGED), 120, "a later merge lands")
        mirror.await_frontier()
    mirror.assert_equal("public.t")
    assert_same(mirror.heap("public.t"), normalised(read_spark(session, "public.t")), "by Spark")


def test_a_file_with_many_deleted_rows_is_rewritten_and_the_key_index_follows(t: Database, warehouse: str) -> None:
    mirror = Mirror.create(t, warehouse, ThreadTaskRunner(), batch_bytes=1, convert_age=0)
    mirror.register("t")
    steps = Steps()
    with mirror.pumping(steps) as running:
        mirror.await_live("public.t")
        await_index(mirror, steps, "public.t", "DELETE FROM t WHERE id = (SELECT max(id) FROM t)")
        copied = {file.path for file in table_of(mirror).live_data_files() if file.records}
        for _ in range(10):
            t.execute("DELETE FROM t WHERE id IN (SELECT id FROM t ORDER BY id LIMIT 6)")
        await_true(
            lambda: copied.isdisjoint(file.path for file in table_of(mirror).live_data_files()), 60, "it is rewritten"
        )
        t.execute("UPDATE t SET n = n + 1")
        mirror.await_frontier()
        assert_read(mirror, running, "public.t")
    assert not steps.count(Step.MERGE_FAILED)
