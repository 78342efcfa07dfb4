"""Partitions of a table with heap retention: created ahead by the pump; dropped, detached and attached by their
owner."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from queue import SimpleQueue
from typing import Any

import pytest
from pydantic import ByteSize

from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import TableId
from mirror_pump.ops.retain.retention import change_retention, look, resume
from mirror_pump.ops.status.status_reader import StatusReader
from mirror_pump.pipeline.flow.session_context import SessionContext, SharedConnection
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.retention.drop_proof import Proof, Prover
from mirror_pump.pipeline.retention.next_step import Turns
from mirror_pump.pipeline.retention.partition_shedding import PartitionShedding
from mirror_pump.settings.config import Settings
from mirror_pump.settings.limits import InternalLimits
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.retention import partitions as source
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Steps, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.events_table import RetentionTables
from tests.support.retention_sql import SqlTable
from tests.support.retention_table import WIDTH


def test_what_owners_do_with_partitions(retention_tables: RetentionTables) -> None:
    """One is dropped, one detached, one attached below the cut-line, one created late: no row of the lake counts as
    deleted."""
    events = retention_tables.automatic(partitions=6, rows=10, lag="200")
    mirror = events.mirror
    mirror.catch_up()
    steps = Steps()
    with mirror.pumping(steps):
        events.await_state(p0="dropped", p1="dropped", p2="dropped")
        mirror.database.execute("DROP TABLE p3", "ALTER TABLE events DETACH PARTITION p4")
        await_true(lambda: events.cut == 500, 30, f"the cut-line passes both: {events.explained()}")
        events.assert_exact()
        assert events.states()["p3"] == events.states()["p4"] == "dropped"
        mirror.database.execute("ALTER TABLE events ATTACH PARTITION p4 FOR VALUES FROM (400) TO (500)")
        # The catalog has another one of its name.
        ((entered,),) = mirror.database.rows("SELECT 'p4'::regclass::oid")
        events.await_state(60, **{f"p4 #{entered}": "tiered"})
        events.assert_exact()
        with mirror.database.connect() as connection:
            events.make_partition(connection, 6)
        events.await_state(p6="hot")
        assert mirror.database.rows("SELECT retention_stopped FROM modak.status") == [(None,)]
    assert steps.count(Step.TABLE_FAILED) == 0


def test_a_partition_attached_below_the_cutline_is_compared_once_a_day(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not once a minute, nor in every session: the comparison reads all of it, and its part of the lake."""
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
        table.database.rows(
            "UPDATE modak.partitions SET disproved_at = disproved_at - %s::interval RETURNING 1", (interval,)
        )

    @contextmanager
    def session() -> Iterator[PartitionShedding]:
        inbox = SimpleQueue[Any]()
        limits = InternalLimits(retry_pause_max=0, late_partition_bytes=ByteSize(1))
        settings = Settings(dsn=database.dsn, slot="s", retention_interval=0.05, limits=limits)
        context = SessionContext(settings, StorageOptions(), ThreadTaskRunner(1), Steps(), inbox)
        with (
            closing(SharedConnection(context.connect)) as shared,
            closing(SharedConnection(context.connect)) as waiting,
            PartitionShedding(context, shared, waiting, Turns()) as retention,
        ):
            yield retention
        assert inbox.empty(), "it failed"

    monkeypatch.setattr(source, "retained_tables", looking)
    monkeypatch.setattr(Prover, "prove", proving)
    table = SqlTable(database)
    table.pass_by("ev0", 100)
    assert table.drop("ev0") is None
    table.database.execute(
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
        with table.database.connect() as connection:
            source.run(connection, "resume", {"table_ids": [table.value("SELECT 'ev'::regclass::oid::bigint")]})
        retention.wake()
        await_true(lambda: proofs == 3, 20, "somebody asks")
    assert "1, 50: not in the lake" in table.value("SELECT reason FROM modak.partitions WHERE state = 'tiering'")


@pytest.mark.further
def test_partitions_are_made_ahead(retention_tables: RetentionTables) -> None:
    events = retention_tables.automatic(partitions=2, rows=10, lag="1000", premake=2)
    mirror = events.mirror
    with mirror.pumping():
        mirror.await_live("public.events")
        await_true(lambda: len(events.states()) == 4, 30, "two more partitions")
        assert mirror.database.rows("SELECT to_regclass('events_p300')::text") == [("events_p300",)]
        mirror.database.execute("INSERT INTO events VALUES (399, 1, 1, 'x')")
        await_true(lambda: len(events.states()) >= 6, 90, "two more above the newest")
        mirror.await_frontier()
    mirror.assert_equal("public.events")


@pytest.mark.further
def test_a_partition_that_cannot_be_made_ahead_is_reported(retention_tables: RetentionTables) -> None:
    events = retention_tables.automatic(partitions=2, rows=10, lag="1000", premake=2)
    mirror = events.mirror
    mirror.database.execute("CREATE TABLE events_p300 ()")
    steps = Steps()
    with mirror.pumping(steps):
        await_true(lambda: steps.count(Step.RETENTION_REFUSED), 30, "it cannot be made")
        refusal = next(details for step, details in steps.occurrences if step is Step.RETENTION_REFUSED)
        assert (refusal["table"], refusal["partition"]) == ("public.events", "public.events_p300")
        assert "already exists" in str(refusal["reason"])
        assert "public.events_p300 was not made" in str(look(mirror.settings, ["events"])[0].not_made)
        with StatusReader(mirror.settings) as reader:
            (retention,) = (table.retention for table in reader.read().tables if table.table == "public.events")
        assert retention is not None
        assert "public.events_p300 was not made" in str(retention.not_made)
        mirror.database.execute("DROP TABLE events_p300")
        resume(mirror.settings, [])
        await_true(lambda: len(events.states()) == 4, 30, "both are made")
        await_true(lambda: look(mirror.settings, ["events"])[0].not_made is None, 30, "all is well")


@pytest.mark.further
def test_the_newest_key_of_an_idle_table_is_not_looked_up(retention_tables: RetentionTables) -> None:
    """Without an index that begins with the tier key, the look-up reads the whole partition that is being written
    to."""
    # Whether a partition is due is decided by rows of p2, which also has the newest key.
    events = retention_tables.automatic(partitions=3, rows=10, lag="95", premake=1)
    mirror = events.mirror

    def scans() -> tuple[int, int]:
        """Scans of p2, and of a table that is read in every round."""
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


@pytest.mark.further
def test_a_sealed_partition_that_is_not_due_any_more_is_hot_again(retention_tables: RetentionTables) -> None:
    """It need not wait for the cut-line with its triggers enabled, and what was written meanwhile is in the mirror."""
    limits = InternalLimits(unseal_after=0)
    events = retention_tables.automatic(partitions=4, rows=10, lag="1000", limits=limits)
    mirror = events.mirror
    mirror.catch_up()
    with mirror.pumping():
        with mirror.database.connect(autocommit=False) as writer:
            # The cut-line has to pass p0 first.
            writer.execute("UPDATE events SET n = n + 1 WHERE at = 10")
            change_retention(mirror.settings, "events", "heap_retention", "100")
            events.await_state(p0="hot", p1="sealing")
            mirror.database.execute("UPDATE events SET n = 5 WHERE at = 110", "UPDATE model SET n = 5 WHERE at = 110")
            change_retention(mirror.settings, "events", "heap_retention", "1000")
            events.await_state(p0="hot", p1="hot")
            writer.rollback()
        mirror.database.execute("UPDATE events SET n = 6 WHERE at = 120", "UPDATE model SET n = 6 WHERE at = 120")
        assert mirror.database.rows("SELECT count(*) FROM modak.mirror_captured") == [(0,)]
        mirror.await_frontier()
        mirror.assert_equal("public.events")
        change_retention(mirror.settings, "events", "heap_retention", "100")
        events.await_state(p0="dropped", p1="dropped")
        events.assert_exact()


@pytest.mark.further
def test_a_partition_that_is_dropped_while_partitions_are_looked_at(retention_tables: RetentionTables) -> None:
    events = retention_tables.automatic(partitions=3, rows=10, lag="1000")
    mirror = events.mirror
    with mirror.database.connect() as connection:
        table = load_table(connection, TableId(mirror.database.rows("SELECT 'events'::regclass::oid::bigint")[0][0]))
        assert table is not None
        assert table.tier is not None
        attached = source.read_attached(connection, table.table_id)
        newest = source.newest_key(connection, table.tier, attached)
        connection.execute(f"DROP TABLE p{events.partitions - 1}".encode())
        found = source.newest_key(connection, table.tier, attached)
    assert newest is not None
    assert found is not None
    assert (newest // WIDTH, found // WIDTH) == (2, 1)
