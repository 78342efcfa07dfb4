"""A correction equals the row that it was made from, for every type and its edge cases: folded, it changes nothing."""

from __future__ import annotations

from pathlib import Path

from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.events_table import EventsTable
from tests.support.maintenance import STORAGE
from tests.support.retention_table import run
from tests.support.type_oracle import CASES, by_duckdb, create_pool, lake_types


def test_a_row_that_is_corrected_into_itself_stays_what_it_was(database: Database, tmp_path: Path) -> None:
    with database.connect() as connection:
        create_pool(connection, "pool")
        for number, case in enumerate(CASES):
            # The embedded server is built without libxml, so it reads no xml. No server reads a pg_node_tree.
            if case.type.startswith(("xml", "pg_node_tree")):
                run(connection, f"ALTER TABLE pool DROP COLUMN c{number}")
    mirror = Mirror.create(database, tmp_path.as_uri(), ThreadTaskRunner(), fold_age=0.05, convert_age=0.05)
    events = EventsTable(database, 2, key="id", mirror=mirror)
    events.create_tables("LIKE pool INCLUDING ALL", default=True)
    database.execute("INSERT INTO events SELECT * FROM pool")
    mirror.register("public.events")
    events.record_retention()
    with mirror.pumping() as running:
        mirror.await_live("public.events")
        events.advance(running)
        table = LakeTable.load(mirror.location("public.events"), STORAGE)
        types = lake_types(table)
        before = by_duckdb(table.metadata_location, types)
        database.execute("UPDATE events SET n = n")
        folded = (Step.FOLDED, Step.FOLD_FAILED)
        await_true(lambda: any(running.steps.count(step) for step in folded), 60, "the fold")
        assert running.steps.details(Step.FOLD_FAILED, "error") == []
        assert running.steps.details(Step.FOLDED, "rows") == [len(before["id"])]
        after = by_duckdb(mirror.location("public.events"), types)
        assert {name: (before[name], after[name]) for name in types if before[name] != after[name]} == {}
