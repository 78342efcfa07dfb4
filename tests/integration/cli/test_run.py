"""The program as processes: a first mirror as the README shows it, signals, and output."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import orjson
import psycopg
import pytest

from mirror_pump.model import format_lsn
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import await_true
from mirror_pump.testing.postgres import free_port
from mirror_pump.testing.program import Program
from tests.bare_machine.readme import is_printed, printed_lines, shell_lines
from tests.support.cli import RunCommand, ThreadedProgram, install_threaded, threaded_at_start
from tests.support.proxy import Proxy


@pytest.fixture
def program(database: Database, tmp_path: Path, slot: str, run: RunCommand) -> Program:
    """The program on an initialised mirror."""
    program = Program(database.dsn, tmp_path)
    assert run("init", "--warehouse", str(tmp_path / "lake"), "--slot", slot).exit_code == 0
    return program


def await_while_running(
    condition: Callable[[], object], pump: subprocess.Popen[bytes], seconds: float, what: str
) -> None:
    """Returns once the condition holds. Fails if the pump ends first."""

    def holds() -> object:
        assert pump.poll() is None, "the pump ended"
        return condition()

    await_true(holds, seconds, what)


@pytest.mark.further
def test_one_pump_leads_and_a_signal_ends_it_with_a_word(
    program: Program, run: RunCommand, database: Database, slot: str, tmp_path: Path
) -> None:
    """Ctrl-C is tested here because pyspark takes that signal over if it can. More is in
    tests/integration/cli/test_signals.py."""
    pump = program.start("run", log="pump.log")
    try:
        active = "SELECT FROM pg_replication_slots WHERE slot_name = %s AND active"
        await_while_running(lambda: database.rows(active, (slot,)), pump, 90, "the pump streams")
        leader = orjson.loads(run("status", "--json").stdout)["leader"]
        assert (leader["pid"], leader["alive"]) == (pump.pid, True)
        program.run("run", "--no-standby", code=1)
        # To all of its processes, as a terminal does.
        os.killpg(pump.pid, signal.SIGINT)
        assert pump.wait(40) == 130
    finally:
        program.kill(pump)
    assert f"process id {pump.pid}" in (tmp_path / "run.log").read_text()
    output = (tmp_path / "pump.log").read_text()
    assert re.search(
        r"stopped at frontier [0-9A-F]+/[0-9A-F]+ \(stopped\) after [\d,]+ commits, [\d,]+ changes", output
    )
    assert "Traceback" not in output


@pytest.mark.further
def test_a_server_that_is_down_at_the_start_is_waited_for(program: Program, database: Database, tmp_path: Path) -> None:
    port = free_port()
    dsn = psycopg.conninfo.make_conninfo(database.dsn, port=port)
    pump = ThreadedProgram(dsn, tmp_path).start("run", "--once", log="pump.log")
    try:
        log = tmp_path / "pump.log"
        await_while_running(lambda: '"waiting for the server"' in log.read_text(), pump, 60, "the pump waits")
        with contextlib.closing(Proxy(database.dsn, port)):
            assert pump.wait(90) == 0
    finally:
        program.kill(pump)
    lines = [orjson.loads(line) for line in (tmp_path / "pump.log").read_text().splitlines()]
    assert f"127.0.0.1:{port}" in next(line["error"] for line in lines if line["event"] == "waiting for the server")
    assert lines[-1]["event"].startswith("stopped at frontier ")


@pytest.mark.parametrize(
    ("changed", "code", "message"),
    [
        ({"password": "wrong"}, 1, "password authentication failed"),
        ({"user": "nobody_of_that_name"}, 1, "authentication failed"),
        ({"dbname": "none_of_that_name"}, 1, "does not exist"),
        ({"sslmode": "require"}, 1, "does not support SSL"),
        ({"port": "99999"}, 2, "invalid port number"),
        ({"sslmode": "certainly"}, 2, "invalid sslmode value"),
        ({"hostaddr": "127.0.0.1,::1"}, 2, "could not match 1 host names"),
    ],
)
def test_what_waiting_cannot_cure_ends_run_at_once(
    run: RunCommand, database: Database, changed: dict[str, str], code: int, message: str
) -> None:
    result = run("run", "--dsn", psycopg.conninfo.make_conninfo(database.dsn, **changed))
    assert result.exit_code == code
    (line,) = result.stderr.splitlines()
    assert message in line


@pytest.mark.usefixtures("program")
def test_bad_tables_are_refused_and_the_good_one_catches_up(
    run: RunCommand, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute(
        "CREATE TABLE good (id int PRIMARY KEY, v text)",
        "INSERT INTO good SELECT g, g FROM generate_series(1, 50) g",
        "CREATE TABLE keyless (id int)",
    )

    threaded = ThreadedProgram(database.dsn, tmp_path)
    output = threaded.run("register", "keyless", "good", "absent", code=1)

    assert "public.good: live" in output
    errors = (tmp_path / "register.log").read_text()
    assert "not registered: public.keyless has no primary key" in errors
    assert "not registered: there is no table absent in" in errors
    assert errors.count('"remedy"') == 2

    database.execute("UPDATE good SET v = 'changed' WHERE id <= 10", "DELETE FROM good WHERE id = 50")
    end = database.lsn()
    threaded.run("run", "--once")

    assert run("wait", "--lsn", format_lsn(end), "--timeout", "0").exit_code == 0
    (table,) = orjson.loads(run("status", "--json").stdout)["tables"]
    assert (table["table"], table["state"]) == ("public.good", "live")
    for name, value in threaded_at_start(tmp_path).items():
        # No pump runs: verify starts one.
        monkeypatch.setenv(name, value)
    (compared,) = orjson.loads(run("verify", "--json").stdout)["tables"]
    assert (compared["table"], compared["equal"]) == ("public.good", True)
    assert (compared["heap_rows"], compared["lake_rows"], compared["differences"]) == (49, 49, [])


@pytest.mark.empty_database
@pytest.mark.slow
def test_the_first_mirror_of_the_readme(database: Database, slot: str, tmp_path: Path) -> None:
    """The README's lines, unchanged except for directory and DSN, print what it says. Tasks run in threads here; `make
    first-hour` runs the lines with Spark, and the installation."""
    section = "A first mirror of your own"
    lines = [line for line in shell_lines(section) if not line.startswith("export MIRROR_PUMP_DSN")]
    assert len(lines) == 9
    script = "set -e\n" + "\n".join(lines).replace("/srv/lake", str(tmp_path / "lake"))
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, amount numeric(10,2))",
        "INSERT INTO orders SELECT g, g * 1.5 FROM generate_series(1, 1000) g",
    )
    install_threaded(tmp_path)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MIRROR_PUMP_")}
    environment |= {
        "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "MIRROR_PUMP_DSN": database.dsn,
        # The server is shared with other tests, and slots belong to the server.
        "MIRROR_PUMP_SLOT": slot,
    }
    shell = subprocess.Popen(
        ["bash", "-c", script],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = shell.communicate(timeout=240)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
    assert shell.returncode == 0, out + err
    (name,) = database.rows("SELECT current_database()")[0]
    own = {"/srv/lake": str(tmp_path / "lake"), "of database in": f"of {name} in", "pump-1": "..."}
    own["slot mirror_pump"] = f"slot {slot}"
    expected = printed_lines(section)
    assert len(expected) > 15
    for example, value in own.items():
        expected = [line.replace(example, value) for line in expected]
    # On a terminal, the JSON line is plain text.
    events = [orjson.loads(line)["event"] for line in err.splitlines() if line.startswith("{")]
    printed = out + "".join(f"mirror-pump: {event}\n" for event in events)
    missing = [line for line in expected if not is_printed(line, printed)]
    assert not missing, out + err
