"""Heap retention: the pump drops old partitions by itself, and readers see no difference."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, LiteralString

import psycopg
import pytest

from mirror_pump.ops.retain.retention import change_retention, look, resume
from mirror_pump.ops.status.status_reader import StatusReader
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.source.retention import new_partitions
from mirror_pump.source.retention import partitions as source
from mirror_pump.testing.database import Database
from mirror_pump.testing.installation import major_version
from mirror_pump.testing.lake import duckdb_connection
from mirror_pump.testing.mirror import RunningPump, Steps, await_true
from mirror_pump.testing.verification import assert_verified
from tests.support.events_table import EventsTable, RetentionTables
from tests.support.pipeline import writing
from tests.support.retention_table import at_once


def test_old_partitions_leave_under_writers_and_every_read_is_exact(retention_tables: RetentionTables) -> None:
    events = retention_tables.automatic()
    mirror = events.mirror
    with duckdb_connection() as duckdb:
        with mirror.pumping(), writing(mirror.database, events.write, random.getrandbits(32)) as written:
            mirror.await_live("public.events")

            def gone() -> bool:
                events.assert_exact(duckdb)
                return events.states()["p1"] == "dropped"

            await_true(gone, 60, f"p1 dropped: {events.explained()}")
            assert written() > 0
        events.assert_exact(duckdb)
    assert events.states() == {"p0": "dropped", "p1": "dropped", "p2": "hot", "p3": "hot"}
    assert events.cut == 200
    journal = mirror.database.rows("SELECT details ->> 'kind' FROM modak.op_log WHERE op_kind = 'retention'")
    assert sorted(kind for (kind,) in journal) == sorted(["seal", "advance", "prove", "drop"] * 2)


@pytest.mark.further
@pytest.mark.skipif(major_version() < 18, reason="the server publishes no generated columns")
def test_stored_generated_columns_are_kept_below_the_cutline(
    retention_tables: RetentionTables, database: Database
) -> None:
    """In rows that have left the heap, in corrections by every path, and in folded corrections."""
    events = retention_tables.automatic(computed="at * 1000 + coalesce(n, 0) + length(v)", fold_age=0.05)
    mirror = events.mirror
    unfolded: LiteralString = "SELECT count(*) FROM modak.delta WHERE folded_sequence IS NULL"
    with mirror.pumping(), duckdb_connection() as duckdb:
        with writing(database, events.write, random.getrandbits(32)) as written:
            mirror.await_live("public.events")
            events.await_state(p0="dropped", p1="dropped")
            events.assert_exact(duckdb)
            count = written()
            await_true(lambda: written() > count + 20, 20, "corrections")
            events.assert_exact(duckdb)
        with pytest.raises(psycopg.errors.UndefinedColumn, match="generated"):
            database.execute("""SELECT modak.upsert('events', '{"at": 5, "id": 5, "g": 1}')""")
        await_true(lambda: database.rows(unfolded) == [(0,)], 20, "all is folded")
        events.assert_exact(duckdb)
        mirror.await_frontier()
        assert_verified(database)
        # The values of new columns would be missing from rows that are only in the lake.
        database.execute("ALTER TABLE events ADD COLUMN h bigint GENERATED ALWAYS AS (n + 1) STORED")
        await_true(lambda: mirror.state("public.events") == "failed", 20, "the table fails")
        assert "column h is new" in mirror.error("public.events")


class _Killed(BaseException):
    """Stands for a kill: nothing in the product catches it."""


def _ended(running: RunningPump, events: EventsTable) -> bool:
    return not running.thread.is_alive() or events.states()["p1"] == "dropped"


def test_killed_at_every_step_it_goes_on_where_it_was(
    retention_tables: RetentionTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread dies between any two of its changes of the database, until it has nothing left to do."""
    events = retention_tables.automatic(partitions=4, rows=10, lag="1000")
    mirror = events.mirror
    mirror.catch_up()
    change_retention(mirror.settings, "events", "heap_retention", "100")
    left, before = 1 << 30, False
    changes: list[str] = []

    def dying(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            nonlocal left
            if arguments[1] in ("end_pins", "sweep_pins", "prune", "sweep_functions", "crowded"):
                # At the start of each life, before anything else; or a look that finds nothing to change here.
                return function(*arguments)
            left -= 1
            # Also in the session after one that ended at that very point.
            if left < 0 or (left == 0 and before):
                raise _Killed
            result = function(*arguments)
            changes.append(arguments[1] if isinstance(arguments[1], str) else function.__name__)
            if left == 0:
                raise _Killed
            return result

        return run

    for name in ("attempt", "run", "journal", "enter", "install"):
        monkeypatch.setattr(source, name, dying(getattr(source, name)))
    monkeypatch.setattr(new_partitions, "create_default", dying(new_partitions.create_default))
    deaths = counted = 0
    with duckdb_connection() as duckdb:
        for number in range(1, 40):
            # Only one change is let through: the thread dies after the first, or before the second.
            left, before = (1, False) if number % 2 else (2, True)
            running = mirror.start()
            try:
                await_true(partial(_ended, running, events), 30, "death or the end")
                if running.thread.is_alive():
                    # What it still changes while it stops is followed by no death.
                    counted, left = len(changes), 1 << 30
                    try:
                        running.stop()
                    except _Killed:
                        # After its last change.
                        deaths += 1
                    break
                with pytest.raises(_Killed):
                    running.join()
                deaths += 1
            finally:
                running.pump.request_stop()
            with mirror.database.connect(autocommit=False) as connection:
                events.write(connection, random.Random(number))
            events.assert_exact(duckdb)
        else:
            pytest.fail(f"it never got there: {events.explained()}")
        events.assert_exact(duckdb)
    # On a slow machine, some steps are left out or combined. None follows another without a death in between.
    assert {"seal", "sealed", "proven", "drop"} <= set(changes)
    assert deaths >= counted - 1
    assert events.states() == {"p0": "dropped", "p1": "dropped", "p2": "hot", "p3": "hot"}


@pytest.mark.further
def test_a_pin_of_a_reader_in_one_snapshot_delays_drops_and_nothing_else(retention_tables: RetentionTables) -> None:
    events = retention_tables.automatic(partitions=5, rows=10)
    mirror = events.mirror
    pin = mirror.database.rows("SELECT pin_id, t, metadata_location FROM modak.pin('events', in_one_snapshot => true)")[
        0
    ]
    mirror.catch_up()
    wanted = mirror.database.rows("SELECT at, id, n, v FROM model ORDER BY 1, 2")
    with mirror.pumping():
        events.await_state(p0="tiered", p1="tiered", p2="tiered")
        await_true(lambda: ") lasts until" in events.reason("p0"), 20, "the reason is in the catalog")
        assert events.cut == 300
        mirror.await_frontier()
        events.assert_exact()
        assert mirror.database.rows("SELECT at, id, n, v FROM events ORDER BY 1, 2") == wanted, (
            "the cut-line of the pin is -2^63"
        )
        mirror.database.rows("SELECT modak.release(%s)", (pin[0],))
        resume(mirror.settings, ())
        events.await_state(p0="dropped", p1="dropped", p2="dropped")
        events.assert_exact()


def test_expired_pins_are_swept_and_counted(retention_tables: RetentionTables) -> None:
    events = retention_tables.automatic(partitions=2, rows=2)
    mirror = events.mirror
    mirror.database.rows("SELECT pin_id FROM modak.pin('events', interval '-2 hours')")
    mirror.database.rows("SELECT pin_id FROM modak.pin('events', interval '-1 minute')")
    swept: LiteralString = "SELECT details -> 'pins' FROM modak.op_log WHERE details ->> 'kind' = 'pins expired'"
    with mirror.pumping():
        await_true(lambda: mirror.database.rows("SELECT read_pins, expired_pins FROM modak.status") == [(1, 1)], 30, "")
    assert mirror.database.rows(swept) == [(1,)]


@pytest.mark.further
def test_a_refused_step_holds_up_only_what_must_come_after_it(retention_tables: RetentionTables) -> None:
    """A view on p0, a long reader of the whole table, and a writer in p1 that does not end."""
    events = retention_tables.automatic(partitions=5, rows=10, lag="1000")
    mirror = events.mirror
    mirror.database.execute("CREATE VIEW dependent AS SELECT * FROM p0")
    mirror.catch_up()
    with mirror.pumping():
        with mirror.database.connect(autocommit=False) as writer:
            writer.execute("UPDATE events SET n = n + 1 WHERE at = 110")
            change_retention(mirror.settings, "events", "heap_retention", "100")
            events.await_state(p0="tiered", p1="hot", p2="sealing")
            await_true(lambda: "held the locks" in events.reason("p1"), 20, "p1 cannot be sealed")
            assert events.cut == 100
            writer.rollback()
        resume(mirror.settings, ())
        await_true(lambda: "depend" in events.reason("p0"), 20, "p0 cannot be dropped")
        with mirror.database.connect(autocommit=False) as reader:
            reader.execute("SELECT count(*) FROM events")
            events.await_state(p1="tiered", p2="tiered")
            await_true(lambda: "held the locks" in events.reason("p1"), 20, "p1 cannot be dropped")
            # Others' statements wait behind ours no longer than we wait.
            with mirror.database.connect() as other:
                other.execute("SET lock_timeout = '2s'")
                for _ in range(20):
                    other.execute("UPDATE events SET n = n WHERE at = 410")
            reader.rollback()
        resume(mirror.settings, ())
        events.await_state(p1="dropped", p2="dropped")
        mirror.database.execute("DROP VIEW dependent")
        resume(mirror.settings, ())
        events.await_state(p0="dropped")
        events.assert_exact()


@pytest.mark.further
def test_a_locked_table_holds_up_no_other(retention_tables: RetentionTables) -> None:
    """Its newest partition is locked by an idle transaction: neither bounds nor the newest key can be read."""
    events = retention_tables.automatic(partitions=3, rows=10, lag="1000", premake=1)
    mirror = events.mirror
    mirror.database.execute(
        "CREATE TABLE other (at bigint PRIMARY KEY) PARTITION BY RANGE (at)",
        "CREATE TABLE other0 PARTITION OF other FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE other1 PARTITION OF other FOR VALUES FROM (10) TO (20)",
        "INSERT INTO other VALUES (5), (19)",
    )
    mirror.register("public.other", retention=at_once("1000"))

    def not_made() -> str:
        with StatusReader(mirror.settings) as reader:
            states = {table.table: table.retention for table in reader.read().tables}
        state = states["public.events"]
        assert state is not None
        return str(state.not_made)

    with mirror.pumping():
        mirror.await_live("public.events", "public.other")
        events.await_state(p0="hot", p1="hot", p2="hot")
        with mirror.database.connect(autocommit=False) as owner:
            owner.execute("LOCK TABLE p2 IN ACCESS EXCLUSIVE MODE")
            change_retention(mirror.settings, "events", "heap_retention", "100")
            change_retention(mirror.settings, "other", "heap_retention", "4")
            await_true(lambda: "other sessions held the locks" in not_made(), 30, "status tells of it")
            await_true(lambda: mirror.database.rows("SELECT to_regclass('other0')") == [(None,)], 30, "others go on")
            (first, other) = look(mirror.settings, ())
            assert "other sessions held the locks" in str(first.not_made)
            assert other.not_made is None
            owner.rollback()
        resume(mirror.settings, ())
        events.await_state(p0="dropped")
        assert not_made() == "None"


def test_a_proof_that_fails_stops_the_table_and_drops_nothing(retention_tables: RetentionTables) -> None:
    events = retention_tables.automatic(partitions=4, rows=10)
    mirror = events.mirror
    pin = mirror.database.rows("SELECT pin_id FROM modak.pin('events', in_one_snapshot => true)")[0][0]
    mirror.catch_up()
    steps = Steps()
    with mirror.pumping(steps):
        events.await_state(p0="tiered", p1="tiered")
        # Changes that no trigger sees. What the partition holds then becomes corrections, but not what it lacks.
        with mirror.database.connect() as connection, connection.transaction():
            connection.execute("ALTER TABLE p0 DISABLE TRIGGER ALL")
            connection.execute("UPDATE p0 SET v = 'unseen' WHERE at = 0")
            connection.execute("DELETE FROM p0 WHERE at = 10")
            connection.execute("INSERT INTO p0 VALUES (11, 1, 1, 'unseen')")
        mirror.database.rows("SELECT modak.release(%s)", (pin,))
        await_true(lambda: steps.count(Step.RETENTION_STOPPED), 30, "it stops")
        events.await_state(p0="tiering")
        (report,) = look(mirror.settings, ())
        assert report.stopped is not None
        assert report.stopped == "partition public.p0: heap and lake differ: 10, 1: not in the heap"
        assert mirror.database.rows("SELECT retention_stopped IS NOT NULL FROM modak.status") == [(True,)]
        # Repaired: the lake's state is the right one.
        mirror.database.execute(
            "UPDATE p0 SET v = 'first' WHERE at = 0",
            "INSERT INTO p0 VALUES (10, 1, 0, 'first')",
            "DELETE FROM p0 WHERE at = 11",
        )
        resume(mirror.settings, ["events"])
        events.await_state(p0="dropped", p1="dropped")
        events.assert_exact()


@pytest.mark.further
def test_the_cutline_passes_a_partition_that_is_always_written_to(
    retention_tables: RetentionTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each seal, more changes are captured than the cut-line should wait for. The partition is sealed again, but
    not forever."""
    events = retention_tables.automatic(partitions=3, rows=10, lag="1000")
    mirror = events.mirror
    with mirror.pumping():
        events.await_state(p0="hot")
    mirror.database.execute("UPDATE modak.partitions SET capture_limit = 2")
    change_retention(mirror.settings, "events", "heap_retention", "100")
    run, seals = source.run, 0

    def sealing(connection: psycopg.Connection[Any], statement: str, parameters: Mapping[str, Any]) -> int:
        nonlocal seals
        if statement == "sealed":
            seals += 1
            mirror.database.execute(
                "UPDATE events SET n = n + 1 WHERE at < 50", "UPDATE model SET n = n + 1 WHERE at < 50"
            )
        return run(connection, statement, parameters)

    monkeypatch.setattr(source, "run", sealing)
    with mirror.pumping():
        events.await_state(p0="dropped")
    assert seals == 3, "up to 2, 4 and 8 changes"
    events.assert_exact()


def test_a_partition_that_is_altered_during_its_proof_is_not_proven(
    retention_tables: RetentionTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = retention_tables.automatic(partitions=3, rows=10)
    mirror = events.mirror
    mirror.catch_up()
    run, altered = source.run, False

    def altering(connection: psycopg.Connection[Any], statement: str, parameters: Mapping[str, Any]) -> int:
        nonlocal altered
        if statement == "proven" and not altered:
            altered = True
            with mirror.database.connect(autocommit=False) as owner:
                owner.execute("ALTER TABLE events DETACH PARTITION p0")
                owner.execute("UPDATE p0 SET v = 'unseen' WHERE at = 0")
                owner.execute("ALTER TABLE events ATTACH PARTITION p0 FOR VALUES FROM (0) TO (100)")
        return run(connection, statement, parameters)

    monkeypatch.setattr(source, "run", altering)
    steps = Steps()
    with mirror.pumping(steps):
        events.await_state(p0="dropped")
    assert "it was altered while it was compared with the lake" in steps.details(Step.RETENTION_REFUSED, "reason")
    mirror.database.execute("UPDATE model SET v = 'unseen' WHERE at = 0")
    events.assert_exact()


@pytest.mark.further
def test_truncates_concern_rows_above_the_cutline(retention_tables: RetentionTables) -> None:
    """TRUNCATE of the table and of single partitions, in every state of a partition."""
    events = retention_tables.automatic(partitions=4, rows=10)
    mirror = events.mirror
    mirror.database.rows("SELECT pin_id FROM modak.pin('events', in_one_snapshot => true)")
    mirror.catch_up()
    with mirror.pumping():
        events.await_state(p0="tiered", p1="tiered")
        mirror.database.execute("TRUNCATE p0", "INSERT INTO events VALUES (5, 99, 1, 'after')")
        mirror.database.execute("INSERT INTO model VALUES (5, 99, 1, 'after')")
        events.assert_exact()
        mirror.database.execute("TRUNCATE p2", "DELETE FROM model WHERE at >= 200 AND at < 300")
        mirror.await_frontier()
        mirror.await_live("public.events")
        events.assert_exact()
        with mirror.database.connect(autocommit=False) as connection:
            connection.execute("TRUNCATE events")
            connection.execute("DELETE FROM model WHERE at >= 200")
            connection.execute("INSERT INTO events VALUES (310, 1, 1, 'new')")
            connection.execute("INSERT INTO model VALUES (310, 1, 1, 'new')")
        mirror.await_frontier()
        events.assert_exact()
        mirror.database.execute("DELETE FROM modak.read_pins")
        resume(mirror.settings, ())
        events.await_state(p0="dropped", p1="dropped")
        events.assert_exact()
