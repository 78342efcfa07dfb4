"""A mirror on a server that cannot stream: every command works and says so, and a later `init` adds the stream."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from mirror_pump.errors import SourceError
from mirror_pump.http.endpoints import not_ready
from mirror_pump.model import Lsn
from mirror_pump.monitoring.gauges import GAUGES
from mirror_pump.monitoring.pump_state import PumpPhase, PumpState
from mirror_pump.monitoring.sampler import StatusReading
from mirror_pump.ops.doctor.catalog import CATALOG, PUBLICATION
from mirror_pump.ops.doctor.check import Outcome
from mirror_pump.ops.doctor.examination import Examined, examine
from mirror_pump.ops.doctor.failover import FAILOVER
from mirror_pump.ops.doctor.replication import REPLICATION
from mirror_pump.ops.doctor.rights import RIGHTS
from mirror_pump.ops.doctor.server import DATABASE, SERVER
from mirror_pump.ops.plan.plan import make_plan
from mirror_pump.ops.setup.initialisation import initialise
from mirror_pump.ops.status.status_reader import StatusReader
from mirror_pump.pipeline.flow.events import CaughtUp, FrontierWanted
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.settings.config import Settings
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps, await_true
from mirror_pump.testing.postgres import EmbeddedPostgres
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand

LOGICAL = {"wal_level": "logical", "max_replication_slots": "10", "max_wal_senders": "10"}


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    """A mirror without a stream, and a table that cannot be registered."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 100)")
    return Mirror.create(database, warehouse, tasks, slot="mirror_pump")


def recorded(database: Database) -> tuple[bool, int, int]:
    """Whether the mirror has a stream, and the numbers of publications and slots."""
    (row,) = database.rows(
        "SELECT (SELECT streams FROM modak.mirror_slots), (SELECT count(*) FROM pg_publication)::int,"
        " (SELECT count(*) FROM pg_replication_slots)::int"
    )
    return row


def interrupted_at(step: str) -> Callable[[str], None]:
    """What `init` says its steps to: an interrupt comes at this one."""

    def say(line: str) -> None:
        if line.startswith(step):
            raise KeyboardInterrupt

    return say


def test_init_makes_a_mirror_without_slot_and_publication_and_says_what_to_change(
    run: RunCommand, database: Database, tmp_path: Path
) -> None:
    made = run("init", "--warehouse", str(tmp_path / "lake"))
    assert made.exit_code == 0, made.stderr
    assert "no stream: only tiered tables can be registered" in made.stdout
    assert "wal_level is replica" in made.stdout
    assert "ALTER SYSTEM SET wal_level = 'logical', then restart the server" in made.stdout
    assert "ALTER SYSTEM SET max_replication_slots = 10" in made.stdout
    assert "ready: tiered tables only" in made.stdout
    assert "--mode tiered" in made.stdout
    assert recorded(database) == (False, 0, 0)

    again = run("init")
    assert again.exit_code == 0, again.stderr
    assert "no stream: only tiered tables" in again.stdout
    assert recorded(database) == (False, 0, 0)


def test_commands_say_that_there_is_no_stream(
    run: RunCommand, mirror: Mirror, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIRROR_PUMP_STORAGE_FSYNC", "false")
    refused = run("register", "t")
    assert refused.exit_code == 1
    assert "public.t cannot be mirrored: this mirror has no stream" in refused.stderr
    assert "ALTER SYSTEM SET wal_level = 'logical'" in refused.stderr
    assert run("register", "t", "--dry-run").exit_code == 1
    assert database.rows("SELECT count(*) FROM modak.tables") == [(0,)]
    lake = Path(mirror.settings.require_warehouse().removeprefix("file://"))
    assert [file for file in lake.rglob("*") if file.is_file()] == []

    shown = run("status")
    assert shown.exit_code == 0, shown.stderr
    assert "no stream: tiered tables only" in shown.stdout
    assert "no pump leads: no partition is tiered" in shown.stdout
    assert "MISSING" not in shown.stdout
    document = json.loads(run("status", "--json").stdout)
    assert document["streams"] is False
    assert (document["lag_bytes"], document["lag_seconds"]) == (0, None)
    assert (document["slot"]["exists"], document["slot"]["error"]) == (False, None)
    assert [alert["message"].partition(":")[0] for alert in document["alerts"]] == ["no pump leads"]

    waited = run("wait", "--now", "--timeout", "0")
    assert (waited.exit_code, waited.stderr) == (0, "")
    assert "nothing to wait for: this mirror has no stream" in waited.stdout
    assert database.rows("SELECT modak.wait_for(timeout => '0')") == [(True,)]

    resynced = run("resync", "--all")
    assert resynced.exit_code == 1
    assert "this mirror has no stream" in resynced.stderr
    reconciled = run("reconcile")
    assert reconciled.exit_code == 0, reconciled.stderr
    assert "the mirror has no stream: heap and lake are as the database says" in reconciled.stdout
    assert json.loads(run("reconcile", "--json").stdout)["slot"] == "none"


def test_doctor_finds_no_failure_without_a_stream(run: RunCommand, database: Database, warehouse: str) -> None:
    """Before `init` it says what is possible; afterwards nothing that only a stream needs counts."""
    looked_at = (DATABASE, SERVER, RIGHTS, REPLICATION, CATALOG, FAILOVER, PUBLICATION)

    def found() -> dict[str, Examined]:
        return {check.check: check for check in examine(Settings(dsn=database.dsn), looked_at).checks}

    before = found()
    assert Outcome.FAILED not in {check.outcome for check in before.values()}, before
    messages = [finding.message for finding in before["server"].findings]
    assert "only tiered tables are possible with this wal_level" in messages
    assert before["server"].outcome is Outcome.WARNING
    assert run("init", "--warehouse", warehouse).exit_code == 0
    after = found()
    assert {check.outcome for check in after.values()} <= {Outcome.OK, Outcome.WARNING}, after
    for name in ("server", "rights", "replication", "publication", "catalog"):
        assert after[name].outcome is Outcome.OK, after[name]
    (replication,) = after["replication"].findings
    assert "the mirror has no stream" in replication.message
    assert "ALTER SYSTEM SET wal_level = 'logical'" in replication.message


def test_a_pump_leads_with_a_standby_behind_it_and_reaches_its_goals(mirror: Mirror, run: RunCommand) -> None:
    steps = Steps()
    with mirror.pumping(steps):
        await_true(lambda: steps.count(Step.WITHOUT_STREAM) == 1, 60, "the pump works")
        status = json.loads(run("status", "--json").stdout)
        assert status["leader"]["alive"]
        assert status["alerts"] == []
        assert run("status", "--check", "--max-lag", "1s", "--min-wal-time", "1h").exit_code == 0
        waiting = Steps()
        standby = mirror.start(waiting, standby=True)
        await_true(lambda: waiting.count(Step.STANDBY) == 1, 60, "another pump stands by")
        with pytest.raises(SourceError, match="already leads"):
            mirror.start(once=True).join()
        # The leader moves the frontier for it.
        assert mirror.start(once=True, standby=True).join().reason == "goal"
    await_true(lambda: waiting.count(Step.WITHOUT_STREAM) == 1, 60, "the standby has taken over")
    standby.stop()
    end = mirror.database.lsn()
    result = mirror.catch_up()
    assert result.reason == "goal"
    assert result.frontier >= end
    assert mirror.start(until=Lsn(mirror.database.lsn())).join().reason == "goal"


def test_a_lost_session_begins_again_by_itself(mirror: Mirror) -> None:
    steps = Steps()
    with mirror.pumping(steps):
        await_true(lambda: steps.count(Step.WITHOUT_STREAM) == 1, 60, "the pump works")
        mirror.database.rows(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE 'mirror-pump%'"
        )
        await_true(lambda: steps.count(Step.WITHOUT_STREAM) == 2, 60, "it works again")
    assert mirror.database.rows("SELECT last_error IS NOT NULL AND leader IS NOT NULL FROM modak.mirror_slots") == [
        (False,)
    ]


def test_monitoring_has_no_lag_and_no_slot(mirror: Mirror) -> None:
    with StatusReader(mirror.settings) as reader:
        status = reader.read()
    values = {gauge.name: [value for value, _ in gauge.values(status)] for gauge in GAUGES}
    for name in ("frontier.lag_wal", "slot.retained_wal", "slot.wal_until_invalidation", "slot.usable", "slot.active"):
        assert values[f"mirror_pump.{name}"] == [None], name
    state = PumpState()
    state(Step.LEADING)
    state(Step.WITHOUT_STREAM, frontier=1)
    assert state.phase is PumpPhase.STREAMING
    assert not_ready(state.phase, StatusReading(status=status), 1.0) is None


@pytest.mark.soak
def test_init_never_takes_a_stream_away(
    then_replica: EmbeddedPostgres, database: Database, warehouse: str, run: RunCommand
) -> None:
    then_replica.restart(settings=LOGICAL)
    assert run("init", "--warehouse", warehouse).exit_code == 0
    refused = run("init", "--tiered-only")
    assert refused.exit_code == 2
    assert "has a stream (slot mirror_pump), and init never takes one away" in refused.stderr
    database.execute("SELECT pg_drop_replication_slot('mirror_pump')")
    then_replica.restart(settings={"wal_level": "replica"})
    lowered = run("init")
    assert lowered.exit_code == 1
    assert "wal_level is replica" in lowered.stderr
    assert recorded(database) == (True, 1, 0)


def test_tiered_only_on_a_server_that_could_stream(
    then_replica: EmbeddedPostgres, database: Database, warehouse: str, run: RunCommand
) -> None:
    """The role needs no REPLICATION for it, and an upgrade goes on where the stream cannot be made."""
    then_replica.restart(settings=LOGICAL)
    database.execute(
        "CREATE ROLE no_streamer LOGIN PASSWORD 'secret'",
        f"GRANT CREATE ON DATABASE {database.name} TO no_streamer",
    )
    dsn = database.dsn.replace("postgres:", "no_streamer:", 1).replace(then_replica.password, "secret")
    try:
        refused = run("init", "--warehouse", warehouse, "--dsn", dsn)
        assert refused.exit_code == 1
        assert "may not stream changes" in refused.stderr
        made = run("init", "--warehouse", warehouse, "--dsn", dsn, "--tiered-only")
        assert made.exit_code == 0, made.stderr
        again = run("init", "--dsn", dsn)
        assert again.exit_code == 0, again.stderr
        assert "may not stream changes" in again.stdout
        assert recorded(database) == (False, 0, 0)
        stays = run("init", "--tiered-only")
        assert stays.exit_code == 0, stays.stderr
        assert recorded(database) == (False, 0, 0)
        for step in ("publication mirror_pump", "slot mirror_pump: creating", "slot mirror_pump: created"):
            with pytest.raises(KeyboardInterrupt):
                initialise(Settings(dsn=database.dsn), interrupted_at(step))
            assert recorded(database) == (False, 0, 0), step
        added = run("init")
        assert added.exit_code == 0, added.stderr
        assert "the mirror has a stream from now on" in added.stdout
        assert recorded(database) == (True, 1, 1)
    finally:
        database.execute(
            "REASSIGN OWNED BY no_streamer TO postgres", "DROP OWNED BY no_streamer", "DROP ROLE no_streamer"
        )


def test_a_running_pump_notices_the_stream_that_init_adds(
    then_replica: EmbeddedPostgres, mirror: Mirror, run: RunCommand
) -> None:
    """From a server that cannot stream to a live mirrored table, with the pump up all the time."""
    steps = Steps()
    database = mirror.database
    with mirror.pumping(steps):
        await_true(lambda: steps.count(Step.WITHOUT_STREAM) == 1, 60, "the pump works")
        database.reconnect()
        then_replica.restart(settings=LOGICAL)
        await_true(lambda: steps.count(Step.WITHOUT_STREAM) == 2, 60, "the pump works after the restart")
        assert run("register", "t").exit_code == 1
        retries = steps.count(Step.RETRYING)
        added = run("init")
        assert added.exit_code == 0, added.stderr
        assert recorded(database) == (True, 1, 1)
        await_true(lambda: steps.count(Step.STREAMING) == 1, 60, "the pump streams")
        assert steps.count(Step.RETRYING) == retries, "it heard of the stream, and met no error"
        mirror.register("t")
        mirror.await_live("public.t")
        database.execute("INSERT INTO t VALUES (101)", "DELETE FROM t WHERE id = 1")
        mirror.await_frontier()
        mirror.assert_equal("public.t")
        assert steps.count(Step.STREAMING) >= 1
        assert run("wait", "--now", "--timeout", "30").exit_code == 0
    mirror.assert_sound()
    assert steps.count(Step.LEADING) == 1, "the lead was kept"


def test_a_publish_from_without_a_stream_never_passes_changes_of_a_mirrored_table(
    then_replica: EmbeddedPostgres, mirror: Mirror, warehouse: str
) -> None:
    """A pump that has not heard of the stream moves the frontier on request. It must not move past the registration of
    a table, whose changes from then on it would lose."""
    then_replica.restart(settings=LOGICAL)
    database = mirror.database
    release = threading.Event()

    def hold(step: Step, _: dict[str, object]) -> None:
        if step is Step.WITHOUT_STREAM:
            release.wait(60)

    steps = Steps(on=hold)
    with mirror.pumping(steps) as running:
        await_true(lambda: steps.count(Step.WITHOUT_STREAM) == 1, 60, "the session begins")
        # Its loop takes these two first, and so moves the frontier before it hears of the stream.
        beyond = Lsn(database.lsn() + 2**40)
        running.pump.submit(FrontierWanted(beyond))
        running.pump.submit(CaughtUp(beyond))
        initialise(mirror.settings, lambda _: None)
        mirror.register("t")
        ((start,),) = database.rows("SELECT start_lsn FROM modak.mirror_tables")
        database.execute("UPDATE t SET id = -id WHERE id < 10")
        release.set()
        mirror.await_live("public.t")
        mirror.await_frontier()
        mirror.assert_equal("public.t")
    assert steps.details(Step.STREAMING, "frontier")[0] <= start
    assert steps.count(Step.RETRYING) == 1
    mirror.assert_sound()


def test_a_plan_names_what_a_stream_takes(database: Database) -> None:
    """All three settings take a restart. Tiered tables fit all the same."""
    database.execute(
        "CREATE TABLE days (day date PRIMARY KEY) PARTITION BY RANGE (day)",
        "CREATE TABLE days_1 PARTITION OF days FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')",
    )
    plan = make_plan(Settings(dsn=database.dsn), (), 0)
    assert plan.server.restart == ("wal_level", "max_replication_slots", "max_wal_senders")
    assert (plan.server.free_slots, plan.server.free_walsenders) == (0, 0)
    assert all("restart" in finding.remedy for finding in plan.findings if finding.outcome is Outcome.FAILED)
    (table,) = plan.tables
    assert "tiered" in table.modes
    assert any("wal_level = logical adds" in text for text in plan.unknown)
