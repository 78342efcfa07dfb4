"""Tiered tables: partitions are copied when they leave the heap, without the stream, and every read is exact."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.lake import duckdb_connection
from mirror_pump.testing.mirror import Steps, await_true
from tests.support.lake_partitions import WIDTH, assert_divided, partition_of
from tests.support.pipeline import writing
from tests.support.retention_table import run
from tests.support.tiered import TieredTables

ROWS = 1500
"""Rows per partition: several chunks, and room for duplicate keys."""


def test_partitions_are_copied_under_writers_and_every_read_is_exact(tiered_tables: TieredTables) -> None:
    """Beside a plain mirrored table and a mirrored one with heap retention, in one session: no advance ends it."""
    events = tiered_tables.tiered(rows=ROWS)
    mirror, database = events.mirror, events.mirror.database
    database.execute("CREATE TABLE plain (id int PRIMARY KEY, v int)", "INSERT INTO plain VALUES (1, 1)")
    mirror.register("plain")
    assert mirror.state("public.events") == "live"
    assert database.rows(
        "SELECT mode, publication_name, slot_name, heap_retention_lag, keep_heap FROM modak.tables"
        " WHERE table_name = 'events'"
    ) == [("tiered", None, None, None, False)]
    assert database.rows("SELECT tablename FROM pg_publication_tables") == [("plain",)]
    with duckdb_connection() as duckdb:
        with mirror.pumping() as running, writing(database, events.write, random.getrandbits(32)) as written:

            def gone() -> bool:
                events.assert_exact(duckdb)
                states = events.states()
                return states["p0"] == states["p1"] == "dropped"

            await_true(gone, 60, f"p0 and p1 dropped: {events.explained()}")
            assert written() > 0
            database.execute("UPDATE plain SET v = v + 1")
            mirror.await_frontier()
            assert running.steps.count(Step.TIER_ADVANCED) == 2
            assert running.steps.count(Step.STREAMING) == 1, "the session goes on"
        events.assert_exact(duckdb)
    assert events.states() == {"p0": "dropped", "p1": "dropped", "p2": "hot", "p3": "hot"}
    assert events.cut == 200
    mirror.assert_equal("public.plain")
    journal = database.rows("SELECT details ->> 'kind' FROM modak.op_log WHERE op_kind = 'tiering'")
    assert sorted(kind for (kind,) in journal) == sorted(["seal", "copy", "advance", "prove", "drop"] * 2)
    assert database.rows(
        "SELECT replicated_lsn FROM modak.cutline c JOIN modak.tables t USING (table_id) WHERE table_name = 'events'"
    ) == [(None,)]
    mirror.assert_sound()


def _copied_more(steps: Steps, before: int) -> bool:
    return steps.count(Step.CHUNK_COPIED) > before


def test_a_killed_copy_goes_on_and_copies_no_chunk_twice(tiered_tables: TieredTables) -> None:
    """Rows are changed between chunks: some are then in two chunks, or in none. The lake table is partitioned: a chunk
    has several files."""
    runner = tiered_tables.gated()
    events = tiered_tables.tiered(partitions=3, rows=ROWS, runner=runner, copy_workers=2, lake_partition=str(WIDTH))
    mirror, database = events.mirror, events.mirror.database
    runner.hold()
    copied: list[Any] = []
    for _ in range(3):
        steps = Steps()
        with mirror.pumping(steps):
            await_true(lambda: runner.waiting >= 2, 30, "two chunks wait")
            before = steps.count(Step.CHUNK_COPIED)
            runner.let_go(1)
            await_true(partial(_copied_more, steps, before), 30, "a chunk is copied")
            with database.session(autocommit=False) as connection:
                for table in ("events", "model"):
                    run(
                        connection,
                        f"UPDATE {table} SET n = n + 1, v = repeat('moved', 9) WHERE at < 200 AND id % 50 = 7",
                    )
                    run(connection, f"DELETE FROM {table} WHERE at < 200 AND id % 300 = 11")
            events.assert_exact()
        copied += [(d["partition"], d["chunk"]) for step, d in steps.occurrences if step is Step.CHUNK_COPIED]
    assert database.rows("SELECT count(*) FROM modak.partition_chunks WHERE done_at IS NOT NULL") == [(len(copied),)]
    steps = Steps()
    runner.let_go()
    with mirror.pumping(steps):
        events.await_state(p0="dropped")
        events.assert_exact()
    copied += [(d["partition"], d["chunk"]) for step, d in steps.occurrences if step is Step.CHUNK_COPIED]
    assert len(copied) == len(set(copied)) > 5
    ((location,),) = database.rows("SELECT lake_props ->> 'metadata_location' FROM modak.cutline")
    assert set(assert_divided(location)) == {partition_of(at) for at in range(events.cut)}
    assert database.rows("SELECT count(*) FROM modak.partition_chunks") == [(0,)]
    events.assert_exact()
