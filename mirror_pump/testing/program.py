"""Runs the real program `mirror-pump` in separate processes, for the demo and for tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType


class ProgramFailed(RuntimeError):
    """A command did not end as expected; the message has the end of its output."""


class Program:
    """`mirror-pump` for one database. Its files and logs are in `directory`."""

    def __init__(self, dsn: str, directory: Path, environment: Mapping[str, str] = MappingProxyType({})) -> None:
        """`environment`: further environment variables, added to those of this process."""
        self._directory = directory
        # The user's own settings and mirror-pump.toml must have no effect.
        self._environment = {key: value for key, value in os.environ.items() if not key.startswith("MIRROR_PUMP_")}
        self._environment |= {"MIRROR_PUMP_DSN": dsn, **environment}

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of its processes."""
        return dict(self._environment)

    def command(self, *arguments: str) -> list[str]:
        """The command line to run a command."""
        return [sys.executable, "-m", "mirror_pump.cli", *arguments]

    def run(self, *arguments: str, timeout: float = 300, code: int = 0) -> str:
        """Runs a command and returns its stdout. Raises ProgramFailed unless it ends with `code` in time."""
        log = self._directory / f"{arguments[0]}.log"
        with log.open("ab") as errors:
            offset = errors.tell()
            try:
                completed = subprocess.run(
                    self.command(*arguments),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env=self._environment,
                    cwd=self._directory,
                    timeout=timeout,
                    check=False,
                )
            except subprocess.TimeoutExpired as error:
                raise ProgramFailed(f"mirror-pump {' '.join(arguments)} took over {timeout:g} s, see {log}") from error
        if completed.returncode != code:
            output = completed.stdout[-2000:] + log.read_bytes()[offset:][-2000:]
            raise ProgramFailed(
                f"mirror-pump {' '.join(arguments)} ended with {completed.returncode}:\n"
                f"{output.decode(errors='replace')}"
            )
        return completed.stdout.decode()

    def start(self, *arguments: str, log: str) -> subprocess.Popen[bytes]:
        """Starts a command in its own process group; stdout and stderr go to the file `log`."""
        with (self._directory / log).open("ab") as output:
            return subprocess.Popen(
                self.command(*arguments),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                cwd=self._directory,
                start_new_session=True,
            )

    def stop(self, process: subprocess.Popen[bytes], timeout: float = 40) -> None:
        """Sends SIGTERM to the program, as an operator would. Raises ProgramFailed unless it ends with 0 in time."""
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill(process)
            raise ProgramFailed(f"mirror-pump did not stop within {timeout:g} s of SIGTERM") from None
        if code != 0:
            raise ProgramFailed(f"mirror-pump ended with {code} after SIGTERM, see {self._directory}")

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Sends kill -9 to the program and its children, which would otherwise outlive it for a while."""
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        process.wait()
