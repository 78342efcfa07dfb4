"""A pump as a process: what it costs when nothing happens, and how it ends in the middle of work."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from mirror_pump.model import parse_lsn
from mirror_pump.ops.setup.stored_settings import complete
from mirror_pump.settings.config import Settings
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, audit, await_true
from mirror_pump.testing.postgres import EmbeddedPostgres
from mirror_pump.testing.program import Program
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.pipeline import change_rows, writing

WATCHED = 6.0
"""Seconds for which an idle pump is observed."""


@pytest.fixture
def program(database: Database, tmp_path: Path, run: RunCommand) -> Program:
    slot = f"s_{os.urandom(4).hex()}"
    program = Program(database.dsn, tmp_path)
    assert run("init", "--warehouse", str(tmp_path / "lake"), "--slot", slot, "--publication", slot).exit_code == 0
    audit(database)
    database.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, n int, v text, big text)",
        "INSERT INTO t SELECT g, 0, 'v', NULL FROM generate_series(1, 1000) g",
    )
    assert run("register", "t", "--no-wait").exit_code == 0
    return program


@pytest.fixture
def mirror(program: Program, database: Database) -> Mirror:
    """The same mirror, for examination."""
    return Mirror(database, complete(Settings(dsn=database.dsn)), ThreadTaskRunner())


@pytest.fixture
def pump(program: Program, mirror: Mirror) -> Iterator[psutil.Process]:
    """A running `mirror-pump run` with one live table and nothing to do."""
    process = program.start("run", "--idle-publish-interval", "1", "--idle-publish-bytes", "64kB", log="pump.log")
    try:
        mirror.await_live("public.t")
        mirror.await_frontier()
        yield psutil.Process(process.pid)
    finally:
        program.kill(process)


def cpu_seconds(process: psutil.Process) -> float:
    """CPU seconds that the process and its children have used, including Spark's JVM and Python workers."""
    used = 0.0
    for member in [process, *process.children(recursive=True)]:
        times = member.cpu_times()
        used += times.user + times.system
    return used


def steady(look: Callable[[], object], seconds: float, patience: float) -> None:
    """Returns once `look` has returned the same value for that many seconds."""
    deadline = time.monotonic() + patience
    value, since = look(), time.monotonic()
    while time.monotonic() - since < seconds:
        assert time.monotonic() < deadline, f"it does not come to rest: {value}"
        time.sleep(0.05)
        now = look()
        if now != value:
            value, since = now, time.monotonic()


@pytest.fixture
def quiet(postgres: EmbeddedPostgres) -> Iterator[None]:
    """A server that writes next to nothing by itself."""
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET autovacuum = off")
        connection.execute("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            connection.execute("ALTER SYSTEM RESET autovacuum")
            connection.execute("SELECT pg_reload_conf()")


def test_a_pump_has_seven_sessions(mirror: Mirror, database: Database) -> None:
    """One each for leading, the stream, LISTEN, publishes, short queries, looks that may wait for locks, and look-ups
    for the stream: those of copies, retention and corrections are closed, or were never opened."""
    sessions = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name LIKE 'mirror-pump%'"
    )
    with mirror.pumping():
        mirror.await_live("public.t")
        database.execute("UPDATE t SET n = 1 WHERE id = 1")
        mirror.await_frontier()
        await_true(lambda: database.rows(sessions)[0][0] <= 7, 30, "seven sessions are left")
        database.execute("UPDATE t SET n = 2 WHERE id = 1")
        mirror.await_frontier()
    mirror.assert_equal("public.t")


def test_a_pump_that_catches_up_opens_no_more_sessions(mirror: Mirror, database: Database) -> None:
    """Those of a pump that stays, without the look-ups, for which nothing is to be looked up. The statistics leave out
    the stream's."""
    mirror.catch_up()
    opened = "SELECT sessions FROM pg_stat_database WHERE datname = current_database()"
    ended = (
        "SELECT count(*) = 0 FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name LIKE 'mirror-pump%'"
    )
    # A session reports itself at the latest when it ends.
    await_true(lambda: database.rows(ended) == [(True,)], 30, "all sessions have ended")
    ((before,),) = database.rows(opened)
    mirror.catch_up()
    await_true(lambda: database.rows(ended) == [(True,)], 30, "all sessions have ended")
    ((after,),) = database.rows(opened)
    assert after - before <= 5


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.usefixtures("quiet")
def test_an_idle_pump_writes_no_wal_and_uses_no_cpu(
    pump: psutil.Process, mirror: Mirror, new_database: Callable[[], Database]
) -> None:
    other = new_database()
    other.execute("CREATE TABLE noise (v text)")
    made = mirror.database.lsn()
    await_true(lambda: made - mirror.acknowledged() < 200_000, 60, "the slot follows the making of that database")
    # At rest: no publish moves the frontier, although the acknowledgement has been sent and the WAL has not grown. The
    # first of these intervals may still include costs of Spark's start.
    for _ in range(3):
        steady(mirror.frontier, 2.5, 30)
        publishes = mirror.database.rows("SELECT count(*) FROM audit.frontiers")
        wal, cpu = mirror.database.lsn(), cpu_seconds(pump)
        began = time.monotonic()
        steady(lambda: mirror.database.rows("SELECT count(*) FROM audit.frontiers"), WATCHED, 60)
        elapsed = time.monotonic() - began
        share = (cpu_seconds(pump) - cpu) / elapsed
        written = mirror.database.lsn() - wal
        if share < 0.1:
            break
    assert mirror.database.rows("SELECT count(*) FROM audit.frontiers") == publishes
    # From time to time the server writes a snapshot record of some 100 bytes by itself.
    assert written < 2000, f"{written} bytes of WAL in {elapsed:.0f} s"
    assert share < 0.1, f"{share:.1%} of a core while idle"
    # Another database writes: the slot follows with few publishes, and comes to rest again.
    before = mirror.acknowledged()
    with other.connect() as connection:
        for _ in range(20):
            connection.execute("INSERT INTO noise SELECT repeat('x', 1000) FROM generate_series(1, 200)")
    target = mirror.database.lsn()
    await_true(lambda: target - mirror.acknowledged() < 200_000, 30, "the slot follows WAL that is not ours")
    assert mirror.acknowledged() > before
    steady(mirror.frontier, 2.5, 30)
    moves = mirror.database.rows("SELECT count(*) FROM audit.frontiers")[0][0] - publishes[0][0]
    assert 1 <= moves < 15, f"{moves} publishes for 4 MB of others' WAL"
    # Nor does WAL of an unlogged table, or of one that is not mirrored, hold back the slot.
    mirror.database.execute("CREATE TABLE plain (v text)", "CREATE UNLOGGED TABLE unlogged (v text)")
    for _ in range(10):
        mirror.database.execute(
            "INSERT INTO plain SELECT repeat('x', 1000) FROM generate_series(1, 200)",
            "INSERT INTO unlogged SELECT repeat('x', 1000) FROM generate_series(1, 200)",
        )
    target = mirror.database.lsn()
    await_true(lambda: target - mirror.acknowledged() < 200_000, 30, "nor of tables that are not mirrored")
    mirror.assert_sound()


@pytest.mark.soak
def test_sigterm_in_the_middle_of_work(program: Program, mirror: Mirror, database: Database, tmp_path: Path) -> None:
    """It ends within seconds and says where; the next pump continues there."""
    database.execute(
        "CREATE TABLE u (id bigint PRIMARY KEY, v text)",
        "INSERT INTO u SELECT g, repeat('v', 200) FROM generate_series(1, 30000) g",
    )
    seed = random.SystemRandom().randrange(2**32)
    print(f"writer's seed: {seed}")
    process = program.start("run", "--copy-chunk-bytes", "128kB", log="pump.log")
    try:
        mirror.await_live("public.t")
        with writing(database, change_rows("t", 1000), seed):
            mirror.register("u")
            done = "SELECT count(*) FROM modak.copy_chunks WHERE done_at IS NOT NULL"
            await_true(lambda: database.rows(done)[0][0] >= 3, 60, "a copy is under way")
            process.send_signal(signal.SIGTERM)
            assert process.wait(40) == 0
    finally:
        program.kill(process)
    output = (tmp_path / "pump.log").read_text()
    stopped = re.search(r"stopped at frontier ([0-9A-F]+/[0-9A-F]+)", output)
    assert stopped, output[-2000:]
    assert parse_lsn(stopped[1]) == mirror.frontier(), "it says where the frontier is"
    assert "Traceback" not in output
    assert not database.rows("SELECT leader FROM modak.mirror_slots")[0][0], "the lead is given up"
    read = database.rows(done)[0][0]
    mirror.catch_up()
    assert read < database.rows("SELECT count(*) FROM audit.chunks WHERE table_id = 'u'::regclass::oid")[0][0]
    mirror.assert_equal("public.t", "public.u")
    mirror.assert_sound()
