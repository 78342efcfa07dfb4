"""TRUNCATE, repeated copies and schema changes of a table whose old rows are only in the lake: these rows stay."""

from __future__ import annotations

import pytest

from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import await_true, lake_rows
from tests.support.events_table import EventsTable, RetentionTables, upsert
from tests.support.pipeline import writing
from tests.support.retention_table import WIDTH, run


def _main(events: EventsTable) -> list[tuple[object, ...]]:
    """Main's rows at or above the cut-line."""
    rows = lake_rows(events.mirror.location("public.events"))
    return sorted(row for row in rows if row[0] >= events.cut)


def _hot(events: EventsTable) -> list[tuple[object, ...]]:
    with events.mirror.database.connect() as connection:
        return sorted(run(connection, f"SELECT * FROM events WHERE at >= {events.cut}").fetchall())


@pytest.mark.further
def test_truncate_concerns_rows_from_the_cutline_on(retention_tables: RetentionTables, database: Database) -> None:
    events = retention_tables.manual(fold_age=3600, index_memory=1 << 24)
    mirror = events.mirror
    with mirror.pumping() as running:
        mirror.await_live("public.events")
        # One file with rows on both sides of the cut-line, deletes among them.
        with database.connect(autocommit=False) as connection:
            for at in range(0, 3 * WIDTH, 7):
                upsert(connection, at, 1, "before")
        mirror.await_frontier()
        events.advance(running)
        with database.connect(autocommit=False) as connection:
            upsert(connection, 3, 3, "corrected")
            connection.execute("TRUNCATE events")
            run(connection, f"DELETE FROM model WHERE at >= {events.cut}")
            upsert(connection, WIDTH + 1, 1, "after")
        mirror.await_frontier()
        events.assert_exact()
        assert _main(events) == _hot(events)
        assert len(_main(events)) == 1
        events.advance(running)
        events.assert_exact()
        assert mirror.state("public.events") == "live"
        assert len(events.seam()[0]) > 50, "the old rows are there"


@pytest.mark.further
@pytest.mark.parametrize("index_memory", [0, pytest.param(1 << 24, marks=pytest.mark.soak)])
def test_a_copy_that_begins_again_leaves_old_rows_alone(
    retention_tables: RetentionTables, database: Database, index_memory: int
) -> None:
    """Earlier equality deletes stay because of the old rows, and must not apply to the rows of the new copy."""
    events = retention_tables.manual(fold_age=0.1, index_memory=index_memory, convert_age=3600)
    mirror = events.mirror
    with mirror.pumping() as running:
        mirror.await_live("public.events")
        with database.connect(autocommit=False) as connection:
            run(connection, "UPDATE events SET n = n + 1")
            run(connection, "UPDATE model SET n = n + 1")
        mirror.await_frontier()
        events.advance(running)
        with writing(database, events.write, 5) as written:
            before = written()
            with database.connect(autocommit=False) as connection:
                connection.execute("TRUNCATE p2")
                run(connection, f"DELETE FROM model WHERE at >= {2 * WIDTH}")
            await_true(lambda: running.steps.count(Step.TABLE_COPIED_AGAIN) == 1, 20, "a copy that begins again")
            mirror.await_live("public.events")
            while written() < before + 40:
                events.assert_exact()
        mirror.await_frontier()
        events.assert_exact()
        assert _main(events) == _hot(events)
        events.advance(running)
        events.assert_exact()
        assert running.steps.count(Step.RETRYING) == 0
    mirror.assert_sound()


@pytest.mark.further
def test_what_would_make_old_rows_wrong_fails_the_table(retention_tables: RetentionTables, database: Database) -> None:
    events = retention_tables.manual(fold_age=0.1)
    mirror = events.mirror
    with mirror.pumping() as running:
        mirror.await_live("public.events")
        events.advance(running)
        before = events.seam()[0]
        database.execute("ALTER TABLE events ADD COLUMN c int DEFAULT 1, ADD COLUMN flag float8 DEFAULT random()")
        await_true(lambda: mirror.state("public.events") == "failed", 20, "the table fails")
        assert "column flag is new and may have values" in mirror.error("public.events")
        assert "old rows are in the lake alone" in mirror.error("public.events")
        assert "add such a column without a default" in mirror.error("public.events")
        database.execute("ALTER TABLE events DROP COLUMN c, DROP COLUMN flag")
        assert events.seam()[0] == before, "what is there stays readable"


@pytest.mark.further
def test_corrections_follow_their_columns_names(retention_tables: RetentionTables, database: Database) -> None:
    events = retention_tables.manual(partitions=2, fold_age=3600)
    mirror = events.mirror
    with mirror.pumping() as running:
        mirror.await_live("public.events")
        events.advance(running)
        with database.connect(autocommit=False) as connection:
            upsert(connection, 3, 3, "renamed")
        for table in ("events", "model"):
            with database.connect() as connection:
                run(connection, f"ALTER TABLE {table} RENAME COLUMN v TO w")
                run(connection, f"ALTER TABLE {table} DROP COLUMN big")
                run(connection, f"ALTER TABLE {table} ADD COLUMN big text")
        mirror.await_frontier()
        payload = database.rows("SELECT payload FROM modak.delta")[0][0]
        assert payload == {"at": 3, "id": 3, "n": 7, "w": "renamed", "big": None}
    with mirror.with_options(fold_age=0.1).pumping() as running:
        await_true(lambda: database.rows("SELECT count(*) FROM modak.delta") == [(0,)], 20, "the fold")
        assert (3, 3, 7, "renamed", None) in lake_rows(mirror.location("public.events"))


@pytest.mark.further
def test_rows_of_a_partition_that_was_dropped_do_not_go_with_a_copy_again(
    retention_tables: RetentionTables, database: Database
) -> None:
    events = retention_tables.manual()
    mirror = events.mirror
    with mirror.pumping():
        mirror.await_live("public.events")
        mirror.await_frontier()
        before = _main(events)
        database.execute("DROP TABLE p1")
        database.execute("TRUNCATE p2")
        await_true(lambda: mirror.state("public.events") == "failed", 20, "the table fails")
        assert "of partitions that were dropped or detached above the cut-line" in mirror.error("public.events")
        assert _main(events) == before
