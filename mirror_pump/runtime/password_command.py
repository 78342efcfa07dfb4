"""The program that prints the database's password, for passwords that change while we run: the setting
`password_command`."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Self

from mirror_pump.errors import ConnectionLost, UsageError, one_line_of

_SECONDS = 30.0
"""How long the program may take. Programs of clouds ask a server for a token, which takes a few seconds."""
_SHOWN = 200
"""Characters of the program's own error that a message repeats."""
_REMEDY = "run it by hand as the user that runs mirror-pump: its first line of output has to be the password"

_lock = threading.Lock()
"""Lets one thread at a time run a program: others wait for what it prints."""
_passwords: dict[str, str] = {}
"""The password of each command that this process has used last. Never written anywhere."""


class RotatingDsn(str):
    """A connection string without a password, and the program that prints the password.

    It takes the string's place wherever connections are opened (mirror_pump.source.connect), also in processes that it
    is sent to: these try the password that came with it first, and need the program once that is refused.
    """

    command: str
    password: str | None

    def __new__(cls, dsn: str, command: str, password: str | None = None) -> Self:
        self = super().__new__(cls, dsn)
        self.command = command
        self.password = password
        return self

    def __reduce__(self) -> tuple[type[RotatingDsn], tuple[str, str, str | None]]:
        return RotatingDsn, (str(self), self.command, self.password)

    def passwords(self) -> Iterator[str]:
        """Passwords to try, until one is accepted: the last that was, the one that came with the connection string, and
        what the program prints now. It runs once only, and not if another thread has just had it run.

        Raises UsageError if there is no such program, ConnectionLost if it fails.
        """
        tried = set()
        for password in (_passwords.get(self.command), self.password):
            if password is not None and password not in tried:
                tried.add(password)
                yield password
        password = self._renewed(tried)
        if password not in tried:
            yield password

    def accepted(self, password: str) -> None:
        """The server has accepted `password`: further connections try it first."""
        _passwords[self.command] = password

    def _renewed(self, refused: Collection[str]) -> str:
        with _lock:
            password = _passwords.get(self.command)
            if password is None or password in refused:
                password = _passwords[self.command] = printed_password(command_words(self.command))
            return password


def command_words(command: str) -> list[str]:
    """The program and its arguments, divided as a shell does. No shell runs them: variables and pipes mean nothing.
    Raises ValueError for an unclosed quote, or without a word."""
    words = shlex.split(command)
    if not words:
        raise ValueError("it names no program")
    return words


def printed_password(words: Sequence[str], seconds: float = _SECONDS) -> str:
    """The first line that the program prints. Raises UsageError if it cannot be started; ConnectionLost, which is worth
    another attempt, if it fails, prints nothing, or takes longer than `seconds`. No error repeats what it printed."""
    name = f"password_command, {words[0]},"
    try:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
    except OSError as error:
        raise UsageError(
            f"{name} cannot be started: {error.strerror}",
            "give the path of a program, without a shell's syntax; executors of a Spark cluster need it too",
        ) from None
    with process:
        try:
            output, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            _end(process)
            raise ConnectionLost(f"{name} took longer than {seconds:g} s", _REMEDY) from None
        except BaseException:
            _end(process)
            raise
    if process.returncode != 0:
        *_, last = ["", *errors.decode(errors="replace").strip().splitlines()]
        detail = f": {one_line_of(last)[:_SHOWN]}" if last else ""
        raise ConnectionLost(f"{name} failed with exit code {process.returncode}{detail}", _REMEDY)
    password = output.partition(b"\n")[0].removesuffix(b"\r").decode(errors="replace")
    if not password:
        raise ConnectionLost(f"{name} printed no password", _REMEDY)
    return password


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills the program with all that it has started, which would keep its output open."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
