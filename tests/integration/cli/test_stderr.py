"""Without a terminal, stderr holds JSON lines, whichever component writes them. On a terminal, lines stay above
progress bars."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from mirror_pump.testing.database import Database
from mirror_pump.testing.program import Program
from tests.support.cli import on_a_terminal

pytestmark = pytest.mark.further


def run(program: Program, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit code, and the lines of stderr. A line that is not a JSON object fails the test."""
    done = subprocess.run(
        program.command(*arguments), capture_output=True, env=program.environment, check=False, timeout=240
    )
    lines = [orjson.loads(line) for line in done.stderr.splitlines()]
    for line in lines:
        assert {"event", "level", "timestamp", "component"} <= line.keys(), line
    return done.returncode, lines


@pytest.fixture
def program(database: Database, tmp_path: Path) -> Program:
    return Program(database.dsn, tmp_path)


@pytest.mark.soak  # It starts Spark three times.
def test_every_command_of_a_mirror(program: Program, database: Database, slot: str, tmp_path: Path) -> None:
    """Commands that succeed, with Spark's JVM and workers, and commands that fail."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int, twice int GENERATED ALWAYS AS (n * 2))",
        "INSERT INTO t SELECT g, g FROM generate_series(1, 10) g",
        "CREATE TABLE keyless (id int)",
    )
    assert run(program, "init", "--warehouse", str(tmp_path / "lake"), "--slot", slot) == (0, [])
    code, lines = run(program, "register", "t", "keyless")
    assert code == 1
    (refused,) = [line for line in lines if line["level"] == "error"]
    assert refused["event"].startswith("not registered: public.keyless has no primary key")
    assert "remedy" in refused
    for expected, arguments in (
        (0, ("run", "--once")),
        (0, ("status",)),
        (0, ("verify",)),
        (0, ("maintain", "t", "--no-wait")),
        (0, ("sql", "SELECT count(*) FROM t")),
        (0, ("connect", "--engine", "duckdb")),
        (0, ("policy", "get", "t")),
        (0, ("retain",)),
        (1, ("wait", "--lsn", "FFFF/0", "--timeout", "0")),
        (1, ("status", "--dsn", "host=127.0.0.1 port=1")),
        (0, ("unregister", "t")),
    ):
        code, lines = run(program, *arguments)
        assert code == expected, (arguments, lines)
        assert not any(line["component"] == "spark" for line in lines), "what Spark says at each start is no news"


@pytest.mark.parametrize(
    "arguments",
    [(), ("frobnicate",), ("register",), ("wait", "--timeout", "soon", "--now"), ("status", "--no-such-option"),
     ("run", "--convert-age", "soon"), ("status", "--config", "absent.toml")],
)  # fmt: skip
def test_wrong_usage(program: Program, arguments: tuple[str, ...]) -> None:
    code, (line,) = run(program, *arguments)
    assert code == 2
    assert line["level"] == "error"
    assert line["event"]


_NOISE = """
import logging, socketserver, sys, threading, warnings
sys.argv[1:] = ["status"]
import mirror_pump.ops.status.status_reader

def noise(settings):
    warnings.warn("outdated")
    logging.getLogger("py4j").error("chatter")
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    print("plain\\ntext", file=sys.stderr)
    class Broken:
        def __del__(self):
            raise ValueError("in a destructor")
    Broken()
    raise AssertionError("a bug")

mirror_pump.ops.status.status_reader.StatusReader = noise
from mirror_pump.cli.__main__ import main
main()
"""


def test_warnings_threads_and_bugs(program: Program, slot: str, tmp_path: Path) -> None:
    """Written within a command, since no single command does all of this."""
    program.run("init", "--warehouse", str(tmp_path / "lake"), "--slot", slot)
    for debug in (False, True):
        noise = _NOISE.replace('"status"', '"status", "--debug"') if debug else _NOISE
        done = subprocess.run(
            [sys.executable, "-c", noise], capture_output=True, env=program.environment, check=False, timeout=60
        )
        assert done.returncode == 1
        lines = [orjson.loads(line) for line in done.stderr.splitlines()]
        events = {line["event"] for line in lines}
        assert {"outdated", "chatter", "plain", "text", "AssertionError: a bug"} <= events
        exceptions = " ".join(line.get("exception", "") for line in lines)
        assert "ZeroDivisionError" in exceptions
        assert "in a destructor" in exceptions
        assert ("AssertionError: a bug" in exceptions) is debug


def test_a_broken_installation(program: Program, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "typer.py").write_text("raise ImportError('not for this Python')")
    environment = {**program.environment, "PYTHONPATH": str(tmp_path / "broken")}
    done = subprocess.run(program.command("status"), capture_output=True, env=environment, check=False, timeout=60)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert orjson.loads(line)["event"] == "ImportError: not for this Python"


_PROGRESS = """
import logging, os, sys, threading, time, warnings
from mirror_pump.engine.spark_runtime.session import jvm_output
from mirror_pump.cli.terminal.output import remark
from mirror_pump.cli.terminal.progress import copy_progress
from mirror_pump.ops.table_progress import TableProgress
from mirror_pump.runtime.telemetry import configure_logging, get_logger, install_hooks
install_hooks()
log = get_logger("before")
with copy_progress() as show:
    with jvm_output() as jvm:
        for rows in range(3):
            show([TableProgress("public.t", "copying", rows, 4, rows)])
            log.warning("from the log")
            logging.getLogger("py4j").error("from logging")
            warnings.warn(f"from warnings {rows}")
            remark("from the command")
            os.write(jvm, b"from the JVM\\n")
            print("from a library", file=sys.stderr)
    # Its thread does not wait for the last lines of a JVM that has not failed.
    for thread in threading.enumerate():
        if thread.name == "jvm-log":
            thread.join(60)
"""


def test_lines_on_a_terminal_stand_above_the_progress_bar(program: Program) -> None:
    """No line shares its row with the bar: rich erases the bar, prints the line, and draws the bar again below."""
    screen = render(on_a_terminal([sys.executable, "-c", _PROGRESS], program.environment))
    for text, times in (
        ("from the log", 3),
        ("from logging", 3),
        ("from warnings", 3),
        ("from the command", 3),
        ("from the JVM", 3),
        ("from a library", 3),
    ):
        rows = [row for row in screen if text in row]
        assert len(rows) == times, (text, screen)
        assert not any("━" in row or "public.t" in row for row in rows), rows
    assert len([row for row in screen if "━" in row]) == 1, screen


def render(written: str) -> list[str]:
    """The rows that a terminal shows. Knows just enough control sequences for rich's bars."""
    rows: list[list[str]] = [[]]
    row = column = 0
    for part in re.finditer(r"\x1b\[([0-9;?]*)([A-Za-z])|(\r)|(\n)|([^\x1b])", written):
        count, command, back, down, character = part.groups()
        if command == "A":
            row = max(0, row - int(count or 1))
        elif command == "K":
            rows[row] = [] if count == "2" else rows[row][:column]
        elif back:
            column = 0
        elif down:
            row += 1
            rows += [[]] * (row + 1 - len(rows))
        elif character:
            rows[row] = [*rows[row], *" " * (column - len(rows[row]))]
            rows[row][column : column + 1] = character
            column += 1
    return ["".join(shown) for shown in rows]
