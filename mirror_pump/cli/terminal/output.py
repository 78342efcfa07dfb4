"""What a command says: results on stdout, everything else on stderr, figures as people write them."""

from __future__ import annotations

import os
import re
import shutil
import sys
from typing import Any, BinaryIO, Literal, TextIO

import orjson
from rich.console import Console

from mirror_pump.errors import Interrupted, MirrorPumpError
from mirror_pump.telemetry import logs_json, redact, say_always

_FILE_WIDTH = 240
"""Columns of output that no terminal limits: a table in a file or pipe is not to be cut."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def stdout() -> Console:
    """The console for results. Made per call, so that a test's captured stdout is the one that is used."""
    return _console(sys.stdout)


def fitted_stdout() -> Console:
    """The console for results that are drawn for any width: where there is no terminal, COLUMNS decides, which watch(1)
    and the like set."""
    columns = os.environ.get("COLUMNS", "")
    if sys.stdout.isatty() or not columns.isdecimal() or not int(columns):
        return stdout()
    return Console(file=sys.stdout, highlight=False, width=int(columns))


def stderr() -> Console:
    """The console for progress and remarks."""
    return _console(sys.stderr)


def _console(stream: TextIO) -> Console:
    return Console(file=stream, highlight=False, width=None if stream.isatty() else _FILE_WIDTH)


def say(line: str) -> None:
    """One plain line of result on stdout; no markup, so that a table called `[x]` survives."""
    _write(sys.stdout, line + "\n")


_PREFIX = "mirror-pump: "
_WARNING = "warning: "


def remark(text: str, level: Literal["info", "warning", "error"] = "info", remedy: str = "") -> None:
    """One line on stderr, with a second one for what to do; a JSON line where log lines are."""
    text = text.removeprefix(_PREFIX).removeprefix(_WARNING)
    if logs_json():
        say_always("cli", text, level, **({"remedy": remedy} if remedy else {}))
        return
    _write(sys.stderr, f"{_WARNING if level == 'warning' else _PREFIX}{text}\n")
    if remedy:
        _write(sys.stderr, f"  what to do: {remedy}\n")


def write_json(value: Any) -> bool:
    """`value` as indented JSON and a newline on stdout. False if its reader has just left."""
    return _write(sys.stdout, orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode())


def pass_on(content: BinaryIO) -> None:
    """All of `content`, as it is, to stdout."""
    try:
        shutil.copyfileobj(content, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        _silence(sys.stdout)


def _write(stream: TextIO, text: str) -> bool:
    """Whoever reads our output may have seen enough (`| head`): that ends neither the command nor changes its exit
    code. A BrokenPipeError of anything else is an error like others."""
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        _silence(stream)
        return False
    return True


def _silence(stream: TextIO) -> None:
    """What follows goes nowhere, and so does what is buffered, which the interpreter flushes as it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def report_error(error: MirrorPumpError, happened: str = "", to: str = "") -> None:
    """What went wrong and what to do, in one or two lines on stderr, without secrets. `happened` to the table `to`,
    whose name is not said again if the error says it."""
    text = one_line(str(error))
    if happened:
        named = re.search(rf"(?<!\w){re.escape(to)}(?!\w)", text) is not None
        text = f"{happened}: {text}" if named else f"{to}: {happened}: {text}"
    remark(text, "info" if isinstance(error, Interrupted) else "error", redact(error.remedy))


def one_line(text: str) -> str:
    """`text` on one line, without secrets: server messages have several."""
    return redact(" ".join(part.strip() for part in text.splitlines() if part.strip()))


def bytes_text(count: int | None) -> str:
    """`16.0 MiB`; a dash for None."""
    if count is None:
        return "-"
    value = float(count)
    for unit in _UNITS:
        if abs(value) < 1024 or unit == _UNITS[-1]:
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("the last unit takes every value")


def count_text(count: int | None) -> str:
    """`1,000,000`; a dash for None."""
    return "-" if count is None else f"{count:,}"


def seconds_text(seconds: float | None) -> str:
    """`0.4 s`, `3 min 20 s`, `2 h 5 min`; a dash for None."""
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds else "0 s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"
