"""Tables that keep their heap: at each moment a read across the cut-line equals a read of the heap."""

from __future__ import annotations

import random
from typing import Any, LiteralString

import psycopg
import pytest

from mirror_pump.ops.retain.retention import resume
from mirror_pump.testing.lake import duckdb_connection
from mirror_pump.testing.mirror import assert_same, await_true
from tests.support.events_table import COLUMNS, EventsTable
from tests.support.pipeline import writing
from tests.support.retention_table import run
from tests.support.tiered import TieredTables


def _assert_heap_is_whole(events: EventsTable) -> None:
    """The heap has every row of the model, and so has a read across the cut-line."""
    with events.database.session() as connection:
        heap = run(connection, f"SELECT {COLUMNS} FROM events").fetchall()
        model = run(connection, f"SELECT {COLUMNS} FROM model").fetchall()
    assert_same(model, heap, "the heap")
    events.assert_exact()


def _write(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    """Plain DML anywhere, and now and then a TRUNCATE of a partition."""
    at = chance.randrange(400)
    for table in ("events", "model"):
        match at % 5:
            case 0:
                run(connection, f"UPDATE {table} SET n = n + 1 WHERE at BETWEEN {at} AND {at + 9}")
            case 1:
                run(connection, f"DELETE FROM {table} WHERE at BETWEEN {at} AND {at + 2}")
            case 2 | 3:
                run(
                    connection,
                    f"INSERT INTO {table} VALUES ({at}, {at + 10_000}, 3, 'again')"
                    " ON CONFLICT (at, id) DO UPDATE SET n = 4",
                )
            case 4 if at < 40:
                part = "p0" if table == "events" else None
                run(connection, f"TRUNCATE {part}" if part else "DELETE FROM model WHERE at < 100")


def test_the_heap_stays_whole_and_equals_every_read_across_the_cutline(tiered_tables: TieredTables) -> None:
    """Under plain DML everywhere and TRUNCATE of a partition below the cut-line, before and after folds."""
    events = tiered_tables.tiered(rows=300, keep_heap=True, fold_age=0.3)
    mirror, database = events.mirror, events.mirror.database
    with duckdb_connection() as duckdb, mirror.pumping():
        with writing(database, _write, random.getrandbits(32)) as written:
            events.await_state(p1="tiered")
            count = written()
            while written() < count + 60:
                events.assert_exact(duckdb)
        # A TRUNCATE of p0 may have been the last: it is proven again, once it is noticed.
        events.await_state(p0="tiered", p1="tiered", p2="hot", p3="hot")
        _assert_heap_is_whole(events)
        with database.session(autocommit=False) as connection:
            run(connection, "TRUNCATE events")
            run(connection, "TRUNCATE model")
        _assert_heap_is_whole(events)
        with database.session(autocommit=False) as connection:
            for table in ("events", "model"):
                run(connection, f"INSERT INTO {table} SELECT g, g, 1, 'new' FROM generate_series(0, 399, 7) g")
        _assert_heap_is_whole(events)
        unfolded: LiteralString = "SELECT count(*) FROM modak.delta WHERE folded_sequence IS NULL"
        await_true(lambda: database.rows(unfolded) == [(0,)], 60, "all is folded")
        _assert_heap_is_whole(events)
    assert database.rows("SELECT state FROM modak.partitions WHERE state = 'dropped'") == []


@pytest.mark.further
def test_what_would_make_heap_and_lake_differ_is_refused_or_followed(tiered_tables: TieredTables) -> None:
    events = tiered_tables.tiered(partitions=3, rows=20, keep_heap=True)
    mirror, database = events.mirror, events.mirror.database
    with mirror.pumping():
        events.await_state(p0="tiered")
        with database.session(autocommit=False) as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            with pytest.raises(psycopg.errors.FeatureNotSupported, match="reads one snapshot"):
                connection.execute("TRUNCATE p0")
        with pytest.raises(psycopg.errors.CheckViolation, match="no partition"):
            database.execute("INSERT INTO events VALUES (-5, 1, 1, 'nowhere')")
        # A partition that is attached below the cut-line comes with its rows.
        database.execute(
            "CREATE TABLE early (LIKE events INCLUDING INDEXES)",
            "INSERT INTO early SELECT -g, g, 0, 'early' FROM generate_series(1, 50) g",
            "ALTER TABLE events ATTACH PARTITION early FOR VALUES FROM (-100) TO (0)",
            "INSERT INTO model SELECT -g, g, 0, 'early' FROM generate_series(1, 50) g",
        )
        await_true(lambda: "early" in events.states(), 30, "it is noticed")
        _assert_heap_is_whole(events)
        # Behind the triggers.
        database.execute("ALTER TABLE p0 DISABLE TRIGGER zz_modak_row", "UPDATE p0 SET n = 99 WHERE id = 3")
        await_true(
            lambda: "heap and lake differ" in str(database.rows("SELECT retention_stopped FROM modak.status")),
            30,
            "stops",
        )
        # The row is written again, with the triggers that the pump has put back.
        database.execute("UPDATE p0 SET n = 0 WHERE id = 3")
        resume(mirror.settings, ["events"])
        events.await_state(p0="tiered")
