"""Promotions and restores of real servers: what the pump follows, what it refuses, and how that heals."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import psycopg
import pytest

from mirror_pump.errors import HistoryDiverged
from mirror_pump.model import Lsn, format_lsn
from mirror_pump.ops.doctor.check import Finding, Outcome
from mirror_pump.ops.doctor.examination import examine
from mirror_pump.ops.doctor.failover import FAILOVER
from mirror_pump.ops.reconcile.reconciliation import Reconciled, reconcile
from mirror_pump.ops.resync.resync import ResyncAction
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.settings.config import Settings
from mirror_pump.testing.database import Database
from mirror_pump.testing.installation import major_version
from mirror_pump.testing.lake import read_duckdb
from mirror_pump.testing.mirror import Mirror, RunningPump, Steps, await_true
from mirror_pump.testing.postgres import EmbeddedPostgres, free_port
from mirror_pump.testing.tasks import ThreadTaskRunner
from mirror_pump.testing.verification import assert_verified
from tests.support.events_table import EventsTable
from tests.support.pipeline import in_thread
from tests.support.replicas import (
    DATABASE,
    PHYSICAL_SLOT,
    backed_up,
    copied,
    directories,
    following,
    hand_over,
    has_slot_soon,
    replicated,
    servers_dsn,
)
from tests.support.resyncs import assert_one_swap, audit_promises, resynced

pytestmark = pytest.mark.skipif(major_version() < 17, reason="slots are synchronised from 17 on")

FAILOVERS = 4

WAITS = {"synchronized_standby_slots": PHYSICAL_SLOT}
"""The primary sends the mirror nothing that the standby has not got."""


@pytest.fixture(scope="module")
def template() -> Iterator[Path]:
    """The files of a server with an empty database, which does not run."""
    with directories() as root:
        with EmbeddedPostgres(root / "template") as server:
            server.create_database(DATABASE)
        yield root / "template"


def mirrored(database: Database, warehouse: str, dsn: str) -> Mirror:
    """Two tables, mirrored through that DSN."""
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY, n int, v text)",
        "CREATE TABLE b (id int PRIMARY KEY, n int, v text)",
        "INSERT INTO a SELECT g, 0, 'first' FROM generate_series(1, 300) g",
        "INSERT INTO b SELECT g, 0, 'first' FROM generate_series(1, 300) g",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner(), dsn=dsn, reconnect_backoff_max=0.5)
    mirror.register("a", "b")
    mirror.catch_up()
    return mirror


def moved(mirror: Mirror, database: Database) -> Mirror:
    """The mirror, looked at on another server."""
    return Mirror(database, mirror.settings, mirror.runner)


def await_error(pump: RunningPump) -> HistoryDiverged:
    with pytest.raises(HistoryDiverged) as failure:
        pump.join(60)
    return failure.value


def healed(mirror: Mirror) -> tuple[Reconciled, list[str]]:
    lines: list[str] = []
    return reconcile(mirror.settings, lines.append), lines


def assert_right(mirror: Mirror) -> None:
    """Heap and lake are equal, by the program's own comparison and by a plain one."""
    assert assert_verified(mirror.database) == 2
    mirror.assert_equal("public.a", "public.b")
    mirror.assert_sound()


class PersistentWriter:
    """Writes to both tables through any DSN, again and again, whatever becomes of the server."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.committed = 0

    def __call__(self, stop: threading.Event) -> None:
        while not stop.is_set():
            with suppress(psycopg.Error), psycopg.connect(self._dsn, autocommit=True) as connection:
                while not stop.wait(0.005):
                    with connection.transaction():
                        connection.execute("INSERT INTO a SELECT coalesce(max(id), 0) + 1, 0, 'more' FROM a")
                        connection.execute("UPDATE b SET n = n + 1 WHERE id % 10 = (SELECT max(id) FROM a) % 10")
                        connection.execute("DELETE FROM a WHERE id = (SELECT min(id) FROM a)")
                    self.committed += 1
            stop.wait(0.05)


def test_a_pump_follows_a_promotion_under_writes(template: Path, warehouse: str) -> None:
    """The standby synchronises slots by itself, and the mirror waits for it: nothing is lost, nothing is doubled."""
    with replicated(template, settings=WAITS) as servers:
        mirror = mirrored(servers.before, warehouse, servers.dsn)
        after = moved(mirror, servers.after)
        assert examine(mirror.settings, (FAILOVER,)).outcome is Outcome.OK
        writer = PersistentWriter(servers.dsn)
        steps = Steps()
        with mirror.pumping(steps) as pump, in_thread(writer, "writer"):
            await_true(partial(has_slot_soon, mirror, after.database), 60, "the slot is on the standby")
            published = steps.count(Step.PUBLISHED)
            await_true(lambda: steps.count(Step.PUBLISHED) > published + 3, 30, "changes are published")
            servers.fail_over()
            await_true(lambda: steps.count(Step.FAILOVER_FOLLOWED), 60, "the pump follows")
            committed = writer.committed
            await_true(lambda: writer.committed > committed + 20, 30, "the new primary is written to")
            after.await_frontier()
            assert steps.details(Step.FAILOVER_FOLLOWED, "timeline") == [2]

            # The former primary comes back, and is the first of the DSN.
            servers.primary.start()
            with servers.after.connect() as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'mirror-pump%'"
                )
            await_true(
                lambda: any("former primary" in str(error) for error in steps.details(Step.RETRYING, "error")),
                30,
                "the pump refuses the former primary",
            )
            streaming = steps.count(Step.STREAMING)
            servers.primary.stop("immediate")
            await_true(lambda: steps.count(Step.STREAMING) > streaming, 30, "it goes on with the present one")
            after.await_frontier()
            assert pump.error is None
        assert_right(after)


@pytest.mark.further
def test_two_mirrors_follow_a_promotion_each_for_itself(template: Path, warehouse: str) -> None:
    with replicated(template, settings=WAITS) as servers:
        before, after = (replace(database, mirror="light") for database in (servers.before, servers.after))
        plain = mirrored(servers.before, f"{warehouse}/plain", servers.dsn)
        light = Mirror.create(
            before, f"{warehouse}/light", ThreadTaskRunner(), dsn=servers.dsn, reconnect_backoff_max=0.5
        )
        light.register("b")
        light.catch_up()
        writer, steps = PersistentWriter(servers.dsn), (Steps(), Steps())
        with plain.pumping(steps[0]), light.pumping(steps[1]), in_thread(writer, "writer"):
            for mirror in (plain, light):
                await_true(partial(has_slot_soon, mirror, servers.after), 60, "the slot is on the standby")
            servers.fail_over()
            for of_one in steps:
                await_true(partial(of_one.count, Step.FAILOVER_FOLLOWED), 60, "the pump follows")
            committed = writer.committed
            await_true(lambda: writer.committed > committed + 20, 30, "the new primary is written to")
            for mirror in (moved(plain, servers.after), moved(light, after)):
                mirror.await_frontier()
        assert assert_verified(servers.after) == 3
        moved(light, after).assert_equal("public.b")
        moved(plain, servers.after).assert_equal("public.a", "public.b")


@pytest.mark.further
def test_rows_without_a_key_are_in_the_lake_once_after_a_promotion(template: Path, warehouse: str) -> None:
    """What the pump receives again from the new primary is not applied twice: equal rows would hide it from no key."""

    def write(stop: threading.Event) -> None:
        while not stop.is_set():
            with suppress(psycopg.Error), psycopg.connect(servers.dsn, autocommit=True) as connection:
                while not stop.wait(0.005):
                    connection.execute("INSERT INTO bag SELECT g % 2, 'v' FROM generate_series(1, 3) g")
                    for change in ("DELETE FROM bag", "UPDATE bag SET v = v || 'w'"):
                        one = "SELECT ctid FROM bag WHERE length(v) < 4 LIMIT 1"
                        connection.execute(f"{change} WHERE ctid = ({one})".encode())
                    committed.append(1)
            stop.wait(0.05)

    committed: list[int] = []
    with replicated(template, settings=WAITS) as servers:
        servers.before.execute(
            "CREATE TABLE bag (n int, v text)",
            "ALTER TABLE bag REPLICA IDENTITY FULL",
            "INSERT INTO bag SELECT g % 3, 'v' FROM generate_series(1, 1000) g",
        )
        mirror = Mirror.create(
            servers.before, warehouse, ThreadTaskRunner(), dsn=servers.dsn, reconnect_backoff_max=0.5
        )
        mirror.register("bag")
        mirror.catch_up()
        after, steps = moved(mirror, servers.after), Steps()
        with mirror.pumping(steps), in_thread(write, "writer"):
            await_true(partial(has_slot_soon, mirror, after.database), 60, "the slot is on the standby")
            await_true(lambda: len(committed) > 30, 30, "rows change")
            servers.fail_over()
            await_true(lambda: steps.count(Step.FAILOVER_FOLLOWED), 60, "the pump follows")
            before = len(committed)
            await_true(lambda: len(committed) > before + 30, 30, "rows change on the new primary")
        with after.pumping():
            after.await_frontier()
            assert not steps.count(Step.TABLE_COPIED_AGAIN)
        assert assert_verified(after.database) == 1
        after.assert_equal("public.bag")
        after.assert_sound()


@pytest.mark.soak
def test_the_slot_is_told_nothing_that_a_standby_could_have_without_its_publish(template: Path, warehouse: str) -> None:
    """A standby that got the changes of a batch but not its publish: its slot must not be ahead of its catalog."""
    # Pumps report their position every third of this time.
    with replicated(template, settings={**WAITS, "wal_sender_timeout": "3s"}) as servers:
        mirror = mirrored(servers.before, warehouse, servers.dsn)
        servers.give_slot(mirror)
        written_at = 2**63

        def on(step: Step, details: dict[str, object]) -> None:
            # The whole batch is on the standby, since the pump has received it. Its publish will not be.
            frontier = details.get("frontier")
            if step is Step.STAGED and isinstance(frontier, int) and frontier > written_at:
                servers.gate.shut()

        steps = Steps(on)
        pump = mirror.start(steps)
        await_true(lambda: steps.count(Step.STREAMING), 30, "it streams")
        written_at = servers.before.lsn()
        servers.before.execute("UPDATE a SET n = 1")
        await_true(lambda: mirror.frontier() > written_at, 30, "published on the primary")
        # Whatever it would acknowledge, it has acknowledged when it reports again.
        ((now,),) = servers.before.rows("SELECT clock_timestamp()")
        await_true(partial(_reported_since, servers.before, mirror, now), 30, "the pump reports")
        await_true(lambda: servers.synchronised(mirror.settings.slot), 60, "the slot is synchronised")
        servers.fail_over()
        after = moved(mirror, servers.after)
        assert after.frontier() < _newest(steps), "the publish is lost"
        await_true(lambda: steps.count(Step.FAILOVER_FOLLOWED), 60, "the pump follows")
        after.await_frontier()
        pump.stop()
        assert_right(after)


def _newest(steps: Steps) -> int:
    """The newest frontier that was published."""
    return max(map(int, steps.details(Step.PUBLISHED, "frontier")))


def _reported_since(database: Database, mirror: Mirror, moment: object) -> bool:
    return database.rows(
        "SELECT reply_time > %s FROM pg_stat_replication JOIN pg_replication_slots ON active_pid = pid"
        " WHERE slot_name = %s",
        (moment, mirror.settings.slot),
    ) == [(True,)]


def test_commits_that_a_promotion_lost_are_told_and_healed(template: Path, warehouse: str) -> None:
    """Without synchronized_standby_slots the lake may be ahead of the standby."""
    with replicated(template, settings={}) as servers:
        mirror = mirrored(servers.before, warehouse, servers.dsn)
        servers.give_slot(mirror)
        servers.caught_up()
        (warned,) = [found for found in _doctor(mirror) if found.outcome is not Outcome.OK]
        assert "synchronized_standby_slots is empty" in warned.message
        assert warned.remedy.startswith(f"ALTER SYSTEM SET synchronized_standby_slots = '{PHYSICAL_SLOT}'")
        servers.gate.shut()
        kept = mirror.frontier()
        pump = mirror.start()
        servers.before.execute("UPDATE a SET v = 'lost'", "DELETE FROM b WHERE id <= 100")
        shown = mirror.await_frontier()
        servers.fail_over()
        after = moved(mirror, servers.after)
        assert after.frontier() == kept
        error = await_error(pump)
        assert "the server lost commits that the lake has shown" in str(error)
        assert "timeline 1" in str(error)
        assert "timeline 2" in str(error)
        assert f"the catalog went back to frontier {format_lsn(Lsn(kept))}" in str(error).replace("The", "the")
        assert shown > kept
        assert "mirror-pump reconcile" in error.remedy
        # Readers that ask the catalog see nothing of it, and the lost rows can still be read.
        after.assert_equal("public.a", "public.b")
        # A pump that remembers nothing says the same after one more promotion, when the server's WAL is beyond all
        # that was published; and it is there for `status`.
        servers.after.execute("UPDATE a SET n = 3 WHERE id <= 3", "SELECT pg_switch_wal()")
        servers.promote_again()
        assert servers.after.lsn() > shown
        second = str(await_error(after.start()))
        assert second == str(error).replace("writes timeline 2", "writes timeline 3")
        ((stored,),) = servers.after.rows("SELECT last_error ->> 'error' FROM modak.mirror_slots")
        assert stored == second
        location = re.search(r"public\.a \((\S+)\)", str(error))
        assert location is not None
        assert set(read_duckdb(location[1]).column("v").to_pylist()) == {"lost"}

        servers.after.execute("UPDATE b SET n = 7 WHERE id <= 10")
        found, lines = healed(after)
        assert (found.slot, found.timeline, found.former_timeline) == ("kept", 3, 1)
        assert found.lost == second
        assert lines[0] == found.lost
        with after.pumping() as healthy:
            after.await_frontier()
            assert not healthy.steps.count(Step.TABLE_COPIED_AGAIN)
        assert_right(after)


@pytest.mark.soak
@pytest.mark.parametrize(
    "slot_survives", [pytest.param(True, id="with the slot"), pytest.param(False, id="without it")]
)
def test_a_resync_after_commits_were_lost(template: Path, warehouse: str, slot_survives: bool) -> None:
    """An asynchronous promotion, with a table of which the lake alone has old rows: `resync` refuses it until
    `reconcile` has accepted what was lost, and copies everything then."""
    with replicated(template, settings={}) as servers:
        mirror = mirrored(servers.before, warehouse, servers.dsn)
        events = EventsTable.manual(mirror)
        with mirror.pumping() as running:
            mirror.await_live("public.events")
            events.advance(running)
            servers.before.execute("ALTER TABLE events DETACH PARTITION p0", "DROP TABLE p0")
            mirror.await_frontier()
        if slot_survives:
            servers.give_slot(mirror)
        servers.caught_up()
        servers.gate.shut()
        kept = mirror.frontier()
        with mirror.pumping() as running:
            for value in ("lost", "lost as well"):
                servers.before.execute(f"UPDATE a SET v = '{value}'", "DELETE FROM b WHERE id <= 100")
                mirror.await_frontier()
            events.advance(running)
        servers.fail_over()
        after = moved(mirror, servers.after)
        old_rows = replace(events, database=servers.after, mirror=after, passed=1)
        errors = set()
        for names in ((), ("a",)):
            with pytest.raises(HistoryDiverged) as failure:
                resynced(after, *names)
            errors.add(str(failure.value))
        (error,) = errors
        assert "the server lost commits that the lake has shown" in error
        assert (after.frontier(), after.state("public.a")) == (kept, "live")
        servers.after.execute("UPDATE b SET v = 'after' WHERE id > 290")
        found, _ = healed(after)
        assert (found.slot, found.lost) == ("kept" if slot_survives else "made", error)

        audit_promises(servers.after)
        begun = resynced(after)
        assert (begun.lost, begun.failed) == (None, False)
        assert {table.kept_below for table in begun.tables} == {None, str(events.width)}
        _pump_until_live(after)
        after.await_live("public.events")
        copied = {table.table for table in begun.tables if table.action is ResyncAction.COPY}
        # Without a slot, `reconcile` found that `b` differs, and has it copied already.
        assert copied == {"public.a", "public.events", *(["public.b"] if slot_survives else [])}
        assert_one_swap(servers.after, sorted(copied), found.frontier)
        old_rows.assert_exact()
        assert assert_verified(servers.after) == 3
        after.assert_equal("public.a", "public.b")
        after.assert_sound()


def _doctor(mirror: Mirror) -> tuple[Finding, ...]:
    (examined,) = examine(mirror.settings, (FAILOVER,)).checks
    return examined.findings


@pytest.mark.soak
def test_a_slot_that_was_not_synchronised(template: Path, warehouse: str) -> None:
    """The new primary has no slot: what was written since the frontier is in no stream. Only the table that differs is
    copied again."""
    with replicated(template, settings={}) as servers:
        mirror = mirrored(servers.before, warehouse, servers.dsn)
        servers.before.execute("UPDATE b SET v = 'not in any stream' WHERE id <= 100")
        servers.caught_up()
        servers.fail_over()
        after = moved(mirror, servers.after)
        error = await_error(after.start())
        assert "was promoted or restored" in str(error)
        assert "does not exist" in str(error)
        before = after.lake("public.b")
        found, _ = healed(after)
        assert (found.slot, found.lost) == ("made", None)
        assert [(table.table, table.outcome) for table in found.tables] == [
            ("public.a", "equal"),
            ("public.b", "copied-again"),
        ]
        assert "100 rows differ" in found.tables[1].reason
        assert after.lake("public.b") == before, "readers keep what they had"
        servers.after.execute("UPDATE a SET n = 5 WHERE id <= 5", "UPDATE b SET n = 5 WHERE id > 290")
        _pump_until_live(after)
        assert_right(after)


def _pump_until_live(mirror: Mirror) -> None:
    with mirror.pumping():
        mirror.await_live("public.a", "public.b")
        mirror.await_frontier()


@pytest.mark.soak
@pytest.mark.parametrize("twice", [pytest.param(False, id="once"), pytest.param(True, id="twice")])
def test_recovery_to_a_point_in_time(template: Path, warehouse: str, twice: bool) -> None:
    """Slots are not in a base backup, the catalog is that of the moment, and the lake has gone on."""
    with directories() as root:
        archive = root / "archive"
        archive.mkdir()
        hand_over(archive)
        settings = {"archive_mode": "on", "archive_command": f"cp %p {archive}/%f"}
        with copied(template, root / "primary", settings) as primary:
            database = Database(primary, DATABASE)
            mirror = mirrored(database, warehouse, database.dsn)
            restored = backed_up(
                primary,
                root / "restored",
                {"restore_command": f"cp {archive}/%f %p", "recovery_target_action": "promote"},
                signal="recovery.signal",
            )
            database.execute("UPDATE a SET v = 'kept'")
            mirror.catch_up()
            ((target,),) = database.rows("SELECT pg_current_wal_lsn()::text")
            database.execute("UPDATE a SET v = 'lost'", "INSERT INTO b VALUES (1000, 0, 'lost')")
            mirror.catch_up()
            published = mirror.frontier()
            # Beyond all that will be published after the recovery to the first position.
            database.rows("SELECT pg_switch_wal()")
            database.execute("UPDATE a SET v = 'later'")
            mirror.catch_up()
            ((later,),) = database.rows("SELECT pg_current_wal_lsn()::text")
            ((last,),) = database.rows("SELECT pg_walfile_name(pg_switch_wal())")
            await_true(
                lambda: database.rows("SELECT last_archived_wal >= %s FROM pg_stat_archiver", (last,)) == [(True,)],
                30,
                "the WAL is in the archive",
            )
        again = copied(restored.directory, root / "again", restored._settings) if twice else None
        _recover(restored, target, lambda server: _heal_restored(mirror, server, published))
        if again is not None:
            # The archive knows nothing of the first recovery: this one begins a timeline of the same number.
            _recover(again, later, lambda server: _refuse_other_history(mirror, server))


def _recover(server: EmbeddedPostgres, target: str, then: Callable[[EmbeddedPostgres], None]) -> None:
    server._settings["recovery_target_lsn"] = target
    with server:
        database = Database(server, DATABASE)
        await_true(lambda: database.rows("SELECT pg_is_in_recovery()") == [(False,)], 30, "recovered")
        then(server)


def _heal_restored(mirror: Mirror, server: EmbeddedPostgres, published: int) -> None:
    database = Database(server, DATABASE)
    after = moved(mirror.with_options(dsn=Settings(dsn=database.dsn).dsn), database)
    assert after.frontier() < published
    error = await_error(after.start())
    assert "the server lost commits that the lake has shown" in str(error)
    found, lines = healed(after)
    assert found.slot == "made"
    assert found.lost == str(error)
    assert any("made again, because" in line for line in lines)
    assert {table.outcome for table in found.tables} == {"equal"}, "what the catalog names is what the heap was"
    database.execute("UPDATE b SET v = 'after'")
    with after.pumping():
        after.await_frontier()
    assert_right(after)


def _refuse_other_history(mirror: Mirror, server: EmbeddedPostgres) -> None:
    """What was published after the first recovery is not part of the second one's history, whatever its position."""
    database = Database(server, DATABASE)
    assert database.rows("SELECT DISTINCT v FROM a") == [("later",)]
    assert database.rows("SELECT left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)") == [("00000002",)]
    after = moved(mirror.with_options(dsn=Settings(dsn=database.dsn).dsn), database)
    lost = str(await_error(after.start()))
    assert "the server lost commits that the lake has shown" in lost
    location = re.search(r"public\.b \((\S+)\)", lost)
    assert location is not None
    assert set(read_duckdb(location[1]).column("v").to_pylist()) == {"after"}
    assert {table.outcome for table in healed(after)[0].tables} == {"equal"}
    with after.pumping():
        after.await_frontier()
    assert_right(after)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("slot_survives", "remembers"),
    [
        pytest.param(True, False, id="with the slot"),
        pytest.param(True, True, id="with the slot, while a pump runs"),
        pytest.param(False, True, id="without it"),
    ],
)
def test_a_server_that_was_restored_on_its_own_timeline(
    template: Path, warehouse: str, slot_survives: bool, remembers: bool
) -> None:
    """A copy of the files, taken earlier, with the same identity and timeline: positions mean something else now."""
    with directories() as root, copied(template, root / "primary", {}) as primary:
        database = Database(primary, DATABASE)
        mirror = mirrored(database, warehouse, database.dsn)
        primary.stop()
        former = copied(primary.directory, root / "former", {})
        primary.start()
        steps = Steps()
        pump = mirror.start(steps)
        for value in ("lost", "lost as well"):
            database.execute(f"UPDATE a SET v = '{value}'")
            published = mirror.await_frontier()
        if not remembers:
            pump.stop()
        primary.stop("immediate")
        former.port = primary.port
        with former:
            after = moved(mirror, Database(former, DATABASE))
            if not remembers:
                # It is beyond all that was published, so positions alone say nothing.
                after.database.rows("SELECT pg_switch_wal()")
                assert after.database.lsn() > published
                error = await_error(after.start())
                assert "the database went back: the lake was published up to" in str(error)
            elif slot_survives:
                error = await_error(pump)
                assert "the database went back" in str(error)
            else:
                after.database.rows("SELECT pg_drop_replication_slot(%s)", (mirror.settings.slot,))
                with pytest.raises(Exception, match=r"went back|does not exist") as failure:
                    pump.join()
                assert "mirror-pump reconcile" in failure.value.remedy  # type: ignore[attr-defined]
            after.database.execute("UPDATE b SET v = 'after' WHERE id = 1")
            found, _ = healed(after)
            assert found.lost is not None
            assert found.slot == ("kept" if slot_survives else "made")
            _pump_until_live(after)
            assert_right(after)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_failovers_in_a_row(template: Path, warehouse: str, seed: int) -> None:
    """Each new primary gets a standby, is written to, and crashes at a random moment. Nothing is ever refused."""
    chance = random.Random(seed)
    with directories() as root, ExitStack() as stack:
        primary = stack.enter_context(copied(template, root / "server0", WAITS))
        ports = [primary.port, *(free_port() for _ in range(FAILOVERS))]
        standby = stack.enter_context(following(primary, root / "server1", ports[1], WAITS))
        dsn = servers_dsn(primary, ports)
        mirror = mirrored(Database(primary, DATABASE), warehouse, dsn)
        steps = Steps()
        pump = mirror.start(steps)
        for number in range(1, FAILOVERS + 1):
            after = moved(mirror, Database(standby, DATABASE))
            with in_thread(PersistentWriter(dsn), "writer"):
                await_true(partial(has_slot_soon, mirror, after.database), 120, "the slot is on the standby")
                count = steps.count(Step.PUBLISHED) + chance.randrange(1, 20)
                await_true(partial(_reached, steps, Step.PUBLISHED, count), 60, "changes are published")
                primary.stop("immediate")
                assert after.database.rows("SELECT pg_promote(true, 30)") == [(True,)]
                primary, mirror = standby, after
                if number < FAILOVERS:
                    waits = WAITS if number + 1 < FAILOVERS else {}
                    directory = root / f"server{number + 1}"
                    standby = stack.enter_context(following(primary, directory, ports[number + 1], waits))
                await_true(partial(_reached, steps, Step.FAILOVER_FOLLOWED, number), 60, "the pump follows")
            mirror.await_frontier()
            mirror.assert_equal("public.a", "public.b")
        pump.stop()
        assert_right(mirror)


def _reached(steps: Steps, step: Step, count: int) -> bool:
    return steps.count(step) >= count
