"""The shell of `mirror-pump sql` on a real pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import stat
import subprocess
import termios
import time
from pathlib import Path
from types import TracebackType

import pytest

from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import PROGRAM

pytestmark = pytest.mark.further

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07|[=>()][0-9A-B]?)")
_PATIENCE = 60.0
"""Seconds to wait for anything: a program has to start on a busy machine."""
CTRL_C, CTRL_D, TAB, UP, ENTER = "\x03", "\x04", "\t", "\x1b[A", "\r"


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """A program on a pseudo-terminal."""

    def __init__(self, directory: Path, dsn: str) -> None:
        self._terminal, theirs = pty.openpty()
        environment = {
            **os.environ,
            "MIRROR_PUMP_DSN": dsn,
            "XDG_STATE_HOME": str(directory / "state"),
            "TERM": "xterm",
            "COLUMNS": "100",
            # A terminal would answer with its cursor's position; this one has no cursor.
            "PROMPT_TOOLKIT_NO_CPR": "1",
        }
        self.process = subprocess.Popen(
            [*PROGRAM, "sql"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            start_new_session=True,
            # Its controlling terminal, so that Ctrl-C becomes a signal.
            preexec_fn=_take_terminal,  # noqa: PLW1509 - one system call; nothing of Python's state is touched
        )
        os.close(theirs)
        self._seen = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._terminal)

    def type(self, keys: str) -> None:
        """Types as a user would."""
        os.write(self._terminal, keys.encode())

    def wait_for(self, text: str) -> str:
        """The output since the last call, up to and with `text`. AssertionError if it does not appear."""
        deadline = time.monotonic() + _PATIENCE
        while text not in self._seen:
            assert time.monotonic() < deadline, f"{text!r} does not come; shown: {self._seen!r}"
            ready, _, _ = select.select([self._terminal], [], [], 0.2)
            if not ready:
                continue
            try:
                shown = os.read(self._terminal, 65536)
            except OSError as error:
                raise AssertionError(f"the program ended; shown: {self._seen!r}") from error
            self._seen = _ESCAPES.sub("", self._seen + shown.decode(errors="replace"))
        found, _, self._seen = self._seen.partition(text)
        return found + text

    def leaves(self) -> int:
        """The exit code, once the program has ended."""
        return self.process.wait(_PATIENCE)


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    database.execute(
        "CREATE TABLE public.orders (id int PRIMARY KEY, product text)",
        "INSERT INTO public.orders VALUES (1, 'tea'), (2, 'salt')",
    )
    made = Mirror.create(database, warehouse, tasks)
    made.register("public.orders")
    made.catch_up()
    return made


@pytest.mark.further
@pytest.mark.usefixtures("no_settings")
def test_the_shell_on_a_terminal(mirror: Mirror, tmp_path: Path) -> None:
    database = mirror.database
    with Terminal(tmp_path, database.dsn) as shell:
        shell.wait_for("mirror=>")
        # Several lines are one query, which a semicolon ends.
        shell.type("SELECT count(*) AS n" + ENTER)
        shell.wait_for("->")
        shell.type("FROM orders;" + ENTER)
        shell.wait_for("(1 row)")
        shell.wait_for("mirror=>")
        # An error ends the query and discards the rest of the line, but not the shell.
        shell.type("SELECT nothing FROM orders; SELECT 'not' || 'run';" + ENTER)
        shell.wait_for('"nothing" not found')
        assert "notrun" not in shell.wait_for("mirror=>")
        # Each query reads the present state of the lake.
        database.execute("INSERT INTO orders VALUES (3, 'late')")
        mirror.catch_up()
        shell.type("SELECT 'rows: ' || count(*) FROM orders;" + ENTER)
        shell.wait_for("rows: 3")
        shell.wait_for("mirror=>")
        # Tab completes keywords, tables, and columns of the query's tables. Only new characters are sent to the
        # terminal.
        shell.type("SELECT prod" + TAB)
        shell.wait_for("uct")
        shell.type(" FROM public.o" + TAB)
        shell.wait_for("rders")
        shell.type(" WHERE orders.produ" + TAB)
        shell.wait_for("ct")
        shell.type(" LIKE 't%' INTERSE" + TAB)
        shell.wait_for("CT")
        shell.type(" SELECT 'tea';" + ENTER)
        assert "tea" in shell.wait_for("(1 row)")
        shell.wait_for("mirror=>")
        # Ctrl-C discards the line.
        shell.type("SELECT 'dropped' ||" + CTRL_C)
        shell.wait_for("mirror=>")
        shell.type("SELECT 'kept' || '!';" + ENTER)
        shell.wait_for("kept!")
        shell.wait_for("mirror=>")
        # Or it stops the query, and releases its pins.
        shell.type("SELECT count(*) FROM orders, range(1000000000000) a(i) WHERE i % 7 = -1;" + ENTER)
        await_true(lambda: database.rows("SELECT FROM modak.read_pins"), _PATIENCE, "the query has begun")
        shell.type(CTRL_C)
        shell.wait_for("mirror-pump: interrupted")
        shell.wait_for("mirror=>")
        assert database.rows("SELECT FROM modak.read_pins") == []
        shell.type(r"\?" + ENTER)
        shell.wait_for("Ctrl-R")
        shell.wait_for("mirror=>")
        shell.type(CTRL_D)
        assert shell.leaves() == 0
    # The history outlives the shell, and only its owner can read it.
    history = tmp_path / "state" / "mirror-pump" / "sql_history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert "SELECT 'kept' || '!';" in history.read_text()
    assert "dropped" not in history.read_text()
    with Terminal(tmp_path, database.dsn) as shell:
        shell.wait_for("mirror=>")
        shell.type(UP + UP + UP)
        shell.wait_for("'kept'")
        shell.type(ENTER)
        shell.wait_for("kept!")
        shell.wait_for("mirror=>")
        shell.type("quit" + ENTER)
        assert shell.leaves() == 0
