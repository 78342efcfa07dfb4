"""Where synchronous_standby_names takes the mirror's walsender for a standby, its commits do not wait for it."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest

from mirror_pump.ops.doctor.check import Outcome
from mirror_pump.ops.doctor.examination import examine
from mirror_pump.ops.doctor.replication import REPLICATION
from mirror_pump.ops.status.status_reader import StatusReader
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.catalog_schema import migrate
from mirror_pump.tables.catalogs.postgres_catalog import PostgresCatalog
from mirror_pump.testing.database import Database
from mirror_pump.testing.installation import major_version
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.postgres import EmbeddedPostgres
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.pipeline import in_thread
from tests.support.replicas import DATABASE, directories, replicated

_TAKES = "takes the mirror's walsender mirror-pump-stream for a standby"


@contextmanager
def _waiting_for(database: Database, names: str) -> Iterator[None]:
    """In the block, commits of sessions that do not say otherwise wait for these standbys."""
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = local")
        try:
            connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'".encode())
            _reload(connection, names)
            yield
        finally:
            connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
            _reload(connection, "")


def _reload(connection: psycopg.Connection[tuple[str]], names: str) -> None:
    connection.execute("SELECT pg_reload_conf()")
    shown = "SHOW synchronous_standby_names"
    await_true(lambda: connection.execute(shown).fetchone() == (names,), 30, "the server has read its settings")


def _write(database: Database, statement: str, *, waits: bool) -> None:
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(f"SET synchronous_commit = {'on' if waits else 'local'}".encode())
        connection.execute(statement.encode())


def _told(settings: Settings) -> bool:
    """Whether `status` and `doctor` say that commits may wait for the mirror. Both do, or neither."""
    with StatusReader(settings) as reader:
        alerts = [alert.message for alert in reader.read().alerts if _TAKES in alert.message]
    assert len(alerts) == _warned(settings)
    return bool(alerts)


def _warned(settings: Settings) -> int:
    """How often `doctor` says it."""
    findings = [finding for examined in examine(settings, (REPLICATION,)).checks for finding in examined.findings]
    return sum(finding.outcome is Outcome.WARNING and _TAKES in finding.message for finding in findings)


def test_the_mirror_does_not_wait_for_itself(database: Database, warehouse: str) -> None:
    """It is the only standby. Its publishes land, and with them the commits that wait for a standby."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    mirror.register("public.t")
    mirror.catch_up()
    committed = threading.Event()

    def commit(_stop: threading.Event) -> None:
        _write(database, "INSERT INTO t VALUES (2)", waits=True)
        committed.set()

    with mirror.pumping():
        mirror.await_frontier()
        assert not _told(mirror.settings)
        with _waiting_for(database, "FIRST 1 (*)"):
            _write(database, "INSERT INTO t VALUES (1)", waits=False)
            mirror.await_frontier()
            with in_thread(commit, "user"):
                await_true(committed.is_set, 30, "a user's commit is published, and returns")
            assert _told(mirror.settings)
    mirror.assert_equal("public.t")


def test_a_commit_of_other_tables_waits_for_no_pump(database: Database, warehouse: str) -> None:
    """The mirror's stream would be the only standby, and no pump runs."""
    with database.connect() as connection:
        migrate(connection)
    catalog = PostgresCatalog(database.dsn, warehouse)
    with closing(catalog), ThreadPoolExecutor() as pool, _waiting_for(database, "*"):
        assert pool.submit(catalog.create_namespace, "reports").result(30)


@contextmanager
def _receiving_wal(database: Database, directory: Path) -> Iterator[None]:
    """In the block a standby flushes all WAL, and reports it: pg_receivewal, which the server cannot tell from one."""
    command = [
        str(database.server.binary("pg_receivewal")), f"--directory={directory}", "--synchronous", "--no-loop",
        f"--dbname={database.dsn}",
    ]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE) as receiver:
        try:
            await_true(lambda: bool(database.rows(_ARCHIVED)), 30, "the standby has flushed WAL")
            yield
        finally:
            receiver.terminate()


_ARCHIVED = "SELECT FROM pg_stat_replication WHERE application_name = 'pg_receivewal' AND flush_lsn > '0/0'"
_COUNTS = "SELECT sync_priority > 0 FROM pg_stat_replication WHERE application_name = 'pg_receivewal'"
_STREAM = "SELECT flush_lsn, sync_state FROM pg_stat_replication WHERE application_name = 'mirror-pump-stream'"


def test_commits_wait_for_the_standby_alone(database: Database, warehouse: str, tmp_path: Path) -> None:
    """A transaction of a user has a lock that each publish needs. Its commit waits for standbys while it has it: did
    the mirror count as the first of them, the two would wait for each other."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    mirror.register("public.t")
    mirror.catch_up()
    with mirror.pumping(), _receiving_wal(database, tmp_path), ThreadPoolExecutor() as pool:
        for number, names in enumerate(('FIRST 1 ("mirror-pump-stream", *)', "FIRST 1 (*)", "ANY 1 (*)")):
            with _waiting_for(database, names):
                await_true(lambda: database.rows(_COUNTS) == [(True,)], 30, "the server has taken the standby")
                locked = f"BEGIN; LOCK modak.mirror_slots IN SHARE MODE; INSERT INTO t VALUES ({number}); COMMIT"
                pool.submit(_write, database, locked, waits=True).result(30)
                mirror.await_frontier()
        assert mirror.acknowledged() > 0
        await_true(lambda: database.rows(_STREAM) == [(None, "async")], 30, "the mirror counts no more")
    mirror.assert_equal("public.t")


def test_the_doctor_says_so_before_anything_is_set_up(database: Database) -> None:
    settings = Settings(dsn=database.dsn)
    assert not _warned(settings)
    with _waiting_for(database, "ANY 1 (s1, *)"):
        assert _warned(settings)


@pytest.mark.further
@pytest.mark.skipif(major_version() < 17, reason="slots are synchronised from 17 on")
def test_the_mirror_does_not_wait_beside_a_real_standby(warehouse: str) -> None:
    """Two standbys are asked for, and there is one besides the mirror."""
    with directories() as root:
        with EmbeddedPostgres(root / "template") as server:
            server.create_database(DATABASE)
        with replicated(root / "template", settings={}) as servers:
            database = servers.before
            database.execute("CREATE TABLE t (id int PRIMARY KEY)")
            mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
            mirror.register("public.t")
            mirror.catch_up()
            with mirror.pumping(), _waiting_for(database, "ANY 2 (*)"):
                _write(database, "INSERT INTO t SELECT generate_series(1, 100)", waits=False)
                mirror.await_frontier()
                assert _told(mirror.settings)
            mirror.assert_equal("public.t")
