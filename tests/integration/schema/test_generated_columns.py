"""Generated columns: stored ones are mirrored from PostgreSQL 18 on; the others are left out and named."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from mirror_pump.ops.setup.initialisation import initialise
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.source.relations.column_choices import ColumnChoices
from mirror_pump.testing.database import Database
from mirror_pump.testing.installation import major_version
from mirror_pump.testing.lake import read_duckdb
from mirror_pump.testing.mirror import Mirror, RunningPump, assert_same, await_true, normalised
from mirror_pump.testing.tasks import ThreadTaskRunner
from mirror_pump.testing.verification import assert_verified
from tests.support.cli import RunCommand
from tests.support.retention_table import at_once

pytestmark = pytest.mark.skipif(major_version() < 18, reason="the server publishes no generated columns")

WITHOUT = "ALTER PUBLICATION {} SET (publish_generated_columns = none)"


def settled(mirror: Mirror, *tables: str) -> None:
    mirror.await_frontier()
    mirror.assert_equal(*tables)


def test_stored_generated_columns_are_copied_and_streamed(database: Database, warehouse: str) -> None:
    """In the middle and at the end, of several types, in the key, and large ones that an UPDATE does not change."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int, g bigint GENERATED ALWAYS AS (a * 2) STORED, b text,"
        " big text GENERATED ALWAYS AS (repeat(b, 3000)) STORED, n numeric(20,3) GENERATED ALWAYS AS (a / 8.0) STORED)",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        "CREATE TABLE f (LIKE t INCLUDING ALL)",
        "ALTER TABLE f REPLICA IDENTITY FULL",
        "CREATE TABLE k (a int, v text, id int GENERATED ALWAYS AS (a * 10) STORED PRIMARY KEY)",
        # Each partition has its own expression.
        "CREATE TABLE p (id int, part int, v int, g int GENERATED ALWAYS AS (v + 1) STORED, PRIMARY KEY (id, part))"
        " PARTITION BY LIST (part)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)",
        "CREATE TABLE p2 PARTITION OF p (g GENERATED ALWAYS AS (v + 2) STORED) FOR VALUES IN (2)",
        "INSERT INTO t (id, a, b) SELECT i, nullif(i, 7), 'b' || i FROM generate_series(1, 100) i",
        "INSERT INTO f (id, a, b) SELECT id, a, b FROM t",
        "INSERT INTO k (a, v) SELECT i, i FROM generate_series(1, 100) i",
        "INSERT INTO p (id, part, v) SELECT i, i % 2 + 1, i FROM generate_series(1, 100) i",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    tables = ("public.t", "public.f", "public.k", "public.p")
    with mirror.pumping():
        mirror.register("t", "f", "k", "p")
        mirror.await_live(*tables)
        settled(mirror, *tables)
        database.execute(
            "UPDATE t SET a = -a WHERE id % 2 = 0",
            "UPDATE t SET b = 'other' WHERE id % 3 = 0",
            "UPDATE t SET id = id + 1000 WHERE id % 5 = 0",
            "DELETE FROM t WHERE id % 7 = 0",
            "INSERT INTO t (id, a) VALUES (5000, 5), (5001, NULL)",
            "UPDATE f SET a = -a WHERE id % 2 = 0",
            "UPDATE f SET b = 'other' WHERE id % 3 = 0",
            "UPDATE f SET id = id + 1000 WHERE id % 5 = 0",
            "DELETE FROM f WHERE id % 7 = 0",
            "INSERT INTO f (id, a) VALUES (5000, 5), (5001, NULL)",
            "UPDATE k SET a = a + 1000 WHERE a % 4 = 0",
            "UPDATE k SET v = 'w' WHERE a % 3 = 0",
            "DELETE FROM k WHERE id % 70 = 0",
            "UPDATE p SET v = v + 100 WHERE id % 3 = 0",
            "UPDATE p SET part = 3 - part WHERE id % 5 = 0",
        )
        settled(mirror, *tables)
        assert_verified(database)
        with pytest.raises(Exception, match=r'key column "id" of public\.k is generated'):
            database.execute("""SELECT modak.delete('k', '{"id": 10}')""")
        database.execute("""SELECT modak.upsert('t', '{"id": 1, "a": 50}')""")
        settled(mirror, *tables)
    mirror.assert_sound()


@pytest.mark.further
def test_a_generated_column_can_be_excluded_for_good(database: Database, warehouse: str) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id + 1) STORED, a int,"
        " h int GENERATED ALWAYS AS (id + 2) STORED)",
        "INSERT INTO t (id, a) SELECT i, i FROM generate_series(1, 20) i",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    with mirror.pumping():
        mirror.register("t", choices=ColumnChoices(excluded=frozenset({"g"})))
        mirror.await_live("public.t")
        database.execute("UPDATE t SET a = -a WHERE id % 2 = 0", "ALTER TABLE t ALTER g DROP EXPRESSION")
        database.execute("UPDATE t SET g = 0, a = 3 WHERE id % 3 = 0")
        mirror.await_frontier()
        heap = normalised(database.rows("SELECT id, a, h FROM t"))
        assert_same(heap, mirror.lake("public.t"), "public.t without g")
        # New rows lack the column that counts as left out.
        database.execute("ALTER TABLE t DROP COLUMN g", WITHOUT.format(mirror.settings.publication))
        database.execute("UPDATE t SET a = 5 WHERE id % 5 = 0")
        await_true(lambda: read_duckdb(mirror.location("public.t")).column_names == ["id", "a"], 30, "h is gone")
        mirror.await_live("public.t")
        mirror.await_frontier()
        assert_same(normalised(database.rows("SELECT id, a FROM t")), mirror.lake("public.t"), "public.t")


def _copied_again(pump: RunningPump, table: str) -> int:
    return pump.steps.details(Step.TABLE_COPIED_AGAIN, "table").count(table)


def _copied_more_often(pump: RunningPump, table: str, times: int) -> bool:
    return _copied_again(pump, table) > times


@pytest.mark.parametrize(
    "event_triggers",
    [pytest.param(True, id="event triggers"), pytest.param(False, id="none", marks=pytest.mark.further)],
)
def test_recomputed_columns_are_copied_again(database: Database, warehouse: str, event_triggers: bool) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int, g int GENERATED ALWAYS AS (a * 2) STORED)",
        "INSERT INTO t (id, a) SELECT i, i FROM generate_series(1, 50) i",
        "CREATE TABLE p (id int PRIMARY KEY, a int, g int GENERATED ALWAYS AS (a * 2) STORED) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100)",
        "INSERT INTO p (id, a) SELECT i, i FROM generate_series(1, 50) i",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    if not event_triggers:
        database.execute(
            "DROP EVENT TRIGGER mirror_pump_ddl",
            "DROP EVENT TRIGGER mirror_pump_drop",
            "DROP EVENT TRIGGER mirror_pump_rewrite",
        )
    with mirror.pumping() as pump:
        mirror.register("t", "p")
        mirror.await_live("public.t", "public.p")
        for changes in (
            {"t": "ALTER g SET EXPRESSION AS (a * 3)", "p1": "ALTER g SET EXPRESSION AS (a * 5)"},
            {
                "t": "ADD COLUMN h int GENERATED ALWAYS AS (a * 4) STORED",
                "p": "ALTER g SET EXPRESSION AS (a * 6)",
            },
        ):
            before = {table: _copied_again(pump, table) for table in ("public.t", "public.p")}
            database.execute(
                *(f"ALTER TABLE {table} {change}" for table, change in changes.items()),
                "UPDATE t SET a = a + 1 WHERE id < 5",
                "UPDATE p SET a = a + 1 WHERE id < 5",
            )
            for table, count in before.items():
                await_true(partial(_copied_more_often, pump, table, count), 30, f"{table} is copied again")
            mirror.await_live("public.t", "public.p")
            settled(mirror, "public.t", "public.p")
    mirror.assert_sound()


@pytest.mark.further
def test_tables_from_before_the_publication_had_them_get_them_at_init(database: Database, warehouse: str) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id + 1) STORED, a int)",
        "CREATE TABLE u (id int PRIMARY KEY, a int, v int GENERATED ALWAYS AS (id + 1))",
        "INSERT INTO t (id, a) SELECT i, i FROM generate_series(1, 20) i",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    database.execute(WITHOUT.format(mirror.settings.publication))
    with mirror.pumping() as pump:
        mirror.register("t", "u")
        mirror.await_live("public.t", "public.u")
        database.execute("UPDATE t SET a = -a WHERE id % 2 = 0", "INSERT INTO u VALUES (1, 1)")
        mirror.await_frontier()
        assert_same(normalised(database.rows("SELECT id, a FROM t")), mirror.lake("public.t"), "public.t without g")
        lines: list[str] = []
        with database.connect(autocommit=False) as connection:
            connection.execute("UPDATE t SET a = 0 WHERE id = 1")
            initialise(mirror.settings, lines.append)
            connection.execute("UPDATE t SET a = 0 WHERE id = 2")
        assert "public.t: the pump copies it again, with g" in lines
        assert not [line for line in lines if "public.u" in line]
        database.execute("UPDATE t SET a = 7 WHERE id % 3 = 0")
        await_true(lambda: pump.steps.count(Step.TABLE_COPIED_AGAIN), 30, "public.t is copied again")
        mirror.await_live("public.t")
        settled(mirror, "public.t")
        lines.clear()
        initialise(mirror.settings, lines.append)
        assert not [line for line in lines if "generated" in line]
    mirror.assert_sound()


def test_a_table_with_heap_retention_keeps_the_publication_as_it_is(database: Database, warehouse: str) -> None:
    database.execute(
        "CREATE TABLE ev (at bigint, id int, g int GENERATED ALWAYS AS (id + 1) STORED, PRIMARY KEY (at, id))"
        " PARTITION BY RANGE (at)",
        "CREATE TABLE ev0 PARTITION OF ev FOR VALUES FROM (0) TO (100)",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    database.execute(WITHOUT.format(mirror.settings.publication))
    mirror.register("ev", retention=at_once("100"))
    lines: list[str] = []
    initialise(mirror.settings, lines.append)
    assert [
        line for line in lines if line.startswith("warning: stored generated columns are still not mirrored: public.ev")
    ]
    assert database.rows("SELECT pubgencols::text FROM pg_publication") == [("n",)]
    mirror.unregister("ev", drop_lake=True)
    initialise(mirror.settings, lines.append)
    assert database.rows("SELECT pubgencols::text FROM pg_publication") == [("s",)]


def test_what_is_left_out_is_named(run: RunCommand, database: Database, slot: str, tmp_path: Path) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int GENERATED ALWAYS AS (id * 2) VIRTUAL,"
        " s int GENERATED ALWAYS AS (id * 2) STORED)",
        "CREATE TABLE plain (id int PRIMARY KEY)",
    )
    assert run("init", "--warehouse", str(tmp_path / "lake"), "--slot", slot).exit_code == 0
    result = run("register", "t", "plain", "--no-wait")
    assert result.exit_code == 0, result.stderr
    (warning,) = [line for line in map(json.loads, result.stderr.splitlines()) if line["level"] == "warning"]
    assert warning["event"].startswith("public.t: generated columns left out: v (")
    assert "registered" in result.stdout
    tables = {table["table"]: table for table in json.loads(run("status", "--json").stdout)["tables"]}
    assert tables["public.t"]["generated_left_out"] == ["v"]
    assert tables["public.plain"]["generated_left_out"] == []
    assert "public.t: generated columns left out: v\n" in run("status").stdout
