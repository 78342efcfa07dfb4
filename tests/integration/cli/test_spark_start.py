"""A pump works before its Spark is there, and ends in order when it is stopped, or its Java dies, meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import await_true
from mirror_pump.testing.program import Program
from tests.support.cli import RunCommand, ThreadedProgram
from tests.support.held_java import HeldJava, broken_java

pytestmark = pytest.mark.further

Process = subprocess.Popen[bytes]
Start = Callable[[Program, str], Process]


@pytest.fixture
def table(database: Database, tmp_path: Path, slot: str, run: RunCommand) -> Database:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t SELECT g, 'v' FROM generate_series(1, 9) g"
    )
    assert run("init", "--warehouse", str(tmp_path / "lake"), "--slot", slot).exit_code == 0
    return database


@pytest.fixture
def java(tmp_path: Path) -> Iterator[HeldJava]:
    held = HeldJava(tmp_path)
    yield held
    held.release()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `run`, whose processes do not outlive the test; its output goes to the named file."""
    processes: list[tuple[Program, Process]] = []

    def begin(program: Program, log: str) -> Process:
        processes.append((program, program.start("run", log=log)))
        return processes[-1][1]

    yield begin
    for program, process in processes:
        program.kill(process)


def held_program(table: Database, tmp_path: Path, java: HeldJava) -> Program:
    scratch = tmp_path / "scratch"
    scratch.mkdir(exist_ok=True)
    return Program(table.dsn, tmp_path, {"JAVA_HOME": str(java.home), "TMPDIR": str(scratch)})


def has_workers(process: Process) -> bool:
    """Whether Spark has started the process from which its Python workers are forked."""
    for child in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.Error):
            if "mirror_pump.engine.spark_runtime.worker_daemon" in child.cmdline():
                return True
    return False


def is_readable(run: RunCommand) -> bool:
    return run("wait", "--now", "--timeout", "60").exit_code == 0


def test_a_standby_streams_before_its_spark_is_there(
    start: Start, table: Database, tmp_path: Path, java: HeldJava, run: RunCommand
) -> None:
    threaded = ThreadedProgram(table.dsn, tmp_path)
    threaded.run("register", "t")
    leader = start(threaded, "leader.log")
    await_true(lambda: '"streaming"' in (tmp_path / "leader.log").read_text(), 60, "one pump leads")
    standby = start(held_program(table, tmp_path, java), "standby.log")
    await_true(lambda: '"standby"' in (tmp_path / "standby.log").read_text(), 60, "one pump waits")
    threaded.kill(leader)

    table.execute("UPDATE t SET v = 'w' WHERE id < 4", "DELETE FROM t WHERE id = 9")
    assert is_readable(run), (tmp_path / "standby.log").read_text()
    assert not has_workers(standby), "its Java is still held"

    java.release()
    await_true(lambda: has_workers(standby), 120, "Spark is there")
    table.execute("UPDATE t SET v = 'x' WHERE id > 6")
    assert is_readable(run)
    standby.send_signal(signal.SIGTERM)
    assert standby.wait(60) == 0
    assert "Traceback" not in (tmp_path / "standby.log").read_text()


@pytest.mark.further
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_pump_that_is_stopped_while_spark_starts(
    start: Start, table: Database, tmp_path: Path, java: HeldJava, run: RunCommand, number: signal.Signals, code: int
) -> None:
    ThreadedProgram(table.dsn, tmp_path).run("register", "t")
    pump = start(held_program(table, tmp_path, java), "pump.log")
    table.execute("UPDATE t SET v = 'w'")
    assert is_readable(run)
    started = psutil.Process(pump.pid).children(recursive=True)
    assert started, "a Java was started"

    os.killpg(pump.pid, number)

    assert pump.wait(60) == code
    psutil.wait_procs(started, timeout=60)
    assert not [process for process in started if process.is_running()]
    output = (tmp_path / "pump.log").read_text()
    assert "stopped at frontier" in output
    assert "Traceback" not in output
    assert "ERROR" not in output
    private = f"mirror-pump-{os.getuid()}"
    assert not [path for path in (tmp_path / "scratch").rglob("*") if path.name != private]


def test_a_pump_whose_java_ends_at_its_start(start: Start, table: Database, tmp_path: Path) -> None:
    """With an error that status shows, not as a bug, and without a session that goes on for ever."""
    ThreadedProgram(table.dsn, tmp_path).run("register", "t")
    pump = start(Program(table.dsn, tmp_path, {"JAVA_HOME": str(broken_java(tmp_path))}), "pump.log")
    assert pump.wait(60) == 1
    ((error,),) = table.rows("SELECT last_error ->> 'error' FROM modak.mirror_slots")
    assert "Java" in error


@pytest.mark.soak
def test_processes_whose_sparks_load_the_same_jars_at_once(tmp_path: Path) -> None:
    """From Maven, into a cache that is empty: each Spark would write where the others do."""
    program = (
        "import sys; from pathlib import Path\n"
        "from mirror_pump.engine.spark_runtime.session import SparkSettings, spark_session\n"
        "conf = {'spark.jars.ivy': sys.argv[1]}\n"
        "session = spark_session(SparkSettings('local[1]', 'jars', log=Path(sys.argv[2]), conf=conf))\n"
        "assert session.range(5).count() == 5; session.stop()"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "ivy"), str(tmp_path / f"{number}.log")])
        for number in range(3)
    ]
    assert [process.wait(600) for process in processes] == [0, 0, 0]
