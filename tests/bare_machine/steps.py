"""Runs a shell script line by line, and measures how long each line took."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_BEGIN = "step begins:"


@dataclass(frozen=True)
class ScriptStep:
    """One executed line of a script."""

    command: str
    seconds: float
    output: str
    """Stdout and stderr, including those of background processes."""


class StepFailed(Exception):
    """A line ended with an error; the message has the line and its output."""


def run_steps(
    lines: Sequence[str], environment: Mapping[str, str], directory: Path, timeout: float
) -> list[ScriptStep]:
    """Executes the lines in one bash, like a user who pastes them. `timeout`: seconds for all of them.

    Ends everything that they started. StepFailed if a line fails, or the time is over.
    """
    script = ["set -e"]
    for number, line in enumerate(lines):
        # The time comes from the shell, since its output may be read late.
        script += [f'echo "{_BEGIN} {number} $(date +%s.%N)" >&3', f"echo {shlex.quote(_BEGIN)} {number}", line]
    script.append(f'echo "{_BEGIN} {len(lines)} $(date +%s.%N)" >&3')
    times, output = directory / "times.log", directory / "output.log"
    with times.open("wb") as clock, output.open("wb") as log:
        shell = subprocess.Popen(
            ["bash", "-c", "exec 3>>" + shlex.quote(str(times)) + "\n" + "\n".join(script)],
            env=dict(environment),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        clock.flush()
        begin = time.monotonic()
        try:
            code: int | None = shell.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGTERM if time.monotonic() - begin < timeout else signal.SIGKILL)
            shell.wait()
    marks = [float(mark.split()[-1]) for mark in times.read_text().splitlines()]
    parts = output.read_text(errors="replace").split(f"{_BEGIN} ")[1:]
    texts = [text.partition("\n")[2] for text in parts]
    if code != 0:
        failed = len(marks) - 1
        why = f"took over {timeout:g} s" if code is None else f"ended with {code}"
        raise StepFailed(f"{lines[failed]}\n{why}:\n{texts[failed][-4000:]}")
    return [
        ScriptStep(line, after - before, text)
        for line, before, after, text in zip(lines, marks[:-1], marks[1:], texts, strict=True)
    ]
