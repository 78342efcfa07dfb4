"""The command line: help, wrong usage, exit codes, and how fast it starts."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import orjson
import pytest
import typer
from typer.testing import CliRunner

from mirror_pump.cli import commands
from mirror_pump.cli.arguments.options import command
from mirror_pump.cli.main import MODULES, app
from mirror_pump.errors import SourceError
from mirror_pump.settings.config import Settings

COMMANDS = (
    "init",
    "register",
    "unregister",
    "run",
    "status",
    "wait",
    "verify",
    "connect",
    "maintain",
    "policy",
    "reader",
    "doctor",
)


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"MIRROR_PUMP_{name.upper()}", raising=False)
    monkeypatch.chdir(tmp_path)
    # Rich wraps help to the terminal's width; a wide terminal keeps option names in one piece.
    monkeypatch.setenv("COLUMNS", "200")


def test_help_lists_every_command() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    for name in COMMANDS:
        assert name in result.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_and_its_environment(name: str) -> None:
    result = CliRunner().invoke(app, [name, "--help"])
    assert result.exit_code == 0
    assert "MIRROR_PUMP_DSN" in result.stdout
    assert "--config" in result.stdout


@pytest.mark.parametrize("name", ["init", "status", "run", "verify"])
def test_without_a_database_the_usage_is_wrong(name: str) -> None:
    result = CliRunner().invoke(app, [name])
    assert result.exit_code == 2
    assert "no database was given" in result.stderr
    assert "--dsn" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--dsn", "x", "--once", "--until-lsn", "0/1"],
        ["run", "--dsn", "x", "--until-lsn", "banana"],
        ["run", "--dsn", "x", "--convert-age", "soon"],
        ["wait", "--dsn", "x", "--timeout", "1"],
        ["wait", "--dsn", "x", "--timeout", "1", "--now", "--lsn", "0/1"],
        ["wait", "--dsn", "x", "--now"],
        ["register", "--dsn", "x"],
        ["register", "--dsn", "x", "t", "--column", "amount"],
        ["register", "--dsn", "x", "t", "--column", "amount=money"],
        ["register", "--dsn", "x", "t", "--column", "a=string", "--exclude-column", "a"],
        ["connect", "--dsn", "x", "--engine", "excel"],
        ["maintain", "--dsn", "x", "--serve", "--no-wait"],
        ["maintain", "--dsn", "x", "--serve", "t"],
        ["policy", "--dsn", "x", "set", "t", "rewrite_enabled"],
        ["policy", "--dsn", "x", "get", "t", "rewrite_enabled", "true"],
        ["policy", "--dsn", "x", "set", "t", "no_such_key", "1"],
        ["policy", "--dsn", "x", "set", "t", "orphan_grace_hours", "0"],
        ["policy", "--dsn", "x", "drop", "t"],
        ["frobnicate"],
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert result.stderr
    assert "Traceback" not in result.stderr


def test_a_former_option_is_told_with_what_took_its_place() -> None:
    result = CliRunner().invoke(app, ["run", "--dsn", "x", "--batch-age", "0.2"], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert "--batch-age" in result.stderr
    assert "--files-per-hour" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["set", "t", "no_such_key", "1"], "known keys: maintenance_enabled"),
        (["set", "t", "orphan_grace_hours", "0"], "orphan_grace_hours: Input should be greater than or equal to 1"),
        (["set", "t", "rewrite_strategy", "zorder"], "'binpack' or 'sort'"),
        (["unset", "t", "no_such_key"], "no_such_key is not a key"),
    ],
)
def test_a_wrong_policy_is_refused_before_the_database_is_queried(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["policy", "--dsn", "host=127.0.0.1 port=1", *arguments])
    assert result.exit_code == 2
    assert message in result.stderr


def test_unreachable_server_fails_with_a_remedy_and_without_the_password() -> None:
    # Port 1 of loopback: nothing listens on it.
    result = CliRunner().invoke(app, ["status", "--dsn", "postgresql://me:hunter2@127.0.0.1:1/db"])
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert orjson.loads(line)["remedy"] == "check that the server is running and reachable"
    assert "hunter2" not in line


@pytest.mark.parametrize(
    ("raised", "code", "message"),
    [
        (SourceError("the slot is gone", "make one"), 1, "make one"),
        (ZeroDivisionError("oops"), 1, "ZeroDivisionError: oops"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (BrokenPipeError("the store is gone"), 1, "the store is gone"),
    ],
)
def test_errors_of_a_command_become_exit_codes(raised: BaseException, code: int, message: str) -> None:
    program = typer.Typer()

    @command(program, "fail", needs_dsn=False)
    def fail(settings: Settings) -> None:
        """Fail."""
        raise raised

    result = CliRunner().invoke(program, [])
    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr


_WITHOUT_A_READER = """
import io, typer
from mirror_pump.cli.arguments.options import command
from mirror_pump.cli.terminal.output import pass_on, say, write_json
from mirror_pump.settings.config import Settings
program = typer.Typer()
@command(program, "judge", needs_dsn=False)
def judge(settings: Settings) -> int:
    assert not write_json({}), "so that --watch ends"
    say("first")
    say("second")
    pass_on(io.BytesIO(b"content"))
    return 3
program()
"""


def test_a_reader_that_leaves_changes_no_verdict() -> None:
    """`mirror-pump verify | head -1` with `set -o pipefail`."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-c", _WITHOUT_A_READER], stdout=writer, stderr=subprocess.PIPE, check=False, timeout=60
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (3, b"")


def test_debug_shows_the_traceback() -> None:
    program = typer.Typer()

    @command(program, "fail", needs_dsn=False)
    def fail(settings: Settings) -> None:
        """Fail."""
        raise SourceError("the slot is gone")

    assert "Traceback" in CliRunner().invoke(program, ["--debug"]).stderr


def test_help_needs_neither_spark_nor_arrow() -> None:
    """Spark and Arrow take seconds to import; nobody should wait for them to read an option's name."""
    program = (
        "import sys\nfrom mirror_pump.cli.main import app\n"
        "print([name for name in ('pyspark', 'pyarrow', 'psycopg', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("module", sorted(set(MODULES.values())))
def test_a_module_has_the_commands_that_name_it(module: str) -> None:
    """A command that is missing in the list could not be called, and nothing else would say so."""
    part = typer.Typer()
    import_module(f"mirror_pump.cli.commands.{module}").add(part)
    named = [name for name, of in MODULES.items() if of == module]
    assert [*(command.name for command in part.registered_commands), *(g.name for g in part.registered_groups)] == named


def test_every_module_of_commands_is_named() -> None:
    modules = {path.stem for path in Path(commands.__path__[0]).glob("*.py")} - {"__init__", "lake_tables", "alter"}
    assert modules == set(MODULES.values())


def test_no_arguments_at_all_are_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a program that has the command line as a library."""
    monkeypatch.setattr(sys, "argv", ["mirror-pump"])
    for arguments in (None, list[str]()):
        with pytest.raises(SystemExit) as ended:
            typer.main.get_command(app).main(arguments)
        assert ended.value.code == 2
