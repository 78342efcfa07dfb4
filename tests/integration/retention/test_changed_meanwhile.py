"""A table that leaves the mirror, or is altered, in the middle of a step of its retention ends no pump."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import LiteralString

import pytest

from mirror_pump.errors import TableError
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.flow.tasks import Tasks
from mirror_pump.pipeline.retention.drop_proof import Prover
from mirror_pump.pipeline.retention.partition_sync import reconcile
from mirror_pump.settings.limits import InternalLimits
from mirror_pump.source.catalog.tables import delete_table, load_tables
from mirror_pump.source.connect import connect
from mirror_pump.source.retention.partitions import (
    enter,
    install,
    read_attached,
    read_choices,
    read_partitions,
    run,
    take_late,
)
from mirror_pump.testing.mirror import Mirror, await_true
from tests.support.events_table import RetentionTables
from tests.support.retention_table import at_once
from tests.support.tiered import tiered

pytestmark = pytest.mark.further

_PINNING: LiteralString = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%pin_tables(%'"
)


def test_while_its_partition_is_about_to_be_proven(retention_tables: RetentionTables) -> None:
    """As at the end of a restore, whose last transaction keeps pins out until the registration has ended."""
    events = retention_tables.automatic(partitions=3, rows=10)
    mirror, table_id = events.mirror, events.table_id
    with mirror.pumping() as pump:
        with mirror.database.session(autocommit=False) as connection:
            connection.execute("LOCK TABLE modak.read_pins IN SHARE MODE")
            await_true(lambda: mirror.database.rows(_PINNING) == [(1,)], 40, "the proof waits to pin its snapshot")
            delete_table(connection, table_id)
        await_true(lambda: pump.steps.details(Step.RETENTION_REFUSED, "reason"), 20, "the proof is refused")
        mirror.await_frontier()
    (reason,) = pump.steps.details(Step.RETENTION_REFUSED, "reason")
    assert "public.events is not registered any more" in str(reason)


def test_before_its_proof_reads_the_cutline(retention_tables: RetentionTables) -> None:
    events = retention_tables.automatic(partitions=3, rows=10)
    events.mirror.catch_up()
    with connect(events.database.dsn, autocommit=True) as connection:
        (table,) = load_tables(connection, events.mirror.settings.slot)
        partition = read_partitions(connection, table.table_id)[0]
        delete_table(connection, table.table_id)
    with pytest.raises(TableError, match="not registered any more"):
        _prover(events.mirror).prove(table, partition)


@pytest.mark.parametrize(
    "change", ["TRUNCATE p0", "ALTER TABLE public.events ALTER n TYPE int USING n + 0"], ids=["truncated", "rewritten"]
)
def test_a_heap_that_an_older_snapshot_finds_empty_is_not_taken_for_a_difference(
    retention_tables: RetentionTables, change: str
) -> None:
    """The change commits after the proof has its snapshot, and before it reads the heap."""
    events = retention_tables.automatic(partitions=3, rows=10, lag=None)
    mirror = events.mirror
    mirror.register("public.events", retention=tiered(keep_heap=True))
    with mirror.pumping():
        events.await_state(p0="tiered")
    with connect(events.database.dsn, autocommit=True) as connection:
        (table,) = load_tables(connection, mirror.settings.slot)
        partition = read_partitions(connection, table.table_id)[0]
    with ThreadPoolExecutor(1) as pool, events.database.session(autocommit=False) as connection:
        connection.execute("LOCK TABLE modak.read_pins IN SHARE MODE")
        proof = pool.submit(_prover(mirror).prove, table, partition)
        await_true(lambda: mirror.database.rows(_PINNING) == [(1,)], 40, "it waits to pin its snapshot")
        connection.execute(change.encode())
        connection.commit()
        with pytest.raises(TableError, match="truncated or rewritten since the snapshot"):
            proof.result(60)


def test_a_key_of_another_type_is_not_proven(retention_tables: RetentionTables) -> None:
    """The pump follows the change of the type later; until then it cannot read keys of the new type."""
    events = retention_tables.automatic(partitions=3, rows=10, lag=None)
    mirror = events.mirror
    mirror.register("public.events", retention=tiered(keep_heap=True))
    with mirror.pumping():
        events.await_state(p0="tiered")
    with connect(events.database.dsn, autocommit=True) as connection:
        (table,) = load_tables(connection, mirror.settings.slot)
        partition = read_partitions(connection, table.table_id)[0]
        connection.execute("ALTER TABLE public.events ALTER id TYPE text")
        connection.execute("INSERT INTO public.events VALUES (5, 'five', 5, 'late')")
    with pytest.raises(TableError, match="has not followed a change of the key"):
        _prover(mirror).prove(table, partition)


def test_an_unregistered_table_gets_no_default_partition(retention_tables: RetentionTables) -> None:
    events = retention_tables.automatic(partitions=0)
    mirror = events.mirror
    with connect(events.database.dsn, autocommit=True) as connection:
        (table,) = load_tables(connection, mirror.settings.slot)
        choices = read_choices(connection, table.table_id)
        assert choices is not None
        mirror.unregister("events")
        with pytest.raises(TableError, match="not registered any more"):
            reconcile(connection, table, choices, pytest.fail, 0)
        assert read_attached(connection, table.table_id) == ()


def test_a_table_that_is_registered_again_begins_anew(retention_tables: RetentionTables) -> None:
    """What was found out about its former registration changes nothing of the present one."""
    events = retention_tables.automatic(partitions=2, rows=10)
    mirror = events.mirror
    with connect(events.database.dsn, autocommit=True) as connection:
        (former,) = load_tables(connection, mirror.settings.slot)
        partition = read_partitions(connection, former.table_id)[0]
        attached = read_attached(connection, former.table_id)[0]
        mirror.unregister("events")
        mirror.register("public.events", retention=at_once("100"))
        assert partition.relation_id is not None
        with pytest.raises(TableError, match="registered again"):
            install(connection, former, partition.relation_id, partition.partition_id, "cold")
        with pytest.raises(TableError, match="registered again"):
            enter(connection, former, attached)
        with pytest.raises(TableError, match="registered again"):
            take_late(connection, former, attached)
        where = {"table_id": former.table_id, "partition_id": partition.partition_id}
        assert run(connection, "unproven", where) == 0, "nothing of it was proven"
    assert set(events.states().values()) == {"hot"}


def _prover(mirror: Mirror) -> Prover:
    dsn = mirror.settings.require_dsn()
    tasks = Tasks(mirror.runner, lambda: False)
    return Prover(lambda: connect(dsn, autocommit=True), tasks, StorageOptions(), dsn, InternalLimits())
