"""`resync`: a mirror goes on after its slot was lost, and readers see the old content until all of the new is there."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mirror_pump.engine.rewrite.delete_conversion import convert_deletes
from mirror_pump.errors import NotLeader, SourceError, TableError, UsageError
from mirror_pump.model import TableState, format_lsn
from mirror_pump.ops.resync.resync import ResyncAction, plan_resync
from mirror_pump.ops.setup.profiles import add_profile, described_profile
from mirror_pump.ops.status.status_reader import StatusReader
from mirror_pump.ops.status.status_report import Severity
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.settings.limits import InternalLimits
from mirror_pump.source.catalog.resync import mark_tables
from mirror_pump.source.connect import connect
from mirror_pump.source.stream.leader import Leader
from mirror_pump.source.stream.slot import wal_end
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps, await_true, lake_rows, paced
from mirror_pump.testing.tasks import GatedCopies, ThreadTaskRunner
from tests.support.changed_tables import TABLES, published
from tests.support.interrupts import signalled_resync
from tests.support.resyncs import (
    assert_one_swap,
    audit_promises,
    copy_all_but_one_chunk,
    drop_slot,
    dying_in_the_catalog,
    move_slot,
    resynced,
)
from tests.support.table_wishes import parse_choices
from tests.support.wal_limit import wal_limit

CHOSEN = (
    "CREATE TABLE chosen (id int PRIMARY KEY, amount numeric, secret text, v text)",
    "INSERT INTO chosen SELECT g, g * 1.5, 'secret', 'v' FROM generate_series(1, 50) g",
)


def invalidate_slot(mirror: Mirror) -> None:
    """The server invalidates the slot because it keeps too much WAL."""
    with wal_limit(mirror.database, 1), mirror.database.connect() as connection:
        for _ in range(4):
            connection.execute("SELECT pg_logical_emit_message(false, 'x', 'y'), pg_switch_wal()")
        connection.execute("CHECKPOINT")
        lost = "SELECT wal_status = 'lost' FROM pg_replication_slots WHERE slot_name = %s"
        slot = mirror.settings.slot
        await_true(lambda: connection.execute(lost, (slot,)).fetchone() == (True,), 20, "the slot is lost")


def live_mirror(database: Database, warehouse: str, runner: Any, **options: Any) -> Mirror:
    """A mirror of `t`, `other`, and `chosen` in a warehouse of its own, up to date, without a pump."""
    database.execute(*TABLES, *CHOSEN)
    mirror = Mirror.create(database, warehouse, runner, copy_chunk_bytes=8192, **options)
    mirror.register("t", "other")
    add_profile(
        mirror.settings, described_profile("second", f"{warehouse}-second", [], None, None, None), default=False
    )
    mirror.register("chosen", choices=parse_choices(["amount=decimal(20,4)"], ["secret"]), profile="second")
    mirror.catch_up()
    return mirror


def write(database: Database, tag: str) -> None:
    """Changes every table in every way."""
    with database.connect(autocommit=False) as connection:
        connection.execute("UPDATE t SET v = %s, n = n + 1 WHERE id %% 7 = 0", (tag,))
        connection.execute("DELETE FROM t WHERE id IN (SELECT min(id) FROM t)")
        connection.execute("INSERT INTO t SELECT max(id) + 1, %s, 0, repeat(%s, 3000) FROM t", (tag, tag))
        connection.execute("INSERT INTO other SELECT max(id) + 1, %s FROM other", (tag,))
        connection.execute("UPDATE chosen SET amount = amount + 1, v = %s WHERE id <= 25", (tag,))


def test_readers_keep_the_old_content_until_one_swap_of_all_tables(
    database: Database, warehouse: str, gate: GatedCopies
) -> None:
    mirror = live_mirror(database, warehouse, gate)
    tables = ("t", "other", "chosen")
    write(database, "before")
    mirror.catch_up()
    kept = mirror.frontier()
    old = {name: (published(mirror, name), mirror.lake(f"public.{name}")) for name in tables}
    assert {was[0][0] for was in old.values()} == {kept}
    drop_slot(mirror)
    # Nobody will ever announce it.
    database.execute("ALTER TABLE other ADD COLUMN c int DEFAULT 5")
    write(database, "lost")
    with pytest.raises(SourceError, match="does not exist") as refused:
        mirror.catch_up()
    assert "`mirror-pump resync --all`" in refused.value.remedy
    audit_promises(database)

    result = resynced(mirror)

    assert result.frontier == kept
    assert result.position is not None
    assert result.position > kept
    assert {(table.table, table.action, table.state) for table in result.tables} == {
        (f"public.{name}", ResyncAction.COPY, TableState.WAITING) for name in tables
    }
    gate.hold()
    with mirror.pumping() as running:
        await_true(lambda: gate.waiting, 30, "a chunk of the first table")
        write(database, "during")
        for name in tables:
            assert published(mirror, name)[:2] == old[name][0][:2], "promised as before"
            assert lake_rows(mirror.location(f"public.{name}")) == old[name][1]
        with StatusReader(mirror.settings) as reader:
            status = reader.read()
        (state,) = status.resyncs
        assert (state.slot_lost, state.tables, state.frontier) == (True, 3, kept)
        (alert,) = [alert for alert in status.alerts if "the slot was lost and is replaced" in alert.message]
        assert (alert.severity, format_lsn(kept) in alert.message) == (Severity.WARNING, True)
        assert database.rows("SELECT modak.wait_for(NULL, '0.1 s')") == [(False,)], "nothing of this is in the lake"
        copy_all_but_one_chunk(mirror, gate)
        with StatusReader(mirror.settings) as reader:
            status = reader.read()
        (state,) = status.resyncs
        assert state.tables_copied == 2
        assert 0 < state.copied < 1
        assert state.seconds_left is not None
        notes = {table.note for table in status.tables}
        assert any("together with that of the other tables" in (note or "") for note in notes)
        for name in tables:
            assert published(mirror, name)[:2] == old[name][0][:2], "a complete table waits for the others"
        commits = running.steps.count(Step.PUBLISHED)
        write(database, "held")
        gate.let_go()
        mirror.await_live("public.t", "public.other", "public.chosen")
        assert running.steps.count(Step.PUBLISHED) < commits + 50, (
            "tables that are held do not make an idle pump publish"
        )
        mirror.await_frontier()
        assert {published(mirror, name)[0] for name in tables} == {mirror.frontier()}
    assert_one_swap(database, tables, kept)
    mirror.assert_equal("public.t", "public.other")
    columns = database.rows("SELECT id, amount, v FROM chosen ORDER BY id")
    assert [(row[0], row[1], row[2]) for row in sorted(mirror.lake("public.chosen"))] == columns
    for (_, _, _, location), rows in old.values():
        assert lake_rows(location) == rows, "a reader that pinned the snapshot still reads it"
    mirror.assert_sound()


def test_a_slot_that_was_invalidated_or_moved(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> None:
    mirror = live_mirror(database, warehouse, tasks)
    for harm, why in ((invalidate_slot, "was invalidated"), (move_slot, "another program consumed")):
        database.execute("INSERT INTO other SELECT max(id) + 1, 'lost' FROM other")
        harm(mirror)
        with pytest.raises(SourceError, match=why):
            mirror.catch_up()
        with pytest.raises(SourceError, match=why) as refused:
            resynced(mirror, "other")
        assert "all tables are concerned" in refused.value.remedy
        planned = plan_resync(mirror.settings, ())
        assert planned.lost is not None
        assert planned.position is None

        assert resynced(mirror).position is not None

        mirror.catch_up()
        mirror.assert_equal("public.t", "public.other")
    mirror.assert_sound()


def test_tables_are_copied_again_beside_the_others(database: Database, warehouse: str, gate: GatedCopies) -> None:
    """On request, with a pump: it learns of it, the others go on, and clients wait for those only."""
    mirror = live_mirror(database, warehouse, gate, limits=paced(0))
    with mirror.pumping() as running:
        await_true(lambda: running.steps.count(Step.STREAMING), 30, "the pump streams")
        gate.hold()
        assert [table.action for table in resynced(mirror, "t", "chosen").tables] == [ResyncAction.COPY] * 2
        frontier, snapshot, *_ = published(mirror, "t")
        audit_promises(database)
        await_true(lambda: mirror.state("public.t") == mirror.state("public.chosen") == "copying", 20, "copied again")
        await_true(lambda: running.steps.count(Step.STREAMING) == 2, 20, "a session without the former registrations")
        write(database, "during")
        mirror.await_frontier()
        assert published(mirror, "t")[:2] == (frontier, snapshot)
        assert published(mirror, "other")[0] > frontier
        mirror.assert_equal("public.other")
        again = resynced(mirror, "t")
        assert [table.action for table in again.tables] == [ResyncAction.CONTINUE], "it is not begun again"
        gate.let_go()
        mirror.await_live("public.t", "public.chosen")
        mirror.await_frontier()
    assert_one_swap(database, ("t", "chosen"), frontier)
    assert running.steps.count(Step.RETRYING) == 0
    mirror.assert_equal("public.t", "public.other")
    mirror.assert_sound()


@pytest.mark.soak
def test_a_slot_that_is_lost_again_during_a_resync(database: Database, warehouse: str, gate: GatedCopies) -> None:
    mirror = live_mirror(database, warehouse, gate)
    kept = mirror.frontier()
    before = mirror.lake("public.t")
    database.execute("CREATE TABLE late (id int PRIMARY KEY)", "INSERT INTO late VALUES (1)")
    drop_slot(mirror)
    audit_promises(database)
    first = resynced(mirror)
    gate.hold()
    with mirror.pumping():
        mirror.register("late")
        write(database, "in the stream")
        copy_all_but_one_chunk(mirror, gate)
    drop_slot(mirror)
    write(database, "lost")
    database.execute("INSERT INTO late VALUES (2)")

    second = resynced(mirror)

    assert second.position is not None
    assert first.position is not None
    assert second.position > first.position
    assert mirror.lake("public.t") == before
    gate.let_go()
    mirror.catch_up()
    assert_one_swap(database, ("t", "other", "chosen"), kept)
    mirror.assert_equal("public.t", "public.other", "public.late")
    mirror.assert_sound()


@pytest.mark.soak
def test_schema_changes_while_the_slot_is_lost_and_while_tables_are_held(
    database: Database, warehouse: str, gate: GatedCopies
) -> None:
    """Their notes are lost too, or come for a table that is complete. A table without a key holds up no other."""
    mirror = live_mirror(database, warehouse, gate)
    database.execute("CREATE TABLE gone (id int PRIMARY KEY)", "CREATE TABLE k (id int PRIMARY KEY, v text)")
    mirror.register("gone", "k")
    mirror.catch_up()
    kept = mirror.frontier()
    drop_slot(mirror)
    database.execute(
        "ALTER TABLE t ADD COLUMN c int DEFAULT 5, DROP COLUMN n, ALTER COLUMN v TYPE varchar(90)",
        "ALTER TABLE chosen RENAME COLUMN amount TO price",
        "ALTER TABLE other RENAME TO another",
        "DROP TABLE gone",
        "ALTER TABLE k DROP CONSTRAINT k_pkey",
        "INSERT INTO k VALUES (1, 'twice'), (1, 'twice')",
    )
    audit_promises(database)
    resynced(mirror)
    gate.hold()
    with mirror.pumping() as running:
        await_true(lambda: mirror.state("public.gone") == "dropped", 20, "the dropped table")
        # The copies of complete tables begin again, and a column goes from one that is not.
        copy_all_but_one_chunk(mirror, gate)
        database.execute("ALTER TABLE t ADD COLUMN z float8 DEFAULT random()", "TRUNCATE another")
        database.execute("INSERT INTO another VALUES (7, 'seven')", "ALTER TABLE chosen DROP COLUMN v")
        gate.let_go()
        mirror.await_live("public.t", "public.chosen", "public.another")
        assert mirror.state("public.k") == "waiting"
        assert "no key" in mirror.error("public.k")
        mirror.await_frontier()
        mirror.assert_equal("public.t", "public.another")
        assert running.steps.count(Step.RETRYING) == 0
        database.execute("TRUNCATE k", "ALTER TABLE k ADD PRIMARY KEY (id)", "INSERT INTO k VALUES (3, 'three')")
        mirror.await_live("public.k")
        mirror.await_frontier()
        mirror.assert_equal("public.k")
    assert_one_swap(database, ("t", "another", "chosen"), kept)
    mirror.assert_sound()


@pytest.mark.soak
def test_a_truncation_in_the_publish_that_would_show_all_tables(
    database: Database, warehouse: str, tasks: ThreadTaskRunner
) -> None:
    """It begins the copy of one table again: the others must not be shown with that publish, nor hold it up."""
    mirror = live_mirror(database, warehouse, tasks)
    kept = mirror.frontier()
    drop_slot(mirror)
    audit_promises(database)
    resynced(mirror)
    complete = "SELECT bool_and(live_after_lsn IS NOT NULL) FROM modak.mirror_tables"

    def stop(step: Step, _details: dict[str, object]) -> None:
        if step is Step.PUBLISHED and database.rows(complete) == [(True,)]:
            running.pump.request_stop()

    running = mirror.start(Steps(stop))
    running.join()
    states = {mirror.state(f"public.{name}") for name in ("t", "other", "chosen")}
    assert states == {"copying"}, "complete, and the frontier is not there yet"
    # One batch has it all, behind the position from which the tables may go live.
    database.execute("TRUNCATE other", "INSERT INTO other VALUES (5, 'five')", "UPDATE t SET n = 0 WHERE id < 50")
    steps = Steps()
    with mirror.pumping(steps):
        mirror.await_live("public.t", "public.other", "public.chosen")
        mirror.await_frontier()
    assert steps.count(Step.RETRYING) == 0
    assert_one_swap(database, ("t", "other", "chosen"), kept)
    mirror.assert_equal("public.t", "public.other")


def test_the_command_may_end_at_any_of_its_steps(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> None:
    """Between the slot and the transaction no pump goes on, and the same command does."""
    mirror = live_mirror(database, warehouse, tasks)
    kept, before = mirror.frontier(), mirror.lake("public.t")
    drop_slot(mirror)
    write(database, "lost")
    audit_promises(database)
    for table, condition in (
        ("mirror_slots", "OLD.applied_lsn <> NEW.applied_lsn"),
        ("mirror_tables", "NEW.state = 'waiting'"),
    ):
        with dying_in_the_catalog(database, table, condition), pytest.raises(SourceError):
            resynced(mirror)
        assert mirror.frontier() == kept
        with pytest.raises(SourceError, match="ahead of what the mirror has applied"):
            mirror.catch_up()
        assert mirror.lake("public.t") == before
        # What is committed now is behind the new slot's position.
        write(database, table)
    resynced(mirror)
    mirror.catch_up()
    assert_one_swap(database, ("t", "other", "chosen"), kept)
    mirror.assert_equal("public.t", "public.other")
    mirror.assert_sound()


@pytest.mark.further
def test_a_signal_while_the_command_copies(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> None:
    """SIGINT and SIGTERM in turn: readers keep what they had, and the same command goes on."""
    mirror = live_mirror(database, warehouse, tasks)
    kept, before = mirror.frontier(), mirror.lake("public.t")
    drop_slot(mirror)
    write(database, "lost")
    audit_promises(database)
    signals = (signal.SIGINT, signal.SIGTERM)
    for step, number in zip((Step.STREAMING, Step.WRITTEN, Step.STAGED, Step.PUBLISHED), 2 * signals, strict=True):
        code = signalled_resync(mirror.settings, step, number)
        assert code == (130 if number is signal.SIGINT else -number), step
        assert mirror.lake("public.t") == before
    resynced(mirror)
    mirror.catch_up()
    assert_one_swap(database, ("t", "other", "chosen"), kept)
    mirror.assert_equal("public.t", "public.other")
    mirror.assert_sound()


@pytest.mark.soak
def test_commands_at_the_same_time_and_a_table_that_leaves(
    database: Database, warehouse: str, gate: GatedCopies
) -> None:
    """One of the commands makes the slot, and the others follow. An unregistered table holds up no other."""
    mirror = live_mirror(database, warehouse, gate)
    kept = mirror.frontier()
    drop_slot(mirror)
    write(database, "lost")
    audit_promises(database)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(resynced, [mirror] * 4))
    assert [result.position is not None for result in results].count(True) == 1
    followed = {table.action for result in results if result.position is None for table in result.tables}
    assert followed == {ResyncAction.CONTINUE}
    gate.hold()
    with mirror.pumping():
        copy_all_but_one_chunk(mirror, gate)
        ((incomplete,),) = database.rows(
            "SELECT table_name FROM modak.mirror_tables JOIN modak.tables USING (table_id) WHERE live_after_lsn IS NULL"
        )
        others = [name for name in ("t", "other", "chosen") if name != incomplete]
        mirror.unregister(f"public.{incomplete}", keep_lake=True)
        mirror.await_live(*(f"public.{name}" for name in others))
        gate.let_go()
        mirror.await_frontier()
    assert_one_swap(database, others, kept)
    mirror.assert_sound()


@pytest.mark.further
def test_what_a_resync_refuses(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> None:
    mirror = live_mirror(database, warehouse, tasks, limits=InternalLimits(resync_lead_patience=0.3))
    with mirror.database.connect() as connection:
        connection.execute(
            "UPDATE modak.mirror_tables SET state = 'failed', error = 'on purpose'"
            " WHERE table_id = 'other'::regclass::oid"
        )
    with pytest.raises(UsageError, match="there is no table nothing") as refused:
        resynced(mirror, "nothing")
    assert refused.value.remedy
    (table,) = resynced(mirror, "other").tables
    assert isinstance(table.error, TableError)
    assert "has failed: on purpose" in str(table.error)
    assert "register" in table.error.remedy
    assert mirror.state("public.other") == "failed"
    everything = plan_resync(mirror.settings, ())
    assert not everything.failed, "whoever means all means those that can be copied"
    assert {table.table: table.action for table in everything.tables} == {
        "public.t": ResyncAction.COPY,
        "public.chosen": ResyncAction.COPY,
        "public.other": ResyncAction.LEAVE,
    }
    drop_slot(mirror)
    with Leader.acquire(mirror.settings.require_dsn(), mirror.settings.slot), pytest.raises(NotLeader):
        resynced(mirror)
    assert database.rows("SELECT FROM pg_replication_slots WHERE slot_name = %s", (mirror.settings.slot,)) == []


@pytest.mark.soak
def test_a_pump_that_is_not_told_publishes_nothing_of_the_former_registration(
    database: Database, warehouse: str, tasks: ThreadTaskRunner
) -> None:
    """The notification is for speed only: changes, and files that were rewritten meanwhile, are left out."""
    gate = GatedCopies(tasks, gated=convert_deletes)
    mirror = live_mirror(database, warehouse, gate, convert_age=0.0, index_memory=0, merge_bytes=0)
    with mirror.pumping() as running:
        gate.hold()
        write(database, "deletes")
        mirror.await_frontier()
        await_true(lambda: gate.waiting, 30, "a conversion under way")
        kept = {name: published(mirror, name)[:2] for name in ("t", "other")}
        before = mirror.lake("public.t")
        blocking = database.connect(autocommit=False)
        # While a transaction that wrote to the table is open, the table is not described, and waits.
        blocking.execute("UPDATE t SET n = n WHERE id = 250")
        ((t,),) = database.rows("SELECT 't'::regclass::oid::bigint")
        with connect(mirror.settings.require_dsn()) as connection, connection.transaction():
            connection.execute("SELECT FROM modak.mirror_slots FOR UPDATE")
            assert mark_tables(connection, mirror.settings.slot, [t], wal_end(connection), gap=False) == [t]
        database.execute(
            "UPDATE t SET v = 'marked' WHERE id > 200 AND id <> 250", "INSERT INTO other VALUES (900, 'on')"
        )
        gate.let_go()
        mirror.await_frontier()
        assert published(mirror, "t")[:2] == kept["t"]
        assert published(mirror, "other")[0] > kept["other"][0]
        assert (mirror.state("public.t"), mirror.lake("public.t")) == ("waiting", before)
        blocking.commit()
        blocking.close()
        mirror.await_live("public.t")
        mirror.await_frontier()
        assert running.steps.count(Step.STREAMING) == 1
        mirror.assert_equal("public.t", "public.other")
    mirror.assert_sound()
