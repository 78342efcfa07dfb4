"""The cut-line moves: before, meanwhile and afterwards a seam read finds every row once, with the published snapshot
scanned without a filter."""

from __future__ import annotations

from pathlib import Path

from mirror_pump.engine.spark_runtime.runner import TaskRunner
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import duckdb_connection
from mirror_pump.testing.mirror import Mirror, lake_rows
from tests.support.cutline_tables import ManualRetention
from tests.support.pipeline import writing
from tests.support.retention import WIDTH, run


def test_a_seam_read_is_exact_while_t_moves(database: Database, tmp_path: Path, runner: TaskRunner) -> None:
    mirror = Mirror.create(database, tmp_path.as_uri(), runner)
    divided = ManualRetention.create(mirror)
    with mirror.pumping() as running:
        mirror.await_live("public.events")
        with duckdb_connection() as duckdb:
            with writing(database, divided.write, 7) as written:
                for _ in range(2):
                    divided.seal()
                    divided.assert_exact(duckdb)
                    divided.finish_advance(running)
                    before = written()
                    while written() < before + 20:
                        divided.assert_exact(duckdb)
            divided.assert_exact(duckdb)
            assert divided.cut == 2 * WIDTH
            assert running.steps.count(Step.TIER_ADVANCED) == 2
            assert running.steps.count(Step.RETRYING) == 0
            mirror.await_frontier()
            with database.connect() as connection:
                hot = run(connection, f"SELECT {divided.columns} FROM events WHERE at >= {divided.cut}").fetchall()
            main = lake_rows(mirror.location("public.events"), duckdb)
            assert sorted(row for row in main if row[0] >= divided.cut) == sorted(hot)
    mirror.assert_sound()
