"""A mirrored table that is dropped in Postgres: its state, what stays readable, and another table with its name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mirror_pump.errors import TableError
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, assert_same, await_true, lake_rows, normalised
from mirror_pump.testing.tasks import GatedCopies, ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.events_table import RetentionTables


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    """Tables a, b and s.c, and the partitioned table p, with 20 rows each; nothing is registered yet."""
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v text)",
        "CREATE TABLE b (id int PRIMARY KEY, v text)",
        "CREATE SCHEMA s CREATE TABLE c (id int PRIMARY KEY, v text)",
        "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE p0 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (10) TO (100)",
    )
    for table in ("a", "b", "s.c", "p"):
        database.execute(f"INSERT INTO {table} SELECT g, 'row ' || g FROM generate_series(1, 20) g")
    return Mirror.create(database, warehouse, tasks)


def _document(run: RunCommand) -> dict[str, dict[str, Any]]:
    shown = run("status", "--json")
    assert shown.exit_code == 0, shown.output
    return {str(table["table"]): table for table in json.loads(shown.stdout)["tables"]}


def _rows(run: RunCommand, *arguments: str) -> list[tuple[object, ...]]:
    result = run("sql", *arguments, "--format", "json")
    assert result.exit_code == 0, result.output
    return normalised([tuple(row.values()) for row in json.loads(result.stdout)])


def test_dropped_tables_stay_readable_and_alarm_nobody(
    mirror: Mirror, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table, a partitioned table, one dropped with its schema, one that had failed, and one that waited for a key."""
    monkeypatch.setenv("MIRROR_PUMP_SLOT", mirror.settings.slot)
    database, names = mirror.database, ("public.a", "public.b", "public.p", "s.c")
    database.execute("CREATE TABLE f (id int PRIMARY KEY)", "CREATE TABLE w (id int PRIMARY KEY)")
    with mirror.pumping() as pump:
        mirror.register("a", "b", "s.c", "p", "f", "w")
        mirror.await_live(*names, "public.f", "public.w")
        database.execute("UPDATE a SET v = 'last' WHERE id < 5", "ALTER TABLE w DROP CONSTRAINT w_pkey")
        # It has failed, and its changes in the stream are not examined any more.
        database.execute("UPDATE modak.mirror_tables SET state = 'failed', error = 'it was bad' WHERE lake_table = 'f'")
        mirror.await_frontier()
        await_true(lambda: mirror.state("public.w") == "waiting", 20, "w waits for a key")
        held = {name: mirror.heap(name) for name in names}
        database.execute("DROP TABLE a, f, w", "DROP TABLE p", "DROP SCHEMA s CASCADE", "UPDATE b SET v = 'b'")
        for name in ("public.a", "public.p", "s.c", "public.f", "public.w"):
            await_true(lambda name=name: mirror.state(name) == "dropped", 20, f"{name} is dropped")  # type: ignore[misc]
        mirror.await_frontier()
        mirror.assert_equal("public.b")
        shown = _document(run)
        checked = run("status", "--check")
        assert (checked.exit_code, checked.output) == (0, ""), "nobody has to come for what somebody dropped"
        for name in ("public.a", "public.p", "s.c"):
            assert mirror.lake(name) == held[name], "readable as of its last frontier"
            assert shown[name]["state"] == "dropped"
            assert shown[name]["error"] is None
            assert "dropped in Postgres" in shown[name]["note"]
            assert shown[name]["lag_bytes"] is None
        plain = run("status")
        assert "public.a: it was dropped in Postgres" in plain.stdout
    assert sorted(pump.steps.details(Step.TABLE_DROPPED, "table")) == ["public.a", "public.p", "public.w", "s.c"]
    assert pump.steps.count(Step.TABLE_FAILED) == 0
    assert _rows(run, "SELECT * FROM s.c") == held["s.c"]
    output = run("sql", "SELECT count(*) FROM public.a")
    assert "public.a was dropped in Postgres; its lake ends at frontier " in output.stderr
    refused = run("sql", "--mode", "heap", "SELECT count(*) FROM public.a")
    assert refused.exit_code == 1
    assert "public.a was dropped in Postgres" in refused.stderr
    assert "mode lake" in refused.stderr
    # A new pump, and a restart, leave them unchanged.
    mirror.catch_up()
    assert mirror.state("public.a") == mirror.state("public.f") == "dropped"


def test_without_event_triggers_a_drop_is_found_as_well(mirror: Mirror) -> None:
    for name in ("ddl", "drop", "rewrite"):
        mirror.database.execute(f"DROP EVENT TRIGGER mirror_pump_{name}")
    with mirror.pumping() as pump:
        mirror.register("a", "b")
        mirror.await_live("public.a", "public.b")
        mirror.await_frontier()
        held = mirror.heap("a")
        mirror.database.execute("DROP TABLE a")
        await_true(lambda: mirror.state("public.a") == "dropped", 30, "a is dropped")
        assert mirror.lake("public.a") == held
        assert pump.steps.count(Step.TABLE_FAILED) == 0


@pytest.mark.further
def test_a_table_with_the_name_of_a_dropped_table_is_registered(
    mirror: Mirror, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the pump has seen the drop (a) or not (b), or the table was never copied completely (p)."""
    monkeypatch.setenv("MIRROR_PUMP_SLOT", mirror.settings.slot)
    database = mirror.database
    gate = GatedCopies(mirror.runner)
    gated = Mirror(database, mirror.settings, gate)
    with gated.pumping():
        mirror.register("a", "b")
        mirror.await_live("public.a", "public.b")
        gate.hold()
        mirror.register("p")
        await_true(lambda: database.rows("SELECT FROM modak.copy_chunks"), 30, "the copy of p is planned")
        database.execute("DROP TABLE a, p")
        await_true(lambda: mirror.state("public.a") == mirror.state("public.p") == "dropped", 20, "a and p are dropped")
        gate.let_go()
    former = {table: mirror.location(f"public.{table}") for table in ("a", "b", "p")}
    held = mirror.lake("public.b")
    for table in ("a", "b", "p"):
        database.execute(
            f"DROP TABLE IF EXISTS {table}",
            f"CREATE TABLE {table} (id int PRIMARY KEY, other int)",
            f"INSERT INTO {table} SELECT g, -g FROM generate_series(1, 5) g",
        )
    assert mirror.state("public.b") == "live", "nobody has seen that it was dropped"
    # A table that was renamed does not count as dropped.
    database.execute("ALTER TABLE s.c SET SCHEMA public")
    mirror.register("c")
    database.execute("ALTER TABLE c RENAME TO d", "CREATE TABLE c (id int PRIMARY KEY)")
    mirror.register("a", "b", "p", "c")
    mirror.catch_up()
    database.execute("UPDATE a SET other = 7", "DELETE FROM b WHERE id = 1", "INSERT INTO p VALUES (9, 9)")
    mirror.catch_up()
    mirror.assert_equal("public.a", "public.b", "public.p", "public.c", "public.d")
    shown = run("unregister", "--list", "--json")
    assert shown.exit_code == 0, shown.output
    listed = {entry["table"]: entry for entry in json.loads(shown.stdout)}
    assert sorted(listed) == ["public.a", "public.b", "public.p"]
    assert {entry["ended_by"] for entry in listed.values()} == {"register"}
    # The former content can be found by its metadata file.
    assert {table: listed[f"public.{table}"]["metadata_location"] for table in former} == former
    assert len(held) == 20
    assert lake_rows(listed["public.b"]["metadata_location"]) == held
    mirror.assert_sound()


def test_rows_only_in_the_lake_stay_readable_after_the_drop(
    retention_tables: RetentionTables,
    database: Database,
    tasks: ThreadTaskRunner,
    run: RunCommand,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a correction that no pump has folded. Registering another table of its name requires a decision."""
    events = retention_tables.automatic(partitions=3, rows=10, runner=tasks, fold_age=3600, fold_rows=1_000_000)
    mirror = events.mirror
    monkeypatch.setenv("MIRROR_PUMP_SLOT", mirror.settings.slot)
    with mirror.pumping():
        events.await_state(p0="dropped")
        for table in ("events", "model"):
            database.execute(
                f"INSERT INTO {table} VALUES (5, 77, 7, 'late'), (6, 78, 8, NULL)",
                f"UPDATE {table} SET v = 'hot' WHERE at >= 250",
            )
        mirror.await_frontier()
        assert database.rows("SELECT count(*) FROM modak.delta WHERE folded_sequence IS NULL") == [(2,)]
        wanted = mirror.heap("model")
    database.execute("DROP TABLE events")
    # Whether the pump has noticed it or not.
    query = 'SELECT "at", id, n, v FROM events'
    assert_same(wanted, _rows(run, query), "before the pump sees the drop")
    mirror.catch_up()
    assert mirror.state("public.events") == "dropped"
    assert_same(wanted, _rows(run, query), "after it")
    assert len(_rows(run, "--mode", "lake", query)) == len(wanted) - 2, "without the corrections"
    assert run("status", "--check").stdout.count("events") == 0
    database.execute("CREATE TABLE events (at bigint PRIMARY KEY)")
    with pytest.raises(TableError, match="nothing else has them") as refused:
        mirror.register("events")
    assert "unregister public.events --keep-lake" in refused.value.remedy
    with pytest.raises(TableError, match="only copy"):
        mirror.unregister("events")
    mirror.unregister("events", keep_lake=True)
    with pytest.raises(TableError, match="holds old rows, which the heap may have shed") as refused:
        mirror.register("events")
    assert "unregister --former public.events" in refused.value.remedy
    assert run("unregister", "--former", "events", "--yes").exit_code == 0
    mirror.register("events")
    mirror.catch_up()
    mirror.assert_equal("public.events")
