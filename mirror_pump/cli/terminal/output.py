"""Output of commands: results on stdout, everything else on stderr, numbers formatted for people."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TextIO

import orjson

from mirror_pump.errors import ConnectionLost, Interrupted, MirrorPumpError, of_this_mirror
from mirror_pump.runtime.telemetry import logs_json, redact, say_always

if TYPE_CHECKING:
    from rich.console import Console

_FILE_WIDTH = 240
"""Width of output that goes to a file or pipe, in columns, so that tables are not cut off there."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def stdout() -> Console:
    """The console for results. Created per call, so that it uses a stdout captured by tests."""
    return _console(sys.stdout)


def fitted_stdout() -> Console:
    """The console for results that fit any width. Without a terminal, COLUMNS determines the width; watch(1) and others
    set it."""
    columns = os.environ.get("COLUMNS", "")
    if sys.stdout.isatty() or not columns.isdecimal() or not int(columns):
        return stdout()
    return _console(sys.stdout, int(columns))


def stderr() -> Console:
    """The console for progress and remarks."""
    return _console(sys.stderr)


def _console(stream: TextIO, width: int | None = None) -> Console:
    from rich.console import Console

    return Console(file=stream, highlight=False, width=width or (None if stream.isatty() else _FILE_WIDTH))


def say(line: str) -> None:
    """Prints a plain line of the result on stdout. Without markup, so that a table named `[x]` is printed correctly.
    The mirror's names and commands in it are those of this process's mirror: other ways to print are for data."""
    _write(sys.stdout, of_this_mirror(line) + "\n")


def say_lines(lines: Iterable[str]) -> bool:
    """Prints plain lines of the result on stdout, all at once. Returns False if the reader has closed the pipe."""
    return _write(sys.stdout, "".join(f"{line}\n" for line in lines))


_PREFIX = "mirror-pump: "
_WARNING = "warning: "


def remark(text: str, level: Literal["info", "warning", "error"] = "info", remedy: str = "") -> None:
    """Prints a line on stderr, and a second one with the remedy; a single JSON line if log lines are JSON. Without
    secrets."""
    text, remedy = (
        redact(of_this_mirror(part)) for part in (text.removeprefix(_PREFIX).removeprefix(_WARNING), remedy)
    )
    if logs_json():
        say_always("cli", text, level, **({"remedy": remedy} if remedy else {}))
        return
    _write(sys.stderr, f"{_WARNING if level == 'warning' else _PREFIX}{text}\n")
    if remedy:
        _write(sys.stderr, f"  what to do: {remedy}\n")


def write_json(value: Any) -> bool:
    """Prints `value` on stdout as indented JSON with a newline. Returns False if the reader has closed the pipe."""
    return _write(sys.stdout, orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode())


def pass_on(content: BinaryIO) -> None:
    """Copies all of `content` to stdout, unchanged."""
    try:
        shutil.copyfileobj(content, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        _silence(sys.stdout)


def _write(stream: TextIO, text: str) -> bool:
    """Writes to stdout or stderr. A reader that closes the pipe early (`| head`) is no error and does not change the
    exit code. A BrokenPipeError from elsewhere is an error like any other."""
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        _silence(stream)
        return False
    return True


def _silence(stream: TextIO) -> None:
    """Discards further output and buffered output, which the interpreter flushes when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def report_error(error: MirrorPumpError, happened: str = "", to: str = "") -> None:
    """Prints an error and its remedy in one or two lines on stderr, without secrets.

    `happened` describes what happened to the table `to`. The table's name is added unless the error contains it.
    """
    text = one_line(str(error))
    if happened:
        named = re.search(rf"(?<!\w){re.escape(to)}(?!\w)", text) is not None
        text = f"{happened}: {text}" if named else f"{to}: {happened}: {text}"
    remark(text, "info" if isinstance(error, Interrupted) else "error", error.remedy)


def each_table(tables: Sequence[str], act: Callable[[str], None], failed: str) -> int:
    """Acts on each table once, and reports those that are refused: `failed` says what did not happen to them. Returns
    the exit code. Raises what a single table was refused for, and what concerns all of them."""
    errors: list[MirrorPumpError | None] = []
    for table in dict.fromkeys(tables):
        try:
            act(table)
        except MirrorPumpError as error:
            if len(tables) == 1 or isinstance(error, ConnectionLost | Interrupted):
                raise
            report_error(error, failed, table)
            errors.append(error)
        else:
            errors.append(None)
    return exit_code(errors)


def exit_code(errors: Sequence[MirrorPumpError | None]) -> int:
    """The exit code of a command about several tables, of which each has an error or None: that of the error if it is
    the same for all, such as 2 if no argument names a table; 1 if others were done or have failed."""
    codes = {0 if error is None else error.exit_code for error in errors}
    return codes.pop() if len(codes) == 1 else int(bool(codes))


def one_line(text: str) -> str:
    """`text` on one line, without secrets. Server messages may have several lines."""
    return redact(" ".join(part.strip() for part in text.splitlines() if part.strip()))


def bytes_text(count: int | None) -> str:
    """Formats bytes, like `16.0 MiB`; a dash for None."""
    if count is None:
        return "-"
    value = float(count)
    for unit in _UNITS:
        if abs(value) < 1024 or unit == _UNITS[-1]:
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("the last unit fits every value")


def count_text(count: int | None) -> str:
    """Formats a count, like `1,000,000`; a dash for None."""
    return "-" if count is None else f"{count:,}"


def seconds_text(seconds: float | None) -> str:
    """Formats a duration, like `0.4 s`, `3 min 20 s`, `2 h 5 min`; a dash for None."""
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds else "0 s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"
