"""Ctrl-C and SIGTERM sent to real processes: one line, exit code 130 (0 for SIGTERM of a service), nothing half done.

The signal goes to the whole process group, as from a terminal: Spark's JVM and its Python workers get it too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import psutil
import pytest

from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import await_true
from mirror_pump.testing.program import Program
from tests.support.cli import RunCommand, ThreadedProgram

pytestmark = pytest.mark.further

Process = subprocess.Popen[bytes]


class InterruptedCommands:
    """Starts commands, interrupts them at a given point, and reads their output."""

    def __init__(self, program: Program, database: Database, directory: Path) -> None:
        self._program = program
        self.database = database
        self._directory = directory
        self._processes: list[Process] = []

    def start(self, *arguments: str, spark: bool = True) -> Process:
        """Without `spark`, tasks run in threads."""
        program = self._program if spark else ThreadedProgram(self.database.dsn, self._directory)
        process = program.start(*arguments, log=f"{len(self._processes)}.log")
        self._processes.append(process)
        return process

    def lines(self, process: Process) -> list[str]:
        """The lines that the command wrote to stdout and stderr."""
        return (self._directory / f"{self._processes.index(process)}.log").read_text().splitlines()

    def until(self, moment: Callable[[], bool], process: Process) -> None:
        """Returns once the condition holds. Fails if the process ends first."""

        def come() -> bool:
            assert process.poll() is None, self.lines(process)
            return moment()

        await_true(come, 120, "the moment comes")

    def ended(self, process: Process, number: signal.Signals = signal.SIGINT) -> tuple[int, list[str]]:
        """The exit code after the signal, and the events on stderr of at least level info."""
        os.killpg(process.pid, number)
        code = process.wait(60)
        lines = self.lines(process)
        assert not any("Traceback" in line for line in lines), lines
        events = [str(orjson.loads(line)["event"]) for line in lines if line.startswith('{"')]
        assert code == 0 or events, f"exit code {code} without a word: {lines}"
        return code, events

    def query_runs(self, application: str, condition: str = "true") -> bool:
        return self.rows(
            "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s"
            f" AND {condition}",
            application,
        ) == [(True,)]

    def rows(self, query: str, *parameters: object) -> list[tuple[object, ...]]:
        with self.database.session() as connection:
            return connection.execute(query.encode(), parameters or None).fetchall()

    def close(self) -> None:
        for process in self._processes:
            self._program.kill(process)


def spark_starts(process: Process) -> bool:
    """Spark's JVM is starting, or has just started."""
    try:
        children = psutil.Process(process.pid).children(recursive=True)
        return any("spark" in " ".join(child.cmdline()) for child in children)
    except psutil.Error:
        return False


@pytest.fixture
def mirror(database: Database, tmp_path: Path, slot: str, run: RunCommand) -> Iterator[InterruptedCommands]:
    """An initialised mirror, and a table of three rows that is not registered."""
    program = Program(database.dsn, tmp_path)
    assert run("init", "--warehouse", str(tmp_path / "lake"), "--slot", slot).exit_code == 0
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 3)")
    interrupted = InterruptedCommands(program, database, tmp_path)
    try:
        yield interrupted
    finally:
        interrupted.close()


def test_while_the_program_is_being_loaded(
    mirror: InterruptedCommands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow import stands for the time that loading takes."""
    slow = tmp_path / "slow"
    slow.mkdir()
    (slow / "typer.py").write_text(f"open({str(tmp_path / 'loading')!r}, 'w').close()\nimport time; time.sleep(60)\n")
    program = Program(mirror.database.dsn, tmp_path, {"PYTHONPATH": str(slow)})
    process = program.start("status", log="loading.log")
    mirror.until((tmp_path / "loading").exists, process)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) == 130
    (line,) = (tmp_path / "loading.log").read_text().splitlines()
    assert orjson.loads(line)["event"] == "interrupted"


@pytest.mark.parametrize(
    ("arguments", "application"),
    [
        (("wait", "--lsn", "FFFF/0", "--timeout", "60"), "mirror-pump-wait"),
        (("status", "--watch"), "mirror-pump-status"),
    ],
)
def test_a_command_that_waits(mirror: InterruptedCommands, arguments: tuple[str, ...], application: str) -> None:
    process = mirror.start(*arguments)
    mirror.until(lambda: mirror.query_runs(application), process)
    if "--watch" in arguments:
        mirror.until(lambda: any("no tables" in line for line in mirror.lines(process)), process)
    assert mirror.ended(process) == (130, ["interrupted"])


def test_init_that_waits_for_an_open_transaction(database: Database, slot: str, tmp_path: Path) -> None:
    interrupted = InterruptedCommands(Program(database.dsn, tmp_path), database, tmp_path)
    with database.connect(autocommit=False) as open_transaction:
        open_transaction.execute("SELECT pg_current_xact_id()")
        process = interrupted.start("init", "--warehouse", str(tmp_path / "lake"), "--slot", slot)
        try:
            interrupted.until(
                lambda: interrupted.query_runs("mirror-pump-init", "wait_event = 'transactionid'"), process
            )
            assert interrupted.ended(process) == (130, ["interrupted"])
        finally:
            interrupted.close()
        assert "taken back: slot " in interrupted.lines(process)[-2]
    made = (
        "SELECT (SELECT count(*) FROM pg_publication), (SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s)"
    )
    assert interrupted.rows(made, slot) == [(0, 0)]
    assert not (tmp_path / "lake").exists()


def test_register_that_waits_for_a_lock(mirror: InterruptedCommands, tmp_path: Path) -> None:
    with mirror.database.connect(autocommit=False) as writer:
        writer.execute("INSERT INTO t VALUES (4)")
        process = mirror.start("register", "t", "--lock-timeout", "60")
        mirror.until(lambda: mirror.query_runs("mirror-pump", "wait_event_type = 'Lock'"), process)
        assert mirror.ended(process) == (130, ["interrupted; not registered: t"])
    assert mirror.rows("SELECT count(*) FROM modak.tables") == [(0,)]
    assert [path for path in (tmp_path / "lake").rglob("*") if path.is_file()] == []


_STANDS = "interrupted; registered: t, whose copy a running pump or the same `mirror-pump register` continues"


@pytest.mark.parametrize("spark", [False, True])
def test_register_while_it_copies(mirror: InterruptedCommands, spark: bool) -> None:
    """The copy waits for a lock of another session. With `spark`, Spark starts meanwhile. The next register continues
    the copy."""
    copied = "SELECT count(*) FROM modak.copy_chunks WHERE done_at IS NOT NULL"
    with (
        mirror.database.connect(autocommit=False) as planning,
        mirror.database.connect(autocommit=False) as locking,
    ):
        planning.execute("LOCK TABLE modak.copy_chunks IN EXCLUSIVE MODE")
        process = mirror.start("register", "t", spark=spark)
        mirror.until(lambda: mirror.query_runs("mirror-pump", "wait_event_type = 'Lock'"), process)
        # Registered, and about to be planned: nobody has read a row.
        locking.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        planning.rollback()
        mirror.until(lambda: mirror.rows("SELECT count(*) FROM modak.copy_chunks") > [(0,)], process)
        mirror.until(lambda: not spark or spark_starts(process), process)
        code, events = mirror.ended(process)
        assert (code, events[-1]) == (130, _STANDS)
        assert mirror.rows(copied) == [(0,)]
    assert mirror.rows("SELECT state FROM modak.mirror_tables") == [("copying",)]
    assert mirror.start("register", "t", spark=False).wait(120) == 0
    assert mirror.rows("SELECT state FROM modak.mirror_tables") == [("live",)]


@pytest.mark.soak
def test_register_while_spark_copies(mirror: InterruptedCommands) -> None:
    """Spark's workers get the signal too."""
    mirror.database.execute("INSERT INTO t SELECT generate_series(10, 60000)")
    process = mirror.start("register", "t", "--copy-chunk-bytes", "64KiB", "--copy-workers", "1")
    copied = "SELECT count(*) FROM modak.copy_chunks WHERE done_at IS NOT NULL"
    mirror.until(lambda: mirror.rows(copied) > [(0,)], process)
    code, events = mirror.ended(process)
    assert (code, events[-1]) == (130, _STANDS)
    (left,) = mirror.rows("SELECT count(*) FROM modak.copy_chunks WHERE done_at IS NULL")
    assert left > (0,), "it was over before it was interrupted"

    assert mirror.start("register", "t", spark=False).wait(120) == 0
    assert mirror.rows("SELECT state FROM modak.mirror_tables") == [("live",)]


@pytest.mark.soak
def test_verify_and_maintain_while_spark_starts(mirror: InterruptedCommands, tmp_path: Path) -> None:
    assert mirror.start("register", "t", spark=False).wait(120) == 0
    slots = mirror.rows("SELECT slot_name FROM pg_replication_slots")
    process = mirror.start("verify")
    mirror.until(lambda: spark_starts(process), process)
    assert mirror.ended(process) == (130, ["interrupted"])
    assert list((tmp_path / "lake").glob(".verify*")) == []
    assert mirror.rows("SELECT slot_name FROM pg_replication_slots") == slots
    assert mirror.rows("SELECT count(*) FROM modak.read_pins") == [(0,)]

    process = mirror.start("maintain", "t")
    mirror.until(lambda: spark_starts(process), process)
    code, events = mirror.ended(process)
    assert (code, events[-1]) == (130, "interrupted")
    assert mirror.rows("SELECT count(*) FROM modak.maintenance_requests") == [(0,)]
    assert mirror.rows("SELECT count(*) FROM modak.op_log WHERE phase IN ('running', 'rewriting')") == [(0,)]


_INTERRUPTED_START = """
import os, signal, sys, threading, time, traceback
import psutil
from pyspark import SparkContext
from mirror_pump.engine.spark_runtime.session import SparkSettings, spark_session

def interrupt():
    # Set by pyspark right before it installs its handler.
    while not hasattr(SparkContext._active_spark_context, "profiler_collector"):
        time.sleep(0.001)
    (java,) = (child for child in psutil.Process().children() if "java" in child.name())
    java.suspend()
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
try:
    spark_session(SparkSettings(jars=False))
except KeyboardInterrupt:
    print("interrupted")
except BaseException:
    traceback.print_exc()
sys.stdout.flush()
# Java stands still, and would stay.
os.killpg(0, signal.SIGKILL)
"""


def test_while_java_makes_sparks_session() -> None:
    """Java stands still: it answers neither the call that is interrupted nor another."""
    command = [sys.executable, "-c", _INTERRUPTED_START]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, start_new_session=True)
    assert ended.stdout == "interrupted\n", ended.stderr
