"""Each alert rule fires for its fault, and no other rule does: faults of a real mirror, the pump's own gauges, and
promtool's evaluation of the rules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import LiteralString

import pytest
from psycopg import sql

from mirror_pump.source.stream.leader import Leader
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.deploy_files import alert_rules
from tests.support.prometheus import NoPrometheus, executable
from tests.support.scraped import Samples, Scenario, ScrapedPump, check

_GIB = 1024**3
_RETAINED = "mirror_pump_slot_retained_wal_bytes"


@pytest.fixture
def promtool() -> Path:
    try:
        return executable("promtool")
    except NoPrometheus as error:
        pytest.skip(str(error))


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    """A mirror with one table, caught up."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("public.t")
    mirror.catch_up()
    return mirror


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

        database.execute("""UPDATE modak.mirror_tables SET retention = '{"stopped": "heap and lake differ"}'""")
        yield (
            "a proof has found a difference",
            pump.scrape(),
            {"MirrorPumpRetentionStopped", "MirrorPumpStatusCritical"},
        )
        database.execute("UPDATE modak.mirror_tables SET retention = NULL")

        database.execute("UPDATE modak.mirror_tables SET state = 'failed', error = 'its key is gone'")
        yield "a table fails", pump.scrape(), {"MirrorPumpTableFailed", "MirrorPumpStatusCritical"}
        database.execute("UPDATE modak.mirror_tables SET state = 'live', error = NULL")

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


@pytest.mark.unverified("its faults are made in the catalog and at the slot")
def test_each_alert_fires_by_its_fault_and_no_other_does(mirror: Mirror, promtool: Path, tmp_path: Path) -> None:
    with ScrapedPump(mirror.settings) as pump:
        with Leader.acquire(mirror.database.dsn, mirror.settings.slot):
            published(mirror.database)
            healthy = pump.scrape()
        scenarios = [
            Scenario("all is well", [(60, healthy)], frozenset()),
            Scenario("no pump answers", [(10, healthy), (10, _down(healthy))], frozenset({"MirrorPumpDown"})),
            # Writing half a gigabyte, or sixteen, takes a while. So these figures are made up; the other samples are
            # the server's.
            Scenario(
                "WAL piles up", [(45, healthy)], frozenset({"MirrorPumpSlotWalGrowing"}), {_RETAINED: 64.0 * 1024**2}
            ),
            Scenario("WAL has piled up", [(20, _retaining(healthy))], frozenset({"MirrorPumpSlotHoldsWal"})),
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
