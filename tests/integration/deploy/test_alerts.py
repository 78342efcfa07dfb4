"""Each alert rule fires for its fault, and no other rule does: faults of a real mirror, the pump's own gauges, and
promtool's evaluation of the rules."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import LiteralString

import pytest
from psycopg import sql

from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.source.stream.leader import Leader
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.deploy_files import alert_rules
from tests.support.events_table import RetentionTables
from tests.support.local_files import path_of
from tests.support.prometheus import executable_or_skip
from tests.support.scraped import Samples, Scenario, ScrapedPump, check

pytestmark = pytest.mark.further

_GIB = 1024**3
_RETAINED = "mirror_pump_slot_retained_wal_bytes"


@pytest.fixture
def promtool() -> Path:
    return executable_or_skip("promtool")


MirrorOf = Callable[[str], Mirror]


@pytest.fixture
def mirror_of(new_database: Callable[[], Database], tmp_path: Path, tasks: ThreadTaskRunner) -> MirrorOf:
    """Makes a mirror of a table with the given name, in a database of its own, and brings it up to date."""

    def make(table: str) -> Mirror:
        database = new_database()
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY)", f"INSERT INTO {table} VALUES (1)")
        warehouse = tmp_path / table
        warehouse.mkdir()
        mirror = Mirror.create(database, warehouse.as_uri(), tasks)
        mirror.register(f"public.{table}")
        mirror.catch_up()
        return mirror

    return make


def published(database: Database, age: LiteralString = "0 s") -> None:
    """As if everything committed had been published, that long ago."""
    database.execute(
        "UPDATE modak.mirror_slots SET applied_lsn = (pg_current_wal_lsn() - '0/0')::bigint,"
        " applied_commit_time = now() - interval '" + age + "', applied_at = now() - interval '" + age + "'"
    )


def wal(database: Database, segments: int) -> None:
    """Makes the server write that many WAL segments of 16 MiB."""
    for _ in range(segments):
        database.execute("SELECT pg_logical_emit_message(false, 'x', 'y'), pg_switch_wal()")


@contextmanager
def limit(database: Database, size: str) -> Iterator[None]:
    """Sets max_slot_wal_keep_size within the block."""
    statement = sql.SQL("ALTER SYSTEM SET max_slot_wal_keep_size = {}").format(sql.Literal(size))
    safe = "SELECT bool_and(safe_wal_size IS NOT NULL) FROM pg_replication_slots"
    with database.connect() as connection:
        connection.execute(statement)
        connection.execute("SELECT pg_reload_conf()")
        try:
            await_true(lambda: connection.execute(safe).fetchone() == (True,), 20, "there is a limit")
            yield
        finally:
            connection.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
            connection.execute("SELECT pg_reload_conf()")
            await_true(lambda: connection.execute(safe).fetchone() == (False,), 20, "there is none")


@contextmanager
def unreachable(database: Database) -> Iterator[None]:
    """Within the block, nobody can connect to the database."""
    named = {"name": sql.Identifier(database.name)}
    with Database(database.server, "postgres").connect() as connection:
        connection.execute(sql.SQL("ALTER DATABASE {name} ALLOW_CONNECTIONS false").format(**named))
        try:
            yield
        finally:
            connection.execute(sql.SQL("ALTER DATABASE {name} ALLOW_CONNECTIONS true").format(**named))


def scrape(mirror: Mirror) -> Samples:
    """The samples of a pump that leads and is up to date."""
    with Leader.acquire(mirror.database.dsn, mirror.settings.slot), ScrapedPump(mirror.settings) as pump:
        published(mirror.database)
        return pump.scrape()


def wal_grows(mirror: Mirror) -> Scenario:
    """Every five minutes, the slot holds back 112 MiB more."""
    database = mirror.database
    with Leader.acquire(database.dsn, mirror.settings.slot), ScrapedPump(mirror.settings) as pump:
        phases = [(15, pump.scrape())]
        for _ in range(6):
            wal(database, 7)
            published(database)
            phases.append((5, pump.scrape()))
    database.rows("SELECT pg_drop_replication_slot(%s)", (mirror.settings.slot,))
    return Scenario("WAL piles up", phases, frozenset({"MirrorPumpSlotWalGrowing"}))


def table_fails(mirror: Mirror, healthy: Samples) -> Scenario:
    """Somebody removes a table's files, and the pump finds that when it has a change to write."""
    directory = path_of(mirror.location("public.broken"))
    shutil.rmtree(directory.parent.parent)
    mirror.database.execute("INSERT INTO broken VALUES (2)")
    mirror.catch_up()
    assert "is gone" in mirror.error("public.broken")
    alerts = {"MirrorPumpTableFailed", "MirrorPumpStatusCritical"}
    return Scenario("a table fails", [(10, healthy), (10, scrape(mirror))], frozenset(alerts))


def retention_stops(tables: RetentionTables, healthy: Samples) -> Scenario:
    """A row of a partition that is about to be dropped is changed while the triggers are off."""
    events = tables.automatic(partitions=3, rows=3)
    mirror = events.mirror
    pin = mirror.database.rows("SELECT pin_id FROM modak.pin('events', in_one_snapshot => true)")[0][0]
    mirror.catch_up()
    with mirror.pumping() as running:
        events.await_state(p0="tiered")
        with mirror.database.connect() as connection, connection.transaction():
            connection.execute("ALTER TABLE p0 DISABLE TRIGGER ALL")
            connection.execute("DELETE FROM p0 WHERE at = 0")
        mirror.database.rows("SELECT modak.release(%s)", (pin,))
        await_true(lambda: running.steps.count(Step.RETENTION_STOPPED), 60, "it stops")
    alerts = {"MirrorPumpRetentionStopped", "MirrorPumpStatusCritical"}
    return Scenario("a proof finds a difference", [(10, healthy), (10, scrape(mirror))], frozenset(alerts))


def faults(mirror: Mirror, pump: ScrapedPump) -> Iterator[tuple[str, Samples, set[str]]]:
    """Faults of the mirror, one after another: the name, the scraped samples, and the alerts that have to fire."""
    database = mirror.database
    with Leader.acquire(database.dsn, mirror.settings.slot):
        published(database, "20 min")
        wal(database, 1)
        yield "the frontier stands still", pump.scrape(), {"MirrorPumpLag"}
        published(database)

        with limit(database, "1GB"), ScrapedPump(mirror.settings) as other:
            other.read(seconds_ago=50)
            wal(database, 2)
            yield "the reserve of WAL shrinks", other.scrape(), {"MirrorPumpSlotInvalidationNear"}
        published(database)

        database.execute("UPDATE modak.tables SET created_at = now() - interval '2 days'")
        yield "nobody maintains a table", pump.scrape(), {"MirrorPumpMaintenanceBehind"}
        database.execute("UPDATE modak.tables SET created_at = now()")

        database.execute(
            "INSERT INTO modak.followers"
            " (slot_name, name, kind, options, namespace_pattern, table_pattern, behind_since)"
            " SELECT slot_name, 'other', 'rest', '{}', 's', 't', now() - interval '20 min' FROM modak.mirror_slots"
        )
        yield "another catalog does not follow", pump.scrape(), {"MirrorPumpFollowerBehind"}
        database.execute("DELETE FROM modak.followers")

        pump.read(seconds_ago=60)
        with unreachable(database):
            yield "the database refuses connections", pump.scrape(), {"MirrorPumpDatabaseUnreachable"}

        published(database)
        healthy = pump.scrape()
        assert healthy['mirror_pump_led{instance="pump-1:9187",job="mirror-pump"}'] == 1
    published(database)
    yield "the leader is gone", pump.scrape(), {"MirrorPumpNoLeader", "MirrorPumpStatusCritical"}

    with limit(database, "192MB"):
        wal(database, 4)
        published(database)
        scraped = pump.scrape()
    # There was a single reading with a limit, from which no rate follows.
    expected = {"MirrorPumpSlotHoldsWal", "MirrorPumpNoLeader", "MirrorPumpStatusCritical"}
    yield "the slot holds back most of what it may", scraped, expected

    with database.connect() as connection:
        connection.execute("SELECT pg_drop_replication_slot(%s)", (mirror.settings.slot,))
    published(database)
    gone = {"MirrorPumpSlotUnusable", "MirrorPumpNoLeader", "MirrorPumpStatusCritical"}
    yield "the slot is gone", pump.scrape(), gone


@pytest.mark.further
@pytest.mark.unverified("its faults are made in the catalog, at the slot and in the lake")
def test_each_alert_fires_by_its_fault_and_no_other_does(
    mirror_of: MirrorOf, retention_tables: RetentionTables, promtool: Path, tmp_path: Path
) -> None:
    # First, because all slots of the server hold back what this one does.
    scenarios = [wal_grows(mirror_of("grows"))]
    mirror = mirror_of("t")
    with ScrapedPump(mirror.settings) as pump:
        healthy = scrape(mirror)
        scenarios += [
            Scenario("all is well", [(60, healthy)], frozenset()),
            Scenario("no pump answers", [(10, healthy), (10, _down(healthy))], frozenset({"MirrorPumpDown"})),
            # To write sixteen gibibytes takes a while. So this figure is made up; the other samples are the server's.
            Scenario("WAL has piled up", [(20, _retaining(healthy))], frozenset({"MirrorPumpSlotHoldsWal"})),
            table_fails(mirror_of("broken"), healthy),
            retention_stops(retention_tables, healthy),
        ]
        for name, scraped, alerts in faults(mirror, pump):
            scenarios.append(Scenario(name, [(10, healthy), (10, scraped)], frozenset(alerts)))
    problems = check(promtool, scenarios, tmp_path)
    assert not problems, problems
    assert {alert for each in scenarios for alert in each.alerts} == {rule["alert"] for rule in alert_rules()}


def _down(healthy: Samples) -> Samples:
    """The samples that Prometheus has of a pump that does not answer."""
    return {series: 0.0 for series in healthy if series.startswith("up{")}


def _retaining(healthy: Samples) -> Samples:
    return {series: 17.0 * _GIB if series.startswith(_RETAINED) else value for series, value in healthy.items()}
