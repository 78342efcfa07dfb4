"""The cut-line moves: before, during and after, a seam read finds every row once, and scans the published snapshot
without a filter."""

from __future__ import annotations

import pytest

from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import duckdb_connection
from mirror_pump.testing.mirror import lake_rows
from tests.support.events_table import RetentionTables
from tests.support.pipeline import writing
from tests.support.retention_table import WIDTH, run


@pytest.mark.further
def test_a_seam_read_is_exact_while_the_cutline_moves(retention_tables: RetentionTables, database: Database) -> None:
    events = retention_tables.manual()
    mirror = events.mirror
    with mirror.pumping() as running:
        mirror.await_live("public.events")
        with duckdb_connection() as duckdb:
            with writing(database, events.write, 7) as written:
                for _ in range(2):
                    events.seal()
                    events.assert_exact(duckdb)
                    events.finish_advance(running)
                    before = written()
                    while written() < before + 20:
                        events.assert_exact(duckdb)
            events.assert_exact(duckdb)
            assert events.cut == 2 * WIDTH
            assert running.steps.count(Step.TIER_ADVANCED) == 2
            assert running.steps.count(Step.RETRYING) == 0
            mirror.await_frontier()
            with database.connect() as connection:
                hot = run(connection, f"SELECT {events.columns} FROM events WHERE at >= {events.cut}").fetchall()
            main = lake_rows(mirror.location("public.events"), duckdb)
            assert sorted(row for row in main if row[0] >= events.cut) == sorted(hot)
    mirror.assert_sound()
