"""A catalog that is older than the lake, on a server that writes the timeline that the catalog records."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest

from mirror_pump.errors import ConnectionLost, HistoryDiverged, SourceError
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn, format_lsn
from mirror_pump.ops.reconcile.reconciliation import Reconciled, reconcile
from mirror_pump.ops.resync.resync import Resync, plan_resync
from mirror_pump.ops.status.status_reader import StatusReader
from mirror_pump.ops.status.status_report import Alert, Severity
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.key_index.key_indexes import KeyIndexes
from mirror_pump.pipeline.operations.requests import PublishRequest
from mirror_pump.pipeline.publish.publisher import Publisher
from mirror_pump.pipeline.session.lost_publishes import refuse_restored_copy
from mirror_pump.runtime.backoff import RetryPolicy
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.maintenance import begin_sweep, read_tables
from mirror_pump.source.catalog.resync import begin_stream, mark_tables, resync_candidates
from mirror_pump.source.connect import PgConnection, connect
from mirror_pump.source.stream.leader import Leader
from mirror_pump.source.stream.replication_stream import ReplicationStream
from mirror_pump.source.stream.slot import wal_end
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import read_duckdb
from mirror_pump.testing.mirror import Mirror, Steps, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.events_table import RetentionTables
from tests.support.kept_catalog import KeptCatalog
from tests.support.resyncs import drop_slot, resynced

STORAGE = StorageOptions(fsync=False)


@pytest.fixture
def mirror(database: Database, warehouse: str) -> Mirror:
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v text)",
        "CREATE TABLE b (id int PRIMARY KEY, v text)",
        "INSERT INTO a SELECT g, 'first' FROM generate_series(1, 100) g",
        "INSERT INTO b SELECT g, 'first' FROM generate_series(1, 100) g",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    mirror.register("a", "b")
    mirror.catch_up()
    return mirror


def refused(mirror: Mirror) -> HistoryDiverged:
    """What a pump that remembers nothing says."""
    with pytest.raises(HistoryDiverged) as failure:
        mirror.start().join(60)
    return failure.value


def healed(mirror: Mirror) -> Reconciled:
    return reconcile(mirror.settings, lambda _: None)


def pump_until_live(mirror: Mirror, *tables: str) -> Steps:
    with mirror.pumping() as running:
        mirror.await_live(*tables)
        mirror.await_frontier()
    return running.steps


@contextmanager
def connected(mirror: Mirror) -> Iterator[PgConnection]:
    with connect(mirror.database.dsn, autocommit=True) as connection:
        yield connection


def sweep_refused(mirror: Mirror, table: str = "public.a") -> bool:
    """Whether a sweep of the table would delete nothing."""
    slot = mirror.settings.slot
    with connected(mirror) as connection:
        (registered,) = (found for found in read_tables(connection, slot) if str(found.name) == table)
        try:
            begin_sweep(connection, slot, registered, 0.0)
            refuse_restored_copy(connection, slot, registered.name, registered.metadata_location, STORAGE)
        except SourceError as error:
            return f"no file of {table} is deleted" in str(error)
    return False


def test_a_restored_catalog_is_noticed_by_a_pump_that_remembers_nothing(mirror: Mirror) -> None:
    """Schema modak alone is put back: the slot and the heap are not, and the WAL is beyond all that was published."""
    database = mirror.database
    kept = KeptCatalog(database, "kept")
    for value in ("second", "third"):
        database.execute(f"UPDATE a SET v = '{value}'")
        mirror.catch_up()
    lost = mirror.location("public.a")
    database.rows("SELECT pg_switch_wal()")
    assert not sweep_refused(mirror)
    kept.put_back()
    error = refused(mirror)
    assert "the database went back: the lake was published up to" in str(error)
    assert "mirror-pump reconcile" in error.remedy
    location = re.search(r"public\.a \((\S+)\)", str(error))
    assert location is not None
    assert location[1] == lost
    assert set(read_duckdb(location[1]).column("v").to_pylist()) == {"third"}
    assert sweep_refused(mirror)

    found = healed(mirror)
    assert found.slot == "made"
    assert found.lost is not None
    assert {table.table: table.outcome for table in found.tables} == {
        "public.a": "copied-again",
        "public.b": "equal",
    }
    pump_until_live(mirror, "public.a", "public.b")
    # What was dealt with is not found again.
    steps = pump_until_live(mirror, "public.a", "public.b")
    assert not steps.count(Step.METADATA_UNKNOWN)
    assert not sweep_refused(mirror)


@pytest.mark.further
def test_the_last_publish_before_a_restore_is_pointed_out(mirror: Mirror) -> None:
    """One state beyond the catalog may also be what a pump left that was killed before it published: the pump goes on,
    and says so."""
    kept = KeptCatalog(mirror.database, "kept")
    mirror.database.execute("UPDATE a SET v = 'second'")
    # The slot stays where it was, as in a restored copy of the server's files.
    mirror.database.execute(f"SELECT pg_copy_logical_replication_slot('{mirror.settings.slot}', 'former')")
    mirror.catch_up()
    lost = mirror.location("public.a")
    kept.put_back()
    mirror.database.execute(
        f"SELECT pg_drop_replication_slot('{mirror.settings.slot}')",
        f"SELECT pg_copy_logical_replication_slot('former', '{mirror.settings.slot}')",
        "SELECT pg_drop_replication_slot('former')",
    )
    steps = pump_until_live(mirror, "public.a", "public.b")
    assert steps.details(Step.METADATA_UNKNOWN, "metadata") == [lost]
    assert not pump_until_live(mirror, "public.a", "public.b").count(Step.METADATA_UNKNOWN), "it went past that"


@pytest.mark.further
def test_a_pump_at_rest_notices_that_its_catalog_went_back(mirror: Mirror) -> None:
    """It has published nothing itself."""
    database = mirror.database
    kept = KeptCatalog(database, "kept")
    mirror.database.execute("UPDATE a SET v = 'second'")
    mirror.catch_up()
    frontier = mirror.frontier()
    steps = Steps()
    pump = mirror.start(steps)
    await_true(lambda: steps.count(Step.STREAMING), 30, "it streams")
    kept.put_back()
    database.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'mirror-pump%%'")
    with pytest.raises(HistoryDiverged, match=f"this pump has seen frontier {format_lsn(Lsn(frontier))}"):
        pump.join(60)
    assert not steps.count(Step.PUBLISHED)
    assert {table.outcome for table in healed(mirror).tables} == {"copied-again", "equal"}
    pump_until_live(mirror, "public.a", "public.b")


def resync_refused(mirror: Mirror, table: str) -> str:
    """What `resync` says, of all tables and of one, and what it says beforehand."""
    texts = set()
    for names in ((), (table,)):
        for command in (resync_tables, plan_resync):
            with pytest.raises(HistoryDiverged) as failure:
                command(mirror.settings, names)
            assert "mirror-pump reconcile" in failure.value.remedy
            texts.add(str(failure.value))
    (text,) = texts
    return text


def resync_tables(settings: Settings, names: Sequence[str]) -> Resync:
    return resynced(settings, *names)


def alerts(mirror: Mirror) -> tuple[Alert, ...]:
    with StatusReader(mirror.settings) as reader:
        return reader.read().alerts


@pytest.mark.further
def test_a_resync_neither_heals_nor_hides_a_catalog_that_went_back(mirror: Mirror) -> None:
    database = mirror.database
    kept = KeptCatalog(database, "kept")
    for value in ("second", "third"):
        database.execute(f"UPDATE a SET v = '{value}'")
        mirror.catch_up()
    kept.put_back()
    error = resync_refused(mirror, "a")
    assert "the database went back: the lake was published up to" in error
    assert kept.differences(except_for={"mirror_slots"}) == []
    assert str(refused(mirror)) == error
    # A pump led at the moment, so the tables were marked: what it has to find is still found, also without a slot.
    with connected(mirror) as connection, connection.transaction():
        tables = [table.table_id for table in resync_candidates(connection, mirror.settings.slot)]
        assert len(mark_tables(connection, mirror.settings.slot, tables, wal_end(connection), gap=False)) == 2
    assert str(refused(mirror)) == error
    drop_slot(mirror)
    assert "the database went back" in resync_refused(mirror, "a")
    assert_told_to_reconcile(mirror)
    assert healed(mirror).slot == "made"
    database.execute("UPDATE b SET v = 'fourth' WHERE id <= 10")
    pump_until_live(mirror, "public.a", "public.b")
    mirror.assert_equal("public.a", "public.b")
    # From here on, a lost slot is nothing but that.
    drop_slot(mirror)
    database.execute("UPDATE b SET v = 'in no stream' WHERE id <= 20")
    before = mirror.frontier()
    resync = resynced(mirror)
    assert resync.lost is not None
    assert resync.position is not None
    assert resync.position > before
    steps = pump_until_live(mirror, "public.a", "public.b")
    assert not steps.count(Step.METADATA_UNKNOWN)
    mirror.assert_equal("public.a", "public.b")
    assert not sweep_refused(mirror)


def assert_told_to_reconcile(mirror: Mirror) -> None:
    """`status` says the same as the pump that ended, and not what a lost slot alone would need."""
    remedies = [alert.remedy for alert in alerts(mirror) if alert.severity is Severity.CRITICAL]
    assert len(remedies) == 1
    assert "mirror-pump reconcile" in remedies[0]
    assert "resync" not in remedies[0]


def test_a_slot_that_a_promotion_left_behind_is_a_matter_of_reconcile(mirror: Mirror) -> None:
    """Before any pump has looked at the new primary."""
    drop_slot(mirror)
    frontier, slot = Lsn(mirror.frontier()), mirror.settings.slot
    with connected(mirror) as connection:
        ((timeline,),) = mirror.database.rows("SELECT timeline FROM modak.mirror_slots")
        with pytest.raises(SourceError, match="nothing was done"):
            begin_stream(connection, slot, Lsn(frontier - 1))
        mirror.database.execute(f"UPDATE modak.mirror_slots SET timeline = {timeline + 1}")
        with pytest.raises(SourceError, match="nothing was done"):
            begin_stream(connection, slot, frontier)
        mirror.database.execute(f"UPDATE modak.mirror_slots SET timeline = {timeline}")
    (alert,) = [found for found in alerts(mirror) if "does not exist" in found.message]
    assert "mirror-pump resync --all" in alert.remedy
    mirror.database.execute("UPDATE modak.mirror_slots SET timeline = timeline + 1")
    assert_told_to_reconcile(mirror)
    with pytest.raises(HistoryDiverged, match="which is not part of the server's history"):
        resynced(mirror)


@pytest.mark.further
def test_nothing_is_deleted_where_no_pump_has_followed_to(mirror: Mirror) -> None:
    database = mirror.database
    assert not sweep_refused(mirror)
    database.execute("UPDATE modak.mirror_slots SET timeline = timeline + 1")
    assert sweep_refused(mirror), "the server writes another timeline"
    database.execute("UPDATE modak.mirror_slots SET timeline = timeline - 1, applied_lsn = applied_lsn - 1000000")
    assert sweep_refused(mirror), "the slot is ahead of the catalog"
    database.execute("UPDATE modak.mirror_slots SET applied_lsn = applied_lsn + 1000000")
    assert not sweep_refused(mirror)
    database.execute(f"SELECT pg_drop_replication_slot('{mirror.settings.slot}')")
    assert sweep_refused(mirror), "the slot is gone"
    assert {table.outcome for table in healed(mirror).tables} == {"equal"}


def test_a_batch_of_one_timeline_is_not_published_on_another(mirror: Mirror) -> None:
    database, slot = mirror.database, mirror.settings.slot
    ((timeline, publish_id),) = database.rows("SELECT timeline, publish_id FROM modak.mirror_slots")
    frontier = mirror.frontier()
    with ExitStack() as closing:
        leader = closing.enter_context(Leader.acquire(database.dsn, slot))
        for written, accepted in ((timeline + 1, False), (timeline, True)):
            publisher = Publisher(
                lambda: connect(database.dsn, autocommit=True),
                slot,
                leader.epoch,
                STORAGE,
                RetryPolicy(),
                KeyIndexes(0, STORAGE),
                staged=lambda _: None,
                timeline=written,
            )
            closing.callback(publisher.close)
            request = PublishRequest(frontier=Lsn(frontier + 1))
            if accepted:
                assert publisher.publish(request).frontier == frontier + 1
            else:
                with pytest.raises(ConnectionLost, match=f"from timeline {written} to {timeline}"):
                    publisher.publish(request)
                assert database.rows("SELECT publish_id FROM modak.mirror_slots") == [(publish_id,)]
                assert mirror.frontier() == frontier
    with pytest.raises(ConnectionLost, match=f"timeline {timeline}, and the session to one with"):
        ReplicationStream.start(database.dsn, slot, slot, Lsn(frontier), timeline=timeline + 1)
    ReplicationStream.start(database.dsn, slot, slot, Lsn(frontier), timeline=timeline).close()


def test_rows_that_only_the_lake_has_survive(retention_tables: RetentionTables, database: Database) -> None:
    """A catalog from before partitions left the heap does not know that the lake has the only copy of their rows."""
    events = retention_tables.manual()
    mirror = events.mirror
    with mirror.pumping() as running:
        mirror.await_live("public.events")
        events.advance(running)
    older = KeptCatalog(database, "older")
    with mirror.pumping() as running:
        events.advance(running)
    events.assert_exact()
    newest = KeptCatalog(database, "newest")
    slot, states = _slot(mirror), events.states()
    # The partition leaves the heap, as the pump drops it once it is proven.
    database.execute("ALTER TABLE events DETACH PARTITION p1", "DROP TABLE p1")
    for slot_dropped in (False, True):
        if slot_dropped:
            database.execute(f"SELECT pg_drop_replication_slot('{mirror.settings.slot}')")
        older.put_back()
        assert "the database went back" in str(refused(mirror))
        assert sweep_refused(mirror, "public.events")
        assert "the database went back" in resync_refused(mirror, "events")
        before = KeptCatalog(database, f"before_{slot_dropped}".lower())
        with pytest.raises(HistoryDiverged, match=r"events has heap retention, and its catalog went back") as failure:
            healed(mirror)
        assert "Nothing was changed" in str(failure.value)
        assert before.differences(except_for={"mirror_slots"}) == []
        assert _slot(mirror) == (None if slot_dropped else slot)
        newest.put_back()
    # The newer catalog is there again: only the slot is missing. What left the heap stays, the rest is copied.
    events.assert_exact()
    database.execute(
        f"UPDATE events SET v = 'in no stream' WHERE at >= {events.cut}",
        f"UPDATE model SET v = 'in no stream' WHERE at >= {events.cut}",
    )
    assert events.states() == states
    assert [(table.table, table.outcome) for table in healed(mirror).tables] == [("public.events", "copied-again")]
    pump_until_live(mirror, "public.events")
    events.assert_exact()


def _slot(mirror: Mirror) -> object:
    rows = mirror.database.rows(
        "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s", (mirror.settings.slot,)
    )
    return rows[0][0] if rows else None
