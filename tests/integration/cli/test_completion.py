"""The shell completes commands, options and table names, and neither waits for long nor sees error messages."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from mirror_pump.cli.main import app
from mirror_pump.testing.database import Database
from tests.support.cli import RunCommand, register_by_hand

pytestmark = pytest.mark.further


def _request(line: str) -> dict[str, str]:
    """The environment in which bash runs the program to complete a command line."""
    return {
        "_MIRROR_PUMP_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }


def completed(line: str, environment: Mapping[str, str]) -> list[str]:
    """What bash offers at the end of a command line."""
    done = subprocess.run(
        [sys.executable, "-m", "mirror_pump.cli"],
        env={**environment, **_request(line)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [line for line in done.stdout.split("\n") if line]


@pytest.fixture
def completed_here(
    database: Database, no_settings: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[[str], list[str]]:
    """Like `completed`, but on the test's database and in this process."""
    monkeypatch.setenv("MIRROR_PUMP_DSN", database.dsn)

    def complete(line: str) -> list[str]:
        capfd.readouterr()
        with monkeypatch.context() as patch:
            for name, value in _request(line).items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                app(prog_name="mirror-pump")
        done = capfd.readouterr()
        assert (ended.value.code, done.err) == (0, "")
        return [line for line in done.out.split("\n") if line]

    return complete


@pytest.fixture
def environment(database: Database) -> dict[str, str]:
    return {**os.environ, "MIRROR_PUMP_DSN": database.dsn}


@pytest.mark.unverified("its table is a row of the catalog only")
def test_commands_options_and_tables(
    run: RunCommand,
    database: Database,
    slot: str,
    tmp_path: Path,
    environment: dict[str, str],
    completed_here: Callable[[str], list[str]],
) -> None:
    assert run("init", "--warehouse", str(tmp_path / "lake"), "--slot", slot).exit_code == 0
    register_by_hand(database, slot)
    database.execute("CREATE TABLE orders (id int)", 'CREATE TABLE "Orders 2" (id int)', "CREATE TABLE t (id int)")

    assert completed("mirror-pump veri", environment) == ["verify"]
    assert "--until-lsn" in completed_here("mirror-pump run --u")
    for command in ("verify", "maintain", "unregister", "policy get", "retain"):
        assert completed_here(f"mirror-pump {command} publ") == ["public.t"], command
    assert completed("mirror-pump verify t", environment) == ["t"]
    assert completed_here("mirror-pump register publ") == ['public."Orders 2"', "public.orders"]
    assert completed_here("mirror-pump register ord") == ["orders"]
    assert completed_here("mirror-pump register --alter publ") == ["public.t"]
    # The DSN on the command line that is being typed takes precedence over the environment's.
    assert completed_here("mirror-pump verify --dsn host=127.0.0.1,port=1 publ") == []


@pytest.mark.parametrize("dsn", [None, "host=127.0.0.1 port=1", "no connection string"])
def test_without_a_database_there_is_nothing_to_offer(environment: dict[str, str], dsn: str | None) -> None:
    del environment["MIRROR_PUMP_DSN"]
    if dsn is not None:
        environment["MIRROR_PUMP_DSN"] = dsn
    assert completed("mirror-pump verify publ", environment) == []


def test_a_database_that_was_not_initialised_has_tables_to_register(
    database: Database, environment: dict[str, str]
) -> None:
    database.execute("CREATE TABLE orders (id int)")
    assert completed("mirror-pump register publ", environment) == ["public.orders"]
    assert completed("mirror-pump verify publ", environment) == []


def test_bash_installs_and_shows_it(tmp_path: Path) -> None:
    """In a home directory of its own, run by the shell that asks for it. After that, the shell completes."""
    program = str(Path(sys.executable).parent)
    environment = {**os.environ, "HOME": str(tmp_path), "PATH": f"{program}:{os.environ['PATH']}"}

    def bash(script: str) -> str:
        done = subprocess.run(
            ["bash", "--norc", "-c", script], env=environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    shown = bash("mirror-pump --show-completion; true")
    assert "_MIRROR_PUMP_COMPLETE=complete_bash" in shown
    bash("mirror-pump --install-completion; true")
    (installed,) = (tmp_path / ".bash_completions").iterdir()
    complete = "COMP_WORDS=(mirror-pump unreg); COMP_CWORD=1; _mirror_pump_completion mirror-pump; echo ${COMPREPLY[@]}"
    assert bash(f"source {installed}; {complete}") == "unregister\n"
