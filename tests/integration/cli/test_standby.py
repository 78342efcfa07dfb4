"""Pumps that wait for leadership: while another `run` leads, while a register leads, and after the leader's death."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest

from mirror_pump.errors import NotLeader
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.program import Program
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand, ThreadedProgram

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def table(database: Database) -> Database:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t SELECT g, 'v' FROM generate_series(1, 100) g"
    )
    return database


@pytest.fixture
def program(table: Database, tmp_path: Path, slot: str, run: RunCommand) -> Program:
    """The program on an initialised mirror, with a table to register."""
    program = Program(table.dsn, tmp_path)
    assert run("init", "--warehouse", str(tmp_path / "lake"), "--slot", slot).exit_code == 0
    return program


@pytest.fixture
def start(program: Program, database: Database, tmp_path: Path) -> Iterator[Start]:
    """Starts a command whose process does not outlive the test. Its output goes to `log`. Without `spark`, its tasks
    run in threads."""
    processes = []
    threaded = ThreadedProgram(database.dsn, tmp_path)

    def begin(*arguments: str, log: str, spark: bool = True) -> subprocess.Popen[bytes]:
        processes.append((program if spark else threaded).start(*arguments, log=log))
        return processes[-1]

    yield begin
    for process in processes:
        program.kill(process)


def leader(database: Database) -> tuple[int | None, int]:
    """The process ID of the leading pump, and its epoch."""
    ((named, epoch),) = database.rows("SELECT (leader ->> 'pid')::int, leader_epoch FROM modak.mirror_slots")
    return named, epoch


def standbys(run: RunCommand) -> set[int]:
    """The process IDs of the standbys that `status` shows."""
    result = run("status", "--json")
    assert result.exit_code == 0, result.output
    return {standby["pid"] for standby in orjson.loads(result.stdout)["standbys"]}


def await_leader(database: Database, process: subprocess.Popen[bytes], seconds: float = 60) -> None:
    def leads() -> bool:
        assert process.poll() is None, f"the pump ended with {process.returncode}"
        return leader(database)[0] == process.pid

    await_true(leads, seconds, f"process {process.pid} leads")


def children(process: subprocess.Popen[bytes]) -> list[str]:
    """The names of the processes that it has started."""
    return [child.name() for child in psutil.Process(process.pid).children(recursive=True)]


def state(database: Database) -> list[tuple[Any, ...]]:
    return database.rows("SELECT state FROM modak.mirror_tables")


@pytest.mark.further
def test_run_and_register_at_the_same_moment(start: Start, table: Database) -> None:
    """Whichever leads first: the table is copied, and in the end the pump leads."""
    pump = start("run", log="pump.log", spark=False)
    register = start("register", "public.t", log="register.log", spark=False)
    assert register.wait(120) == 0
    assert state(table) == [("live",)]
    await_leader(table, pump)


@pytest.mark.soak
def test_a_register_beside_a_run_that_has_just_begun_is_served_by_it(
    start: Start, table: Database, tmp_path: Path
) -> None:
    pump = start("run", log="pump.log")
    await_leader(table, pump)
    assert not table.rows("SELECT FROM pg_replication_slots WHERE active"), "the pump's Spark is only just starting"
    register = start("register", "public.t", log="register.log")
    assert register.wait(120) == 0
    assert "public.t: live" in (tmp_path / "register.log").read_text()
    assert leader(table) == (pump.pid, 1), "nobody else ever led"


def test_standbys_take_over_from_a_register_and_from_a_pump_that_was_killed(
    start: Start, program: Program, run: RunCommand, table: Database, tmp_path: Path
) -> None:
    with table.connect(autocommit=False) as holder:
        # The copy is not planned while others begin to wait.
        holder.execute("LOCK TABLE modak.copy_chunks IN EXCLUSIVE MODE")
        register = start("register", "public.t", log="register.log", spark=False)
        await_leader(table, register)
        with_spark = start("run", log="spark.log")
        await_true(lambda: standbys(run) == {with_spark.pid}, 60, "one is a standby")
        assert not any("java" in name for name in children(with_spark)), "a standby needs no Spark"
        program.kill(with_spark)
        pumps = [start("run", log=f"pump{number}.log", spark=False) for number in range(2)]
        await_true(lambda: standbys(run) == {pump.pid for pump in pumps}, 60, "both are standbys")
    assert register.wait(120) == 0
    assert "public.t: live" in (tmp_path / "register.log").read_text()
    await_true(lambda: leader(table)[0] in {pump.pid for pump in pumps}, 30, "a standby leads")
    first, second = sorted(pumps, key=lambda pump: leader(table)[0] != pump.pid)
    assert standbys(run) == {second.pid}
    text = run("status").stdout
    assert f"leader: process {first.pid}" in text
    assert f"standby: process {second.pid}" in text

    program.kill(first)
    await_leader(table, second)
    assert leader(table)[1] == 3
    assert standbys(run) == set()
    table.execute("UPDATE t SET v = 'w' WHERE id <= 10")
    assert run("wait", "--now", "--timeout", "60").exit_code == 0


@pytest.mark.soak
def test_a_leader_whose_connection_is_cut_is_the_next_standby_and_ends_its_spark(
    start: Start, program: Program, run: RunCommand, table: Database, tmp_path: Path
) -> None:
    assert start("register", "public.t", log="register.log").wait(120) == 0
    second = start("run", log="second.log")
    await_leader(table, second)
    third = start("run", log="third.log", spark=False)
    await_true(lambda: standbys(run) == {third.pid}, 60, "a third one waits")
    named = f"the pump with process id {second.pid}"
    await_true(lambda: named in (tmp_path / "third.log").read_text(), 20, "its log names the leader")
    table.rows(
        "SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity"
        " WHERE application_name = 'mirror-pump-leader' AND datname = current_database()"
    )
    await_leader(table, third)
    table.execute("DELETE FROM t WHERE id > 90")
    await_true(lambda: standbys(run) == {second.pid}, 60, "the second one waits")
    assert not any("java" in name for name in children(second))
    second.send_signal(signal.SIGTERM)
    assert second.wait(40) == 0
    output = (tmp_path / "second.log").read_text()
    assert re.search(r"stopped at frontier [0-9A-F]+/[1-9A-F][0-9A-F]* \(stopped\) after", output)
    assert "Traceback" not in output
    program.run("run", "--no-standby", code=1)
    assert f"process id {third.pid}" in (tmp_path / "run.log").read_text()
    # The leader has finished the work in the meantime.
    program.run("run", "--once", timeout=60)
    assert "(goal) after 0 commits" in (tmp_path / "run.log").read_text()
    program.stop(third, timeout=40)


@pytest.fixture
def mirror(table: Database, warehouse: str) -> Mirror:
    return Mirror.create(table, warehouse, ThreadTaskRunner())


def test_a_standby_survives_its_connection(mirror: Mirror) -> None:
    first = mirror.start()
    mirror.register("t")
    mirror.await_live("public.t")
    second = mirror.start(standby=True)
    await_true(lambda: second.steps.count(Step.STANDBY), 20, "the second one waits")
    assert mirror.database.rows(
        "SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity"
        " WHERE application_name LIKE 'mirror-pump-standby %' AND datname = current_database()"
    ) == [(True,)]
    await_true(lambda: second.steps.count(Step.STANDBY) == 2, 20, "it waits again")
    first.stop()
    mirror.database.execute("UPDATE t SET v = 'w'")
    mirror.await_frontier()
    second.stop()
    mirror.assert_equal("public.t")
    mirror.assert_sound()


def test_a_pump_that_lost_its_lead_to_a_standby_is_the_next_standby(mirror: Mirror) -> None:
    """Fencing: what the former leader has received is not published. Later it leads again."""
    first = mirror.start(standby=True)
    mirror.register("t")
    mirror.await_live("public.t")
    second = mirror.start(standby=True)
    await_true(lambda: second.steps.count(Step.STANDBY), 20, "the second one waits")
    mirror.database.rows(
        "SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity"
        " WHERE application_name = 'mirror-pump-leader' AND datname = current_database()"
    )
    await_true(lambda: second.steps.count(Step.LEADING), 20, "the second one leads")
    mirror.database.execute("INSERT INTO t VALUES (1000, 'x')", "DELETE FROM t WHERE id < 10")
    await_true(lambda: first.steps.count(Step.LEAD_LOST) and first.steps.count(Step.STANDBY), 20, "the first one waits")
    mirror.await_frontier()
    second.stop()
    await_true(lambda: first.steps.count(Step.LEADING) == 2, 20, "the first one leads again")
    mirror.database.execute("UPDATE t SET v = 'w'")
    mirror.await_frontier()
    first.stop()
    mirror.assert_equal("public.t")
    mirror.assert_sound()


def test_a_standby_ends_at_once_and_holds_no_snapshot(mirror: Mirror) -> None:
    with mirror.pumping() as first:
        await_true(lambda: first.steps.count(Step.STREAMING), 20, "the first one leads")
        waiting = mirror.start(standby=True)
        await_true(lambda: waiting.steps.count(Step.STANDBY), 20, "it waits")
        assert mirror.database.rows(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE application_name LIKE 'mirror-pump-standby %' AND datname = current_database()"
            "   AND now() - xact_start > interval '1 second'"
        ) == [(0,)]
        began = time.monotonic()
        result = waiting.stop()
        assert time.monotonic() - began < 5
        assert (result.reason, result.commits) == ("stopped", 0)
        with pytest.raises(NotLeader):
            mirror.start().join()
