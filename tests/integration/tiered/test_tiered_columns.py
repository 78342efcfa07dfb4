"""Changes of tiered tables' columns are followed without a stream."""

from __future__ import annotations

from mirror_pump.testing.lake import duckdb_connection
from mirror_pump.testing.mirror import await_true
from tests.support.events_table import EventsTable
from tests.support.retention_table import run
from tests.support.tiered import TieredTables


def _columns(events: EventsTable) -> list[str]:
    rows = events.database.rows(
        "SELECT c ->> 'name' FROM modak.mirror_tables m, jsonb_array_elements(m.columns) c"
        " ORDER BY (c ->> 'attnum')::int"
    )
    return [name for (name,) in rows]


def test_added_renamed_dropped_and_widened_columns_are_followed(tiered_tables: TieredTables) -> None:
    """With rows below the cut-line that the lake alone has, with corrections, and with a partition that is being
    copied."""
    runner = tiered_tables.gated()
    events = tiered_tables.tiered(partitions=4, rows=60, runner=runner)
    mirror, database = events.mirror, events.mirror.database
    with mirror.pumping(), duckdb_connection() as duckdb:
        events.await_state(p1="dropped")
        runner.hold()
        events.grow()
        events.await_state(p2="sealing")
        await_true(lambda: runner.waiting, 30, "p2 is being copied")
        database.execute('SELECT modak.upsert(\'events\', \'{"at": 5, "id": 5, "n": 1, "v": "old"}\')')
        database.execute(
            "INSERT INTO model VALUES (5, 5, 1, 'old') ON CONFLICT (at, id) DO UPDATE SET n = 1, v = 'old'"
        )
        for table in ("events", "model"):
            with database.session(autocommit=False) as connection:
                run(
                    connection,
                    f"ALTER TABLE {table} ADD COLUMN source text NOT NULL DEFAULT 'web', ADD COLUMN late int",
                )
                run(connection, f"ALTER TABLE {table} RENAME COLUMN v TO text_value")
                run(connection, f"ALTER TABLE {table} ALTER COLUMN n TYPE bigint")
        events.columns = "at, id, n, text_value, source, late"
        await_true(lambda: _columns(events) == events.columns.split(", "), 60, "the columns are followed")
        runner.let_go()
        mirror.await_live("public.events")
        events.await_state(p2="dropped")
        events.assert_exact(duckdb)
        database.execute("ALTER TABLE events DROP COLUMN late", "ALTER TABLE model DROP COLUMN late")
        events.columns = "at, id, n, text_value, source"
        await_true(lambda: _columns(events) == events.columns.split(", "), 60, "the column is gone")
        events.grow()
        events.await_state(p3="dropped")
        events.assert_exact(duckdb)
    assert database.rows("SELECT count(*) FROM modak.partition_chunks") == [(0,)]


def test_a_column_whose_old_values_nobody_knows_makes_the_table_fail_readable(tiered_tables: TieredTables) -> None:
    events = tiered_tables.tiered(partitions=3, rows=20)
    mirror, database = events.mirror, events.mirror.database
    with mirror.pumping(), duckdb_connection() as duckdb:
        events.await_state(p0="dropped")
        database.execute("ALTER TABLE events ADD COLUMN token uuid DEFAULT gen_random_uuid()")
        await_true(lambda: mirror.state("public.events") == "failed", 30, "the table fails")
        assert "column token is new" in mirror.error("public.events")
        events.assert_exact(duckdb)


def test_a_table_without_rows_in_the_lake_follows_anything(tiered_tables: TieredTables) -> None:
    events = tiered_tables.tiered(partitions=3, rows=20, lag="100000")
    mirror, database = events.mirror, events.mirror.database
    with mirror.pumping():
        database.execute(
            "ALTER TABLE events ADD COLUMN token uuid DEFAULT gen_random_uuid()", "ALTER TABLE events ALTER n TYPE text"
        )
        await_true(lambda: _columns(events) == ["at", "id", "n", "v", "token"], 30, "the columns are followed")
        database.execute("DROP TABLE events")
        await_true(lambda: mirror.state("public.events") == "dropped", 30, "the drop is noticed")
