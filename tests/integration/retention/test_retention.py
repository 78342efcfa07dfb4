"""The service sheds old partitions by itself, and nobody who reads the seam can tell."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Any, LiteralString

import psycopg
import pytest

from mirror_pump.config import Settings
from mirror_pump.errors import TableError, UsageError
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import TableId
from mirror_pump.ops.retain.retention import change_retention, look, resume, show_retention
from mirror_pump.ops.status.status_reader import StatusReader
from mirror_pump.pipeline.flow import backoff
from mirror_pump.pipeline.flow.session_context import SessionContext
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.retention import partition_shedding as retention
from mirror_pump.pipeline.retention.drop_proof import Proof, Prover
from mirror_pump.pipeline.retention.partition_shedding import PartitionShedding
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.retention import partitions as source
from mirror_pump.testing.database import Database
from mirror_pump.testing.installation import major_version
from mirror_pump.testing.lake import duckdb_connection
from mirror_pump.testing.mirror import Mirror, RunningPump, Steps, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from mirror_pump.testing.verification import assert_verified
from tests.support.pipeline import writing
from tests.support.retention import WIDTH, Shedding, at_once
from tests.support.retention_heap import Heap


@pytest.fixture
def mirror(database: Database, warehouse: str) -> Mirror:
    return Mirror.create(database, warehouse, ThreadTaskRunner(2), retention_interval=0.1)


def test_old_partitions_leave_under_writers_and_every_read_is_exact(mirror: Mirror) -> None:
    shedding = Shedding.create(mirror)
    with duckdb_connection() as duckdb:
        with mirror.pumping(), writing(mirror.database, shedding.write, random.getrandbits(32)) as written:
            mirror.await_live("public.events")

            def gone() -> bool:
                shedding.assert_exact(duckdb)
                return shedding.states()["p1"] == "dropped"

            await_true(gone, 60, f"p1 dropped: {shedding.explained()}")
            assert written() > 0
        shedding.assert_exact(duckdb)
    assert shedding.states() == {"p0": "dropped", "p1": "dropped", "p2": "hot", "p3": "hot"}
    assert shedding.cut == 200
    journal = mirror.database.rows("SELECT details ->> 'kind' FROM modak.op_log WHERE op_kind = 'retention'")
    assert sorted(kind for (kind,) in journal) == sorted(["seal", "advance", "prove", "drop"] * 2)


@pytest.mark.skipif(major_version() < 18, reason="the server publishes no generated columns")
def test_stored_generated_columns_are_kept_below_the_line(database: Database, warehouse: str) -> None:
    """In what is shed, in corrections whichever way they come, and in what is folded of them."""
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner(2), retention_interval=0.1, fold_age=0.05)
    shedding = Shedding.create(mirror, computed="at * 1000 + coalesce(n, 0) + length(v)")
    unfolded: LiteralString = "SELECT count(*) FROM modak.delta WHERE folded_sequence IS NULL"
    with mirror.pumping(), duckdb_connection() as duckdb:
        with writing(database, shedding.write, random.getrandbits(32)) as written:
            mirror.await_live("public.events")
            shedding.await_state(p0="dropped", p1="dropped")
            shedding.assert_exact(duckdb)
            count = written()
            await_true(lambda: written() > count + 20, 20, "corrections")
            shedding.assert_exact(duckdb)
        with pytest.raises(psycopg.errors.UndefinedColumn, match="generated"):
            database.execute("""SELECT modak.upsert('events', '{"at": 5, "id": 5, "g": 1}')""")
        await_true(lambda: database.rows(unfolded) == [(0,)], 20, "all is folded")
        shedding.assert_exact(duckdb)
        mirror.await_frontier()
        assert_verified(database)
        # The values of new columns would be missing from the rows that only the lake has.
        database.execute("ALTER TABLE events ADD COLUMN h bigint GENERATED ALWAYS AS (n + 1) STORED")
        await_true(lambda: mirror.state("public.events") == "failed", 20, "set aside")
        assert "column h is new" in mirror.error("public.events")


class _Killed(BaseException):
    """Nothing in the product catches it."""


def _ended(running: RunningPump, shedding: Shedding) -> bool:
    return not running.thread.is_alive() or shedding.states()["p1"] == "dropped"


def test_killed_at_every_step_it_goes_on_where_it_was(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread dies between any two of its changes of the database, until it needs no more."""
    shedding = Shedding.create(mirror, partitions=4, rows=10, lag="1000")
    mirror.catch_up()
    change_retention(mirror.settings, "events", "heap_retention", "100")
    left, before = 1 << 30, False
    changes: list[str] = []

    def dying(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            nonlocal left
            if arguments[1] in ("sweep_pins", "prune", "crowded"):
                # Once in each life, before anything else; or a look that finds nothing to change here.
                return function(*arguments)
            left -= 1
            # Also in the session after one that ended at that very moment.
            if left < 0 or (left == 0 and before):
                raise _Killed
            result = function(*arguments)
            changes.append(arguments[1] if isinstance(arguments[1], str) else function.__name__)
            if left == 0:
                raise _Killed
            return result

        return run

    for name in ("attempt", "run", "journal", "enter", "install", "create_default"):
        monkeypatch.setattr(source, name, dying(getattr(source, name)))
    deaths = 0
    with duckdb_connection() as duckdb:
        for number in range(1, 40):
            # One change at a time gets through: it dies after the first, or before the second.
            left, before = (1, False) if number % 2 else (2, True)
            running = mirror.start()
            try:
                await_true(partial(_ended, running, shedding), 30, "death or the end")
                if running.thread.is_alive():
                    left = 1 << 30
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
                shedding.write(connection, random.Random(number))
            shedding.assert_exact(duckdb)
        else:
            pytest.fail(f"it never got there: {shedding.explained()}")
        shedding.assert_exact(duckdb)
    # Some are left out or put together when others are slow; none follows another without a death.
    assert {"seal", "sealed", "proven", "drop"} <= set(changes)
    assert deaths >= len(changes) - 1
    assert shedding.states() == {"p0": "dropped", "p1": "dropped", "p2": "hot", "p3": "hot"}


def test_a_pin_of_a_reader_in_one_snapshot_delays_drops_and_nothing_else(mirror: Mirror) -> None:
    shedding = Shedding.create(mirror, partitions=5, rows=10)
    pin = mirror.database.rows("SELECT pin_id, t, metadata_location FROM modak.pin('events', in_one_snapshot => true)")[
        0
    ]
    mirror.catch_up()
    wanted = mirror.database.rows("SELECT at, id, n, v FROM model ORDER BY 1, 2")
    with mirror.pumping():
        shedding.await_state(p0="tiered", p1="tiered", p2="tiered")
        await_true(lambda: ") lasts until" in shedding.reason("p0"), 20, "the reason is told")
        assert shedding.cut == 300
        mirror.await_frontier()
        shedding.assert_exact()
        assert mirror.database.rows("SELECT at, id, n, v FROM events ORDER BY 1, 2") == wanted, "T of the pin is -2^63"
        mirror.database.rows("SELECT modak.release(%s)", (pin[0],))
        resume(mirror.settings, ())
        shedding.await_state(p0="dropped", p1="dropped", p2="dropped")
        shedding.assert_exact()


def test_expired_pins_are_swept_and_counted(mirror: Mirror) -> None:
    Shedding.create(mirror, partitions=2, rows=2)
    mirror.database.rows("SELECT pin_id FROM modak.pin('events', interval '-2 hours')")
    mirror.database.rows("SELECT pin_id FROM modak.pin('events', interval '-1 minute')")
    swept: LiteralString = "SELECT details -> 'pins' FROM modak.op_log WHERE details ->> 'kind' = 'pins expired'"
    with mirror.pumping():
        await_true(lambda: mirror.database.rows("SELECT read_pins, expired_pins FROM modak.status") == [(1, 1)], 30, "")
    assert mirror.database.rows(swept) == [(1,)]


def test_a_refused_step_holds_up_only_what_must_come_after_it(mirror: Mirror) -> None:
    """A view on p0, a long reader of the whole table, a writer in p1 that does not end."""
    shedding = Shedding.create(mirror, partitions=5, rows=10, lag="1000")
    mirror.database.execute("CREATE VIEW dependent AS SELECT * FROM p0")
    mirror.catch_up()
    with mirror.pumping():
        with mirror.database.connect(autocommit=False) as writer:
            writer.execute("UPDATE events SET n = n + 1 WHERE at = 110")
            change_retention(mirror.settings, "events", "heap_retention", "100")
            shedding.await_state(p0="tiered", p1="hot", p2="sealing")
            await_true(lambda: "hold locks" in shedding.reason("p1"), 20, "p1 cannot be sealed")
            assert shedding.cut == 100
            writer.rollback()
        resume(mirror.settings, ())
        await_true(lambda: "depend" in shedding.reason("p0"), 20, "p0 cannot be dropped")
        with mirror.database.connect(autocommit=False) as reader:
            reader.execute("SELECT count(*) FROM events")
            shedding.await_state(p1="tiered", p2="tiered")
            await_true(lambda: "hold locks" in shedding.reason("p1"), 20, "p1 cannot be dropped")
            # A statement of others waits behind ours no longer than we wait.
            with mirror.database.connect() as other:
                other.execute("SET lock_timeout = '2s'")
                for _ in range(20):
                    other.execute("UPDATE events SET n = n WHERE at = 410")
            reader.rollback()
        resume(mirror.settings, ())
        shedding.await_state(p1="dropped", p2="dropped")
        mirror.database.execute("DROP VIEW dependent")
        resume(mirror.settings, ())
        shedding.await_state(p0="dropped")
        shedding.assert_exact()


def test_a_table_that_somebody_has_locked_holds_up_no_other(mirror: Mirror) -> None:
    """Its newest partition is locked by a transaction that sits idle: neither bounds nor newest key can be read."""
    shedding = Shedding.create(mirror, partitions=3, rows=10, lag="1000", premake=1)
    mirror.database.execute(
        "CREATE TABLE other (at bigint PRIMARY KEY) PARTITION BY RANGE (at)",
        "CREATE TABLE other0 PARTITION OF other FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE other1 PARTITION OF other FOR VALUES FROM (10) TO (20)",
        "INSERT INTO other VALUES (5), (19)",
    )
    mirror.register("public.other", retention=at_once("1000"))

    def said() -> str:
        with StatusReader(mirror.settings) as reader:
            states = {table.table: table.retention for table in reader.read().tables}
        state = states["public.events"]
        assert state is not None
        return str(state.not_made)

    with mirror.pumping():
        mirror.await_live("public.events", "public.other")
        shedding.await_state(p0="hot", p1="hot", p2="hot")
        with mirror.database.connect(autocommit=False) as owner:
            owner.execute("LOCK TABLE p2 IN ACCESS EXCLUSIVE MODE")
            change_retention(mirror.settings, "events", "heap_retention", "100")
            change_retention(mirror.settings, "other", "heap_retention", "4")
            await_true(lambda: "other sessions held the locks" in said(), 30, "status tells of it")
            await_true(lambda: mirror.database.rows("SELECT to_regclass('other0')") == [(None,)], 30, "others go on")
            (events, other) = look(mirror.settings, ())
            assert "other sessions held the locks" in str(events.not_made)
            assert other.not_made is None
            owner.rollback()
        resume(mirror.settings, ())
        shedding.await_state(p0="dropped")
        assert said() == "None"


def test_a_proof_that_fails_stops_the_table_and_drops_nothing(mirror: Mirror) -> None:
    shedding = Shedding.create(mirror, partitions=4, rows=10)
    pin = mirror.database.rows("SELECT pin_id FROM modak.pin('events', in_one_snapshot => true)")[0][0]
    mirror.catch_up()
    steps = Steps()
    with mirror.pumping(steps):
        shedding.await_state(p0="tiered", p1="tiered")
        # Changes that no trigger sees, behind the service's back.
        with mirror.database.connect() as connection:
            connection.execute("ALTER TABLE p0 DISABLE TRIGGER ALL")
            connection.execute("UPDATE p0 SET v = 'unseen' WHERE at = 0")
            connection.execute("DELETE FROM p0 WHERE at = 10")
            connection.execute("INSERT INTO p0 VALUES (11, 1, 1, 'unseen')")
        mirror.database.rows("SELECT modak.release(%s)", (pin,))
        await_true(lambda: steps.count(Step.RETENTION_STOPPED), 30, "it stops")
        shedding.await_state(p0="tiering")
        (report,) = look(mirror.settings, ())
        assert report.stopped is not None
        for part in ("0, 0: other values", "10, 1: not in the heap", "11, 1: not in the lake"):
            assert part in report.stopped
        assert mirror.database.rows("SELECT retention_stopped IS NOT NULL FROM modak.status") == [(True,)]
        # Mended: the lake's state is the truth.
        mirror.database.execute(
            "UPDATE p0 SET v = 'first' WHERE at = 0",
            "INSERT INTO p0 VALUES (10, 1, 0, 'first')",
            "DELETE FROM p0 WHERE at = 11",
        )
        resume(mirror.settings, ["events"])
        shedding.await_state(p0="dropped", p1="dropped")
        shedding.assert_exact()


def test_t_passes_a_partition_that_never_rests(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each seal more changes are captured than the cut-line should wait for; it is sealed anew, but not for
    ever."""
    shedding = Shedding.create(mirror, partitions=3, rows=10, lag="1000")
    with mirror.pumping():
        shedding.await_state(p0="hot")
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
        shedding.await_state(p0="dropped")
    assert seals == 3, "up to 2, 4 and 8 changes"
    shedding.assert_exact()


def test_a_partition_that_is_altered_during_its_proof_is_not_proven(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    Shedding.create(mirror, partitions=3, rows=10)
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
        await_true(lambda: steps.count(Step.RETENTION_STOPPED), 40, "it stops")
    assert "it was altered while it was compared with the lake" in steps.details(Step.RETENTION_REFUSED, "reason")
    assert "0, 0: other values" in steps.details(Step.RETENTION_STOPPED, "reason")[0]
    assert mirror.database.rows("SELECT v FROM p0 WHERE at = 0") == [("unseen",)]


def test_truncates_concern_what_is_above_t(mirror: Mirror) -> None:
    """TRUNCATE of the table and of single partitions, in every state of a partition."""
    shedding = Shedding.create(mirror, partitions=4, rows=10)
    mirror.database.rows("SELECT pin_id FROM modak.pin('events', in_one_snapshot => true)")
    mirror.catch_up()
    with mirror.pumping():
        shedding.await_state(p0="tiered", p1="tiered")
        mirror.database.execute("TRUNCATE p0", "INSERT INTO events VALUES (5, 99, 1, 'after')")
        mirror.database.execute("INSERT INTO model VALUES (5, 99, 1, 'after')")
        shedding.assert_exact()
        mirror.database.execute("TRUNCATE p2", "DELETE FROM model WHERE at >= 200 AND at < 300")
        mirror.await_frontier()
        mirror.await_live("public.events")
        shedding.assert_exact()
        with mirror.database.connect(autocommit=False) as connection:
            connection.execute("TRUNCATE events")
            connection.execute("DELETE FROM model WHERE at >= 200")
            connection.execute("INSERT INTO events VALUES (310, 1, 1, 'new')")
            connection.execute("INSERT INTO model VALUES (310, 1, 1, 'new')")
        mirror.await_frontier()
        shedding.assert_exact()
        mirror.database.execute("DELETE FROM modak.read_pins")
        resume(mirror.settings, ())
        shedding.await_state(p0="dropped", p1="dropped")
        shedding.assert_exact()


def test_what_owners_do_with_partitions(mirror: Mirror) -> None:
    """One is dropped, one detached, one attached below the cut-line, one made late: no row of the lake is taken for
    deleted."""
    shedding = Shedding.create(mirror, partitions=6, rows=10, lag="200")
    mirror.catch_up()
    steps = Steps()
    with mirror.pumping(steps):
        shedding.await_state(p0="dropped", p1="dropped", p2="dropped")
        mirror.database.execute("DROP TABLE p3", "ALTER TABLE events DETACH PARTITION p4")
        await_true(lambda: shedding.cut == 500, 30, f"T passes both: {shedding.explained()}")
        shedding.assert_exact()
        assert shedding.states()["p3"] == shedding.states()["p4"] == "dropped"
        mirror.database.execute("ALTER TABLE events ATTACH PARTITION p4 FOR VALUES FROM (400) TO (500)")
        await_true(lambda: "attached below T" in str(shedding.explained()), 30, "it is noticed")
        with mirror.database.connect() as connection:
            shedding.make_partition(connection, 6)
        shedding.await_state(p6="hot")
        assert mirror.database.rows("SELECT retention_stopped FROM modak.status") == [(None,)]
    assert steps.count(Step.TABLE_FAILED) == 0


def test_a_partition_that_was_attached_below_t_is_compared_once_a_day(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not once a minute, nor by every session: that reads all of it, and its part of the lake."""
    looks, proofs = 0, 0
    tables = source.retained_tables

    def looking(*arguments: Any) -> tuple[TableId, ...]:
        nonlocal looks
        looks += 1
        return tables(*arguments)

    def proving(*_: Any) -> Proof:
        nonlocal proofs
        proofs += 1
        return Proof(1, 5, "as it was", ("1, 50: not in the lake",))

    def wait_for_looks() -> None:
        wanted = looks + 3
        await_true(lambda: looks >= wanted, 60, "it looks again")

    def later(interval: str) -> None:
        heap.database.rows(
            "UPDATE modak.partitions SET disproved_at = disproved_at - %s::interval RETURNING 1", (interval,)
        )

    @contextmanager
    def session() -> Iterator[PartitionShedding]:
        inbox = SimpleQueue[Any]()
        settings = Settings(dsn=database.dsn, slot="s", retention_interval=0.05)
        retention = PartitionShedding(SessionContext(settings, StorageOptions(), ThreadTaskRunner(1), Steps(), inbox))
        retention.start()
        try:
            yield retention
        finally:
            retention.stop()
        assert inbox.empty(), "it failed"

    monkeypatch.setattr(source, "retained_tables", looking)
    monkeypatch.setattr(Prover, "prove", proving)
    monkeypatch.setattr(backoff, "LONGEST_PAUSE", 0.0)
    heap = Heap(database)
    heap.pass_by("ev0", 100)
    assert heap.drop("ev0") is None
    heap.database.execute(
        "UPDATE modak.tables SET heap_retention_lag = 1000000",
        "CREATE TABLE late (LIKE ev INCLUDING ALL)",
        "INSERT INTO late (id, at) VALUES (1, 50)",
        "ALTER TABLE ev ATTACH PARTITION late FOR VALUES FROM (0) TO (100)",
    )
    with session():
        await_true(lambda: proofs, 60, "it is compared")
        for _ in range(3):
            wait_for_looks()
            later("10 minutes")
    assert proofs == 1
    with session() as retention:
        wait_for_looks()
        assert proofs == 1
        later("1 day")
        await_true(lambda: proofs == 2, 60, "a day later")
        wait_for_looks()
        assert proofs == 2
        with heap.database.connect() as connection:
            source.run(connection, "resume", {"table_ids": [heap.value("SELECT 'ev'::regclass::oid::bigint")]})
        retention.wake()
        await_true(lambda: proofs == 3, 20, "somebody asks")
    assert "1, 50: not in the lake" in heap.value("SELECT reason FROM modak.partitions WHERE state = 'tiering'")


def test_partitions_are_made_ahead(mirror: Mirror) -> None:
    shedding = Shedding.create(mirror, partitions=2, rows=10, lag="1000", premake=2)
    with mirror.pumping():
        mirror.await_live("public.events")
        await_true(lambda: len(shedding.states()) == 4, 30, "two more partitions")
        assert mirror.database.rows("SELECT to_regclass('events_p300')::text") == [("events_p300",)]
        mirror.database.execute("INSERT INTO events VALUES (399, 1, 1, 'x')")
        await_true(lambda: len(shedding.states()) == 6, 90, "two more above the newest")
        mirror.await_frontier()
    mirror.assert_equal("public.events")


def test_a_partition_that_cannot_be_made_ahead_is_told_of(mirror: Mirror) -> None:
    shedding = Shedding.create(mirror, partitions=2, rows=10, lag="1000", premake=2)
    mirror.database.execute("CREATE TABLE events_p300 ()")
    steps = Steps()
    with mirror.pumping(steps):
        await_true(lambda: steps.count(Step.RETENTION_REFUSED), 30, "it cannot be made")
        told = next(details for step, details in steps.seen if step is Step.RETENTION_REFUSED)
        assert (told["table"], told["partition"]) == ("public.events", "public.events_p300")
        assert "already exists" in str(told["reason"])
        assert "public.events_p300 was not made" in str(look(mirror.settings, ["events"])[0].not_made)
        with StatusReader(mirror.settings) as reader:
            (retention,) = (table.retention for table in reader.read().tables if table.table == "public.events")
        assert retention is not None
        assert "public.events_p300 was not made" in str(retention.not_made)
        mirror.database.execute("DROP TABLE events_p300")
        resume(mirror.settings, [])
        await_true(lambda: len(shedding.states()) == 4, 30, "both are made")
        await_true(lambda: look(mirror.settings, ["events"])[0].not_made is None, 30, "all is well")


def test_the_newest_key_of_an_idle_table_is_not_looked_up(mirror: Mirror) -> None:
    """Without an index that begins with it the look-up reads the whole partition that everybody writes to."""
    # What is due is decided by rows of p2, which also holds the newest.
    Shedding.create(mirror, partitions=3, rows=10, lag="95", premake=1)

    def scans() -> tuple[int, int]:
        """Of p2, and of a table that every look reads."""
        rows = mirror.database.rows(
            "SELECT relid = 'p2'::regclass, seq_scan + coalesce(idx_scan, 0) FROM pg_stat_all_tables"
            " WHERE relid IN ('p2'::regclass, 'modak.partitions'::regclass) ORDER BY 1 DESC"
        )
        return rows[0][1], rows[1][1]

    with mirror.pumping():
        await_true(lambda: mirror.database.rows("SELECT to_regclass('events_p300')::text") != [(None,)], 30, "made")
        mirror.await_frontier()
        former = scans()

        def idle() -> bool:
            nonlocal former
            now = scans()
            if now[0] != former[0]:
                former = now
            return now[1] >= former[1] + 30

        await_true(idle, 60, "thirty looks, and none at p2")


def test_a_sealed_partition_that_is_not_due_any_more_is_hot_again(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not made to wait for the cut-line with its triggers on; and what was written meanwhile is in the mirror."""
    monkeypatch.setattr(retention, "_UNSEAL_AFTER", 0.0)
    shedding = Shedding.create(mirror, partitions=4, rows=10, lag="1000")
    mirror.catch_up()
    with mirror.pumping():
        with mirror.database.connect(autocommit=False) as writer:
            # The cut-line has to pass p0 first.
            writer.execute("UPDATE events SET n = n + 1 WHERE at = 10")
            change_retention(mirror.settings, "events", "heap_retention", "100")
            shedding.await_state(p0="hot", p1="sealing")
            mirror.database.execute("UPDATE events SET n = 5 WHERE at = 110", "UPDATE model SET n = 5 WHERE at = 110")
            change_retention(mirror.settings, "events", "heap_retention", "1000")
            shedding.await_state(p0="hot", p1="hot")
            writer.rollback()
        mirror.database.execute("UPDATE events SET n = 6 WHERE at = 120", "UPDATE model SET n = 6 WHERE at = 120")
        assert mirror.database.rows("SELECT count(*) FROM modak.mirror_captured") == [(0,)]
        mirror.await_frontier()
        mirror.assert_equal("public.events")
        change_retention(mirror.settings, "events", "heap_retention", "100")
        shedding.await_state(p0="dropped", p1="dropped")
        shedding.assert_exact()


def test_the_lag_may_change_and_be_taken_away(mirror: Mirror) -> None:
    shedding = Shedding.create(mirror, partitions=4, rows=10, lag="1000")
    mirror.catch_up()
    assert {one.key: one.shown for one in show_retention(mirror.settings, "events")} == {
        "heap_retention": "1000",
        "premake": "0",
        "width": "100",
        "drop_grace": "0 seconds",
        "detach": "false",
    }
    with mirror.pumping():
        change_retention(mirror.settings, "events", "heap_retention", "200")
        shedding.await_state(p0="dropped", p1="hot")
        change_retention(mirror.settings, "events", "heap_retention", None)
        outlook = look(mirror.settings, ["events"])[0]
        assert outlook.partitions[0].outlook == "stays: heap_retention is not set"
        assert mirror.database.rows("SELECT heap_retention_lag IS NOT NULL FROM modak.tables") == [(True,)]
        change_retention(mirror.settings, "events", "heap_retention", "100")
        shedding.await_state(p1="dropped")
        with pytest.raises(UsageError, match="whole number"):
            change_retention(mirror.settings, "events", "heap_retention", "1 day")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("CREATE TABLE t (id int PRIMARY KEY)", "is not partitioned"),
        ("CREATE TABLE t (id int PRIMARY KEY) PARTITION BY LIST (id)", "by range of one column"),
        ("CREATE TABLE t (id int, b int, PRIMARY KEY (id, b)) PARTITION BY RANGE (id, b)", "by range of one column"),
        ("CREATE TABLE t (id text PRIMARY KEY) PARTITION BY RANGE (id)", "neither an integer nor a time"),
    ],
)
def test_tables_that_cannot_shed_partitions_are_refused(mirror: Mirror, made: LiteralString, said: str) -> None:
    mirror.database.execute(made)
    with pytest.raises(TableError, match=said):
        mirror.register("t", retention=at_once("5"))


def test_partitions_of_partitions_and_filled_defaults_are_refused(mirror: Mirror) -> None:
    mirror.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE tn PARTITION OF t FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (id)",
    )
    with pytest.raises(TableError, match="partitioned themselves"):
        mirror.register("t", retention=at_once("5"))
    mirror.database.execute("DROP TABLE tn", "CREATE TABLE td PARTITION OF t DEFAULT", "INSERT INTO t VALUES (1)")
    with pytest.raises(TableError, match=r"td of public\.t holds rows"):
        mirror.register("t", retention=at_once("5"))
    mirror.database.execute("TRUNCATE t")
    with pytest.raises(UsageError, match="not a whole number"):
        mirror.register("t", retention=at_once("5 days"))


def test_leaving_the_mirror_says_what_becomes_of_old_rows(mirror: Mirror) -> None:
    shedding = Shedding.create(mirror, partitions=3, rows=10)
    with mirror.pumping():
        shedding.await_state(p0="dropped")
    with pytest.raises(TableError, match="only copy"):
        mirror.unregister("events")
    mirror.unregister("events", keep_lake=True)
    # Nothing of ours is left that a statement could trip over.
    assert mirror.database.rows("SELECT tgname FROM pg_trigger WHERE tgname LIKE 'zz_modak%'") == []
    mirror.database.execute("UPDATE events SET n = 5", "TRUNCATE p1")
    with pytest.raises(psycopg.errors.CheckViolation):
        mirror.database.execute("INSERT INTO events VALUES (5, 5, 5, 'x')")
    with pytest.raises(TableError, match="holds rows that the heap had shed"):
        mirror.register("events")


def test_timestamps_and_dates_shed_too(mirror: Mirror) -> None:
    mirror.database.execute(
        "CREATE TABLE t (id int, at timestamptz, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)",
        "CREATE TABLE d (id int, at date, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)",
    )
    with mirror.database.connect() as connection:
        for table in ("t", "d"):
            for month in (1, 2, 3):
                connection.execute(
                    f"CREATE TABLE {table}{month} PARTITION OF {table} FOR VALUES FROM ('2026-0{month}-01')"
                    f" TO ('2026-0{month + 1}-01')".encode()
                )
            connection.execute(
                f"INSERT INTO {table} SELECT g, date '2026-01-01' + g * 7 FROM generate_series(0, 12) g".encode()
            )
    mirror.register("t", "d", retention=at_once("3 weeks"))
    cuts: LiteralString = (
        "SELECT tier_key_hi FROM modak.cutline JOIN modak.tables USING (table_id) ORDER BY tier_key_type"
    )
    assert mirror.database.rows(cuts) == [(-719162,), (-62135596800000000,)]
    with mirror.pumping():
        await_true(
            lambda: mirror.database.rows("SELECT count(*) FROM modak.partitions WHERE state = 'dropped'") == [(4,)],
            60,
            str(mirror.database.rows("SELECT partition_id, state, reason FROM modak.partitions")),
        )
        mirror.database.execute("INSERT INTO t VALUES (99, '2026-01-05 00:00:00.5+02')")
    assert mirror.database.rows(cuts) == [(20513,), (1772323200000000,)]
    assert mirror.database.rows("SELECT replace(pk, chr(31), ' ') FROM modak.delta") == [
        ("99 2026-01-04 22:00:00.5+00",)
    ]
    (first, second) = look(mirror.settings, ())
    assert {first.cut, second.cut} == {"2026-03-01", "2026-03-01 00:00:00+00"}


def test_a_partition_that_is_dropped_while_partitions_are_looked_at(mirror: Mirror) -> None:
    shedding = Shedding.create(mirror, partitions=3, rows=10, lag="1000")
    with mirror.database.connect() as connection:
        table = load_table(connection, TableId(mirror.database.rows("SELECT 'events'::regclass::oid::bigint")[0][0]))
        assert table is not None
        assert table.tier is not None
        attached = source.read_attached(connection, table.table_id)
        newest = source.newest_key(connection, table.tier, attached)
        connection.execute(f"DROP TABLE p{shedding.partitions - 1}".encode())
        found = source.newest_key(connection, table.tier, attached)
    assert newest is not None
    assert found is not None
    assert (newest // WIDTH, found // WIDTH) == (2, 1)
